"""One attempt on this node: its stages, how each event changes it, and how it is rebuilt after a restart."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lattice.ledger import reports
from lattice.ledger.plans import RUN, STOP, PlanRow
from lattice.models.conditions import UNKILLABLE
from lattice_agent.attempts import NO_USE, ExitRecord, Key, Known, ResourceUse, Running
from lattice_agent.lifecycle.events import (
    Answer,
    Cleared,
    Directed,
    Exited,
    Missed,
    Prepared,
    Refused,
    Started,
    Survived,
    TermsRead,
    Vanished,
    WorkTerms,
)  # fmt: skip
from lattice_agent.members import Order, Phase, TaskEnd, first_failure

WALLTIME = "walltime"


class Stage(Enum):
    """The stages of an attempt on this node."""

    WAITING = "its terms are not read, or the node is not clean"
    PREPARING = "the host prepares it"
    READY = "it can start at once"
    STARTING = "the host starts it"
    RUNNING = "its tasks run"
    TERMINATING = "TERM was sent"
    KILLING = "KILL was sent"
    EPILOGUE = "no process is left, and what was prepared is undone"
    ENDED = "no process is left"
    FAILED = "it could not be started"
    LOST = "the node rebooted, or its record is gone"


POPULATED = frozenset({Stage.PREPARING, Stage.READY, Stage.STARTING, Stage.RUNNING, Stage.TERMINATING, Stage.KILLING, Stage.EPILOGUE})
"""Stages in which the attempt has a scope; only one attempt of a node may be in them."""
RUNS = frozenset({Stage.STARTING, Stage.RUNNING, Stage.TERMINATING, Stage.KILLING})
"""Stages in which processes of the work may be there."""
OVER = frozenset({Stage.ENDED, Stage.FAILED, Stage.LOST})


@dataclass(slots=True)
class Attempt:
    """Everything that the state machine knows of one attempt; the machine alone changes it."""

    key: Key
    stage: Stage
    row: PlanRow | None = None
    """The attempt's row in the newest plan; None: that plan does not name it."""
    admitted: float | None = None
    """Walltime in seconds that the last plan row admitted; None: only the terms limit it."""
    terms: WorkTerms | None = None
    reading: bool = False
    prepared: bool = False
    adopted: bool = False
    """True where it was running already when this agent started."""
    starts: int = 0
    started: float = 0.0
    started_boottime: float = 0.0
    order: Order = Order.WAIT
    cause: str = ""
    settled: bool = False
    ended_by: str = ""
    """Why it was ended: `stop`, `walltime`, or the cause of the reporter's END; empty: it ended by itself."""
    terminated_at: float = 0.0
    """When TERM was sent, CLOCK_BOOTTIME; 0: it was not."""
    missed: bool = False
    """True where TERM found no process to end."""
    signalled: bool = False
    """Whether the signal before its end was ordered."""
    kill_at: float | None = None
    exits: tuple[TaskEnd, ...] = ()
    use: ResourceUse = NO_USE
    reason: str = ""
    message: str = ""
    outcome: Stage | None = None
    """During the epilogue: how the attempt stands after it."""
    clearing: bool = False
    """The epilogue was ordered."""
    unclean: bool = False
    """Steps of it are not undone: its end was reported before the epilogue was over, or it was found so before it was started."""
    report_at: float | None = None
    """CLOCK_BOOTTIME at which the end is reported, whether the epilogue is over or not."""
    over_at: float | None = None
    """When this agent saw that the attempt is over, CLOCK_BOOTTIME; None: it has not."""
    unanswered: bool = False
    """True where it failed here by itself, and its reporter on another node has not answered with END in time."""

    @property
    def stopped(self) -> bool:
        """Tells whether a stop row of the plan names the attempt."""
        return self.row is not None and self.row.order == STOP

    @property
    def walltime_seconds(self) -> float | None:
        """Returns the walltime in seconds, the shorter of the terms' and the admitted one; None: there is no limit."""
        asked = self.terms.walltime_seconds if self.terms is not None else None
        return min((seconds for seconds in (asked, self.admitted) if seconds is not None), default=None)

    @property
    def walltime_at(self) -> float | None:
        """Returns when the walltime is over, CLOCK_BOOTTIME in seconds.

        None: there is no walltime, its terms are not read, or it has not started.
        """
        walltime = self.walltime_seconds
        if self.terms is None or walltime is None or not self.started_boottime:
            return None
        return self.started_boottime + walltime

    @property
    def signal_at(self) -> float | None:
        """Returns when the signal before the end is due, CLOCK_BOOTTIME in seconds; None: there is none, or it was ordered."""
        walltime_at = self.walltime_at
        if self.terms is None or self.terms.signal is None or walltime_at is None or self.signalled:
            return None
        return walltime_at - self.terms.signal.before_seconds


