"""The Allocations that benchmarks and the trace submit; pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from lattice.kube.resources import ALLOCATIONS, CONFIG_MAPS

Manifest = dict[str, Any]


def hollow(
    namespace: str, name: str, *, nodes: int = 1, seconds: float | None = 0.0, walltime: int = 600, only: str = "", not_before: int = 0
) -> Manifest:
    """Returns an allocation for hollow nodes, which ends by itself after `seconds` (None: only at its walltime or by a cancel).

    `walltime` is in seconds; `only`: the nodes that it may run on, in node set notation such as nid[001-004]; empty: any. `not_before`: the
    time from which it may start, in seconds since the epoch; 0: at once.
    """
    constraints: Manifest = {"features": ["hollow"]}
    if only:
        constraints["nodeList"] = only
    variables = {} if seconds is None else {"HOLLOW_SECONDS": f"{seconds:.3f}"}
    made = _allocation(
        namespace, name, nodes, walltime, {"constraints": constraints}, entrypoint="true", environment={"variables": variables}
    )  # fmt: skip
    if not_before:
        made["spec"]["lifecycle"]["notBefore"] = datetime.fromtimestamp(not_before, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return made


def real(namespace: str, name: str, script: str, *, nodes: int = 1, walltime: int = 600, only: str = "") -> Manifest:
    """Returns an allocation that runs a line of bash once on every one of its nodes and is never requeued; `walltime` in seconds, `only`: a
    node set, empty: any.
    """
    resources: Manifest = {"constraints": {"nodeList": only}} if only else {}
    return _allocation(namespace, name, nodes, walltime, resources, entrypoint=f"bash -c {quoted(script)}")


def lean_config_map(namespace: str, name: str) -> Manifest:
    """Returns a ConfigMap without data, the smallest object that the API server stores: the baseline of creations."""
    return {"apiVersion": CONFIG_MAPS.api_version, "kind": CONFIG_MAPS.kind, "metadata": {"namespace": namespace, "name": name}}


def quoted(text: str) -> str:
    """Returns a text in single quotes, as one word of an entrypoint, which is split as a shell would."""
    return "'" + text.replace("'", "'\"'\"'") + "'"


def _allocation(namespace: str, name: str, nodes: int, walltime: int, resources: Manifest, **spec: Any) -> Manifest:
    """Returns an Allocation with these nodes, walltime (seconds) and further fields of its spec."""
    return {
        "apiVersion": ALLOCATIONS.api_version,
        "kind": ALLOCATIONS.kind,
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "resources": {"nodes": nodes, **resources},
            "lifecycle": {"walltime": f"{walltime}s", "gracePeriod": "2s", "requeue": {"policy": "Never"}},
            **spec,
        },
    }
