"""Checks what an Allocation requires of each node: sizes parse, node lists leave enough nodes, constraints do not contradict each other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lattice.admission.facts import Facts
from lattice.admission.limits import NODES
from lattice.admission.submission import Submission
from lattice.admission.verdicts import Caution, Finding, Refused, reading
from lattice.units import count_nodes, expand_nodes, parse_node_count, parse_quantity

CONSTRAINTS = "spec.resources.constraints"
GPUS = "spec.resources.gpus"
MOST_NAMED_NODES: Final = 4096
"""Most names in a node list, and in a list of excluded nodes."""
MOST_CHARACTERS: Final = 4096
"""Most characters of a node set, as in the schema; longer ones are not parsed."""
EXACT_NAMES: Final = 512
"""Most names that are expanded at submission, to tell exactly how many nodes a node list leaves."""


def check_resources(asked: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal unless the sizes in `spec.resources` and `spec.data` parse, and GPU memory and scratch space are above 0."""
    del facts
    resources = asked.spec.resources
    sizes = (
        ("spec.resources.memory", resources.memory), (f"{CONSTRAINTS}.gpuMemory", resources.constraints.gpu_memory),
        ("spec.data.scratchPerNode", asked.spec.data.scratch_per_node),
    )  # fmt: skip
    for field, text in sizes:
        if text is None:
            continue
        size = reading(parse_quantity, text, field=field, reason="QuantityInvalid")
        if isinstance(size, Refused):
            yield size
        elif size <= 0 and field != "spec.resources.memory":
            yield Refused("QuantityInvalid", f"{field} is {text}, and must be above 0", field, "write for example 90Gi, or leave it out")


def check_gpus(asked: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal where constraints on GPUs stand beside `gpus: 0`, or GPU memory without a number or a type of GPUs, and a caution on
    CXL memory without a memory size.
    """
    del facts
    resources, wanted = asked.spec.resources, asked.spec.resources.constraints
    hint = "set spec.resources.gpus to at least 1, or take the constraint away"
    for name, value in (
        ("gpuType", wanted.gpu_type),
        ("gpuMemory", wanted.gpu_memory),
        ("requireUnifiedMemory", wanted.require_unified_memory or None),
    ):
        if value is not None and resources.gpus == 0:
            shown = str(value).lower() if isinstance(value, bool) else value
            sentence = f"{CONSTRAINTS}.{name} is {shown} and {GPUS} is 0: work without GPUs cannot ask for that"
            yield Refused("ConstraintsContradict", sentence, f"{CONSTRAINTS}.{name}", hint)
    if wanted.gpu_memory is not None and resources.gpus is None and wanted.gpu_type is None:
        sentence = f"{CONSTRAINTS}.gpuMemory is {wanted.gpu_memory}, and neither {GPUS} nor {CONSTRAINTS}.gpuType is set"
        yield Refused("ConstraintsContradict", sentence, f"{CONSTRAINTS}.gpuMemory", f"say how many: set {GPUS}")
    if wanted.allow_cxl_memory and resources.memory is None:
        yield Caution(f"{CONSTRAINTS}.allowCxlMemory has no effect without spec.resources.memory")


def check_node_sets(asked: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal unless node list and excluded nodes parse, are short enough and the list, if given, leaves the least number of
    nodes, and a caution below the most.

    With more than 512 names in either, the node list alone is counted, and the scheduler finds how many nodes are left.
    """
    del facts
    constraints = asked.spec.resources.constraints
    counts: dict[str, int] = {}
    for field, text in (("nodeList", constraints.node_list), ("excludeNodes", constraints.exclude_nodes)):
        if len(text) > MOST_CHARACTERS:
            sentence = f"{CONSTRAINTS}.{field} has {len(text)} characters (limit: {MOST_CHARACTERS})"
            yield Refused("NodeSetInvalid", sentence, f"{CONSTRAINTS}.{field}", "ask for hardware or features instead of names")
            return
        count = reading(count_nodes, text, field=f"{CONSTRAINTS}.{field}", reason="NodeSetInvalid")
        if isinstance(count, Refused):
            yield count
            return
        if count > MOST_NAMED_NODES:
            sentence = f"{CONSTRAINTS}.{field} names {count} nodes (limit: {MOST_NAMED_NODES})"
            yield Refused("NodeSetInvalid", sentence, f"{CONSTRAINTS}.{field}", "ask for hardware or features instead of names")
            return
        counts[field] = count
    if counts["nodeList"]:
        yield from _enough(asked, counts["nodeList"], exact=max(counts.values()) <= EXACT_NAMES)


def _enough(asked: Submission, named: int, *, exact: bool) -> Iterator[Finding]:
    """Yields a refusal unless a node list of `named` names leaves as many nodes as are asked for at least, and a caution below the most;
    `exact`: repeated names and excluded nodes are taken into account.
    """
    constraints = asked.spec.resources.constraints
    wanted = reading(parse_node_count, asked.spec.resources.nodes, field=NODES, reason="NodesInvalid")
    if isinstance(wanted, Refused):
        return
    left, without = named, 0
    if exact:
        listed = set(expand_nodes(constraints.node_list))
        left = len(listed.difference(expand_nodes(constraints.exclude_nodes)))
        without = len(listed) - left
    if left < wanted[0]:
        less = f" less {CONSTRAINTS}.excludeNodes" if without else ""
        sentence = f"{CONSTRAINTS}.nodeList{less} leaves {left} nodes and {wanted[0]} are asked for"
        yield Refused("NodeListTooSmall", sentence, f"{CONSTRAINTS}.nodeList", f"name at least {wanted[0]} nodes")
    elif left < wanted[1]:
        yield Caution(f"{CONSTRAINTS}.nodeList leaves {left} nodes: of the {wanted[1]} asked for at most it never gets more")
