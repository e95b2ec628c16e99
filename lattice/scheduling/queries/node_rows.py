"""A LatticeNode as one row of `lattice nodes`, made by the scheduler of its cache or by the command line of the object. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from lattice.lifecycle.conditions import condition
from lattice.models.conditions import READY
from lattice.units import parse_time
from lattice.views.cluster import Node, VCluster

NODES_SCHEMA: Final = "lattice.dev/node-rows/v1"


class NodeRow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One LatticeNode in the table of `lattice nodes`.

    Times are seconds since the epoch, None where there are none. New fields are added at the end only.
    """

    name: str
    state: str
    since: float | None
    reason: str
    cpus: int
    memory: int | str
    gpus: int
    gpu_type: str
    group: str
    switch: str
    features: str
    index: int | None
    kernel: str
    agent: str
    address: str
    conformance: str
    message: str


class NodeRows(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The document that answers `nodes`: rows in no order; `homes`: by group, the vclusters at home there."""

    schema: str
    version: str
    """The resourceVersion up to which every change of a LatticeNode is contained."""
    homes: dict[str, str]
    rows: list[NodeRow]


def state_of(node: Node) -> str:
    """Returns the state that the operator gave a node, without marks such as `+drain`."""
    return node.status.state


def homes(vclusters: Sequence[VCluster]) -> dict[str, str]:
    """Returns for each group the names of the vclusters at home in it, joined by commas."""
    found: dict[str, list[str]] = {}
    for one in vclusters:
        for group in one.spec.nodes.selector.group if one.spec.nodes.selector is not None else ():
            found.setdefault(group, []).append(one.metadata.name)
    return {group: ",".join(sorted(names)) for group, names in found.items()}


def reason_of(node: Node) -> str:
    """Returns the words of whoever disabled or drained a node, else the reason of its condition Ready where that is not True.

    Else "hollow" for a hollow node, and an empty text for a real one.
    """
    ready = condition(node.status.conditions, READY)
    if node.spec.disable is not None:
        return _wish(node.spec.disable.reason, node.spec.disable.by)
    if node.spec.drain is not None:
        return _wish(node.spec.drain.reason, node.spec.drain.by)
    if ready is not None and ready.status != "True":
        return ready.reason
    return "hollow" if node.status.hollow else ""


def short_fingerprint(fingerprint: str) -> str:
    """Returns the first 12 digits of a fingerprint, enough to tell those of a site apart."""
    return fingerprint.removeprefix("sha256:")[:12]


def node_row(node: Node) -> NodeRow:
    """Returns the row of a LatticeNode in the table of `lattice nodes`; raises Rejected where its time `since` does not parse."""
    spec, status, had = node.spec, node.status, node.status.capabilities
    ready = condition(status.conditions, READY)
    return NodeRow(
        name=node.metadata.name,
        state=state_of(node),
        since=parse_time(status.since) if status.since else None,
        reason=reason_of(node),
        cpus=had.cpus,
        memory=had.memory,
        gpus=had.gpus,
        gpu_type=had.gpu_type,
        group=spec.group,
        switch=spec.switch,
        features=",".join(sorted({*spec.features, *had.features})),
        index=status.index,
        kernel=status.kernel,
        agent=status.agent_version,
        address=status.address,
        conformance=short_fingerprint(status.fingerprint),
        message=ready.message if ready is not None else "",
    )


def _wish(reason: str, by: str) -> str:
    """Returns what somebody wrote as a reason, with his name in brackets where it is known."""
    return f"{reason} ({by})" if by else reason
