"""Decides an allocation's next step from its object, its ledger rows and the reports of its nodes.

`next_step` is the scheduler's side of an allocation's life (docs/explanation/ledger.md, "Hand-overs"): a pure function of the
level, so that it does not matter which event was seen or lost. The shell carries out one step, decides again, and stops at `Queue`
or `Rest`. A row leaves the ledger only after the API server has acknowledged the allocation's end or its next attempt; a releasing
row gives back a node only when that node vouches that no process of the attempt runs there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lattice.ledger import starting
from lattice.ledger.ends import end_of, over_for_the_rest, patience_with, reported
from lattice.ledger.format import CANCELLED, DELETED, DISABLED, NODE_LOST, RECLAIMED, WITHDRAWN, Row
from lattice.ledger.proposals import Appoint, Proposal, Release, Renew, Stop
from lattice.ledger.reports import GONE
from lattice.ledger.starting import PARTLY_STARTED, START_SECONDS, START_TIMEOUT, START_TRIES, TIMED_OUT, AttemptNodeState, cut_pairs
from lattice.lifecycle.conditions import condition, is_true
from lattice.lifecycle.settle import NODE_SIDE, is_final, may_requeue, requeue_asked
from lattice.models import conditions as kinds
from lattice.software.pinning import ImagesAwaited, ImagesRefused, judge_images
from lattice.units import fold_nodes, format_duration, parse_time
from lattice.views.allocation import Allocation, Exit
from lattice.workflow.release import WITHOUT_EDGES, EdgesAwaited, EdgesJudged, EdgesUnmet, Released

FINALIZER = "lattice.dev/release"
SCHEDULER = "lattice:scheduler"
PROLOGUE_RETRIES = 3
AWAITED_SECONDS = 5.0
"""How often a deleted object that others wait for is looked at again, where no change of them says that they wait no more."""
ENDING_SHOWN_SECONDS = 1.0
"""Seconds after TERM before the status shows that work is ending; most work ends sooner, and costs no write."""
DOWN = "Down"
DEGRADED = "Degraded"
QUOTA_RECLAIMED = "QuotaReclaimed"
REQUEUED = "Requeued"


@dataclass(frozen=True, slots=True)
class StepFacts:
    """The facts that decide the next step of one allocation; `rows`: its ledger rows, oldest attempt first; `now`: seconds since
    the epoch.

    `allocation` None: the object does not exist.
    """

    allocation: Allocation | None
    rows: tuple[Row, ...]
    now: float
    standings: Mapping[tuple[int, int], AttemptNodeState] = field(default_factory=dict)
    """The state of each attempt on each node, by (attempt, node index)."""
    names: Mapping[int, str] = field(default_factory=dict)
    settled: bool = True
    """Whether every ended attempt has its usage record."""
    ending_seconds: float = 0.0
    """For how many seconds this process has seen one of its rows releasing."""
    start_timeout: float = START_SECONDS
    prologue_retries: int = PROLOGUE_RETRIES
    admitted: int | None = None
    """The walltime in seconds that was admitted for the newest generation; None: that of the row stays."""
    edges: EdgesJudged = WITHOUT_EDGES
    """What it depends on; read while it holds no row."""
    awaited: bool = False
    """Whether others wait for the answer of an object that is being deleted: until their statuses show it, it stays."""

    def states_of(self, row: Row) -> list[AttemptNodeState]:
        """Returns the state of a row's attempt on each of the row's nodes; without a report, an empty state."""
        return [self.standings.get((row.attempt, node), AttemptNodeState(self.names.get(node, str(node)))) for node in row.nodes]


@dataclass(frozen=True, slots=True)
class Propose:
    """The step that sends a proposal to the committer."""

    proposal: Proposal


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """The step that adds the finalizer to an object that was created while the webhook was away."""


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """The step that removes the finalizer of a deleted object whose work is over, so that the API server removes the object."""


@dataclass(frozen=True, slots=True)
class Project:
    """The step that shows a row in the status: the attempt is placed on its nodes."""

    row: Row


@dataclass(frozen=True, slots=True)
class ShowEnding:
    """The step that shows in the status that the attempt was told to end; `cause`: a reason, `since`: seconds since the epoch."""

    cause: str
    message: str
    since: float


@dataclass(frozen=True, slots=True)
class Stage:
    """The step that shows in the status why a placed attempt has not started."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class End:
    """The step that writes the final end; exit and times stay as the reporter wrote them unless given here."""

    reason: str
    message: str
    exit: Exit | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """The step that begins the next attempt: Pending, the old one in `attempts`; `counted`: it uses one of requeue.max.

    `node`: whose prologue failed; the next attempt avoids it.
    """

    reason: str
    message: str
    exit: Exit | None
    counted: bool
    node: str = ""


