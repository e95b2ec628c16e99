"""Checks a VCluster: partition names and home groups that no other has, defaults within its limits."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

import msgspec

from lattice.admission.defaults import usable_vclusters
from lattice.admission.facts import Facts
from lattice.admission.submission import malformed
from lattice.admission.verdicts import Caution, Finding, Object, Refused, reading
from lattice.units import format_duration, parse_duration, parse_quantity
from lattice.views import VCluster


def fill(obj: Object) -> Object:
    """Returns the object with `spec.state` Open where it is absent, so that kubectl's table shows it."""
    filled = copy.deepcopy(obj)
    spec = filled.setdefault("spec", {})
    if isinstance(spec, dict) and spec.get("state") is None:
        spec["state"] = "Open"
    return filled


def judge(obj: Object, facts: Facts) -> Iterator[Finding]:
    """Yields every refusal and warning for a VCluster that is created or changed; one that does not decode gets that refusal alone."""
    try:
        vcluster = msgspec.convert(obj, VCluster)
    except msgspec.ValidationError as error:
        yield malformed(error, "")
        return
    others = [other for other in (facts.vclusters or {}).values() if other.metadata.name != vcluster.metadata.name]
    yield from _partitions(vcluster, others)
    yield from _groups(vcluster, others)
    yield from _walltimes(vcluster)
    yield from _limits(vcluster)
    yield from _weights(vcluster)
    yield from _cycle(vcluster)
    yield from _lending(vcluster)
    yield from _homeless(vcluster, others, facts)
    yield from _empty_groups(vcluster, facts)
    yield from _undecided_tenants(vcluster, facts)
    unknown = [name for name in vcluster.spec.tenants if name != "*" and facts.tenants is not None and name not in facts.tenants]
    if unknown:
        yield Caution(f"spec.tenants names tenants that do not exist yet: {', '.join(sorted(unknown)[:20])}")


def judge_deletion(old: Object, facts: Facts) -> Iterator[Finding]:
    """Yields the refusal to delete a VCluster while it has allocations that have not ended; nothing where their number is unknown."""
    name = str(old.get("metadata", {}).get("name", ""))
    if facts.holders:
        sentence = f'vCluster "{name}" has {facts.holders} allocations that have not ended'
        yield Refused(
            "InUse", sentence, "metadata.name", "wait for them or cancel them; set spec.state to Closed so that no more are placed"
        )


def _partitions(vcluster: VCluster, others: list[VCluster]) -> Iterator[Finding]:
    """Yields a refusal for each partition name that already means another vcluster, and where the vcluster's own name is a partition name
    of another.
    """
    field = "spec.partitionNames"
    taken = {word: other.metadata.name for other in others for word in (*other.spec.partition_names, other.metadata.name)}
    for word in vcluster.spec.partition_names:
        if word in taken:
            sentence = f'partition name "{word}" already means vCluster "{taken[word]}"'
            yield Refused("PartitionTaken", sentence, field, "a partition means one vcluster: choose another name")
    named = {word: other.metadata.name for other in others for word in other.spec.partition_names}
    own = vcluster.metadata.name
    if own in named:
        sentence = f'"{own}" is already a partition name of vCluster "{named[own]}"'
        yield Refused("PartitionTaken", sentence, "metadata.name", "choose another name, or take the partition name away there")


def _groups(vcluster: VCluster, others: list[VCluster]) -> Iterator[Finding]:
    """Yields a refusal for each group of nodes that is at home in another vcluster."""
    home = {group: other.metadata.name for other in others for group in _home_groups(other)}
    for group in _home_groups(vcluster):
        if group in home:
            sentence = f'group "{group}" is at home in vCluster "{home[group]}"'
            yield Refused("GroupTaken", sentence, "spec.nodes.selector.group", "a group has one home: take it out there first")


def _home_groups(vcluster: VCluster) -> tuple[str, ...]:
    """Returns the groups of nodes that are at home in a vcluster; empty where it selects none."""
    selector = vcluster.spec.nodes.selector
    return selector.group if selector is not None else ()


