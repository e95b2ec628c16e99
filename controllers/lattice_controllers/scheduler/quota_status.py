"""Publishes how each group of the quota tree stands: in the status of its ElasticQuota, in Koordinator's annotations, as metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Container, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, Protocol

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import LatticeError, NotFound
from lattice.kube.cluster import Cluster
from lattice.kube.resources import ELASTIC_QUOTAS, KOORDINATOR_QUOTAS
from lattice.quota.declared import DEFAULT, KOORDINATOR, OURS, Declared
from lattice.quota.forest import Forest, Overuse
from lattice.quota.layout import Origin, objects, origin_of
from lattice.quota.publication import News, Patch, is_published, koordinator_patch, status_patch
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.scheduling.state.quota_usage import QuotaUsage
from lattice.units import format_time
from lattice.views import ElasticQuota, KoordinatorQuota
from lattice_controllers.scheduler.committer import LedgerAccess
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.quotas import Quotas

log = logging.getLogger(__name__)

PUBLISH_SECONDS: Final = 1.0
"""Least time between two writes of one object."""
AT_ONCE: Final = 16
LOOKING: Final = 10
"""Publishing takes at most one second in this many."""
A_SLICE: Final = 64
"""Groups that are looked at before the loop runs other tasks."""
MANAGER: Final = "lattice-scheduler"
_SOUND: Final = ("", "")


class OveruseView(Protocol):
    """Knows which groups of the quota trees use more than they may; `Revocations` is the implementation."""

    @property
    def over(self) -> Mapping[str, Overuse]:
        """Returns the overuse of each group that uses more than it may, by its name, as of the last sample."""
        ...

    def over_since(self) -> Mapping[str, str]:
        """Returns, by name of each group that uses more than it may, since when it does (RFC 3339)."""
        ...


class QuotaStatus:
    """The one writer of the status of ElasticQuotas and of the annotations of Koordinator's quotas."""

    def __init__(
        self, cluster: Cluster, clock: Clock, state: ClusterState, quotas: Quotas, overuse: OveruseView, ledger: LedgerAccess,
        metrics: SchedulerMetrics,
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._clock = clock
        self._state = state
        self._quotas = quotas
        self._metrics = metrics
        self._overuse = overuse
        self._ledger = ledger
        self._written: dict[Origin, Patch] = {}
        """The last patch of each Koordinator quota: a part that its kind has no field for would else be written again and again."""
        self._measured: set[tuple[str, str, str]] = set()

    async def run(self) -> None:
        """Publishes until cancelled, each second while the ledger is not paused; with very many groups less often, so that it takes a tenth
        of the time at most.
        """
        took = 0.0
        while True:
            await self._clock.sleep(max(PUBLISH_SECONDS, took * LOOKING))
            if self._ledger.paused:
                continue
            began = self._clock.monotonic()
            await self.publish()
            took = self._clock.monotonic() - began

    async def publish(self) -> None:
        """Writes into each ElasticQuota's status and each Koordinator quota's annotations how its group stands, where that has changed.

        Sets the metrics of all groups. A write that fails is logged, and done again the next time.
        """
        quota_usage, faults = self._state.quota_usage, dict(self._quotas.faults())
        news: dict[Origin, News] = {}
        if quota_usage is not None:
            self._forget_gone()
            scarce = {tree: quota_usage.forest.scarce(tree) for tree in quota_usage.forest.trees()}
            for place, (origin, declared) in enumerate(objects(self._quotas.layout.groups)):
                news[origin] = self._news(quota_usage, declared, faults.get(origin), scarce)
                if place % A_SLICE == A_SLICE - 1:
                    await asyncio.sleep(0)
            default = self._quotas.layout.default
            if default is not None:
                news[origin_of(default.source)] = News(standing=replace(quota_usage.forest.standing(DEFAULT), runtime=default.max))
        for origin, fault in faults.items():
            news.setdefault(origin, News(fault=fault))
        writes = list(self._writes(news))
        for begin in range(0, len(writes), AT_ONCE):
            await asyncio.gather(*(self._write(*each) for each in writes[begin : begin + AT_ONCE]))

    def _news(
        self, quota_usage: QuotaUsage, declared: Declared, fault: tuple[str, str] | None, scarce: Mapping[str, frozenset[str]]
    ) -> News:
        """Returns how a declared group stands, to be published in its object, and sets its metrics.

        `fault`: reason and sentence of an error in the object, None without one; `scarce`: by tree, the resources scarce on its first
        level.
        """
        name, forest = declared.name, quota_usage.forest
        standing, over = forest.standing(name), self._overuse.over.get(name)
        self._measure(declared, standing.tree, {"request": standing.request, "used": standing.used, "runtime": standing.runtime})
        return News(
            standing=standing,
            fault=fault,
            total=forest.total(standing.tree) if not standing.parent else None,
            over={} if over is None else {key: (over.used.get(key, 0), allowed) for key, allowed in over.allowed.items()},
            over_since=self._overuse.over_since().get(name),
            scarce=self._scarce(forest, name, scarce.get(standing.tree, frozenset())),
        )

    def _scarce(self, forest: Forest, name: str, level: frozenset[str]) -> Container[str]:
        """Returns the resources of which the guaranteed minimum of a group cannot be met now.

        These are `level`, the ones scarce on the first level of its tree; but all resources of its minimum, where the children of one of
        its ancestors are promised more than that has.
        """
        breaches = self._quotas.layout.breaches
        if breaches and any(breaches.get(above, _SOUND)[0] == "MinSumAboveParent" for above in forest.path(name)[1:]):
            return forest.standing(name).min
        return level

    def _writes(self, news: Mapping[Origin, News]) -> Iterator[tuple[Origin, Patch]]:
        """Yields the patches of all objects that do not show their news yet."""
        now = format_time(self._clock.now())
        for view in list(self._quotas.ours.objects.values()):
            origin = (OURS, "", view.metadata.name)
            patch = status_patch(view, news.get(origin, News()), now)
            if patch is not None:
                yield origin, patch
        for quota in list(self._quotas.quotas().values()):
            origin = (KOORDINATOR, quota.metadata.namespace, quota.metadata.name)
            patch = koordinator_patch(quota, news.get(origin, News()))
            if not is_published(quota, patch) and self._written.get(origin) != patch:
                yield origin, patch

    async def _write(self, origin: Origin, patch: Patch) -> None:
        """Patches the status of an ElasticQuota or the annotations of a Koordinator quota; a failure is logged, an object that is gone
        passed over.
        """
        group, namespace, name = origin
        resource, subresource = (ELASTIC_QUOTAS, "status") if group == OURS else (KOORDINATOR_QUOTAS, "")
        kind: Any = ElasticQuota if group == OURS else KoordinatorQuota
        self._metrics.writes.labels("quota").inc()
        try:
            written = await self._cluster.patch(resource, name, patch, namespace, subresource=subresource, manager=MANAGER, type=kind)
        except NotFound:
            return  # the informer tells
        except LatticeError as error:
            event(log, "QuotaStatusNotWritten", logging.WARNING, quota=name, reason=error.reason, message=error.message)
            return
        if group == KOORDINATOR:
            self._written[origin] = patch
        else:
            self._quotas.seen(written)

    def _measure(self, declared: Declared, tree: str, values: Mapping[str, Mapping[str, int]]) -> None:
        """Sets the metrics of one group for every resource that it bounds; `values`: amounts by the name of the metric."""
        for resource in declared.max:
            labels = (declared.name, tree or "default", resource)
            self._measured.add(labels)
            for what, amounts in values.items():
                self._metrics.quota[what].labels(*labels).set(amounts.get(resource, 0))

    def _forget_gone(self) -> None:
        """Removes the metrics of groups that no object declares any more."""
        groups = self._quotas.layout.groups
        for labels in [labels for labels in self._measured if labels[0] not in groups or labels[2] not in groups[labels[0]].max]:
            self._measured.discard(labels)
            for gauge in self._metrics.quota.values():
                gauge.remove(*labels)