@dataclass(frozen=True, slots=True)
class Observe:
    """The step that shows that a change of an ended object was seen, and removes the condition Ending."""


@dataclass(frozen=True, slots=True)
class AwaitImages:
    """The step that keeps an allocation from the candidates of cycles, and shows which images are not resolved yet."""

    message: str


@dataclass(frozen=True, slots=True)
class AnswerEdges:
    """The step that writes the answers of its edges into the status, before anything follows from them."""

    judged: EdgesJudged


@dataclass(frozen=True, slots=True)
class AwaitEdges:
    """The step that keeps an allocation from the candidates of cycles, and shows which edges are open."""

    judged: EdgesJudged
    awaited: EdgesAwaited


@dataclass(frozen=True, slots=True)
class Queue:
    """The step that makes the allocation a candidate of the next cycle."""


@dataclass(frozen=True, slots=True)
class Rest:
    """The step that does nothing until a fact changes, or for `seconds` (None: without limit)."""

    seconds: float | None = None


Step = (
    Propose | AddFinalizer | RemoveFinalizer | Project | Stage | ShowEnding | End | Retry | Observe | AnswerEdges | AwaitEdges | AwaitImages
    | Queue | Rest
)  # fmt: skip


def next_step(facts: StepFacts) -> Step:
    """Returns the next step of an allocation; the caller carries it out, and asks again unless it is Queue, AwaitEdges, AwaitImages,
    RemoveFinalizer or Rest.
    """
    allocation = facts.allocation
    if allocation is None:
        return _absent(facts)
    if is_final(allocation.status):
        return _final(facts, allocation)
    freed = _old_rows(facts, allocation)
    if freed is not None:
        return freed
    row = next((row for row in facts.rows if row.attempt == max(1, allocation.status.attempt)), None)
    leaving = _leaving(allocation)
    if row is None:
        return _without_row(facts, allocation, leaving)
    if row.held:
        return _held(facts, allocation, row, leaving)
    return _releasing(facts, allocation, row, leaving)


def _absent(facts: StepFacts) -> Step:
    """Returns the step for an object that surely does not exist any more: ends and frees its rows."""
    for row in facts.rows:
        if row.held:
            return Propose(Stop(row.key, DELETED))
        freed = _vouched(facts, row)
        if freed:
            return Propose(Release(row.key, freed))
    return Rest()


def _final(facts: StepFacts, allocation: Allocation) -> Step:
    """Returns the next step of an allocation in a final phase: release or stop rows that are left, then remove the finalizer of a deleted
    one, or write its status; else Rest.
    """
    for row in facts.rows:
        if row.attempt == allocation.status.attempt and _reported_end(allocation):
            return Propose(Release(row.key))
        if row.held:
            return Propose(Stop(row.key, NODE_LOST))
        freed = _vouched(facts, row)
        if freed:
            return Propose(Release(row.key, freed))
    if allocation.metadata.deletion_timestamp and not facts.rows and FINALIZER in allocation.metadata.finalizers:
        return Rest(AWAITED_SECONDS) if facts.awaited else RemoveFinalizer() if facts.settled else Rest()
    unseen = allocation.status.observed_generation < allocation.metadata.generation
    return Observe() if unseen or is_true(allocation.status.conditions, kinds.ENDING) else Rest()


def _old_rows(facts: StepFacts, allocation: Allocation) -> Step | None:
    """Returns the step for rows of attempts older than the status shows; None: there are none, or nothing can be done."""
    for row in facts.rows:
        if row.attempt >= max(1, allocation.status.attempt):
            continue
        if row.held:
            return Propose(Stop(row.key, NODE_LOST))
        freed = _vouched(facts, row)
        if freed:
            return Propose(Release(row.key, freed))
    return None


def _vouched(facts: StepFacts, row: Row) -> tuple[int, ...]:
    """Returns the node indices of a row whose nodes report nothing of it any more."""
    return tuple(node for node, standing in zip(row.nodes, facts.states_of(row), strict=True) if standing.empty)


