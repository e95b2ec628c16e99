"""Renders VClusters for people: one line each, or everything about one with the weights in force; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple
from decimal import Decimal
from typing import Any, Final

import msgspec

from lattice.cli.render.text import Column, fields, table
from lattice.scheduling.conversion.policies import given_weights, policy_of
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.strategies import strategy_of
from lattice.scheduling.priority.cost import TERMS
from lattice.views import Config, VCluster

COLUMNS: Final = (
    Column("VCLUSTER"),
    Column("STATE"),
    Column("POLICY"),
    Column("WEIGHTS", leave=3),
    Column("INTERVAL", right=True, leave=1),
    Column("DEPTH", right=True, leave=2),
    Column("NODES", right=True),
    Column("READY", right=True),
    Column("MAX WALLTIME", right=True),
    Column("MAX NODES", right=True),
    Column("GROUPS", shrink_to=8),
    Column("TENANTS", shrink_to=8),
    Column("PARTITIONS", shrink_to=8),
)


def vcluster_table(items: Sequence[dict[str, Any]], config: Config | None, *, width: int) -> list[str]:
    """Returns one line a vcluster, sorted by name."""
    read = sorted((msgspec.convert(item, VCluster) for item in items), key=lambda one: one.metadata.name)
    return table(COLUMNS, [_row(one, config) for one in read], width=width)


def vcluster_details(item: dict[str, Any], config: Config | None) -> list[str]:
    """Returns the lines about one vcluster: everything in force there, defaults filled in."""
    one = msgspec.convert(item, VCluster)
    policy = _policy(one, config)
    spec, limits = one.spec, one.spec.limits
    named = {
        "nodes": limits.max_nodes,
        "running": limits.max_running,
        "waiting": limits.max_pending,
        "running of a user": limits.max_running_per_user,
        "nodes of a user": limits.max_nodes_per_user,
        "waiting of a user": limits.max_pending_per_user,
        "waiting of a tenant": limits.max_pending_per_tenant,
        "running of a tenant": limits.max_running_per_tenant,
        "nodes of a tenant": limits.max_nodes_per_tenant,
        "nodes of an allocation": limits.max_nodes_per_allocation,
        "walltime": limits.max_walltime,
        "class": limits.max_preemption_class,
    }
    told = [each for each in one.status.conditions if each.message and each.type not in ("Ready", "InUse")]
    return fields(
        [
            ("VCluster", one.metadata.name),
            ("State", spec.state),
            ("Policy", f"{policy.kind}, a cycle at least each {policy.interval:g} s, {_depth(policy)} reservations"),
            ("Weights", f"{weights_word(one)}\n" + "\n".join(weight_lines(one, config))),
            (
                "Nodes",
                f"{one.status.nodes}, {one.status.ready} Ready"
                + (f", home groups {_groups(one)}" if policy.home else ", those at home in no vcluster"),
            ),
            ("Borrowing", _borrowing(one)),
            ("Limits", ", ".join(f"{name} {limit}" for name, limit in named.items() if limit is not None)),
            ("Default", f"walltime {spec.defaults.walltime}" if spec.defaults.walltime else ""),
            ("Preemption", _preemption(one)),
            ("Tenants", ",".join(spec.tenants)),
            ("Partitions", ",".join(spec.partition_names)),
            ("Conditions", "\n".join(f"{each.reason}: {each.message}" for each in told)),
        ]
    )


def _depth(policy: Policy) -> int:
    """Returns how many blocked allocations may hold a backfill reservation in the vcluster."""
    return strategy_of(policy).depth(policy)


def weight_lines(one: VCluster, config: Config | None = None) -> list[str]:
    """Returns the nine weights in force, which sum to 1."""
    weights = astuple(_policy(one, config).weights)
    return [f"{name:<15}{weight:.3f}" for name, weight in zip(TERMS, weights, strict=True)]


def weights_word(one: VCluster) -> str:
    """Returns where the weights come from: the name of a profile, `its own` (with their sum where it is not 1), or `balanced`
    by default.
    """
    if one.spec.weights is None:
        return one.spec.profile or "balanced"
    total = sum(given_weights(one.spec), Decimal(0))
    return "its own" if total == 1 else f"its own (given: {total.normalize():f} in sum, divided by it)"


def _row(one: VCluster, config: Config | None) -> list[str]:
    """Returns the cells of one vcluster, with the policy in force."""
    policy, spec = _policy(one, config), one.spec
    return [
        one.metadata.name,
        spec.state,
        policy.kind,
        "own" if spec.weights is not None else spec.profile or "balanced",
        f"{policy.interval:g}s",
        str(_depth(policy)),
        str(one.status.nodes),
        str(one.status.ready),
        spec.limits.max_walltime or "",
        str(spec.limits.max_nodes_per_allocation or ""),
        _groups(one),
        ",".join(spec.tenants),
        ",".join(spec.partition_names),
    ]


def _policy(one: VCluster, config: Config | None) -> Policy:
    """Returns the policy in force for a vcluster; without a configuration, the defaults stand for it."""
    return policy_of(one, config.spec.scheduling) if config is not None else policy_of(one)


def _groups(one: VCluster) -> str:
    """Returns the groups of nodes at home in a vcluster, with commas between them; empty for none."""
    selector = one.spec.nodes.selector
    return ",".join(selector.group) if selector is not None else ""


def _borrowing(one: VCluster) -> str:
    """Returns in words what a vcluster lends and borrows."""
    borrowing = one.spec.borrowing
    parts = ["lends idle home nodes"] if borrowing.lend else []
    if borrowing.borrow:
        most = "any number" if borrowing.max_borrowed is None else f"at most {borrowing.max_borrowed}"
        longest = f", work of at most {borrowing.max_duration}" if borrowing.max_duration else ""
        parts.append(f"borrows {most}{longest}, priority {borrowing.priority}, gives back within {borrowing.return_grace}")
    return "; ".join(parts) or "neither lends nor borrows"


def _preemption(one: VCluster) -> str:
    """Returns in words when and how often a vcluster's work may be preempted; empty where no limit is set."""
    preemption = one.spec.preemption
    parts = [f"not before {preemption.min_runtime}"] if preemption.min_runtime else []
    if preemption.max_per_allocation is not None:
        parts.append(f"at most {preemption.max_per_allocation} times")
    return ", ".join(parts)
