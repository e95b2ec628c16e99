"""Decides how many tasks a launch has, on which nodes of its allocation, and with which CPUs and GPUs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lattice.errors import Rejected
from lattice.launches.binding import NodeCpus, bind_cpus, bind_gpus, cores_of_task, usable_cores
from lattice.launches.options import LaunchOptions
from lattice.launches.placement import deal

MOST_TASKS: Final = 1_000_000
"""Tasks that a launch may have."""
MOST_ON_NODE: Final = 4096
"""Tasks that it may have on one node: each is a process whose start and end the node's agent tells one by one."""
_NONE: Final[Mapping[str, frozenset[int]]] = {}


@dataclass(frozen=True)
class NodeRanks:
    """The part of a launch on one node: its ranks, with the CPUs (empty: the attempt's) and GPUs (None: the attempt's) of each.

    `index`: the node's place among those of the allocation; `held`, `held_gpus`: what other launches may not have meanwhile.
    """

    name: str
    index: int
    ranks: tuple[int, ...]
    cpus: tuple[tuple[int, ...], ...]
    gpus: tuple[tuple[int, ...] | None, ...]
    held: frozenset[int]
    held_gpus: frozenset[int] = frozenset()


@dataclass(frozen=True)
class LaunchLayout:
    """A launch that can start now: its tasks in all, and its part of each node that it uses."""

    total: int
    nodes: tuple[NodeRanks, ...]
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class CpusInUse:
    """A launch whose CPUs or GPUs are in use: the sentence that says so."""

    message: str


@dataclass(frozen=True)
class _Candidate:
    """A node that a launch may use: its place in the allocation, the tasks it has CPUs for, and those it has free CPUs for."""

    index: int
    node: NodeCpus
    capacity: int
    free: int


