"""Random histories of the state machine against a host that keeps the books."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lattice.ledger.plans import PlanRow
from lattice_agent.attempts import ExitRecord, Key, Known, Seen
from lattice_agent.lifecycle.attempt import POPULATED
from lattice_agent.lifecycle.events import (
    Cleared,
    Directed,
    Event,
    Exited,
    PlanRead,
    Prepared,
    Refused,
    Started,
    TermsRead,
    Tick,
    Vanished,
)
from lattice_agent.lifecycle.instructions import Clear, Forget, Instruction, Kill, Prepare, Read, Start, Terminate
from lattice_agent.lifecycle.machine import Lifecycle
from lattice_agent.lifecycle.stimulus_log import StimulusLog
from lattice_agent.members import Direction, Order
from tests.unit.agent.lifecycle.story import assert_replays
from tests.unit.agent.rows import key, known, record, run, running, stop, terms


@dataclass
class Books:
    """A host that keeps the books: what lives, what was started, what is on disk."""

    prepared: set[Key] = field(default_factory=set)
    alive: set[Key] = field(default_factory=set)
    starts: dict[Key, int] = field(default_factory=dict)
    ends: dict[Key, ExitRecord | None] = field(default_factory=dict)
    forgotten: set[Key] = field(default_factory=set)
    steps: set[Key] = field(default_factory=set)
    """Attempts of which steps have begun and are not undone."""


class Histories(RuleBasedStateMachine):
    """Plans, answers, exits, orders, time and restarts in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.books = Books()
        self.seq = 1
        self.rows: dict[Key, PlanRow] = {}
        self.now = 10.0
        self.pending: list[Instruction] = []
        self.allowed: set[Key] = set()
        self.told: dict[Key, str] = {}
        self.stimuli = StimulusLog(24)
        self.node = Lifecycle("n1", seen=Seen(1), known=(), stimuli=self.stimuli)

    def send(self, event: Event) -> None:
        walltimes = {
            attempt.key for attempt in self.node.attempts.values() if attempt.walltime_at is not None and self.now >= attempt.walltime_at
        }
        for order in self.node.handle(event, self.now):
            if isinstance(order, Terminate | Kill):
                assert order.key in self.allowed | walltimes, "ended without stop row, END or walltime"
                self.allowed.add(order.key)
            if isinstance(order, Prepare):
                assert not self.books.alive, "prepared beside another attempt's processes"
                assert not self.books.steps - self.unstarted() - {order.key}, "prepared beside what another attempt has left"
            self.pending.append(order)

    def unstarted(self) -> set[Key]:
        """Attempts that an agent before this one prepared, and that wait for the plan."""
        return {at for at in self.books.steps if at not in self.books.starts and at not in self.books.ends}

    @rule(number=st.integers(1, 3), attempt=st.integers(1, 2), order=st.sampled_from(["run", "stop", "none"]))
    def plan(self, number: int, attempt: int, order: str) -> None:
        at = key(number, attempt)
        if order == "none":
            self.rows.pop(at, None)
        elif order == "stop":
            self.rows[at] = stop(number, attempt)
            self.allowed.add(at)
        elif self.rows.get(at) is None or self.rows[at].order == "run":
            self.rows[at] = run(number, attempt)
        self.seq += 1
        self.send(PlanRead(self.seq, tuple(self.rows.values())))

    @rule(back=st.integers(1, 5))
    def old_plan(self, back: int) -> None:
        before = {at: attempt.stage for at, attempt in self.node.attempts.items()}
        self.send(PlanRead(self.node.seq - back, ()))
        assert {at: attempt.stage for at, attempt in self.node.attempts.items()} == before or not before

    @precondition(lambda self: self.pending)
    @rule(fail=st.booleans())
    def carry_out(self, fail: bool) -> None:
        order = self.pending.pop(0)
        match order:
            case Read():
                self.send(TermsRead(order.key, terms()))
            case Prepare() | Start() if any(isinstance(one, Terminate) and one.key == order.key for one in self.pending):
                pass  # nothing is begun that is to end
            case Prepare():
                self._prepare(order.key, fail)
            case Start():
                self._start(order.key, fail)
            case Terminate() if order.key not in self.books.alive:
                self.books.prepared.discard(order.key)
                self._end(order.key, self.books.ends.get(order.key))
            case Clear() if fail:
                self.pending.append(order)
            case Clear():
                assert order.key not in self.books.alive, "undone while it runs"
                self.books.steps.discard(order.key)
                self.send(Cleared(order.key))
            case Kill() if order.key in self.books.alive:
                self._end(order.key)
            case Forget():
                assert order.key not in self.books.alive
                self.books.steps.discard(order.key)
                self.books.prepared.discard(order.key)
                self.books.forgotten.add(order.key)
            case _:
                pass

    def _prepare(self, at: Key, fail: bool) -> None:
        if at in self.books.starts or at in self.books.ends:
            self.send(Vanished(at, "started before"))
            return
        self.books.steps.add(at)
        if fail:
            self.send(Refused(at, "UserUnknown", "nobody knows the user"))
        else:
            self.books.prepared.add(at)
            self.send(Prepared(at))

    def _start(self, at: Key, fail: bool) -> None:
        if at not in self.books.prepared or at in self.books.starts:
            return
        self.books.prepared.discard(at)
        self.books.starts[at] = 1
        if fail:
            self.books.ends[at] = record(1, 1, failure="exec format error")
            self.send(Refused(at, "StartFailed", "exec format error"))
            return
        self.books.alive.add(at)
        self.send(Started(at, running(boottime=self.now)))

    def _end(self, at: Key, found: ExitRecord | None = None) -> None:
        self.books.alive.discard(at)
        self.books.ends[at] = found or record(1, 1)
        self.send(Exited(at, self.books.ends[at]))

    @precondition(lambda self: self.books.alive)
    @rule(code=st.sampled_from([0, 7, 143]))
    def exit(self, code: int) -> None:
        self._end(min(self.books.alive), record(1, 1, code))

    @precondition(lambda self: self.node.attempts)
    @rule(order=st.sampled_from(list(Order)), pick=st.integers(0, 10))
    def direct(self, order: Order, pick: int) -> None:
        at = list(self.node.attempts)[pick % len(self.node.attempts)]
        if order is Order.END:
            self.allowed.add(at)
        self.send(Directed(at, Direction(order, "TaskFailed" if order is Order.END else "")))

    @rule(seconds=st.sampled_from([1.0, 31.0, 101.0]))
    def time(self, seconds: float) -> None:
        self.now += seconds
        self.send(Tick())

    @rule(reboot=st.booleans())
    def restart(self, reboot: bool) -> None:
        """The agent dies; what it was about to do is lost, what the host did is not."""
        if reboot:
            self.books.alive.clear()
        found = []
        for at in sorted({*self.books.prepared, *self.books.starts, *self.books.ends}):
            began = self.books.starts.get(at)
            found.append(
                Known(
                    at, None if reboot else known().work, running(boottime=self.now) if began else None, at in self.books.alive,
                    self.books.ends.get(at), not reboot, at in self.books.alive, at in self.books.forgotten,
                    unclean=at in self.books.steps,
                )
            )  # fmt: skip
        if reboot:
            self.books.prepared.clear()
        self.pending.clear()
        assert_replays(self.stimuli)
        self.stimuli = StimulusLog(24)
        self.node = Lifecycle("n1", seen=self.node.seen, known=found, stimuli=self.stimuli)
        self.send(PlanRead(self.seq, tuple(self.rows.values())))

    def teardown(self) -> None:
        assert_replays(self.stimuli)

    @invariant()
    def machine_holds(self) -> None:
        self.node.validate()
        assert len(self.books.alive) <= 1
        assert all(count == 1 for count in self.books.starts.values())

    @invariant()
    def every_end_is_reported_until_settled(self) -> None:
        reported = {Key(row.uid, row.attempt) for row in self.node.report()}
        for at in self.books.ends:
            assert at in reported or at not in self.rows or at in self.books.forgotten

    @invariant()
    def nothing_that_lives_is_called_gone(self) -> None:
        for at in self.books.alive:
            assert self.node.attempts[at].stage in POPULATED

    @invariant()
    def nothing_is_called_over_in_time_before_its_steps_are_undone(self) -> None:
        for at in self.books.steps & self.books.ends.keys() & self.node.attempts.keys():
            attempt = self.node.attempts[at]
            assert attempt.stage in POPULATED or attempt.unclean


Histories.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestHistories = Histories.TestCase
