"""Fluent builders of the objects that tests need: short where a test says nothing, exact where it does."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from lattice.ledger.format import Row
from lattice.ledger.proposals import Claim
from lattice.scheduling.model.hardware import Need, NodeFacts
from lattice.scheduling.model.work import Candidate
from lattice.views.allocation import Allocation, Condition


def uid(number: int) -> str:
    """The uid of the test's n-th allocation."""
    return str(uuid.UUID(int=(7 << 64) + number))


def claim(number: int = 1, nodes: tuple[int, ...] = (0,), *, attempt: int = 1, tenant: str = "physics", user: str = "alice") -> Claim:
    """A claim of these node indices."""
    return Claim(uid(number), attempt, 1, user, tenant, "hpc-batch", "B", nodes[0], nodes)


def row(number: int = 1, nodes: tuple[int, ...] = (0,), *, attempt: int = 1, state: str = "h", tenant: str = "physics") -> Row:
    """A ledger row of these node indices."""
    return Row(uid(number), attempt, 1, "alice", tenant, "hpc-batch", "B", state, nodes[0], nodes)


def node(index: int, group: str = "g0", **fields: Any) -> NodeFacts:
    """A Ready node of 8 CPUs and 1 GiB without GPUs."""
    base: dict[str, Any] = {
        "name": f"nid{index:03d}", "cpus": 8, "memory": 1 << 30, "gpus": 0, "features": frozenset(), "hollow": False, "usable": True,
        "state": "Ready", "fingerprint": "f0",
    }  # fmt: skip
    return NodeFacts(index=index, group=group, **{**base, **fields})


def job(number: int, nodes: int = 1, hours: float | None = 1.0, **fields: Any) -> Candidate:
    """Pending work of alice in physics and hpc, submitted in the order of the numbers; `hours` is its walltime, None: unbounded."""
    base: dict[str, Any] = {
        "key": f"physics/job-{number:04d}", "uid": uid(number), "tenant": "physics", "vcluster": "hpc", "user": "alice",
        "preemption_class": 5, "submitted": float(number), "minimum": nodes, "maximum": nodes, "need": Need(), "grace": 0.0,
        "walltime": None if hours is None else hours * 3600.0,
    }  # fmt: skip
    return Candidate(**{**base, **fields})


def condition(kind: str, status: str = "True", reason: str = "Because", message: str = "") -> Condition:
    """One condition."""
    return Condition(type=kind, status=status, reason=reason, message=message, last_transition_time="2026-01-01T00:00:00Z")


def allocation(number: int = 1, *conditions: Condition, spec: dict[str, Any] | None = None, **fields: Any) -> Allocation:
    """An Allocation with these conditions; `status_…` fields go to its status, the rest to its metadata."""
    status = {name.removeprefix("status_"): value for name, value in fields.items() if name.startswith("status_")}
    meta = {name: value for name, value in fields.items() if not name.startswith("status_")}
    body = {
        "metadata": {
            "name": f"job-{number}", "namespace": "physics", "uid": uid(number), "resourceVersion": "10", "generation": 1,
            "creationTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["lattice.dev/release"], **meta,
        },
        "spec": {"tenant": "physics", "user": "alice", "vcluster": "hpc-batch", **(spec or {})},
    }  # fmt: skip
    made = msgspec.convert(body, Allocation)
    return msgspec.structs.replace(made, status=msgspec.structs.replace(made.status, conditions=conditions, **status))
