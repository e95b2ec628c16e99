"""Usage and history as they are answered: sums by day equal what was charged, forecasts hold, rows that match come newest first."""

from __future__ import annotations

from random import Random

import pytest

from lattice.accounting.answers import BudgetReport, UsageReport
from lattice.accounting.budgets import OF_TENANT, Allowance, Balance, Budgets, Outside, Period, Scope
from lattice.accounting.charges import RUNNING, Charge
from lattice.accounting.notices import hours, judge
from lattice.accounting.records import Page, rows_text
from lattice.accounting.reports import DAY, Among, Asked, Reach, charges_since, history_report, row_of, usage_report
from lattice.units import format_time, parse_time
from lattice.views.cluster import BudgetState
from tests.build import uid

NOW = parse_time("2026-11-21T12:00:00Z")
HOUR = 3600


def charge(number: int, begin: float, seconds: int | None, *, nodes: int = 2, gpus: int = 8, user: str = "alice", project: str = "lhc",
           tenant: str = "physics", state: str = "Completed") -> Charge:  # fmt: skip
    """An attempt from `begin` on for so many seconds; None: it runs."""
    begun, held = int(begin), seconds or 0
    ended = begun + held if seconds is not None else 0
    return Charge(
        uid(number), 1, 1, number, tenant, tenant, f"job-{number}", "", user, project, "hpc", nodes, gpus, begun - 60, begun, begun, ended,
        state if ended else RUNNING, "Completed" if ended else "", 0 if ended else None, nodes * held, gpus * held, 5,
    )  # fmt: skip


def report(*charges: Charge, days: int = 30, budgets: Budgets | None = None, asked: Asked | None = None) -> UsageReport:
    return usage_report(
        charges, asked or Asked("alice", "physics", names=True), NOW - days * DAY, NOW, {"physics": budgets} if budgets is not None else {}
    )


def only_budget(*charges: Charge, budgets: Budgets) -> BudgetReport:
    (found,) = report(*charges, budgets=budgets).budgets
    return found


def test_hours_are_divided_among_the_days_in_which_they_were_used() -> None:
    midnight = NOW - NOW % DAY
    found = report(charge(1, midnight - 3 * HOUR, 5 * HOUR), charge(2, NOW - HOUR, None, nodes=1, gpus=0))
    by_day = {day.day: (day.node_hours, day.gpu_hours) for day in found.days}
    assert by_day["2026-11-20"] == (6.0, 24.0)
    assert by_day["2026-11-21"] == (5.0, 16.0)
    assert (found.node_hours, found.gpu_hours, found.attempts, found.running) == (11.0, 40.0, 2, 1)
    assert len(by_day) == 31


@pytest.mark.parametrize("seed", range(20))
def test_days_tenants_projects_and_users_each_sum_up_to_the_whole(seed: int) -> None:
    roll = Random(seed)
    charges = [
        charge(number, NOW - roll.randrange(0, 60 * DAY), roll.choice((None, roll.randrange(3 * DAY))), nodes=roll.randrange(1, 9),
               user=roll.choice(("alice", "bob")), project=roll.choice(("", "lhc")), tenant=roll.choice(("physics", "ml")))
        for number in range(40)
    ]  # fmt: skip
    found = usage_report(charges, Asked("alice", names=True), NOW - 30 * DAY, NOW, {})
    exact = sum(
        one.nodes * max(0, min(one.ended or NOW, NOW) - max(one.committed, NOW - 30 * DAY)) for one in charges if one.committed < NOW
    ) / HOUR  # fmt: skip
    assert found.node_hours == pytest.approx(exact, abs=1e-3)
    for parts in (found.days, found.tenants, found.projects, found.users):
        assert sum(part.node_hours for part in parts) == pytest.approx(found.node_hours, abs=0.01)


