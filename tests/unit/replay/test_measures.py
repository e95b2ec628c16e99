"""The numbers of a production replay, worked out by hand, and what holds for all of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.replay.jobs import TenantTerms, TraceJob
from lattice.replay.measures import Ran, Replayed, jain, measure, ramp_up, target_shares, waits_of, water_fill
from lattice.replay.plain import alike


def ran(tenant: str, submit: float, start: float, end: float, nodes: int = 1, *, backfilled: bool = False, first: int = 0) -> Ran:
    job = TraceJob(
        id=f"{tenant}-{submit}-{start}-{first}", submit=submit, nodes=nodes, run=end - start, walltime=end - start, tenant=tenant
    )
    return Ran(job, start, end, tuple(range(first, first + nodes)), backfilled)


def test_the_numbers_of_three_jobs_are_those_worked_out_by_hand() -> None:
    done = Replayed(
        alike(4), [ran("a", 0, 0, 3600, 2), ran("b", 0, 3600, 7200, 4), ran("a", 1800, 1800, 3600, 2, backfilled=True, first=2)]
    )
    found = measure("x", done, {}, target_wait=0.0)
    assert found.makespan == 7200
    assert (found.node_hours_used, found.node_hours_available, found.utilisation) == (7.0, 8.0, 7 / 8)
    assert (found.waits.p50, found.waits.p99, found.waits.mean) == (0, 3600, 1200)
    assert found.target_met == pytest.approx(2 / 3)
    assert found.backfilled == 1
    assert found.contended == pytest.approx(0.5)
    assert found.idle_filled == pytest.approx(0.5)  # while b waited: 2 of 4 nodes idle for half of it, then filled
    assert found.ramp_up == 1800
    # b waited for an hour with all of its share due to it: a used everything, both were entitled to half
    assert found.tenants["a"].used == pytest.approx(1.0)
    assert found.tenants["a"].entitled == pytest.approx(0.5, abs=0.01)
    assert found.deviation == pytest.approx(0.5, abs=0.01)


def test_a_tenant_that_asks_for_less_than_its_share_deviates_from_nothing() -> None:
    jobs = [ran("small", 0, 0, 100), ran("big", 0, 0, 100, 9, first=1), ran("big", 0, 100, 200, 9, first=1)]
    assert measure("x", Replayed(alike(10), jobs), {}).deviation < 0.06


def test_nobody_waits_and_nothing_is_unfair() -> None:
    found = measure("x", Replayed(alike(2), [ran("a", 0, 0, 10), ran("b", 5, 5, 10, first=1)]), {})
    assert (found.jain, found.deviation, found.contended) == (1.0, 0.0, 0.0)


def test_a_percentile_is_the_nearest_rank() -> None:
    waits = waits_of(map(float, range(1, 101)))
    assert (waits.p50, waits.p95, waits.p99, waits.most) == (50, 95, 99, 100)


def test_targets_that_nobody_promised_are_equal_parts_of_the_rest() -> None:
    assert target_shares(["a", "b", "c"], {"a": TenantTerms(share=0.5)}) == {"a": 0.5, "b": 0.25, "c": 0.25}


def test_a_machine_that_is_never_full_never_ramps_up() -> None:
    assert ramp_up([ran("a", 0, 0, 10, 4)], 5) is None


amounts = st.lists(st.tuples(st.integers(0, 50), st.floats(0.01, 1)), min_size=1, max_size=8)


@given(amounts, st.integers(0, 300))
def test_water_fills_everybody_to_one_level_and_nobody_above_what_was_asked(asked: list[tuple[int, float]], total: int) -> None:
    wanted, weights = [each for each, _ in asked], [weight for _, weight in asked]
    parts = water_fill(total, wanted, weights)
    assert all(part <= most + 1e-6 for part, most in zip(parts, wanted, strict=True))
    assert sum(parts) == pytest.approx(min(total, sum(wanted)), abs=1e-6)
    levels = [part / weight for part, most, weight in zip(parts, wanted, weights, strict=True) if part < most - 1e-6]
    assert not levels or max(levels) - min(levels) < 1e-3 * max(1.0, max(levels))


@given(st.lists(st.floats(0.001, 100), min_size=1, max_size=20))
def test_jains_index_is_between_one_over_n_and_one(values: list[float]) -> None:
    assert 1 / len(values) - 1e-9 <= jain(values) <= 1 + 1e-9


def test_jains_index_of_equals_is_one_and_of_one_who_has_all_is_one_over_n() -> None:
    assert jain([3.0, 3.0]) == pytest.approx(1)
    assert jain([1.0, 0.0, 0.0, 0.0]) == 0.25
