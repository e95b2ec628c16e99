"""The Ledger as the operator sees it: read now and then, never watched, never written."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Protocol

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import Corrupt, LatticeError, NotFound
from lattice.kube.cluster import Cluster
from lattice.kube.resources import LEDGERS
from lattice.ledger.format import decode_shard
from lattice.views import Ledger, LedgerStatus, TenantAccount

log = logging.getLogger(__name__)

NAME = "lattice"


class AccountObserver(Protocol):
    """Hears of changes of the ledger's accounts."""

    def accounts_changed(self, names: set[str]) -> None:
        """Hears of the tenants whose account has changed."""
        ...


class LedgerMirror:
    """The newest ledger that was read; accounts at hand, rows decoded when somebody asks for them.

    Its `observers` hear of the tenants whose account changed.
    """

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self.observers: list[AccountObserver] = []
        self.accounts: dict[str, TenantAccount] = {}
        self.begun = float("-inf")
        """Monotonic time at which the newest read began; what it does not show was not committed then."""
        self._cluster = cluster
        self._clock = clock
        self._status: LedgerStatus | None = None
        self._counted: int | None = None
        self._by_node: Counter[int] = Counter()
        self._by_vcluster: Counter[str] = Counter()
        self._by_tenant: Counter[str] = Counter()

    async def read(self) -> None:
        """Reads the Ledger, consistently."""
        begun = self._clock.monotonic()
        try:
            ledger = await self._cluster.get(LEDGERS, NAME, type=Ledger)
        except NotFound:
            status = None  # no scheduler has led yet: nobody holds anything
        else:
            status = ledger.status
        self.begun, self._status = begun, status
        accounts = dict(status.tenants) if status is not None else {}
        changed = {name for name in accounts.keys() | self.accounts.keys() if accounts.get(name) != self.accounts.get(name)}
        self.accounts = accounts
        if changed:
            for observer in self.observers:
                observer.accounts_changed(changed)

    async def refresh(self) -> None:
        """Reads the Ledger; when that fails, what was read before stays, and it is said."""
        try:
            await self.read()
        except Corrupt:
            raise
        except LatticeError as error:
            event(log, "LedgerNotRead", logging.WARNING, reason=error.reason, message=error.message)

    async def holders_of_node(self, index: int) -> int:
        """Returns how many rows, releasing ones too, name the node with this index."""
        await self._count()
        return self._by_node[index]

    async def holders_of_tenant(self, name: str) -> int:
        """Returns how many rows, releasing ones too, are the tenant's."""
        await self._count()
        return self._by_tenant[name]

    async def holders_of_vcluster(self, name: str) -> int:
        """Returns how many rows, releasing ones too, are of the vcluster."""
        await self._count()
        return self._by_vcluster[name]

    async def _count(self) -> None:
        """Counts the rows of the status at hand, shard by shard so that the loop goes on; a newer read meanwhile counts anew."""
        while self._status is not None and self._counted != self._status.seq:
            status = self._status
            by_node, by_vcluster, by_tenant = Counter[int](), Counter[str](), Counter[str]()
            for shard in status.shards:
                for row in decode_shard(shard):
                    by_node.update(row.nodes)
                    by_vcluster[row.vcluster] += 1
                    by_tenant[row.tenant] += 1
                await self._clock.sleep(0)
            self._counted, self._by_node, self._by_vcluster, self._by_tenant = status.seq, by_node, by_vcluster, by_tenant