def test_others_are_named_to_those_who_may_know_and_else_summed_up() -> None:
    rows = (charge(1, NOW - DAY, HOUR), charge(2, NOW - DAY, HOUR, user="bob"), charge(3, NOW - DAY, HOUR, user="carol"))
    named = report(*rows)
    assert [part.name for part in named.users] == ["alice", "bob", "carol"]
    member = report(*rows, asked=Asked("alice", "physics"))
    assert [(part.name, part.attempts) for part in member.users] == [("others", 2), ("alice", 1)]
    assert member.node_hours == named.node_hours


def test_the_forecast_is_what_is_left_over_the_rate_of_seven_days_in_a_calendar_period() -> None:
    rows = [charge(day, NOW - day * DAY, 12 * HOUR, nodes=2, gpus=0) for day in range(1, 8)]  # 24 node-hours a day
    found = only_budget(*rows, budgets=Budgets(Allowance(node_hours=240.0), period=Period("Month")))
    assert found.node_hours is not None
    assert (found.node_hours.used, found.node_hours.per_day) == (168.0, 24.0)
    assert found.runs_out == format_time(NOW + 3 * DAY)
    later = only_budget(*rows, budgets=Budgets(Allowance(node_hours=4000.0), period=Period("Month")))
    assert later.runs_out is None


def test_in_a_rolling_window_what_leaves_it_is_taken_off() -> None:
    rows = [charge(day, NOW - day * DAY, 12 * HOUR, nodes=2, gpus=0) for day in range(1, 11)]
    steady = only_budget(*rows, budgets=Budgets(Allowance(node_hours=300.0), period=Period(seconds=10 * DAY)))
    assert steady.runs_out is None  # 24 a day come and go
    growing = only_budget(*rows[:7], budgets=Budgets(Allowance(node_hours=200.0), period=Period(seconds=10 * DAY)))
    assert growing.runs_out is not None
    assert NOW + DAY < parse_time(growing.runs_out) < NOW + 2 * DAY


def test_budgets_of_users_are_shown_to_themselves_and_to_admins() -> None:
    rows = (charge(1, NOW - DAY, HOUR), charge(2, NOW - DAY, HOUR, user="bob"))
    budgets = Budgets(per_user=Allowance(node_hours=10.0), projects={"lhc": Allowance(gpu_hours=5.0)}, queues=True)
    member = report(*rows, budgets=budgets, asked=Asked("alice", "physics"))
    assert [(one.scope, one.name) for one in member.budgets] == [("Project", "lhc"), ("User", "alice")]
    assert [one.name for one in report(*rows, budgets=budgets).budgets] == ["lhc", "alice", "bob"]
    assert member.budgets[0].fraction == pytest.approx(16 / 5)
    assert member.budgets[0].on_exhausted == "Queue"


def test_an_outside_source_counts_while_it_is_fresh() -> None:
    outside = Outside("waldur", Allowance(node_hours=90.0), Allowance(node_hours=100.0), NOW + 60)
    fresh = only_budget(charge(1, NOW - DAY, HOUR), budgets=Budgets(Allowance(node_hours=8.0), outside=outside))
    assert (fresh.source, fresh.told_by, fresh.fraction) == ("External", "waldur", 0.9)
    stale = Outside("waldur", Allowance(node_hours=90.0), Allowance(node_hours=100.0), NOW - 60)
    own = only_budget(charge(1, NOW - DAY, HOUR), budgets=Budgets(Allowance(node_hours=8.0), outside=stale))
    assert (own.source, own.told_by, own.fraction) == ("Internal", "", 0.25)


def test_history_is_the_newest_first_within_its_limit_and_sums_what_it_leaves_out() -> None:
    rows = [charge(number, NOW - number * DAY, HOUR, state="Failed" if number % 2 else "Completed") for number in range(1, 21)]
    found = history_report(rows, Asked("alice"), Among(NOW - 10 * DAY, NOW, limit=3), NOW)
    assert [row.number for row in found.rows] == [1, 2, 3]
    assert (found.left_out, found.node_hours) == (7, 20.0)
    failed = history_report(rows, Asked("alice"), Among(0, NOW, frozenset({"Failed"})), NOW)
    assert {row.state for row in failed.rows} == {"Failed"}
    assert history_report(rows, Asked("alice"), Among(0, NOW - 18.5 * DAY), NOW).rows[0].number == 19


