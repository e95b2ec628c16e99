"""Checks an Allocation against the limits of vcluster, tenant and cluster: nodes, walltime, class, hard quota."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lattice.admission.facts import Facts, Own, Pending, Waits
from lattice.admission.submission import Submission
from lattice.admission.verdicts import Caution, Finding, Refused, reading
from lattice.ledger.commit import Excess
from lattice.units import format_duration, parse_duration, parse_node_count
from lattice.views.cluster import VClusterLimits

NODES = "spec.resources.nodes"
WALLTIME = "spec.lifecycle.walltime"
CLASS = "spec.lifecycle.preemptionClass"
MOST_TASKS: Final = 4096
"""Most tasks on one node, as in the schema."""


def check_nodes(asked: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal unless the node count parses and its most is within the vcluster's limit, and a caution where the cluster has not
    even the least.

    A limit or a number of nodes that is unknown checks nothing.
    """
    count = reading(parse_node_count, asked.spec.resources.nodes, field=NODES, reason="NodesInvalid")
    if isinstance(count, Refused):
        yield count
        return
    least, most = count
    vcluster = asked.vcluster(facts)
    limit = vcluster.spec.limits.max_nodes_per_allocation if vcluster is not None else None
    if limit is not None and most > limit:
        sentence = f'{most} nodes exceed maxNodesPerAllocation of vCluster "{asked.spec.vcluster}" (requested: {most}, limit: {limit})'
        yield Refused("NodesAboveLimit", sentence, NODES, f"ask for at most {limit} nodes, or for another vcluster")
    if facts.nodes is not None and least > facts.nodes:
        yield Caution(
            f"{least} nodes are asked for and the cluster has {facts.nodes}: "
            "the allocation waits with reason NeverFits until enough nodes join"
        )


