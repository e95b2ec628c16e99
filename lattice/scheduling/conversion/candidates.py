"""Converts Allocations for the cycle: a pending one into a Candidate, one that holds nodes into a NodeHolder.

Called for every change of every allocation: repeated texts (durations, sizes, needs) are parsed once and shared.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Final

from lattice.errors import Rejected
from lattice.ledger.format import Row
from lattice.lifecycle.conditions import condition
from lattice.lifecycle.grace import grace_seconds
from lattice.lifecycle.hardware import OCI_IMAGES, PMIX
from lattice.models.conditions import PROLOGUE_FAILED, SCHEDULED
from lattice.quota.declared import PREEMPTIBLE_LABEL
from lattice.scheduling.cluster.node_cache import HOLLOW
from lattice.scheduling.model.hardware import Need
from lattice.scheduling.model.work import ANY, PREFERRED, Candidate, NodeHolder
from lattice.scheduling.state.cluster_state import START_ALLOWANCE
from lattice.units import count_nodes, expand_nodes, parse_duration, parse_node_count, parse_time, quantity_bytes
from lattice.views.allocation import Allocation, AllocationSpec, AllocationStatus, Resources, SoftwareImage
from lattice.views.cluster import VCluster

DEFAULT_GRACE: Final = 30.0
MOST_NAMED_NODES: Final = 4096
"""Most nodes of a node list, as admission counts them."""

_seconds = lru_cache(maxsize=4096)(parse_duration)
_grace = lru_cache(maxsize=4096)(grace_seconds)
_count = lru_cache(maxsize=4096)(parse_node_count)
_moment = lru_cache(maxsize=65536)(parse_time)


def candidate_of(
    allocation: Allocation,
    vcluster: VCluster | None,
    indices: Mapping[str, int],
    *,
    back_off_until: float = 0.0,
    blocked: tuple[str, str] | None = None,
    quota: str = "",
    within: int | None = None,
    avoid: int = 0,
) -> Candidate:
    """Returns the candidate of a pending allocation; a field of the spec or a time of creation that does not parse blocks it with NeverFits
    and the error's sentence, unless `blocked` (a reason and a sentence that keep it waiting) is given, and a grace period that does not
    parse counts as 30 s.

    `vcluster` is None where it does not exist, `indices` has the index of each node by name, `back_off_until` is in seconds since the
    epoch, `quota` is its leaf of the quota tree, `within` the nodes (bit set) that the leaf's tree divides (None: any), and `avoid` the
    nodes that it takes only where too few others exist.
    """
    spec, status, meta = allocation.spec, allocation.status, allocation.metadata
    need, minimum, maximum, walltime, not_before, submitted = Need(), 1, 1, None, 0.0, 0.0
    try:
        submitted = _submitted_at(allocation)
        minimum, maximum = _count(spec.resources.nodes)
        features, architectures = features_of(spec), architectures_of(status.software)
        need = need_of(spec.node_resources, indices, spec.data.scratch_bytes, features=features, architectures=architectures)
        need = _away_from_failures(need, status, indices, minimum, avoid)
        need = need if within is None else narrowed(need, within)
        walltime = walltime_of(spec, vcluster)
        not_before = _moment(spec.lifecycle.not_before) if spec.lifecycle.not_before else 0.0
    except Rejected as error:
        blocked = blocked or ("NeverFits", error.message)
    lifecycle, constraints = spec.lifecycle, spec.resources.constraints
    return Candidate(
        key=meta.key,
        uid=meta.uid,
        tenant=spec.tenant,
        vcluster=spec.vcluster,
        preemption_class=lifecycle.preemption_class,
        submitted=submitted,
        minimum=minimum,
        maximum=maximum,
        need=need,
        user=spec.user,
        walltime=walltime,
        grace=grace_of(spec),
        topology=constraints.topology or ANY,
        conformance=constraints.conformance or PREFERRED,
        checkpointable=spec.checkpoint.strategy != "None",
        preemptible=is_preemptible(allocation),
        sensitive=spec.sensitive,
        reservation=spec.reservation,
        name=spec.tags.get("name", ""),
        held=spec.hold,
        not_before=not_before,
        back_off_until=back_off_until,
        vcluster_open=vcluster is None or vcluster.spec.state == "Open",
        vcluster_known=vcluster is not None,
        blocked=blocked,
        project=spec.project,
        quota=quota,
    )


def _submitted_at(allocation: Allocation) -> float:
    """Returns when an allocation was submitted, seconds since the epoch; its creation where its status has no time that parses.

    Raises Rejected where that does not parse either.
    """
    try:
        return _moment(allocation.status.submit_time or allocation.metadata.creation_timestamp)
    except Rejected:
        return _moment(allocation.metadata.creation_timestamp)


def is_preemptible(allocation: Allocation) -> bool:
    """Tells whether the owner allows preemption of the allocation: neither its own field (`Never`) nor Koordinator's label ("false")
    forbids it.
    """
    return allocation.spec.lifecycle.preemptible != "Never" and allocation.metadata.labels.get(PREEMPTIBLE_LABEL) != "false"


@lru_cache(maxsize=4096)
def narrowed(need: Need, within: int) -> Need:
    """Returns the need restricted to the nodes `within` (a bit set of indices); one object for equal arguments."""
    return replace(need, only=within if need.only is None else need.only & within)


def _away_from_failures(need: Need, status: AllocationStatus, indices: Mapping[str, int], minimum: int, avoid: int) -> Need:
    """Returns the need without the nodes `avoid` (a bit set) and those whose prologue failed in the latest attempts, up to the last that
    ended otherwise.

    Unchanged where fewer than `minimum` nodes would be left, of its node list or, without one, of all nodes, fitting or not.
    """
    failed = avoid
    for entry in reversed(status.attempts):
        if entry.reason != PROLOGUE_FAILED:
            break
        if entry.node in indices:
            failed |= 1 << indices[entry.node]
    if not failed:
        return need
    without = need.without | failed
    others = len(indices) - without.bit_count() if need.only is None else (need.only & ~without).bit_count()
    return _avoiding(need, without) if others >= minimum else need


@lru_cache(maxsize=4096)
def _avoiding(need: Need, without: int) -> Need:
    """Returns the need with `without` (a bit set of indices) as its excluded nodes; one object for equal arguments."""
    return replace(need, without=without)


def need_of(
    resources: Resources,
    indices: Mapping[str, int],
    scratch: int = 0,
    *,
    features: frozenset[str] = frozenset(),
    architectures: frozenset[str] = frozenset(),
) -> Need:
    """Returns what each node must offer for these resources and bytes of scratch space; `indices`: the index of each node by name.

    `features`: those that a node must have besides (`features_of`); `architectures`: one of these (empty: any). Equal resources give the
    same object, unless they name nodes. Raises Rejected for a field that does not parse.
    """
    constraints = resources.constraints
    if not constraints.node_list and not constraints.exclude_nodes:
        return _shared_need(resources, scratch, features, architectures)
    return _need(resources, indices, scratch, features, architectures)


def features_of(spec: AllocationSpec) -> frozenset[str]:
    """Returns the features that nodes must have for what the work is, beside those that it names: to run images, to serve PMIx."""
    wanted = ((OCI_IMAGES, bool(spec.environment.image)), (PMIX, spec.tasks.mpi == "Pmix"))
    return frozenset(feature for feature, asked in wanted if asked)


def architectures_of(images: tuple[SoftwareImage, ...]) -> frozenset[str]:
    """Returns the architectures for which the OCI image among the pinned ones is made; empty: there is none, or any will do."""
    return next((frozenset(image.architectures) for image in images if image.architectures), frozenset())


def walltime_of(spec: AllocationSpec, vcluster: VCluster | None) -> float | None:
    """Returns the longest run of an allocation in seconds; None: unbounded. Raises Rejected where a text does not parse.

    That is the allocation's own walltime; without one the vcluster's default, or its maximum for work that is not Bounded; None without a
    vcluster.
    """
    if spec.lifecycle.walltime is not None:
        return _seconds(spec.lifecycle.walltime)
    if vcluster is None:
        return None
    given = vcluster.spec.defaults.walltime if spec.lifecycle.type == "Bounded" else vcluster.spec.limits.max_walltime
    return _seconds(given) if given is not None else None


def grace_of(spec: AllocationSpec) -> float:
    """Returns the seconds from TERM to KILL of an allocation; 30 where the text does not parse."""
    try:
        return _grace(spec.lifecycle.grace_period)
    except Rejected:
        return DEFAULT_GRACE


def holder_of(
    row: Row,
    allocation: Allocation | None,
    vcluster: VCluster | None = None,
    *,
    since: float,
    releasing_since: float | None = None,
    silent: bool = False,
    borrowed: Collection[int] = (),
    preemptions: int = 0,
    start_allowance: float = START_ALLOWANCE,
    quota: str = "",
) -> NodeHolder:
    """Returns the node holder of an attempt from its ledger row and its Allocation (None: the object is gone); `quota`: its leaf.

    Its end is startTime, or before the start the placement + start allowance, + walltime + grace; releasing work ends at the latest a
    grace + start allowance after `releasing_since`. None: held work that is unbounded or has no object; releasing on a `silent` node.
    `since`: when this process first saw the row, for objects without these times. `borrowed`: nodes at home in other vclusters.
    """
    shown = allocation if allocation is not None and allocation.status.attempt == row.attempt else None
    placed = _placed_at(shown, since)
    started = _moment(shown.status.start_time) if shown is not None and shown.status.start_time else None
    spec = allocation.spec if allocation is not None else AllocationSpec()
    walltime, grace = _shorter(_planned(spec, vcluster), row.walltime), grace_of(spec)
    end: float | None = None
    if walltime is not None and allocation is not None:
        end = (started if started is not None else placed + start_allowance) + walltime + grace
    if not row.held:
        gone = (releasing_since if releasing_since is not None else since) + grace + start_allowance
        end = None if silent else gone if end is None else min(end, gone)
    return NodeHolder(
        uid=row.uid,
        key=allocation.metadata.key if allocation is not None else row.uid,
        tenant=row.tenant,
        user=row.user,
        vcluster=row.vcluster,
        preemption_class=spec.lifecycle.preemption_class,
        nodes=row.nodes,
        since=placed,
        started=started,
        end=end,
        walltime=walltime,
        checkpointable=spec.checkpoint.strategy != "None",
        preemptible=allocation is None or is_preemptible(allocation),
        sensitive=spec.sensitive,
        releasing=not row.held,
        borrowed=tuple(node for node in row.nodes if node in borrowed),
        preemptions=preemptions,
        name=spec.tags.get("name", ""),
        quota=quota,
    )


def _planned(spec: AllocationSpec, vcluster: VCluster | None) -> float | None:
    """Returns the longest run of an allocation in seconds; None: unbounded, or its text does not parse."""
    try:
        return walltime_of(spec, vcluster)
    except Rejected:
        return None


def _shorter(asked: float | None, admitted: int | None) -> float | None:
    """Returns the walltime in seconds at which agents end the attempt: the shorter of the asked and the admitted one; None: neither
    is set.
    """
    return min((seconds for seconds in (asked, admitted) if seconds is not None), default=None)


def _placed_at(allocation: Allocation | None, since: float) -> float:
    """Returns when an attempt got its nodes by its Scheduled condition, seconds since the epoch; `since` where the object does not
    say so.
    """
    scheduled = condition(allocation.status.conditions, SCHEDULED) if allocation is not None else None
    if scheduled is None or scheduled.status != "True" or not scheduled.last_transition_time:
        return since
    return _moment(scheduled.last_transition_time)


@lru_cache(maxsize=65536)
def _shared_need(resources: Resources, scratch: int, features: frozenset[str], architectures: frozenset[str]) -> Need:
    """Returns the need of resources that name no nodes; the same object for equal resources."""
    return _need(resources, {}, scratch, features, architectures)


def _need(
    resources: Resources, indices: Mapping[str, int], scratch: int, features: frozenset[str], architectures: frozenset[str]
) -> Need:  # fmt: skip
    """Returns what each node must offer for these resources; work that names a GPU type or memory asks for one GPU at least.

    Raises Rejected for a field that does not parse.
    """
    constraints = resources.constraints
    features = features | frozenset(constraints.features)
    gpu_memory = quantity_bytes(constraints.gpu_memory) if constraints.gpu_memory is not None else 0
    wants_gpus = bool(constraints.gpu_type) or gpu_memory > 0
    return Need(
        cpus=resources.cpus or 0,
        memory=quantity_bytes(resources.memory) if resources.memory is not None else 0,
        gpus=max(resources.gpus or 0, 1 if wants_gpus else 0),
        features=features,
        hollow=HOLLOW in features,
        only=_mask(constraints.node_list, indices) if constraints.node_list else None,
        without=_mask(constraints.exclude_nodes, indices),
        gpu_type=constraints.gpu_type or "",
        gpu_memory=gpu_memory,
        unified=bool(constraints.require_unified_memory),
        allow_cxl=bool(constraints.allow_cxl_memory),
        scratch=scratch,
        architectures=architectures,
    )


def _mask(node_set: str, indices: Mapping[str, int]) -> int:
    """Returns the known nodes of a node set (text) as a bit set of indices, 0 for an empty text; unknown names are left out.

    Raises Rejected where the text does not parse, or names more than admission allows (`MOST_NAMED_NODES`).
    """
    count = count_nodes(node_set)
    if count > MOST_NAMED_NODES:
        raise Rejected(f"a node set of {count} names is too long (limit: {MOST_NAMED_NODES})", reason="BadNodeSet")
    mask = 0
    for name in expand_nodes(node_set):
        index = indices.get(name)
        if index is not None:
            mask |= 1 << index
    return mask
