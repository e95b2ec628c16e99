"""What an allocation asks for next, from its object, its ledger rows and what its nodes report.

`next_step` is the scheduler's side of an allocation's life (docs/explanation/ledger.md, "Hand-overs"): a
pure function of the level, so that it does not matter which event was seen or lost. The shell carries out
one step, looks again, and stops at `Queue` or `Rest`.

A row leaves the ledger only after the API server has acknowledged the allocation's end or its next attempt;
a releasing row gives back a node only when that node vouches that nothing of the attempt runs there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lattice.ledger.format import CANCELLED, DELETED, DISABLED, NODE_LOST, RECLAIMED, Row
from lattice.ledger.proposals import Appoint, Proposal, Release, Renew, Stop
from lattice.ledger.reports import ENDED, NO_PROCESS_LEFT, UNKNOWN_EXIT
from lattice.lifecycle.conditions import condition, is_true
from lattice.lifecycle.settle import NODE_SIDE, is_final, may_requeue
from lattice.models import conditions as kinds
from lattice.units import fold_nodes, parse_time
from lattice.views.allocation import Allocation, Exit

FINALIZER = "lattice.dev/release"
SCHEDULER = "lattice:scheduler"
REPORTER_SILENCE_SECONDS = 20.0
DOWN = "Down"
DEGRADED = "Degraded"
QUOTA_RECLAIMED = "QuotaReclaimed"


@dataclass(frozen=True, slots=True)
class Standing:
    """One node of a row, as its Lease and the operator show it; `state` and `detail` are its report of this attempt.

    `down`: confirmed Down or disabled on a heartbeat that still stands. `vouched_seconds`: for how long the
    node has said that no process of the attempt is left.
    """

    name: str
    down: bool = False
    disabled: bool = False
    fenced: bool = False
    silent: bool = False
    state: str = ""
    detail: str = ""
    vouched_seconds: float = 0.0

    @property
    def empty(self) -> bool:
        """Whether nothing of the attempt can run there any more."""
        return self.fenced or self.state in NO_PROCESS_LEFT


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything a step is decided from; `now` in seconds since the epoch, rows oldest first."""

    allocation: Allocation | None
    rows: tuple[Row, ...]
    now: float
    standings: Mapping[tuple[int, int], Standing] = field(default_factory=dict)
    """By (attempt, node index)."""
    names: Mapping[int, str] = field(default_factory=dict)
    settled: bool = True
    """Whether usage records hold every attempt that has ended."""

    def of(self, row: Row) -> list[Standing]:
        """The standings of a row's nodes."""
        return [self.standings.get((row.attempt, node), Standing(self.names.get(node, str(node)))) for node in row.nodes]


@dataclass(frozen=True, slots=True)
class Propose:
    """Ask the committer."""

    proposal: Proposal


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """Set the finalizer: the webhook was down."""


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Nothing of it is left: let the object go."""


@dataclass(frozen=True, slots=True)
class Project:
    """Show this row in the status: the attempt is placed."""

    row: Row


@dataclass(frozen=True, slots=True)
class End:
    """Write `Finished` as decided: nothing follows. `exit` and times stay what the reporter wrote unless given."""

    reason: str
    message: str
    exit: Exit | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """Write the next attempt: Pending, the old one into `attempts`. `counted`: it spends requeue.max."""

    reason: str
    message: str
    exit: Exit | None
    counted: bool


@dataclass(frozen=True, slots=True)
class Observe:
    """Show that a change of a final object was seen: nothing follows from it."""


@dataclass(frozen=True, slots=True)
class Queue:
    """It waits for nodes: a candidate of the next cycle."""


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing to do until something changes, or for so many seconds."""

    seconds: float | None = None


Step = Propose | AddFinalizer | RemoveFinalizer | Project | End | Retry | Observe | Queue | Rest


def next_step(facts: Facts) -> Step:
    """The one thing to do next."""
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


def _absent(facts: Facts) -> Step:
    """The object is gone for certain: end and release what it held."""
    for row in facts.rows:
        if row.held:
            return Propose(Stop(row.key, DELETED))
        freed = _vouched(facts, row)
        if freed:
            return Propose(Release(row.key, freed))
    return Rest()


