"""An Allocation as one row of `lattice status`: what the table shows of it, whoever holds the object. Pure.

A row says nothing that depends on the time of asking: ages, the time left until KILL and expected starts are told from its times
by whoever shows it. The scheduler makes rows of its cache, the command line of what the API server lists: by this one function.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lattice.lifecycle.conditions import condition
from lattice.models.conditions import CANCELLED, COMPLETED, ENDING, FINAL_PHASES, FINISHED, PENDING, READY, RUNNING, SCHEDULED, UNKILLABLE
from lattice.units import parse_duration, parse_time
from lattice.views.allocation import Allocation, Condition, ExpectedStart

STATUS_SCHEMA: Final = "lattice.dev/status-rows/v1"
NO_START: Final = frozenset({"VClusterClosed", "Held", "NeverFits"})
"""Reasons beside which an expected start of the moment before would be wrong."""


class StatusRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One row; times are seconds since the epoch, absent where there are none. Fields are added at the end alone."""

    namespace: str
    name: str
    number: int
    """0 while it has none."""
    user: str
    phase: str
    nodes: str
    walltime: str | None
    vcluster: str
    submitted: float
    since: float | None
    start: float | None
    end: float | None
    kill: float | None
    """When KILL follows, as the status says it; for work that has started and not ended."""
    over: float | None
    """When the walltime of such work is over."""
    grace_seconds: float
    leaving: str
    """Why it ends, or shall end; empty for work that goes on or has ended."""
    place: str
    """Its nodes, or the reason in brackets."""
    expected_p50: str | None = None
    expected_p90: str | None = None
    expected_reason: str | None = None
    """Absent where no expected start is shown."""


class StatusDetail(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The details that only the wide table shows."""

    job: str
    tenant: str
    project: str
    attempt: int
    preemption_class: int
    score: str
    message: str


class StatusRows(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The answer to `status`: rows in no order, and for the wide table as many details beside them."""

    schema: str
    user: str
    """Who asks, as the cluster names him."""
    version: str
    """The resourceVersion up to which every change of an Allocation is in it."""
    rows: msgspec.Raw
    details: msgspec.Raw


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The filter of a list of allocations; an empty field excludes none."""

    namespace: str = ""
    user: str = ""
    states: frozenset[str] = frozenset()
    vcluster: str = ""
    after: float | None = None
    """What ended before is left out."""

    def keeps(self, allocation: Allocation) -> bool:
        """Tells whether the list shows an allocation of its namespace."""
        spec = allocation.spec
        if self.user and spec.user != self.user:
            return False
        if self.vcluster and spec.vcluster != self.vcluster:
            return False
        if self.states and phase_of(allocation) not in self.states:
            return False
        if self.after is None or not is_final(allocation):
            return True
        ended = since(allocation)
        return not ended or parse_time(ended) >= self.after


def phase_of(allocation: Allocation) -> str:
    """Returns its phase; Pending before the scheduler has seen it."""
    return allocation.status.phase or PENDING


def is_final(allocation: Allocation) -> bool:
    """Tells whether it has ended for good."""
    return phase_of(allocation) in FINAL_PHASES


def since(allocation: Allocation) -> str | None:
    """Returns since when it is in the state that it shows."""
    status = allocation.status
    if is_final(allocation):
        finished = condition(status.conditions, FINISHED)
        return status.end_time or (finished.last_transition_time if finished else None)
    if phase_of(allocation) == PENDING:
        scheduled = condition(status.conditions, SCHEDULED)
        waiting = scheduled is not None and scheduled.status == "False"
        return scheduled.last_transition_time if waiting and scheduled is not None else submitted(allocation)
    return status.start_time or submitted(allocation)


def submitted(allocation: Allocation) -> str:
    """Returns when it was submitted."""
    return allocation.status.submit_time or allocation.metadata.creation_timestamp


def blocker(allocation: Allocation) -> Condition | None:
    """Returns the condition that says why it is not running, or how it ended."""
    conditions = allocation.status.conditions
    if is_final(allocation):
        return condition(conditions, FINISHED) or condition(conditions, READY)
    scheduled = condition(conditions, SCHEDULED)
    if scheduled is not None and scheduled.status != "True":
        return scheduled
    return condition(conditions, READY)


def leaving(allocation: Allocation) -> str:
    """Returns `Ending`, or the wish that it end which no status shows yet; empty for work that goes on or has ended."""
    if is_final(allocation):
        return ""
    why = condition(allocation.status.conditions, READY)
    if why is not None and why.reason in (ENDING, UNKILLABLE):
        return why.reason
    if allocation.metadata.deletion_timestamp:
        return "DeleteRequested"
    return "CancelRequested" if allocation.spec.cancel is not None else ""


def place_or_reason(allocation: Allocation) -> str:
    """Returns the nodes of work that runs or has completed, else the reason in brackets."""
    phase, status = phase_of(allocation), allocation.status
    if phase in (RUNNING, COMPLETED) and status.nodes:
        return status.nodes
    why = blocker(allocation)
    if why is None:
        return "(NotYetEvaluated)" if phase == PENDING else status.nodes
    code = f", exit {status.exit.code}" if phase not in (PENDING, CANCELLED) and status.exit is not None and status.exit.code else ""
    return f"({why.reason}{code})"


def expected_of(allocation: Allocation) -> ExpectedStart | None:
    """Returns the expected start of one that waits, where its reason does not contradict it."""
    found, why = allocation.status.expected_start, blocker(allocation)
    if found is None or phase_of(allocation) != PENDING or (why is not None and why.reason in NO_START):
        return None
    return found


def status_row(one: Allocation) -> StatusRow:
    """Returns the row of an allocation."""
    spec, status, lifecycle = one.spec, one.status, one.spec.lifecycle
    start = _time(status.start_time)
    runs = not is_final(one) and start is not None and not status.end_time
    expected = expected_of(one)
    return StatusRow(
        namespace=one.metadata.namespace,
        name=one.metadata.name,
        number=status.number or 0,
        user=spec.user,
        phase=phase_of(one),
        nodes=str(status.node_count or spec.resources.nodes),
        walltime=lifecycle.walltime,
        vcluster=spec.vcluster,
        submitted=_time(submitted(one)) or 0.0,
        since=_time(since(one)),
        start=start,
        end=_time(status.end_time),
        kill=_time(status.kill_time) if runs else None,
        over=start + parse_duration(lifecycle.walltime) if runs and start is not None and lifecycle.walltime else None,
        grace_seconds=parse_duration(lifecycle.grace_period) if runs else 0.0,
        leaving=leaving(one),
        place=place_or_reason(one),
        expected_p50=expected.p50 if expected is not None else None,
        expected_p90=expected.p90 if expected is not None else None,
        expected_reason=expected.reason if expected is not None else None,
    )


def status_detail(one: Allocation) -> StatusDetail:
    """Returns what the wide table shows of an allocation beside its row."""
    why = blocker(one)
    return StatusDetail(
        job=one.spec.tags.get("name", ""),
        tenant=one.spec.tenant,
        project=one.spec.project,
        attempt=one.status.attempt,
        preemption_class=one.spec.lifecycle.preemption_class,
        score=one.status.score.total if one.status.score is not None else "",
        message=why.message if why is not None else "",
    )


def _time(text: str | None) -> float | None:
    return parse_time(text) if text else None
