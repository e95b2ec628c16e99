"""Copies the hard limits of tenants and the size of the sensitive pool into the ledger whenever they change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence

from lattice.daemon.logs import event
from lattice.kube.lasting import LastKnown
from lattice.ledger.proposals import Forget, Limits, Proposal, ProposalRefused, SensitivePool
from lattice.views import Config, Tenant
from lattice_controllers.scheduler.committer import Committer

log = logging.getLogger(__name__)


class LimitSync:
    """Keeps the limits in the ledger equal to those that Tenants and the LatticeConfig declare; sets `cycle_due` after each change."""

    def __init__(self, committer: Committer, *, tenants: Mapping[str, Tenant], config: LastKnown[Config], cycle_due: asyncio.Event) -> None:
        self._committer = committer
        self._tenants = tenants
        self._config = config
        self._cycle_due = cycle_due
        self._dirty = asyncio.Event()

    def limits_changed(self) -> None:
        """Notes that tenants or options changed; `run` then copies the limits."""
        self._dirty.set()

    async def run(self) -> None:
        """Copies the limits of every tenant and the size of the sensitive pool into the ledger after each change, until cancelled.

        The ledger's accounts of tenants that are gone are removed first. What the ledger refuses is logged; `cycle_due` is set each time.
        """
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            config = self._config.object
            pool = SensitivePool(config.spec.scheduling.sensitive_pool_size if config is not None else 0)
            wanted = [limits_of(tenant) for tenant in self._tenants.values()]
            gone = [Forget(name) for name in self._committer.book.accounts if name not in self._tenants]
            await self._propose_all(gone)
            await self._propose_all([pool, *wanted])
            self._cycle_due.set()

    async def _propose_all(self, proposals: Sequence[Proposal]) -> None:
        """Proposes these changes to the ledger at once and awaits all verdicts; a refusal is logged."""
        for answer in [self._committer.propose(proposal) for proposal in proposals]:
            verdict = await answer
            if isinstance(verdict, ProposalRefused):
                event(log, "The ledger refused a limit", logging.WARNING, reason=verdict.reason, message=verdict.message)


def limits_of(tenant: Tenant) -> Limits:
    """Returns the hard limits that a Tenant declares, as a proposal to the ledger."""
    quota = tenant.spec.quota
    own = quota.per_user
    return Limits(tenant.metadata.name, quota.max_nodes, quota.max_concurrent_allocations, own.max_nodes, own.max_running)
