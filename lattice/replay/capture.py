"""Captures a trace of the live system: reads Allocations, nodes, tenants and vclusters of the API, and makes a log for a replay.

The log has the work submitted since a moment. Objects that retention has removed by then cannot be captured; the log says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from lattice.errors import Rejected
from lattice.lifecycle.hardware import implied_features
from lattice.replay.jobs import Log, TenantTerms, TraceJob
from lattice.replay.profiles import settings_of
from lattice.scheduling.cluster.node_cache import HOLLOW
from lattice.scheduling.conversion.candidates import candidate_of
from lattice.scheduling.conversion.facts import facts_of, home_groups
from lattice.scheduling.model.hardware import NodeFacts
from lattice.scheduling.model.policy import Policy
from lattice.units import fold_nodes, format_bytes, format_duration, format_time, parse_duration, parse_time
from lattice.views.allocation import Allocation
from lattice.views.cluster import Node, Tenant, VCluster

SHORTEST_SECONDS: Final = 1.0
"""The run time given to work that began and ended in the same second, since the API knows whole seconds only."""
_DIGITS: Final = 16
"""Digits of a fingerprint that an inventory shows."""


@dataclass(frozen=True)
class Seen:
    """The objects that the API showed, as the input of a capture."""

    allocations: Iterable[Allocation]
    nodes: Collection[Node]
    tenants: Collection[Tenant]
    vclusters: Collection[VCluster]
    policies: Mapping[str, Policy]
    shares: Mapping[str, float]
    """The target share of each tenant that has one, between 0 and 1."""
    unplayed: Mapping[str, int]
    """By plural name of a kind that affects scheduling but has no place in a trace: how many objects of it there are."""


def capture(seen: Seen, since: float, now: float) -> Log:
    """Returns the log of the work submitted in [since, now), times in seconds since the epoch, in order of submission; `missing` names what
    it lacks.

    Work that cannot be read is counted in `left`, that which has not ended is in `open`.
    """
    log = Log("captured")
    vclusters = {one.metadata.name: one for one in seen.vclusters}
    earlier = 0
    for allocation in sorted(seen.allocations, key=lambda one: (one.metadata.namespace, one.metadata.name)):
        job = _job(allocation, vclusters.get(allocation.spec.vcluster), log)
        if job is None or job.submit >= now:
            continue
        if job.submit < since:
            earlier += 1
            log.open.discard(job.id)
        else:
            log.jobs.append(job)
    log.jobs.sort(key=lambda job: (job.submit, job.id))
    log.total = len(log.jobs)
    log.inventory = _inventory(seen)
    log.vclusters = {name: settings_of(policy) for name, policy in sorted(seen.policies.items())}
    for tenant in sorted(seen.tenants, key=lambda one: one.metadata.name):
        quota, name = tenant.spec.quota, tenant.metadata.name
        log.tenants[name] = TenantTerms(seen.shares.get(name), quota.max_nodes, quota.max_concurrent_allocations)
    log.missing = "; ".join(_missing(seen, since, now, earlier))
    return log


def _job(allocation: Allocation, vcluster: VCluster | None, log: Log) -> TraceJob | None:
    """Returns the job of an Allocation, with its walltime as its run where it has not run to an end; None for one that cannot be read,
    which is counted in the log.

    One that has not ended is entered in `log.open`.
    """
    candidate = candidate_of(allocation, vcluster, {})
    status, spec = allocation.status, allocation.spec
    if candidate.blocked is not None:
        log.left.note("that cannot be read")
        return None
    started = parse_time(status.start_time) if status.start_time else None
    ended = parse_time(status.end_time) if status.end_time else None
    withdrawn = ended if started is None and ended is not None else None
    run = max(SHORTEST_SECONDS, ended - started) if started is not None and ended is not None else candidate.walltime or 0.0
    uid = allocation.metadata.uid
    if ended is None:
        log.open.add(uid)
    constraints = spec.resources.constraints
    return TraceJob(
        id=uid, submit=candidate.submitted, nodes=candidate.minimum, most=candidate.maximum, run=run, walltime=candidate.walltime,
        tenant=candidate.tenant, user=candidate.user, vcluster=candidate.vcluster, name=candidate.name,
        preemption_class=candidate.preemption_class,
        need=replace(candidate.need, only=None, without=0, hollow=False, features=candidate.need.features - {HOLLOW}),
        only=constraints.node_list, without=constraints.exclude_nodes, grace=candidate.grace, topology=candidate.topology,
        conformance=candidate.conformance, checkpointable=candidate.checkpointable, preemptible=candidate.preemptible,
        sensitive=candidate.sensitive, withdrawn=withdrawn, started=started,
        exit=status.exit.code if status.exit is not None and ended is not None else None,
    )  # fmt: skip


def _inventory(seen: Seen) -> dict[str, Any] | None:
    """Returns the inventory document of the machine: classes of equal hardware, nodes folded into sets; None without a known node."""
    homes = home_groups(seen.vclusters)
    classes: dict[str, dict[str, Any]] = {}
    names: dict[tuple[str, ...], list[str]] = {}
    for node in sorted(seen.nodes, key=lambda one: (one.status.index is None, one.status.index or 0, one.metadata.name)):
        facts = facts_of(node, 0, usable=True, state=node.status.state, homes=homes)
        if not facts.cpus:
            continue  # nobody has heard of it yet
        hardware = _hardware(facts)
        name = next((known for known, each in classes.items() if each == hardware), f"class{len(classes) + 1}")
        classes.setdefault(name, hardware)
        names.setdefault((name, facts.group, facts.switch, _short(facts.fingerprint), facts.home), []).append(facts.name)
    if not names:
        return None
    keys = ("class", "group", "switch", "fingerprint", "vcluster")
    entries = [
        {"names": fold_nodes(nodes), **{key: value for key, value in zip(keys, place, strict=True) if value}}
        for place, nodes in names.items()
    ]
    return {"classes": classes, "nodes": entries}


def _short(fingerprint: str) -> str:
    """Returns the first 16 digits of a fingerprint's hash."""
    return fingerprint.removeprefix("sha256:")[:_DIGITS]


