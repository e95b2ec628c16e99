"""A submitted Allocation in the form that the checks read: typed, beside the raw object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from lattice.admission.facts import Facts
from lattice.admission.verdicts import Object, Refused
from lattice.lifecycle.conditions import is_true
from lattice.models.conditions import SCHEDULED
from lattice.views import Allocation, AllocationStatus, Tenant, VCluster
from lattice.views.work import WorkSpec


@dataclass(frozen=True)
class Submission:
    """An Allocation as the checks read it: the spec typed (`spec`) and raw (`raw`, which tells an absent field from a default)."""

    namespace: str
    name: str
    raw: Object
    spec: WorkSpec
    status: AllocationStatus
    labels: Mapping[str, str] = field(default_factory=dict)

    def tenant(self, facts: Facts) -> Tenant | None:
        """Returns the Allocation's Tenant; None: it does not exist, or tenants are not known."""
        return (facts.tenants or {}).get(self.spec.tenant)

    def vcluster(self, facts: Facts) -> VCluster | None:
        """Returns the Allocation's VCluster; None: it does not exist, or vclusters are not known."""
        return (facts.vclusters or {}).get(self.spec.vcluster)


def read_submission(obj: Object) -> Submission | Refused:
    """Returns an Allocation typed, or the refusal of the first field whose type is wrong."""
    metadata = part(obj, "metadata")
    try:
        spec = msgspec.convert(obj.get("spec") or {}, WorkSpec)
        status = msgspec.convert(obj.get("status") or {}, AllocationStatus)
    except msgspec.ValidationError as error:
        return malformed(error, "spec")
    return Submission(
        str(metadata.get("namespace") or ""), str(metadata.get("name") or ""), part(obj, "spec"), spec, status, part(metadata, "labels")
    )


def cached_submission(allocation: Allocation, vcluster: VCluster | None) -> Submission:
    """Returns an Allocation of a daemon's cache for the checks, with the walltime that its vcluster (None: unknown) gives by default; its
    `raw` holds the quota alone.

    The cache does not tell a script from an entrypoint: tasks that do not say where they run are taken to run on the head only.
    """
    meta, spec, lifecycle = allocation.metadata, allocation.spec, allocation.spec.lifecycle
    if lifecycle.walltime is None and lifecycle.type == "Bounded" and vcluster is not None:
        lifecycle = msgspec.structs.replace(lifecycle, walltime=vcluster.spec.defaults.walltime)
    tasks = spec.tasks if spec.tasks.on is not None else msgspec.structs.replace(spec.tasks, on="HeadNode")
    work = WorkSpec(
        tenant=spec.tenant, user=spec.user, project=spec.project, vcluster=spec.vcluster, tags=spec.tags, tasks=tasks,
        resources=spec.resources, lifecycle=lifecycle, reservation=spec.reservation, cancel=spec.cancel,
    )  # fmt: skip
    return Submission(meta.namespace, meta.name, {"quota": spec.quota}, work, allocation.status, meta.labels)


def malformed(error: msgspec.ValidationError, root: str) -> Refused:
    """Returns the refusal of a field of the wrong type, naming its path below `root`."""
    what, _, path = str(error).partition(" - at `$")
    field = root + path.rstrip("`")
    return Refused("Malformed", f"{field}: {what[:1].lower()}{what[1:]}", field, "`kubectl explain` shows the type of each field")


def part(obj: Object, *path: str) -> Object:
    """Returns the mapping at `path` of an object; empty where there is none."""
    found: object = obj
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def is_placed(status: AllocationStatus) -> bool:
    """Tells whether an allocation holds nodes (its condition Scheduled is True)."""
    return is_true(status.conditions, SCHEDULED)