def _final(facts: Facts, allocation: Allocation) -> Step:
    for row in facts.rows:
        if row.attempt == allocation.status.attempt and _reported_end(allocation):
            return Propose(Release(row.key))
        if row.held:
            return Propose(Stop(row.key, NODE_LOST))
        freed = _vouched(facts, row)
        if freed:
            return Propose(Release(row.key, freed))
    if allocation.metadata.deletion_timestamp and not facts.rows and FINALIZER in allocation.metadata.finalizers:
        return RemoveFinalizer() if facts.settled else Rest()
    return Observe() if allocation.status.observed_generation < allocation.metadata.generation else Rest()


def _old_rows(facts: Facts, allocation: Allocation) -> Step | None:
    """Rows of attempts that the object has left behind."""
    for row in facts.rows:
        if row.attempt >= max(1, allocation.status.attempt):
            continue
        if row.held:
            return Propose(Stop(row.key, NODE_LOST))
        freed = _vouched(facts, row)
        if freed:
            return Propose(Release(row.key, freed))
    return None


def _vouched(facts: Facts, row: Row) -> tuple[int, ...]:
    return tuple(node for node, standing in zip(row.nodes, facts.of(row), strict=True) if standing.empty)


def _reported_end(allocation: Allocation) -> bool:
    """Whether the reporter wrote that every process of the present attempt has ended."""
    status = allocation.status
    return (
        is_true(status.conditions, kinds.FINISHED)
        and status.report is not None
        and status.report.attempt == status.attempt
        and status.report.by != SCHEDULER
    )


def _leaving(allocation: Allocation) -> str:
    """The cause's letter if it is to end by its owner's wish."""
    if allocation.metadata.deletion_timestamp:
        return DELETED
    return CANCELLED if allocation.spec.cancel is not None else ""


def _wish(allocation: Allocation, leaving: str) -> str:
    if leaving == DELETED:
        return "deleted"
    reason = allocation.spec.cancel.reason if allocation.spec.cancel else ""
    return f"cancelled: {reason}" if reason else "cancelled"


def _without_row(facts: Facts, allocation: Allocation, leaving: str) -> Step:
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
    return Queue()


def _held(facts: Facts, allocation: Allocation, row: Row, leaving: str) -> Step:
    status = allocation.status
    if _reported_end(allocation):
        finished = condition(status.conditions, kinds.FINISHED)
        return Propose(Release(row.key)) if finished else Rest()
    if leaving:
        return Propose(Stop(row.key, leaving))
    standings = facts.of(row)
    if any(standing.down for standing in standings):
        return Propose(Stop(row.key, DISABLED if any(standing.disabled for standing in standings) else NODE_LOST))
    if row.generation < allocation.metadata.generation:
        return Propose(Renew(row.key, allocation.metadata.generation))
    if status.attempt != row.attempt or not is_true(status.conditions, kinds.SCHEDULED):
        return Project(row)
    appointed = _appoint(row, standings)
    if appointed is not None:
        return appointed
    if status.reporter != facts.names.get(row.reporter, "") or status.observed_generation < allocation.metadata.generation:
        return Project(row)
    return _from_reports(facts, allocation, row, standings)


def _appoint(row: Row, standings: list[Standing]) -> Step | None:
    """Another reporter, when the present one is silent and another node is not."""
    by_node = dict(zip(row.nodes, standings, strict=True))
    reporter = by_node.get(row.reporter)
    if reporter is not None and not (reporter.silent or reporter.down):
        return None
    for node, standing in by_node.items():
        if not standing.silent and not standing.down:
            return Propose(Appoint(row.key, node))
    return None


def _from_reports(facts: Facts, allocation: Allocation, row: Row, standings: list[Standing]) -> Step:
    """When every node says that it has ended and the reporter does not write: the end, from the Lease reports."""
    if not all(standing.empty for standing in standings):
        return Rest()
    waited = min(standing.vouched_seconds for standing in standings)
    if waited < REPORTER_SILENCE_SECONDS:
        return Rest(REPORTER_SILENCE_SECONDS - waited)
    reason, message, ended = _end_of(standings)
    return _decide_end(allocation, reason, message, ended)


