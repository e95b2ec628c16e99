"""The ledger audit: checks every few seconds that the stored ledger is still this leader's, and that it is free of faults."""

from __future__ import annotations

import logging

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import LatticeError, NotFound
from lattice.kube.cluster import Cluster
from lattice.kube.resources import LEDGERS, NODE_INDEXES
from lattice.ledger.verify import verify
from lattice.views import Ledger, NodeIndex
from lattice_controllers.scheduler.committer import Committer, Deposed
from lattice_controllers.scheduler.metrics import SchedulerMetrics

log = logging.getLogger(__name__)

VERIFY_SECONDS = 30.0
CHECK_SECONDS = 3.0
"""Time between two checks that the stored ledger is the one that this leader wrote last."""
AGAIN_SECONDS = 1.0


class LedgerAudit:
    """Ends the term where the stored ledger is not this leader's any more, and shows its faults in a metric and in the log."""

    def __init__(self, cluster: Cluster, clock: Clock, committer: Committer, metrics: SchedulerMetrics) -> None:
        self._cluster = cluster
        self._clock = clock
        self._committer = committer
        self._metrics = metrics

    async def watch_ledger(self) -> None:
        """Checks every 3 s, until cancelled, that the stored Ledger is the one that this leader wrote last.

        Raises Deposed where it went back, was taken by another or is gone. Other errors of the API server are passed over.
        """
        while True:
            await self._clock.sleep(CHECK_SECONDS)
            try:
                await self._committer.check_stored()
            except Deposed:
                raise
            except LatticeError:
                pass  # the API server does not answer: the informers say so

    async def verify(self) -> None:
        """Runs the independent verifier over the stored ledger every 30 s, until cancelled; raises Deposed where ledger or NodeIndex is
        gone.

        Other errors of the API server are logged.
        """
        while True:
            await self._clock.sleep(VERIFY_SECONDS)
            try:
                await self._verify_once()
            except Deposed:
                raise
            except LatticeError as error:
                event(log, "Trying again", reason=error.reason, message=error.message)
                await self._clock.sleep(AGAIN_SECONDS)

    async def _verify_once(self) -> None:
        """Verifies the stored ledger once, and shows its faults in a metric and in the log.

        Raises Deposed where Ledger or NodeIndex is gone, since only a new term may make them again.
        """
        try:
            index = await self._cluster.get(NODE_INDEXES, "lattice", type=NodeIndex)
            ledger = await self._cluster.get(LEDGERS, "lattice", type=Ledger)
        except NotFound as error:
            raise Deposed(f"{error.message}: it is gone", reason="LedgerGone") from error
        if ledger.status is None:
            return
        faults = verify(ledger.status, {int(number): name for number, name in index.spec.names.items()})
        self._metrics.faults.set(len(faults))
        for fault in faults:
            event(log, "The ledger has a fault", fault=fault)
