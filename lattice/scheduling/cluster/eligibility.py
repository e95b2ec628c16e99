"""The nodes that admit a need: their indices, and how many of them exist, may work and are free."""

from __future__ import annotations

from dataclasses import dataclass

from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.model.hardware import Need


@dataclass(frozen=True, slots=True)
class Census:
    """Counts of the nodes that admit a need: all (`eligible`), those that may work (`usable`), those that also hold no work (`free`)."""

    eligible: int
    usable: int
    free: int


def admitted_nodes(node_cache: NodeCache, need: Need) -> list[int]:
    """Returns the indices of all nodes that admit a need, whatever their state, ascending."""
    if need.lists <= node_cache.masks:
        return sorted(index for bucket in node_cache.table.admitted(need) for index in bucket.members)
    return sorted(index for index, facts in node_cache.nodes.items() if need.admits_node(facts))


def census_of(node_cache: NodeCache, need: Need) -> Census:
    """Counts the nodes that admit a need: all, the usable ones, and the free ones among these."""
    if need.lists <= node_cache.masks:
        found = node_cache.table.admitted(need)
        return Census(sum(len(one.members) for one in found), sum(one.usable for one in found), sum(len(one.free) for one in found))
    facts = [node_cache.nodes[index] for index in admitted_nodes(node_cache, need)]
    usable = [one for one in facts if one.usable]
    return Census(len(facts), len(usable), sum(one.index not in node_cache.taken for one in usable))
