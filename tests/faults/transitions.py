"""What changes in the cluster and when, as an onlooker sees it: the fault runs aim at these moments."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from lattice.errors import LatticeError
from lattice.kube.blocking import BlockingCluster
from lattice.kube.cluster import EventKind, T
from lattice.kube.resources import ALLOCATIONS, LEDGERS, NODES, TENANTS, Resource
from lattice.units import expand_nodes
from lattice.views import Allocation, Ledger, Node, Tenant

AGAIN_SECONDS = 0.2
WATCH_SECONDS = 600


@dataclass(frozen=True)
class Transition:
    """Something changed: `what` is the kind of change, `nodes` where it happened."""

    time: float
    what: str
    nodes: frozenset[str] = frozenset()


class Transitions:
    """Remembers every transition; `note` from any thread, `after` waits for the next one that is wanted."""

    def __init__(self) -> None:
        self._all: list[Transition] = []
        self._news = threading.Condition()

    def note(self, what: str, nodes: Iterable[str] = ()) -> None:
        """It has just happened."""
        with self._news:
            self._all.append(Transition(time.monotonic(), what, frozenset(nodes)))
            self._news.notify_all()

    def after(self, moment: float, wanted: Callable[[Transition], bool], within: float) -> Transition | None:
        """The first one after the moment, waited for; None when none comes within so many seconds."""
        deadline = time.monotonic() + within
        with self._news:
            position = bisect_left(self._all, moment, key=lambda transition: transition.time)
            while True:
                for position in range(position, len(self._all)):  # noqa: B020  # goes on where it stopped
                    if wanted(self._all[position]):
                        return self._all[position]
                position = len(self._all)
                if not self._news.wait(max(0.0, deadline - time.monotonic())):
                    return None

    def near(self, moment: float, wanted: Callable[[Transition], bool], seconds: float) -> bool:
        """Whether one happened so shortly before or after."""
        with self._news:
            return any(wanted(one) for one in self._all if abs(one.time - moment) <= seconds)

    def count(self) -> int:
        """How many there were."""
        with self._news:
            return len(self._all)


class Onlooker:
    """Watches allocations, ledger, tenants and nodes in threads of its own, whatever happens to the server meanwhile."""

    def __init__(self, connect: Callable[[], BlockingCluster], transitions: Transitions, namespace: str) -> None:
        self.allocations: dict[str, Allocation] = {}
        """By name, as last seen."""
        self._connect = connect
        self._transitions = transitions
        self._namespace = namespace
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._follow, args=(ALLOCATIONS, Allocation, self._on_allocation, namespace), daemon=True),
            threading.Thread(target=self._follow, args=(LEDGERS, Ledger, self._on_object("ledger"), ""), daemon=True),
            threading.Thread(target=self._follow, args=(TENANTS, Tenant, self._on_object("tenant"), ""), daemon=True),
            threading.Thread(target=self._follow, args=(NODES, Node, self._on_object("node"), ""), daemon=True),
        ]

    def start(self) -> None:
        """Begins to watch."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends at the next event."""
        self._ended.set()

    def _follow(self, resource: Resource, kind: type[T], on_object: Callable[[Any], None], namespace: str) -> None:
        while not self._ended.is_set():
            try:
                with closing(self._connect()) as cluster:
                    listing = cluster.list(resource, namespace, type=kind)
                    for item in listing.items:
                        on_object(item)
                    for event in cluster.watch(
                        resource, namespace, type=kind, resource_version=listing.resource_version, timeout_seconds=WATCH_SECONDS
                    ):
                        if event.object is not None and event.kind in (EventKind.ADDED, EventKind.MODIFIED):
                            on_object(event.object)
                        if self._ended.is_set():
                            return
            except LatticeError:
                self._ended.wait(AGAIN_SECONDS)

    def _on_allocation(self, allocation: Allocation) -> None:
        before = self.allocations.get(allocation.metadata.name)
        self.allocations[allocation.metadata.name] = allocation
        if before is None or _shape(before) != _shape(allocation):
            self._transitions.note("allocation", expand_nodes(allocation.status.nodes))

    def _on_object(self, what: str) -> Callable[[Any], None]:
        versions: dict[str, str] = {}

        def seen(item: Any) -> None:
            version = item.metadata.resource_version
            if versions.get(item.metadata.name) != version:
                versions[item.metadata.name] = version
                self._transitions.note(what, [item.metadata.name] if what == "node" else [])

        return seen


def _shape(allocation: Allocation) -> tuple[object, ...]:
    """What counts as a transition of an allocation when it differs."""
    status = allocation.status
    conditions = tuple((one.type, one.status, one.reason) for one in status.conditions)
    return status.phase, status.attempt, status.nodes, conditions, allocation.spec.cancel is not None
