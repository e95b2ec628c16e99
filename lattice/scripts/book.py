"""Converts the Lattice book's own YAML (`allocation:` with snake_case fields) into an Allocation of ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lattice.errors import Rejected
from lattice.scripts.translate import API_VERSION
from lattice.units import format_duration, parse_duration, parse_slurm_time

_ENUMS: dict[str, dict[str, str]] = {
    "intent": {word.lower(): word for word in ("Train", "Simulate", "Serve", "Interactive", "Preprocess")},
    "lifecycle.type": {"bounded": "Bounded", "unbounded": "Unbounded", "reactive": "Reactive"},
    "resources.constraints.topology": {"any": "Any", "tight": "Tight", "spread": "Spread"},
    "resources.constraints.conformance": {"required": "Required", "preferred": "Preferred"},
    "resources.constraints.memory_policy": {"interleave": "Interleave", "local": "Local", "preferred": "Preferred", "bind": "Bind"},
    "data.mounts[].access": {"read-only": "ReadOnly", "read-write": "ReadWrite"},
    "data.mounts[].tier_hint": {"hot": "Hot", "warm": "Warm", "cold": "Cold"},
    "depends_on[].condition": {word.lower(): word for word in ("Success", "Failure", "Any", "Started", "Corresponding", "Mutex")},
    "depends_on_mode": {"all": "All", "any": "Any"},
    "on_unmet": {"cancel": "Cancel", "hold": "Hold"},
    "checkpoint.strategy": {"auto": "Auto", "manual": "Manual", "none": "None"},
    "telemetry.mode": {"prod": "Prod", "debug": "Debug", "audit": "Audit"},
    "requeue_policy": {"never": "Never", "on_node_failure": "OnNodeFailure", "always": "Always"},
}
_SHORT = {
    "nodes": "resources.nodes",
    "constraints": "resources.constraints",
    "walltime": "lifecycle.walltime",
    "preemption_class": "lifecycle.preemption_class",
    "uenv": "environment.uenv",
    "image": "environment.image",
    "view": "environment.view",
    "name": "tags.name",
    "requeue_policy": "lifecycle.requeue.policy",
    "max_requeue": "lifecycle.requeue.max",
}
"""Fields that the book writes at the top of an allocation, with their places in ours."""
_GIGABYTES = {"resources.memory_gb": "memory", "resources.constraints.gpu_memory_gb": "gpuMemory"}
"""Sizes that the book writes as numbers of gigabytes, with the names of our quantities."""
_FREE = ("tags", "environment.variables")
"""Maps whose keys are the person's own words, and are not renamed."""


def is_book(document: Mapping[str, Any]) -> bool:
    """Tells whether a document is of the book's form rather than a Kubernetes object: it has neither apiVersion nor kind."""
    return "apiVersion" not in document and "kind" not in document


