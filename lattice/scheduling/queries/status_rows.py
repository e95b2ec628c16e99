"""An Allocation as one row of `lattice status`, made by the scheduler of its cache or by the command line of the object. Pure.

A row says nothing that depends on the time of asking: ages, the time left until KILL and expected starts follow from its times when
it is printed.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lattice.lifecycle.conditions import condition
from lattice.models.conditions import CANCELLED, COMPLETED, ENDING, FINAL_PHASES, FINISHED, PENDING, READY, RUNNING, SCHEDULED, UNKILLABLE
from lattice.scheduling.queries.row_shapes import StatusDetail, StatusRow
from lattice.units import parse_duration, parse_time
from lattice.views.allocation import Allocation, Condition, ExpectedStart

NO_START: Final = frozenset({"VClusterClosed", "Held", "NeverFits"})
"""Reasons with which an expected start forecast before would be wrong."""


class StatusRows(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The document that answers `status`: rows in no order, and for the wide table as many `details` in the same order."""

    schema: str
    user: str
    """The name of the reader, as the API server knows him."""
    version: str
    """The resourceVersion up to which every change of an Allocation is contained."""
    rows: msgspec.Raw
    details: msgspec.Raw


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """The filter of a list of allocations; an empty field excludes nothing."""

    namespace: str = ""
    user: str = ""
    states: frozenset[str] = frozenset()
    vcluster: str = ""
    after: float | None = None
    """What ended before is left out."""
    numbers: tuple[int, int] | None = None
    """The first and the last number, ..."""
    called: str = ""
    """... and a name that an allocation may have which is written as they are."""

    def keeps(self, allocation: Allocation) -> bool:
        """Tells whether an allocation passes every filter but the namespace, which is not looked at.

        One that has not ended, or shows no end, passes the filter by end; the one of the name asked for passes that by number.
        """
        spec = allocation.spec
        if self.numbers is not None and allocation.metadata.name != self.called:
            first, last = self.numbers
            if not first <= (allocation.status.number or 0) <= last:
                return False
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
    """Returns an allocation's phase; Pending where its status has none yet."""
    return allocation.status.phase or PENDING


def is_final(allocation: Allocation) -> bool:
    """Tells whether an allocation has ended for good."""
    return phase_of(allocation) in FINAL_PHASES


def since(allocation: Allocation) -> str | None:
    """Returns since when an allocation is in the state that the table shows (RFC 3339); None: an end without a known time.

    After its end that is its end, while it is pending the time since when it is not scheduled, else its start; its submission where one of
    the last two is unknown.
    """
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
    """Returns when an allocation was submitted (RFC 3339)."""
    return allocation.status.submit_time or allocation.metadata.creation_timestamp


def blocker(allocation: Allocation) -> Condition | None:
    """Returns the condition that says why an allocation does not run, or how it ended: Finished once it has ended, Scheduled while that is
    not True, else Ready (also in place of a missing Finished); None: there is no such condition.
    """
    conditions = allocation.status.conditions
    if is_final(allocation):
        return condition(conditions, FINISHED) or condition(conditions, READY)
    scheduled = condition(conditions, SCHEDULED)
    if scheduled is not None and scheduled.status != "True":
        return scheduled
    return condition(conditions, READY)


def leaving(allocation: Allocation) -> str:
    """Returns why an allocation is ending, or the unfulfilled wish that it end; empty for work that goes on or has ended."""
    if is_final(allocation):
        return ""
    why = condition(allocation.status.conditions, READY)
    if why is not None and why.reason in (ENDING, UNKILLABLE):
        return why.reason
    if allocation.metadata.deletion_timestamp:
        return "DeleteRequested"
    return "CancelRequested" if allocation.spec.cancel is not None else ""


def place_or_reason(allocation: Allocation) -> str:
    """Returns the nodes of running or completed work, else the reason in brackets, with an exit code that is not 0; without a reason
    `(NotYetEvaluated)` while it is pending.

    Other work without a reason gives its nodes, which may be an empty text.
    """
    phase, status = phase_of(allocation), allocation.status
    if phase in (RUNNING, COMPLETED) and status.nodes:
        return status.nodes
    why = blocker(allocation)
    if why is None:
        return "(NotYetEvaluated)" if phase == PENDING else status.nodes
    code = f", exit {status.exit.code}" if phase not in (PENDING, CANCELLED) and status.exit is not None and status.exit.code else ""
    return f"({why.reason}{code})"


def expected_of(allocation: Allocation) -> ExpectedStart | None:
    """Returns the expected start of a pending allocation; None: there is none, or its reason contradicts one."""
    found, why = allocation.status.expected_start, blocker(allocation)
    if found is None or phase_of(allocation) != PENDING or (why is not None and why.reason in NO_START):
        return None
    return found


def status_row(one: Allocation) -> StatusRow:
    """Returns the row of an Allocation in the table of `lattice status`; raises Rejected where one of its times does not parse."""
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
    """Returns the fields of an Allocation that only the wide table and Slurm's programs show."""
    why = blocker(one)
    return StatusDetail(
        job=one.spec.tags.get("name", ""),
        tenant=one.spec.tenant,
        project=one.spec.project,
        attempt=one.status.attempt,
        preemption_class=one.spec.lifecycle.preemption_class,
        score=one.status.score.total if one.status.score is not None else "",
        message=why.message if why is not None else "",
        nodelist=one.status.nodes,
        reason=why.reason if why is not None and (is_final(one) or phase_of(one) == PENDING) else "",
        code=(one.status.exit.code or 0) if one.status.exit is not None else 0,
        signal=one.status.exit.signal if one.status.exit is not None else 0,
    )


def _time(text: str | None) -> float | None:
    """Returns an RFC 3339 text as seconds since the epoch; None for None or an empty text. Raises Rejected where it does not parse."""
    return parse_time(text) if text else None
