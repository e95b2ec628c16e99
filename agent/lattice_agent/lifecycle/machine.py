"""The node's state machine, pure: events in, instructions out (modelled on dask's worker state machine).

One `Lifecycle` is one node. It knows every attempt that the node may not forget yet, follows the plan, the reporters' directions and the
walltimes, and says what the host must do. It asks no clock: every event comes with its time on CLOCK_BOOTTIME, by which walltime and grace
are measured. `validate` checks what must hold after every event.
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
    end_epilogue,
    ending,
    forgettable,
    recalled,
    report_state,
    restored,
    unread,
)  # fmt: skip
from lattice_agent.lifecycle.events import EPILOGUE_SECONDS, GRACE_SECONDS, Cleared, Event, PlanAbsent, PlanRead, Recalled, Tick
from lattice_agent.lifecycle.instructions import Clear, Forget, Instruction, Kill, Prepare, Read, Remember, Signal, Start, Terminate
from lattice_agent.lifecycle.stimulus_log import Checkpoint, StimulusLog, copies
from lattice_agent.members import Member, Order, first_failure

ANSWER_SECONDS = 2.0
"""Time for a reporter to answer a failure with END, which it does at once; after this it counts as unreachable."""


class Lifecycle:
    """The state machine of one node; nothing else decides what starts and ends there."""

    def __init__(self, node: str, *, seen: Seen, known: Iterable[Known], stimuli: StimulusLog | None = None) -> None:
        """Begins with the attempts in `known`, as disk and scopes show them, and with the plan that was seen last.

        Appends every event with its instructions to `stimuli` (None: they are not kept).
        """
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
        """Handles one event and returns the instructions that follow, in order; an event about an unknown attempt changes nothing.

        `boottime` is the event's time on CLOCK_BOOTTIME, in seconds.
        """
        if self.stimuli is None:
            return self._handle(event, boottime)
        stimulus = self.stimuli.append(event, boottime, self.checkpoint)
        stimulus.instructions = self._handle(event, boottime)
        return stimulus.instructions

    def _handle(self, event: Event, boottime: float) -> list[Instruction]:
        """Handles one event and returns the instructions that follow, in order, as `handle` does, but adds nothing to the stimulus log."""
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
                overdue = attempt.unclean and attempt.stage in OVER
                apply(attempt, event)
                if overdue and isinstance(event, Cleared):
                    self._forget_unnamed(self.seq, out)
        for attempt in sorted(self.attempts.values(), key=lambda attempt: attempt.stage not in POPULATED):
            self._advance(attempt, boottime, out)
        return out

    def checkpoint(self) -> Checkpoint:
        """Returns a copy of the whole state, from which `resumed` makes an equal machine."""
        attempts, finished = copies(list(self.attempts.values())), copies(list(self.finished.values()))
        return Checkpoint(self.node, self.seen, self.fresh, self.ignored_plans, attempts, finished)

    @classmethod
    def resumed(cls, point: Checkpoint) -> Lifecycle:
        """Returns a new machine in the state of a checkpoint, which stays unchanged; the machine keeps no stimulus log."""
        machine = cls(point.node, seen=point.seen, known=())
        machine.fresh, machine.ignored_plans = point.fresh, point.ignored_plans
        machine.attempts = {attempt.key: attempt for attempt in copies(point.attempts)}
        machine.finished = {attempt.key: attempt for attempt in copies(point.finished)}
        return machine

    @property
    def seq(self) -> int:
        """Returns the highest plan seq that the node has ever seen."""
        return self.seen.seq

    def _read_plan(self, plan: PlanRead, out: list[Instruction]) -> None:
        """Follows a plan: notes each attempt's row, meets new ones, ends or forgets those that it names no more, and orders its seq to be
        kept.

        A plan that is older than the one seen, or of another ledger, is counted and ignored.
        """
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
                if attempt.stage is Stage.EPILOGUE:  # its end was persisted: an agent before this one had reported it
                    end_epilogue(attempt, clean=False)
                elif attempt.stage is Stage.WAITING and attempt.unclean:  # an agent before this one prepared it, and nobody wants it now
                    attempt.stage, attempt.ended_by = Stage.ENDED, STOP
        for row in plan.rows:
            key = Key(*row.key)
            if key not in self.attempts:
                self.attempts[key] = self._meet(key, row)
            self.attempts[key].row, self.attempts[key].admitted = row, row.walltime
        self.fresh = False
        self._forget_unnamed(plan.seq, out)

    def _forget_unnamed(self, seq: int, out: list[Instruction]) -> None:
        """Removes the attempts that the newest plan does not name and of which nothing is left.

        Appends a Forget with `seq` to `out` for each that was prepared.
        """
        for key in [key for key, attempt in self.attempts.items() if attempt.row is None and forgettable(attempt)]:
            attempt = self.attempts.pop(key)
            if attempt.prepared:
                out.append(Forget(key, seq))

    def _meet(self, key: Key, row: PlanRow) -> Attempt:
        """Makes an attempt for a plan row whose attempt this process does not follow: the one settled before a restart, ENDED for a stop
        row, else WAITING.

        It is LOST instead of WAITING where the node has lost its memory, since then nobody can tell whether it was started here.
        """
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
        """Decides what follows for one attempt from its stage, row, orders and times; changes its stage and appends the instructions to
        `out`.
        """
        if attempt.stage not in OVER and not attempt.reading and unread(attempt):
            attempt.reading = True
            out.append(Read(attempt.key))
        match attempt.stage:
            case Stage.WAITING:
                self._advance_waiting(attempt, boottime, out)
            case Stage.PREPARING | Stage.READY | Stage.STARTING if ending(attempt):
                _terminate(attempt, boottime, out)
            case Stage.READY if attempt.order is Order.START and attempt.row is not None:
                attempt.stage = Stage.STARTING
                attempt.starts += 1
                out.append(Start(attempt.key))
            case Stage.RUNNING if ending(attempt) or _due(attempt.walltime_at, boottime):
                _terminate(attempt, boottime, out)
            case Stage.RUNNING if attempt.terms is not None and attempt.terms.signal is not None and _due(attempt.signal_at, boottime):
                attempt.signalled = True
                out.append(Signal(attempt.key, attempt.terms.signal))
            case Stage.TERMINATING if _due(attempt.kill_at, boottime):
                attempt.stage = Stage.KILLING
                out.append(Kill(attempt.key))
            case Stage.EPILOGUE:
                _advance_epilogue(attempt, boottime, out)
            case _:
                pass  # nothing to decide until the next event
        if attempt.unclean and not attempt.clearing and attempt.stage in OVER:
            attempt.clearing = True
            out.append(Clear(attempt.key))
        if attempt.stage in OVER:
            attempt.over_at = boottime if attempt.over_at is None else attempt.over_at
            attempt.unanswered = self._awaits_answer(attempt) and _due(attempt.over_at + ANSWER_SECONDS, boottime)

    def _awaits_answer(self, attempt: Attempt) -> bool:
        """Tells whether the attempt failed here by itself, and its reporter on another node has yet to end it on the other nodes."""
        row = attempt.row
        if row is None or row.order != RUN or row.reporter in ("", self.node) or attempt.order is Order.END or attempt.settled:
            return False
        return attempt.stage in (Stage.FAILED, Stage.LOST) or (not attempt.ended_by and first_failure(attempt.exits) is not None)

    def _advance_waiting(self, attempt: Attempt, boottime: float, out: list[Instruction]) -> None:
        """Ends a waiting attempt that is ordered to end, by way of the epilogue where something of it is left to undo, or has it prepared
        once its terms are read and the node is clean.
        """
        if ending(attempt):
            attempt.stage = Stage.ENDED
            attempt.ended_by = STOP if attempt.stopped else attempt.cause
            if attempt.unclean:
                attempt.outcome, attempt.stage, attempt.unclean = Stage.ENDED, Stage.EPILOGUE, False
                _advance_epilogue(attempt, boottime, out)
        elif attempt.row is not None and attempt.terms is not None and not attempt.reading and self.clean():
            attempt.stage = Stage.PREPARING
            attempt.prepared, attempt.unclean = True, False
            out.append(Prepare(attempt.key))

    def clean(self) -> bool:
        """Tells whether another attempt may be prepared: none is between its preparation and its end here, no prologue is to be undone."""
        return not any(attempt.stage in POPULATED or (attempt.unclean and attempt.stage in OVER) for attempt in self.attempts.values())

    def deadline(self) -> float | None:
        """Returns the earliest time (CLOCK_BOOTTIME, seconds) at which a walltime, a signal before it, a grace period, an epilogue or an
        answer is due; None: none.
        """
        due = [attempt.walltime_at for attempt in self.attempts.values() if attempt.stage is Stage.RUNNING]
        due += [attempt.signal_at for attempt in self.attempts.values() if attempt.stage is Stage.RUNNING]
        due += [attempt.kill_at for attempt in self.attempts.values() if attempt.stage is Stage.TERMINATING]
        due += [attempt.report_at for attempt in self.attempts.values() if attempt.stage is Stage.EPILOGUE]
        due += [
            attempt.over_at + ANSWER_SECONDS
            for attempt in self.attempts.values()
            if attempt.over_at is not None and not attempt.unanswered and self._awaits_answer(attempt)
        ]
        return min((at for at in due if at is not None), default=None)

    # ── what others are told ────────────────────────────────────────────────────────────────────────────────────

    def member(self, key: Key) -> Member | None:
        """Returns the attempt's state for its reporter; None: the node has forgotten it."""
        attempt = self.attempts.get(key)
        if attempt is None:
            return None
        return Member(
            key, self.node, self.seq, PHASES[attempt.stage], attempt.reason or attempt.ended_by, attempt.message, attempt.started,
            attempt.exits, walltime=attempt.ended_by == WALLTIME, ordered=attempt.ended_by == STOP, use=attempt.use,
        )  # fmt: skip

    def unclean(self) -> list[Key]:
        """Returns the attempts that are over and whose prologue is not undone yet."""
        return [key for key, attempt in self.attempts.items() if attempt.unclean and attempt.stage in OVER]

    def silent_reporters(self) -> list[str]:
        """Returns the reporters' nodes that have not answered with END within 2 s after an attempt had failed here by itself."""
        return [attempt.row.reporter for attempt in self.attempts.values() if attempt.unanswered and attempt.row is not None]

    def report(self) -> tuple[ReportRow, ...]:
        """Returns a row of the Lease report for every attempt."""
        return tuple(
            ReportRow(key.uid, key.attempt, *report_state(attempt), attempt.stage is Stage.ENDED and attempt.ended_by == WALLTIME)
            for key, attempt in self.attempts.items()
        )

    def validate(self) -> None:
        """Raises AssertionError where an invariant of the machine is broken."""
        flaw = self.flaw()
        if flaw:
            raise AssertionError(flaw)

    def flaw(self) -> str:
        """Returns a sentence on the first broken invariant, with its attempt; empty: all hold."""
        populated = [key for key, attempt in self.attempts.items() if attempt.stage in POPULATED]
        adopted = [key for key in populated if self.attempts[key].adopted]
        if len(populated) > max(1, len(adopted)):
            return f"several attempts have a scope: {populated}"
        for key, attempt in self.attempts.items():
            if attempt.starts > 1:
                return f"{key} was started {attempt.starts} times"
            if attempt.stage in (Stage.TERMINATING, Stage.KILLING) and not attempt.ended_by:
                return f"{key} is being ended, and nobody ordered it"
            if (attempt.stage is Stage.EPILOGUE) is (attempt.outcome is None):
                return f"{key} is {attempt.stage.name}, and afterwards {attempt.outcome}"
            if attempt.stage is Stage.WAITING and attempt.starts:
                return f"{key} waits after it was started"
        return ""


