"""Nodes as people read them: one line each, and the details of one. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lattice.cli.render.text import Column, age, fields, memory, table
from lattice.lifecycle.conditions import condition
from lattice.models.conditions import READY
from lattice.views import Node, VCluster
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


def state_of(node: Node) -> str:
    """Returns its state without marks such as `+drain`: the operator's word alone."""
    return node.status.state


def homes(vclusters: Sequence[VCluster]) -> dict[str, str]:
    """Returns the vclusters at home in each group."""
    found: dict[str, list[str]] = {}
    for one in vclusters:
        for group in one.spec.nodes.selector.group if one.spec.nodes.selector is not None else ():
            found.setdefault(group, []).append(one.metadata.name)
    return {group: ",".join(sorted(names)) for group, names in found.items()}


def reason_of(node: Node) -> str:
    """Says why it is not Ready: an operator's words before the machine's."""
    ready = condition(node.status.conditions, READY)
    if node.spec.disable is not None:
        return _wish(node.spec.disable.reason, node.spec.disable.by)
    if node.spec.drain is not None:
        return _wish(node.spec.drain.reason, node.spec.drain.by)
    if ready is not None and ready.status != "True":
        return ready.reason
    return "hollow" if node.status.hollow else ""


def _wish(reason: str, by: str) -> str:
    return f"{reason} ({by})" if by else reason


def node_table(nodes: Sequence[Node], home: Mapping[str, str], *, now: float, wide: bool, width: int, color: bool) -> list[str]:
    """Returns one line a node; the reason of a node that is not Ready is the operator's own."""
    return table(_COLUMNS, [_row(node, home, now, wide) for node in nodes], width=0 if wide else width, color=color)


def _row(node: Node, home: Mapping[str, str], now: float, wide: bool) -> list[str]:
    status, had = node.status, node.status.capabilities
    ready = condition(status.conditions, READY)
    extra = ["", "", "", "", "", "", "", ""]
    if wide:
        index = "" if status.index is None else str(status.index)
        features = ",".join(sorted({*node.spec.features, *had.features}))
        extra = [node.spec.switch, features, index, status.kernel, status.agent_version, status.address]
        extra.append(short_fingerprint(status.fingerprint))
        extra.append(ready.message if ready is not None else "")
    return [
        node.metadata.name,
        state_of(node),
        age(status.since, now),
        reason_of(node),
        str(had.cpus or ""),
        memory(had.memory),
        str(had.gpus or ""),
        had.gpu_type,
        home.get(node.spec.group, ""),
        node.spec.group,
        *extra,
    ]


def node_details(node: Node, home: Mapping[str, str], now: float) -> list[str]:
    """Returns everything about one node."""
    spec, status, had = node.spec, node.status, node.status.capabilities
    ready = condition(status.conditions, READY)
    return fields(
        [
            ("Node", node.metadata.name),
            ("State", state_of(node) + (f" since {status.since} ({age(status.since, now)})" if status.since else "")),
            ("Reason", f"{ready.reason}: {ready.message}".rstrip(": ") if ready is not None else ""),
            ("Drain", _wanted(spec.drain.reason, spec.drain.by, spec.drain.since) if spec.drain is not None else ""),
            ("Disable", _disable(node)),
            ("CPUs", str(had.cpus or "")),
            ("Memory", memory(had.memory) + _beside_memory(had)),
            ("GPUs", _gpus(had)),
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
    )


def short_fingerprint(fingerprint: str) -> str:
    """Returns enough of it to tell the fingerprints of a site apart."""
    return fingerprint.removeprefix("sha256:")[:12]


def _beside_memory(had: Capabilities) -> str:
    parts = [f"CXL {memory(had.cxl_memory)}"] if str(had.cxl_memory) != "0" else []
    parts += ["one domain with the GPUs"] if had.unified_memory else []
    return "".join(f", {part}" for part in parts)


def _gpus(had: Capabilities) -> str:
    if not had.gpus:
        return ""
    each = f", {memory(had.gpu_memory)} each" if str(had.gpu_memory) != "0" else ""
    return f"{had.gpus} {had.gpu_type}".rstrip() + each


def _conformance(node: Node) -> str:
    """Returns the fingerprint and the versions that the agent reports, which show how two nodes differ."""
    told = ", ".join(f"{name} {version}" for name, version in sorted(node.status.components.items()))
    return node.status.fingerprint + (f" ({told})" if told else "")


def _wanted(reason: str, by: str, when: str | None) -> str:
    return f"{reason} (by {by or 'unknown'}, {when or 'time unknown'})"


def _disable(node: Node) -> str:
    wish = node.spec.disable
    if wish is None:
        return ""
    return _wanted(wish.reason, wish.by, wish.since) + (", fenced: its rows are released" if wish.fenced else "")
