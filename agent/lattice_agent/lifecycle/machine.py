"""The node's state machine, pure: events in, instructions out (dask's worker state machine is the model).

One `Lifecycle` is one node. It knows every attempt that the node has not been allowed to forget, follows the plan,
the reporter's orders and the walltime, and says what the host is to do. It asks no clock: every event comes with the
time of CLOCK_BOOTTIME, on which walltime and grace run. `validate` checks what must hold after every event.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from lattice.ledger import reports
from lattice.ledger.plans import RUN, STOP, PlanRow
from lattice.ledger.reports import ReportRow
from lattice.models.conditions import UNKILLABLE
from lattice_agent.attempts import ExitRecord, Key, Known, Ordered, Running, Seen
from lattice_agent.members import Direction, Member, Order, Phase, TaskEnd, first_failure

GRACE_SECONDS = 30.0
"""From TERM to KILL for work whose terms nobody knows."""
ANSWER_SECONDS = 2.0
"""A reporter that has been told of a failure answers with END at once: after this it cannot be reached."""


class Stage(Enum):
    """Where an attempt stands on this node."""

    WAITING = "its terms are not read, or the node is not clean"
    PREPARING = "the host prepares it"
    READY = "it can start at once"
    STARTING = "the host starts it"
    RUNNING = "its tasks run"
    TERMINATING = "TERM was sent"
    KILLING = "KILL was sent"
    ENDED = "no process is left"
    FAILED = "it could not be started"
    LOST = "the node rebooted, or its record is gone"


POPULATED = frozenset({Stage.PREPARING, Stage.READY, Stage.STARTING, Stage.RUNNING, Stage.TERMINATING, Stage.KILLING})
"""The attempt has a scope; only one at a time may."""
OVER = frozenset({Stage.ENDED, Stage.FAILED, Stage.LOST})


@dataclass(frozen=True, slots=True)
class Terms:
    """What the Allocation says about time, at one generation of its spec."""

    generation: int
    grace_seconds: float = GRACE_SECONDS
    walltime_seconds: float | None = None
    tasks: int = 1
    """On this node; without tasks the walltime is the head's affair."""


# ── events ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class PlanRead:
    """The plan, with the rows that name this node; epoch, term and `since` as in `PlanSpec`."""

    seq: int
    rows: tuple[PlanRow, ...]
    epoch: int = 0
    term: str = ""
    since: int = 0

    @property
    def seen(self) -> Seen:
        """What is remembered of it."""
        return Seen(self.seq, self.epoch, self.term)


@dataclass(frozen=True, slots=True)
class PlanAbsent:
    """The cluster was asked and has no plan for this node: that says nothing about what it knows."""


@dataclass(frozen=True, slots=True)
class TermsRead:
    """The Allocation was read."""

    key: Key
    terms: Terms


@dataclass(frozen=True, slots=True)
class Prepared:
    """The host has prepared it."""

    key: Key


@dataclass(frozen=True, slots=True)
class Refused:
    """It cannot be read, prepared or started, with a reason of END_REASONS."""

    key: Key
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Vanished:
    """The host says that it was started here before, and nothing of it is left."""

    key: Key
    message: str


@dataclass(frozen=True, slots=True)
class Started:
    """The host has started it."""

    key: Key
    running: Running


@dataclass(frozen=True, slots=True)
class Exited:
    """No process is left; None: the exit record is gone with the process that keeps it."""

    key: Key
    record: ExitRecord | None


@dataclass(frozen=True, slots=True)
class Missed:
    """TERM found no process of the work: it had ended before."""

    key: Key


@dataclass(frozen=True, slots=True)
class Survived:
    """KILL has not ended all of it: `message` names who is left."""

    key: Key
    message: str


@dataclass(frozen=True, slots=True)
class Directed:
    """The reporter's word."""

    key: Key
    direction: Direction


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Recalled:
    """The host says that it was started here before, and what the disk keeps of it."""

    known: Known

    @property
    def key(self) -> Key:
        """The attempt."""
        return self.known.key


Event = (
    PlanRead | PlanAbsent | TermsRead | Prepared | Refused | Vanished | Recalled | Started | Exited | Missed | Survived | Directed | Tick
)


# ── instructions ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Read:
    """GET the Allocation; answered by TermsRead or Refused."""

    key: Key


@dataclass(frozen=True, slots=True)
class Prepare:
    """Answered by Prepared, Refused, Recalled or Vanished."""

    key: Key


