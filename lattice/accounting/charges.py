"""Computes the charge of each attempt: from the time at which it got its nodes to its end, both from the Allocation's status.

node-seconds = nodes × (end − commit), GPU-seconds = GPUs of these nodes × (end − commit); a node without GPUs counts none (book,
"Internal Budget Ledger"; decisions, "Staging": hours count from the commit). Times are whole seconds since the epoch.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

from lattice.errors import Rejected
from lattice.lifecycle.conditions import TRUE, condition, with_condition
from lattice.lifecycle.settle import is_final
from lattice.models.conditions import FINISHED, STALLED
from lattice.units import format_time, parse_quantity, parse_time
from lattice.views.allocation import Allocation, Attempt, Exit

COMPLETED, FAILED, CANCELLED, REQUEUED, RUNNING = "Completed", "Failed", "Cancelled", "Requeued", "Running"
STATES: Final = (COMPLETED, FAILED, CANCELLED, REQUEUED, RUNNING)
"""The states of a charged attempt; all but Running have ended, and after Requeued another attempt followed."""

FINAL: Final = frozenset({COMPLETED, FAILED, CANCELLED})
"""The states after which no attempt follows."""

REMOVED: Final = "Removed"
"""The reason of an attempt whose object was removed by force before it had ended."""
HEARD_LATE: Final = 2.0
"""Seconds after an end in which a heartbeat that was under way may still report running work."""

_moment = lru_cache(maxsize=65536)(parse_time)


class Charge(msgspec.Struct, frozen=True, gc=False):
    """The use of nodes by one attempt of an allocation, or by several attempts summed up (`first` below `attempt`); 0 as a time:
    none.

    Attempt 0 is an allocation that ended without ever having had nodes.
    """

    uid: str
    attempt: int
    first: int
    number: int
    tenant: str
    namespace: str
    name: str
    job: str
    """`tags.name`."""
    user: str
    project: str
    vcluster: str
    nodes: int
    gpus: int
    """The GPUs of all its nodes together."""
    submitted: int
    committed: int
    """When it got its nodes."""
    started: int
    """When its first process started."""
    ended: int
    """When it ended; 0: not yet."""
    state: str
    reason: str
    exit: int | None
    node_seconds: int
    gpu_seconds: int
    preemption_class: int
    cpu_milliseconds: int = 0
    """CPU time of all its processes; 0: unknown."""
    peak_memory: int = 0
    """Bytes that it held at a time at the most, on one node; 0: unknown."""
    oom_kills: int = 0

    @property
    def summed(self) -> bool:
        """Tells whether the charge sums up several attempts; it then has amounts, but neither nodes nor a commit time."""
        return not self.nodes and self.node_seconds > 0

    def at(self, now: float) -> Charge:
        """Returns the charge with the amounts used up to `now`, if the attempt has nodes and has not ended; else unchanged.

        It still has no end.
        """
        if self.ended or not self.committed:
            return self
        held = max(0, int(now) - self.committed)
        return msgspec.structs.replace(self, node_seconds=self.nodes * held, gpu_seconds=self.gpus * held)


def bounded(charge: Charge, *, heard: float, now: float) -> Charge:
    """Returns an ended charge with its end moved to `now` at the latest, and not before a node was last heard to run the attempt (2 s of
    tolerance), nor before its commit; its amounts follow.

    `heard`: seconds since the epoch, 0 where no node was. A charge that runs, has no commit, or is summed up is returned unchanged.
    """
    if not (charge.committed and charge.ended) or charge.summed:
        return charge
    ended = int(heard) if heard > charge.ended + HEARD_LATE else charge.ended
    ended = max(min(ended, int(now)), charge.committed)
    if ended == max(charge.ended, charge.committed):
        return charge
    held = ended - charge.committed
    return msgspec.structs.replace(charge, ended=ended, node_seconds=charge.nodes * held, gpu_seconds=charge.gpus * held)


def removed(allocation: Allocation, at: float) -> Allocation:
    """Returns the last known state of an Allocation that is gone as Cancelled, reason `Removed`, ended at `at` (seconds since the epoch)
    unless it has an end time; one that is over already is returned as it is.
    """
    status = allocation.status
    if is_final(status):
        return allocation
    now, message = format_time(at), "the object was removed by force"
    conditions = status.conditions
    for kind in (FINISHED, STALLED):
        conditions = with_condition(conditions, kind, TRUE, REMOVED, message, generation=allocation.metadata.generation, now=now)
    ended = msgspec.structs.replace(status, phase=CANCELLED, conditions=conditions, end_time=status.end_time or now)
    return msgspec.structs.replace(allocation, status=ended)


def charges_of(allocation: Allocation) -> list[Charge]:
    """Returns the charge of every attempt in the Allocation's status, oldest first; the last may still run.

    Without a tenant nobody is charged (the admission policy refuses such objects). Attempts that fell out of `attempts` are not
    among them (`fallen_out`).
    """
    if not allocation.spec.tenant:
        return []
    told = [_former(allocation, entry) for entry in allocation.status.attempts]
    present = _present(allocation)
    return told if present is None or any(charge.attempt == present.attempt for charge in told) else [*told, present]


def settled_only(charges: list[Charge]) -> list[Charge]:
    """Returns those of the charges whose attempts have ended for good, which never change again."""
    return [charge for charge in charges if charge.state != RUNNING]


def fallen_out(allocation: Allocation, upto: int, node_seconds: int, gpu_seconds: int) -> Charge | None:
    """Returns, as one Requeued charge, the attempts after `upto` that left the status before a record held them; None: there are none, or
    the Allocation has no tenant.

    `upto`: the last attempt that records hold. `node_seconds`, `gpu_seconds`: what records hold of this allocation up to there.
    """
    usage = allocation.status.usage
    if usage is None or usage.attempts <= upto or not allocation.spec.tenant:
        return None
    return _charge(
        allocation, usage.attempts, first=max(1, upto + 1), ended=_second(usage.end_time), state=REQUEUED, reason="Requeued",
        node_seconds=max(0, usage.node_seconds - node_seconds), gpu_seconds=max(0, usage.gpu_seconds - gpu_seconds),
    )  # fmt: skip


def _former(allocation: Allocation, entry: Attempt) -> Charge:
    """Returns the charge of an earlier attempt from its entry in the status, always as Requeued; its amounts are 0 where the entry lacks
    the end, or both the commit and the start.
    """
    committed, ended = _second(entry.scheduled_time or entry.start_time), _second(entry.end_time)
    held = max(0, ended - committed) if committed and ended else 0
    return _charge(
        allocation, entry.attempt, first=entry.attempt, nodes=entry.node_count, gpus=entry.gpus, committed=committed,
        started=_second(entry.start_time), ended=ended, state=REQUEUED, reason=entry.reason, ended_with=entry.exit,
        node_seconds=entry.node_count * held, gpu_seconds=entry.gpus * held,
    )  # fmt: skip


def _present(allocation: Allocation) -> Charge | None:
    """Returns the charge of the Allocation's present attempt; None: it has no nodes, and the Allocation has not ended."""
    status, final = allocation.status, is_final(allocation.status)
    committed = _second(status.scheduled_time or status.start_time)
    if not final and not (status.attempt and committed and status.node_count):
        return None
    finished = condition(status.conditions, FINISHED)
    ended = _second(status.end_time or (finished.last_transition_time if finished is not None and final else None))
    held = max(0, ended - committed) if committed and ended else 0
    return _charge(
        allocation, status.attempt, first=status.attempt, nodes=status.node_count if committed else 0,
        gpus=status.gpus if committed else 0, committed=committed, started=_second(status.start_time), ended=ended,
        state=_state(status.phase) if final else RUNNING, reason=finished.reason if finished is not None else "",
        ended_with=status.exit, node_seconds=status.node_count * held, gpu_seconds=status.gpus * held,
    )  # fmt: skip


