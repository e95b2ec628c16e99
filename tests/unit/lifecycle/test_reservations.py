"""When a reservation holds its nodes: windows are sorted and disjoint, last as long as asked, and keep their local time."""

from __future__ import annotations

from datetime import datetime
from itertools import islice, pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lattice.errors import Rejected
from lattice.lifecycle.reservations import (
    ACTIVE,
    ENDED,
    PLANNED,
    WEEKDAYS,
    Calendar,
    Span,
    calendar_of,
    odd_start,
    refusal_of_use,
    show_span,
    state_at,
)
from lattice.units import format_duration, parse_time
from lattice.views.reservation import Recurrence, ReservationSpec

ZONES = ("UTC", "Europe/Zurich", "America/New_York", "Australia/Lord_Howe", "Pacific/Chatham", "Asia/Kolkata")
HOUR, DAY = 3600.0, 86400.0


def spec(start: str = "2026-12-01T08:00:00Z", duration: str = "4h", **changes: Any) -> ReservationSpec:
    return ReservationSpec(start=start, duration=duration, **changes)


def shown(made: ReservationSpec, most: int = 4, since: float = 0.0) -> list[str]:
    return [show_span(span) for span in islice(calendar_of(made).spans(since), most)]


RECURRENCES = st.builds(Recurrence, every_days=st.integers(1, 40)) | st.builds(
    Recurrence, weekdays=st.lists(st.sampled_from(WEEKDAYS), min_size=1, max_size=7, unique=True).map(tuple)
)


@st.composite
def calendars(draw: st.DrawFn) -> Calendar:
    """A calendar that reads, anywhere between 2020 and 2035."""
    start = draw(st.datetimes(datetime.fromisoformat("2020-01-01"), datetime.fromisoformat("2035-01-01"))).replace(second=0, microsecond=0)
    recurrence = draw(st.none() | RECURRENCES)
    seconds = draw(st.integers(60, 30 * 86400))
    made = spec(start.isoformat(), format_duration(seconds), time_zone=draw(st.sampled_from(ZONES)), recurrence=recurrence)
    try:
        return calendar_of(made)
    except Rejected as error:
        assume(error.reason != "RecurrenceInvalid")
        raise


@given(calendars())
def test_windows_ascend_and_never_overlap(calendar: Calendar) -> None:
    spans = list(islice(calendar.spans(0), 60))
    assert all(one.start < one.end <= other.start for one, other in pairwise(spans))


@given(calendars())
def test_a_window_lasts_its_duration_in_elapsed_seconds_unless_the_clocks_bring_the_next_one_nearer(calendar: Calendar) -> None:
    for one, other in pairwise(islice(calendar.spans(0), 60)):
        cut = one.end == other.start and other.start - one.start < calendar.seconds
        assert one.end - one.start == calendar.seconds or cut
        assert not cut or calendar.seconds - (one.end - one.start) <= HOUR


@given(calendars())
def test_every_window_begins_at_the_same_local_time_unless_that_time_does_not_exist(calendar: Calendar) -> None:
    for span in islice(calendar.spans(0), 60):
        local = datetime.fromtimestamp(span.start, calendar.zone).replace(tzinfo=None)
        naive = calendar.first.replace(fold=0)
        if local.time() != naive.time():
            moved = (local - local.replace(hour=naive.hour, minute=naive.minute)).total_seconds() % DAY
            assert moved in (HOUR / 2, HOUR), "only a gap of the clocks moves it, and forward by the gap"


@given(calendars(), st.integers(0, 4000))
def test_windows_from_a_moment_on_are_the_later_part_of_all_windows(calendar: Calendar, days: int) -> None:
    since = parse_time("2026-01-01T00:00:00Z") + days * DAY
    every: list[Span] = []
    for span in calendar.spans(0):
        if len(every) == 5:
            break
        if span.end > since:
            every.append(span)
    assert list(islice(calendar.spans(since), 5)) == every


@given(calendars(), calendars())
def test_two_calendars_overlap_exactly_when_two_of_their_windows_meet(one: Calendar, two: Calendar) -> None:
    since = parse_time("2026-01-01T00:00:00Z")
    begin = max([since, *(span.start for calendar in (one, two) if (span := calendar.span(since)))])
    mine, theirs = ([span for span in islice(calendar.spans(begin), 300) if span.start < begin + 200 * DAY] for calendar in (one, two))
    found = one.overlap(two, since)
    if any(a.meets(b) for a in mine for b in theirs):
        assert found is not None
        assert found[0].start < begin + 200 * DAY
    if found is not None:
        assert found[0].meets(found[1])
        assert found == (one.span(found[0].end - 1), two.span(found[1].end - 1))