@dataclass(frozen=True, slots=True)
class Start:
    """Answered by Started or Refused."""

    key: Key


@dataclass(frozen=True, slots=True)
class Terminate:
    """TERM; Missed follows where there is nothing to end, Exited when it helps."""

    key: Key
    order: Ordered


@dataclass(frozen=True, slots=True)
class Kill:
    """KILL until nothing is left; Exited follows."""

    key: Key


@dataclass(frozen=True, slots=True)
class Forget:
    """Settled by the plan of this seq: the host may drop it."""

    key: Key
    seq: int = 0


@dataclass(frozen=True, slots=True)
class Remember:
    """Keep the newest plan's seq durably."""

    seen: Seen


Instruction = Read | Prepare | Start | Terminate | Kill | Forget | Remember


@dataclass(slots=True)
class Attempt:
    """All that the machine knows of one attempt."""

    key: Key
    stage: Stage
    row: PlanRow | None = None
    """Of the newest plan; None: that plan does not name it."""
    admitted: float | None = None
    """Seconds of walltime that the last plan row admitted; None: no limit but the terms'."""
    terms: Terms | None = None
    reading: bool = False
    prepared: bool = False
    adopted: bool = False
    """It ran already when this agent started."""
    starts: int = 0
    started: float = 0.0
    started_boottime: float = 0.0
    order: Order = Order.WAIT
    cause: str = ""
    settled: bool = False
    ended_by: str = ""
    """`stop`, `walltime`, or the cause of an END; empty: by itself."""
    terminated_at: float = 0.0
    """CLOCK_BOOTTIME of TERM."""
    missed: bool = False
    """TERM found nothing to end."""
    kill_at: float | None = None
    exits: tuple[TaskEnd, ...] = ()
    reason: str = ""
    message: str = ""
    over_at: float | None = None
    """CLOCK_BOOTTIME at which this agent saw that it is over."""
    unanswered: bool = False
    """It failed here by itself, and its reporter, on another node, has not answered."""

    @property
    def stopped(self) -> bool:
        """Whether a stop row names it."""
        return self.row is not None and self.row.order == STOP

    @property
    def walltime_seconds(self) -> float | None:
        """The shorter one of what its terms say and what was admitted; None: endless."""
        asked = self.terms.walltime_seconds if self.terms is not None else None
        return min((seconds for seconds in (asked, self.admitted) if seconds is not None), default=None)

    @property
    def walltime_at(self) -> float | None:
        """CLOCK_BOOTTIME at which its walltime is over; None: never."""
        walltime = self.walltime_seconds
        if self.terms is None or walltime is None or self.terms.tasks == 0 or not self.started_boottime:
            return None
        return self.started_boottime + walltime


