"""Computes when a Reservation holds its nodes: the windows of its recurrence, and its state at a moment. Pure.

Windows begin at the same local time of the reservation's time zone, so that 02:00 stays 02:00 when the clocks change. A local time
that does not exist (spring) moves forward by the length of the gap; one that comes twice (autumn) is the first of the two. Each
window lasts its duration in elapsed seconds; where a change of the clocks brings the next window nearer than that, it ends where
the next one begins. Windows of one reservation therefore never overlap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import pairwise, takewhile
from typing import Final
from zoneinfo import ZoneInfo

from lattice.errors import Rejected
from lattice.units import format_duration, format_time, parse_duration
from lattice.views.reservation import ReservationSpec

PLANNED: Final = "Planned"
ACTIVE: Final = "Active"
ENDED: Final = "Ended"
IMPOSSIBLE: Final = "Impossible"
STATES: Final = (PLANNED, ACTIVE, ENDED, IMPOSSIBLE)

WEEKDAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
LEAST_SECONDS: Final = 60.0
MOST_SECONDS: Final = 366 * 86400.0
"""The longest window; `LEAST_SECONDS` is the shortest."""
OVERLAP_SECONDS: Final = 366 * 86400.0
"""Seconds ahead for which two recurring reservations are compared."""
_DAY: Final = 86400.0
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Span:
    """One window [start, end), in seconds since the epoch."""

    start: float
    end: float

    def meets(self, other: Span) -> bool:
        """Tells whether two windows share any moment; one that ends as the other begins does not."""
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True, slots=True)
class Calendar:
    """The recurring windows of one Reservation, each `seconds` long; `first`: the local time in `zone` at which the first begins.

    The windows fall on `offsets` (days after the first day, ascending, below `period`) of every `period` days; `period` 0 is once.
    `count` and `until` (seconds since the epoch) end the recurrence; None: they do not.
    """

    first: datetime
    zone: tzinfo
    seconds: float
    period: int = 0
    offsets: tuple[int, ...] = (0,)
    until: float | None = None
    count: int | None = None

    @property
    def recurs(self) -> bool:
        """Tells whether the Reservation recurs; False: it has one window."""
        return self.period > 0

    def spans(self, since: float) -> Iterator[Span]:
        """Yields the windows that end after `since`, ascending, the open one included; endlessly where the recurrence has no end.

        A window ends where the next one begins.
        """
        at = self._near(since)
        start = self._start(at)
        while start is not None:
            following = self._start(at + 1)
            end = start + self.seconds
            if following is not None:
                end = min(end, following)
            if end > since:
                yield Span(start, end)
            at, start = at + 1, following

    def span(self, now: float) -> Span | None:
        """Returns the window that is open at `now`, or the next one; None: the last is over."""
        return next(self.spans(now), None)

    def overlap(self, other: Calendar, since: float) -> tuple[Span, Span] | None:
        """Returns the first pair of windows, one of each calendar, that overlap, of those that end after `since`; None: there is none.

        Where both recur, windows that begin more than 366 days later are not searched.
        """
        firsts = self.span(since), other.span(since)
        if firsts[0] is None or firsts[1] is None:
            return None
        begin = max(since, firsts[0].start, firsts[1].start)
        until = begin + OVERLAP_SECONDS if self.recurs and other.recurs else float("inf")
        return first_meeting(*(takewhile(lambda span: span.start < until, one.spans(begin)) for one in (self, other)))

    def _near(self, since: float) -> int:
        """Returns the number of a window at or before the first that ends after `since`."""
        if not self.period:
            return 0
        days = max(0.0, (since - self.seconds - _instant(self.first, self.zone)) / _DAY - 2)
        return int(days // self.period) * len(self.offsets)

    def _start(self, number: int) -> float | None:
        """Returns when the window of this number begins, seconds since the epoch; None: the recurrence, or the calendar, ends before."""
        if (number and not self.period) or (self.count is not None and number >= self.count):
            return None
        rounds, at = divmod(number, len(self.offsets))
        days = self.period * rounds + self.offsets[at]
        try:
            local = self.first + timedelta(days=days) if days else self.first  # the first one may be the second of two equal local times
            start = _instant(local, self.zone)
        except OverflowError:
            return None  # past the year 9999
        return None if self.until is not None and start > self.until else start


def first_meeting(mine: Iterator[Span], theirs: Iterator[Span]) -> tuple[Span, Span] | None:
    """Returns the first pair of windows of two ascending sequences that share a moment; None: there is none."""
    one, two = next(mine, None), next(theirs, None)
    while one is not None and two is not None:
        if one.meets(two):
            return one, two
        if one.end <= two.end:
            one = next(mine, None)
        else:
            two = next(theirs, None)
    return None


def calendar_of(spec: ReservationSpec) -> Calendar:
    """Returns the calendar of a Reservation's spec; raises Rejected with the field, its value and the limit.

    Weekdays count where both they and a number of days are given.
    """
    zone = read_zone(spec.time_zone)
    first = _local(spec.start, zone, bool(spec.time_zone), "spec.start")
    seconds = _seconds(spec.duration)
    recurrence = spec.recurrence
    if recurrence is None:
        return Calendar(first, zone, seconds)
    period = 7
    offsets: tuple[int, ...] = (0,)
    if recurrence.weekdays:
        offsets = tuple(sorted({(_weekday(word) - first.weekday()) % 7 for word in recurrence.weekdays}))
    elif recurrence.every_days is not None and recurrence.every_days >= 1:
        period = recurrence.every_days
    else:
        raise Rejected(
            "spec.recurrence says neither everyDays nor weekdays: give one of them", reason="RecurrenceInvalid", fields=("spec.recurrence",)
        )
    until = _instant(_local(recurrence.until, zone, bool(spec.time_zone), "spec.recurrence.until"), zone) if recurrence.until else None
    made = Calendar(first, zone, seconds, period, offsets, until, recurrence.count)
    _check_length(made, spec)
    return made


def read_moment(text: str, time_zone: str, field: str) -> float:
    """Returns the seconds since the epoch of an RFC 3339 time, or of a local time of `time_zone`; raises Rejected naming `field`."""
    zone = read_zone(time_zone)
    return _instant(_local(text, zone, bool(time_zone), field), zone)


def state_at(calendar: Calendar, now: float) -> str:
    """Returns a Reservation's state at `now` (epoch seconds) by its calendar: Planned before a window, Active in one, Ended after all."""
    span = calendar.span(now)
    if span is None:
        return ENDED
    return ACTIVE if span.start <= now else PLANNED


