"""Says which CPUs each task of a launch is bound to, as Slurm's tasks do for `--cpu-bind=verbose`, and which nodes have too few."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lattice.launches.binding import NodeCpus
from lattice.launches.layout import LaunchLayout

MOST_LINES: Final = 4096
"""Tasks of a launch of which it is said."""
_UNITS: Final = {"threads": "_threads", "cores": "_cores", "sockets": "_sockets", "ldoms": "_ldoms"}
_BINDINGS: Final = {"none": "NONE", "map_cpu": "MAP ", "rank": "RANK", "map_ldom": "LDMAP", "mask_ldom": "LDMASK", "rank_ldom": "LDRANK"}


def bound_cpus(kind: str, layout: LaunchLayout, nodes: list[NodeCpus]) -> Iterator[str]:
    """Yields a line for each task: node, rank, number on the node, mask; `kind`: of `--cpu-bind`, `nodes`: those of the allocation."""
    shown = 0
    for part in layout.nodes:
        for local, rank in enumerate(part.ranks):
            if shown == MOST_LINES:
                return
            shown += 1
            own = part.cpus[local] if part.cpus else ()
            mask = sum(1 << cpu for cpu in set(own or nodes[part.index].cpus))
            bound = _BINDINGS.get(kind, "MASK") if own else "NONE"
            end = " set" if own else ""
            yield f"cpu-bind{_UNITS.get(kind, '') if own else ''}={bound} - {part.name}, task {rank:2} {local:2}: mask 0x{mask:x}{end}"


def tell_unbound(layout: LaunchLayout, nodes: list[NodeCpus]) -> str:
    """Returns a sentence on the node with the most tasks above its cores, whose tasks share these unbound; empty: no node has more.

    `nodes`: those of the allocation.
    """
    over = [part for part in layout.nodes if len(part.ranks) > len(nodes[part.index].cores) and not any(part.cpus)]
    if not over:
        return ""
    most = max(over, key=lambda part: len(part.ranks) - len(nodes[part.index].cores))
    cores = len(nodes[most.index].cores)
    return f"{len(most.ranks)} tasks share the {cores} {'core' if cores == 1 else 'cores'} of {most.name}: they are not bound"