def test_once_is_one_window() -> None:
    assert shown(spec()) == ["2026-12-01T08:00:00Z to 2026-12-01T12:00:00Z"]


def test_two_in_the_morning_stays_two_in_the_morning_when_summer_time_ends() -> None:
    daily = spec("2026-10-24T02:00", "3h", time_zone="Europe/Zurich", recurrence=Recurrence(every_days=1))
    assert shown(daily, 3) == [
        "2026-10-24T00:00:00Z to 2026-10-24T03:00:00Z",  # +02:00
        "2026-10-25T00:00:00Z to 2026-10-25T03:00:00Z",  # 02:00 comes twice: the first
        "2026-10-26T01:00:00Z to 2026-10-26T04:00:00Z",  # +01:00
    ]


def test_a_local_time_that_does_not_exist_moves_forward_by_the_gap() -> None:
    daily = spec("2027-03-27T02:30", "1h", time_zone="Europe/Zurich", recurrence=Recurrence(every_days=1))
    assert shown(daily, 3) == [
        "2027-03-27T01:30:00Z to 2027-03-27T02:30:00Z",
        "2027-03-28T01:30:00Z to 2027-03-28T02:30:00Z",  # 03:30 of summer time
        "2027-03-29T00:30:00Z to 2027-03-29T01:30:00Z",
    ]


def test_a_whole_day_each_day_is_an_hour_shorter_when_summer_time_begins() -> None:
    whole = spec("2027-03-27T00:00", "1d", time_zone="Europe/Zurich", recurrence=Recurrence(every_days=1))
    assert [span.end - span.start for span in islice(calendar_of(whole).spans(0), 3)] == [DAY, 23 * HOUR, DAY]


def test_an_exact_time_is_exact_even_where_its_local_time_comes_twice() -> None:
    second = spec("2026-10-25T02:30:00+01:00", "1h", time_zone="Europe/Zurich", recurrence=Recurrence(every_days=7))
    assert shown(second, 2) == ["2026-10-25T01:30:00Z to 2026-10-25T02:30:00Z", "2026-11-01T01:30:00Z to 2026-11-01T02:30:00Z"]


def test_weekdays_are_those_of_the_time_zone_and_the_first_may_be_later_than_the_start() -> None:
    weekly = spec("2026-12-01T23:30", "30m", time_zone="America/New_York", recurrence=Recurrence(weekdays=("Friday", "Monday"), count=3))
    assert shown(weekly, 9) == [
        "2026-12-05T04:30:00Z to 2026-12-05T05:00:00Z",  # Friday evening there
        "2026-12-08T04:30:00Z to 2026-12-08T05:00:00Z",
        "2026-12-12T04:30:00Z to 2026-12-12T05:00:00Z",
    ]


def test_no_window_begins_after_until() -> None:
    daily = spec("2026-12-01T08:00", time_zone="Europe/Zurich", recurrence=Recurrence(every_days=1, until="2026-12-03T08:00"))
    assert len(shown(daily, 9)) == 3


def test_without_a_time_zone_days_are_those_of_utc() -> None:
    daily = spec("2026-10-24T02:00:00+02:00", recurrence=Recurrence(every_days=2))
    assert shown(daily, 2) == ["2026-10-24T00:00:00Z to 2026-10-24T04:00:00Z", "2026-10-26T00:00:00Z to 2026-10-26T04:00:00Z"]


def test_the_calendar_ends_with_the_year_9999() -> None:
    last = spec("9999-12-30T00:00:00Z", "1h", recurrence=Recurrence(every_days=1))
    assert len(shown(last, 9)) == 2


@pytest.mark.parametrize(
    ("at", "state"),
    [
        ("2026-12-01T07:59:59Z", PLANNED), ("2026-12-01T08:00:00Z", ACTIVE), ("2026-12-01T11:59:59Z", ACTIVE),
        ("2026-12-01T12:00:00Z", PLANNED), ("2026-12-02T08:00:00Z", ACTIVE), ("2026-12-02T12:00:00Z", ENDED),
    ],
)  # fmt: skip
def test_it_is_planned_active_and_ended(at: str, state: str) -> None:
    twice = calendar_of(spec(recurrence=Recurrence(every_days=1, count=2)))
    assert state_at(twice, parse_time(at)) == state


