"""The entry to admission: takes a request and facts, returns a verdict; one chain for each kind, the same for webhook and command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from lattice.admission import allocations, configs, dags, nodes, quotas, reservations, tenants, vclusters
from lattice.admission.defaults import fill_allocation, usable_vclusters
from lattice.admission.facts import EXTEND, MANAGE, RUN_AS, Facts
from lattice.admission.forms import misshapen
from lattice.admission.ownership import without_vcluster
from lattice.admission.submission import part, read_submission
from lattice.admission.updates import lengthens
from lattice.admission.verdicts import Accepted, Finding, Object, Refused, Verdict, conclude

Operation = Literal["CREATE", "UPDATE", "DELETE"]


@dataclass(frozen=True)
class Request:
    """A request to create, change or delete an object, to be judged.

    `obj` is the object as it would become (empty on DELETE), `old` as it is (empty on CREATE).
    """

    kind: str
    operation: Operation
    obj: Object
    old: Object
    namespace: str = ""

    @classmethod
    def creation(cls, obj: Object, namespace: str = "") -> Request:
        """Returns the request to create `obj`, as a command line judges it before it sends the object; `namespace` counts where the object
        names none.
        """
        where = str(part(obj, "metadata").get("namespace") or namespace)
        return cls(str(obj.get("kind") or ""), "CREATE", obj, {}, where)


_CREATION: Final[dict[str, Callable[[Object, Facts], Iterator[Finding]]]] = {
    "Allocation": allocations.judge_creation,
    "DAG": dags.judge,
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
    """Returns the object of a request with absent values filled in; judges nothing, and leaves objects of other kinds, deletions, and
    changes of Allocations and quotas unchanged.
    """
    if request.kind == "Allocation" and request.operation == "CREATE":
        return Accepted(fill_allocation(request.obj, facts))
    if request.kind == "DAG" and request.operation == "CREATE":
        return Accepted(dags.fill(request.obj, facts))
    if request.kind == "VCluster" and request.operation != "DELETE":
        return Accepted(vclusters.fill(request.obj))
    if request.kind == "LatticeNode" and request.operation != "DELETE":
        return Accepted(nodes.fill(request.obj, request.old, facts))
    if request.kind == quotas.KOORDINATORS and request.operation == "CREATE":
        return Accepted(quotas.fill_koordinator(request.obj, facts))
    return Accepted(request.obj)


def unreadable(request: Request) -> Refused | None:
    """Returns the refusal of an object whose texts have not the form that their fields need, or of a quota that does not parse.

    None: they do, it had the same fault before, or the request deletes.

    The mutating webhook asks this first, since the schema would refuse them by patterns, without a readable sentence.
    """
    if request.operation == "DELETE":
        return None
    return _unreadable_quota(request) or misshapen(request.kind, request.old, request.obj)


def _unreadable_quota(request: Request) -> Refused | None:
    """Returns the refusal of a quota object that does not parse; None also for other kinds."""
    if request.kind not in quotas.QUOTA_KINDS:
        return None
    return quotas.unreadable(request.kind, request.old, request.obj)


def undecided(request: Request, facts: Facts) -> Refused | None:
    """Returns the refusal of a new Allocation that names no vcluster and for which no default decides one.

    None for every other request, and where the facts do not tell, or the tenant itself is at fault (`judge` refuses that). The mutating
    webhook asks this first, since a policy would refuse the empty field without a readable sentence.
    """
    spec = part(request.obj, "spec")
    tenant = str(spec.get("tenant") or "")
    if request.kind != "Allocation" or request.operation != "CREATE" or spec.get("vcluster") or facts.vclusters is None:
        return None
    if not tenant or tenant not in (facts.tenants or {}) or tenant != facts.namespace_tenant:
        return None  # the checks of the tenant have the better sentence
    return without_vcluster(tenant, usable_vclusters(tenant, dict(facts.vclusters)))


def judge(request: Request, facts: Facts) -> Verdict:
    """Returns the verdict on an object as it is, without filling in defaults: the first refusal, else acceptance with all warnings; a kind
    or operation without checks is accepted.
    """
    return conclude(request.obj, _findings(request, facts))


def admit(request: Request, facts: Facts) -> Verdict:
    """Returns the verdict that the server would give: fills in absent values, then judges."""
    return judge(replace(request, obj=fill(request, facts).obj), facts)


def wanted_rights(request: Request, requester: str) -> tuple[str, frozenset[str]]:
    """Returns the tenant of a request, and the verbs on that tenant which decide the verdict; no verbs: the verdict needs no right.

    `runas` for a new Allocation or DAG of another user than the requester, `extend` and `manage` for a longer walltime; the tenant is empty
    for other kinds and deletions. The gatherer asks the API server whether the requester holds these verbs, and no others.
    """
    if request.kind not in ("Allocation", "DAG") or request.operation == "DELETE":
        return "", frozenset()
    tenant = str(part(request.obj, "spec").get("tenant") or "")
    if request.operation == "CREATE":
        user = part(request.obj, "spec").get("user")
        return tenant, frozenset({RUN_AS}) if user and user != requester else frozenset()
    if request.kind == "DAG":
        return tenant, frozenset()
    old, new = read_submission(request.old), read_submission(request.obj)
    if isinstance(old, Refused) or isinstance(new, Refused) or not lengthens(old, new):
        return tenant, frozenset()
    return tenant, frozenset({EXTEND, MANAGE})


def _findings(request: Request, facts: Facts) -> Iterator[Finding]:
    """Yields the findings of the chain for a request's kind and operation; none for a kind without one.

    An update of a kind without a chain for changes is checked as a new object, and only if its spec changes.
    """
    if request.operation == "DELETE":
        deletion = _DELETION.get(request.kind)
        return deletion(request.old, facts) if deletion else iter(())
    change = _CHANGE.get(request.kind)
    if request.operation == "UPDATE" and change is not None:
        return change(request.old, request.obj, facts)
    unchanged = request.operation == "UPDATE" and request.old.get("spec") == request.obj.get("spec")
    creation = _CREATION.get(request.kind)
    return creation(request.obj, facts) if creation and not unchanged else iter(())
