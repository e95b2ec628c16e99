"""The grammar of `--constraint`, `--gres` and `--gpus`: one for scripts and the command line."""

from __future__ import annotations

import re
from typing import Any

from lattice.scripts.asked import Given
from lattice.units import parse_quantity

_TERM = re.compile(r"(?P<key>[A-Za-z0-9_.-]+)(?:(?P<op>>=|=|:)(?P<value>[^\s=><]+))?")
_SWITCHES = {"require_unified_memory": "requireUnifiedMemory", "allow_cxl_memory": "allowCxlMemory", "prefer_same_numa": "preferSameNuma"}
_TEXTS = {"gpu_type": "gpuType", "conformance": "conformance", "memory_policy": "memoryPolicy"}
_KEYS = ("gpu_type", "gpu_count", "gpu_memory_gb", "memory_gb", "topology", "conformance", "memory_policy", *_SWITCHES)


def read_constraint(given: Given) -> tuple[dict[str, Any], dict[str, Any]]:
    """`resources` and `resources.constraints` of `key=value`, `key:value`, `key>=n`, words, `,` and `&`."""
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
    word = key.lower().replace("-", "_")
    if word in _SWITCHES and (value is None or value.lower() in {"true", "yes"}):
        constraints[_SWITCHES[word]] = True
    elif op is None:
        if len(key) > 63:
            raise given.rejected(f"the feature {key[:20]!r}... has {len(key)} characters, the limit is 63")
        constraints["features"] = sorted({*constraints.get("features", []), key})
    elif op == ">=" and word not in {"gpu_count", "gpu_memory_gb", "memory_gb"}:
        raise given.rejected(f"{key} takes no >=")
    elif word in _TEXTS:
        constraints[_TEXTS[word]] = value
    elif word == "topology":
        constraints["topology"] = (value or "").capitalize()
    elif word == "gpu_count":
        resources["gpus"] = _number(given, key, value)
    elif word == "memory_gb":
        resources["memory"] = f"{_number(given, key, value)}G"
    elif word == "gpu_memory_gb":
        constraints["gpuMemory"] = f"{_number(given, key, value)}G"
    else:
        raise given.rejected(f"{key!r} is not a key of constraints; known: {', '.join(_KEYS)}")


def read_gres(given: Given) -> tuple[int | None, str, list[str]]:
    """GPUs a node, their type, and the other resources of `--gres`, which are not counted."""
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
        if fields and fields[-1].isdigit():
            count = int(fields.pop())
        kind = fields[0] if fields else kind
    return count, kind, others


def read_gpus(given: Given) -> tuple[int, str]:
    """Number and type of `--gpus` and `--gpus-per-node`: `4` or `GH200:4`."""
    kind, _, count = (given.value or "").rpartition(":")
    return _number(given, given.option, count), kind


def read_quantity(given: Given) -> str:
    """A quantity such as `128Gi`, as it was written."""
    parse_quantity(given.value or "")
    return given.value or ""


def _number(given: Given, key: str, value: str | None) -> int:
    if value is None or not value.isascii() or not value.isdigit() or len(value) > 9:
        raise given.rejected(f"{key} needs a number, not {value!r}")
    return int(value)
