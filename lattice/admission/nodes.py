"""Fills in and checks what operators want of a LatticeNode (drain, disable): author and time are filled in, a reason is required."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from lattice.admission.facts import Facts
from lattice.admission.submission import part
from lattice.admission.verdicts import Finding, Object, Refused
from lattice.units import format_time

WISHES = ("drain", "disable")


def fill(obj: Object, old: Object, facts: Facts) -> Object:
    """Returns a copy of a LatticeNode in which each wish (drain, disable) has an author and a time.

    Given ones stay; absent ones are those of the same wish in `old`, else the requester and the time now (none where that is unknown).
    """
    filled = copy.deepcopy(obj)
    for wish in WISHES:
        now, before = part(filled, "spec", wish), part(old, "spec", wish)
        if not isinstance(part(filled, "spec").get(wish), dict):
            continue
        if not now.get("by"):
            now["by"] = before.get("by") or facts.requester.user
        if not now.get("since") and (before.get("since") or facts.now is not None):
            now["since"] = before.get("since") or format_time(facts.now or 0.0)
    return filled


def judge(obj: Object, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal for each wish of a LatticeNode (drain, disable) that has no reason."""
    del facts
    for wish in WISHES:
        if not isinstance(part(obj, "spec").get(wish), dict):
            continue
        if not str(part(obj, "spec", wish).get("reason") or "").strip():
            field = f"spec.{wish}.reason"
            yield Refused("ReasonRequired", f"spec.{wish} has no reason", field, "say why, for those who read it later")
