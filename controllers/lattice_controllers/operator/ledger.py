"""The Ledger as the operator sees it: read with a GET now and then, never watched, never written."""

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
from lattice.views import Ledger, TenantAccount

log = logging.getLogger(__name__)

NAME = "lattice"


class AccountObserver(Protocol):
    """Is told of changes of the ledger's accounts; `Operator` is the implementation."""

    def accounts_changed(self, names: set[str]) -> None:
        """Receives the names of the tenants whose account has changed."""
        ...


class LedgerMirror:
    """The Ledger as last read: the accounts of tenants, and counts of rows, which are decoded only when asked for.

    Its `observers` are told which tenants' accounts changed with each reading.
    """

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self.observers: list[AccountObserver] = []
        self.accounts: dict[str, TenantAccount] = {}
        self.begun = float("-inf")
        """When the newest reading began (monotonic); a row that it does not show was not committed by then."""
        self._cluster = cluster
        self._clock = clock
        self._absent = False
        self._expected = False
        self._shards: tuple[str, ...] = ()
        self._counted: tuple[str, ...] = ()
        """The shards whose rows the counts are of."""
        self._by_node: Counter[int] = Counter()
        self._by_vcluster: Counter[str] = Counter()
        self._by_tenant: Counter[str] = Counter()

    @property
    def lost(self) -> bool:
        """Tells whether there is no Ledger although a scheduler has led, so that nobody knows who holds nodes."""
        return self._absent and (self._expected or bool(self._shards))

    def expect(self) -> None:
        """Notes that a scheduler has led, as a node has an index: an absent Ledger is lost, also for an operator that never read it."""
        self._expected = True

    async def read(self) -> None:
        """Reads the Ledger from etcd, and tells the observers whose accounts came, went or changed; without a Ledger there are no accounts.

        Errors of the API server are raised.
        """
        begun = self._clock.monotonic()
        try:
            ledger = await self._cluster.get(LEDGERS, NAME, type=Ledger)
        except NotFound:
            status = None  # no scheduler has led yet, or it is lost
        else:
            status = ledger.status
        self.begun, self._absent = begun, status is None
        if status is not None:
            self._shards = status.shards
        accounts = dict(status.tenants) if status is not None else {}
        changed = {name for name in accounts.keys() | self.accounts.keys() if accounts.get(name) != self.accounts.get(name)}
        self.accounts = accounts
        if changed:
            for observer in self.observers:
                observer.accounts_changed(changed)

    async def refresh(self) -> None:
        """Reads the Ledger again, as `read` does; an error of the API server is logged, and the last reading stays.

        Raises Corrupt where the ledger is malformed.
        """
        try:
            await self.read()
        except Corrupt:
            raise
        except LatticeError as error:
            event(log, "LedgerNotRead", logging.WARNING, reason=error.reason, message=error.message)

    async def holders_of_node(self, index: int) -> int | None:
        """Returns how many rows of the last reading, releasing ones included, hold the node with this index; 0 before there is a Ledger,
        None once it is lost, as work runs on without it.

        Raises Corrupt for a shard that does not decode.
        """
        await self._count()
        return None if self.lost else self._by_node[index]

    async def holders_of_tenant(self, name: str) -> int | None:
        """Returns how many rows of the Ledger that was read last, releasing ones included, belong to a tenant, by name; 0 before any.

        None: it was lost before this process read it. Raises Corrupt for a shard that does not decode.
        """
        await self._count()
        return None if self.lost and not self._shards else self._by_tenant[name]

    async def holders_of_vcluster(self, name: str) -> int | None:
        """Returns how many rows of the Ledger that was read last, releasing ones included, belong to a vcluster, by name; 0 before any.

        None: it was lost before this process read it. Raises Corrupt for a shard that does not decode.
        """
        await self._count()
        return None if self.lost and not self._shards else self._by_vcluster[name]

    async def _count(self) -> None:
        """Counts the rows of the last reading, unless these shards are counted already, yielding after each shard; a newer reading that
        comes meanwhile is counted after it.

        Raises Corrupt for a shard that does not decode.
        """
        while self._shards is not self._counted:
            shards = self._shards
            if shards == self._counted:
                self._counted = shards  # the next call compares no text
                return
            by_node, by_vcluster, by_tenant = Counter[int](), Counter[str](), Counter[str]()
            for shard in shards:
                for row in decode_shard(shard):
                    by_node.update(row.nodes)
                    by_vcluster[row.vcluster] += 1
                    by_tenant[row.tenant] += 1
                await self._clock.sleep(0)
            self._counted, self._by_node, self._by_vcluster, self._by_tenant = shards, by_node, by_vcluster, by_tenant
