"""Checks a Tenant: namespaces that no other has, members who are authenticated, limits beside the present use."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Final

import msgspec

from lattice.admission.defaults import may_use, usable_vclusters
from lattice.admission.facts import Facts
from lattice.admission.submission import malformed
from lattice.admission.verdicts import Caution, Finding, Object, Refused, reading
from lattice.units import parse_duration, parse_quantity
from lattice.views import Tenant

RESERVED_NAMESPACES: Final = frozenset({"default", "lattice-system", "lattice-node-lease"})
"""Namespaces that no tenant may have, besides all that begin with `kube-`."""
NOBODY: Final = frozenset({"system:anonymous", "system:unauthenticated"})
"""User and group names that stand for people who are not authenticated."""


def judge(obj: Object, facts: Facts) -> Iterator[Finding]:
    """Yields every refusal and warning for a Tenant that is created or changed; one that does not decode gets that refusal alone."""
    try:
        tenant = msgspec.convert(obj, Tenant)
    except msgspec.ValidationError as error:
        yield malformed(error, "")
        return
    yield from _namespaces(tenant, facts)
    yield from _access(tenant)
    yield from _quota(tenant)
    yield from _budget(tenant, facts)
    yield from _accounts(tenant, facts)
    yield from _vcluster(tenant, facts)
    retention = reading(parse_duration, tenant.spec.finished_retention, field="spec.finishedRetention", reason="DurationInvalid")
    if isinstance(retention, Refused):
        yield retention


def judge_deletion(old: Object, facts: Facts) -> Iterator[Finding]:
    """Yields the refusal to delete a Tenant while it has allocations that have not ended; nothing where their number is unknown."""
    name = str(old.get("metadata", {}).get("name", ""))
    if facts.holders:
        sentence = f'tenant "{name}" has {facts.holders} allocations that have not ended'
        yield Refused("InUse", sentence, "metadata.name", "wait for them or cancel them; set spec.quota.maxNodes to 0 so that no more come")


def homes(tenant: Tenant) -> tuple[str, ...]:
    """Returns the namespaces of a tenant: those it lists, else the one with its own name."""
    return tenant.spec.namespaces or (tenant.metadata.name,)


def _namespaces(tenant: Tenant, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal for each namespace of a tenant that belongs to the system or to another tenant, by that tenant's list or by the
    namespace's label; a tenant that lists none has the one of its own name.
    """
    name = tenant.metadata.name
    taken = {home: other.metadata.name for other in (facts.tenants or {}).values() if other.metadata.name != name for home in homes(other)}
    labelled = facts.namespaces or {}
    for home in homes(tenant):
        if home in RESERVED_NAMESPACES or home.startswith("kube-"):
            yield Refused("NamespaceReserved", f'namespace "{home}" belongs to the system', "spec.namespaces", "name another namespace")
        owner = taken.get(home) or labelled.get(home) or name
        if owner != name:
            yield Refused("NamespaceTaken", f'namespace "{home}" belongs to tenant "{owner}"', "spec.namespaces", "name another namespace")


def _access(tenant: Tenant) -> Iterator[Finding]:
    """Yields a refusal for each member that stands for people who are not authenticated, and a caution where everybody may submit."""
    access = tenant.spec.access
    for field, members in (("users", access.users), ("groups", access.groups), ("admins", access.admins)):
        for member in members:
            if member in NOBODY or not member.strip():
                sentence = f"spec.access.{field} has {member!r}, which stands for people who have not said who they are"
                yield Refused("AccessInvalid", sentence, f"spec.access.{field}", "name a group of your identity provider")
    if "system:authenticated" in access.groups:
        yield Caution('spec.access.groups has "system:authenticated": everybody who can log in may submit for this tenant')


def _quota(tenant: Tenant) -> Iterator[Finding]:
    """Yields a refusal for each limit of a tenant out of bounds, and a caution for each that is 0 or below the present use."""
    quota, use = tenant.spec.quota, tenant.status.use
    for field, limit, used in (
        ("maxNodes", quota.max_nodes, use.used_nodes if use else 0),
        ("maxConcurrentAllocations", quota.max_concurrent_allocations, use.used_allocations if use else 0),
        ("maxPending", quota.max_pending, 0),
        ("perUser.maxNodes", quota.per_user.max_nodes, 0),
        ("perUser.maxRunning", quota.per_user.max_running, 0),
        ("perUser.maxPending", quota.per_user.max_pending, 0),
    ):
        if limit is not None and limit < 0:
            yield Refused(
                "OptionInvalid", f"spec.quota.{field} is {limit}", f"spec.quota.{field}", "set 0 to pause, or leave it out for no limit"
            )
        elif limit == 0:
            nothing = "nothing is accepted" if field.endswith("maxPending") else "no new work is placed"
            yield Caution(f"spec.quota.{field} is 0: the tenant is paused, {nothing} (leave it out for no limit)")
        elif limit is not None and limit < used:
            yield Caution(
                f"spec.quota.{field} is {limit} and {used} are in use: running allocations are not ended, "
                "new ones wait until the use is below the limit"
            )
    highest = quota.max_preemption_class
    if highest is not None and not 0 <= highest <= 10:
        yield Refused(
            "ClassInvalid", f"spec.quota.maxPreemptionClass {highest} is outside 0 to 10", "spec.quota.maxPreemptionClass", "choose 0 to 10"
        )


