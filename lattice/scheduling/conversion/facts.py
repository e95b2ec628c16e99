"""Converts nodes for placement: from a LatticeNode, or from an inventory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING

from lattice.errors import Rejected
from lattice.lifecycle.hardware import counted, implied_features
from lattice.scheduling.cluster.node_cache import HOLLOW
from lattice.scheduling.model.hardware import NodeFacts
from lattice.units import quantity_bytes
from lattice.views.cluster import Node, VCluster

if TYPE_CHECKING:
    from lattice.inventory import Inventory, InventoryNode  # which loads YAML


def facts_of(node: Node, index: int, *, usable: bool, state: str, homes: Mapping[str, str]) -> NodeFacts:
    """Returns the facts of a LatticeNode for placement; `homes` gives the vcluster at home in each group.

    `usable` and `state` are the caller's judgement. A node without a group is a group of its own. A size that does not parse counts
    as 0.
    """
    spec, had = node.spec, counted(node)
    group = spec.group or node.metadata.name
    return NodeFacts(
        index=index,
        name=node.metadata.name,
        group=group,
        cpus=had.cpus,
        memory=_bytes(had.memory),
        gpus=had.gpus,
        features=_features(spec.features, had.features, had.gpus, had.gpu_type, node.status.hollow),
        hollow=node.status.hollow,
        usable=usable,
        state=state,
        switch=spec.switch,
        cxl_memory=_bytes(had.cxl_memory),
        gpu_type=had.gpu_type,
        gpu_memory=_bytes(had.gpu_memory),
        unified=had.unified_memory,
        fingerprint=node.status.fingerprint,
        watts=had.nominal_watts,
        home=homes.get(group, ""),
        scratch=_bytes(had.scratch),
        architecture=had.architecture,
    )


def facts_of_inventory(inventory: Inventory) -> list[NodeFacts]:
    """Returns the facts of the nodes that an inventory file declares: all usable, indices in its order."""
    return [_declared(index, node) for index, node in enumerate(inventory.nodes)]


def home_groups(vclusters: Iterable[VCluster]) -> dict[str, str]:
    """Returns for each group the vcluster that is at home in it.

    Where several vclusters name a group, the oldest has it (by creation, then name), and the later ones show `NodesShared`.
    """
    homes: dict[str, str] = {}
    for vcluster in sorted(vclusters, key=lambda one: (one.metadata.creation_timestamp, one.metadata.name)):
        selector = vcluster.spec.nodes.selector
        for group in selector.group if selector is not None else ():
            homes.setdefault(group, vcluster.metadata.name)
    return homes


def _declared(index: int, node: InventoryNode) -> NodeFacts:
    """Returns the facts of a node as an inventory file declares it: usable, Ready, not hollow."""
    had = node.node_class
    return NodeFacts(
        index=index,
        name=node.name,
        group=node.group,
        cpus=had.cpus,
        memory=had.memory,
        gpus=had.gpus,
        features=frozenset(had.features) | implied_features(had.gpus, had.gpu_type),
        hollow=False,
        usable=True,
        state="Ready",
        switch=node.switch,
        cxl_memory=had.cxl_memory,
        gpu_type=had.gpu_type,
        gpu_memory=had.gpu_memory,
        unified=had.unified,
        fingerprint=node.fingerprint,
        watts=had.watts,
        home=node.vcluster,
    )


@lru_cache(maxsize=4096)
def _features(spec: tuple[str, ...], told: tuple[str, ...], gpus: int, gpu_type: str, hollow: bool) -> frozenset[str]:
    """Returns the features of a node, those that its hardware implies included; one object for all nodes that are alike."""
    return frozenset((*spec, *told, *((HOLLOW,) if hollow else ()))) | implied_features(gpus, gpu_type)


@lru_cache(maxsize=4096)
def _bytes(quantity: int | str) -> int:
    """Returns a quantity in bytes; 0 where it does not parse."""
    try:
        return quantity_bytes(quantity)
    except Rejected:
        return 0