def _of_another_ledger(seen: Seen, plan: PlanRead) -> bool:
    """Tells whether the plan's ledger went back since the plan that was seen, even if it has come further since; False where one of them
    has no epoch.

    An epoch has one term, a later epoch begins above every seq of those before it, and none is used twice.
    """
    if not seen.epoch or not plan.epoch:
        return False
    if plan.epoch == seen.epoch:
        return plan.term != seen.term
    return plan.epoch < seen.epoch or plan.since <= seen.seq


def _due(at: float | None, boottime: float) -> bool:
    """Tells whether a time on CLOCK_BOOTTIME has come; False for None."""
    return at is not None and boottime >= at


def _advance_epilogue(attempt: Attempt, boottime: float, out: list[Instruction]) -> None:
    """Orders the undoing of what was prepared, once; ends the epilogue as not clean where it takes longer than its time."""
    if not attempt.clearing:
        attempt.clearing = True
        attempt.report_at = boottime + (attempt.terms.epilogue_seconds if attempt.terms else EPILOGUE_SECONDS)
        out.append(Clear(attempt.key))
    elif _due(attempt.report_at, boottime):
        end_epilogue(attempt, clean=False)


def _terminate(attempt: Attempt, boottime: float, out: list[Instruction]) -> None:
    """Puts an attempt into TERMINATING and orders TERM; notes why and when, and when KILL is due."""
    ended_by = STOP if attempt.stopped else attempt.cause if attempt.order is Order.END else WALLTIME
    attempt.stage, attempt.ended_by = Stage.TERMINATING, ended_by or "Ended"
    attempt.terminated_at = boottime
    attempt.kill_at = boottime + (attempt.terms.grace_seconds if attempt.terms else GRACE_SECONDS)
    out.append(Terminate(attempt.key, Ordered(attempt.ended_by, boottime)))