def _homeless(vcluster: VCluster, others: list[VCluster], facts: Facts) -> Iterator[Finding]:
    """Yields a caution where home groups that this vcluster newly claims take nodes from vclusters without home groups, except those that
    may borrow them back; nothing where the groups are unknown.
    """
    before = (facts.vclusters or {}).get(vcluster.metadata.name)
    counts, held = facts.groups, {group for other in others for group in _home_groups(other)}
    had = set(_home_groups(before)) if before is not None else set[str]()
    taken = [group for group in _home_groups(vcluster) if group not in had | held]
    lends = vcluster.spec.borrowing.lend
    losers = sorted(other.metadata.name for other in others if not _home_groups(other) and not (lends and other.spec.borrowing.borrow))
    lost = sum((counts or {}).get(group, 0) for group in taken)
    if counts is None or not losers or not lost:
        return
    left = sum(count for group, count in counts.items() if group not in held.union(had, taken))
    what = f"group {taken[0]}" if len(taken) == 1 else f"groups {', '.join(taken)}"
    yield Caution(
        f"{what} ({_nodes(lost)}) is at home here from now on: vCluster {', '.join(losers)} has no home groups, uses nodes that are "
        f"at home nowhere, and keeps {left} of {left + lost}; its work that asks for more waits with reason NeverFits"
    )


def _empty_groups(vcluster: VCluster, facts: Facts) -> Iterator[Finding]:
    """Yields a caution on new home groups without any node, which are more likely a slip than machines to come; nothing where the groups
    are unknown.
    """
    before = (facts.vclusters or {}).get(vcluster.metadata.name)
    had = set(_home_groups(before)) if before is not None else set[str]()
    empty = [group for group in _home_groups(vcluster) if group not in had and not (facts.groups or {}).get(group)]
    if facts.groups is not None and empty:
        known = ", ".join(sorted(group for group in facts.groups if group)[:20])
        yield Caution(
            f"no node is in {'group' if len(empty) == 1 else 'groups'} {', '.join(empty)} (there are: {known or 'none'}): "
            "work here waits with reason NeverFits until one joins"
        )


def _nodes(count: int) -> str:
    """Returns a number of nodes in words, such as `1 node` or `3 nodes`."""
    return "1 node" if count == 1 else f"{count} nodes"


def _undecided_tenants(vcluster: VCluster, facts: Facts) -> Iterator[Finding]:
    """Yields a caution on tenants without a default vcluster that could use one only, and now can use several; nothing where tenants or
    vclusters are unknown.
    """
    if facts.vclusters is None or facts.tenants is None:
        return
    known = dict(facts.vclusters)
    now = {**known, vcluster.metadata.name: vcluster}
    between = [
        name
        for name, tenant in sorted(facts.tenants.items())
        if not tenant.spec.default_v_cluster and len(usable_vclusters(name, known)) == 1 and len(usable_vclusters(name, now)) > 1
    ]
    if between:
        more = f" and {len(between) - 20} more" if len(between) > 20 else ""
        yield Caution(
            f"tenants without a default vCluster may now use several, and their work that names none is refused: "
            f"{', '.join(between[:20])}{more}; set their spec.defaultVCluster"
        )


def _walltimes(vcluster: VCluster) -> Iterator[Finding]:
    """Yields a refusal where a walltime does not parse, which ends the check, is not above 0, or the default is above the limit."""
    seconds: dict[str, float] = {}
    for field, text in (("defaults.walltime", vcluster.spec.defaults.walltime), ("limits.maxWalltime", vcluster.spec.limits.max_walltime)):
        if text is None:
            continue
        value = reading(parse_duration, text, field=f"spec.{field}", reason="DurationInvalid")
        if isinstance(value, Refused):
            yield value
            return
        if value <= 0:
            yield Refused("DurationInvalid", f"spec.{field} is {text}, and must be above 0", f"spec.{field}", "leave it out for none")
        seconds[field] = value
    default, limit = seconds.get("defaults.walltime"), seconds.get("limits.maxWalltime")
    if default is not None and limit is not None and default > limit:
        numbers = f"(default: {vcluster.spec.defaults.walltime}, limit: {vcluster.spec.limits.max_walltime})"
        sentence = f"spec.defaults.walltime exceeds spec.limits.maxWalltime {numbers}"
        yield Refused("OptionInvalid", sentence, "spec.defaults.walltime", "lower the default or raise the limit")


def _limits(vcluster: VCluster) -> Iterator[Finding]:
    """Yields a refusal for each limit of nodes or allocations below 1, and for a highest class outside 0 to 10."""
    limits = vcluster.spec.limits
    for field, most in (
        ("maxNodesPerAllocation", limits.max_nodes_per_allocation),
        ("maxNodes", limits.max_nodes),
        ("maxRunning", limits.max_running),
        ("maxRunningPerUser", limits.max_running_per_user),
        ("maxNodesPerUser", limits.max_nodes_per_user),
        ("maxPendingPerUser", limits.max_pending_per_user),
        ("maxPending", limits.max_pending),
        ("maxPendingPerTenant", limits.max_pending_per_tenant),
        ("maxRunningPerTenant", limits.max_running_per_tenant),
        ("maxNodesPerTenant", limits.max_nodes_per_tenant),
    ):
        if most is not None and most < 1:
            where = f"spec.limits.{field}"
            sentence = f"{where} is {most}, and must be at least 1"
            yield Refused("OptionInvalid", sentence, where, "leave it out for no limit; set spec.state to Closed to place no more work")
    highest = limits.max_preemption_class
    if highest is not None and not 0 <= highest <= 10:
        where = "spec.limits.maxPreemptionClass"
        yield Refused("OptionInvalid", f"{where} is {highest} (limits: 0 to 10)", where, "leave it out to take every class")


