"""Deals the ranks of a launch to its nodes, as Slurm's `block`, `cyclic` and `plane` layouts do (`slurm_step_layout.c`)."""

from __future__ import annotations

from collections.abc import Sequence

from lattice.launches.option_values import Distribution


def deal(tasks: int, capacities: Sequence[int], distribution: Distribution) -> tuple[tuple[int, ...], ...]:
    """Returns the ranks of each node, ascending: each of 0 to `tasks` - 1 once.

    `capacities`: how many tasks each node has CPUs for; once all are full, all nodes take more in turn. There is at least one node.
    """
    if distribution.kind == "plane":
        return _planes(tasks, len(capacities), distribution.plane or 1)
    if distribution.kind == "cyclic":
        return tuple(map(tuple, _in_turn(tasks, capacities)))
    counts = _packed(tasks, capacities) if distribution.packed else [len(ranks) for ranks in _in_turn(tasks, capacities)]
    return _blocks(counts)


def _in_turn(tasks: int, capacities: Sequence[int]) -> list[list[int]]:
    """Returns the ranks of each node where ranks are dealt one by one; full nodes are left out until all are full."""
    dealt: list[list[int]] = [[] for _ in capacities]
    rank = turn = 0
    over = False
    while rank < tasks:
        for ranks, room in zip(dealt, capacities, strict=True):
            if rank < tasks and (over or turn < room):
                ranks.append(rank)
                rank += 1
        turn += 1
        over = over or all(turn >= room for room in capacities)
    return dealt


def _packed(tasks: int, capacities: Sequence[int]) -> list[int]:
    """Returns the number of tasks of each node: one each, then each node is filled before the next, then all take more in turn."""
    counts = [0] * len(capacities)
    rest = tasks
    for most in (1, tasks):
        for node, room in enumerate(capacities):
            more = min(rest, max(0, min(room, most) - counts[node]))
            counts[node] += more
            rest -= more
    each, odd = divmod(rest, len(capacities))
    return [count + each + (node < odd) for node, count in enumerate(counts)]


def _blocks(counts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Returns ranks in a row for each node, as many as its count."""
    first, blocks = 0, []
    for count in counts:
        blocks.append(tuple(range(first, first + count)))
        first += count
    return tuple(blocks)


def _planes(tasks: int, nodes: int, size: int) -> tuple[tuple[int, ...], ...]:
    """Returns the ranks of each node where blocks of this size are dealt to the nodes in turn."""
    dealt: list[list[int]] = [[] for _ in range(nodes)]
    for number, first in enumerate(range(0, tasks, size)):
        dealt[number % nodes].extend(range(first, min(first + size, tasks)))
    return tuple(map(tuple, dealt))
