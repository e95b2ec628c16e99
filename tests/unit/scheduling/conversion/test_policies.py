"""What administrators wrote becomes what the cycle reads; what is missing or does not parse is the default."""

from __future__ import annotations

from dataclasses import astuple
from decimal import Decimal
from typing import Any

import msgspec
import pytest

from lattice.accounting.budgets import Allowance, Budgets, Period
from lattice.scheduling.conversion import policies
from lattice.scheduling.model.policy import BALANCED, PROFILES, Borrowing, Limits, Policy, Weights
from lattice.scheduling.priority.shares import Terms
from lattice.units import parse_time
from lattice.views import Config, Tenant, VCluster
from lattice.views.cluster import SchedulingOptions


def vcluster(**spec: Any) -> VCluster:
    return msgspec.convert({"metadata": {"name": "hpc"}, "spec": spec}, VCluster)


def config(**scheduling: Any) -> Config:
    return msgspec.convert({"metadata": {"name": "lattice"}, "spec": {"scheduling": scheduling}}, Config)


def test_an_empty_vcluster_schedules_by_the_defaults_of_the_cluster() -> None:
    assert policies.policy_of(vcluster()) == Policy("hpc")
    assert policies.policy_of(vcluster(), SchedulingOptions(cycle_interval="5s", backfill_depth=3)) == Policy("hpc", interval=5.0, depth=3)


def test_every_field_of_a_vcluster_is_read() -> None:
    made = policies.policy_of(
        vcluster(
            policy="BinPack",
            profile="Service",
            cycle={"interval": "15s", "depth": 0},
            nodes={"selector": {"group": ["g0"]}},
            borrowing={"lend": True, "borrow": True, "maxBorrowed": 4, "priority": 7, "maxDuration": "2h", "returnGrace": "30s"},
            limits={
                "maxRunning": 1, "maxRunningPerUser": 2, "maxNodesPerUser": 3, "maxRunningPerTenant": 4, "maxNodesPerTenant": 5,
                "maxNodes": 6,
            },
            preemption={"minRuntime": "5m", "maxPerAllocation": 3},
        ),
        SchedulingOptions(cycle_interval="5s", backfill_depth=3),
    )  # fmt: skip
    assert made == Policy(
        "hpc",
        kind="BinPack",
        weights=PROFILES["Service"],
        interval=15.0,
        depth=0,
        home=True,
        borrowing=Borrowing(lend=True, borrow=True, max_borrowed=4, priority=7, max_duration=7200.0, return_grace=30.0),
        limits=Limits(6, 1, 2, 3, 4, 5),
        min_runtime_before_preemption=300.0,
        max_preemptions=3,
    )


@pytest.mark.parametrize(
    ("spec", "weights"),
    [
        ({}, BALANCED),
        ({"profile": "MlTraining"}, PROFILES["MlTraining"]),
        ({"profile": "Unheard"}, BALANCED),
        ({"weights": {"priority": "200m", "waitTime": "0.8"}}, Weights(0.2, 0.8, 0, 0, 0, 0, 0, 0, 0)),
        ({"weights": {"priority": 1, "conformance": 3}}, Weights(0.25, 0, 0, 0, 0, 0, 0, 0, 0.75)),
        ({"weights": {"priority": 0}}, BALANCED),
        ({"weights": {"priority": "-1", "waitTime": "much", "fairShare": 2}}, Weights(0, 0, 1, 0, 0, 0, 0, 0, 0)),
    ],
    ids=["none", "profile", "unknown profile", "own", "normalised", "all zero", "what does not parse is 0"],
)
def test_weights_are_those_of_its_own_or_of_its_profile_and_sum_to_1(spec: dict[str, Any], weights: Weights) -> None:
    assert astuple(policies.policy_of(vcluster(**spec)).weights) == pytest.approx(astuple(weights))


def test_weights_are_known_exactly_before_they_are_normalised() -> None:
    given = policies.given_weights(vcluster(weights={"priority": "100m", "waitTime": "0.2", "fairShare": 1}).spec)
    assert sum(given) == Decimal("1.3")


def test_the_terms_of_a_tenant_are_read() -> None:
    budget = {"gpuHours": 100, "nodeHours": 7, "periodDays": 30, "fairShareTarget": "150m", "burstAllowance": "1500m"}
    assert policies.terms_of(msgspec.convert({"metadata": {"name": "a"}, "spec": {"budget": budget}}, Tenant)) == Terms(
        target=0.15, burst_allowance=1.5, budgets=Budgets(Allowance(100.0, 7.0), period=Period(seconds=30 * 86400.0))
    )
    assert policies.terms_of(msgspec.convert({"metadata": {"name": "a"}}, Tenant)) == Terms()


def test_the_price_of_electricity_is_known_for_the_time_that_it_was_given_for() -> None:
    until = parse_time("2026-12-01T08:00:00Z")
    given = config(energyPrice="300m", energyPriceUntil="2026-12-01T08:00:00Z")
    assert policies.energy_price(given, until - 1) == pytest.approx(0.3)
    assert policies.energy_price(given, until) is None
    assert policies.energy_price(config(energyPrice=1), until) == 1.0
    assert policies.energy_price(config(), until) is None
    assert policies.energy_price(None, until) is None


def test_a_field_that_does_not_parse_takes_its_default() -> None:
    bad = vcluster(
        borrowing={"lend": True, "maxDuration": "soon", "returnGrace": "x"}, cycle={"interval": "x"}, preemption={"minRuntime": "x"}
    )
    assert policies.policy_of(bad) == Policy("hpc", borrowing=Borrowing(lend=True))
    budget = {"fairShareTarget": "much", "burstAllowance": "much"}
    assert policies.terms_of(msgspec.convert({"metadata": {"name": "a"}, "spec": {"budget": budget}}, Tenant)) == Terms()
    assert policies.energy_price(config(energyPrice="cheap"), 0.0) is None
    assert policies.energy_price(config(energyPrice=0), 0.0) == 0.0
