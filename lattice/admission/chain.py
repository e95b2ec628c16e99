"""The entry to admission: takes a request and facts, returns a verdict; one chain a kind, the same for webhook and command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from lattice.admission import allocations, configs, nodes, quotas, reservations, tenants, vclusters
from lattice.admission.defaults import fill_allocation, usable_vclusters
from lattice.admission.facts import EXTEND, MANAGE, RUN_AS, Facts
from lattice.admission.ownership import without_vcluster
from lattice.admission.submission import part, read_submission
from lattice.admission.updates import lengthens
from lattice.admission.verdicts import Accepted, Finding, Object, Refused, Verdict, conclude

Operation = Literal["CREATE", "UPDATE", "DELETE"]


@dataclass(frozen=True)
class Request:
    """A request to judge: `obj` is the object as it would be (empty on DELETE), `old` as it is (empty on CREATE)."""

    kind: str
    operation: Operation
    obj: Object
    old: Object
    namespace: str = ""

    @classmethod
    def creation(cls, obj: Object, namespace: str = "") -> Request:
        """Returns the request to make `obj`, for a command line."""
        where = str(part(obj, "metadata").get("namespace") or namespace)
        return cls(str(obj.get("kind") or ""), "CREATE", obj, {}, where)


_CREATION: Final[dict[str, Callable[[Object, Facts], Iterator[Finding]]]] = {
    "Allocation": allocations.judge_creation,
    "Tenant": tenants.judge,
    "VCluster": vclusters.judge,
    "Reservation": reservations.judge,
    "LatticeConfig": configs.judge,
    "LatticeNode": nodes.judge,
    quotas.OURS: quotas.judge,
    quotas.KOORDINATORS: quotas.judge_koordinator,
    quotas.PROFILE: quotas.judge_profile,
}
_CHANGE: Final[dict[str, Callable[[Object, Object, Facts], Iterator[Finding]]]] = {
    "Allocation": allocations.judge_change,
    "Reservation": reservations.judge_change,
    quotas.OURS: quotas.judge_change,
    quotas.KOORDINATORS: quotas.judge_koordinator_change,
    quotas.PROFILE: quotas.judge_profile_change,
}
_DELETION: Final[dict[str, Callable[[Object, Facts], Iterator[Finding]]]] = {
    "Tenant": tenants.judge_deletion,
    "VCluster": vclusters.judge_deletion,
    quotas.OURS: quotas.judge_deletion,
    quotas.KOORDINATORS: quotas.judge_koordinator_deletion,
}


def fill(request: Request, facts: Facts) -> Accepted:
    """Returns the object with absent values filled in; judges nothing, and returns objects of other kinds unchanged."""
    if request.kind == "Allocation" and request.operation == "CREATE":
        return Accepted(fill_allocation(request.obj, facts))
    if request.kind == "VCluster" and request.operation != "DELETE":
        return Accepted(vclusters.fill(request.obj))
    if request.kind == "LatticeNode" and request.operation != "DELETE":
        return Accepted(nodes.fill(request.obj, request.old, facts))
    if request.kind == quotas.KOORDINATORS and request.operation == "CREATE":
        return Accepted(quotas.fill_koordinator(request.obj, facts))
    return Accepted(request.obj)


def unreadable(request: Request) -> Refused | None:
    """Returns the refusal of amounts of a quota that do not parse, before the schema refuses them by a pattern; None: they parse."""
    if request.kind not in quotas.QUOTA_KINDS or request.operation == "DELETE":
        return None
    return quotas.unreadable(request.kind, request.old, request.obj)


def undecided(request: Request, facts: Facts) -> Refused | None:
    """Returns the refusal of a new Allocation whose vcluster no default decides, before a policy finds the field empty."""
    spec = part(request.obj, "spec")
    tenant = str(spec.get("tenant") or "")
    if request.kind != "Allocation" or request.operation != "CREATE" or spec.get("vcluster") or facts.vclusters is None:
        return None
    if not tenant or tenant not in (facts.tenants or {}) or tenant != facts.namespace_tenant:
        return None  # the checks of the tenant have the better sentence
    return without_vcluster(tenant, usable_vclusters(tenant, dict(facts.vclusters)))


def judge(request: Request, facts: Facts) -> Verdict:
    """Tells whether the object may enter as it is; a kind or operation without a chain is accepted."""
    return conclude(request.obj, _findings(request, facts))


def admit(request: Request, facts: Facts) -> Verdict:
    """Returns the verdict of the server: fills, then judges."""
    return judge(replace(request, obj=fill(request, facts).obj), facts)


def wanted_rights(request: Request, requester: str) -> tuple[str, frozenset[str]]:
    """Returns the tenant, and the verbs on it that the verdict depends on; the gatherer asks for these and no others."""
    if request.kind != "Allocation" or request.operation == "DELETE":
        return "", frozenset()
    tenant = str(part(request.obj, "spec").get("tenant") or "")
    if request.operation == "CREATE":
        user = part(request.obj, "spec").get("user")
        return tenant, frozenset({RUN_AS}) if user and user != requester else frozenset()
    old, new = read_submission(request.old), read_submission(request.obj)
    if isinstance(old, Refused) or isinstance(new, Refused) or not lengthens(old, new):
        return tenant, frozenset()
    return tenant, frozenset({EXTEND, MANAGE})


def _findings(request: Request, facts: Facts) -> Iterator[Finding]:
    if request.operation == "DELETE":
        deletion = _DELETION.get(request.kind)
        return deletion(request.old, facts) if deletion else iter(())
    change = _CHANGE.get(request.kind)
    if request.operation == "UPDATE" and change is not None:
        return change(request.old, request.obj, facts)
    unchanged = request.operation == "UPDATE" and request.old.get("spec") == request.obj.get("spec")
    creation = _CREATION.get(request.kind)
    return creation(request.obj, facts) if creation and not unchanged else iter(())
