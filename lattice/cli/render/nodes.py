"""Renders nodes for people: one line each, or everything about one; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lattice.cli.render.text import Column, age, fields, memory, span, table
from lattice.lifecycle.conditions import condition
from lattice.models.conditions import READY
from lattice.scheduling.queries.node_rows import NodeRow, state_of
from lattice.views import Node
from lattice.views.cluster import Capabilities

_COLUMNS = (
    Column("NODE"),
    Column("STATE"),
    Column("SINCE", right=True),
    Column("REASON", shrink_to=14),
    Column("CPUS", right=True, leave=3),
    Column("MEMORY", right=True, leave=2),
    Column("GPUS", right=True),
    Column("GPU"),
    Column("VCLUSTER", shrink_to=8, leave=1),
    Column("GROUP", leave=4),
    Column("SWITCH"),
    Column("FEATURES", shrink_to=10),
    Column("INDEX", right=True),
    Column("KERNEL"),
    Column("AGENT"),
    Column("ADDRESS"),
    Column("CONFORMANCE"),
    Column("MESSAGE", shrink_to=20),
)


def node_table(rows: Sequence[NodeRow], home: Mapping[str, str], *, now: float, wide: bool, width: int, color: bool) -> list[str]:
    """Returns one line a node; for a node that is not Ready, the operator's reason. `home` maps groups to vclusters."""
    return table(_COLUMNS, [_cells(row, home, now, wide=wide) for row in rows], width=0 if wide else width, color=color)


def _cells(row: NodeRow, home: Mapping[str, str], now: float, *, wide: bool) -> tuple[str, ...]:
    """Returns the cells of one node; `home`: the vcluster of each group. Those of the wide table are empty unless asked for."""
    index = "" if row.index is None else str(row.index)
    extra = (row.switch, row.features, index, row.kernel, row.agent, row.address, row.conformance, row.message)
    return (
        row.name,
        row.state,
        span(now - row.since) if row.since is not None else "",
        row.reason,
        str(row.cpus or ""),
        memory(row.memory),
        str(row.gpus or ""),
        row.gpu_type,
        home.get(row.group, ""),
        row.group,
        *(extra if wide else _NO_EXTRA),
    )


_NO_EXTRA = ("", "", "", "", "", "", "", "")


def node_details(node: Node, home: Mapping[str, str], now: float) -> list[str]:
    """Returns the lines about one node."""
    return fields(node_fields(node, home, now))


def node_fields(node: Node, home: Mapping[str, str], now: float) -> list[tuple[str, str]]:
    """Returns the names and values of the lines about one node; `home` maps groups to vclusters."""
    spec, status, had = node.spec, node.status, node.status.capabilities
    ready = condition(status.conditions, READY)
    return [
        ("Node", node.metadata.name),
        ("State", state_of(node) + (f" since {status.since} ({age(status.since, now)})" if status.since else "")),
        ("Reason", f"{ready.reason}: {ready.message}".rstrip(": ") if ready is not None else ""),
        ("Drain", _wanted(spec.drain.reason, spec.drain.by, spec.drain.since) if spec.drain is not None else ""),
        ("Disable", _disable(node)),
        ("CPUs", str(had.cpus or "")),
        ("Memory", memory(had.memory) + _beside_memory(had)),
        ("GPUs", _gpus(had)),
        ("Scratch", memory(had.scratch)),
        ("Power", f"{had.nominal_watts} W at full load" if had.nominal_watts else ""),
        ("Architecture", had.architecture),
        ("Features", ", ".join(sorted({*spec.features, *had.features}))),
        ("Group", spec.group + (f", switch {spec.switch}" if spec.switch else "")),
        ("VCluster", home.get(spec.group, "")),
        ("Index", "" if status.index is None else str(status.index)),
        ("Health", status.health or ""),
        ("Kernel", status.kernel),
        ("Agent", f"{status.agent_version} at {status.address}" if status.address else status.agent_version),
        ("Conformance", _conformance(node)),
        ("Boot", status.boot_id),
        ("Hollow", "nothing runs here, the agent only waits" if status.hollow else ""),
    ]


def _beside_memory(had: Capabilities) -> str:
    """Returns what else is said of a node's memory, with a comma before each part; empty for none."""
    parts = [f"CXL {memory(had.cxl_memory)}"] if str(had.cxl_memory) != "0" else []
    parts += ["one domain with the GPUs"] if had.unified_memory else []
    return "".join(f", {part}" for part in parts)


def _gpus(had: Capabilities) -> str:
    """Returns number, model and memory of a node's GPUs; empty for none."""
    if not had.gpus:
        return ""
    each = f", {memory(had.gpu_memory)} each" if str(had.gpu_memory) != "0" else ""
    return f"{had.gpus} {had.gpu_type}".rstrip() + each


def _conformance(node: Node) -> str:
    """Returns the fingerprint and the component versions behind it, which show how two nodes differ."""
    told = ", ".join(f"{name} {version}" for name, version in sorted(node.status.components.items()))
    return node.status.fingerprint + (f" ({told})" if told else "")


def _wanted(reason: str, by: str, when: str | None) -> str:
    """Returns a reason with who gave it and when."""
    return f"{reason} (by {by or 'unknown'}, {when or 'time unknown'})"


def _disable(node: Node) -> str:
    """Returns why, by whom and since when a node is disabled, and whether it is fenced; empty where it is not disabled."""
    wish = node.spec.disable
    if wish is None:
        return ""
    return _wanted(wish.reason, wish.by, wish.since) + (", fenced: its rows are released" if wish.fenced else "")
