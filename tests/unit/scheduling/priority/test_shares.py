"""Decayed usage and budgets: the integral of what ran, the same whatever the order of the events."""

from __future__ import annotations

from dataclasses import replace
from math import exp2, fsum, log
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.accounting.budgets import Allowance, Budgets, Period
from lattice.scheduling.priority.shares import HALF_LIFE, Run, Shares, Terms

NOW, HOUR, DAY = 1_800_000_000.0, 3600.0, 86400.0


def run(
    number: int, tenant: str = "physics", *, start: float, end: float | None, nodes: int = 1, gpus: int = 0, user: str = "alice"
) -> Run:
    return Run(f"uid-{number}/1", tenant, user, nodes, gpus, start, end)


def agreed(*, gpu_hours: float = 0.0, node_hours: float = 0.0, days: float = 90.0) -> Terms:
    return Terms(budgets=Budgets(Allowance(gpu_hours, node_hours), period=Period(seconds=days * DAY)))


def history(*runs: Run, terms: dict[str, Terms] | None = None) -> Shares:
    shares = Shares()
    shares.agree(terms or {"physics": Terms(), "chemistry": Terms()})
    for each in runs:
        shares.see(each)
    shares.validate()
    return shares


def decayed(each: Run, now: float) -> float:
    """Node-hours of a run, an hour of a half-life ago counting half: the integral, written out."""
    to, life = now if each.end is None else each.end, HALF_LIFE / log(2)
    return each.nodes * life * (exp2((to - now) / HALF_LIFE) - exp2((each.start - now) / HALF_LIFE)) / 3600


@st.composite
def runs(draw: st.DrawFn) -> list[Run]:
    made = []
    for number in range(draw(st.integers(0, 12))):
        start = NOW - draw(st.floats(0, 60 * DAY))
        end = draw(st.one_of(st.none(), st.floats(start, NOW)))
        tenant, user = draw(st.sampled_from(["physics", "chemistry"])), draw(st.sampled_from(["alice", "bob"]))
        made.append(run(number, tenant, start=start, end=end, nodes=draw(st.integers(1, 500)), gpus=draw(st.integers(0, 2000)), user=user))
    return made


@settings(deadline=None, max_examples=50)
@given(runs())
def test_usage_is_the_integral_of_what_ran_by_half_lives(told: list[Run]) -> None:
    shares = history(*told)
    for tenant in ("physics", "chemistry"):
        expected = fsum(decayed(each, NOW) for each in told if each.tenant == tenant)
        assert shares.node_hours(tenant, NOW) == pytest.approx(expected, rel=1e-6, abs=1e-5)
        assert 0.0 <= shares.usage(tenant, NOW) <= 1.0


@settings(deadline=None, max_examples=50)
@given(runs(), st.integers(0, 1 << 30))
def test_the_same_history_gives_the_same_shares_in_any_order_and_told_twice(told: list[Run], seed: int) -> None:
    shuffled = [*told, *told]
    Random(seed).shuffle(shuffled)
    opened = [replace(each, end=None) for each in told]
    one, other = history(*told), history(*opened, *shuffled)
    for tenant in ("physics", "chemistry"):
        assert one.standing(tenant, NOW) == other.standing(tenant, NOW)
        assert set(one.with_work(tenant, NOW)) == set(other.with_work(tenant, NOW))
        assert one.usage_of_user(tenant, "bob", NOW) == other.usage_of_user(tenant, "bob", NOW)


@settings(deadline=None, max_examples=50)
@given(runs(), st.floats(1, 40))
def test_a_budget_counts_the_hours_inside_its_window_exactly(told: list[Run], days: float) -> None:
    terms = agreed(gpu_hours=1000.0, node_hours=500.0, days=days)
    shares = history(*told, terms={"physics": terms})
    for _ in range(2):
        inside = [
            (each, max(0.0, (NOW if each.end is None else each.end) - max(each.start, NOW - days * DAY)) / 3600)
            for each in told
            if each.tenant == "physics"
        ]
        worst = max(fsum(each.gpus * hours for each, hours in inside) / 1000, fsum(each.nodes * hours for each, hours in inside) / 500)
        assert shares.utilisation("physics", NOW) == pytest.approx(worst, rel=1e-6, abs=1e-3)


def test_the_window_moves_with_time_and_forgets_nothing_too_early() -> None:
    shares = history(run(1, start=NOW, end=NOW + 10 * HOUR, nodes=2), terms={"physics": agreed(node_hours=20.0, days=1)})
    used = [shares.utilisation("physics", NOW + hours * HOUR) for hours in (10, 24, 29, 34, 99)]
    assert used == pytest.approx([1.0, 1.0, 0.5, 0.0, 0.0])


