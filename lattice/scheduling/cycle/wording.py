"""The words for counts in the sentences of reasons: nodes, groups, allocations, minutes, kilowatts."""

from __future__ import annotations

from lattice.units import format_duration


def unequal(wanted: int, largest: int, of: str) -> str:
    """Returns a sentence that too few nodes have equal fingerprints: `wanted` are needed, `largest` are equal; `of`: words for all."""
    return f"needs {count_nodes(wanted)} of one fingerprint; the largest equal set has {largest} of {of}"


def minutes(seconds: float) -> str:
    """Returns a number of seconds as words, rounded down to whole minutes."""
    return format_duration(seconds // 60 * 60)


def kilowatts(watts: int) -> str:
    """Returns watts as kilowatts with their unit."""
    return f"{watts / 1000:.{3 if watts % 100 else 1}f} kW"


def are(count: int, of: str = "") -> str:
    """Returns a count with `of` and the verb that agrees, such as "2 of them are"."""
    return f"{count}{of} {'is' if count == 1 else 'are'}"


def was(count: int) -> str:
    """Returns the past verb that agrees with a count: was, were."""
    return "was" if count == 1 else "were"


def count_nodes(count: int) -> str:
    """Returns a count with the word node or nodes."""
    return "1 node" if count == 1 else f"{count} nodes"


def count_groups(count: int) -> str:
    """Returns a count with the word group or groups."""
    return "1 group" if count == 1 else f"{count} groups"


def count_jobs(count: int) -> str:
    """Returns a count with the word allocation or allocations."""
    return "1 allocation" if count == 1 else f"{count} allocations"