def _charge(
    allocation: Allocation, attempt: int, *, first: int, ended: int, state: str, reason: str, nodes: int = 0, gpus: int = 0,
    committed: int = 0, started: int = 0, ended_with: Exit | None = None, node_seconds: int = 0, gpu_seconds: int = 0,
) -> Charge:  # fmt: skip
    """Returns the charge of an attempt with these figures, and all else from the allocation; seconds since the epoch, 0 for a time that is
    not known.
    """
    metadata, spec, status = allocation.metadata, allocation.spec, allocation.status
    return Charge(
        uid=metadata.uid, attempt=attempt, first=first, number=status.number or 0, tenant=spec.tenant, namespace=metadata.namespace,
        name=metadata.name, job=spec.tags.get("name", ""), user=spec.user, project=spec.project, vcluster=spec.vcluster, nodes=nodes,
        gpus=gpus, submitted=_second(status.submit_time or metadata.creation_timestamp), committed=committed, started=started,
        ended=ended, state=state, reason=reason, exit=_code(ended_with), node_seconds=node_seconds, gpu_seconds=gpu_seconds,
        preemption_class=spec.lifecycle.preemption_class, **_used(ended_with),
    )  # fmt: skip


def held_seconds(begin: str | None, end: str | None) -> int:
    """Returns the whole seconds between two times (RFC 3339), at least 0; 0 where one of them is absent."""
    return max(0, _second(end) - _second(begin)) if begin and end else 0


def _state(phase: str) -> str:
    """Returns the state of a charge after a final phase: Completed, Cancelled, or Failed for any other."""
    return phase if phase in (COMPLETED, CANCELLED) else FAILED


def _second(text: str | None) -> int:
    """Returns a time (RFC 3339) as whole seconds since the epoch; 0 where it is absent. Raises Rejected where it does not parse."""
    return int(_moment(text)) if text else 0


def _used(ended_with: Exit | None) -> dict[str, int]:
    """Returns the fields of a charge that the nodes have counted: CPU in milliseconds, memory in bytes, and kills; empty without an exit.

    A text that is no quantity counts as 0.
    """
    if ended_with is None:
        return {}
    return {
        "cpu_milliseconds": _quantity(ended_with.cpu_seconds, 1000), "peak_memory": _quantity(ended_with.peak_memory),
        "oom_kills": ended_with.oom_kills,
    }  # fmt: skip


def _quantity(value: int | str | None, parts: int = 1) -> int:
    """Returns a quantity times `parts`, without its fraction; 0 for None and for a text that is no quantity."""
    try:
        return int(parse_quantity(value) * parts) if value is not None else 0
    except Rejected:
        return 0


def _code(ended_with: Exit | None) -> int | None:
    """Returns the exit code; None without an exit."""
    return ended_with.code if ended_with is not None else None