def lay_out(
    options: LaunchOptions,
    nodes: Sequence[NodeCpus],
    *,
    busy: Mapping[str, frozenset[int]] = _NONE,
    busy_gpus: Mapping[str, frozenset[int]] = _NONE,
) -> LaunchLayout | CpusInUse:
    """Returns where the ranks of a launch run, `nodes` being the allocation's in order and `busy` what its other launches hold; CpusInUse
    where it fits only later.

    Raises Rejected, with option, number and limit, for a launch that the allocation can never run.
    """
    candidates = _candidates(options, nodes, busy)
    count, tasks = _counts(options, candidates, len(nodes))
    _check_share(-(-tasks // count), tasks)
    warnings = _warnings(options, count, tasks)
    chosen = _choose(options, candidates, count, tasks)
    dealt = deal(tasks, [_most_dealt(options, candidate, count, tasks) for candidate in chosen], options.distribution)
    _check_share(max(map(len, dealt)), tasks)
    _check_room(options, candidates, chosen, dealt, tasks)
    parts = []
    for place, (candidate, ranks) in enumerate(zip(chosen, dealt, strict=True)):
        name = candidate.node.name
        bound = bind_cpus(len(ranks), candidate.node, options, busy.get(name, frozenset()))
        if bound is None:
            return CpusInUse(_waits(options, candidate, len(ranks), busy))
        seen = bind_gpus(len(ranks), bound.cpus, candidate.node, options, (place, len(chosen)), busy_gpus.get(name, frozenset()))
        if seen is None:
            return CpusInUse(f"it waits for GPUs on {name}, which other launches use")
        parts.append(NodeRanks(name, candidate.index, ranks, bound.cpus, seen.gpus, bound.held, seen.held))
    return LaunchLayout(tasks, tuple(parts), warnings)


def _candidates(options: LaunchOptions, nodes: Sequence[NodeCpus], busy: Mapping[str, frozenset[int]]) -> list[_Candidate]:
    """Returns the nodes that a launch may use, in the allocation's order; raises Rejected where there are none, or others are named."""
    first = options.relative or 0
    if first >= len(nodes):
        raise _refused("relative", first, f"the allocation has {_nodes_word(len(nodes))}, counted from 0")
    known = {node.name for node in nodes}
    if foreign := [name for name in options.nodelist if name not in known]:
        has = ", ".join(node.name for node in nodes[:8])
        raise _refused("nodelist", foreign[0], f"the allocation has no such node; it has {has}{', …' if len(nodes) > 8 else ''}")
    if both := set(options.nodelist) & set(options.exclude):
        raise _refused("exclude", min(both), "--nodelist names it, too; give it in one of them")
    excluded = frozenset(options.exclude)
    found = [_candidate(options, index, node, busy) for index, node in enumerate(nodes) if index >= first and node.name not in excluded]
    if not found:
        raise _refused("exclude", ",".join(options.exclude), "no node of the allocation is left: exclude fewer")
    return found


def _candidate(options: LaunchOptions, index: int, node: NodeCpus, busy: Mapping[str, frozenset[int]]) -> _Candidate:
    """Returns a node with the tasks that it has CPUs for, and free CPUs for."""
    cores, each = usable_cores(node, options), cores_of_task(node, options)
    used = frozenset() if options.overlap else busy.get(node.name, frozenset())
    free = sum(not used & set(core) for core in cores)
    return _Candidate(index, node, len(cores) // each, free // each)


def _counts(options: LaunchOptions, candidates: Sequence[_Candidate], allocated: int) -> tuple[int, int]:
    """Returns the number of nodes and of tasks of a launch, as srun derives them; raises Rejected for more nodes than there are."""
    there = len(candidates)
    count, tasks = there, options.tasks
    if options.nodes_asked and options.nodes is not None:
        low, high = options.nodes
        if low > there:
            raise _refused("nodes", low, f"the allocation has {_nodes_word(allocated)}, of which this launch may use {there}")
        count = min(high, there)
    if tasks is None and options.gpus and options.gpus_per_task:
        tasks = max(1, options.gpus // options.gpus_per_task)
    if tasks is None:
        tasks = count * (options.tasks_per_node or 1)
    if tasks > MOST_TASKS:
        raise _refused("ntasks", tasks, f"a launch has {MOST_TASKS} tasks at most")
    return min(count, tasks), tasks


def _warnings(options: LaunchOptions, count: int, tasks: int) -> tuple[str, ...]:
    """Returns the sentences for what is asked for and cannot be kept: more nodes than tasks, fewer tasks a node than there are to be."""
    found = []
    if options.nodes_asked and options.nodes is not None and tasks < options.nodes[0]:
        found.append(f"warning: can't run {tasks} processes on {options.nodes[0]} nodes, setting nnodes to {tasks}")
    each = options.tasks_per_node
    if options.tasks_asked and each is not None and tasks > each * count:
        found.append(f"warning: --ntasks-per-node={each} is ignored: {tasks} tasks on {_nodes_word(count)} are more")
    return tuple(found)


def _choose(options: LaunchOptions, candidates: Sequence[_Candidate], count: int, tasks: int) -> list[_Candidate]:
    """Returns the nodes of a launch, in the allocation's order: those it names, and the first ones with free CPUs for an even share."""
    if count >= len(candidates):
        return list(candidates)
    named = [candidate for candidate in candidates if candidate.node.name in options.nodelist]
    if len(named) > count:
        raise _refused("nodelist", ",".join(options.nodelist), f"it names {len(named)} nodes, and the launch has {count}: name {count}")
    share = -(-tasks // count)
    others = [candidate for candidate in candidates if candidate not in named]
    others.sort(key=lambda candidate: (candidate.free < share, candidate.capacity < share))
    return sorted([*named, *others[: count - len(named)]], key=lambda candidate: candidate.index)


def _most_dealt(options: LaunchOptions, candidate: _Candidate, count: int, tasks: int) -> int:
    """Returns how many tasks a node is dealt while others have room: as many as it has CPUs for, and `--ntasks-per-node` allows."""
    each = options.tasks_per_node
    if each is None or tasks > each * count:
        return candidate.capacity
    return each if options.overcommit else min(each, candidate.capacity)


def _check_share(most: int, tasks: int) -> None:
    """Raises Rejected where more tasks would run on one node than may."""
    if most > MOST_ON_NODE:
        raise _refused(
            "ntasks", tasks, f"{most} tasks would run on one node, the limit is {MOST_ON_NODE}: ask for fewer, or for more nodes"
        )


def _check_room(
    options: LaunchOptions, candidates: Sequence[_Candidate], chosen: Sequence[_Candidate], dealt: Sequence[Sequence[int]], tasks: int
) -> None:
    """Raises Rejected where a node gets more tasks than it has CPUs for, unless they may share."""
    if options.overcommit:
        return
    for candidate, ranks in zip(chosen, dealt, strict=True):
        if len(ranks) > candidate.capacity:
            cpus = options.cpus_per_task or 1
            raise Rejected(
                f"{tasks} tasks of {_cpus_word(cpus)} do not fit on {_nodes_word(len(chosen))}: {candidate.node.name} has "
                f"{_cpus_word(len(candidate.node.cpus))}, {len(ranks)} tasks would run there. Ask for fewer, or share CPUs with -O",
                reason="TooFewCpus",
            )


def _waits(options: LaunchOptions, candidate: _Candidate, tasks: int, busy: Mapping[str, frozenset[int]]) -> str:
    """Returns the sentence for a launch that waits for CPUs of one node."""
    needed = tasks * cores_of_task(candidate.node, options)
    used = len(busy.get(candidate.node.name, ()))
    return (
        f"it waits for {needed} {'core' if needed == 1 else 'cores'} on {candidate.node.name}: other launches use {used} of its "
        f"{_cpus_word(len(candidate.node.cpus))} (--overlap shares them)"
    )


def _refused(option: str, value: object, why: str) -> Rejected:
    """Returns the refusal of an option's value."""
    return Rejected(f"--{option}={value}: {why}", reason="BadOption", fields=(option,))


def _nodes_word(count: int) -> str:
    """Returns a number of nodes in words."""
    return "1 node" if count == 1 else f"{count} nodes"


def _cpus_word(count: int) -> str:
    """Returns a number of CPUs in words."""
    return "1 CPU" if count == 1 else f"{count} CPUs"