def _hardware(facts: NodeFacts) -> dict[str, Any]:
    """Returns a node's hardware as fields of an inventory, without those that are absent or implied by others."""
    every: dict[str, Any] = {
        "cpus": facts.cpus,
        "memory": format_bytes(facts.memory),
        "gpus": facts.gpus,
        "gpuType": facts.gpu_type if facts.gpus else "",
        "gpuMemory": format_bytes(facts.gpu_memory) if facts.gpus and facts.gpu_memory else "",
        "cxlMemory": format_bytes(facts.cxl_memory) if facts.cxl_memory else "",
        "unifiedMemory": facts.unified,
        "watts": facts.watts,
        "features": sorted(facts.features - implied_features(facts.gpus, facts.gpu_type) - {HOLLOW}),
    }
    return {key: value for key, value in every.items() if value}


def _missing(seen: Seen, since: float, now: float, earlier: int) -> list[str]:
    """Returns the gaps of the log as sentences; empty where it has none."""
    sentences = []
    if earlier:
        sentences.append(f"{earlier} allocations that were submitted before {format_time(since)} are left out")
    unplayed = [f"{count} {name}" for name, count in seen.unplayed.items() if count]
    if unplayed:
        sentences.append(f"{' and '.join(unplayed)} are no part of it: a replay schedules without them")
    short: dict[float, list[str]] = {}
    for tenant in seen.tenants:
        try:
            kept = parse_duration(tenant.spec.finished_retention)
        except Rejected:
            continue
        if kept < now - since:
            short.setdefault(kept, []).append(tenant.metadata.name)
    for kept, names in sorted(short.items()):
        sentences.append(f"ended work of {', '.join(sorted(names))} is kept {format_duration(kept)}: what ended earlier is gone")
    return sentences
