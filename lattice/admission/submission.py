"""A submitted Allocation as the checks read it: typed, beside the object as it came."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from lattice.admission.facts import Facts
from lattice.admission.verdicts import Object, Refused
from lattice.lifecycle.conditions import is_true
from lattice.models.conditions import SCHEDULED
from lattice.views import AllocationStatus, Tenant, VCluster
from lattice.views.work import WorkSpec


@dataclass(frozen=True)
class Submission:
    """The spec, typed (`spec`) and raw (`raw`, which tells absent from default), and where it is submitted."""

    namespace: str
    name: str
    raw: Object
    spec: WorkSpec
    status: AllocationStatus
    labels: Mapping[str, str] = field(default_factory=dict)

    def tenant(self, facts: Facts) -> Tenant | None:
        """Its tenant, where it is known."""
        return (facts.tenants or {}).get(self.spec.tenant)

    def vcluster(self, facts: Facts) -> VCluster | None:
        """Its vcluster, where it is known."""
        return (facts.vclusters or {}).get(self.spec.vcluster)


def read_submission(obj: Object) -> Submission | Refused:
    """The Allocation typed; the refusal names the first field whose type is wrong."""
    metadata = part(obj, "metadata")
    try:
        spec = msgspec.convert(obj.get("spec") or {}, WorkSpec)
        status = msgspec.convert(obj.get("status") or {}, AllocationStatus)
    except msgspec.ValidationError as error:
        return malformed(error, "spec")
    return Submission(
        str(metadata.get("namespace") or ""), str(metadata.get("name") or ""), part(obj, "spec"), spec, status, part(metadata, "labels")
    )


def malformed(error: msgspec.ValidationError, root: str) -> Refused:
    """The refusal for a field of the wrong type, with its path below `root`."""
    what, _, path = str(error).partition(" - at `$")
    field = root + path.rstrip("`")
    return Refused("Malformed", f"{field}: {what[:1].lower()}{what[1:]}", field, "`kubectl explain` shows the type of each field")


def part(obj: Object, *path: str) -> Object:
    """The mapping at `path`, empty where there is none."""
    found: object = obj
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def is_placed(status: AllocationStatus) -> bool:
    """Whether the allocation holds nodes, or is about to start on them."""
    return is_true(status.conditions, SCHEDULED)
