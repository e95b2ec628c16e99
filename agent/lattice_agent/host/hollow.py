"""A host that runs nothing and only waits, for scale tests of everything above it; each status says so.

Work ends after its variable HOLLOW_SECONDS with the code HOLLOW_EXIT (default 0); without HOLLOW_SECONDS it waits for its walltime or a
stop. Nothing outlives the process: after a restart it is like a node that was reinstalled. Until then it can answer a recovery of the
ledger.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from lattice.daemon.queue import KeyedQueue
from lattice.errors import Rejected, Stale
from lattice.kube.clock import Clock
from lattice_agent.attempts import EarlySignal, ExitRecord, KeptAttempt, Key, Known, NodeWork, Ordered, Running, Seen, TaskExit
from lattice_agent.host.interface import MachineFacts, OnExit

SECONDS = "HOLLOW_SECONDS"
EXIT = "HOLLOW_EXIT"
REMEMBERED = 1024
"""Attempts of which a hollow node remembers that they were started here."""
KEPT = 64
"""Ended attempts, the newest ones, that a hollow node can name in a recovery."""
TERMINATED, KILLED = 15, 9


@dataclass(slots=True)
class _HollowAttempt:
    """One attempt that is prepared or waits; `running` None: it was not started. `seconds` None: it waits until it is stopped."""

    work: NodeWork
    seconds: float | None
    code: int
    prepared: float
    running: Running | None = None


@dataclass(slots=True)
class _EndedAttempt:
    """One attempt that has ended; `settled` is the seq of the plan that settled it, 0: none has."""

    kept: KeptAttempt
    settled: int = 0


class HollowTimers:
    """The timers of all hollow work in a process: one heap instead of a task for each attempt."""

    def __init__(self, clock: Clock) -> None:
        self._hosts: dict[str, HollowHost] = {}
        self._queue = KeyedQueue(self._due, clock, workers=1, name="hollow")

    async def run(self) -> None:
        """Ends work whose time is over, until cancelled."""
        await self._queue.run()

    def join(self, node: str, host: HollowHost) -> None:
        """Adds a node: its `host` is called when the time of an attempt on it is over."""
        self._hosts[node] = host

    def set(self, node: str, key: Key, after: float) -> None:
        """Sets a timer that ends an attempt on the node in `after` seconds, as if by itself; of several for an attempt the earliest counts.

        To put an end off, `clear` it first. The node must have joined (`join`) before the timer ends.
        """
        self._queue.add(f"{node}/{key.uid}/{key.attempt}", after)

    def clear(self, node: str, key: Key) -> None:
        """Removes the timer of an attempt that ended earlier."""
        self._queue.forget(f"{node}/{key.uid}/{key.attempt}")

    async def _due(self, name: str) -> float | None:
        """Ends the attempt that a timer (`NODE/UID/ATTEMPT`) is of; always returns None: no timer follows."""
        node, uid, attempt = name.split("/")
        self._hosts[node].finish(Key(uid, int(attempt)))
        return None


class HollowHost:
    """The host of one hollow node, which starts nothing."""

    def __init__(self, node: str, *, clock: Clock, timers: HollowTimers, facts: MachineFacts, instance: str) -> None:
        self._node = node
        self._clock = clock
        self._timers = timers
        self._facts = facts
        self._instance = instance
        self._seen = Seen()
        self._made = clock.now()
        self._held: dict[Key, _HollowAttempt] = {}
        self._begun: dict[Key, None] = {}
        self._ended: dict[Key, _EndedAttempt] = {}
        self._callback: OnExit | None = None
        timers.join(node, self)

    def on_exit(self, callback: OnExit) -> None:
        """Sets the function that is called with each end from now on; earlier ends are delivered to nobody."""
        self._callback = callback

    async def prepare(self, work: NodeWork) -> None:
        """Reads from the work's variables HOLLOW_SECONDS and HOLLOW_EXIT how long the attempt is to wait and its exit code.

        Raises Stale when the attempt was started here before, Rejected (StartFailed) where one of them is no number.
        """
        if work.key in self._begun:
            raise Stale(f"attempt {work.key.attempt} of {work.namespace}/{work.name} was started on {self._node} before")
        seconds, code = work.variables.get(SECONDS), work.variables.get(EXIT, "0")
        try:
            self._held[work.key] = _HollowAttempt(
                work, None if seconds is None else max(0.0, float(seconds)), int(code) & 255, self._clock.now()
            )
        except ValueError as error:
            message = f"hollow node {self._node}: {SECONDS}={seconds!r} and {EXIT}={code!r} must be numbers"
            raise Rejected(message, reason="StartFailed") from error

    async def start(self, work: NodeWork, private: Mapping[str, str] | None = None) -> Running:
        """Begins the waiting time of a prepared attempt and returns its start, with pid 0; a second call returns the first one's answer."""
        del private
        held = self._held[work.key]
        if held.running is None:
            held.running = Running(0, 0, self._clock.now(), self._clock.monotonic())
            self._begun[work.key] = None
            while len(self._begun) > REMEMBERED:
                self._begun.pop(next(iter(self._begun)))
            if held.seconds is not None and work.tasks:
                self._timers.set(self._node, work.key, held.seconds)
        return held.running

    async def terminate(self, key: Key, order: Ordered) -> bool:
        """Ends an attempt's waiting time at once, as TERM would end its processes; always returns True. `order` is not kept.

        An attempt that was never prepared ends, too, with an empty record.
        """
        if key not in self._held and key not in self._begun:
            self._tell_end(key, ExitRecord(key.uid, key.attempt, self._facts.boot_id, (), self._clock.now()))  # it was never prepared
        self.finish(key, TERMINATED)
        return True

    async def send_signal(self, key: Key, early: EarlySignal) -> int:
        """Returns 0: a hollow attempt has no processes."""
        del key, early
        return 0

    async def kill(self, key: Key) -> None:
        """Ends an attempt's waiting time, as KILL would end its processes; does nothing for one that does not wait."""
        self.finish(key, KILLED)

    async def clear(self, key: Key) -> None:
        """Does nothing: a hollow node prepares nothing that would have to be undone."""

    async def remaining(self, key: Key) -> int:
        """Returns how many tasks of an attempt wait; 0: it was not started, or has ended."""
        held = self._held.get(key)
        return held.work.tasks if held is not None and held.running is not None else 0

    def finish(self, key: Key, signal: int = 0) -> None:
        """Ends the waiting time of an attempt, by itself (`signal` 0) or by a signal, and delivers its end; nothing where it has ended."""
        held = self._held.pop(key, None)
        if held is None:
            return  # ended before
        self._timers.clear(self._node, key)
        now = self._clock.now()
        if held.running is not None:  # as on a real node: what has passed, whoever sets the clock
            now = held.running.started + self._clock.monotonic() - held.running.started_boottime
        tasks: tuple[TaskExit, ...] = ()
        if held.running is not None:
            tasks = tuple(self._exit(held, held.running, rank, signal, now) for rank in range(held.work.tasks))
        record = ExitRecord(key.uid, key.attempt, self._facts.boot_id, tasks, now)
        self._ended[key] = _EndedAttempt(KeptAttempt(_known(held, record), held.prepared))
        while len(self._ended) > KEPT:
            self._ended.pop(next(iter(self._ended)))
        self._tell_end(key, record)

    def _tell_end(self, key: Key, record: ExitRecord) -> None:
        """Delivers an end to the function that `on_exit` has set; to nobody where none is set."""
        if self._callback is not None:
            self._callback(key, record)

    def _exit(self, held: _HollowAttempt, running: Running, rank: int, signal: int, now: float) -> TaskExit:
        """Returns the exit of one task (`rank`, counted from 0 on this node): the attempt's exit code, or 128 + the signal that
        ended it.
        """
        code = 128 + signal if signal else held.code
        return TaskExit(held.work.first_rank + rank, 0, code, signal, running.started, now)

    async def attempts(self) -> list[Known]:
        """Returns an empty list: a hollow node keeps no attempts beyond its process."""
        return []

    async def recall(self, key: Key) -> Known | None:
        """Returns None: a hollow node keeps no record."""
        return None

    async def history(self, since: int) -> list[KeptAttempt]:
        """Returns all attempts that wait, and the newest ended ones that no plan up to `since` has settled."""
        going = [KeptAttempt(_known(held), held.prepared) for held in self._held.values()]
        return [*going, *(one.kept for one in self._ended.values() if not 0 < one.settled <= since)]

    def made(self) -> float:
        """Returns when this process made the node, seconds since the epoch."""
        return self._made

    async def forget(self, key: Key, *, seq: int = 0) -> None:
        """Drops an attempt that the plan of this seq (0: unknown) has settled, and keeps the seq with its end."""
        self._held.pop(key, None)
        if key in self._ended:
            self._ended[key].settled = seq

    def facts(self) -> MachineFacts:
        """Returns the facts that the node was given."""
        return self._facts

    def ends_in_memory(self) -> int:
        """Returns 0: nothing is written anywhere."""
        return 0

    async def cache_full(self) -> tuple[str, tuple[str, ...]]:
        """Returns an empty sentence and no digests: hollow nodes keep no images."""
        return "", ()

    def pulling(self) -> Collection[Key]:
        """Returns no attempts: hollow nodes pull no images."""
        return ()

    def survivors(self) -> dict[Key, str]:
        """Returns no attempts: there are no processes that could survive."""
        return {}

    async def unenforced(self) -> str:
        """Returns an empty text: nothing runs that could exceed a limit."""
        return ""

    async def flaw(self) -> str:
        """Returns an empty text: nothing is ever wrong."""
        return ""

    def instance(self) -> str:
        """Returns the node's random id."""
        return self._instance

    def seen(self) -> Seen:
        """Returns the highest plan seq seen in this process."""
        return self._seen

    async def remember(self, seen: Seen) -> None:
        """Keeps `seen` in memory where its seq is higher than the kept one; else changes nothing."""
        if seen.seq > self._seen.seq:
            self._seen = seen


def _known(held: _HollowAttempt, record: ExitRecord | None = None) -> Known:
    """Returns an attempt as a host shows it; `record`: its exit record, None while it lives."""
    alive = held.running is not None and record is None
    return Known(held.work.key, held.work, held.running, alive, record, boot_matches=True, populated=alive)
