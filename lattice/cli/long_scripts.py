"""Puts a script that is too long for `spec.script` into a ConfigMap that goes with its work, and reads it from there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from lattice.errors import AlreadyExists, NotFound, Rejected, UnknownOutcome
from lattice.kube.resources import CONFIG_MAPS
from lattice.scripts.commands import has_slurm_lines
from lattice.scripts.digests import KEY, script_digest
from lattice.scripts.directives import MAX_INLINE_BYTES

if TYPE_CHECKING:
    from lattice.cli.console import Console

_TRIES: Final = 3


def split_script(document: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Returns an Allocation to be created, and its script where that is longer than 64 KiB; the Allocation then names in
    `spec.scriptFrom` the ConfigMap that will hold it. Else it is returned as it is, with an empty text.
    """
    spec = document.get("spec") or {}
    text = spec.get("script")
    name = document["metadata"].get("name")
    if not isinstance(text, str) or not name or len(text.encode("utf-8", "surrogatepass")) <= MAX_INLINE_BYTES:
        return document, ""
    named = {key: value for key, value in spec.items() if key != "script"}
    named["scriptFrom"] = {"configMap": f"{name}.script", "digest": script_digest(text)}
    if has_slurm_lines(text):  # whoever reads the spec alone, as nodes that do not run the script, sees no lines of it
        named["environment"] = {"slurmVariables": True, **(spec.get("environment") or {})}
    return {**document, "spec": named}, text


def config_map(document: Mapping[str, Any], text: str, uid: str = "") -> dict[str, Any]:
    """Returns the ConfigMap with the script of an Allocation, which nobody can change; with a uid it is deleted with that Allocation."""
    metadata, source = document["metadata"], document["spec"]["scriptFrom"]
    owner = {"apiVersion": document["apiVersion"], "kind": document["kind"], "name": metadata["name"], "uid": uid}
    named = {"name": source["configMap"]} | ({"namespace": metadata["namespace"]} if metadata.get("namespace") else {})
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": named | ({"ownerReferences": [owner]} if uid else {}),
        "immutable": True,
        "data": {KEY: text},
    }


def store_script(console: Console, document: Mapping[str, Any], text: str, uid: str) -> None:
    """Creates the ConfigMap of an Allocation that exists, exactly once whatever answers are lost.

    Raises AlreadyExists where another ConfigMap has its name, UnknownOutcome after three lost answers.
    """
    made = config_map(document, text, uid)
    namespace, name = made["metadata"]["namespace"], made["metadata"]["name"]
    lost = ""
    for _ in range(_TRIES):
        try:
            console.cluster.create(CONFIG_MAPS, made, namespace, type=dict[str, Any])
        except UnknownOutcome as error:
            lost = error.message
        except AlreadyExists as error:
            there = console.cluster.get(CONFIG_MAPS, name, namespace, type=dict[str, Any])
            owners = {owner.get("uid") for owner in there["metadata"].get("ownerReferences") or ()}
            if uid in owners and there.get("data") == made["data"]:
                return
            raise AlreadyExists(f"ConfigMap {namespace}/{name} exists, and is not of this work", reason="NameTaken") from error
        else:
            return
    raise UnknownOutcome(f"no answer to {_TRIES} tries to create ConfigMap {namespace}/{name}: {lost}")


def with_script(console: Console, document: dict[str, Any]) -> dict[str, Any]:
    """Returns an Allocation with the script that its `spec.scriptFrom` names in `spec.script`; one without is returned as it is.

    Raises NotFound where the ConfigMap is gone, Rejected where it was changed.
    """
    spec = document["spec"]
    source = spec.get("scriptFrom")
    if not source:
        return document
    namespace = document["metadata"]["namespace"]
    where = f"ConfigMap {namespace}/{source['configMap']}"
    try:
        found = console.cluster.get(CONFIG_MAPS, source["configMap"], namespace, type=dict[str, Any])
    except NotFound as error:
        raise NotFound(f"{where} with its script is gone: submit the script again", reason="NotFound") from error
    text = (found.get("data") or {}).get(KEY, "")
    if script_digest(text) != source["digest"]:
        raise Rejected(f"{where} was changed since that work was submitted: submit the script again", reason="ScriptChanged")
    kept = {key: value for key, value in spec.items() if key != "scriptFrom"}
    return {**document, "spec": {**kept, "script": text}}