def _reported_end(allocation: Allocation) -> bool:
    """Tells whether the reporter has written to the status that every process of the present attempt has ended."""
    status = allocation.status
    return (
        is_true(status.conditions, kinds.FINISHED)
        and status.report is not None
        and status.report.attempt == status.attempt
        and status.report.by != SCHEDULER
    )


def _leaving(allocation: Allocation) -> str:
    """Returns the letter of the cause (deleted, cancelled) for which the owner wants the allocation ended; empty: he does not."""
    if allocation.metadata.deletion_timestamp:
        return DELETED
    return CANCELLED if allocation.spec.cancel is not None else ""


def _asked_again(allocation: Allocation) -> bool:
    """Tells whether the owner wants the present attempt ended, and the next one to wait (`spec.requeueAttempt`)."""
    return requeue_asked(allocation.spec.requeue_attempt, allocation.status.attempt)


def _wish(allocation: Allocation, leaving: str) -> str:
    """Returns in words why an allocation leaves: deleted, or cancelled, with the reason that the user gave."""
    if leaving == DELETED:
        return "deleted"
    reason = allocation.spec.cancel.reason if allocation.spec.cancel else ""
    return f"cancelled: {reason}" if reason else "cancelled"


def _without_row(facts: StepFacts, allocation: Allocation, leaving: str) -> Step:
    """Returns the next step of an allocation that is not final and holds no row: end it where it is to leave (`leaving`: the cause; empty:
    it is not) or missed its deadline, begin it again where its attempt ended or was lost.

    Else it gets its finalizer, waits for its edges, then for its images, or ends where these say so, and is queued.
    """
    status = allocation.status
    if leaving:
        return End("Cancelled", _wish(allocation, leaving), exit=status.exit)
    if is_true(status.conditions, kinds.FINISHED):
        return _after_end(facts, allocation)
    if is_true(status.conditions, kinds.SCHEDULED):
        return _again(allocation, "Lost", "the ledger does not name this attempt", None)
    deadline = allocation.spec.lifecycle.deadline
    if deadline and parse_time(deadline) <= facts.now:
        return End("DeadlineMissed", f"had not started by its deadline {deadline}")
    if FINALIZER not in allocation.metadata.finalizers:
        return AddFinalizer()
    match facts.edges.verdict:
        case EdgesAwaited() as awaited:
            return AwaitEdges(facts.edges, awaited)
        case Released() | EdgesUnmet() if facts.edges.unwritten:
            return AnswerEdges(facts.edges)
        case EdgesUnmet(reason, message):
            return End(reason, message)
        case Released():
            pass  # as work without edges
    match judge_images(allocation):
        case ImagesRefused(reason, message):
            return End(reason, message)
        case ImagesAwaited(message):
            return AwaitImages(message)
        case None:
            return Queue()


def _held(facts: StepFacts, allocation: Allocation, row: Row, leaving: str) -> Step:
    """Returns the next step of an allocation whose row is held: stop it if it is to leave (`leaving`: the cause; empty: it is not) or a
    node is down, and bring row, status and reporter up to date.

    Where nothing of that is due, a start or an end that takes too long is judged.
    """
    status = allocation.status
    if _reported_end(allocation):
        finished = condition(status.conditions, kinds.FINISHED)
        return Propose(Release(row.key)) if finished else Rest()
    if leaving:
        return Propose(Stop(row.key, leaving))
    if _asked_again(allocation):
        return Propose(Stop(row.key, WITHDRAWN))
    standings = facts.states_of(row)
    if any(standing.down for standing in standings):
        return Propose(Stop(row.key, DISABLED if any(standing.disabled for standing in standings) else NODE_LOST))
    if row.generation < allocation.metadata.generation:
        return Propose(Renew(row.key, allocation.metadata.generation, facts.admitted))
    if status.attempt != row.attempt or not is_true(status.conditions, kinds.SCHEDULED):
        return Project(row)
    appointed = _appoint(row, standings)
    if appointed is not None:
        return appointed
    if status.reporter != facts.names.get(row.reporter, "") or status.observed_generation < allocation.metadata.generation:
        return Project(row)
    if cut_pairs(standings) and over_for_the_rest(standings):
        return Propose(Stop(row.key, WITHDRAWN))
    return _starting(facts, allocation, row, standings) or _outrun(facts, allocation, row, standings)


