"""Which nodes are alive, at the beginning of a term: from the operator that has listened, else from the nodes themselves.

A new leader has heard nobody. To wait for every node's next heartbeat would take as long as an interval, and to ask all of
them at once would keep the API server busy with their answers. The operator's own Lease tells how many nodes that it calls
Ready it has not heard itself: when that Lease is seen to change, and says none, Ready means alive.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from lattice.errors import LatticeError
from lattice.kube.clock import Clock
from lattice.kube.cluster import Cluster
from lattice.kube.resources import LEASES
from lattice.ledger.reports import UNHEARD
from lattice.units import parse_duration
from lattice.views import Lease
from lattice.views.cluster import NodeOptions
from lattice_controllers.scheduler.nodes import Nodes

FEW_NODES: Final = 64
"""So many are asked at once; of more, the operator is asked first."""
CALL_SECONDS: Final = 0.1
"""Between two plans of a roll call: 640 heartbeats a second."""
OPERATOR_LEASE: Final = "lattice-operator"
OPERATOR_RENEWS_SECONDS: Final = 6.0
"""An operator that lives has renewed its Lease within this time."""
POLL_SECONDS: Final = 0.25
HEARD_AFTER: Final = 1.5
"""For how many of their intervals a new leader listens before it says who is silent."""


async def hear(
    cluster: Cluster, clock: Clock, nodes: Nodes, *, call: Callable[[str], None], options: NodeOptions, namespace: str
) -> None:  # fmt: skip
    """Return once every Ready node is known to be alive, or was silent for longer than it may be; `call` asks a plan's nodes."""
    until = clock.monotonic() + HEARD_AFTER * parse_duration(options.heartbeat_interval)
    if sum(nodes.unheard().values()) > FEW_NODES and await operator_heard_all(cluster, clock, namespace):
        nodes.trust()
    for group in nodes.unheard():
        if group in nodes.unheard():
            call(group)
        await clock.sleep(CALL_SECONDS)
    while nodes.unheard() and clock.monotonic() < until:
        await clock.sleep(CALL_SECONDS)


async def operator_heard_all(cluster: Cluster, clock: Clock, namespace: str) -> bool:
    """Whether the operator's Lease is seen to change within `OPERATOR_RENEWS_SECONDS`, and says that no Ready node is unheard."""
    before, until = "", clock.monotonic() + OPERATOR_RENEWS_SECONDS
    while clock.monotonic() < until:
        with contextlib.suppress(LatticeError):
            lease = await cluster.get(LEASES, OPERATOR_LEASE, namespace, type=Lease)
            version = lease.metadata.resource_version
            if before not in ("", version) and lease.metadata.annotations.get(UNHEARD) == "0":
                return True
            before = before or version
        await clock.sleep(POLL_SECONDS)
    return False
