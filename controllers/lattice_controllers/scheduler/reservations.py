"""Reservations as the scheduler knows them: keeps their windows for cycles, and is the one writer of their status."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from typing import Any

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.daemon.queue import KeyedQueue
from lattice.errors import NotFound, Rejected
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Change
from lattice.kube.resources import RESERVATIONS
from lattice.lifecycle.conditions import FALSE, TRUE, encode, same_but_for_times, with_condition, without_conditions
from lattice.lifecycle.reservations import IMPOSSIBLE
from lattice.lifecycle.settle import is_final
from lattice.models.conditions import READY, STALLED
from lattice.scheduling.cluster.node_cache import NodeCache, indices_of
from lattice.scheduling.conversion.calendar import Booking, book, mask_of, node_set
from lattice.scheduling.model.hardware import NodeFacts
from lattice.scheduling.model.windows import ReservationWindow
from lattice.units import expand_nodes, format_time
from lattice.views.allocation import Allocation
from lattice.views.reservation import Reservation
from lattice_controllers.scheduler.committer import LedgerAccess

log = logging.getLogger(__name__)

COUNT_SECONDS = 1.0
"""How late the number of allocations in a status may be, so that a thousand submissions cost one write."""


class Reservations:
    """Keeps what every Reservation comes to (its booking: state, nodes, windows), and writes its status.

    Informers call `on_reservation` and `on_allocation`; `node_changed` is called once the node cache shows the change, `started` once
    everything has been listed. Sets `cycle_due` when windows have changed.
    """

    def __init__(self, cluster: Cluster, clock: Clock, node_cache: NodeCache, ledger: LedgerAccess, cycle_due: asyncio.Event) -> None:
        self.objects: dict[str, Reservation] = {}
        self.synced = False
        self._cluster = cluster
        self._clock = clock
        self._node_cache = node_cache
        self._ledger = ledger
        self._cycle_due = cycle_due
        self._chosen: dict[str, frozenset[str]] = {}
        self._asking: dict[str, str] = {}
        self._uses: Counter[str] = Counter()
        self._nodes: dict[str, NodeFacts] = {}
        self._bookings: dict[str, Booking] | None = None
        self._windows: tuple[ReservationWindow, ...] = ()
        self._valid_until = float("-inf")
        self.queue = KeyedQueue(self.reconcile, clock, workers=2, name="reservations")

    # -- what informers tell ------------------------------------------------------------------------

    def on_reservation(self, change: Change[Reservation]) -> None:
        """Handles a changed Reservation: has all booked anew where its spec changed or it came or went, else enqueues it for its status."""
        before, after = change.old, change.new
        if after is None:
            self.objects.pop(change.key, None)
            if before is not None:
                self._chosen.pop(before.metadata.uid, None)
        else:
            self.objects[change.key] = after
        if before is None or after is None or before.spec != after.spec or before.metadata.uid != after.metadata.uid:
            self._again()
        else:
            self.queue.add(change.key)

    def started(self) -> None:
        """Sets `synced`, from which on nodes are booked and statuses written; called once nodes, rows and reservations have been listed."""
        self.synced = True
        self._again()

    def node_changed(self, name: str) -> None:
        """Has all reservations booked anew where the changed node, by name, may have come into, or gone out of, one of them."""
        index = self._node_cache.by_name.get(name)
        facts = self._node_cache.nodes.get(index) if index is not None else None
        before = self._nodes.pop(name, None)
        if facts is not None:
            self._nodes[name] = facts
        if self.objects and _choice(before) != _choice(facts):
            self._again()

    def on_allocation(self, change: Change[Allocation]) -> None:
        """Handles a changed Allocation: counts it among those that ask for the Reservation that it names, until it has ended or is gone.

        Reservations whose count changed are enqueued to be written a second later.
        """
        one = change.new or change.old
        if one is None:
            return
        uid = one.metadata.uid
        name = one.spec.reservation if change.new is not None and not is_final(one.status) else ""
        before = self._asking.pop(uid, "")
        if name:
            self._asking[uid] = name
        if before != name:
            self._uses.subtract(filter(None, (before,)))
            self._uses.update(filter(None, (name,)))
            for touched in filter(None, (before, name)):
                self.queue.add(touched, COUNT_SECONDS)

    def _again(self) -> None:
        """Drops all bookings, and enqueues every Reservation to be reconciled; sets `cycle_due` once `synced`."""
        self._bookings = None
        for name in self.objects:
            self.queue.add(name)
        if self.synced:
            self._cycle_due.set()

    # -- what the cycle asks ------------------------------------------------------------------------

    def windows(self, now: float) -> tuple[ReservationWindow, ...]:
        """Returns the open and next windows of all reservations; the very same tuple until they change. Empty until `started`."""
        self.bookings(now)
        return self._windows

    def wake(self, now: float) -> float | None:
        """Returns when the next window begins or ends, seconds since the epoch; None: none will, as things stand.

        Called after `started` only: before, it returns minus infinity.
        """
        self.bookings(now)
        return None if self._valid_until == float("inf") else self._valid_until

    def bookings(self, now: float) -> dict[str, Booking]:
        """Returns the booking of each reservation (its state, nodes and windows) at `now`, by name, kept until the first of them changes by
        itself; empty until `started`.

        Nodes that a reservation of a number of nodes was given are remembered: it keeps them if it can.
        """
        if not self.synced:
            return {}
        if self._bookings is not None and now < self._valid_until:
            return self._bookings
        counted = [one for one in self.objects.values() if one.spec.node_count is not None]
        chosen = {one.metadata.uid: self._mask(self._chosen.get(one.metadata.uid) or _names(one)) for one in counted}
        found = book(self.objects.values(), self._node_cache, now, chosen)
        for one in counted:
            nodes = found[one.metadata.name].nodes
            if nodes:
                self._chosen[one.metadata.uid] = frozenset(self._node_cache.nodes[index].name for index in indices_of(nodes))
        self._bookings = found
        windows = tuple(window for name in sorted(found) for window in found[name].windows())
        if windows != self._windows:
            self._windows = windows
        self._valid_until = min((booking.changes for booking in found.values() if booking.changes is not None), default=float("inf"))
        return found

    def _mask(self, names: Iterable[str]) -> int:
        """Returns the nodes of these names as a bit set of indices; unknown names are left out."""
        return mask_of(self._node_cache.by_name[name] for name in names if name in self._node_cache.by_name)

    # -- the status ---------------------------------------------------------------------------------

    async def reconcile(self, name: str) -> float | None:
        """Writes a Reservation's status where it differs from its booking; sets `cycle_due` where a reservation window has begun or ended.

        Returns the seconds until the booking changes by itself; None: it does not, or nothing may be written now.
        """
        one = self.objects.get(name)
        if one is None or not self.synced or self._ledger.paused:
            return None
        now, due = self._clock.now(), self._valid_until
        booking = self.bookings(now).get(name)
        if now >= due:
            self._cycle_due.set()  # a window has begun or ended: work may start, or must not
        if booking is None:
            return None
        changed = status_changes(one, booking, node_set(booking.nodes, self._node_cache), self._uses[name], now)
        if changed:
            patch = {"metadata": {"resourceVersion": one.metadata.resource_version}, "status": changed}
            try:
                written = await self._cluster.patch(RESERVATIONS, name, patch, subresource="status", type=Reservation)
            except NotFound:
                return None  # the informer tells
            if self.objects.get(name) is one:
                self.objects[name] = written
            event(log, "Reservation", reservation=name, state=booking.state, reason=booking.reason, nodes=booking.nodes.bit_count())
        return None if booking.changes is None else max(0.05, booking.changes - self._clock.now())


def status_changes(one: Reservation, booking: Booking, nodes: str, allocations: int, now: float) -> dict[str, Any]:
    """Returns the fields of the status that must change to show a booking, as a merge patch of the status; empty: none must.

    `nodes` are the names of the booking's nodes as a node set, `allocations` counts those that ask for the reservation.
    """
    status = one.status
    span = booking.spans[0] if booking.spans else None
    latter: dict[str, Any] = {
        "observedGeneration": one.metadata.generation,
        "state": booking.state,
        "nodes": nodes,
        "nodeCount": booking.nodes.bit_count(),
        "windowStart": format_time(span.start) if span else None,
        "windowEnd": format_time(span.end) if span else None,
        "allocations": allocations,
    }
    former = {
        "observedGeneration": status.observed_generation,
        "state": status.state,
        "nodes": status.nodes,
        "nodeCount": status.node_count,
        "windowStart": status.window_start,
        "windowEnd": status.window_end,
        "allocations": status.allocations,
    }
    changed = {name: value for name, value in latter.items() if former[name] != value}
    ready, at = TRUE if booking.sound else FALSE, format_time(now)
    conditions = with_condition(
        without_conditions(status.conditions, [STALLED]), READY, ready, booking.reason, booking.message,
        generation=one.metadata.generation, now=at,
    )  # fmt: skip
    if booking.state == IMPOSSIBLE:
        before = tuple(entry for entry in status.conditions if entry.type == STALLED)
        conditions = with_condition(
            (*conditions, *before), STALLED, TRUE, booking.reason, booking.message, generation=one.metadata.generation, now=at
        )
    if not same_but_for_times(status.conditions, conditions):
        changed["conditions"] = encode(conditions)
    return changed


def _names(one: Reservation) -> frozenset[str]:
    """Returns the nodes that an earlier scheduler chose, read from the reservation's status; none where that does not read."""
    try:
        return frozenset(expand_nodes(one.status.nodes))
    except Rejected:
        return frozenset()


def _choice(facts: NodeFacts | None) -> tuple[object, ...]:
    """Returns the facts of a node that decide whether a reservation may hold it; empty for no node (None)."""
    return () if facts is None else (facts.index, facts.group, facts.features, facts.gpu_type, facts.hollow)