def _starting(facts: StepFacts, allocation: Allocation, row: Row, standings: list[AttemptNodeState]) -> Step | None:
    """Returns the step while not all nodes have started an attempt: shows why, or withdraws it after too long a wait; None: all have."""
    status = allocation.status
    if is_true(status.conditions, kinds.STARTED) or status.scheduled_time is None:
        return None
    wait = starting.judge(standings, facts.now - parse_time(status.scheduled_time), facts.start_timeout)
    if wait is None:
        return None
    shown = condition(status.conditions, kinds.STAGED)
    if wait.over and shown is not None and shown.reason in TIMED_OUT:
        return Propose(Stop(row.key, WITHDRAWN))
    if wait.message and (shown is None or (shown.reason, shown.message) != (wait.reason, wait.message)):
        return Stage(wait.reason, wait.message)
    return Rest(wait.seconds)


def _outrun(facts: StepFacts, allocation: Allocation, row: Row, standings: list[AttemptNodeState]) -> Step:
    """Returns the step of a started attempt: Rest until a while after its walltime is over, then it is shown as ending, once.

    That of the reports where it has no walltime, has not started, or no node runs it any more.
    """
    status = allocation.status
    if row.walltime is None or status.start_time is None or all(standing.empty for standing in standings):
        return _from_reports(facts, allocation, row, standings)
    if is_true(status.conditions, kinds.ENDING) or any(standing.silent for standing in standings):
        return Rest()
    over = parse_time(status.start_time) + row.walltime
    if facts.now < over + ENDING_SHOWN_SECONDS:
        return Rest(over + ENDING_SHOWN_SECONDS - facts.now)
    return ShowEnding("WalltimeExceeded", f"its walltime of {format_duration(row.walltime)} is over", over)


def _appoint(row: Row, standings: list[AttemptNodeState]) -> Step | None:
    """Returns the step that names another reporter; None: the present one is heard, or no other node is."""
    by_node = dict(zip(row.nodes, standings, strict=True))
    reporter = by_node.get(row.reporter)
    if reporter is not None and not (reporter.silent or reporter.down):
        return None
    for node, standing in by_node.items():
        if not standing.silent and not standing.down:
            return Propose(Appoint(row.key, node))
    return None


def _from_reports(facts: StepFacts, allocation: Allocation, row: Row, standings: list[AttemptNodeState]) -> Step:
    """Returns the end by the Lease reports, once all nodes have reported it and the reporter has not written for long enough; else
    rests.
    """
    if not all(standing.empty for standing in standings):
        return Rest()
    waited, patience = min(standing.vouched_seconds for standing in standings), patience_with(standings)
    if waited < patience:
        return Rest(patience - waited)
    return _decide_reported(facts, allocation, standings, reported(allocation, facts.now, standings))


def _releasing(facts: StepFacts, allocation: Allocation, row: Row, leaving: str) -> Step:
    """Returns the next step of an allocation whose row is being stopped: wait until its nodes are empty, then end it or begin it again, by
    the first cause that applies.

    `leaving`: why it is to leave; empty: it is not.
    """
    standings = facts.states_of(row)
    if not _reported_end(allocation):
        waiting = [standing for standing in standings if not standing.empty and not standing.down]
        if waiting:
            return _still_ending(facts, allocation, row, standings, leaving)
        vouched = [standing.vouched_seconds for standing in standings if not standing.down and not standing.fenced]
        patience = patience_with(standings)
        if vouched and min(vouched) < patience and not any(standing.down for standing in standings):
            return Rest(patience - min(vouched))
    if leaving:
        _, _, ended = end_of(standings)
        return End("Cancelled", _wish(allocation, leaving), exit=allocation.status.exit or ended)
    if row.state == WITHDRAWN and (withdrawn := _withdrawn(facts, allocation, standings)) is not None:
        return withdrawn
    if _reported_end(allocation):
        return _after_end(facts, allocation, row)
    lost = [standing.name for standing in standings if standing.down]
    if lost:
        _, _, known = end_of([standing for standing in standings if not standing.down])
        ended = known if known is not None and known.code else None  # that the others ended with 0 says nothing of the lost ones
        message = f"{len(lost)} of {len(standings)} nodes were lost: {fold_nodes(lost)}"
        return _reclaimed(row, message, ended) or decide_end(allocation, "NodeLost", message, ended)
    reason, message, ended = reported(allocation, facts.now, standings)
    retry = _reclaimed(row, message, ended) if reason != "Completed" else None
    return retry or _decide_reported(facts, allocation, standings, (reason, message, ended))


