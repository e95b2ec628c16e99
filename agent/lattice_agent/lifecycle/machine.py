"""Holds the node's state machine, pure: events in, instructions out (dask's worker state machine is the model).

One `Lifecycle` is one node. It knows every attempt that the node has not been allowed to forget, follows the plan,
the reporter's orders and the walltime, and says what the host is to do. It asks no clock: every event comes with the
time of CLOCK_BOOTTIME, on which walltime and grace run. `validate` checks what must hold after every event.
"""

from __future__ import annotations

from collections.abc import Iterable

from lattice.ledger.plans import RUN, STOP, PlanRow
from lattice.ledger.reports import ReportRow
from lattice_agent.attempts import Key, Known, Ordered, Seen
from lattice_agent.lifecycle.attempt import (
    OVER,
    PHASES,
    POPULATED,
    WALLTIME,
    Attempt,
    Stage,
    apply,
    ending,
    forgettable,
    recalled,
    report_state,
    restored,
    unread,
)  # fmt: skip
from lattice_agent.lifecycle.events import GRACE_SECONDS, Event, PlanAbsent, PlanRead, Recalled, Tick
from lattice_agent.lifecycle.instructions import Forget, Instruction, Kill, Prepare, Read, Remember, Start, Terminate
from lattice_agent.lifecycle.stimulus_log import Checkpoint, StimulusLog, copies
from lattice_agent.members import Member, Order, first_failure

ANSWER_SECONDS = 2.0
"""A reporter that has been told of a failure answers with END at once: after this it cannot be reached."""


