"""The campaign for leadership: terms that go on ending for the same reason are begun ever later, all others after a second."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from lattice.daemon.clock import ManualClock
from lattice.errors import LatticeError, Rejected, Stale
from lattice.kube.fake import FakeCluster
from lattice.kube.resources import LEDGERS, Resource
from lattice_controllers.scheduler.__main__ import Settings, build
from lattice_controllers.scheduler.term import Outside


class FailingTerms(FakeCluster):
    """A server whose Ledger cannot be read: ends each term with the next of these errors, and notes when."""

    def __init__(self, clock: ManualClock, errors: list[LatticeError]) -> None:
        super().__init__(clock)
        self.ended: list[float] = []
        self._time = clock
        self._errors = errors

    async def get(self, resource: Resource, name: str, namespace: str = "", **options: Any) -> Any:
        if resource is LEDGERS and self._errors:
            self.ended.append(self._time.monotonic())
            raise self._errors.pop(0)
        return await super().get(resource, name, namespace, **options)


async def test_the_pause_grows_only_while_one_term_after_another_ends_for_the_same_reason(tmp_path: Path) -> None:
    clock = ManualClock()
    same = [Stale("the ledger went back") for _ in range(5)]
    cluster = FailingTerms(clock, [*same, Rejected("no"), Rejected("no"), Stale("the ledger went back"), Stale("the ledger went back")])
    works, _ = build(Settings(), Outside(cluster, clock, records=tmp_path))
    campaign = asyncio.ensure_future(next(iter(works))())
    try:
        await clock.run_for(120)
    finally:
        campaign.cancel()
        await asyncio.gather(campaign, return_exceptions=True)
    pauses = [round(after - before) for before, after in zip(cluster.ended, cluster.ended[1:], strict=False)]
    assert pauses == [1, 2, 4, 8, 8, 1, 1, 1]
