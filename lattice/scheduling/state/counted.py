"""The capacity of each quota tree: the nodes that count for it and the sums of their resources, kept from one call to the next.

A node counts while it is Ready, Degraded or Draining, and as long as it holds work; a node that is Down counts for ten minutes more
(decision "quota tree, capacity").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from lattice.quota.groups import Resources
from lattice.scheduling.cluster.node_cache import UNHEARD, NodeCache
from lattice.scheduling.model.hardware import NodeFacts
from lattice.scheduling.state.node_amounts import amounts_of

DOWN: Final = "Down"
COUNTED: Final = frozenset({"Ready", "Degraded", "Draining", UNHEARD, "Unclean"})
"""States, as placement shows them, of nodes whose capacity a tree divides."""
DOWN_SECONDS: Final = 600.0


class News(NamedTuple):
    """The changes since the last call that `CountedNodes.look` found."""

    capacity: bool
    """Whether the sum of a tree has changed."""
    hardware: frozenset[int]
    """Indices of nodes that came, went, or have other hardware."""
    due: float | None
    """When a node that is Down ceases to count, the earliest of them, seconds since the epoch; None: none does."""


class CountedNodes:
    """Keeps the sums of the resources of the counted nodes for each quota tree, in step with a node cache."""

    def __init__(self, node_cache: NodeCache) -> None:
        self.sums: dict[str, dict[str, int]] = {}
        """By tree: the resources of its counted nodes."""
        self._node_cache = node_cache
        self._news = -1
        self._trees: Mapping[str, str] = {}
        self._seen: dict[int, NodeFacts] = {}
        self._counted: dict[int, tuple[str, Resources]] = {}
        self._odd: set[int] = set()
        """Nodes whose state is not in `COUNTED`."""
        self._down: dict[int, float] = {}
        """By node that is Down: when it was first seen so, seconds since the epoch."""

    def look(self, trees: Mapping[str, str], now: float) -> News:
        """Updates the sums of resources to the node cache at `now` (seconds since the epoch); returns the changes since the last call.

        `trees`: the tree of each node by name (absent: the default tree); another mapping makes it look at all nodes again.
        """
        node_cache, moved = self._node_cache, trees is not self._trees
        changed: set[int] = set()
        touched: set[int] = set()
        if node_cache.news != self._news or moved:
            self._news, self._trees = node_cache.news, trees
            touched = {index for index, facts in node_cache.nodes.items() if moved or self._seen.get(index) is not facts}
            touched |= self._seen.keys() - node_cache.nodes.keys()
            changed = {index for index in touched if self._amounts(index) is not _of(node_cache.nodes.get(index))}
            for index in touched:
                self._see(index, now)
        capacity = False
        for index in touched | self._odd:
            capacity |= self._count(index, now)
        return News(capacity, frozenset(changed), min(self._due(now), default=None))

    def _see(self, index: int, now: float) -> None:
        """Notes the present facts of a node (index) that changed: its state, and since when it is Down; a node that is gone is dropped."""
        facts = self._node_cache.nodes.get(index)
        if facts is None:
            self._seen.pop(index, None)
            self._odd.discard(index)
            self._down.pop(index, None)
            return
        self._seen[index] = facts
        if facts.state in COUNTED:
            self._odd.discard(index)
        else:
            self._odd.add(index)
        if facts.state == DOWN:
            self._down.setdefault(index, now)
        else:
            self._down.pop(index, None)

    def _amounts(self, index: int) -> Resources | None:
        """Returns the resources of a node (index) as it was last seen; None: it was never seen, or is gone."""
        return _of(self._seen.get(index))

    def _count(self, index: int, now: float) -> bool:
        """Adds or removes a node in the sums, and tells whether a sum has changed.

        A node counts in a counted state, while it is held, and for DOWN_SECONDS after it was first seen Down.
        """
        facts = self._seen.get(index)
        counts = facts is not None and (
            facts.state in COUNTED or index in self._node_cache.taken or now - self._down.get(index, float("-inf")) < DOWN_SECONDS
        )
        after = (self._trees.get(facts.name, ""), amounts_of(facts)) if facts is not None and counts else None
        before = self._counted.get(index)
        if before == after:
            return False
        if before is not None:
            self._add(*before, -1)
            del self._counted[index]
        if after is not None:
            self._add(*after, 1)
            self._counted[index] = after
        return True

    def _add(self, tree: str, amounts: Resources, sign: int) -> None:
        """Adds the resources of one node to the sums of a tree (`sign` +1), or subtracts them (−1)."""
        into = self.sums.setdefault(tree, {})
        for resource, amount in amounts.items():
            left = into.get(resource, 0) + sign * amount
            if left:
                into[resource] = left
            else:
                into.pop(resource, None)

    def _due(self, now: float) -> list[float]:
        """Returns when each of the nodes that are Down ceases to count, after `now`; seconds since the epoch."""
        return [since + DOWN_SECONDS for since in self._down.values() if since + DOWN_SECONDS > now]


def _of(facts: NodeFacts | None) -> Resources | None:
    """Returns the resources of a node; None for no node."""
    return None if facts is None else amounts_of(facts)
