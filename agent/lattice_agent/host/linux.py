"""The real machine: the Host that starts processes, watches them by pidfd, and finds them again after its own death."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import NotFound, Rejected, Retry, Stale, UnknownOutcome
from lattice_agent import launch, room
from lattice_agent.host import facts, processes, scopes, users
from lattice_agent.host.interface import ExitRecord, Facts, Key, Known, OnExit, Running, Work
from lattice_agent.host.starter import Starter
from lattice_agent.journal import Journal
from lattice_agent.launch import Place, refuse, unfit
from lattice_agent.shim import start_ticks

log = logging.getLogger(__name__)

_LAUNCHES = 5
_ANSWER_SECONDS = 60.0
_KILL_AGAIN_SECONDS = 0.1
_PRUNE_SECONDS = 3600.0
_P = ParamSpec("_P")
_T = TypeVar("_T")


async def _aside(function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """File and /proc work in a thread: it may take longer than the loop can wait."""
    return await asyncio.to_thread(function, *args, **kwargs)


class LinuxHost:
    """Effects on this machine. Made by `open_host`, whose TaskGroup holds its tasks."""

    def __init__(self, journal: Journal, scopes_: scopes.Scopes, clock: Clock, tasks: asyncio.TaskGroup) -> None:
        self.journal, self.scopes = journal, scopes_
        self.starter = Starter()
        self._clock, self._tasks = clock, tasks
        self._facts = facts.gather()
        self._instance, self._seq = journal.instance(), journal.seen_seq()
        self._places: dict[Key, Place] = {}
        self._watched: dict[Key, int] = {}
        self._settling: set[Key] = set()
        self._killing: set[Key] = set()
        self._callback: OnExit | None = None
        self._undelivered: deque[tuple[Key, ExitRecord | None]] = deque()
        self._pruned = float("-inf")
        self._flaw = ""
        self._running: set[asyncio.Task[None]] = set()

    # what the node knows

    def facts(self) -> Facts:
        """What the machine is."""
        return self._facts

    async def flaw(self) -> str:
        """Why this node should be given no work now: its state directory is full, or cannot be written. Old output goes first."""
        for name in await _aside(room.make_room, self.journal, self._clock.now()):
            event(log, "OutputGivenUp", logging.WARNING, attempt=name, message="the disk of the state directory is short of room")
        self._flaw = await _aside(room.flaw, self.journal.state_dir, wanting=bool(self._flaw))
        return self._flaw

    def instance(self) -> str:
        """The state directory's random id."""
        return self._instance

    def seen_seq(self) -> int:
        """The highest plan seq that this node has seen."""
        return self._seq

    async def remember_seq(self, seq: int) -> None:
        """Keeps a higher seq durably; a lower one changes nothing."""
        if seq > self._seq:
            await _aside(self.journal.remember_seq, seq)
            self._seq = max(self._seq, seq)  # not before it is on the disk: a full one is tried again

    def on_exit(self, callback: OnExit) -> None:
        """Registers the one callback; ends that came before are delivered at once, in order."""
        self._callback = callback
        while self._undelivered:
            callback(*self._undelivered.popleft())

    async def attempts(self) -> list[Known]:
        """All that this node knows of; those that live are watched, what lost its shim is ended."""
        await self._prune()
        keys = await _aside(lambda: sorted({*self.journal.known(), *self.scopes.standing()}))
        found = [await _aside(self._look, key) for key in keys]
        for known in found:
            if known.alive and known.running and known.running.pid:
                self._watch(known.key, known.running)
            elif known.running and known.populated and not known.alive:
                self._settle_soon(known.key)
        return found

    def _look(self, key: Key) -> Known:
        """One attempt as disk and /proc show it now; liveness first, for a shim writes its record before it dies."""
        entry, running = self.journal.entry(key), self.journal.claimed(key)
        same_boot = entry is not None and entry.boot == self._facts.boot_id
        if running is None and entry is None:
            running = _of_pid(self.scopes.shim_pid(key))
        alive = bool(running and (same_boot or entry is None) and processes.is_live(running.pid, running.start_ticks))
        populated = alive or self.scopes.populated(key)
        record, forgotten = self.journal.exit_record(key), self.journal.forgotten(key)
        if running is not None and running.pid == 0:
            if running.started == 0:
                running = None
            else:  # it has no tasks here, and lives until it is ended
                alive = same_boot and record is None and not forgotten
        return Known(key, entry.work if entry else None, running, alive, record, same_boot, populated, forgotten)

    # before the start

    async def prepare(self, work: Work) -> None:
        """Checks user, directories and files, writes the journal, makes the scope."""
        if await _aside(self._was_started, work.key):
            raise Stale(f"attempt {work.key.attempt} of {work.namespace}/{work.name} was started on {work.node} already")
        if work.tasks:
            self._places[work.key] = await self._find_place(work)
        try:
            await _aside(self._lay_down, work)
        except OSError as error:
            raise unfit(work, f"its state cannot be written: {error}") from error

    def _was_started(self, key: Key) -> bool:
        return self.journal.claimed(key) is not None or self.journal.exit_record(key) is not None or self.journal.forgotten(key)

    async def _find_place(self, work: Work) -> Place:
        """Who it runs as, where, with which files; looked at with the user's rights, in a process of its own."""
        await _aside(launch.check, work)
        account = await _aside(users.account, work.user, min_uid=work.min_uid, node=work.node)
        request = {
            "op": "probe",
            "directories": [work.workdir] if work.workdir else [account.home, "/"],
            "files": [path for path in dict.fromkeys((work.stdout, work.stderr)) if path],
            "truncate": not work.append,
            "user": account.uid if _is_root() else None,
            "group": account.gid,
            "groups": account.groups,
        }
        answer = await self._ask(request, why_not="its directories and files do not answer")
        if "workdir" not in answer:
            raise await self._refused(work, answer)
        passed = answer["passed_over"]
        note = f"the home directory {'; '.join(passed)}; working in {answer['workdir']} instead" if passed else ""
        return Place(account, answer["workdir"], note)

    async def _refused(self, work: Work, answer: dict[str, Any]) -> Rejected:
        """What was refused once is never started: whoever asks again, after a restart too, hears the same."""
        why, fault = _said(answer, "the process that looks at its files was killed")
        with suppress(OSError):
            await _aside(self.journal.write, work, self._facts.boot_id)
            await _aside(self.journal.claim, work.key)
            await _aside(self.journal.write_empty_exit, work.key, self._facts.boot_id, self._clock.now(), failure=why, unfit=fault)
        return _refusal(work, why, fault)

    def _lay_down(self, work: Work) -> None:
        """Journal, script, scope; nothing of it starts anything."""
        self.journal.write(work, self._facts.boot_id)
        place = self._places.get(work.key)
        if work.script is not None and place:
            owner = (place.account.uid, place.account.gid) if _is_root() else None
            self.journal.write_script(work.key, work.script, owner)
        self.scopes.make(work.key)

    # the start

    async def start(self, work: Work) -> Running:
        """Starts a prepared attempt, at most once ever: a second call returns the first one's answer."""
        if running := await self._started(work):
            return running
        if work.tasks == 0:
            running = Running(0, 0, self._clock.now(), time.clock_gettime(time.CLOCK_BOOTTIME))
            await _aside(self.journal.claim, work.key, running)
            return await self._started(work) or running
        if work.key not in self._places:
            await self.prepare(work)
        request = {"op": "start", "launch": await _aside(self._describe, work)}
        answer: dict[str, Any] = {}
        for _ in range(_LAUNCHES):
            answer = await self._ask(request, why_not="the command does not begin")
            if "running" in answer:
                return self._watch(work.key, Running(*answer["running"]))
            if running := await self._started(work):  # taken, or its shim could not answer
                return running
            if "failure" in answer:
                break
        return await self._give_up(work, answer)

    async def _give_up(self, work: Work, answer: dict[str, Any]) -> Running:
        """Nobody may start it any more; if somebody just did, that is the answer."""
        why, fault = _said(answer, f"the process that keeps it was killed {_LAUNCHES} times before it could begin")
        try:
            given_up = await _aside(self.journal.claim, work.key)
        except NotFound:
            raise _refusal(work, why, fault) from None
        if not given_up and (running := await self._started(work)):
            return running
        with suppress(OSError):  # on a full disk the right to start is gone all the same
            await _aside(self.journal.write_empty_exit, work.key, self._facts.boot_id, self._clock.now(), failure=why, unfit=fault)
        raise _refusal(work, why, fault)

    async def _started(self, work: Work) -> Running | None:
        """What an earlier start came to; None when there was none. Raises what it raised."""
        running = await _aside(self.journal.claimed, work.key)
        if running is None:
            return None
        record = await _aside(self.journal.exit_record, work.key)
        if record and record.failure:
            raise _refusal(work, record.failure, record.unfit)
        if running.started == 0:
            raise refuse(work, "it was ended before it was started")
        return self._watch(work.key, running) if running.pid else running

    def _describe(self, work: Work) -> dict[str, Any]:
        directory = str(self.journal.directory(work.key).resolve())
        described = launch.describe(
            work,
            self._places[work.key],
            directory=directory,
            boot=self._facts.boot_id,
            environment_file=users.environment_file(),
            switch_user=_is_root(),
        )
        return described | dataclasses.asdict(self.scopes.entrances(work.key))

    async def _ask(self, request: dict[str, Any], *, why_not: str) -> dict[str, Any]:
        """Asks the runner, a new one when it dies; both requests may be repeated (a start takes its right only once)."""
        pause = 0.01
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                while True:
                    try:
                        return await self.starter.ask(request)
                    except UnknownOutcome:
                        await self._clock.sleep(pause)
                        pause = min(1.0, 2 * pause)
        except TimeoutError:
            return {"failure": f"{why_not}: no answer within {_ANSWER_SECONDS:.0f} s", "unfit": True}

    # the end

    async def terminate(self, key: Key) -> None:
        """TERM to every process of the work; what was never started ends at once."""
        if not await self._end_without_shim(key):
            await _aside(self.scopes.terminate, key)

    async def kill(self, key: Key) -> None:
        """KILL to every process of the work, again and again until none is left."""
        if await self._end_without_shim(key):
            return
        if key not in self._watched and await _aside(self.scopes.populated, key):
            known = await _aside(self._look, key)
            if known.alive and known.running:
                self._watch(key, known.running)
            else:
                self._settle_soon(key)
        if key not in self._killing:
            self._killing.add(key)
            await _aside(self.scopes.kill, key)
            self._spawn(self._keep_killing(key))

    async def _keep_killing(self, key: Key) -> None:
        """A kill that came before the shim forked would miss its tasks; so it is repeated while the shim lives."""
        while key in self._watched:
            await self._clock.sleep(_KILL_AGAIN_SECONDS)
            await _aside(self.scopes.kill, key)
        self._killing.discard(key)

    async def _end_without_shim(self, key: Key) -> bool:
        """Ends what has no shim: never started (the right to start is taken away), or without tasks here."""
        if not await _aside(lambda: self.journal.directory(key).is_dir()):
            return False
        await _aside(self.journal.claim, key)
        running = await _aside(self.journal.claimed, key)
        if running is None or running.pid:
            return False
        if await _aside(self.journal.exit_record, key) is None:
            await _aside(self.journal.write_empty_exit, key, self._facts.boot_id, self._clock.now())
            self._deliver(key, await _aside(self.journal.exit_record, key))
        return True

    async def remaining(self, key: Key) -> int:
        """Processes of the work that are left."""
        return len(await _aside(self.scopes.work, key))

    async def forget(self, key: Key) -> None:
        """Settled: the scope goes at once, exit record and logs after 7 days."""
        if await _aside(lambda: self.journal.directory(key).is_dir()):
            await _aside(self.journal.claim, key)
        if key in self._watched or not await _aside(self.scopes.remove, key):
            left = await self.remaining(key)
            raise Retry(f"attempt {key.attempt} of {key.uid} still has {left} processes on this node", reason="Populated")
        await _aside(self.journal.forget, key, self._clock.now())
        self._places.pop(key, None)
        await self._prune()

    async def _prune(self) -> None:
        if self._clock.monotonic() - self._pruned >= _PRUNE_SECONDS:
            self._pruned = self._clock.monotonic()
            await _aside(self.journal.prune, self._clock.now())

    # watching

    def _watch(self, key: Key, running: Running) -> Running:
        """Follows the shim by pidfd; one that is dead already is settled at once."""
        if key in self._watched or key in self._settling:
            return running
        fd = processes.open_live(running.pid, running.start_ticks)
        if fd is None:
            self._settle_soon(key)
        else:
            self._watched[key] = fd
            asyncio.get_running_loop().add_reader(fd, self._shim_ended, key)
        return running

    def _shim_ended(self, key: Key) -> None:
        fd = self._watched.pop(key)
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)
        self._settle_soon(key)

    def _settle_soon(self, key: Key) -> None:
        if key not in self._settling:
            self._settling.add(key)
            self._spawn(self._settle(key))

    async def _settle(self, key: Key) -> None:
        """Ends what a dead shim left behind, then says how the attempt ended."""
        delay = 0.002
        while await _aside(self.scopes.populated, key):
            await _aside(self.scopes.kill, key, whole=True)
            await self._clock.sleep(delay)
            delay = min(2 * delay, 1.0)
        self._settling.discard(key)
        self._deliver(key, await _aside(self.journal.exit_record, key))

    def _spawn(self, what: Coroutine[Any, Any, None]) -> None:
        task = self._tasks.create_task(what)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    def _deliver(self, key: Key, record: ExitRecord | None) -> None:
        if self._callback:
            self._callback(key, record)
        else:
            self._undelivered.append((key, record))

    def close(self) -> None:
        """Lets go of everything; what runs goes on."""
        for fd in self._watched.values():
            asyncio.get_running_loop().remove_reader(fd)
            os.close(fd)
        self._watched.clear()
        for task in self._running:
            task.cancel()
        self.starter.close()
        self.scopes.close()


