"""The resources that nodes count in a quota tree, and sums of them: amounts by resource."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from lattice.quota.amounts import CPU, GPU, MEMORY, NODES, gpu_of
from lattice.quota.groups import Resources
from lattice.scheduling.model.hardware import Hardware, NodeFacts

NO_AMOUNTS: Final[Resources] = {}
"""The amounts of a request or charge that is not there; told apart by identity from one that asks for nothing."""


@lru_cache(maxsize=4096)
def node_amounts(cpus: int, memory: int, gpus: int, gpu_type: str) -> Resources:
    """Returns the resources that one whole node counts in a tree: CPU in millicores, local memory in bytes; one object for equal nodes."""
    amounts = {NODES: 1, CPU: cpus * 1000, MEMORY: memory, GPU: gpus}
    if gpu_type:
        amounts[gpu_of(gpu_type)] = gpus
    return {resource: amount for resource, amount in amounts.items() if amount}


def amounts_of(node: NodeFacts | Hardware) -> Resources:
    """Returns the resources that a node, or any node of a class of hardware, counts in a quota tree."""
    return node_amounts(node.cpus, node.memory, node.gpus, node.gpu_type)


def times(amounts: Resources, count: int) -> dict[str, int]:
    """Returns each resource amount times `count`."""
    return {resource: amount * count for resource, amount in amounts.items()}


def negated(amounts: Resources) -> dict[str, int]:
    """Returns the same amounts with their signs turned."""
    return {resource: -amount for resource, amount in amounts.items()}


def add_amounts(into: dict[str, int], amounts: Resources) -> None:
    """Adds amounts to the sums by resource, in place."""
    for resource, amount in amounts.items():
        into[resource] = into.get(resource, 0) + amount
