"""Fills in the absent values of an Allocation: user, tenant, vcluster, walltime, class, finalizer, the label of a named leaf.

Only absent values are filled in, and given ones are never rewritten: a manifest that is applied twice does not drift. Values without a
default stay absent, and the checks say why.
"""

from __future__ import annotations

from typing import Final

from lattice.admission.facts import Facts
from lattice.admission.submission import part
from lattice.admission.verdicts import Object
from lattice.quota.declared import NAME_LABEL, PREEMPTIBLE_LABEL
from lattice.views import Tenant, VCluster

RELEASE_FINALIZER: Final = "lattice.dev/release"
"""The finalizer that keeps a deleted Allocation until its nodes are free."""
NAMES_LEAF: Final = "lattice.dev/quota"
"""The label that marks Allocations that name a leaf of the quota tree; only these are checked by the policy of leaves."""
DEFAULT_CLASS: Final = 5
"""The preemption class of an allocation that names none."""


def usable_vclusters(tenant: str, vclusters: dict[str, VCluster] | None) -> list[str]:
    """Returns the names of the vclusters that the tenant may use, in order."""
    return sorted(name for name, vcluster in (vclusters or {}).items() if may_use(tenant, vcluster))


def may_use(tenant: str, vcluster: VCluster) -> bool:
    """Tells whether a vcluster takes work of a tenant."""
    return "*" in vcluster.spec.tenants or tenant in vcluster.spec.tenants


def fill_allocation(obj: Object, facts: Facts) -> Object:
    """Returns a new Allocation with every absent value filled in that has a default, the finalizer and the label of a named leaf included;
    parts without a change are shared with the given one.

    A spec that is no map is returned as it is.
    """
    given = obj.get("spec")
    if not isinstance(given, dict):
        return obj  # the schema refuses it with the path
    spec = dict(given)
    filled = {**obj, "metadata": dict(part(obj, "metadata")), "spec": spec}  # what is deeper is shared, and replaced where it changes
    _fill_finalizer(filled)
    labels = part(filled, "metadata", "labels")
    if labels.get(NAME_LABEL) or (spec.get("quota") and isinstance(filled["metadata"].get("labels") or {}, dict)):
        filled["metadata"]["labels"] = {NAMES_LEAF: "named", **labels}
    _set_absent(spec, "user", facts.requester.user)
    _set_absent(spec, "tenant", facts.namespace_tenant or "")
    tenant = (facts.tenants or {}).get(str(spec.get("tenant") or ""))
    _set_absent(spec, "vcluster", _vcluster(str(spec.get("tenant") or ""), tenant, facts))
    if part(filled, "metadata", "labels").get(PREEMPTIBLE_LABEL) == "false" and isinstance(spec.get("lifecycle", {}), dict):
        spec["lifecycle"] = {"preemptible": "Never", **part(spec, "lifecycle")}
    _fill_lifecycle(spec, tenant, (facts.vclusters or {}).get(str(spec.get("vcluster") or "")))
    return filled


def _set_absent(at: Object, key: str, value: str) -> None:
    """Sets a key that is absent or null to a value; an empty value sets nothing."""
    if value and at.get(key) is None:
        at[key] = value


def _fill_finalizer(obj: Object) -> None:
    """Adds the release finalizer to an object that lacks it, in a new list; changes its metadata."""
    metadata = obj["metadata"]
    finalizers = metadata.get("finalizers") or []
    if RELEASE_FINALIZER not in finalizers:
        metadata["finalizers"] = [*finalizers, RELEASE_FINALIZER]


def _vcluster(name: str, tenant: Tenant | None, facts: Facts) -> str:
    """Returns the tenant's default vcluster, also one that does not exist, else the only one that it may use; empty: none or several."""
    if tenant is not None and tenant.spec.default_v_cluster:
        return tenant.spec.default_v_cluster
    usable = usable_vclusters(name, dict(facts.vclusters or {})) if name else []
    return usable[0] if len(usable) == 1 else ""


def _fill_lifecycle(spec: Object, tenant: Tenant | None, vcluster: VCluster | None) -> None:
    """Sets the absent walltime of a bounded allocation to its vcluster's default, and an absent class to its tenant's highest one where
    that is below the usual class; replaces the map in `spec`.

    A lifecycle that is no map stays as it is; None: no such vcluster or tenant.
    """
    lifecycle = part(spec, "lifecycle")
    additions: Object = {}
    walltime = vcluster.spec.defaults.walltime if vcluster is not None else None
    if walltime and lifecycle.get("walltime") is None and lifecycle.get("type", "Bounded") == "Bounded":
        additions["walltime"] = walltime
    highest = tenant.spec.quota.max_preemption_class if tenant is not None else None
    if highest is not None and highest < DEFAULT_CLASS and lifecycle.get("preemptionClass") is None:
        additions["preemptionClass"] = highest
    if additions and isinstance(spec.get("lifecycle", {}), dict):
        spec["lifecycle"] = {**lifecycle, **additions}
