"""Makes the Allocation of each member of a DAG: what the DAG gives to all, what the member says itself, and its edges."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from lattice.errors import Rejected
from lattice.views.dag import Dag, Member
from lattice.views.meta import Metadata

API_VERSION: Final = "lattice.dev/v1alpha1"
DAG: Final = "DAG"
DAG_LABEL: Final = "lattice.dev/dag"
"""The label of a member's Allocation with the name of its DAG."""
SPEC_HASH: Final = "lattice.dev/member-hash"
"""The annotation of a member's Allocation with the digest of what it was made from: an object of its name without it is another one."""
OF_THE_DAG: Final = ("tenant", "user", "cancel")
"""Fields that a member has from its DAG, and that neither it nor the defaults name."""
EDGES: Final = ("dependsOn", "dependsOnMode", "onUnmet")
"""Fields of an Allocation that a member has beside its spec."""
LATER: Final = {
    "quota": "work of a DAG belongs to the leaf of its vcluster, tenant or namespace",
    "requeueAttempt": "it is of work that runs",
    "rerunOf": "`lattice dag resubmit` makes a new DAG of what did not complete",
    "scriptFrom": "a long script is a file on the nodes that an entrypoint starts, a short one stands in `script`",
    "hold": "set spec.hold of the DAG, or hold the member once it is there",
}
"""Fields of an Allocation that members do not have in this release, with what holds instead."""
_ALTERNATIVES: Final = (("entrypoint", "script"), ("environment", "image", "uenv"), ("environment", "image", "toolsUenv"))
"""Fields that exclude each other: who gives one does not take the other from the defaults."""


def object_name(dag: str, member: str) -> str:
    """Returns the name of the Allocation of a member; neither part has a dot, so that no two members share one."""
    return f"{dag}.{member}"


def member_of(metadata: Metadata) -> tuple[str, str] | None:
    """Returns the uid of the DAG that an Allocation is a member of, and its name in it; None: of none."""
    owner = next((one for one in metadata.owner_references if one.kind == DAG), None)
    if owner is None or not metadata.name.startswith(f"{owner.name}."):
        return None
    return owner.uid, metadata.name[len(owner.name) + 1 :]


def check_specs(dag: Dag) -> None:
    """Raises Rejected where the defaults or a member name a field that a member has from its DAG or beside its spec, or that is not
    served in a DAG; its `fields` say where.
    """
    _check_spec(dag.spec.defaults, "spec.defaults")
    for index, member in enumerate(dag.spec.members):
        field = f"spec.members[{index}].spec"
        _check_spec(member.spec, field)
        if part(member.spec, "environment").get("variablesFrom"):
            at = f"{field}.environment.variablesFrom"
            sentence = f"{at}: Secrets are named for all members together: put it into spec.defaults.environment"
            raise Rejected(sentence, reason="DagInvalid", fields=(at,))


def _check_spec(spec: Mapping[str, Any], field: str) -> None:
    """Raises Rejected for the first field of a member's spec, or of the defaults, that does not stand there."""
    for name in OF_THE_DAG:
        if spec.get(name) is not None:
            raise _misplaced(f"{field}.{name}", f"members have it from the DAG: set spec.{name} of the DAG, or leave it out")
    for name in EDGES:
        if spec.get(name) is not None:
            raise _misplaced(f"{field}.{name}", f"edges of a member stand beside its spec: write spec.members[].{name}")
    for name, instead in LATER.items():
        if spec.get(name):
            raise _misplaced(f"{field}.{name}", f"it is not served in a DAG: {instead}; remove the field")


def _misplaced(field: str, why: str) -> Rejected:
    """Returns the error for a field that does not stand where it is."""
    return Rejected(f"{field}: {why}", reason="DagInvalid", fields=(field,))


def member_object(dag: Dag, member: Member) -> dict[str, Any]:
    """Returns the Allocation of a member as people would have written it: without what admission fills in."""
    meta = dag.metadata
    spec = merged(dag.spec.defaults, member.spec) | {"tenant": dag.spec.tenant, "user": dag.spec.user}
    if member.depends_on:
        spec["dependsOn"] = [
            {"ref": object_name(meta.name, edge.ref), "condition": edge.condition} | ({"delay": edge.delay} if edge.delay else {})
            for edge in member.depends_on
        ]
        spec |= {"dependsOnMode": member.depends_on_mode} if member.depends_on_mode != "All" else {}
        spec |= {"onUnmet": member.on_unmet} if member.on_unmet != "Cancel" else {}
    owner = {
        "apiVersion": API_VERSION, "kind": DAG, "name": meta.name, "uid": meta.uid, "controller": True, "blockOwnerDeletion": False,
    }  # fmt: skip
    return {
        "apiVersion": API_VERSION,
        "kind": "Allocation",
        "metadata": {
            "name": object_name(meta.name, member.name),
            "namespace": meta.namespace,
            "labels": {DAG_LABEL: meta.name},
            "annotations": {SPEC_HASH: digest_of(spec)},
            "ownerReferences": [owner],
        },
        "spec": spec,
    }


def digest_of(spec: Mapping[str, Any]) -> str:
    """Returns a digest of what a member's Allocation is made from, the same for equal specs."""
    return hashlib.sha256(json.dumps(spec, sort_keys=True, separators=(",", ":")).encode()).hexdigest()[:32]


def is_ours(metadata: Metadata, made: Mapping[str, Any]) -> bool:
    """Tells whether an Allocation that stands there is the member that was to be made: of the same DAG, from the same spec."""
    wanted = made["metadata"]
    owner = wanted["ownerReferences"][0]["uid"]
    same_owner = any(one.uid == owner for one in metadata.owner_references)
    return same_owner and metadata.annotations.get(SPEC_HASH) == wanted["annotations"][SPEC_HASH]


def merged(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a member's spec with what the defaults give besides: maps are merged at any depth, and any other value of the member wins.

    Of fields that exclude each other the member's own stands alone.
    """
    left = _without_alternatives(defaults, given)
    return _merged(left, given)


def _merged(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns both maps as one, the values of `given` first; a value of None counts as absent."""
    result = dict(defaults)
    for key, value in given.items():
        before = result.get(key)
        if isinstance(before, Mapping) and isinstance(value, Mapping):
            result[key] = _merged(before, value)
        elif value is not None:
            result[key] = value
    return result


def _without_alternatives(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the defaults without the fields that exclude one which the member gives."""
    result = dict(defaults)
    for *path, one, other in _ALTERNATIVES:
        mine, theirs = part(given, *path), dict(part(result, *path))
        for has, drops in ((one, other), (other, one)):
            if mine.get(has) is not None:
                theirs.pop(drops, None)
        if not path:
            result = theirs
        elif path[0] in result and isinstance(result[path[0]], Mapping):
            result[path[0]] = theirs
    return result


def part(spec: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """Returns the map at a path of a spec; empty where there is none."""
    found: Any = spec
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}