def test_what_records_hold_and_what_they_do_not_is_read_once() -> None:
    settled, running = charge(1, NOW - DAY, HOUR), charge(2, NOW - HOUR, None)
    page = Page("physics-2026-11", "physics", "2026-11", 0, "1", False, rows_text([settled]))
    found = list(charges_since([page], [settled, running], Reach(NOW - 30 * DAY), NOW))
    assert [(one.number, one.node_seconds) for one in found] == [(1, 7200), (2, 7200)]
    assert [one.number for one in charges_since([page], [running], Reach(NOW - 30 * DAY, frozenset(), "alice"), NOW)] == [1, 2]
    assert not list(charges_since([page], [running], Reach(NOW - 30 * DAY, frozenset(), "bob"), NOW))


def test_a_row_of_running_work_counts_up_to_now() -> None:
    shown = row_of(charge(1, NOW - HOUR, None).at(NOW), NOW)
    assert (shown.state, shown.ended, shown.seconds, shown.node_hours) == ("Running", None, 3600, 2.0)


def balance(used: float, *, period: Period = Period()) -> Balance:  # noqa: B008 - it is frozen
    return Balance(Scope(OF_TENANT, "a"), Allowance(node_hours=used), Allowance(node_hours=100.0), period.begin(NOW), period.end(NOW))


def test_each_mark_is_told_once_a_crossing_and_again_after_use_has_fallen_or_the_period_is_new() -> None:
    state: BudgetState | None = None
    told = []
    for used in (10, 79.9, 80, 85, 99, 100, 130, 97, 100, 90, 101, 70, 81):
        entry, notice = judge(balance(used), state, "in the last 90 days")
        state = BudgetState(key="Tenant", told=entry["told"], crossings=entry["crossings"], period_start=entry.get("periodStart"))
        told.append(notice.mark if notice is not None else 0)
    assert told == [0, 0, 80, 0, 0, 100, 0, 0, 0, 0, 100, 0, 80]
    assert state is not None
    assert state.crossings == 4
    last_month = BudgetState(key="Tenant", told=100, crossings=4, period_start="2026-10-01T00:00:00Z")
    _, again = judge(balance(85, period=Period("Month")), last_month, "this month")
    assert again is not None
    assert (again.mark, again.crossing) == (80, 5)
    assert "has used 85 of 100 node-hours this month" in again.message


@pytest.mark.parametrize(("amount", "text"), [(0.0, "0"), (2.0, "2"), (1.239, "1.23"), (87500.5, "87500.5"), (0.001, "0")])
def test_hours_are_quantities_with_two_decimals(amount: float, text: str) -> None:
    assert hours(amount) == text


def test_at_the_border_of_months_an_attempt_that_a_record_of_the_month_before_holds_is_not_counted_as_running() -> None:
    border = parse_time("2026-11-01T00:00:00Z")
    ended = charge(1, border - HOUR, HOUR - 1)
    stale = charge(1, border - HOUR, None)
    page = Page("physics-2026-10", "physics", "2026-10", 0, "1", False, rows_text([ended]))
    assert list(charges_since([page], [stale], Reach(border), border + 60)) == []


def test_an_unrecorded_attempt_that_ended_before_the_time_asked_about_is_not_counted() -> None:
    ended, later = charge(1, NOW - 3 * DAY, HOUR), charge(2, NOW - HOUR, HOUR // 2)
    assert [one.number for one in charges_since([], [ended, later], Reach(NOW - DAY), NOW)] == [2]
