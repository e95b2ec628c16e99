"""Derives phase, Ready, Reconciling and Stalled from an allocation's other conditions.

Scheduler and reporter, whichever writes a condition, write these too in the same patch, with `settle`: so the derived fields always
agree with the conditions. Ends are final only together with Ready or Stalled:

| Finished | settled as |
|---|---|
| True, Completed | Completed, Ready; but as "requeue possible" where its owner had this attempt requeued |
| True, Cancelled, DeadlineMissed, DependencyFailed or DependencyNotNeeded | Cancelled, Stalled |
| True, Stopped, by a stop order | phase kept, Reconciling `StopPending`: the scheduler decides the next step |
| True, another reason, requeue possible | phase kept, Reconciling `RequeuePending`: the scheduler decides the next step |
| True, another reason | Failed, Stalled |
| False, Unkillable | Running: KILL has not ended every process of it |
"""

from __future__ import annotations

from dataclasses import dataclass

from lattice.lifecycle.conditions import FALSE, TRUE, condition, is_true, with_condition, without_conditions
from lattice.models import conditions as kinds
from lattice.views.allocation import AllocationStatus, Condition, Lifecycle

NODE_SIDE = frozenset({"NodeLost", "Lost", "NodeUnfit"})
"""Reasons of ends that the node caused, not the work; the policy `OnNodeFailure` requeues them."""
CANCELLED_ENDS = frozenset({"Cancelled", "DeadlineMissed", "DependencyFailed", "DependencyNotNeeded"})
_NEVER_AGAIN = CANCELLED_ENDS | kinds.SOFTWARE_REFUSED | {"Completed", "WalltimeExceeded"}


@dataclass(frozen=True)
class Settled:
    """The result of `settle`: all conditions, the derived ones included, and the phase that people read."""

    phase: str
    conditions: tuple[Condition, ...]


def settle(
    conditions: tuple[Condition, ...],
    *,
    lifecycle_type: str,
    may_requeue: bool,
    generation: int,
    now: str,
    phase_before: str = "",
    decided: bool = False,
) -> Settled:
    """Returns all conditions with Ready, Reconciling and Stalled derived anew from the others, and the phase derived so. A derived
    condition keeps its transition time while its status stays.

    `may_requeue`: policy and attempts left allow another attempt after this end (see `may_requeue`). `decided`: the scheduler writes, and
    has decided that no attempt follows: an end is final now. `phase_before` stays while an end waits for that decision. `now`: RFC 3339.
    """
    base = without_conditions(conditions, kinds.DERIVED)
    before = {entry.type: entry for entry in conditions}
    finished = condition(base, kinds.FINISHED)
    if finished is not None and finished.status == TRUE:
        phase, derived = _ended(finished, lifecycle_type, may_requeue and not decided, decided, phase_before)
    else:
        phase, derived = _going_on(base, lifecycle_type)
    result = base
    for kind, status, reason, message in derived:
        kept = before.get(kind)
        seed = (*result, kept) if kept is not None else result
        result = with_condition(seed, kind, status, reason, message, generation=generation, now=now)
    return Settled(phase, result)


Derived = list[tuple[str, str, str, str]]


def _ended(finished: Condition, lifecycle_type: str, may_requeue: bool, decided: bool, phase_before: str) -> tuple[str, Derived]:
    """Returns phase and derived conditions of an allocation whose attempt has ended.

    A stop that is not decided yet, and an end that may be followed by another attempt, keep the phase before, or Running.
    """
    phase = phase_before or kinds.RUNNING
    reason, message = finished.reason, finished.message
    if reason == "Stopped" and not decided:
        return phase, [(kinds.READY, FALSE, "StopPending", message), (kinds.RECONCILING, TRUE, "StopPending", message)]
    if may_requeue:
        return phase, [(kinds.READY, FALSE, "RequeuePending", message), (kinds.RECONCILING, TRUE, "RequeuePending", message)]
    if reason == "Completed":
        return kinds.COMPLETED, [(kinds.READY, TRUE, reason, message)]
    if reason in CANCELLED_ENDS:
        return kinds.CANCELLED, [(kinds.READY, FALSE, reason, message), (kinds.STALLED, TRUE, reason, message)]
    return kinds.FAILED, [(kinds.READY, FALSE, reason, message), (kinds.STALLED, TRUE, reason, message)]


def _going_on(base: tuple[Condition, ...], lifecycle_type: str) -> tuple[str, Derived]:
    """Returns phase and derived conditions of an allocation that has not ended: Running, Staging or Pending, by the conditions."""
    finished, ending = condition(base, kinds.FINISHED), condition(base, kinds.ENDING)
    if finished is not None and finished.reason == kinds.UNKILLABLE:
        return kinds.RUNNING, [(kinds.READY, FALSE, finished.reason, finished.message)]
    if is_true(base, kinds.STARTED) and ending is not None and ending.status == TRUE:
        return kinds.RUNNING, [(kinds.READY, FALSE, "Ending", ending.message)]
    if is_true(base, kinds.STARTED):
        started = condition(base, kinds.STARTED)
        ready = FALSE if lifecycle_type == "Bounded" else TRUE
        return kinds.RUNNING, [(kinds.READY, ready, "Running", started.message if started else "")]
    scheduled = condition(base, kinds.SCHEDULED)
    if scheduled is not None and scheduled.status == TRUE:
        staged = condition(base, kinds.STAGED)
        if staged is not None and staged.status == FALSE:
            return kinds.STAGING, [(kinds.READY, FALSE, staged.reason, staged.message)]
        return kinds.STAGING, [(kinds.READY, FALSE, "Staging", scheduled.message)]
    if scheduled is not None:
        return kinds.PENDING, [(kinds.READY, FALSE, scheduled.reason, scheduled.message)]
    return kinds.PENDING, [(kinds.READY, FALSE, "NotYetEvaluated", "no scheduling cycle has looked at it yet")]


def may_requeue(lifecycle: Lifecycle, reason: str, requeues: int, *, cancelled: bool, asked: bool = False, sensitive: bool = False) -> bool:
    """Tells whether policy and attempts left allow another attempt after an end with this reason; a `cancelled` allocation gets none, nor
    one that completed, ran out of walltime, or whose software was refused.

    `requeues`: how many of `requeue.max` are used. After a failed prologue neither they nor the policy count. Whether the new attempt uses
    one is decided apart: one lost before its first process does not. `asked`: its owner wants this attempt requeued, whatever its end
    (`requeue_asked`). `sensitive`: no policy requeues it.
    """
    policy = lifecycle.requeue
    if asked:
        return not cancelled and reason not in CANCELLED_ENDS
    if reason == kinds.PROLOGUE_FAILED:  # nothing has started: work.prologueRetries counts, not the policy
        return not cancelled
    if cancelled or sensitive or policy.policy == "Never" or requeues >= policy.max or reason in _NEVER_AGAIN:
        return False
    return policy.policy == "Always" or reason in NODE_SIDE


def requeue_asked(requeue_attempt: int, attempt: int) -> bool:
    """Tells whether `spec.requeueAttempt` ends an attempt of this number (0: the first), and lets the next one follow."""
    return requeue_attempt >= max(1, attempt)


def is_final(status: AllocationStatus) -> bool:
    """Tells whether an allocation has ended for good: Finished is True together with Ready or Stalled."""
    return is_true(status.conditions, kinds.FINISHED) and (
        is_true(status.conditions, kinds.READY) or is_true(status.conditions, kinds.STALLED)
    )