def _budget(tenant: Tenant, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal unless the tenant's own hours are not negative, the period is a day at least, the allowance parses and is at least
    1, and the fair share target parses and is at most 1. The hours of projects and users are not checked.

    Yields a caution where all targets sum to more than 1, or work would wait for the end of a budget that is not there.
    """
    budget, where = tenant.spec.budget, "spec.budget"
    for field, hours in (("gpuHours", budget.gpu_hours), ("nodeHours", budget.node_hours)):
        if hours < 0:
            yield Refused("BudgetInvalid", f"{where}.{field} is {hours}", f"{where}.{field}", "leave it out, or give 0, for no budget")
    if budget.period_days < 1:
        yield Refused("BudgetInvalid", f"{where}.periodDays is {budget.period_days}", f"{where}.periodDays", "give at least 1; 90 is usual")
    given = budget.gpu_hours or budget.node_hours or budget.projects or budget.per_user is not None
    if budget.on_exhausted == "Queue" and not given:
        yield Caution(f"{where}.onExhausted is Queue, and there is no budget whose end work could wait for")
    allowance = reading(parse_quantity, budget.burst_allowance, field=f"{where}.burstAllowance", reason="QuantityInvalid")
    if isinstance(allowance, Refused):
        yield allowance
    elif allowance < 1:
        sentence = f"{where}.burstAllowance is {budget.burst_allowance}, and 1 is the share itself"
        yield Refused("BudgetInvalid", sentence, f"{where}.burstAllowance", "write 1500m for up to 150 % of the fair share")
    if budget.fair_share_target is None:
        return
    target = reading(parse_quantity, budget.fair_share_target, field=f"{where}.fairShareTarget", reason="QuantityInvalid")
    if isinstance(target, Refused):
        yield target
    elif target > 1:
        sentence = f"{where}.fairShareTarget is {budget.fair_share_target}, and the whole is 1"
        yield Refused("BudgetInvalid", sentence, f"{where}.fairShareTarget", "write 150m for 15 %")
    else:
        others = [other for other in (facts.tenants or {}).values() if other.metadata.name != tenant.metadata.name]
        total = target + sum(_target(other) for other in others)
        if total > 1:
            yield Caution(f"the fair share targets of all tenants sum to {total}: nothing is left for those without one")


def _accounts(tenant: Tenant, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal unless an account name means one tenant only, and has neither blanks nor commas, which separate accounts in
    Slurm.
    """
    field = "spec.accountNames"
    others = [other for other in (facts.tenants or {}).values() if other.metadata.name != tenant.metadata.name]
    taken = {word: other.metadata.name for other in others for word in (*other.spec.account_names, other.metadata.name)}
    for word in tenant.spec.account_names:
        if not word or "," in word or any(letter.isspace() or not letter.isprintable() for letter in word):
            yield Refused(
                "AccountInvalid", f"{field} has {word!r}, which is no account of Slurm's", field, "write it without blanks and commas"
            )
        elif word in taken:
            yield Refused("AccountTaken", f'account "{word}" already means tenant "{taken[word]}"', field, "an account means one tenant")
    named = {word: other.metadata.name for other in others for word in other.spec.account_names}
    own = tenant.metadata.name
    if own in named:
        sentence = f'"{own}" is already an account of tenant "{named[own]}"'
        yield Refused("AccountTaken", sentence, "metadata.name", "choose another name, or take the account away there")


def _target(tenant: Tenant) -> Decimal | int:
    """Returns a tenant's fair share target; 0 where it is absent or does not parse."""
    given = tenant.spec.budget.fair_share_target
    value = reading(parse_quantity, given, field="", reason="QuantityInvalid") if given is not None else 0
    return 0 if isinstance(value, Refused) else value


def _vcluster(tenant: Tenant, facts: Facts) -> Iterator[Finding]:
    """Yields a caution where a tenant's default vcluster is absent while it has a choice, does not exist, or does not admit it; nothing
    where the vclusters are not known.
    """
    wanted, name = tenant.spec.default_v_cluster, tenant.metadata.name
    if facts.vclusters is None:
        return
    usable = usable_vclusters(name, dict(facts.vclusters))
    if not wanted and len(usable) > 1:
        yield Caution(
            f'tenant "{name}" has no default vCluster and may use {", ".join(usable)}: work that names none is refused; '
            "set spec.defaultVCluster"
        )
    if not wanted:
        return
    vcluster = facts.vclusters.get(wanted)
    if vcluster is None:
        yield Caution(f'spec.defaultVCluster "{wanted}" does not exist yet: work that names no vcluster is refused until it does')
    elif not may_use(name, vcluster):
        yield Caution(f'spec.defaultVCluster "{wanted}" does not list tenant "{name}": work that names no vcluster is refused')
