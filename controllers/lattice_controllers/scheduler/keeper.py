"""What a term keeps right beside its decisions: node indices, the silence of nodes without an object, limits, the verifier's look."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import LatticeError, NotFound, Rejected
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Informer
from lattice.kube.resources import LEDGERS, NODE_INDEXES
from lattice.ledger.proposals import Forget, Limits, Proposal, Refused, SensitivePool
from lattice.ledger.verify import verify
from lattice.lifecycle.node import Timing, timing_of
from lattice.views import Config, Lease, Ledger, NodeIndex, Tenant
from lattice_controllers.scheduler.committer import Committer, Deposed
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.nodes import Nodes

log = logging.getLogger(__name__)

VERIFY_SECONDS = 30.0
LOOK_SECONDS = 3.0
"""Between two looks whether the ledger is still the one that this leader wrote last."""
SWEEP_SECONDS = 1.0
STALL_SECONDS = 5.0
"""A sweep that comes so late means that this process itself stood still: silence starts from zero."""
SETTLE_SECONDS = 0.05
AGAIN_SECONDS = 1.0


class Keeper:
    """Carries what is declared into the ledger, and has the ledger verified."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        committer: Committer,
        nodes: Nodes,
        measured: SchedulerMetrics,
        *,
        tenants: Mapping[str, Tenant],
        config: Callable[[], Config | None],
        woken: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._clock = clock
        self._committer = committer
        self._nodes = nodes
        self._measured = measured
        self._tenants = tenants
        self._config = config
        self._woken = woken
        self._nodes_dirty, self._limits_dirty = asyncio.Event(), asyncio.Event()

    def nodes_changed(self) -> None:
        """Nodes came or went."""
        self._nodes_dirty.set()

    def limits_changed(self) -> None:
        """Tenants or options changed."""
        self._limits_dirty.set()

    async def keep_nodes(self) -> None:
        """Give indices, forget nodes, keep the pool's size right; the ledger is written in a format that every node's agent knows."""
        while True:
            await self._nodes_dirty.wait()
            await self._clock.sleep(SETTLE_SECONDS)
            self._nodes_dirty.clear()
            self._committer.book.write_format(self._nodes.lowest_format())
            if await self._failed(self._nodes.settle_indices(self._committer.propose)):
                self._nodes_dirty.set()

    async def keep_limits(self) -> None:
        """Copy the limits of every tenant, and the size of the sensitive pool, into the ledger."""
        while True:
            await self._limits_dirty.wait()
            self._limits_dirty.clear()
            config = self._config()
            pool = SensitivePool(config.spec.scheduling.sensitive_pool_size if config is not None else 0)
            wanted = [limits_of(tenant) for tenant in self._tenants.values()]
            gone = [Forget(name) for name in self._committer.book.accounts if name not in self._tenants]
            await self._carry_in(gone)
            await self._carry_in([pool, *wanted])
            self._woken()

    async def _carry_in(self, proposals: Sequence[Proposal]) -> None:
        for answer in [self._committer.propose(proposal) for proposal in proposals]:
            verdict = await answer
            if isinstance(verdict, Refused):
                event(log, "The ledger refused a limit", logging.WARNING, reason=verdict.reason, message=verdict.message)

    async def keep_silence(self, leases: Informer[Lease]) -> None:
        """Judge the nodes that the operator does not; silence does not count while the watch of heartbeats is lost."""
        timing, swept, resumed = Timing(), self._clock.monotonic(), float("-inf")
        while True:
            config, now = self._config(), self._clock.monotonic()
            if config is not None:
                with contextlib.suppress(Rejected):  # the operator refuses such options: the last good ones stay
                    timing = timing_of(config.spec.nodes)
            resumed = now if now - swept > STALL_SECONDS or leases.lost else resumed
            swept = now
            self._nodes.sweep(max(leases.continuous_since, resumed), timing)
            await self._clock.sleep(SWEEP_SECONDS)

    async def watch_ledger(self) -> None:
        """Notice within seconds that the ledger went back, was taken or is gone, though nothing is to be committed."""
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            try:
                await self._committer.look()
            except Deposed:
                raise
            except LatticeError:
                pass  # the API server does not answer: the informers say so

    async def verify(self) -> None:
        """Have the independent verifier look at what etcd really holds."""
        while True:
            await self._clock.sleep(VERIFY_SECONDS)
            await self._failed(self._verify_once())

    async def _verify_once(self) -> None:
        """Raises Deposed where one of the two objects is gone: the next term makes it again, or says why it does not."""
        try:
            index = await self._cluster.get(NODE_INDEXES, "lattice", type=NodeIndex)
            ledger = await self._cluster.get(LEDGERS, "lattice", type=Ledger)
        except NotFound as error:
            raise Deposed(f"{error.message}: it is gone", reason="LedgerGone") from error
        if ledger.status is None:
            return
        faults = verify(ledger.status, {int(number): name for number, name in index.spec.names.items()})
        self._measured.faults.set(len(faults))
        for fault in faults:
            event(log, "The ledger has a fault", fault=fault)

    async def _failed(self, work: Awaitable[None]) -> bool:
        """Whether the work failed and is to be tried again."""
        try:
            await work
        except Deposed:
            raise
        except LatticeError as error:
            event(log, "Trying again", reason=error.reason, message=error.message)
            await self._clock.sleep(AGAIN_SECONDS)
            return True
        return False


def limits_of(tenant: Tenant) -> Limits:
    """The hard limits that a tenant asks for, as the ledger keeps them."""
    quota = tenant.spec.quota
    own = quota.per_user
    return Limits(tenant.metadata.name, quota.max_nodes, quota.max_concurrent_allocations, own.max_nodes, own.max_running)
