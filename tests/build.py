"""Fluent builders of the objects that tests need: short where a test says nothing, exact where it does."""

from __future__ import annotations

import uuid
from typing import Any

import msgspec

from lattice.ledger.format import Row
from lattice.ledger.proposals import Claim
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
