"""Reads and sets conditions as values, keeping the time of the last transition of each."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lattice.views.allocation import Condition

TRUE = "True"
FALSE = "False"
MESSAGE_LIMIT = 1024


def condition(conditions: Iterable[Condition], kind: str) -> Condition | None:
    """Returns the condition of this type (`kind`); None: it is not set."""
    return next((entry for entry in conditions if entry.type == kind), None)


def is_true(conditions: Iterable[Condition], kind: str) -> bool:
    """Tells whether the condition of this type is set and has the status True."""
    entry = condition(conditions, kind)
    return entry is not None and entry.status == TRUE


def with_condition(
    conditions: tuple[Condition, ...], kind: str, status: str, reason: str, message: str, *, generation: int, now: str
) -> tuple[Condition, ...]:
    """Returns the conditions with the one of type `kind` set, in its place or at the end; the message is cut to 1024 characters, `…` at its
    end.

    Its `lastTransitionTime` becomes `now` (RFC 3339) if its status changes or it had none, else it stays.
    """
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
    """Returns the conditions without those of these types."""
    dropped = frozenset(kinds)
    return tuple(entry for entry in conditions if entry.type not in dropped)


def encode(conditions: Iterable[Condition]) -> list[dict[str, object]]:
    """Returns the conditions as a patch has them: every field present, as the schema requires."""
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
    """Tells whether two tuples of conditions are equal apart from their transition times."""
    return [msgspec.structs.replace(entry, last_transition_time="") for entry in one] == [
        msgspec.structs.replace(entry, last_transition_time="") for entry in other
    ]