class Lifecycle:
    """Decides what starts and what ends on one node, and nothing else decides that."""

    def __init__(self, node: str, *, seen: Seen, known: Iterable[Known], stimuli: StimulusLog | None = None) -> None:
        """Begins without attempts; gives every event with its instructions to `stimuli` (None: they are not kept)."""
        self.node = node
        self.stimuli = stimuli
        self.seen = seen
        self.fresh = seen.seq == 0
        """No plan was ever read with this state directory: rows of the first one may have run on an old disk."""
        self.ignored_plans = 0
        self.attempts: dict[Key, Attempt] = {}
        self.finished: dict[Key, Attempt] = {}
        """Settled before a restart: never started again, whatever a plan says."""
        for item in known:
            (self.finished if item.forgotten else self.attempts)[item.key] = restored(item)

    # ── events ──────────────────────────────────────────────────────────────────────────────────────────────────

    def handle(self, event: Event, boottime: float) -> list[Instruction]:
        """Decides what to do next, in order. An event about an unknown attempt changes nothing.

        `boottime` is CLOCK_BOOTTIME in seconds.
        """
        if self.stimuli is None:
            return self._handle(event, boottime)
        stimulus = self.stimuli.append(event, boottime, self.checkpoint)
        stimulus.instructions = self._handle(event, boottime)
        return stimulus.instructions

    def _handle(self, event: Event, boottime: float) -> list[Instruction]:
        out: list[Instruction] = []
        if isinstance(event, PlanRead):
            self._read_plan(event, out)
        elif isinstance(event, PlanAbsent):
            self.fresh = False
        elif not isinstance(event, Tick):
            attempt = self.attempts.get(event.key)
            if isinstance(event, Recalled):
                if attempt is not None:
                    self.attempts[event.key] = recalled(attempt, event.known)
            elif attempt is not None:
                apply(attempt, event)
        for attempt in sorted(self.attempts.values(), key=lambda attempt: attempt.stage not in POPULATED):
            self._advance(attempt, boottime, out)
        return out

    def checkpoint(self) -> Checkpoint:
        """Copies the whole state, from which `resumed` makes an equal machine."""
        attempts, finished = copies(list(self.attempts.values())), copies(list(self.finished.values()))
        return Checkpoint(self.node, self.seen, self.fresh, self.ignored_plans, attempts, finished)

    @classmethod
    def resumed(cls, point: Checkpoint) -> Lifecycle:
        """Makes a machine that stands as one did at a checkpoint; the checkpoint is not changed by it."""
        machine = cls(point.node, seen=point.seen, known=())
        machine.fresh, machine.ignored_plans = point.fresh, point.ignored_plans
        machine.attempts = {attempt.key: attempt for attempt in copies(point.attempts)}
        machine.finished = {attempt.key: attempt for attempt in copies(point.finished)}
        return machine

    @property
    def seq(self) -> int:
        """Gives the highest plan seq that the node has seen, ever."""
        return self.seen.seq

    def _read_plan(self, plan: PlanRead, out: list[Instruction]) -> None:
        if plan.seq < self.seq or _of_another_ledger(self.seen, plan):
            self.ignored_plans += 1
            return
        if plan.seq > self.seq:
            self.seen = plan.seen
            out.append(Remember(plan.seen))
        named = {Key(*row.key) for row in plan.rows}
        for attempt in self.attempts.values():
            if attempt.key not in named:
                attempt.row, attempt.reading = None, False
        for row in plan.rows:
            key = Key(*row.key)
            if key not in self.attempts:
                self.attempts[key] = self._meet(key, row)
            self.attempts[key].row, self.attempts[key].admitted = row, row.walltime
        self.fresh = False
        for key in [key for key, attempt in self.attempts.items() if attempt.row is None and forgettable(attempt)]:
            attempt = self.attempts.pop(key)
            if attempt.prepared:
                out.append(Forget(key, plan.seq))

    def _meet(self, key: Key, row: PlanRow) -> Attempt:
        """Makes the attempt of a row that this node has not been asked for, as far as the node remembers it."""
        if key in self.finished:
            return self.finished.pop(key)
        if row.order == STOP:
            return Attempt(key, Stage.ENDED, ended_by=STOP)
        if self.fresh:
            message = f"node {self.node} has no record of it: it was reinstalled, or its state directory was lost"
            return Attempt(key, Stage.LOST, reason="Lost", message=message)
        return Attempt(key, Stage.WAITING)

    # ── decisions ───────────────────────────────────────────────────────────────────────────────────────────────

    def _advance(self, attempt: Attempt, boottime: float, out: list[Instruction]) -> None:
        if attempt.stage not in OVER and not attempt.reading and unread(attempt):
            attempt.reading = True
            out.append(Read(attempt.key))
        match attempt.stage:
            case Stage.WAITING:
                self._advance_waiting(attempt, out)
            case Stage.READY if ending(attempt):
                _terminate(attempt, boottime, out)
            case Stage.READY if attempt.order is Order.START and attempt.row is not None:
                attempt.stage = Stage.STARTING
                attempt.starts += 1
                out.append(Start(attempt.key))
            case Stage.RUNNING if ending(attempt) or _due(attempt.walltime_at, boottime):
                _terminate(attempt, boottime, out)
            case Stage.TERMINATING if _due(attempt.kill_at, boottime):
                attempt.stage = Stage.KILLING
                out.append(Kill(attempt.key))
            case _:
                pass  # nothing to decide until the next event
        if attempt.stage in OVER:
            attempt.over_at = boottime if attempt.over_at is None else attempt.over_at
            attempt.unanswered = self._awaits_answer(attempt) and _due(attempt.over_at + ANSWER_SECONDS, boottime)

    def _awaits_answer(self, attempt: Attempt) -> bool:
        """Tells whether the attempt failed here by itself, so that its reporter, on another node, has to end the others."""
        row = attempt.row
        if row is None or row.order != RUN or row.reporter in ("", self.node) or attempt.order is Order.END or attempt.settled:
            return False
        return attempt.stage in (Stage.FAILED, Stage.LOST) or (not attempt.ended_by and first_failure(attempt.exits) is not None)

    def _advance_waiting(self, attempt: Attempt, out: list[Instruction]) -> None:
        if ending(attempt):
            attempt.stage = Stage.ENDED
            attempt.ended_by = STOP if attempt.stopped else attempt.cause
        elif attempt.row is not None and attempt.terms is not None and not attempt.reading and self.clean():
            attempt.stage = Stage.PREPARING
            attempt.prepared = True
            out.append(Prepare(attempt.key))

    def clean(self) -> bool:
        """Tells whether no attempt's scope is populated."""
        return not any(attempt.stage in POPULATED for attempt in self.attempts.values())

    def deadline(self) -> float | None:
        """Gives CLOCK_BOOTTIME of the next walltime, KILL or overdue answer; None: nothing is due."""
        due = [attempt.walltime_at for attempt in self.attempts.values() if attempt.stage is Stage.RUNNING]
        due += [attempt.kill_at for attempt in self.attempts.values() if attempt.stage is Stage.TERMINATING]
        due += [
            attempt.over_at + ANSWER_SECONDS
            for attempt in self.attempts.values()
            if attempt.over_at is not None and not attempt.unanswered and self._awaits_answer(attempt)
        ]
        return min((at for at in due if at is not None), default=None)

    # ── what others are told ────────────────────────────────────────────────────────────────────────────────────

    def member(self, key: Key) -> Member | None:
        """Describes the attempt for its reporter; None: the node knows nothing of it."""
        attempt = self.attempts.get(key)
        if attempt is None:
            return None
        return Member(
            key, self.node, self.seq, PHASES[attempt.stage], attempt.reason or attempt.ended_by, attempt.message, attempt.started,
            attempt.exits, walltime=attempt.ended_by == WALLTIME, ordered=attempt.ended_by == STOP,
        )  # fmt: skip

    def silent_reporters(self) -> list[str]:
        """Lists reporters that have not answered to a failure here."""
        return [attempt.row.reporter for attempt in self.attempts.values() if attempt.unanswered and attempt.row is not None]

    def report(self) -> tuple[ReportRow, ...]:
        """Describes every attempt as a row of the Lease report."""
        return tuple(
            ReportRow(key.uid, key.attempt, *report_state(attempt), attempt.stage is Stage.ENDED and attempt.ended_by == WALLTIME)
            for key, attempt in self.attempts.items()
        )

    def validate(self) -> None:
        """Raises AssertionError where the machine's promises do not hold."""
        flaw = self.flaw()
        if flaw:
            raise AssertionError(flaw)

    def flaw(self) -> str:
        """Names the first of the machine's promises that does not hold, with its attempt; empty: all of them hold."""
        populated = [key for key, attempt in self.attempts.items() if attempt.stage in POPULATED]
        adopted = [key for key in populated if self.attempts[key].adopted]
        if len(populated) > max(1, len(adopted)):
            return f"several attempts have a scope: {populated}"
        for key, attempt in self.attempts.items():
            if attempt.starts > 1:
                return f"{key} was started {attempt.starts} times"
            if attempt.stage in (Stage.TERMINATING, Stage.KILLING) and not attempt.ended_by:
                return f"{key} is being ended, and nobody ordered it"
            if attempt.stage is Stage.WAITING and attempt.starts:
                return f"{key} waits after it was started"
        return ""


def _of_another_ledger(seen: Seen, plan: PlanRead) -> bool:
    """Tells whether the plan's ledger went back since the plan that was seen, however far it has come since.

    An epoch has one term, a later one begins above every seq of those before it, and none comes back.
    """
    if not seen.epoch or not plan.epoch:
        return False
    if plan.epoch == seen.epoch:
        return plan.term != seen.term
    return plan.epoch < seen.epoch or plan.since <= seen.seq


def _due(at: float | None, boottime: float) -> bool:
    return at is not None and boottime >= at


def _terminate(attempt: Attempt, boottime: float, out: list[Instruction]) -> None:
    ended_by = STOP if attempt.stopped else attempt.cause if attempt.order is Order.END else WALLTIME
    attempt.stage, attempt.ended_by = Stage.TERMINATING, ended_by or "Ended"
    attempt.terminated_at = boottime
    attempt.kill_at = boottime + (attempt.terms.grace_seconds if attempt.terms else GRACE_SECONDS)
    out.append(Terminate(attempt.key, Ordered(attempt.ended_by, boottime)))