class Lifecycle:
    """The attempts of one node; the only place that decides what starts and what ends there."""

    def __init__(self, node: str, *, seen: Seen, known: Iterable[Known]) -> None:
        self.node = node
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
        """What to do next, in order. An event about an unknown attempt changes nothing."""
        out: list[Instruction] = []
        if isinstance(event, PlanRead):
            self._read_plan(event, out)
        elif isinstance(event, PlanAbsent):
            self.fresh = False
        elif not isinstance(event, Tick):
            attempt = self.attempts.get(event.key)
            if isinstance(event, Recalled):
                if attempt is not None:
                    self.attempts[event.key] = _recalled(attempt, event.known)
            elif attempt is not None:
                _apply(attempt, event)
        for attempt in sorted(self.attempts.values(), key=lambda attempt: attempt.stage not in POPULATED):
            self._advance(attempt, boottime, out)
        return out

    @property
    def seq(self) -> int:
        """The highest plan seq that the node has seen, ever."""
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
        for key in [key for key, attempt in self.attempts.items() if attempt.row is None and _forgettable(attempt)]:
            attempt = self.attempts.pop(key)
            if attempt.prepared:
                out.append(Forget(key, plan.seq))

    def _meet(self, key: Key, row: PlanRow) -> Attempt:
        """The attempt of a row that this node has not been asked for, as far as it remembers."""
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
        if attempt.stage not in OVER and not attempt.reading and _unread(attempt):
            attempt.reading = True
            out.append(Read(attempt.key))
        match attempt.stage:
            case Stage.WAITING:
                self._advance_waiting(attempt, out)
            case Stage.READY if _ending(attempt):
                _terminate(attempt, boottime, out)
            case Stage.READY if attempt.order is Order.START and attempt.row is not None:
                attempt.stage = Stage.STARTING
                attempt.starts += 1
                out.append(Start(attempt.key))
            case Stage.RUNNING if _ending(attempt) or _due(attempt.walltime_at, boottime):
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
        """Whether it failed here by itself, and the others are to be ended for that by a reporter on another node."""
        row = attempt.row
        if row is None or row.order != RUN or row.reporter in ("", self.node) or attempt.order is Order.END or attempt.settled:
            return False
        return attempt.stage in (Stage.FAILED, Stage.LOST) or (not attempt.ended_by and first_failure(attempt.exits) is not None)

    def _advance_waiting(self, attempt: Attempt, out: list[Instruction]) -> None:
        if _ending(attempt):
            attempt.stage = Stage.ENDED
            attempt.ended_by = STOP if attempt.stopped else attempt.cause
        elif attempt.row is not None and attempt.terms is not None and not attempt.reading and self.clean():
            attempt.stage = Stage.PREPARING
            attempt.prepared = True
            out.append(Prepare(attempt.key))

    def clean(self) -> bool:
        """Whether no attempt's scope is populated."""
        return not any(attempt.stage in POPULATED for attempt in self.attempts.values())

    def deadline(self) -> float | None:
        """CLOCK_BOOTTIME of the next walltime, KILL or overdue answer; None: nothing is due."""
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
        """What the reporter is told; None: the node knows nothing of it."""
        attempt = self.attempts.get(key)
        if attempt is None:
            return None
        return Member(
            key, self.node, self.seq, _PHASES[attempt.stage], attempt.reason or attempt.ended_by, attempt.message, attempt.started,
            attempt.exits, walltime=attempt.ended_by == WALLTIME, ordered=attempt.ended_by == STOP,
        )  # fmt: skip

    def silent_reporters(self) -> list[str]:
        """Reporters that have not answered to a failure here."""
        return [attempt.row.reporter for attempt in self.attempts.values() if attempt.unanswered and attempt.row is not None]

    def report(self) -> tuple[ReportRow, ...]:
        """Every attempt as the Lease report says it."""
        return tuple(ReportRow(key.uid, key.attempt, *report_state(attempt)) for key, attempt in self.attempts.items())

    def validate(self) -> None:
        """Raises AssertionError where the machine's promises do not hold."""
        populated = [key for key, attempt in self.attempts.items() if attempt.stage in POPULATED]
        adopted = [key for key in populated if self.attempts[key].adopted]
        if len(populated) > max(1, len(adopted)):
            raise AssertionError(f"several attempts have a scope: {populated}")
        for key, attempt in self.attempts.items():
            if attempt.starts > 1:
                raise AssertionError(f"{key} was started {attempt.starts} times")
            if attempt.stage in (Stage.TERMINATING, Stage.KILLING) and not attempt.ended_by:
                raise AssertionError(f"{key} is being ended, and nobody ordered it")
            if attempt.stage is Stage.WAITING and attempt.starts:
                raise AssertionError(f"{key} waits after it was started")


def _of_another_ledger(seen: Seen, plan: PlanRead) -> bool:
    """Whether the ledger of a plan cannot be the one whose plan was seen: it went back between them, however far it has come since.

    An epoch has one term, a later one begins above every seq of those before it, and none comes back.
    """
    if not seen.epoch or not plan.epoch:
        return False
    if plan.epoch == seen.epoch:
        return plan.term != seen.term
    return plan.epoch < seen.epoch or plan.since <= seen.seq


WALLTIME = "walltime"

_PHASES = {
    Stage.WAITING: Phase.PREPARING, Stage.PREPARING: Phase.PREPARING, Stage.READY: Phase.READY, Stage.STARTING: Phase.READY,
    Stage.RUNNING: Phase.RUNNING, Stage.TERMINATING: Phase.ENDING, Stage.KILLING: Phase.ENDING, Stage.ENDED: Phase.GONE,
    Stage.FAILED: Phase.START_FAILED, Stage.LOST: Phase.LOST,
}  # fmt: skip


