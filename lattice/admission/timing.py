"""Checks of the times of an Allocation: grace period, notBefore, deadline."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.admission.facts import Facts
from lattice.admission.submission import Submission
from lattice.admission.verdicts import Caution, Finding, Refused, reading
from lattice.units import parse_duration, parse_time

DEADLINE = "spec.lifecycle.deadline"


def check_grace_period(asked: Submission, facts: Facts) -> Iterator[Finding]:
    """The grace period is a duration."""
    del facts
    grace = reading(parse_duration, asked.spec.lifecycle.grace_period, field="spec.lifecycle.gracePeriod", reason="DurationInvalid")
    if isinstance(grace, Refused):
        yield grace


def check_window(asked: Submission, facts: Facts) -> Iterator[Finding]:
    """notBefore and deadline are times, in this order; a deadline that has passed is warned of."""
    lifecycle = asked.spec.lifecycle
    times: dict[str, float] = {}
    for field, text in (("notBefore", lifecycle.not_before), ("deadline", lifecycle.deadline)):
        if text is None:
            continue
        time = reading(parse_time, text, field=f"spec.lifecycle.{field}", reason="TimeInvalid")
        if isinstance(time, Refused):
            yield time
            return
        times[field] = time
    deadline = times.get("deadline")
    if deadline is None:
        return
    if deadline <= times.get("notBefore", float("-inf")):
        sentence = f"spec.lifecycle.deadline {lifecycle.deadline} is not after notBefore {lifecycle.not_before}: it could never start"
        yield Refused("DeadlineBeforeStart", sentence, DEADLINE, "set a deadline after notBefore")
    if facts.now is not None and deadline <= facts.now:
        yield Caution(f"spec.lifecycle.deadline {lifecycle.deadline} has passed: the allocation is cancelled before it starts")
