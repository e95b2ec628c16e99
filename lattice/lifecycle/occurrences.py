"""Decides which changes of an Allocation deserve a Kubernetes Event: few, and each once; pure.

Work that is placed, runs and succeeds gets one, for its placement: its status says the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

from lattice.lifecycle.conditions import condition, is_true
from lattice.lifecycle.settle import is_final
from lattice.models import conditions as kinds
from lattice.models.reasons import never_starts
from lattice.views.allocation import Allocation, Condition


@dataclass(frozen=True)
class Occurrence:
    """One Event to be written about an Allocation; `reason`: a word of the closed lists, or the name of a condition."""

    reason: str
    note: str
    action: str
    warning: bool = False


def occurrence(old: Allocation | None, new: Allocation) -> Occurrence | None:
    """Returns the one Event that the change from `old` to `new` deserves; None: it deserves none, as a successful end. Of several, an end
    comes before a requeue, an ending, a placement, and a refusal.

    `old` None: the object is seen for the first time, which deserves one only while it has no conditions.
    """
    before, after = (old or new).status, new.status
    if old is None and after.conditions:
        return None
    if is_final(after) and not is_final(before):
        return _end(new) if after.phase != kinds.COMPLETED else None
    if after.attempt > before.attempt and len(after.attempts) and after.attempts != before.attempts:
        last = after.attempts[-1]
        note = f"attempt {last.attempt} ended with {last.reason} on {last.nodes or 'no node'}: attempt {after.attempt} follows"
        return Occurrence("Requeued", note, "Requeue", warning=True)
    for kind, action in ((kinds.ENDING, "End"), (kinds.SCHEDULED, "Place")):
        if is_true(after.conditions, kind) and not is_true(before.conditions, kind):
            told = condition(after.conditions, kind)
            return Occurrence(kind, told.message if told is not None else "", action)
    return _hopeless(before.conditions, after.conditions)


def _end(new: Allocation) -> Occurrence:
    """Returns the Event that an allocation has ended, a warning where it failed."""
    finished = condition(new.status.conditions, kinds.FINISHED)
    reason, message = (finished.reason, finished.message) if finished is not None else ("Finished", "")
    code = f" (exit {new.status.exit.code})" if new.status.exit is not None else ""
    return Occurrence(reason, f"{message}{code}", "Finish", warning=new.status.phase == kinds.FAILED)


def _hopeless(before: tuple[Condition, ...], after: tuple[Condition, ...]) -> Occurrence | None:
    """Returns the Event for work that the scheduler now refuses because no waiting helps; None for all other work."""
    told, shown = condition(after, kinds.SCHEDULED), condition(before, kinds.SCHEDULED)
    if told is None or told.status == "True" or not never_starts(told.reason, told.message):
        return None
    if shown is not None and shown.reason == told.reason and never_starts(shown.reason, shown.message):
        return None
    return Occurrence(told.reason, told.message, "Refuse", warning=True)