def test_the_worse_budget_decides() -> None:
    told = run(1, start=NOW - 10 * HOUR, end=NOW, nodes=1, gpus=4)
    shares = history(told, terms={"physics": agreed(gpu_hours=100.0, node_hours=11.0)})
    assert shares.utilisation("physics", NOW) == pytest.approx(10 / 11)
    shares.agree({"physics": agreed(gpu_hours=40.0, node_hours=11.0)})
    assert shares.utilisation("physics", NOW) == pytest.approx(1.0)


def test_an_hour_of_a_half_life_ago_counts_half() -> None:
    fresh, old = run(1, start=NOW - HOUR, end=NOW), run(2, "chemistry", start=NOW - HALF_LIFE - HOUR, end=NOW - HALF_LIFE)
    shares = history(fresh, old)
    assert shares.usage("physics", NOW) == pytest.approx(2 / 3)
    assert shares.usage("chemistry", NOW + HALF_LIFE) == pytest.approx(1 / 3)


def test_tenants_without_a_target_share_what_is_left_equally() -> None:
    shares = history(terms={"a": Terms(target=0.4), "b": Terms(), "c": Terms(), "d": Terms(target=0.0)})
    assert [shares.standing(name, NOW).target for name in "abcd"] == pytest.approx([0.4, 0.3, 0.3, 0.0])
    assert [shares.standing(name, NOW).fair_share for name in "abcd"] == [1.0, 1.0, 1.0, 1.0]


def test_a_fair_share_halves_with_each_target_that_was_used_and_has_no_floor() -> None:
    terms = {"a": Terms(target=0.2), "b": Terms(target=0.1), "c": Terms(target=0.7), "d": Terms(target=0.0)}
    told = [
        run(number, name, start=NOW - HOUR, end=NOW, nodes=nodes) for number, (name, nodes) in enumerate([("a", 4), ("b", 5), ("d", 1)])
    ]
    shares = history(*told, terms=terms)
    assert [shares.standing(name, NOW).fair_share for name in "abcd"] == pytest.approx([0.25, 2**-5, 1.0, 0.0])


def test_users_have_work_who_hold_nodes_or_used_some_within_a_week() -> None:
    long_ago = run(3, start=NOW - 9 * DAY, end=NOW - 8 * DAY, user="gone")
    shares = history(run(1, start=NOW - HOUR, end=None, nodes=3), run(2, start=NOW - HOUR, end=NOW, user="bob"), long_ago)
    assert set(shares.with_work("physics", NOW + 6.9 * DAY)) == {"alice", "bob"}
    assert set(shares.with_work("physics", NOW + 7.1 * DAY)) == {"alice"}
    shares.end("uid-1/1", NOW + 8 * DAY)
    assert set(shares.with_work("physics", NOW + 14 * DAY)) == {"alice"}
    assert set(shares.with_work("physics", NOW + 16 * DAY)) == set()
    assert set(shares.with_work("chemistry", NOW)) == set()


def test_a_user_who_used_nothing_stands_before_a_colleague_who_did() -> None:
    shares = history(run(1, start=NOW - HOUR, end=NOW, nodes=9))
    standing = shares.standing("physics", NOW)
    alice, bob = (standing.fair_share_of(shares.usage_of_user("physics", user, NOW), 2) for user in ("alice", "bob"))
    assert alice == pytest.approx((0.25 * 0.5**4) ** 0.5)
    assert bob == pytest.approx(0.25**0.5)


def test_who_is_above_its_share_bursts_and_beyond_the_allowance_comes_first() -> None:
    terms = {"physics": Terms(target=0.5, burst_allowance=1.5), "chemistry": Terms(target=0.5)}
    for used, rank in ((0.4, 0), (0.6, 1), (0.9, 2)):
        shares = history(
            run(1, start=NOW - HOUR, end=NOW, nodes=round(100 * used)),
            run(2, "chemistry", start=NOW - HOUR, end=NOW, nodes=100 - round(100 * used)),
            terms=terms,
        )
        assert shares.burst("physics", NOW) == rank


def test_what_a_deleted_allocation_used_stays_counted() -> None:
    shares = history(run(1, start=NOW - 2 * HOUR, end=None, nodes=3), run(2, "chemistry", start=NOW - 2 * HOUR, end=NOW, nodes=3))
    for key in ("uid-1/1", "uid-2/1", "unknown/1"):
        shares.end(key, NOW)
    shares.validate()
    assert shares.usage("physics", NOW) == pytest.approx(0.5)
    assert shares.node_hours("physics", NOW + HALF_LIFE) == pytest.approx(shares.node_hours("physics", NOW) / 2)


def test_a_run_that_ends_before_it_starts_uses_nothing() -> None:
    assert history(run(1, start=NOW, end=NOW - HOUR)).node_hours("physics", NOW) == 0.0
