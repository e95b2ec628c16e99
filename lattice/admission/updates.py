"""Checks a change of an Allocation: which fields may change, when, and by whom."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lattice.admission.facts import EXTEND, MANAGE, Facts
from lattice.admission.limits import WALLTIME, check_class, walltime_limit
from lattice.admission.submission import Submission, is_placed, part
from lattice.admission.timing import check_window
from lattice.admission.verdicts import Caution, Finding, Refused, reading
from lattice.admission.work import check_job_name
from lattice.lifecycle.settle import is_final
from lattice.units import format_duration, parse_duration, parse_time

IMMUTABLE: Final = (
    "tenant", "user", "project", "vcluster", "intent", "environment", "entrypoint", "script", "scriptFrom", "scriptArguments", "tasks",
    "resources", "data", "quota", "reservation", "dependsOnMode", "onUnmet", "rerunOf",
)  # fmt: skip
"""Fields of spec that may never change; a test compares them with the model's."""
IMMUTABLE_IN_LIFECYCLE: Final = ("type", "preemptible", "gracePeriod", "signal")
"""Fields of spec.lifecycle that may never change."""
CHANGED_WHILE_PENDING: Final = ("requeue", "notBefore", "deadline")
"""Fields of spec.lifecycle that may change while no nodes are held, besides the class; a test compares them with the model's."""


