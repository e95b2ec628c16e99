"""Conditions as values: read one, set one, keep the time of the last change."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lattice.views.allocation import Condition

TRUE = "True"
FALSE = "False"
MESSAGE_LIMIT = 1024


def condition(conditions: Iterable[Condition], kind: str) -> Condition | None:
    """The condition of this type, if it stands there."""
    return next((entry for entry in conditions if entry.type == kind), None)


def is_true(conditions: Iterable[Condition], kind: str) -> bool:
    """Whether the condition stands there and is True."""
    entry = condition(conditions, kind)
    return entry is not None and entry.status == TRUE


def with_condition(
    conditions: tuple[Condition, ...], kind: str, status: str, reason: str, message: str, *, generation: int, now: str
) -> tuple[Condition, ...]:
    """The conditions with this one set; `lastTransitionTime` changes only with the status. `now` is RFC 3339."""
    before = condition(conditions, kind)
    changed = before is None or before.status != status or not before.last_transition_time
    after = Condition(
        type=kind,
        status=status,
        reason=reason,
        message=message if len(message) <= MESSAGE_LIMIT else message[: MESSAGE_LIMIT - 1] + "…",
        last_transition_time=now if changed or before is None else before.last_transition_time,
        observed_generation=generation,
    )
    if before is None:
        return (*conditions, after)
    return tuple(after if entry.type == kind else entry for entry in conditions)


def without_conditions(conditions: tuple[Condition, ...], kinds: Iterable[str]) -> tuple[Condition, ...]:
    """The conditions less those of these types."""
    dropped = frozenset(kinds)
    return tuple(entry for entry in conditions if entry.type not in dropped)


def encode(conditions: Iterable[Condition]) -> list[dict[str, object]]:
    """The conditions as a patch has them: every field present, so that the schema's required ones are."""
    return [
        {
            "type": entry.type,
            "status": entry.status,
            "reason": entry.reason,
            "message": entry.message,
            "lastTransitionTime": entry.last_transition_time,
            "observedGeneration": entry.observed_generation,
        }
        for entry in conditions
    ]


def same_but_for_times(one: tuple[Condition, ...], other: tuple[Condition, ...]) -> bool:
    """Whether two sets of conditions say the same, times of transition apart."""
    return [msgspec.structs.replace(entry, last_transition_time="") for entry in one] == [
        msgspec.structs.replace(entry, last_transition_time="") for entry in other
    ]
