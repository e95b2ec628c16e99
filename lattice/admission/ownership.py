"""Checks who an Allocation belongs to: its requester, its tenant and its vcluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from lattice.admission.defaults import may_use, usable_vclusters
from lattice.admission.facts import RUN_AS, Facts
from lattice.admission.submission import Submission
from lattice.admission.verdicts import Caution, Finding, Refused


def listed(names: Iterable[str]) -> str:
    """Returns names as text, sorted and with commas, the first 20 and the number of the rest; `none` without any."""
    ordered = sorted(names)
    shown = ", ".join(ordered[:20]) or "none"
    return shown + (f" and {len(ordered) - 20} more" if len(ordered) > 20 else "")


def check_tenant(asked: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal unless a tenant is named, exists, and is the tenant of the namespace (one that belongs to no tenant is refused);
    what is not known refuses nothing.
    """
    tenant = asked.spec.tenant
    owner = facts.namespace_tenant
    if owner == "":
        known = asked.tenant(facts)
        homes = known.spec.namespaces or (tenant,) if known is not None else ()
        hint = f"submit in a namespace of the tenant: {listed(homes)}" if homes else "submit in a namespace of your tenant"
        yield Refused("TenantUnknown", f'namespace "{asked.namespace}" belongs to no tenant', "metadata.namespace", hint)
    if owner and tenant and tenant != owner:
        sentence = f'spec.tenant is "{tenant}", but namespace "{asked.namespace}" belongs to tenant "{owner}"'
        yield Refused("TenantMismatch", sentence, "spec.tenant", f'leave spec.tenant out, or submit in a namespace of "{tenant}"')
    if facts.tenants is not None and tenant and tenant not in facts.tenants:
        yield Refused("TenantUnknown", f'tenant "{tenant}" not found', "spec.tenant", "ask the operators to make it")
    if not tenant and owner is not None:
        yield Refused("TenantUnknown", "spec.tenant is empty and the namespace names none", "spec.tenant", "set spec.tenant")


def check_user(asked: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal unless the work runs as the requester, or the requester may submit for other users, and a caution where the rights
    are unknown.
    """
    user, requester = asked.spec.user, facts.requester.user
    if not user:
        yield Refused("UserMismatch", "spec.user is empty", "spec.user", "leave spec.user out: it is set from the request")
    if not user or user == requester:
        return
    if facts.rights is None:
        yield Caution(f'spec.user is "{user}": the server accepts it only from who has the verb {RUN_AS} on tenant "{asked.spec.tenant}"')
    elif RUN_AS not in facts.rights:
        sentence = (
            f'spec.user is "{user}", but the request comes from "{requester}", who lacks the verb {RUN_AS} on tenant "{asked.spec.tenant}"'
        )
        yield Refused("UserMismatch", sentence, "spec.user", "leave spec.user out: it is set from the request")


def without_vcluster(tenant: str, usable: Sequence[str]) -> Refused:
    """Returns the refusal of work that names no vcluster while its tenant has no default one; `usable`: the vclusters it may use, may be
    empty.
    """
    if not usable:
        sentence, hint = f'tenant "{tenant}" may use no vCluster', "ask the operators to open one to the tenant"
    else:
        sentence = f'tenant "{tenant}" has no default vCluster: name one of {listed(usable)}'
        hint = "set spec.vcluster (`--vcluster`); the operators can set spec.defaultVCluster of the tenant"
    return Refused("VClusterRequired", sentence, "spec.vcluster", hint)


def check_vcluster(asked: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal unless a vcluster is named, exists and takes work of the tenant, and a caution on a closed one.

    Unknown vclusters: yields nothing.
    """
    if facts.vclusters is None:
        return
    name, tenant = asked.spec.vcluster, asked.spec.tenant
    usable = usable_vclusters(tenant, dict(facts.vclusters))
    if not name:
        yield without_vcluster(tenant, usable)
        return
    vcluster = facts.vclusters.get(name)
    if vcluster is None:
        yield Refused("VClusterNotFound", f'vCluster "{name}" not found. Available: {listed(usable)}', "spec.vcluster")
    elif not may_use(tenant, vcluster):
        sentence = f'tenant "{tenant}" may not use vCluster "{name}". Available: {listed(usable)}'
        yield Refused("VClusterNotAllowed", sentence, "spec.vcluster")
    elif vcluster.spec.state == "Closed":
        yield Caution(f'vCluster "{name}" is closed: the allocation is accepted and waits with reason VClusterClosed until it is open')
