"""Converts the objects of administrators for the cycle: VCluster to Policy, Tenant to Terms, LatticeConfig to limits.

A field that does not parse (the webhook was away) takes its default: a typing error in one vcluster stops no cycle.
"""

from __future__ import annotations

from dataclasses import fields
from decimal import Decimal
from typing import Final

from lattice.accounting.budgets import budgets_of
from lattice.errors import Rejected
from lattice.scheduling.model.policy import BACKFILL, BALANCED, PROFILES, Borrowing, Limits, Policy, Weights
from lattice.scheduling.preemption.victims import PreemptionLimits
from lattice.scheduling.priority.shares import Terms
from lattice.units import parse_duration, parse_quantity, parse_time
from lattice.views.cluster import Config, SchedulingOptions, Tenant, VCluster, VClusterSpec

_WEIGHTS: Final = tuple(field.name for field in fields(Weights))


def policy_of(vcluster: VCluster, options: SchedulingOptions = SchedulingOptions()) -> Policy:  # noqa: B008 - it is frozen
    """Returns the policy of a vcluster; an interval and a depth that it leaves out come from the LatticeConfig (`options`), all else takes
    its default.

    A duration that does not parse counts as left out.
    """
    spec = vcluster.spec
    limits, borrowing, selector = spec.limits, spec.borrowing, spec.nodes.selector
    return Policy(
        name=vcluster.metadata.name,
        kind=spec.policy or BACKFILL,
        weights=weights_of(spec),
        interval=seconds(spec.cycle.interval, seconds(options.cycle_interval, 1.0)),
        depth=options.backfill_depth if spec.cycle.depth is None else spec.cycle.depth,
        home=selector is not None and bool(selector.group),
        borrowing=Borrowing(
            lend=borrowing.lend,
            borrow=borrowing.borrow,
            max_borrowed=borrowing.max_borrowed,
            priority=borrowing.priority,
            max_duration=_duration(borrowing.max_duration),
            return_grace=seconds(borrowing.return_grace, 0.0),
        ),
        limits=Limits(
            max_nodes=limits.max_nodes,
            max_running=limits.max_running,
            max_running_per_user=limits.max_running_per_user,
            max_nodes_per_user=limits.max_nodes_per_user,
            max_running_per_tenant=limits.max_running_per_tenant,
            max_nodes_per_tenant=limits.max_nodes_per_tenant,
        ),
        min_runtime_before_preemption=seconds(spec.preemption.min_runtime, 0.0),
        max_preemptions=spec.preemption.max_per_allocation,
    )


def preemption_limits(config: Config | None) -> PreemptionLimits:
    """Returns the limits of preemption that a LatticeConfig sets, the defaults for all others; `config` None: only defaults."""
    options = config.spec.scheduling if config is not None else SchedulingOptions()
    return PreemptionLimits(most_victims=options.victims, near_completion=seconds(options.near_completion, 300.0))


def weights_of(spec: VClusterSpec) -> Weights:
    """Returns the weights in force, summing to 1: the vcluster's own, else those of its profile, else the balanced ones.

    Own weights that are all 0, or do not parse, give the balanced ones.
    """
    if spec.weights is None:
        return PROFILES.get(spec.profile or "", BALANCED)
    exact = given_weights(spec)
    if not any(exact):
        return BALANCED
    return Weights(*(float(weight) for weight in exact)).normalised()


def given_weights(spec: VClusterSpec) -> tuple[Decimal, ...]:
    """Returns the vcluster's own weights as they are written, w1 to w9, exactly; 0 for a weight that is left out or does not parse."""
    return tuple(_quantity(getattr(spec.weights, name, None)) or Decimal(0) for name in _WEIGHTS)


def terms_of(tenant: Tenant) -> Terms:
    """Returns the share and the budgets agreed with a tenant, from its spec; a share above 1 counts as 1, one that does not parse as none,
    a burst allowance that is 0 or does not parse as 1.
    """
    budget = tenant.spec.budget
    target = _quantity(budget.fair_share_target)
    return Terms(
        target=None if target is None else min(1.0, float(target)),
        burst_allowance=float(_quantity(budget.burst_allowance) or 1),
        budgets=budgets_of(tenant),
    )


def energy_price(config: Config | None, now: float) -> float | None:
    """Returns the price of electricity in the LatticeConfig, in [0, 1], one above as 1; None: it is not set or does not parse, or its
    time of validity is over at `now` or does not parse.
    """
    options = config.spec.scheduling if config is not None else SchedulingOptions()
    price = _quantity(options.energy_price)
    if price is None or (options.energy_price_until is not None and _moment(options.energy_price_until) <= now):
        return None
    return min(1.0, float(price))


def seconds(text: str | None, default: float) -> float:
    """Returns a duration in seconds; `default` where the text is absent or does not parse."""
    found = _duration(text)
    return default if found is None else found


def _duration(text: str | None) -> float | None:
    """Returns a duration in seconds; None where the text is absent or does not parse."""
    if text is None:
        return None
    try:
        return parse_duration(text)
    except Rejected:
        return None


def _moment(text: str) -> float:
    """Returns a time as seconds since the epoch; 0, which is past, where it does not parse."""
    try:
        return parse_time(text)
    except Rejected:
        return 0.0


def _quantity(quantity: int | str | None) -> Decimal | None:
    """Returns a quantity as an exact number; None where it is absent or does not parse."""
    if quantity is None:
        return None
    try:
        return Decimal(parse_quantity(quantity))
    except Rejected:
        return None
