"""Creates an Allocation exactly once, whatever answers are lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lattice.cli.long_scripts import split_script, store_script
from lattice.cli.submission import REQUEST_HASH
from lattice.errors import AlreadyExists, LatticeError, NotFound, UnknownOutcome
from lattice.kube.resources import ALLOCATIONS
from lattice.views import Allocation

if TYPE_CHECKING:
    from lattice.cli.console import Console

_REPEATS = 3
AWAITS_SCRIPT = "lattice.dev/awaits-script"
"""The annotation of an Allocation that is held until the ConfigMap with its script is there."""


def create(console: Console, document: dict[str, Any]) -> Allocation:
    """Creates an Allocation exactly once, and returns it; a script that is too long for it goes into a ConfigMap of its own, and the work
    is held until that is there.

    Raises what `_create_object` raises, and the refusal of the ConfigMap, after which the Allocation is deleted.
    """
    sent, script = split_script(document)
    if not script:
        return _create_object(console, document)
    metadata, spec = sent["metadata"], sent["spec"]
    annotations = {**(metadata.get("annotations") or {}), AWAITS_SCRIPT: "true"}
    made = _create_object(console, {**sent, "metadata": {**metadata, "annotations": annotations}, "spec": {**spec, "hold": True}})
    name, namespace, uid = made.metadata.name, made.metadata.namespace, made.metadata.uid
    if AWAITS_SCRIPT not in made.metadata.annotations:
        return made  # an earlier try of the same request has done it all
    try:
        store_script(console, sent, script, uid)
    except LatticeError:
        try:
            console.cluster.delete(ALLOCATIONS, name, namespace, uid=uid)
        except LatticeError as error:
            console.note(f"Note: {namespace}/{name} is held without its script: `lattice cancel {namespace}/{name}` ({error.message})")
        raise
    release: dict[str, Any] = {"metadata": {"annotations": {AWAITS_SCRIPT: None}}}
    if not spec.get("hold"):
        release["spec"] = {"hold": None}
    return console.cluster.patch(ALLOCATIONS, name, release, namespace, type=Allocation)


def _create_object(console: Console, document: dict[str, Any]) -> Allocation:
    """Creates an object exactly once, and returns it: after a lost answer it looks for the object, and tries again where there is none;
    without a name, it raises UnknownOutcome at the first.

    An existing object of that name is taken for ours only if its hash is; else raises AlreadyExists. Raises UnknownOutcome after three lost
    answers.
    """
    metadata, lost = document["metadata"], ""
    for _ in range(_REPEATS):
        try:
            return console.cluster.create(ALLOCATIONS, document, metadata["namespace"], type=Allocation)
        except UnknownOutcome as error:
            if not metadata.get("name"):
                raise
            lost = error.message
            console.note("Note: the answer was lost; looking whether it was accepted")
            try:
                return _find_ours(console, metadata)
            except NotFound:
                continue  # it was not: the same name again is safe
        except AlreadyExists:
            return _find_ours(console, metadata)
    raise UnknownOutcome(f"no answer to {_REPEATS} tries to create {metadata['namespace']}/{metadata['name']}: {lost}")


def _find_ours(console: Console, metadata: dict[str, Any]) -> Allocation:
    """Returns the allocation of the same name where an earlier try made it from the same request.

    Raises AlreadyExists where it is another one.
    """
    there = console.cluster.get(ALLOCATIONS, metadata["name"], metadata["namespace"], type=Allocation)
    wanted = (metadata.get("annotations") or {}).get(REQUEST_HASH)
    if wanted and there.metadata.annotations.get(REQUEST_HASH) == wanted:
        return there
    request = console.args.request_id
    why = f"request id {request!r} was used for something else" if request else "an allocation of that name exists"
    raise AlreadyExists(f"{why}: {metadata['namespace']}/{metadata['name']} is not what is submitted now", reason="NameTaken")