def refusal_of_use(spec: ReservationSpec, name: str, *, user: str, tenant: str, vcluster: str) -> str:
    """Returns the sentence why work of this user, tenant and vcluster may not use a reservation; empty: it may.

    A reservation admits who is named by user, tenant or vcluster (any of them is enough), everybody where it names none, nobody where it is
    a maintenance.
    """
    if spec.maintenance:
        return f'reservation "{name}" is for maintenance: nobody may use it'
    named = spec.users or spec.tenants or spec.vclusters
    if not named or user in spec.users or tenant in spec.tenants or vcluster in spec.vclusters:
        return ""
    return f'reservation "{name}" admits neither user "{user}" nor tenant "{tenant}" nor vcluster "{vcluster}"'


def odd_start(spec: ReservationSpec) -> str:
    """Returns a sentence where a local `spec.start` does not exist or comes twice (change of clocks); empty: it is normal.

    The spec must be readable.
    """
    local = datetime.fromisoformat(spec.start)
    if local.tzinfo is not None:
        return ""
    zone = read_zone(spec.time_zone)
    start = _instant(local, zone)
    kept = datetime.fromtimestamp(start, zone).replace(tzinfo=None)
    if kept != local:
        return f"spec.start {spec.start} does not exist in {spec.time_zone}, the clocks go forward: it is {kept.isoformat()} there"
    later = _instant(local.replace(fold=1), zone)
    if later != start:
        return f"spec.start {spec.start} comes twice in {spec.time_zone}, the clocks go back: it is the first, {format_time(start)}"
    return ""