def check_tasks(asked: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal where `spec.tasks` asks for what only a launch honours, and none starts the work; and where `spec.tasks.total` is
    more than the tasks per node times the most nodes: 4096 a node are the most, also where no number is given, and for the launches of work
    on the head only.
    """
    del facts
    spec, tasks = asked.spec, asked.spec.tasks
    if spec.entrypoint is not None and tasks.on != "HeadNode" and tasks.total is None and tasks.is_of_launch:
        sentence = (
            "spec.tasks.cpus, gpus, layout, bind and mpi are of tasks that a launch starts, and spec.tasks.total does not say how many"
        )
        yield Refused("TasksIncomplete", sentence, "spec.tasks.total", "set spec.tasks.total, the number on all nodes, or leave them out")
    count = reading(parse_node_count, asked.spec.resources.nodes, field=NODES, reason="NodesInvalid")
    if tasks.total is None or isinstance(count, Refused):
        return
    each = tasks.per_node or (MOST_TASKS if spec.is_launched else 1)
    if spec.on_head_only and not spec.is_launched:
        each = MOST_TASKS
    most = each * count[1]
    if tasks.total > most:
        nodes = f"{count[1]} {'node' if count[1] == 1 else 'nodes'}"
        sentence = f"spec.tasks.total is {tasks.total}, and {nodes} with {each} each start {most} (requested: {tasks.total}, limit: {most})"
        yield Refused("TasksAboveNodes", sentence, "spec.tasks.total", "raise spec.tasks.perNode, or ask for more nodes")


def check_walltime(asked: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal unless a Bounded allocation has a walltime above zero, and a walltime is within the vcluster's maximum.

    Yields a caution where the walltime is absent and the vclusters are unknown, and where work without an end has the vcluster's maximum as
    its end.
    """
    lifecycle = asked.spec.lifecycle
    vcluster = asked.vcluster(facts)
    if lifecycle.walltime is None:
        if lifecycle.type == "Bounded" and facts.vclusters is None:
            yield Caution(f"{WALLTIME} is not set: the vcluster's default is taken, where it has one")
        elif lifecycle.type == "Bounded" and (vcluster is not None or not asked.spec.vcluster):
            sentence = f'spec.lifecycle.walltime is not set, and vCluster "{asked.spec.vcluster}" has no default'
            yield Refused("WalltimeRequired", sentence, WALLTIME, "set spec.lifecycle.walltime, for example 1h30m")
        elif vcluster is not None and (most := vcluster.spec.limits.max_walltime) is not None:
            yield Caution(f'work without an end runs for {most} at most in vCluster "{asked.spec.vcluster}" (maxWalltime)')
        return
    seconds = reading(parse_duration, lifecycle.walltime, field=WALLTIME, reason="DurationInvalid")
    if isinstance(seconds, Refused):
        yield seconds
        return
    if seconds <= 0:
        sentence = f"spec.lifecycle.walltime is {lifecycle.walltime}, and must be above 0"
        yield Refused("DurationInvalid", sentence, WALLTIME, "set for example 1h30m, or type: Unbounded for work without an end")
    if vcluster is not None:
        yield from walltime_limit(asked, facts, seconds, "none")


def walltime_limit(asked: Submission, facts: Facts, seconds: float, current: str) -> Iterator[Finding]:
    """Yields the refusal of a walltime of `seconds` that is above the vcluster's maximum; nothing where the vcluster is unknown or sets
    none. Raises Rejected where the maximum does not parse.

    `current`: the walltime in force, as text for the sentence.
    """
    vcluster = asked.vcluster(facts)
    limit = vcluster.spec.limits.max_walltime if vcluster is not None else None
    if limit is None or seconds <= parse_duration(limit):
        return
    shown = asked.spec.lifecycle.walltime or format_duration(seconds)
    numbers = f"(current: {current}, requested: {shown}, limit: {limit})"
    sentence = f'walltime {shown} exceeds maxWalltime of vCluster "{asked.spec.vcluster}" {numbers}'
    yield Refused("WalltimeAboveLimit", sentence, WALLTIME, f"ask for at most {limit}, or for another vcluster")


def check_class(asked: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal unless the preemption class is from 0 to 10 and not above the highest that tenant and vcluster allow."""
    wanted = asked.spec.lifecycle.preemption_class
    if not 0 <= wanted <= 10:
        yield Refused("ClassInvalid", f"preemption class {wanted} is outside 0 to 10", CLASS, "choose 0 to 10; 5 is the default")
    tenant = asked.tenant(facts)
    vcluster = asked.vcluster(facts)
    for whose, highest, hint in (
        (f'tenant "{asked.spec.tenant}"', tenant.spec.quota.max_preemption_class if tenant is not None else None, ""),
        (f'vCluster "{asked.spec.vcluster}"', vcluster.spec.limits.max_preemption_class if vcluster is not None else None,
         ", or use another vcluster"),
    ):  # fmt: skip
        if highest is not None and wanted > highest:
            sentence = f"preemption class {wanted} is above the highest of {whose} (requested: {wanted}, limit: {highest})"
            yield Refused("ClassAboveLimit", sentence, CLASS, f"set spec.lifecycle.preemptionClass to at most {highest}{hint}")


def check_pending(asked: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal unless fewer allocations wait than the limits of the vcluster (of user, tenant, all) and of the tenant (of each
    user, else the default) allow.

    Counts and limits that are not known refuse nothing.
    """
    vcluster, waits = asked.vcluster(facts), facts.waits or Waits()
    limits = vcluster.spec.limits if vcluster is not None else VClusterLimits()
    for who, name, current, limit in (
        (f'user "{asked.spec.user}"', "maxPendingPerUser", waits.user, limits.max_pending_per_user),
        (f'tenant "{asked.spec.tenant}"', "maxPendingPerTenant", waits.tenant, limits.max_pending_per_tenant),
        ("all its work", "maxPending", waits.everybody, limits.max_pending),
    ):
        if limit is not None and current is not None and current >= limit:
            numbers = f"(current: {current}, requested: 1, limit: {limit})"
            sentence = f'{who} would exceed {name} of vCluster "{asked.spec.vcluster}" {numbers}'
            yield Refused("TooManyPending", sentence, "spec.vcluster", "wait until some have started, cancel some, or use another vcluster")
    tenant = asked.tenant(facts)
    most = tenant.spec.quota.per_user.max_pending if tenant is not None else None
    if most is not None and facts.own is not None and facts.own.pending >= most:
        excess = Excess(_alone(asked), "max_pending", facts.own.pending, 1, most)
        hint = "wait until some have started, or cancel some" if most else "ask your tenant's admin when submissions are open again"
        yield Refused("TooManyPending", f"allocation rejected: {excess.sentence}", "spec.tenant", hint)

    if facts.pending is not None:
        yield from _default_pending(asked, facts.pending, of_user=most is None)


def _default_pending(asked: Submission, pending: Pending, *, of_user: bool) -> Iterator[Finding]:
    """Yields a refusal where as many allocations wait as the default limit of the tenant allows, or, with `of_user`, of each user."""
    user = (_alone(asked), pending.user, pending.most_of_user)
    whole = (f'tenant "{asked.spec.tenant}"', pending.tenant, pending.most_of_tenant)
    for who, current, limit in (user, whole) if of_user else (whole,):
        if current >= limit:
            excess = Excess(who, "max_pending", current, 1, limit)
            hint = "wait until some have started, cancel some, or ask an admin to raise maxPending"
            yield Refused("TooManyPending", f"allocation rejected: {excess.sentence}", "spec.tenant", hint)


def check_quota(asked: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal where the present use with this request (its least nodes) exceeds a hard limit of tenant or user, or only a caution
    where the tenant lets work wait (`onExceeded: Queue`) and it fits the limit alone. An unknown tenant is not checked, unknown use counts
    as none.

    The ledger checks the limits again, atomically, at commit.
    """
    tenant = asked.tenant(facts)
    count = reading(parse_node_count, asked.spec.resources.nodes, field=NODES, reason="NodesInvalid")
    if tenant is None or isinstance(count, Refused):
        return
    quota, use, own = tenant.spec.quota, tenant.status.use, facts.own or Own()
    everybody, alone, least = f'tenant "{tenant.metadata.name}"', _alone(asked), count[0]
    for who, name, current, requested, limit in (
        (everybody, "max_nodes", use.used_nodes if use else 0, least, quota.max_nodes),
        (everybody, "max_concurrent_allocations", use.used_allocations if use else 0, 1, quota.max_concurrent_allocations),
        (alone, "max_nodes", own.nodes, least, quota.per_user.max_nodes),
        (alone, "max_running", own.running, 1, quota.per_user.max_running),
    ):
        if limit is not None and current + requested > limit:
            yield _exceeded(Excess(who, name, current, requested, limit), queue=quota.on_exceeded == "Queue")


def _alone(asked: Submission) -> str:
    """Returns a submission's user and tenant in words for a sentence."""
    return f'user "{asked.spec.user}" of tenant "{asked.spec.tenant}"'


def _exceeded(excess: Excess, *, queue: bool) -> Finding:
    """Returns the refusal or warning for an exceeded hard limit.

    A limit of 0 and a request above the limit itself are refused always. Otherwise, with `queue` (the tenant's mode) it is a
    warning that the work will wait, without it a refusal.
    """
    sentence = f"allocation rejected: {excess.sentence}"
    field = NODES if excess.quota == "max_nodes" else "spec.tenant"
    if excess.limit == 0:
        paused = "the tenant is paused" if excess.who.startswith("tenant") else "the users of the tenant are paused"
        return Refused("TenantPaused", f"{sentence}; {paused}", "spec.tenant", "ask the operators when it is open again")
    if excess.requested > excess.limit:
        hint = f"ask for at most {excess.limit}, or for more quota: this can never run within the limit"
        return Refused("QuotaExceeded", sentence, field, hint)
    if queue:
        numbers = excess.sentence.partition("quota ")[2]
        return Caution(f"{excess.who} has no room in its {excess.quota} quota {numbers}: the allocation waits with WaitingForQuotaHeadroom")
    if excess.current > excess.limit:
        what = "nodes" if excess.quota == "max_nodes" else "allocations"
        lowered = f"allocation rejected: {excess.who} exceeds {excess.quota} quota"
        told = f"{lowered}\n  Current usage: {excess.current} {what}\n  New limit: {excess.limit} {what}"
        return Refused("QuotaExceeded", told, field, "Wait for running allocations to complete, or contact your tenant admin.")
    return Refused("QuotaExceeded", sentence, field, "cancel running allocations, or ask your tenant's admin for more quota")