def _said(answer: dict[str, Any], otherwise: str) -> tuple[str, bool]:
    """Why the runner did not do it, and whether the node is at fault: as it is when the answering process was itself killed."""
    if "failure" in answer:
        return str(answer["failure"]), bool(answer.get("unfit"))
    return otherwise, True


def _refusal(work: Work, why: str, fault: bool) -> Rejected:
    return unfit(work, why) if fault else refuse(work, why)


def _is_root() -> bool:
    return os.geteuid() == 0


def _of_pid(pid: int) -> Running | None:
    """A shim that only its scope knows."""
    try:
        return Running(pid, start_ticks(pid), 0.0, 0.0) if pid else None
    except OSError:
        return None


@asynccontextmanager
async def open_host(state_dir: Path, *, node: str, clock: Clock, scope_root: Path | None = None) -> AsyncIterator[LinuxHost]:
    """Opens the machine for one agent; the default scopes stand below `lattice.slice/NODE` of cgroup v2.

    Raises Corrupt for a state directory that is not ours. Leaving it ends the runner and nothing that runs.
    """
    journal = Journal(await _aside(state_dir.resolve))
    await _aside(journal.open)
    failure: Exception | None = None
    async with asyncio.TaskGroup() as tasks:
        host = LinuxHost(journal, await _aside(scopes.choose, node, scope_root), clock, tasks)
        host.starter.open()
        try:
            yield host
        except Exception as error:
            failure = error
        finally:
            host.close()
    if failure is not None:
        raise failure
