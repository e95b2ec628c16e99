"""Explains why too few nodes exist for a need: which of its demands rules out how many nodes, and what exists instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from lattice.lifecycle.hardware import OCI_IMAGES, PMIX
from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.model.hardware import Hardware, Need
from lattice.units import format_bytes

MOST_NAMED: Final = 8
"""Most GPU types or features that a sentence names."""

_SERVES: Final = {OCI_IMAGES: ", which runs environment.image", PMIX: ", which serves PMIx"}
"""By feature, what a node with it does, for features that work asks for without naming them."""

_Classes = list[tuple[Hardware, int]]


@dataclass(frozen=True, slots=True)
class _Demand:
    """One demand of a need, such as a GPU type: as words, as a need of its own (`alone`), and the need without it (`without`).

    `offer` says in words what the nodes have instead.
    """

    text: str
    alone: Need
    without: Need
    offer: Callable[[_Classes], str]


def never_fits(node_cache: NodeCache, need: Need, wanted: int) -> str:
    """Returns a sentence on why fewer than `wanted` nodes fit a need, and what exists; empty where no demand is the cause.

    Counts nodes in every state; hollow and real nodes are counted apart.
    """
    every = [(bucket.key.hardware, len(bucket.members)) for bucket in node_cache.buckets.values()]
    why = _why(node_cache, need, wanted, [(hardware, count) for hardware, count in every if hardware.hollow == need.hollow])
    hollow = 0 if need.hollow else _count(replace(need, hollow=True), every)
    return f"{why} ({_nodes(hollow)} that only wait would do: constraints.features: [hollow])" if why and hollow >= wanted else why


def _why(node_cache: NodeCache, need: Need, wanted: int, classes: _Classes) -> str:
    """Returns a sentence on why fewer than `wanted` nodes among these classes of hardware fit a need; empty where no demand is the cause.

    Demands that too few nodes meet alone come first, then node lists, then demands without which enough would fit.
    """
    demands = _demands(need)
    clauses = [
        f"{_have(count)} {demand.text}; {demand.offer(classes)}".removesuffix("; ")
        for demand in demands
        if (count := _count(demand.alone, classes)) < wanted
    ]
    if clauses:
        return ". ".join(clauses)
    if len(demands) < 2 or _count(need, classes) >= wanted:
        return _by_list(node_cache, need, wanted)
    helping = [(left, demand.text) for demand in demands if (left := _count(demand.without, classes)) >= wanted]
    if not helping:
        return f"no {_nodes(wanted)} have {' and '.join(demand.text for demand in demands)} together"
    return ", ".join(f"{_nodes(left)} would do without {text}" for left, text in helping)


def _by_list(node_cache: NodeCache, need: Need, wanted: int) -> str:
    """Says how many of the nodes whose hardware fits remain after node lists, or after the groups of the vcluster; empty: these are
    no cause.
    """
    parts: list[str] = []
    fitting = [facts for facts in node_cache.nodes.values() if need.admits(facts)]
    if need.groups is not None and (left := sum(facts.group in need.groups for facts in fitting)) < wanted:
        parts.append(f"{left} of the {len(fitting)} that fit are in the groups of its vcluster")
    if need.only is not None and (named := sum(need.only >> facts.index & 1 for facts in fitting)) < wanted:
        parts.append(f"{named} of the nodes in its nodeList exist and fit" if named else "no node of its nodeList exists and fits")
    if need.without and (taken := sum(need.without >> facts.index & 1 for facts in fitting)):
        parts.append(f"{taken} are in its excludeNodes")
    return ", ".join(parts)


def _demands(need: Need) -> list[_Demand]:
    """Returns the demands that a need makes of a node's hardware, each as words and as a need of its own; node lists and groups are none,
    nor is one GPU beside a GPU type or memory.
    """
    any_node = Need(hollow=need.hollow)
    found: list[_Demand] = []

    def demand(text: str, offer: Callable[[_Classes], str], alone: Need, without: Need) -> None:
        """Adds a demand to those found."""
        found.append(_Demand(text, alone, without, offer))

    if need.gpu_type:
        demand(f"GPU type {need.gpu_type}", _gpu_types, replace(any_node, gpu_type=need.gpu_type), replace(need, gpu_type=""))
    if need.gpus > 1 or (need.gpus and not need.gpu_type and not need.gpu_memory):
        most = _at_most("on one node", lambda hardware: hardware.gpus)
        demand(_gpus(need.gpus), most, replace(any_node, gpus=need.gpus), replace(need, gpus=0))
    if need.gpu_memory:
        each = _at_most("of one GPU", lambda hardware: hardware.gpu_memory, format_bytes)
        text = f"GPUs of {format_bytes(need.gpu_memory)}"
        demand(text, each, replace(any_node, gpu_memory=need.gpu_memory), replace(need, gpu_memory=0))
    if need.unified:
        demand("unified memory", lambda _: "", replace(any_node, unified=True), replace(need, unified=False))
    if need.memory:
        alone = replace(any_node, memory=need.memory, allow_cxl=need.allow_cxl)
        demand(f"{format_bytes(need.memory)} of memory", _memories(need), alone, replace(need, memory=0))
    if need.scratch:
        largest = _at_most("on one node", lambda hardware: hardware.scratch, format_bytes)
        alone = replace(any_node, scratch=need.scratch)
        demand(f"{format_bytes(need.scratch)} of scratch space", largest, alone, replace(need, scratch=0))
    if need.architectures:
        alone = replace(any_node, architectures=need.architectures)
        text = f"{_one_of(need.architectures)}, for which its image is made"
        demand(text, _architectures, alone, replace(need, architectures=frozenset()))
    if need.cpus:
        most = _at_most("on one node", lambda hardware: hardware.cpus)
        demand(f"{need.cpus} CPUs", most, replace(any_node, cpus=need.cpus), replace(need, cpus=0))
    for feature in sorted(need.features):
        alone = replace(any_node, features=frozenset({feature}))
        text = f"the feature {feature}{_SERVES.get(feature, '')}"
        demand(text, _features, alone, replace(need, features=need.features - {feature}))
    return found


def _count(need: Need, classes: _Classes) -> int:
    """Returns how many nodes of these classes of hardware a need admits."""
    return sum(count for hardware, count in classes if need.admits(hardware))


def _gpu_types(classes: _Classes) -> str:
    """Returns a clause on which GPU types exist, each with its number of nodes."""
    counts: dict[str, int] = {}
    for hardware, count in classes:
        if hardware.gpus:
            counts[hardware.gpu_type or "undeclared"] = counts.get(hardware.gpu_type or "undeclared", 0) + count
    if not counts:
        return "no node declares GPUs"
    return "there are " + _named(f"{name} ({_nodes(count)})" for name, count in sorted(counts.items()))


def _features(classes: _Classes) -> str:
    """Returns a clause on which features nodes have."""
    known = sorted({feature for hardware, _ in classes for feature in hardware.features})
    return "features that nodes have: " + _named(known) if known else "no node has any feature"


def _one_of(architectures: frozenset[str]) -> str:
    """Returns the words for one architecture, or for one of several."""
    return f"{'one of the architectures' if len(architectures) > 1 else 'the architecture'} {', '.join(sorted(architectures))}"


def _architectures(classes: _Classes) -> str:
    """Returns a clause on which architectures nodes have, each with its number of nodes."""
    counts: dict[str, int] = {}
    for hardware, count in classes:
        counts[hardware.architecture] = counts.get(hardware.architecture, 0) + count
    return "there are " + _named(f"{name} ({_nodes(count)})" for name, count in sorted(counts.items())) if counts else ""


def _memories(need: Need) -> Callable[[_Classes], str]:
    """Returns a function that says how much memory one node has at most, and how many nodes would do with CXL memory if the need refuses
    it.
    """

    def offer(classes: _Classes) -> str:
        """Returns the clause for these classes of hardware."""
        local = _at_most("on one node", lambda hardware: hardware.memory + (hardware.cxl_memory if need.allow_cxl else 0), format_bytes)
        with_cxl = 0 if need.allow_cxl else _count(Need(memory=need.memory, hollow=need.hollow, allow_cxl=True), classes)
        return local(classes) + (f", and with CXL memory (allowCxlMemory) {_nodes(with_cxl)} would do" if with_cxl else "")

    return offer


def _at_most(where: str, size: Callable[[Hardware], int], shown: Callable[[int], str] = str) -> Callable[[_Classes], str]:
    """Returns a function that says the largest size among nodes, such as "the most on one node is 8"; empty where the largest is 0."""

    def offer(classes: _Classes) -> str:
        """Returns the clause for these classes of hardware."""
        most = max((size(hardware) for hardware, _ in classes), default=0)
        return f"the most {where} is {shown(most)}" if most else ""

    return offer


def _named(words: Iterable[str]) -> str:
    """Joins words with commas: at most eight, then how many more there are."""
    every = list(words)
    return ", ".join(every[:MOST_NAMED]) + (f" and {len(every) - MOST_NAMED} more" if len(every) > MOST_NAMED else "")


def _have(count: int) -> str:
    """Returns the words for so many nodes and the verb: "no node has", "1 node has", "3 nodes have"."""
    return "no node has" if not count else f"{_nodes(count)} {'has' if count == 1 else 'have'}"


def _gpus(count: int) -> str:
    """Returns a count with the word GPU or GPUs."""
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _nodes(count: int) -> str:
    """Returns a count with the word node or nodes."""
    return "1 node" if count == 1 else f"{count} nodes"