def show_span(span: Span) -> str:
    """Returns a window as text: `2026-12-01T08:00:00Z to 2026-12-01T12:00:00Z`."""
    return f"{format_time(span.start)} to {format_time(span.end)}"


def read_zone(name: str) -> tzinfo:
    """Returns the time zone of an IANA name (empty: UTC); raises Rejected for an unknown one."""
    if not name or name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError) as error:
        raise Rejected(
            f"spec.timeZone {name!r} is no time zone of the IANA database: write for example Europe/Zurich",
            reason="TimeInvalid",
            fields=("spec.timeZone",),
        ) from error


def _local(text: str, zone: tzinfo, named: bool, field: str) -> datetime:
    """Returns an RFC 3339 time, or a local time (`named`: its zone is given), as naive local time in `zone`; raises Rejected naming
    `field`.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or "T" not in text:
        raise Rejected(
            f"{field} {text!r} is not a time: write for example 2026-12-01T08:00:00Z, or 2026-12-01T08:00 with spec.timeZone",
            reason="TimeInvalid",
            fields=(field,),
        )
    if moment.tzinfo is not None:
        try:
            return moment.astimezone(zone).replace(tzinfo=None)
        except OverflowError as error:
            raise Rejected(f"{field} {text!r} is outside the calendar", reason="TimeInvalid", fields=(field,)) from error
    if not named:
        raise Rejected(
            f"{field} {text!r} is a local time: set spec.timeZone, for example Europe/Zurich, or write an offset such as Z",
            reason="TimeInvalid",
            fields=(field,),
        )
    return moment


def _instant(local: datetime, zone: tzinfo) -> float:
    """Returns the seconds since the epoch of a local time; one that does not exist or comes twice is treated as the module says."""
    return (local.replace(tzinfo=zone) - _EPOCH) / timedelta(seconds=1)


def _seconds(text: str) -> float:
    """Returns the length of a Reservation's window in seconds. Raises Rejected where it does not parse or is out of its limits."""
    try:
        seconds = parse_duration(text)
    except Rejected as error:
        raise Rejected(f"spec.duration: {error.message}", reason="DurationInvalid", fields=("spec.duration",)) from error
    if not LEAST_SECONDS <= seconds <= MOST_SECONDS:
        limits = f"{format_duration(LEAST_SECONDS)} to {format_duration(MOST_SECONDS)}"
        raise Rejected(f"spec.duration is {text} (limits: {limits})", reason="DurationInvalid", fields=("spec.duration",))
    return seconds


def _weekday(word: str) -> int:
    """Returns the number of a weekday, from 0. Raises Rejected for another word."""
    if word not in WEEKDAYS:
        raise Rejected(
            f"spec.recurrence.weekdays: {word!r} is none of {', '.join(WEEKDAYS)}",
            reason="RecurrenceInvalid",
            fields=("spec.recurrence.weekdays",),
        )
    return WEEKDAYS.index(word)


def _check_length(calendar: Calendar, spec: ReservationSpec) -> None:
    """Raises Rejected where a window of a recurrence of more than one is longer than the time to the next one, in days of 24 hours."""
    days = (*calendar.offsets, calendar.offsets[0] + calendar.period)
    gap = min(later - earlier for earlier, later in pairwise(days)) * _DAY
    if calendar.seconds > gap and (calendar.count is None or calendar.count > 1):
        raise Rejected(
            f"spec.duration {spec.duration} is longer than the {format_duration(gap)} from one window to the next: it would overlap itself",
            reason="RecurrenceInvalid",
            fields=("spec.duration",),
        )
