"""Converts Reservations for the cycle: the nodes that each of them holds, and its next windows. Pure.

Older reservations choose first. Named nodes are those that exist; a number of nodes is chosen once, free nodes first, and kept: the
nodes in the status are chosen again as long as they fit. Recurrences are compared for `AHEAD_SECONDS`; an overlap that lies later
is reported when it has come that near.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import nsmallest
from itertools import islice, takewhile
from typing import Final

from lattice.errors import Rejected
from lattice.lifecycle.reservations import ACTIVE, ENDED, IMPOSSIBLE, PLANNED, Calendar, Span, calendar_of, first_meeting, show_span
from lattice.scheduling.cluster.node_cache import HOLLOW, NodeCache, indices_of
from lattice.scheduling.model.hardware import Hardware, Key, NodeFacts
from lattice.scheduling.model.windows import ReservationWindow
from lattice.units import expand_nodes, fold_nodes, format_time
from lattice.views.reservation import Reservation, ReservationSpec

AHEAD_SECONDS: Final = 60 * 86400.0
MOST_WINDOWS: Final = 16
"""Most windows of one reservation, the open one included, that a cycle reads."""
NODES_MISSING, OVERLAPS, CALENDAR_INVALID = "NodesMissing", "Overlaps", "CalendarInvalid"
_NAMED: Final = 5
_DAY: Final = 86400.0


@dataclass(frozen=True, slots=True)
class Booking:
    """The nodes and windows that one Reservation gets, with the state, reason and sentence for its status; `nodes`: a bit set of
    indices.

    `spans`: its open window and the next ones. `sound`: it holds all that it asks for.
    """

    reservation: Reservation
    state: str
    reason: str
    message: str
    nodes: int = 0
    spans: tuple[Span, ...] = ()
    sound: bool = True

    @property
    def name(self) -> str:
        """Returns the reservation's name."""
        return self.reservation.metadata.name

    @property
    def changes(self) -> float | None:
        """Returns when the open window ends or, if none is open, when the next one begins, seconds since the epoch; None: none is left."""
        if not self.spans:
            return None
        first = self.spans[0]
        return first.end if self.state == ACTIVE else first.start

    def windows(self) -> tuple[ReservationWindow, ...]:
        """Returns the windows in which cycles keep other work off the nodes; empty where it holds none."""
        spec = self.reservation.spec
        admitted = frozenset(spec.users), frozenset(spec.tenants), frozenset(spec.vclusters)
        return tuple(
            ReservationWindow(
                self.name, span.start, span.end, self.nodes, *admitted, maintenance=spec.maintenance, ignore_running=spec.ignore_running
            )
            for span in self.spans
            if self.nodes
        )


_Meeting = list[tuple[str, int, tuple[Span, Span]]]


@dataclass
class _OlderReservations:
    """The nodes and calendars of the older Reservations, which were booked before."""

    entries: list[tuple[str, Calendar, int]] = field(default_factory=list)

    def meeting(self, calendar: Calendar, nodes: int, now: float) -> _Meeting:
        """Returns the older Reservations that hold some of `nodes` in a window that overlaps one of this calendar.

        Each with its name, these nodes, and the first two windows that overlap.
        """
        found: _Meeting = []
        for name, other, theirs in self.entries:
            pair = _meet(calendar, other, now) if theirs & nodes else None
            if pair is not None:
                found.append((name, theirs & nodes, pair))
        return found