def restored(known: Known) -> Attempt:
    """Returns an attempt rebuilt from its files and scope: RUNNING while processes are left, else as its exit record says, else LOST after
    a reboot or without a readable journal, ENDED with an unknown exit where it was started, WAITING where it was not.

    One that is over and has steps of its prologue left to undo is in EPILOGUE.
    """
    terms = _journaled_terms(known)
    if known.alive or known.populated:
        started = known.running or Running(0, 0, 0.0, 0.0)
        return Attempt(
            known.key, Stage.RUNNING, terms=terms, prepared=True, adopted=True,
            started=started.started, started_boottime=started.started_boottime, signalled=known.signalled,
        )  # fmt: skip
    attempt = Attempt(known.key, Stage.WAITING, terms=terms, prepared=True)
    if known.running is not None:
        attempt.started, attempt.started_boottime = known.running.started, known.running.started_boottime
    if known.ordered is not None:
        attempt.ended_by, attempt.terminated_at = known.ordered
    if known.exit is not None:
        _end(attempt, known.exit)
        if known.ordered is None and _outran(attempt, known.exit):
            attempt.ended_by = WALLTIME
    elif not known.boot_matches or known.work is None:
        attempt.stage, attempt.reason = Stage.LOST, "Lost"
        attempt.message = "the node rebooted, or its record of the work is unreadable"
    elif known.running is not None:
        _end(attempt, None)
    if known.unclean and attempt.stage in OVER:
        _begin_epilogue(attempt)
        attempt.adopted = True
    elif known.unclean:
        attempt.unclean = True
    return attempt


def recalled(attempt: Attempt, known: Known) -> Attempt:
    """Returns the attempt as rebuilt from the disk, with row, walltime and terms kept, where this process is preparing or ending it and has
    never started it; else it returns the attempt as it is.

    The rebuilt attempt is LOST where the disk shows neither a start nor an end.
    """
    if attempt.stage not in (Stage.PREPARING, Stage.TERMINATING, Stage.KILLING) or attempt.starts:
        return attempt
    found = restored(known)
    found.row, found.admitted, found.terms = attempt.row, attempt.admitted, attempt.terms or found.terms
    if found.stage is Stage.WAITING:
        found.stage, found.unclean, found.reason = Stage.LOST, known.unclean, "Lost"
        found.message = "it was started here before, and no record of its end is left"
    return found


def _outran(attempt: Attempt, record: ExitRecord) -> bool:
    """Tells whether the attempt ran for its whole walltime, so that the walltime ended it although the agent that sent TERM is gone."""
    walltime = attempt.walltime_seconds
    ended = max((task.end for task in record.tasks), default=record.end)
    return walltime is not None and bool(attempt.started) and ended - attempt.started >= walltime


def _journaled_terms(known: Known) -> WorkTerms | None:
    """Returns the terms in the journal, marked as generation 0, so that they are read again once a
    row names the attempt; None: no journal.
    """
    if known.work is None:
        return None
    return WorkTerms(0, known.work.grace_seconds, known.work.walltime_seconds, known.work.tasks, known.work.epilogue_seconds)


def apply(attempt: Attempt, event: Answer) -> None:
    """Changes the attempt by one event, and begins the epilogue of one that was prepared and is over by that; an answer that no instruction
    waits for any more changes nothing.
    """
    before = attempt.stage
    _apply(attempt, event)
    if attempt.stage in OVER and before not in OVER and before is not Stage.EPILOGUE and attempt.prepared:
        _begin_epilogue(attempt)


def _begin_epilogue(attempt: Attempt) -> None:
    """Puts an ended attempt into the epilogue: its end is reported only once its prologue is undone."""
    attempt.outcome, attempt.stage, attempt.clearing, attempt.unclean = attempt.stage, Stage.EPILOGUE, False, False


def end_epilogue(attempt: Attempt, *, clean: bool) -> None:
    """Ends the epilogue of an attempt so that its end is reported; with `clean` False the node stays unfit until a later undo succeeds."""
    if attempt.stage is Stage.EPILOGUE and attempt.outcome is not None:
        attempt.stage, attempt.outcome = attempt.outcome, None
    attempt.unclean = not clean


def _apply(attempt: Attempt, event: Answer) -> None:
    """Changes stage and facts of the attempt by one event, as `apply` does, but begins no epilogue; an event for which its stage does not
    wait changes nothing.
    """
    match event:
        case TermsRead():
            attempt.terms, attempt.reading = event.terms, False
        case Prepared() if attempt.stage is Stage.PREPARING:
            attempt.stage = Stage.READY
        case Refused() if attempt.stage in (Stage.WAITING, Stage.PREPARING, Stage.STARTING):
            attempt.stage, attempt.reading = Stage.FAILED, False
            attempt.reason, attempt.message = event.reason, event.message
        case Vanished() if attempt.stage is Stage.PREPARING:
            attempt.stage, attempt.reason, attempt.message = Stage.LOST, "Lost", event.message
        case Started() if attempt.stage is Stage.STARTING:
            attempt.stage = Stage.RUNNING
            attempt.started, attempt.started_boottime = event.running.started, event.running.started_boottime
        case Started() if attempt.stage in (Stage.TERMINATING, Stage.KILLING):
            attempt.started, attempt.started_boottime = event.running.started, event.running.started_boottime
        case Cleared() if attempt.stage is Stage.EPILOGUE or attempt.unclean:
            end_epilogue(attempt, clean=True)
        case Exited() if attempt.stage not in OVER and attempt.stage is not Stage.EPILOGUE:
            _end(attempt, event.record)
        case Missed() if attempt.stage in (Stage.TERMINATING, Stage.KILLING):
            attempt.missed = True
        case Survived() if attempt.stage in (Stage.TERMINATING, Stage.KILLING):
            attempt.reason, attempt.message = UNKILLABLE, event.message
        case Directed():
            attempt.settled = event.direction.settled
            if attempt.order is not Order.END:
                attempt.order, attempt.cause = event.direction.order, event.direction.cause
        case _:
            pass  # the answer to a question that no longer stands


