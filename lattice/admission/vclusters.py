"""Checks of a VCluster: partitions and groups of its own, defaults within its limits."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import msgspec

from lattice.admission.facts import Facts
from lattice.admission.submission import malformed
from lattice.admission.verdicts import Caution, Finding, Object, Refused, reading
from lattice.units import parse_duration
from lattice.views import VCluster


def fill(obj: Object) -> Object:
    """A copy that says whether it is open, so that kubectl's table does."""
    filled = copy.deepcopy(obj)
    spec = filled.setdefault("spec", {})
    if isinstance(spec, dict) and spec.get("state") is None:
        spec["state"] = "Open"
    return filled


def judge(obj: Object, facts: Facts) -> Iterator[Finding]:
    """Every finding about a VCluster that is made or changed."""
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
    unknown = [name for name in vcluster.spec.tenants if name != "*" and facts.tenants is not None and name not in facts.tenants]
    if unknown:
        yield Caution(f"spec.tenants names tenants that do not exist yet: {', '.join(sorted(unknown)[:20])}")


def judge_deletion(old: Object, facts: Facts) -> Iterator[Finding]:
    """A VCluster with allocations that have not ended stays."""
    name = str(old.get("metadata", {}).get("name", ""))
    if facts.holders:
        sentence = f'vCluster "{name}" has {facts.holders} allocations that have not ended'
        yield Refused(
            "InUse", sentence, "metadata.name", "wait for them or cancel them; set spec.state to Closed so that no more are placed"
        )


def _partitions(vcluster: VCluster, others: list[VCluster]) -> Iterator[Finding]:
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
    home = {group: other.metadata.name for other in others for group in _home_groups(other)}
    for group in _home_groups(vcluster):
        if group in home:
            sentence = f'group "{group}" is at home in vCluster "{home[group]}"'
            yield Refused("GroupTaken", sentence, "spec.nodes.selector.group", "a group has one home: take it out there first")


def _home_groups(vcluster: VCluster) -> tuple[str, ...]:
    selector = vcluster.spec.nodes.selector
    return selector.group if selector is not None else ()


def _walltimes(vcluster: VCluster) -> Iterator[Finding]:
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
    most = vcluster.spec.limits.max_nodes_per_allocation
    if most is not None and most < 1:
        field = "spec.limits.maxNodesPerAllocation"
        yield Refused(
            "OptionInvalid", f"{field} is {most}, and must be at least 1", field, "set spec.state to Closed to place no more work"
        )
