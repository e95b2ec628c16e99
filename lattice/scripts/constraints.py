"""Parses `--constraint`, `--gres` and `--gpus`, with one grammar for scripts and the command line."""

from __future__ import annotations

import re
from typing import Any

from lattice.errors import Rejected
from lattice.scripts.asked import Given
from lattice.units import is_digits, parse_quantity

_TERM = re.compile(r"(?P<key>[A-Za-z0-9_.-]+)(?:(?P<op>>=|=|:)(?P<value>[^\s=><]+))?")
_LETTER = re.compile(r"[A-Za-z]")
_SWITCHES = {
    "require_unified_memory": "requireUnifiedMemory",
    "unified_memory": "requireUnifiedMemory",
    "unified": "requireUnifiedMemory",
    "allow_cxl_memory": "allowCxlMemory",
    "prefer_same_numa": "preferSameNuma",
}
_TRUE, _FALSE = frozenset({"true", "yes", "1"}), frozenset({"false", "no", "0"})
_WORDS = {
    "topology": ("topology", ("Any", "Tight", "Spread")),
    "conformance": ("conformance", ("Required", "Preferred")),
    "memory_policy": ("memoryPolicy", ("Local", "Interleave", "Preferred", "Bind")),
}
_GIGABYTES = {"gpu_memory_gb": "gpu_memory", "memory_gb": "memory"}
_AT_LEAST = frozenset({"gpu_count", "gpus", "gpu_memory", "memory", "cpus", *_GIGABYTES})
"""Keys that accept `>=`; what a node must have is a lower bound, so that `=` means the same."""
_KEYS = (
    "gpu_type", "gpu_count", "gpu_memory", "gpu_memory_gb", "memory", "memory_gb", "cpus", "topology", "conformance",
    "memory_policy", "require_unified_memory", "allow_cxl_memory", "prefer_same_numa", "require_conformance", "feature",
)  # fmt: skip


def read_constraint(given: Given) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns `resources` and `resources.constraints` of `key=value`, `key:value`, `key>=n` and words (features), joined by `,` or `&`;
    empty for an empty text.

    Raises Rejected for unknown keys, wrong or contradicting values, and what is not served (either-or, counts).
    """
    resources: dict[str, Any] = {}
    constraints: dict[str, Any] = {}
    text = given.value or ""
    if "|" in text or "[" in text or "*" in text:
        raise given.rejected(
            "either-or, [ ] and counts are not served by this release: other nodes than asked for would be chosen; name one set",
            "NotServed",
        )
    for term in filter(None, (part.strip() for part in re.split(r"[,&]", text.strip("()")))):
        match = _TERM.fullmatch(term)
        if match is None:
            raise given.rejected(f"{term!r} is not a constraint: write key=value, key>=number or a feature")
        _read_term(given, match["key"], match["op"], match["value"], resources, constraints)
    return resources, constraints


def _read_term(given: Given, key: str, op: str | None, value: str | None, resources: dict[str, Any], constraints: dict[str, Any]) -> None:
    """Puts one term of a constraint into `resources` or `constraints`; a word without a value that is no known key is a feature.

    Raises Rejected for a value that does not parse or contradicts an earlier one.
    """
    word = key.lower().replace("-", "_")
    if word in _SWITCHES and (value is None or value.lower() in _TRUE | _FALSE):
        _put(given, constraints, _SWITCHES[word], value is None or value.lower() in _TRUE)
    elif word == "prefer_local_memory" and (value is None or value.lower() in _TRUE):
        _put(given, constraints, "memoryPolicy", "Local")
    elif word == "require_conformance" and (value is None or value.lower() in _TRUE):
        _put(given, constraints, "conformance", "Required")
    elif op is None:
        _feature(given, key, constraints)
    elif op == ">=" and word not in _AT_LEAST:
        raise given.rejected(f"{key} takes no >=")
    elif word in ("feature", "features"):
        _feature(given, value or "", constraints)
    elif word == "gpu_type":
        _put(given, constraints, "gpuType", value)
    elif word in _WORDS:
        field, words = _WORDS[word]
        _put(given, constraints, field, _one_of(given, key, value or "", words))
    elif word in ("gpu_count", "gpus", "cpus"):
        _put(given, resources, "cpus" if word == "cpus" else "gpus", _number(given, key, value))
    elif word in _AT_LEAST:
        size = f"{_number(given, key, value)}G" if word in _GIGABYTES else _size(given, key, value or "")
        gpu = _GIGABYTES.get(word, word) == "gpu_memory"
        _put(given, constraints if gpu else resources, "gpuMemory" if gpu else "memory", size)
    else:
        raise given.rejected(f"{key!r} is not a key of constraints; known: {', '.join(_KEYS)}")


def _feature(given: Given, word: str, constraints: dict[str, Any]) -> None:
    """Adds a feature to the constraints. Raises Rejected for one that is too long."""
    if len(word) > 63:
        raise given.rejected(f"the feature {word[:20]!r}... has {len(word)} characters, the limit is 63")
    constraints["features"] = sorted({*constraints.get("features", []), word})


def _put(given: Given, where: dict[str, Any], field: str, value: Any) -> None:
    """Sets a field; raises Rejected where another value was given for it before."""
    if where.setdefault(field, value) != value:
        raise given.rejected(f"{field} is asked for twice, as {where[field]} and as {value}", "ConstraintsContradict")


def _one_of(given: Given, key: str, value: str, words: tuple[str, ...]) -> str:
    """Returns the word that a value means, whatever its case. Raises Rejected for any other."""
    for word in words:
        if value.lower() == word.lower():
            return word
    raise given.rejected(f"{key} is one of {', '.join(word.lower() for word in words)}, not {value!r}")


def _size(given: Given, key: str, value: str) -> str:
    """Returns a quantity's text unchanged. Raises Rejected where it does not parse."""
    try:
        parse_quantity(value)
    except Rejected as error:
        raise given.rejected(f"{key}: {error.message}") from error
    return value


def read_gres(given: Given) -> tuple[int | None, str, list[str]]:
    """Returns the GPUs a node (None: none asked for; 1 where no number is given; the last entry's of several), their type (empty: any), and
    the other resources of `--gres`, which are not counted.

    Raises Rejected for a number of more than nine digits, or of others than 0 to 9.
    """
    count: int | None = None
    kind = ""
    others: list[str] = []
    for part in filter(None, (given.value or "").split(",")):
        name, *fields = part.removeprefix("gres/").removeprefix("gres:").split(":")
        if name != "gpu":
            others.append(part)
            continue
        fields = [piece for field in fields for piece in field.split("=")]
        count = 1
        if fields and fields[-1] and not _LETTER.search(fields[-1]):  # the name of a type has letters
            count = _number(given, "gres", fields.pop())
        kind = fields[0] if fields else kind
    return count, kind, others


def read_gpus(given: Given) -> tuple[int, str]:
    """Returns number and type (empty: none named) of `--gpus` and `--gpus-per-node`: `4` or `GH200:4`; raises Rejected without a number."""
    kind, _, count = (given.value or "").rpartition(":")
    return _number(given, given.option, count), kind


def read_quantity(given: Given) -> str:
    """Returns a quantity such as `128Gi` as it was written; raises Rejected where it is none."""
    parse_quantity(given.value or "")
    return given.value or ""


def _number(given: Given, key: str, value: str | None) -> int:
    """Returns a whole number from 0 on, of at most nine digits. Raises Rejected for anything else."""
    if value is None or not is_digits(value, 9):
        raise given.rejected(f"{key} needs a number, not {value!r}")
    return int(value)