def _end(attempt: Attempt, record: ExitRecord | None) -> None:
    """Puts an attempt without processes into the stage ENDED, or FAILED where its start failed, with the ends of its tasks; `record` None:
    one end, unknown.

    Drops the order to end it where it had ended by itself.
    """
    attempt.stage, attempt.kill_at, attempt.reason, attempt.message = Stage.ENDED, None, "", ""
    if _ended_by_itself(attempt, record):
        attempt.ended_by = ""
    if record is None:
        attempt.exits = (TaskEnd(unknown=True),)
    elif record.failure:
        attempt.stage, attempt.message = Stage.FAILED, record.failure
        attempt.reason = record.reason or ("NodeUnfit" if record.unfit else "StartFailed")
    else:
        attempt.use = record.use
        attempt.exits = tuple(TaskEnd(task.rank, task.code, task.signal, ended=task.end) for task in record.tasks)
        if record.tasks and not attempt.started:
            attempt.started = min(task.start for task in record.tasks)


def _ended_by_itself(attempt: Attempt, record: ExitRecord | None) -> bool:
    """Tells whether the last task had ended before TERM was sent, so that no order is the reason of the end; False where none was sent."""
    if not attempt.terminated_at:
        return False
    if record is None or not record.tasks:
        return record is None and attempt.missed
    ran = attempt.terminated_at - attempt.started_boottime
    begun, ended = min(task.start for task in record.tasks), max(task.end for task in record.tasks)
    return ended < attempt.started + ran or (attempt.missed and begun < attempt.started + ran)


def unread(attempt: Attempt) -> bool:
    """Tells whether the attempt's terms must be read: a run row names it, and there are none, or the row names a newer generation of the
    spec than theirs.
    """
    row = attempt.row
    return row is not None and row.order == RUN and (attempt.terms is None or attempt.terms.generation < row.generation)


def ending(attempt: Attempt) -> bool:
    """Tells whether a stop row or the reporter orders the attempt's end."""
    return attempt.stopped or attempt.order is Order.END


def forgettable(attempt: Attempt) -> bool:
    """Tells whether an attempt that no row names may be forgotten: it is over, or was never started, and nothing of it is left to undo."""
    if attempt.unclean:
        return False
    return attempt.stage in OVER or (attempt.stage is Stage.WAITING and attempt.starts == 0)


PHASES = {
    Stage.WAITING: Phase.PREPARING, Stage.PREPARING: Phase.PREPARING, Stage.READY: Phase.READY, Stage.STARTING: Phase.READY,
    Stage.RUNNING: Phase.RUNNING, Stage.TERMINATING: Phase.ENDING, Stage.KILLING: Phase.ENDING, Stage.EPILOGUE: Phase.ENDING,
    Stage.ENDED: Phase.GONE, Stage.FAILED: Phase.START_FAILED, Stage.LOST: Phase.LOST,
}  # fmt: skip


def report_state(attempt: Attempt) -> tuple[str, str]:
    """Returns state and detail of the attempt's row in the Lease report, words of `lattice.ledger.reports`; an empty detail: there is none.

    The detail of an ended attempt is its exit code (0: no failure), that of a refused one the reason, that of others whether they are
    ready, have no task here, or had begun before they were stopped. One that no plan names is Unnamed while anything of it may be left.
    """
    match attempt.stage:
        case Stage.LOST:
            return reports.LOST, ""
        case Stage.FAILED:
            return reports.START_FAILED, attempt.reason
        case Stage.ENDED if attempt.ended_by == STOP:
            return reports.GONE, reports.BEGUN if attempt.started else ""
        case Stage.ENDED:
            failure = first_failure(attempt.exits)
            if failure is not None and failure.unknown:
                return reports.UNKNOWN_EXIT, ""
            return reports.ENDED, str(failure.code if failure else 0)
        case Stage.WAITING:
            return reports.PREPARING, ""
        case _ if attempt.row is None:
            return reports.UNNAMED, ""
        case Stage.PREPARING:
            return reports.PREPARING, ""
        case Stage.READY:
            return reports.PREPARING, reports.READY
        case Stage.TERMINATING | Stage.KILLING | Stage.EPILOGUE:
            return reports.ENDING, ""
        case _:
            return reports.RUNNING, reports.IDLE if attempt.terms is not None and attempt.terms.tasks == 0 else ""
