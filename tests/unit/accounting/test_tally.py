"""Each attempt counts once: told by its object, by the record that holds it, in whatever order, after restarts and deletions."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.accounting.budgets import OF_TENANT, OF_USER, Allowance, Budgets, Period, Scope
from lattice.accounting.charges import Charge
from lattice.accounting.meter import Meter, MeterWindow
from lattice.accounting.records import Records, month_of
from lattice.accounting.tally import Recount, Tally
from lattice.units import parse_time
from tests.unit.accounting.lives import Life, live
from tests.unit.accounting.test_records import START, Server, read, settle

LATER = START + 400 * 86400


class Sum:
    """What counts."""

    def __init__(self) -> None:
        self.node_seconds = 0
        self.gpu_seconds = 0

    def __call__(self, charge: Charge, sign: int) -> None:
        self.node_seconds += sign * charge.node_seconds
        self.gpu_seconds += sign * charge.gpu_seconds


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32))
def test_hours_equal_an_independent_sum_whoever_tells_first(seed: int) -> None:
    roll, server = Random(seed), Server()
    lives = [live(number, roll, START) for number in range(1, 13)]
    records, total = Records(), Sum()
    tally, gone = Tally(records, total), set[int]()
    for _ in range(30):
        life = roll.choice(lives)
        match roll.randrange(4):
            case 0 if life.number not in gone:
                tally.see(life.view)
            case 1:
                settle(server, read(server, Records()), [life], life.tenant, largest=2000)
            case 2:
                for record in server.objects.values():
                    tally.settle(records.put(record).rows())
            case 3 if not any(True for charge in tally.unsettled() if charge.uid == life.view.metadata.uid) and life.number not in gone:
                tally.see(life.view)
                tally.end_charges(life.view.metadata.uid, LATER)
                gone.add(life.number)
    for life in lives:
        if life.number not in gone:
            tally.see(life.view)
    assert total.node_seconds == sum(life.node_seconds for life in lives)
    assert total.gpu_seconds == sum(life.gpu_seconds for life in lives)
    fresh = Sum()
    again = Tally(records, fresh)
    recount = Recount(records, 0.0, partial(fresh, sign=1))
    while recount.step():
        pass  # one more
    recount.finish()
    for life in lives:
        again.see(life.view)
    assert (fresh.node_seconds, fresh.gpu_seconds) == (total.node_seconds, total.gpu_seconds)


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**32))
def test_a_recount_counts_each_row_once_also_those_that_are_written_meanwhile(seed: int) -> None:
    roll, server, records, total = Random(seed), Server(), Records(), Sum()
    lives = [live(number, roll, START + roll.randint(0, 90) * 86400) for number in range(1, 16)]
    before, since = roll.randint(0, 15), START + roll.randint(0, 90) * 86400
    settle_all(server, lives[:before])
    read(server, records)
    recount = Recount(records, since, partial(total, sign=1))
    while recount.step():
        if roll.random() < 0.3:
            settle_all(server, roll.sample(lives, 3))
            read(server, records)
    settle_all(server, lives)
    read(server, records)
    recount.finish()
    assert not recount.stale
    counted = [row for row in records.all_rows() if month_of(row.ended) >= month_of(since)]
    assert total.node_seconds == sum(row.node_seconds for row in counted)
    assert all(row.ended <= since for row in records.all_rows() if month_of(row.ended) < month_of(since))


def settle_all(server: Server, lives: list[Life]) -> None:
    for tenant in ("physics", "ml-team"):
        settle(server, read(server, Records()), lives, tenant, largest=1500)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500), st.integers(1, 9)), max_size=12), st.integers(1, 400))
def test_a_window_is_the_integral_and_lets_go_when_it_says(spans: list[tuple[int, int, int]], length: int) -> None:
    window, now = MeterWindow(), 600.0
    for begin, duration, nodes in spans:
        window.add_change(begin, nodes)
        window.add_change(min(begin + duration, now), -nodes)

    def used(at: float) -> float:
        begin = at - length
        return sum(nodes * max(0.0, min(first + duration, now, at) - max(first, begin)) for first, duration, nodes in spans) / 3600

    assert window.hours(now - length, now) == pytest.approx(used(now))
    limit = used(now) * 0.5
    if limit > 0:
        at = window.below(limit, length, now)
        assert at is not None
        assert used(at) < limit
        assert used(at - 2.0) >= limit - 1e-9


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32))
def test_a_meter_that_lets_go_of_the_past_tells_the_same_hours_and_keeps_no_scope_for_nothing(seed: int) -> None:
    roll, now = Random(seed), START + 200 * 86400.0
    budgets = {f"t{number}": Budgets(Allowance(node_hours=10.0), per_user=Allowance(node_hours=1.0)) for number in range(3)}
    whole, trimmed = Meter(every_tenant=True), Meter(every_tenant=True)
    for meter in (whole, trimmed):
        meter.agree(budgets)
    people = [(f"t{roll.randrange(5)}", f"u{roll.randrange(4)}") for _ in range(30)]
    for step in range(120):
        tenant, user = roll.choice(people)
        begin = START + step * 86400.0 + roll.randrange(80000)
        for meter in (whole, trimmed):
            meter.count(tenant, user, "", begin, roll.randint(1, 1), 0, begin + 5000)
        if roll.random() < 0.2:
            trimmed.trim(begin)
    scopes = [Scope(OF_TENANT, f"t{number}") for number in range(5)] + [Scope(OF_USER, tenant, user) for tenant, user in set(people)]
    for at in (START + 120 * 86400.0, now):
        trimmed.trim(at)
        assert [trimmed.used(scope, at) for scope in scopes] == [whole.used(scope, at) for scope in scopes]
    trimmed.trim(now + 400 * 86400.0)
    assert (trimmed._windows, trimmed._users) == ({}, {})


def test_a_calendar_period_counts_from_its_first_day_and_lets_go_at_its_end() -> None:
    november, december = 1_793_491_200.0, 1_796_083_200.0  # 2026-11-01, 2026-12-01
    meter = Meter()
    assert meter.agree({"a": Budgets(Allowance(node_hours=10.0), period=Period("Month"), queues=True)})
    meter.count("a", "u", "", november - 3600, 4, 0)
    meter.count("a", "u", "", november + 3600 * 5, -4, 0)
    balance = meter.balance(Scope(OF_TENANT, "a"), november + 86400)
    assert balance.used.node_hours == pytest.approx(20.0)
    assert balance.exhausted
    assert meter.lets_go(balance, november + 86400) == december
    assert not meter.balance(Scope(OF_TENANT, "a"), december + 1).exhausted


@pytest.mark.parametrize(
    ("kind", "begin", "end"),
    [
        ("Month", 1_793_491_200.0, 1_796_083_200.0), ("Quarter", 1_790_812_800.0, 1_798_761_600.0),
        ("Year", 1_767_225_600.0, 1_798_761_600.0), ("Rolling", 1_795_000_000.0 - 86400, None),
    ],
)  # fmt: skip
def test_periods_begin_and_end_where_the_calendar_has_it(kind: str, begin: float, end: float | None) -> None:
    period = Period(kind, 86400.0)
    assert (period.begin(1_795_000_000.0), period.end(1_795_000_000.0)) == (begin, end)


@pytest.mark.parametrize(
    ("kind", "now", "begin", "end"),
    [
        ("Month", "2028-02-29T23:59:59Z", "2028-02-01T00:00:00Z", "2028-03-01T00:00:00Z"),
        ("Month", "2027-12-31T23:59:59Z", "2027-12-01T00:00:00Z", "2028-01-01T00:00:00Z"),
        ("Month", "2028-01-01T00:00:00Z", "2028-01-01T00:00:00Z", "2028-02-01T00:00:00Z"),
        ("Month", "2026-03-29T03:00:00+02:00", "2026-03-01T00:00:00Z", "2026-04-01T00:00:00Z"),
        ("Month", "2026-11-01T00:30:00+01:00", "2026-10-01T00:00:00Z", "2026-11-01T00:00:00Z"),
        ("Quarter", "2028-12-31T12:00:00Z", "2028-10-01T00:00:00Z", "2029-01-01T00:00:00Z"),
        ("Year", "2028-02-29T00:00:00Z", "2028-01-01T00:00:00Z", "2029-01-01T00:00:00Z"),
    ],
)
def test_periods_of_the_calendar_are_in_utc_through_leap_days_years_and_summer_times(kind: str, now: str, begin: str, end: str) -> None:
    period, moment = Period(kind), parse_time(now)
    assert (period.begin(moment), period.end(moment)) == (parse_time(begin), parse_time(end))


def test_work_across_the_edge_of_a_period_counts_in_each_for_its_part_there() -> None:
    december, hour = parse_time("2026-12-01T00:00:00Z"), 3600.0
    meter = Meter()
    meter.agree({"a": Budgets(Allowance(node_hours=100.0), period=Period("Month"))})
    meter.count("a", "u", "", december - 5 * hour, 2, 0)  # two nodes that go on
    scope = Scope(OF_TENANT, "a")
    assert meter.used(scope, december - 1.0).node_hours == pytest.approx(2 * (5 - 1 / 3600))
    assert meter.used(scope, december).node_hours == 0.0
    assert meter.used(scope, december + 3 * hour).node_hours == pytest.approx(6.0)
