"""Checks the times in an Allocation: grace period, notBefore, deadline."""

from __future__ import annotations

from collections.abc import Iterator

from lattice.admission.facts import Facts
from lattice.admission.submission import Submission
from lattice.admission.verdicts import Caution, Finding, Refused, reading
from lattice.lifecycle.grace import MOST_GRACE, MOST_GRACE_SECONDS
from lattice.units import parse_duration, parse_time

DEADLINE = "spec.lifecycle.deadline"
GRACE = "spec.lifecycle.gracePeriod"


def check_grace_period(asked: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal unless the grace period parses and is within the limit, since work may run for so long after its walltime."""
    del facts
    text = asked.spec.lifecycle.grace_period
    grace = reading(parse_duration, text, field=GRACE, reason="DurationInvalid")
    if isinstance(grace, Refused):
        yield grace
    elif grace > MOST_GRACE_SECONDS:
        sentence = f"spec.lifecycle.gracePeriod is {text}, and must be at most {MOST_GRACE}, since work may go on for it after its walltime"
        yield Refused("GraceAboveLimit", sentence, GRACE, f"set at most {MOST_GRACE}, and a longer walltime instead")


def check_window(asked: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal unless notBefore and deadline, where given, parse and are in this order of time, and a caution on a deadline that
    has passed, where the time is known.
    """
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
