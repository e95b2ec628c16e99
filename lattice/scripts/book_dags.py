"""Converts the Lattice book's two forms of a workflow (`allocations:` beside a name, and `dag:`) into a DAG of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from lattice.errors import Rejected
from lattice.scripts.book import from_book
from lattice.scripts.translate import API_VERSION
from lattice.units import shown

_CONDITIONS: Final = {word.lower(): word for word in ("Success", "Failure", "Any", "Started", "Corresponding", "Mutex")}
_EDGES: Final = {
    "depends_on_mode": ("dependsOnMode", {"all": "All", "any": "Any"}),
    "on_unmet": ("onUnmet", {"cancel": "Cancel", "hold": "Hold"}),
}


def is_workflow(document: Mapping[str, Any]) -> bool:
    """Tells whether a document of the book's form is a workflow, and no single allocation."""
    return "dag" in document or "allocations" in document


def dag_from_book(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the DAG of a document `allocations:` or `dag: {allocations:}`, with the name that it gives, if any.

    Raises Rejected, naming the allocation, for what does not read or is not served.
    """
    inner = document.get("dag", document)
    listed = inner.get("allocations") if isinstance(inner, Mapping) else None
    if not isinstance(inner, Mapping) or not isinstance(listed, list):
        raise _wrong("allocations", "a workflow has a list of allocations, each with a name (or id) and an entrypoint")
    unknown = sorted(str(key) for key in inner if key not in ("name", "tenant", "allocations"))
    if unknown:
        raise _wrong(unknown[0], "a workflow has name, tenant and allocations: write it in each allocation")
    spec: dict[str, Any] = {"tenant": inner["tenant"]} if inner.get("tenant") else {}
    spec["members"] = [_member(f"allocations[{index}]", one) for index, one in enumerate(listed)]
    metadata = {"name": str(inner["name"])} if inner.get("name") else {}
    return {"apiVersion": API_VERSION, "kind": "DAG", "metadata": metadata, "spec": spec}


def _member(place: str, document: Any) -> dict[str, Any]:
    """Returns the member of one allocation of a workflow."""
    if not isinstance(document, Mapping):
        raise _wrong(place, f"{shown(str(document))} is no allocation: write its name, its entrypoint and what it needs")
    own = dict(document)
    name = own.pop("id", None)
    name = name if name is not None else own.pop("name", None)
    if not isinstance(name, str) or not name:
        raise _wrong(place, "it has no name (or id), by which others wait for it")
    member: dict[str, Any] = {"name": name}
    edges = own.pop("depends_on", None) or []
    if not isinstance(edges, list):
        raise _wrong(f"{place}.depends_on", "it must be a list such as [{preprocess: success}]")
    if edges:
        member["dependsOn"] = [_edge(f"{place}.depends_on[{index}]", edge) for index, edge in enumerate(edges)]
    for word, (field, meanings) in _EDGES.items():
        if word in own:
            member[field] = _meaning(f"{place}.{word}", own.pop(word), meanings)
    try:
        member["spec"] = from_book({"allocation": own})["spec"]
    except Rejected as error:
        raise Rejected(f'{place} ("{name}"): {error.message}', reason=error.reason, fields=error.fields) from error
    return member


def _edge(place: str, document: Any) -> dict[str, Any]:
    """Returns an edge of `{preprocess: success}`, of `{ref: preprocess, condition: success}`, or of a bare name, which means success."""
    if isinstance(document, str):
        return {"ref": document, "condition": "Success"}
    if not isinstance(document, Mapping) or not document:
        raise _wrong(place, "write {preprocess: success}, or {ref: preprocess, condition: success}")
    if "ref" in document or "ref_id" in document:
        ref, condition = document.get("ref", document.get("ref_id")), document.get("condition", "success")
        delay = {"delay": document["delay"]} if document.get("delay") else {}
    elif len(document) == 1:
        (ref, condition), delay = next(iter(document.items())), {}
    else:
        raise _wrong(place, "each entry has one allocation: write a list of {name: condition}")
    return {"ref": str(ref), "condition": _meaning(place, condition, _CONDITIONS), **delay}


def _meaning(place: str, value: Any, meanings: Mapping[str, str]) -> str:
    """Returns the word that a value means, whatever its case. Raises Rejected for any other."""
    if not isinstance(value, str) or value.lower() not in meanings:
        raise _wrong(place, f"{value!r} is none of {', '.join(sorted(meanings))}")
    return meanings[value.lower()]


def _wrong(field: str, sentence: str) -> Rejected:
    """Returns the error for a field that does not read."""
    return Rejected(f"{field}: {sentence}", reason="BadDocument", fields=(field,))