def _meet(one: Calendar, two: Calendar, now: float) -> tuple[Span, Span] | None:
    """Returns the first two windows of two calendars that overlap and are not over at `now`; None: none do, for two recurring calendars
    within 60 days.
    """
    pair = _meet_from(one, two, now // _DAY * _DAY)
    return one.overlap(two, now) if pair is not None and min(pair[0].end, pair[1].end) <= now else pair


# The same questions are asked at every change: each is answered once a day.


@lru_cache(maxsize=65536)
def _meet_from(one: Calendar, two: Calendar, since: float) -> tuple[Span, Span] | None:
    """Returns the first two windows of two calendars that overlap and end after `since`; None: none do.

    Two recurring calendars are compared for the next 60 days only. Seconds since the epoch.
    """
    if one.recurs and two.recurs:
        return first_meeting(iter(_ahead(one, since)), iter(_ahead(two, since)))
    return one.overlap(two, since)


@lru_cache(maxsize=1024)
def _ahead(calendar: Calendar, since: float) -> tuple[Span, ...]:
    """Returns the windows of a calendar that end after `since` and begin within 60 days of it."""
    return tuple(takewhile(lambda span: span.start < since + AHEAD_SECONDS, calendar.spans(since)))


@lru_cache(maxsize=1024)
def _next(calendar: Calendar, since: float) -> tuple[Span, ...]:
    """Returns the first 20 windows of a calendar that end after `since`, seconds since the epoch."""
    return tuple(islice(calendar.spans(since), MOST_WINDOWS + 4))


_calendar = lru_cache(maxsize=1024)(calendar_of)
_expanded = lru_cache(maxsize=1024)(lambda text: tuple(dict.fromkeys(expand_nodes(text))))


def _spans(calendar: Calendar, now: float) -> tuple[Span, ...]:
    """Returns the open window and the next ones, `MOST_WINDOWS` in all."""
    return tuple(islice((span for span in _next(calendar, now // _DAY * _DAY) if span.end > now), MOST_WINDOWS))


def book(reservations: Iterable[Reservation], node_cache: NodeCache, now: float, chosen: Mapping[str, int]) -> dict[str, Booking]:
    """Returns for each Reservation, by name, the nodes and windows that it gets; older Reservations choose first.

    `chosen`: by uid, the nodes (bit sets) that were chosen for it before and are kept if possible. `now`: seconds since the epoch. One that
    gets none is in the answer too, with the reason: its text does not parse, it is over, nodes are missing, or older ones hold them.
    """
    held, bookings = _OlderReservations(), dict[str, Booking]()
    for one in sorted(reservations, key=lambda entry: (entry.metadata.creation_timestamp, entry.metadata.name)):
        booking, calendar = _book(one, node_cache, now, held, chosen.get(one.metadata.uid, 0))
        bookings[booking.name] = booking
        if booking.nodes and calendar is not None:
            held.entries.append((booking.name, calendar, booking.nodes))
    return bookings


def node_set(mask: int, node_cache: NodeCache) -> str:
    """Returns the names of the nodes of a bit set as text in node set notation, in the order of names; unknown indices are left out."""
    return fold_nodes(sorted(node_cache.nodes[index].name for index in indices_of(mask) if index in node_cache.nodes))


def _book(one: Reservation, node_cache: NodeCache, now: float, held: _OlderReservations, before: int) -> tuple[Booking, Calendar | None]:
    """Books one Reservation after the older ones (`held`); returns its booking and its calendar, None where its text does not parse.

    `before`: the nodes (bit set) chosen for it before, kept if they still fit.
    """
    spec = one.spec
    try:
        calendar = _calendar(spec)
        names = _expanded(spec.nodes)
    except Rejected as error:
        return Booking(one, IMPOSSIBLE, CALENDAR_INVALID, error.message, sound=False), None
    spans = _spans(calendar, now)
    if not spans:
        return Booking(one, ENDED, ENDED, "its last window is over"), calendar
    if spec.nodes:
        mask = mask_of(node_cache.by_name[name] for name in names if name in node_cache.by_name)
        missing = [name for name in names if name not in node_cache.by_name]
        return _named(one, mask, missing, node_cache, now, spans, held.meeting(calendar, mask, now)), calendar
    kept = mask_of(index for index in indices_of(before) if _fits(node_cache.nodes.get(index), spec))
    if kept.bit_count() == spec.node_count and not held.meeting(calendar, kept, now):
        return _standing(one, kept, now, spans, _busy(kept, node_cache, spans[0].start, now)), calendar
    suiting = [bucket for bucket in node_cache.buckets.values() if _suits(bucket.key, spec)]
    exist = sum(len(bucket.members) for bucket in suiting)
    if exist < (spec.node_count or 0):
        return Booking(one, IMPOSSIBLE, NODES_MISSING, _too_few(spec.node_count or 0, exist), sound=False), calendar
    fitting = mask_of(index for bucket in suiting for index in bucket.members)
    return _counted(one, fitting, node_cache, now, spans, held.meeting(calendar, fitting, now), before), calendar


def mask_of(indices: Iterable[int]) -> int:
    """Returns the bit set of node indices; an index given more than once counts once."""
    mask = bytearray()
    for index in indices:
        if index >> 3 >= len(mask):
            mask.extend(bytes((index >> 3) + 1 - len(mask)))
        mask[index >> 3] |= 1 << (index & 7)
    return int.from_bytes(mask, "little")


def _named(
    one: Reservation, mask: int, missing: list[str], node_cache: NodeCache, now: float, spans: tuple[Span, ...], meeting: _Meeting
) -> Booking:
    """Books a Reservation that names its nodes: those that exist, not sound where some are missing; none where none exists, or where an
    older Reservation holds some of them at that time.
    """
    for other, nodes, (mine, theirs) in meeting:
        message = (
            f'its window {show_span(mine)} meets {show_span(theirs)} of reservation "{other}", which was made earlier and holds '
            f"{_shown(nodes, node_cache)} too"
        )
        return Booking(one, IMPOSSIBLE, OVERLAPS, message, sound=False)
    lack = f"{len(missing)} of {len(missing) + mask.bit_count()} nodes do not exist: {_few(missing)}"
    if not mask:
        return Booking(one, IMPOSSIBLE, NODES_MISSING, lack, sound=False)
    if missing:
        return Booking(one, _state(spans[0], now), NODES_MISSING, f"{lack}; the others are held", mask, spans, sound=False)
    return _standing(one, mask, now, spans)


def _counted(
    one: Reservation, fitting: int, node_cache: NodeCache, now: float, spans: tuple[Span, ...], meeting: _Meeting, before: int
) -> Booking:
    """Books a Reservation of a number of nodes among the `fitting` ones: those chosen before, then usable ones that come free earliest;
    none where older Reservations leave too few.
    """
    count, elsewhere = one.spec.node_count or 0, 0
    for _, nodes, _ in meeting:
        elsewhere |= nodes
    free = fitting & ~elsewhere
    if free.bit_count() < count:
        others = ", ".join(f'"{name}"' for name, _, _ in meeting)
        message = f"{_too_few(count, fitting.bit_count())}, {elsewhere.bit_count()} of them held at that time by reservation {others}"
        return Booking(one, IMPOSSIBLE, OVERLAPS, message, sound=False)
    start = spans[0].start

    def rank(index: int) -> tuple[bool, float, int]:
        """Returns the sort key of a node for the choice: usable ones first, then those that come free earliest, then the lowest index."""
        return not node_cache.nodes[index].usable, max(start, node_cache.taken.get(index, start)), index

    kept = list(indices_of(free & before))[:count]
    kept += nsmallest(count - len(kept), indices_of(free & ~before), key=rank)
    mask = mask_of(kept)
    return _standing(one, mask, now, spans, _busy(mask, node_cache, start, now))


def _too_few(count: int, exist: int) -> str:
    """Returns the clause that a Reservation asks for `count` nodes and `exist` exist that fit."""
    return f"asks for {count} {'node' if count == 1 else 'nodes'}; {exist} exist that fit"


def _busy(mask: int, node_cache: NodeCache, start: float, now: float) -> int:
    """Returns how many of the nodes may still be held at `start`, the begin of a window to come; 0 where it has begun."""
    return sum(node_cache.taken.get(index, start) > start for index in indices_of(mask)) if start > now else 0


def _standing(one: Reservation, mask: int, now: float, spans: tuple[Span, ...], busy: int = 0) -> Booking:
    """Makes the booking of a Reservation that holds all that it asks for; `busy`: nodes on which work may last into the window."""
    state, first, count = _state(spans[0], now), spans[0], mask.bit_count()
    nodes = "1 node is" if count == 1 else f"{count} nodes are"
    message = f"{nodes} held until {format_time(first.end)}" if state == ACTIVE else f"{nodes} held from {format_time(first.start)}"
    if busy:
        message += f"; work on {busy} of them may last longer, and goes on to its end"
    return Booking(one, state, state, message, mask, spans)


def _state(span: Span, now: float) -> str:
    """Returns Active where a window has begun at `now`, else Planned."""
    return ACTIVE if span.start <= now else PLANNED


def _fits(facts: NodeFacts | None, spec: ReservationSpec) -> bool:
    """Tells whether a node may be chosen for a Reservation of a number of nodes; False for an unknown node (None)."""
    return facts is not None and _class_fits(facts, spec) and (not spec.groups or facts.group in spec.groups)


def _suits(key: Key, spec: ReservationSpec) -> bool:
    """Tells whether a bucket has the features and GPU type that a Reservation of a number of nodes asks for, and is of one of its groups.

    No groups: any. Hollow nodes suit where it asks for the feature `hollow`, and only they do. Home vcluster and free nodes do not matter.
    """
    return _class_fits(key.hardware, spec) and (not spec.groups or key.group in spec.groups)


def _class_fits(hardware: Hardware | NodeFacts, spec: ReservationSpec) -> bool:
    """Tells whether hardware has the features and GPU type that a Reservation asks for; hollow nodes only where it asks for them."""
    return (
        hardware.hollow == (HOLLOW in spec.features)
        and hardware.features.issuperset(spec.features)
        and (not spec.gpu_type or hardware.gpu_type.lower() == spec.gpu_type.lower())
    )


def _shown(mask: int, node_cache: NodeCache) -> str:
    """Returns the names of the nodes of a bit set for a sentence: five in node set notation, then how many more there are."""
    return _few(sorted(node_cache.nodes[index].name for index in indices_of(mask) if index in node_cache.nodes))


def _few(names: list[str]) -> str:
    """Returns the first five names in node set notation, then how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return fold_nodes(names[:_NAMED]) + more