def from_book(document: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the Allocation (without a name) of a document `allocation:`, or of its fields at the top.

    Raises Rejected for other documents, for values that do not read, for workflows, and for what is not served (sessions, task groups).
    """
    for word in ("dag", "allocations"):
        if word in document:
            raise Rejected(f"{word}: this is a workflow; submit it with `lattice dag submit`", reason="BadDocument", fields=(word,))
    if "session" in document:
        raise Rejected(
            "session: sessions are not served by this release; submit each allocation by itself", reason="NotServed", fields=("session",)
        )
    inner = document.get("allocation", document)
    if not isinstance(inner, Mapping) or not inner:
        raise Rejected(
            "allocation: it must have fields such as tenant, entrypoint and resources", reason="BadDocument", fields=("allocation",)
        )
    if inner.get("type") == "task_group" or "template" in inner:
        raise Rejected(
            "type: task groups are not served by this release; submit each allocation by itself", reason="NotServed", fields=("type",)
        )
    placed: dict[str, Any] = {}
    for key, value in inner.items():
        _put(placed, _SHORT.get(str(key), str(key)), _enum(key, value) if key in _ENUMS else value)
    spec = {_camel(key): _translate(key, value) for key, value in placed.items()}
    return {"apiVersion": API_VERSION, "kind": "Allocation", "metadata": {}, "spec": spec}


def _put(placed: dict[str, Any], path: str, value: Any) -> None:
    """Puts a value at a dotted path of a document; maps are merged.

    Raises Rejected for a value given twice, or a path through something that is no map.
    """
    head, dot, rest = path.partition(".")
    if not dot:
        if isinstance(value, Mapping) and isinstance(placed.get(head), dict):
            for key, inner in value.items():
                _put(placed[head], key, inner)
        elif head in placed:
            raise Rejected(f"{head} is given twice", reason="BadDocument", fields=(head,))
        else:
            placed[head] = dict(value) if isinstance(value, Mapping) else value
        return
    below = placed.setdefault(head, {})
    if not isinstance(below, dict):
        raise Rejected(f"{head} must have fields, not {below!r}", reason="BadDocument", fields=(head,))
    _put(below, rest, value)


def _translate(path: str, value: Any) -> Any:
    """Returns a value of the book's form in Lattice's form, with names in camelCase at any depth except in maps of free names, whose values
    become texts.

    Raises Rejected where it is wrong.
    """
    if path == "resources.nodes":
        return _nodes(value)
    if path in ("lifecycle.walltime", "lifecycle.grace_period"):
        return _duration(path, value)
    if path in _ENUMS:
        return _enum(path, value)
    if path in _GIGABYTES:
        return _gigabytes(path, value)
    if path == "data.scratch_per_node" and isinstance(value, str):
        return value.strip().removesuffix("B")  # the book writes 500GB
    if path == "resources.constraints.require_conformance":
        return _enum("resources.constraints.conformance", ("required" if value else "preferred") if isinstance(value, bool) else value)
    if isinstance(value, Mapping):
        if path in _FREE:
            return {str(key): str(inner) for key, inner in value.items()}
        return {_name(path, str(key)): _translate(f"{path}.{key}", inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_translate(f"{path}[]", inner) for inner in value]
    return value


def _name(path: str, key: str) -> str:
    """Returns the name that an Allocation has for a field of the book's manifest: `key` in the part at `path`."""
    renamed = {"lifecycle.scale_policy": "scale", "resources.constraints.require_conformance": "conformance", **_GIGABYTES}
    return renamed.get(f"{path}.{key}") or _camel(key)


def _camel(word: str) -> str:
    """Returns a name in snake_case as camelCase."""
    head, *rest = word.split("_")
    return head + "".join(part[:1].upper() + part[1:] for part in rest)


def _enum(path: str, value: Any) -> Any:
    """Returns the word that a value means at a path, whatever its case. Raises Rejected for any other."""
    words = _ENUMS[path]
    if not isinstance(value, str) or value.lower() not in words:
        raise Rejected(f"{path}: {value!r} is none of {', '.join(sorted(words))}", reason="BadDocument", fields=(path,))
    return words[value.lower()]


def _gigabytes(path: str, value: Any) -> str:
    """Returns a whole number of gigabytes as a quantity. Raises Rejected for anything else."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise Rejected(f"{path}: {value!r} is not a whole number of gigabytes", reason="BadDocument", fields=(path,))
    return f"{value}G"


def _nodes(value: Any) -> Any:
    """Returns a number of nodes unchanged and unchecked, or a map of min and max as the text of a range.

    Raises Rejected for a map with other fields.
    """
    if isinstance(value, Mapping):
        if set(value) != {"min", "max"}:
            raise Rejected("resources.nodes: a range has min and max, and nothing else", reason="BadDocument", fields=("resources.nodes",))
        return f"{value['min']}-{value['max']}"
    return value


def _duration(path: str, value: Any) -> Any:
    """Returns a duration as text, as written; Slurm's forms with `:` or `-` are rewritten.

    Raises Rejected where it is neither, and for one without an end.
    """
    if not isinstance(value, str):
        raise Rejected(f"{path}: {value!r} is not a duration in quotes, such as '24h' or '24:00:00'", reason="BadDocument", fields=(path,))
    try:
        parse_duration(value)
    except Rejected as error:
        seconds = parse_slurm_time(value) if ":" in value or "-" in value else None
        if not seconds:
            raise Rejected(f"{path}: {error.message}", reason=error.reason, fields=(path,)) from error
        return format_duration(seconds)
    return value
