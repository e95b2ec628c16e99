"""Fetches nodes and partitions for Slurm's programs, and puts their states in Slurm's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from lattice.cli.from_memory import ask_memory
from lattice.errors import Denied, LatticeError, NotFound
from lattice.kube.resources import NODES, TENANTS, VCLUSTERS
from lattice.scheduling.queries.node_rows import NODES_SCHEMA, NodeRow, NodeRows, node_row
from lattice.units import expand_nodes, parse_duration
from lattice.views import Node, Tenant, VCluster

if TYPE_CHECKING:
    from lattice.cli.console import Console
    from lattice.cli.slurm.jobs import SlurmJob


class NodeState(NamedTuple):
    """A node's state in Slurm's words, long and compact; a `*` behind it: the node does not answer."""

    name: str
    short: str


IDLE, ALLOCATED = NodeState("idle", "idle"), NodeState("allocated", "alloc")
_OF_STATE: Final = {
    "Ready": IDLE, "Degraded": IDLE, "Draining": NodeState("draining", "drng"), "Drained": NodeState("drained", "drain"),
    "Disabled": NodeState("drained", "drain"), "Down": NodeState("down*", "down*"), "Failed": NodeState("fail", "fail"),
    "Booting": NodeState("unknown", "unk"), "Unknown": NodeState("unknown*", "unk*"),
}  # fmt: skip


class Partition(NamedTuple):
    """A vcluster as Slurm shows a partition."""

    name: str
    is_default: bool
    is_up: bool
    max_seconds: float | None
    default_seconds: float | None
    max_nodes: int | None
    nodes: Sequence[NodeRow]


def fetch_nodes(console: Console) -> list[NodeRow]:
    """Returns the nodes that the person may read, by name: from the gateway's memory where it answers, else from the API server."""
    body = ask_memory(console, "/v1/nodes", {"version": NODES.plural, "vclusters": VCLUSTERS.plural}, {})
    rows: Sequence[NodeRow] | None = None
    if body is not None:
        try:
            answer = msgspec.json.decode(body, type=NodeRows)
            rows = answer.rows if answer.schema == NODES_SCHEMA else None
        except msgspec.DecodeError:
            rows = None  # of another version than this program
    if rows is None:
        rows = [node_row(node) for node in console.cluster.list(NODES, type=Node).items]
    return sorted(rows, key=lambda row: row.name)


def with_cpus(console: Console, jobs: Sequence[SlurmJob]) -> list[SlurmJob]:
    """Returns the jobs with the CPUs of the nodes that each holds, of which it has all; 0 where the person may not read the nodes."""
    try:
        cpus = {row.name: row.cpus for row in fetch_nodes(console)} if any(job.nodelist for job in jobs) else {}
    except LatticeError:
        return list(jobs)
    return [replace(job, cpus=sum(cpus.get(name, 0) for name in expand_nodes(job.nodelist))) if job.nodelist else job for job in jobs]


def state_of(row: NodeRow, busy: frozenset[str]) -> NodeState:
    """Returns a node's state in Slurm's words; `busy`: the names of nodes that have work."""
    state = _OF_STATE.get(row.state.partition("+")[0], NodeState("unknown", "unk"))
    return ALLOCATED if state is IDLE and row.name in busy else state


def is_silent(row: NodeRow) -> bool:
    """Tells whether a node does not answer."""
    return state_of(row, frozenset()).name.endswith("*")


def fetch_partitions(console: Console, nodes: Sequence[NodeRow]) -> list[Partition]:
    """Returns the vclusters as partitions with their home nodes, by name; the default one is that of the person's tenant, or the only
    one.
    """
    from lattice.scheduling.conversion.facts import home_groups

    vclusters = console.cluster.list(VCLUSTERS, type=VCluster).items
    homes = home_groups(vclusters)
    default = _default(console) or (vclusters[0].metadata.name if len(vclusters) == 1 else "")
    return [_partition(one, nodes, homes, default) for one in sorted(vclusters, key=lambda one: one.metadata.name)]


def _partition(one: VCluster, nodes: Sequence[NodeRow], homes: Mapping[str, str], default: str) -> Partition:
    """Returns a vcluster as a partition."""
    spec = one.spec
    mine = one.metadata.name if spec.nodes.selector is not None and spec.nodes.selector.group else ""
    walltimes = (spec.limits.max_walltime, spec.defaults.walltime)
    longest, usual = (parse_duration(text) if text else None for text in walltimes)
    return Partition(
        one.metadata.name, one.metadata.name == default, spec.state != "Closed", longest, usual, spec.limits.max_nodes_per_allocation,
        [row for row in nodes if homes.get(row.group or row.name, "") == mine],
    )  # fmt: skip


def _default(console: Console) -> str:
    """Returns the default vcluster of the person's tenant; empty where it names none or may not be read."""
    try:
        return console.cluster.get(TENANTS, console.tenant or console.namespace, type=Tenant).spec.default_v_cluster
    except (NotFound, Denied):
        return ""
