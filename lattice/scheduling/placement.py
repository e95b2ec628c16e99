"""First fit by group: the smallest group that holds it all, else the largest groups first, the last one best fit."""

from __future__ import annotations

from lattice.scheduling.machine import Machine, Need, lowest, node_mask


def place(machine: Machine, need: Need, minimum: int, maximum: int) -> tuple[int, ...] | None:
    """The nodes (indices, ascending) for at least `minimum` and at most `maximum`, or None if too few are free.

    Deterministic: equal machines give equal places; ties go to the group first in name.
    """
    groups: dict[str, int] = {}
    for bucket in machine.admitted(need):
        free = node_mask(need, bucket.free)
        if free:
            groups[bucket.hardware.group] = groups.get(bucket.hardware.group, 0) | free
    sizes = {name: mask.bit_count() for name, mask in groups.items()}
    available = sum(sizes.values())
    if available < minimum:
        return None
    wanted = min(available, maximum)
    chosen: list[int] = []
    while wanted:
        name = _next_group(sizes, wanted)
        part = lowest(groups[name], min(wanted, sizes[name]))
        chosen.extend(part)
        wanted -= len(part)
        del sizes[name]
    return tuple(sorted(chosen))


def _next_group(sizes: dict[str, int], wanted: int) -> str:
    holding = [(size, name) for name, size in sizes.items() if size >= wanted]
    if holding:
        return min(holding)[1]
    return min((-size, name) for name, size in sizes.items())[1]