def restored(known: Known) -> Attempt:
    """An attempt as the disk and the scopes show it after a restart of the agent, or of the machine."""
    terms = _journaled_terms(known)
    if known.alive or known.populated:
        started = known.running or Running(0, 0, 0.0, 0.0)
        return Attempt(
            known.key, Stage.RUNNING, terms=terms, prepared=True, adopted=True,
            started=started.started, started_boottime=started.started_boottime,
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
    return attempt


def _recalled(attempt: Attempt, known: Known) -> Attempt:
    """An attempt that this process had forgotten, or never knew: the end that lies on the disk is its end."""
    if attempt.stage is not Stage.PREPARING:
        return attempt
    found = restored(known)
    found.row, found.admitted, found.terms = attempt.row, attempt.admitted, attempt.terms or found.terms
    if found.stage is Stage.WAITING:
        found.stage, found.reason, found.message = Stage.LOST, "Lost", "it was started here before, and no record of its end is left"
    return found


def _outran(attempt: Attempt, record: ExitRecord) -> bool:
    """Whether it ran for its walltime: then that ended it, though the agent that sent TERM is gone."""
    walltime = attempt.walltime_seconds
    ended = max((task.end for task in record.tasks), default=record.end)
    return walltime is not None and bool(attempt.started) and ended - attempt.started >= walltime


def _journaled_terms(known: Known) -> Terms | None:
    """Terms of generation 0: good enough to end the work in time, read again as soon as a row names it."""
    if known.work is None:
        return None
    return Terms(0, known.work.grace_seconds, known.work.walltime_seconds, known.work.tasks)


def _apply(attempt: Attempt, event: TermsRead | Prepared | Refused | Vanished | Started | Exited | Missed | Survived | Directed) -> None:
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
        case Exited() if attempt.stage not in OVER:
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
    attempt.stage, attempt.kill_at, attempt.reason, attempt.message = Stage.ENDED, None, "", ""
    if _ended_by_itself(attempt, record):
        attempt.ended_by = ""
    if record is None:
        attempt.exits = (TaskEnd(unknown=True),)
    elif record.failure:
        attempt.stage, attempt.message = Stage.FAILED, record.failure
        attempt.reason = "NodeUnfit" if record.unfit else "StartFailed"
    else:
        attempt.exits = tuple(TaskEnd(task.rank, task.code, task.signal, ended=task.end) for task in record.tasks)
        if record.tasks and not attempt.started:
            attempt.started = min(task.start for task in record.tasks)


def _ended_by_itself(attempt: Attempt, record: ExitRecord | None) -> bool:
    """Whether its last task had ended before TERM was sent: then no order is the reason, however late somebody looked."""
    if not attempt.terminated_at:
        return False
    if record is None or not record.tasks:
        return record is None and attempt.missed
    ran = attempt.terminated_at - attempt.started_boottime
    begun, ended = min(task.start for task in record.tasks), max(task.end for task in record.tasks)
    return ended < attempt.started + ran or (attempt.missed and begun < attempt.started + ran)


def _unread(attempt: Attempt) -> bool:
    """Whether its row names a newer generation of the spec than the one that was read."""
    row = attempt.row
    return row is not None and row.order == RUN and (attempt.terms is None or attempt.terms.generation < row.generation)


def _ending(attempt: Attempt) -> bool:
    return attempt.stopped or attempt.order is Order.END


def _due(at: float | None, boottime: float) -> bool:
    return at is not None and boottime >= at


def _terminate(attempt: Attempt, boottime: float, out: list[Instruction]) -> None:
    ended_by = STOP if attempt.stopped else attempt.cause if attempt.order is Order.END else WALLTIME
    attempt.stage, attempt.ended_by = Stage.TERMINATING, ended_by or "Ended"
    attempt.terminated_at = boottime
    attempt.kill_at = boottime + (attempt.terms.grace_seconds if attempt.terms else GRACE_SECONDS)
    out.append(Terminate(attempt.key, Ordered(attempt.ended_by, boottime)))


def _forgettable(attempt: Attempt) -> bool:
    """A row leaves the ledger only after the attempt's end is persisted, so what is over and unnamed is settled."""
    return attempt.stage in OVER or (attempt.stage is Stage.WAITING and attempt.starts == 0)


def report_state(attempt: Attempt) -> tuple[str, str]:
    """State and detail of a row of the Lease report."""
    match attempt.stage:
        case Stage.LOST:
            return reports.LOST, ""
        case Stage.FAILED:
            return reports.START_FAILED, attempt.reason
        case Stage.ENDED if attempt.ended_by == STOP:
            return reports.GONE, ""
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
        case Stage.TERMINATING | Stage.KILLING:
            return reports.ENDING, ""
        case _:
            return reports.RUNNING, reports.IDLE if attempt.terms is not None and attempt.terms.tasks == 0 else ""