def _weights(vcluster: VCluster) -> Iterator[Finding]:
    """Yields a refusal unless either a profile or weights are given, the weights as quantities from 0 on and not all 0, and a caution where
    they do not sum to 1.

    Yields nothing without weights.
    """
    weights, profile = vcluster.spec.weights, vcluster.spec.profile
    if weights is None:
        return
    if profile is not None:
        sentence = f"spec.profile ({profile}) and spec.weights are both given"
        yield Refused("WeightsInvalid", sentence, "spec.weights", "name a profile, or give weights of its own, and remove the other")
    total = Decimal(0)
    for key in weights.__struct_fields__:
        given = getattr(weights, key)
        if given is None:
            continue
        field = f"spec.weights.{camel(key)}"
        value = reading(parse_quantity, given, field=field, reason="WeightsInvalid")
        if isinstance(value, Refused):
            negative = str(given).startswith("-")
            yield replace(value, sentence=f"{field} is {given}, and a weight is at least 0") if negative else value
            return
        total += value
    if not total:
        sentence = "spec.weights are all 0: every score would be 0"
        yield Refused("WeightsInvalid", sentence, "spec.weights", "give at least one above 0, or remove them for the balanced ones")
    elif total != 1:
        shown = f"{total.normalize():f}"
        yield Caution(f"spec.weights sum to {shown}: each is divided by {shown}, so that they sum to 1")


def camel(name: str) -> str:
    """Returns a field's snake_case name in camelCase, as people write it."""
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def _cycle(vcluster: VCluster) -> Iterator[Finding]:
    """Yields a refusal for each duration of cycle, preemption and borrowing, and for a depth, that does not parse or is out of its
    limits.
    """
    cycle, preemption, borrowing = vcluster.spec.cycle, vcluster.spec.preemption, vcluster.spec.borrowing
    for field, text, least, most in (
        ("cycle.interval", cycle.interval, 0.02, 3600),
        ("preemption.minRuntime", preemption.min_runtime, 0, 365 * 86400),
        ("borrowing.maxDuration", borrowing.max_duration, 1, 365 * 86400),
        ("borrowing.returnGrace", borrowing.return_grace, 0, 86400),
    ):
        seconds = reading(parse_duration, text, field=f"spec.{field}", reason="DurationInvalid") if text is not None else None
        if isinstance(seconds, Refused):
            yield seconds
        elif seconds is not None and not least <= seconds <= most:
            sentence = f"spec.{field} is {text} (limits: {least:g}s to {format_duration(most)})"
            yield Refused("OptionInvalid", sentence, f"spec.{field}", "choose a duration within the limits")
    if cycle.depth is not None and not 0 <= cycle.depth <= 1000:
        sentence = f"spec.cycle.depth is {cycle.depth} (limits: 0 to 1000)"
        yield Refused("OptionInvalid", sentence, "spec.cycle.depth", "0 holds no reservation, 1 is EASY, 10 to 20 is usual")


def _lending(vcluster: VCluster) -> Iterator[Finding]:
    """Yields refusals and cautions on lending and borrowing: numbers out of their limits, lending without home nodes, limits of a borrowing
    that is off.
    """
    borrowing, selector = vcluster.spec.borrowing, vcluster.spec.nodes.selector
    if not 0 <= borrowing.priority <= 10:
        sentence = f"spec.borrowing.priority is {borrowing.priority} (limits: 0 to 10)"
        yield Refused("OptionInvalid", sentence, "spec.borrowing.priority", "5 is the default; higher borrows first and gives back last")
    if borrowing.max_borrowed is not None and borrowing.max_borrowed < 0:
        sentence = f"spec.borrowing.maxBorrowed is {borrowing.max_borrowed}, and must be at least 0"
        yield Refused("OptionInvalid", sentence, "spec.borrowing.maxBorrowed", "leave it out for no limit")
    if borrowing.lend and (selector is None or not selector.group):
        yield Caution("spec.borrowing.lend is true, and no node is at home here: spec.nodes.selector names home nodes")
    if not borrowing.borrow and (borrowing.max_borrowed is not None or borrowing.max_duration is not None):
        yield Caution("spec.borrowing has limits of borrowing, and spec.borrowing.borrow is false: nothing is borrowed")