def check_update(old: Submission, new: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields every refusal and warning for the change from `old` to `new`; none where the spec is unchanged.

    Any change of one that has ended is refused.
    """
    if old.raw == new.raw:
        return
    if is_final(old.status):
        number = f" {old.status.number}" if old.status.number else ""
        ended = f" since {old.status.end_time}" if old.status.end_time else ""
        yield Refused("Final", f'allocation{number} "{old.name}" has ended{ended}, and stays as it is', "spec", "submit the work again")
    yield from _immutable(old, new)
    if old.spec.cancel is not None and new.spec.cancel is None:
        yield Refused("CancelUnset", "spec.cancel cannot be taken back", "spec.cancel", "submit the work again")
    requeued = new.spec.requeue_attempt != old.spec.requeue_attempt
    if requeued:
        yield from _requeue(old, new)
    if new.raw.get("hold") and not old.raw.get("hold") and is_placed(old.status) and not requeued:
        yield Caution("spec.hold keeps pending work from starting: this allocation has its nodes already, and goes on")
    yield from _walltime(old, new, facts)
    yield from _class(old, new, facts)
    yield from _while_pending(old, new, facts)
    if old.spec.tags != new.spec.tags:
        yield from check_job_name(new, facts)


def lengthens(old: Submission, new: Submission) -> bool:
    """Tells whether a change asks for a longer walltime, which requires a right; a walltime that is absent or does not parse is endless, in
    `old` too.
    """
    return _seconds(new) > _seconds(old)


def _seconds(asked: Submission) -> float:
    """Returns the walltime in seconds; infinite where there is none, or where it does not parse (another check refuses that)."""
    text = asked.spec.lifecycle.walltime
    if text is None:
        return float("inf")
    seconds = reading(parse_duration, text, field=WALLTIME, reason="DurationInvalid")
    return float("inf") if isinstance(seconds, Refused) else seconds


def _immutable(old: Submission, new: Submission) -> Iterator[Finding]:
    """Yields a refusal for each field that is fixed after creation and differs."""
    hint = "cancel this allocation and submit a new one"
    for name in IMMUTABLE:
        if old.raw.get(name) != new.raw.get(name):
            yield Refused("Immutable", f"spec.{name} cannot be changed after creation", f"spec.{name}", hint)
    before, after = part(old.raw, "lifecycle"), part(new.raw, "lifecycle")
    for name in IMMUTABLE_IN_LIFECYCLE:
        if before.get(name) != after.get(name):
            yield Refused("Immutable", f"spec.lifecycle.{name} cannot be changed after creation", f"spec.lifecycle.{name}", hint)


def _while_pending(old: Submission, new: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal for each field that only pending work may change, and that differs while nodes are held, and the findings on new
    times.
    """
    before, after = part(old.raw, "lifecycle"), part(new.raw, "lifecycle")
    changed = [name for name in CHANGED_WHILE_PENDING if before.get(name) != after.get(name)]
    for name in changed if is_placed(old.status) else ():
        sentence = f"spec.lifecycle.{name} cannot change once nodes are held (current: {before.get(name)}, requested: {after.get(name)})"
        yield Refused("NotPending", sentence, f"spec.lifecycle.{name}", "cancel this allocation and submit a new one")
    if changed:
        yield from check_window(new, facts)


def _requeue(old: Submission, new: Submission) -> Iterator[Finding]:
    """Yields a refusal of an attempt to requeue that goes back, has no nodes, or has not begun."""
    asked, attempt, hint = new.spec.requeue_attempt, old.status.attempt, "`lattice requeue` names the present attempt"
    if asked < old.spec.requeue_attempt:
        sentence = f"spec.requeueAttempt cannot go back (current: {old.spec.requeue_attempt}, requested: {asked or 'none'})"
        yield Refused("RequeueInvalid", sentence, "spec.requeueAttempt", hint)
    elif asked > attempt:
        sentence = f"spec.requeueAttempt is {asked}, and attempt {asked} has not begun (current attempt: {attempt})"
        yield Refused("RequeueInvalid", sentence, "spec.requeueAttempt", hint)
    elif asked == attempt and not old.status.nodes:
        sentence = f"spec.requeueAttempt is {asked}, and attempt {asked} has no nodes yet: it waits already"
        yield Refused("RequeueInvalid", sentence, "spec.requeueAttempt", "set spec.hold to keep it from starting")


def _walltime(old: Submission, new: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields the findings on a change of walltime; none where its text stays.

    To lengthen it, or take it from work without an end, needs a right, and a longer one the limit; a caution says that work is ended at
    once where it has run for as long as the new one.
    """
    current, wanted = old.spec.lifecycle.walltime, new.spec.lifecycle.walltime
    if current == wanted:
        return
    if wanted is None:
        if new.spec.lifecycle.type == "Bounded":
            sentence = f"spec.lifecycle.walltime cannot be taken away from a Bounded allocation (current: {current})"
            yield Refused("WalltimeRequired", sentence, WALLTIME, "set another walltime")
        else:
            yield from _extension(new, facts, f"(current: {current}, requested: none)")
        return
    seconds = reading(parse_duration, wanted, field=WALLTIME, reason="DurationInvalid")
    if isinstance(seconds, Refused):
        yield seconds
        return
    if seconds <= 0:
        yield Refused("DurationInvalid", f"spec.lifecycle.walltime is {wanted}, and must be above 0", WALLTIME, "cancel it instead")
    if lengthens(old, new):
        yield from walltime_limit(new, facts, seconds, current or "none")
        yield from _extension(new, facts, f"(current: {current or 'none'}, requested: {wanted})")
    elif old.status.start_time and facts.now is not None and facts.now - parse_time(old.status.start_time) >= seconds:
        ran = format_duration(facts.now - parse_time(old.status.start_time))
        yield Caution(f"the allocation has run for {ran} and its new walltime is {wanted}: it is ended at once")


def _extension(asked: Submission, facts: Facts, numbers: str) -> Iterator[Finding]:
    """Yields a refusal of a longer walltime for a requester without the right to it, or a caution where the rights are not known.

    `numbers`: present and requested walltime in words.
    """
    tenant = asked.spec.tenant
    needed = f'a longer spec.lifecycle.walltime {numbers} needs the verb {EXTEND} or {MANAGE} on tenant "{tenant}"'
    if facts.rights is None:
        yield Caution(f"{needed}: the server decides")
    elif not facts.rights & {EXTEND, MANAGE}:
        hint = f'ask an admin of tenant "{tenant}"; the owner may shorten it'
        yield Refused("WalltimeExtension", f'{needed}, which "{facts.requester.user}" lacks', WALLTIME, hint)


def _class(old: Submission, new: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields the findings on a change of the preemption class: a refusal while nodes are held, else the limits of a class; none where it
    stays.
    """
    current, wanted = old.spec.lifecycle.preemption_class, new.spec.lifecycle.preemption_class
    if current == wanted:
        return
    if is_placed(old.status):
        sentence = f"preemption class cannot change once nodes are held (current: {current}, requested: {wanted})"
        yield Refused("NotPending", sentence, "spec.lifecycle.preemptionClass", "cancel this allocation and submit a new one")
    yield from check_class(new, facts)