def _decide_reported(
    facts: StepFacts, allocation: Allocation, standings: list[AttemptNodeState], end: tuple[str, str, Exit | None]
) -> End | Retry:
    """Returns the step after an end that is known from the nodes' reports alone."""
    failed = [standing.name for standing in standings if standing.detail == kinds.PROLOGUE_FAILED]
    return decide_end(allocation, *end, prologue_retries=facts.prologue_retries, node=failed[0] if failed else "")


def _withdrawn(facts: StepFacts, allocation: Allocation, standings: list[AttemptNodeState]) -> Step | None:
    """Returns the step after the scheduler itself ended the rest of an attempt: the next try of work that did not start in time, else what
    the nodes' reports say.

    None: the reporter's end, or the loss of a node, decides.
    """
    staged, finished = condition(allocation.status.conditions, kinds.STAGED), condition(allocation.status.conditions, kinds.FINISHED)
    begun = [] if _reported_end(allocation) else [standing for standing in standings if standing.begun]
    started = is_true(allocation.status.conditions, kinds.STARTED) or (begun and len(begun) == len(standings))
    if staged is not None and staged.reason in TIMED_OUT and not started:
        return _not_started(allocation, PARTLY_STARTED if begun else staged.reason, staged.message)
    if any(standing.down for standing in standings) or (_reported_end(allocation) and finished and finished.reason != "Stopped"):
        return None
    return _decide_reported(facts, allocation, standings, _told(facts, allocation, standings))


def _told(facts: StepFacts, allocation: Allocation, standings: list[AttemptNodeState]) -> tuple[str, str, Exit | None]:
    """Returns reason, sentence and exit (None: not known) from those nodes on which the attempt ended by itself, not by an order; from all
    nodes where there is none such.
    """
    spoken = [standing for standing in standings if standing.empty and standing.state != GONE]
    return reported(allocation, facts.now, spoken or standings)


def _not_started(allocation: Allocation, reason: str, message: str) -> Step:
    """Returns the next attempt of work that did not start, which uses none of requeue.max, or the final end after 3 such attempts in a row.

    Work that must not run twice (requeue Never) ends at once where a part of it had started.
    """
    if _asked_again(allocation):
        return _again(allocation, reason, message, None)
    before = 0
    for entry in reversed(allocation.status.attempts):
        if entry.reason != START_TIMEOUT:
            break
        before += 1
    if before + 1 >= START_TRIES:
        return End(START_TIMEOUT, f"{message} ({START_TRIES} attempts in a row did not start)")
    if reason != START_TIMEOUT and allocation.spec.lifecycle.requeue.policy == "Never":
        return End(START_TIMEOUT, f"{message} (requeue Never, and part of it had started)")
    return Retry(START_TIMEOUT, message, None, counted=False)


def _still_ending(facts: StepFacts, allocation: Allocation, row: Row, standings: list[AttemptNodeState], leaving: str) -> Step:
    """Returns the step while nodes are still ending an attempt: keeps nodes and reporter in the status right, shows a long ending."""
    status = allocation.status
    if status.attempt != row.attempt:
        return Project(row)
    appointed = _appoint(row, standings)
    if appointed is not None:
        return appointed
    if status.reporter != facts.names.get(row.reporter, ""):
        return Project(row)
    if is_true(status.conditions, kinds.ENDING) or not is_true(status.conditions, kinds.STARTED):
        return Rest()
    if facts.ending_seconds < ENDING_SHOWN_SECONDS:
        return Rest(ENDING_SHOWN_SECONDS - facts.ending_seconds)
    return _show_ending(facts, allocation, row, leaving)


def _show_ending(facts: StepFacts, allocation: Allocation, row: Row, leaving: str) -> Step:
    """Returns the step that writes into the status why an allocation is being stopped, and since when.

    `leaving`: why it is to leave; empty: it is not.
    """
    since = facts.now - facts.ending_seconds
    if leaving:
        return ShowEnding("Cancelled", _wish(allocation, leaving), since)
    if row.state == RECLAIMED:
        return ShowEnding(QUOTA_RECLAIMED, "the quota tree takes back what was lent to it", since)
    if _asked_again(allocation):
        return ShowEnding(REQUEUED, "it is requeued as asked", since)
    if row.state == WITHDRAWN:
        reason, message, _ = _told(facts, allocation, facts.states_of(row))
        return ShowEnding(reason, message, since)
    return ShowEnding("NodeLost", "a node of it was lost or disabled", since)