@pytest.mark.parametrize(
    ("made", "reason", "sentence"),
    [
        (spec("tomorrow"), "TimeInvalid", "spec.start 'tomorrow' is not a time"),
        (spec("2026-02-30T08:00:00Z"), "TimeInvalid", "spec.start '2026-02-30T08:00:00Z' is not a time"),
        (spec("2026-12-01"), "TimeInvalid", "is not a time"),
        (spec("2026-12-01T08:00"), "TimeInvalid", "is a local time: set spec.timeZone"),
        (spec(time_zone="Mars/Olympus"), "TimeInvalid", "spec.timeZone 'Mars/Olympus' is no time zone"),
        (spec(time_zone="../../etc/passwd"), "TimeInvalid", "is no time zone"),
        (spec(time_zone="Europe"), "TimeInvalid", "is no time zone"),
        (spec(duration="soon"), "DurationInvalid", "spec.duration: 'soon' is not a duration"),
        (spec(duration="59s"), "DurationInvalid", "spec.duration is 59s (limits: 1m to 366d)"),
        (spec(duration="367d"), "DurationInvalid", "spec.duration is 367d (limits: 1m to 366d)"),
        (spec(recurrence=Recurrence()), "RecurrenceInvalid", "neither everyDays nor weekdays"),
        (spec(recurrence=Recurrence(weekdays=("Someday",))), "RecurrenceInvalid", "'Someday' is none of Monday"),
        (spec(duration="25h", recurrence=Recurrence(every_days=1)), "RecurrenceInvalid", "25h is longer than the 1d from one window to the next"),
        (
            spec(duration="3d", recurrence=Recurrence(weekdays=("Monday", "Wednesday"))), "RecurrenceInvalid",
            "spec.duration 3d is longer than the 2d",
        ),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_with_field_value_and_limit(made: ReservationSpec, reason: str, sentence: str) -> None:
    with pytest.raises(Rejected) as caught:
        calendar_of(made)
    assert caught.value.reason == reason
    assert sentence in caught.value.message
    assert caught.value.fields
    assert caught.value.fields[0].startswith("spec.")


@pytest.mark.parametrize(
    ("start", "zone", "sentence"),
    [
        ("2027-03-28T02:30", "Europe/Zurich", "does not exist in Europe/Zurich, the clocks go forward: it is 2027-03-28T03:30:00 there"),
        ("2026-10-25T02:30", "Europe/Zurich", "comes twice in Europe/Zurich, the clocks go back: it is the first, 2026-10-25T00:30:00Z"),
        ("2026-12-01T08:00", "Europe/Zurich", ""),
        ("2027-03-28T02:30:00Z", "Europe/Zurich", ""),
    ],
)
def test_an_odd_local_start_is_said(start: str, zone: str, sentence: str) -> None:
    found = odd_start(spec(start, time_zone=zone))
    assert sentence in found
    assert bool(found) == bool(sentence)


def test_who_is_named_as_user_tenant_or_vcluster_may_use_it_and_all_where_nobody_is() -> None:
    def why(**lists: Any) -> str:
        return refusal_of_use(spec(**lists), "course", user="alice", tenant="physics", vcluster="hpc-batch")

    neither = 'reservation "course" admits neither user "alice" nor tenant "physics" nor vcluster "hpc-batch"'
    assert why() == ""
    assert why(users=("alice",), tenants=("chemistry",)) == ""
    assert why(users=("bob",), tenants=("physics",)) == ""
    assert why(users=("bob",), vclusters=("hpc-batch",)) == ""
    assert why(users=("bob",)) == why(tenants=("chemistry",)) == why(vclusters=("interactive",)) == neither
    assert why(maintenance=True) == 'reservation "course" is for maintenance: nobody may use it'


def test_the_end_of_a_window_belongs_to_what_follows() -> None:
    assert not Span(0, 10).meets(Span(10, 20))
    assert Span(0, 10.5).meets(Span(10, 20))


def test_the_time_zone_database_is_at_hand() -> None:
    assert ZoneInfo("Europe/Zurich").key == "Europe/Zurich"
