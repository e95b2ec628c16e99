"""Computes the hardware that a node counts for: its report, bounded by the declaration, or without one by its first report.

A node that reports otherwise is Degraded: its credential may be in other hands, or a part of it has failed. `memory` of a
declaration is the installed one, of which the kernel keeps some for itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import msgspec

from lattice.errors import Rejected
from lattice.units import quantity_bytes
from lattice.views.cluster import Capabilities, Hardware, Node

OCI_IMAGES: Final = "oci"
"""The feature of a node that runs work in OCI images."""
PMIX: Final = "pmix"
"""The feature of a node that serves PMIx to launches."""
MEMORY_GROWS: Final = 1.02
"""The factor by which reported memory may exceed the known one: another kernel may leave so much more to work."""
MEMORY_LACKS: Final = 0.9
"""If reported memory is below this part of the declared one, memory is missing."""
_COUNTS: Final = ("cpus", "gpus")
_SIZES: Final = ("memory", "gpu_memory", "cxl_memory")
_WORDS: Final = {
    "cpus": "cpus", "gpus": "gpus", "memory": "memory", "gpu_memory": "gpuMemory", "cxl_memory": "cxlMemory", "gpu_type": "gpuType",
}  # fmt: skip


def reported(had: Capabilities) -> dict[str, Any]:
    """Returns the reported facts that later reports are compared with, in the form of the LatticeNode's `status.accepted`."""
    return {word: getattr(had, name) for name, word in _WORDS.items()}


def counted(node: Node) -> Capabilities:
    """Returns the capabilities of a node that placement, quotas and charges count: the reported ones, none above its known bound.

    Bounds are the declared values, else those of the first report; memory may exceed them by 2 %. A known GPU type replaces the
    reported.
    """
    had = node.status.capabilities
    bounds: dict[str, Any] = {}
    for name in (*_COUNTS, *_SIZES):
        limit = _limit(node, name)
        if limit is not None and _number(getattr(had, name)) > _number(limit) * (MEMORY_GROWS if name in _SIZES else 1):
            bounds[name] = limit
    kind = _limit(node, "gpu_type")
    if isinstance(kind, str) and had.gpu_type != kind:
        bounds["gpu_type"] = kind
    return msgspec.structs.replace(had, **bounds) if bounds else had


def deviation(node: Node) -> str:
    """Returns, as a clause, how a node's report differs from its declaration or first report; empty: it does not."""
    return ", ".join(_differences(node))


def implied_features(gpus: int, gpu_type: str) -> frozenset[str]:
    """Returns the features that hardware has without declaring them: `gpu`, and the type of the GPUs where it is known; none without GPUs.

    See the book, "Slurm Migration": `--constraint=GH200`.
    """
    if not gpus:
        return frozenset()
    return frozenset({"gpu", gpu_type}) if gpu_type else frozenset({"gpu"})


def _differences(node: Node) -> Iterator[str]:
    """Yields a sentence for each part of a node's hardware that is more or less than it may be."""
    had, declared = node.status.capabilities, node.spec.hardware or _NOTHING
    for name in (*_COUNTS, *_SIZES, "gpu_type"):
        limit, now = _limit(node, name), getattr(had, name)
        if limit is None or not _differs(name, now, limit, declared=getattr(declared, name) is not None):
            continue
        whose = "declared" if getattr(declared, name) is not None else "reported first"
        yield f"{_WORDS[name]} {_shown(now)}, {_shown(limit)} {whose}"


def _differs(name: str, now: int | str, limit: int | str, *, declared: bool) -> bool:
    """Tells whether a fact of hardware is more than its limit, or, where it is declared, less.

    Memory may be more by 2 %, and less by 10 %; the GPU's model must be equal.
    """
    if name == "gpu_type":
        return now != limit
    grows, lacks = (MEMORY_GROWS, MEMORY_LACKS) if name in _SIZES else (1.0, 1.0)
    return _number(now) > _number(limit) * grows or (declared and _number(now) < _number(limit) * lacks)


def _limit(node: Node, name: str) -> int | str | None:
    """Returns the declared value of one fact of the hardware, else the first reported one; None: neither is known."""
    declared = getattr(node.spec.hardware, name, None)
    return declared if declared is not None else getattr(node.status.accepted, name, None)


def _shown(fact: int | str) -> str:
    """Returns a fact of hardware as text; `none` for empty."""
    return "none" if fact == "" else str(fact)


@lru_cache(maxsize=4096)
def _number(quantity: int | str) -> int:
    """Returns a quantity in bytes; 0 where it does not parse."""
    try:
        return quantity_bytes(quantity)
    except Rejected:
        return 0


_NOTHING: Final = Hardware()