def _after_end(facts: StepFacts, allocation: Allocation, row: Row | None = None) -> Step:
    """Returns the step after the reporter wrote an end that is not final yet: the next attempt, or the final end.

    An end as ordered (Stopped) counts as taken back by the quota tree where `row` says so, else as NodeLost.
    """
    finished = condition(allocation.status.conditions, kinds.FINISHED)
    reason, message = (finished.reason, finished.message) if finished else ("Lost", "")
    if reason == "Stopped" and row is not None and (retry := _reclaimed(row, message, allocation.status.exit)) is not None:
        return retry
    if reason == "Stopped" and row is not None and row.state in (NODE_LOST, DISABLED):
        reason, message = "NodeLost", f"a node was lost or disabled while it worked; {message}"
    elif reason == "Stopped":
        reason, message = "NodeLost", message or "the node ended it as ordered"
    report = allocation.status.report
    node = report.failed if report is not None else ""
    return decide_end(allocation, reason, message, allocation.status.exit, prologue_retries=facts.prologue_retries, node=node)


def _reclaimed(row: Row, message: str, ended: Exit | None) -> Retry | None:
    """Returns the next attempt of work whose nodes the quota tree took back; None for all other work.

    The policy of requeue does not matter here: it is for failures.
    """
    if row.state != RECLAIMED:
        return None
    return Retry(QUOTA_RECLAIMED, f"the quota tree took back what was lent to it; {message}", ended, counted=False)


def decide_end(
    allocation: Allocation, reason: str, message: str, ended: Exit | None, *, prologue_retries: int = PROLOGUE_RETRIES, node: str = ""
) -> End | Retry:
    """Returns the step after an attempt ended for this reason: the next attempt if policy and count allow one, else the final end.

    `node`: on which the prologue failed, where that is the reason.
    """
    leaving, asked = bool(_leaving(allocation)), _asked_again(allocation)
    if reason == kinds.PROLOGUE_FAILED and not leaving and not asked:
        return _after_prologue(allocation, message, prologue_retries, node)
    lifecycle, sensitive = allocation.spec.lifecycle, allocation.spec.sensitive
    if may_requeue(lifecycle, reason, allocation.status.requeues, cancelled=leaving, asked=asked, sensitive=sensitive):
        return _again(allocation, reason, message, ended)
    if reason in NODE_SIDE and sensitive:
        message += " (sensitive work is never requeued by itself: `lattice requeue` submits it again)"
    elif reason in NODE_SIDE:
        policy = allocation.spec.lifecycle.requeue
        message += f" (requeue {policy.policy}, {allocation.status.requeues} of {policy.max} used)"
    return End(reason, message, exit=ended)


def _after_prologue(allocation: Allocation, message: str, retries: int, node: str) -> End | Retry:
    """Returns the next attempt of work whose prologue failed, or its end after so many retries in a row: the policy is for work."""
    failed = 0
    for entry in reversed(allocation.status.attempts):
        if entry.reason != kinds.PROLOGUE_FAILED:
            break
        failed += 1
    if failed >= retries:
        return End(kinds.PROLOGUE_FAILED, f"{message} ({failed + 1} attempts in a row, work.prologueRetries is {retries})")
    return Retry(kinds.PROLOGUE_FAILED, message, None, counted=False, node=node)


def _again(allocation: Allocation, reason: str, message: str, ended: Exit | None) -> Retry:
    """Returns the step that begins another attempt; the ended one counts against the most requeues unless it was lost before it started, or
    its owner had it requeued.
    """
    if _asked_again(allocation):
        return Retry(REQUEUED, f"requeued as asked; {message}", ended, counted=False)
    started = is_true(allocation.status.conditions, kinds.STARTED)
    return Retry(reason, message, ended, counted=started or reason != "Lost")


def fenced_wait(allocation: Allocation, rows: tuple[Row, ...]) -> bool:
    """Tells whether the next attempt must wait until `rows`, those of its older attempts, have left the ledger (`requeue.when: Fenced`)."""
    return allocation.spec.lifecycle.requeue.when == "Fenced" and bool(rows)
