"""Finds out which nodes are alive at the beginning of a term: from the operator, which has listened, else from the nodes themselves.

A new leader has heard no node. Waiting for every node's next heartbeat would take a whole interval, and asking all at once would flood the
API server with answers. The annotation on the operator's own Lease says how many Ready nodes the operator has not heard itself: when that
Lease is seen to change, and says none, a Ready node is alive.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Final

from lattice.errors import LatticeError
from lattice.kube.clock import Clock
from lattice.kube.cluster import Cluster
from lattice.kube.resources import LEASES, NODE_LEASE_NAMESPACE
from lattice.ledger.plans import plan_name
from lattice.ledger.reports import UNHEARD
from lattice.lifecycle.node import READY
from lattice.units import parse_duration, parse_time
from lattice.views import Lease
from lattice.views.cluster import NodeOptions
from lattice_controllers.scheduler.nodes import Nodes

FEW_NODES: Final = 64
"""Up to so many unheard nodes are asked themselves at once; where there are more, the operator's Lease is read first."""
CALL_SECONDS: Final = 0.1
"""Pause between two plans of a roll call: 64 nodes each, so 640 heartbeats a second."""
OPERATOR_LEASE: Final = "lattice-operator"
OPERATOR_RENEWS_SECONDS: Final = 6.0
"""A live operator renews its Lease within this time."""
POLL_SECONDS: Final = 0.25
FRESH_INTERVALS, FRESH_SECONDS = 1.2, 1.0
HEARD_AFTER: Final = 1.5
"""For how many heartbeat intervals a new leader listens before it calls a node silent."""


async def await_live_nodes(
    cluster: Cluster, clock: Clock, nodes: Nodes, *, call: Callable[[str], None], options: NodeOptions, namespace: str
) -> None:  # fmt: skip
    """Waits until every Ready node is known to be alive, about 1.5 heartbeat intervals at most (and once through all plans); returns alike
    where some are still unheard.

    Where more than 64 are unheard and the operator has heard all, its judgement is taken (`Nodes.trust`); the nodes still unheard are
    made to renew their Leases, plan by plan. `call` does that for the nodes of a plan, by its name.
    """
    until = clock.monotonic() + HEARD_AFTER * parse_duration(options.heartbeat_interval)
    if sum(nodes.unheard().values()) > FEW_NODES and await operator_heard_all(cluster, clock, namespace):
        nodes.trust()
    for group in nodes.unheard():
        if group in nodes.unheard():
            call(group)
        await clock.sleep(CALL_SECONDS)
    while nodes.unheard() and clock.monotonic() < until:
        await clock.sleep(CALL_SECONDS)


def silent_groups(nodes: Nodes, leases: Mapping[str, Lease], now: float, interval: float) -> set[str]:
    """Returns the plans, by name, of which no Ready node has been heard since this term began; `leases` by namespace/name.

    A node counts as heard when its Lease changed in this term, or was renewed within about the last heartbeat interval (`interval`, in
    seconds) before `now`. One node of a plan suffices, since all its nodes see the same plan.
    """
    groups: dict[str, bool] = {}
    for name, node in nodes.nodes.items():
        index = nodes.indices.get(name)
        if index is not None and node.status.state == READY:
            group = plan_name(index)
            if not groups.get(group):
                groups[group] = name in nodes.seen or _is_fresh(leases.get(f"{NODE_LEASE_NAMESPACE}/{name}"), now, interval)
    return {group for group, told in groups.items() if not told}


def _is_fresh(lease: Lease | None, now: float, interval: float) -> bool:
    """Tells whether a Lease was renewed within 1.2 heartbeat intervals (`interval`, seconds) and 1 s before `now`; False for None, or
    without a renewal.
    """
    renewed = lease.spec.renew_time if lease is not None else None
    return renewed is not None and now - parse_time(renewed) <= FRESH_INTERVALS * interval + FRESH_SECONDS


async def operator_heard_all(cluster: Cluster, clock: Clock, namespace: str) -> bool:
    """Tells whether the operator lives and has heard every Ready node: its Lease names 0 unheard nodes, and is new or changes within 6 s.

    New is a Lease whose renewTime lies at most 6 s before this clock: one operator interval. Where the clocks of two machines disagree,
    the Lease has to change instead. Waits 6 s before it says no; errors of the API server count as no change.
    """
    before, until = "", clock.monotonic() + OPERATOR_RENEWS_SECONDS
    while clock.monotonic() < until:
        with contextlib.suppress(LatticeError):
            lease = await cluster.get(LEASES, OPERATOR_LEASE, namespace, type=Lease)
            version = lease.metadata.resource_version
            lives = before not in ("", version) or _renewed_lately(lease, clock.now())
            if lives and lease.metadata.annotations.get(UNHEARD) == "0":
                return True
            before = before or version
        await clock.sleep(POLL_SECONDS)
    return False


def _renewed_lately(lease: Lease, now: float) -> bool:
    """Tells whether the operator's Lease was renewed at most 6 s before `now`, and not after it; False where it was never renewed."""
    renewed = lease.spec.renew_time
    return renewed is not None and 0 <= now - parse_time(renewed) <= OPERATOR_RENEWS_SECONDS