def _releasing(facts: Facts, allocation: Allocation, row: Row, leaving: str) -> Step:
    standings = facts.of(row)
    if not _reported_end(allocation):
        waiting = [standing for standing in standings if not standing.empty and not standing.down]
        if waiting:
            return _still_ending(facts, allocation, row, standings)
        vouched = [standing.vouched_seconds for standing in standings if not standing.down and not standing.fenced]
        if vouched and min(vouched) < REPORTER_SILENCE_SECONDS and not any(standing.down for standing in standings):
            return Rest(REPORTER_SILENCE_SECONDS - min(vouched))
    if leaving:
        _, _, ended = _end_of(standings)
        return End("Cancelled", _wish(allocation, leaving), exit=allocation.status.exit or ended)
    if _reported_end(allocation):
        return _after_end(facts, allocation, row)
    lost = [standing.name for standing in standings if standing.down]
    if lost:
        _, _, ended = _end_of([standing for standing in standings if not standing.down])
        message = f"{len(lost)} of {len(standings)} nodes were lost: {fold_nodes(lost)}"
        return _reclaimed(row, message, ended) or _decide_end(allocation, "NodeLost", message, ended)
    reason, message, ended = _end_of(standings)
    retry = _reclaimed(row, message, ended) if reason != "Completed" else None
    return retry or _decide_end(allocation, reason, message, ended)


def _still_ending(facts: Facts, allocation: Allocation, row: Row, standings: list[Standing]) -> Step:
    """Nodes are still ending it: keep the status and the reporter right meanwhile."""
    status = allocation.status
    if status.attempt != row.attempt:
        return Project(row)
    appointed = _appoint(row, standings)
    if appointed is not None:
        return appointed
    if status.reporter != facts.names.get(row.reporter, ""):
        return Project(row)
    return Rest()


def _end_of(standings: list[Standing]) -> tuple[str, str, Exit | None]:
    """Reason, sentence and exit as the nodes' reports tell it: the first failure, else 0."""
    for standing in standings:
        if standing.state == ENDED and standing.detail not in ("", "0"):
            code = int(standing.detail)
            return (
                "TaskFailed",
                f"exit code {code} on {standing.name}",
                Exit(code=code, signal=code - 128 if code > 128 else 0, node=standing.name),
            )
    for standing in standings:
        if standing.state == UNKNOWN_EXIT:
            return "ExitUnknown", f"the process that keeps the exit code was killed on {standing.name}", None
        if standing.state == "f":
            return standing.detail or "StartFailed", f"could not be started on {standing.name}", None
        if standing.state in ("l", "g") or standing.fenced:
            return "Lost", f"{standing.name} has no record of it", None
    if standings and all(standing.state == ENDED for standing in standings):
        return "Completed", "every task ended with 0", Exit(code=0)
    return "Lost", "no node has a record of its end", None


def _after_end(facts: Facts, allocation: Allocation, row: Row | None = None) -> Step:
    """The reporter wrote an end that is not final: requeue, or say that nothing follows."""
    finished = condition(allocation.status.conditions, kinds.FINISHED)
    reason, message = (finished.reason, finished.message) if finished else ("Lost", "")
    if reason == "Stopped" and row is not None and (retry := _reclaimed(row, message, allocation.status.exit)) is not None:
        return retry
    if reason == "Stopped" and row is not None and row.state in (NODE_LOST, DISABLED):
        reason, message = "NodeLost", f"a node was lost or disabled while it worked; {message}"
    elif reason == "Stopped":
        reason, message = "NodeLost", message or "the node ended it as ordered"
    return _decide_end(allocation, reason, message, allocation.status.exit)


def _reclaimed(row: Row, message: str, ended: Exit | None) -> Retry | None:
    """The next attempt of work whose nodes the quota tree took back, whatever its policy of requeue says: that is for failures."""
    if row.state != RECLAIMED:
        return None
    return Retry(QUOTA_RECLAIMED, f"the quota tree took back what was lent to it; {message}", ended, counted=False)


def _decide_end(allocation: Allocation, reason: str, message: str, ended: Exit | None) -> Step:
    if may_requeue(allocation.spec.lifecycle, reason, allocation.status.requeues, cancelled=bool(_leaving(allocation))):
        return _again(allocation, reason, message, ended)
    if reason in NODE_SIDE:
        policy = allocation.spec.lifecycle.requeue
        message += f" (requeue {policy.policy}, {allocation.status.requeues} of {policy.max} used)"
    return End(reason, message, exit=ended)


def _again(allocation: Allocation, reason: str, message: str, ended: Exit | None) -> Step:
    started = is_true(allocation.status.conditions, kinds.STARTED)
    return Retry(reason, message, ended, counted=started or reason != "Lost")


def fenced_wait(allocation: Allocation, rows: tuple[Row, ...]) -> bool:
    """Whether the next attempt waits for the proof that older ones have ended (`requeue.when: Fenced`)."""
    return allocation.spec.lifecycle.requeue.when == "Fenced" and bool(rows)
