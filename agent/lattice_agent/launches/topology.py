"""Reads the processors that work has on this node, by cores in NUMA order, and says them to the head of an attempt as JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lattice.errors import Rejected
from lattice.units import parse_ranges

_SYSTEM = Path("/sys/devices/system")
MOST_NUMBER = 1 << 16
"""Processors and GPUs that another node may name, and their numbers: masks have as many bits."""


def read_cores(reserved: frozenset[int], system: Path = _SYSTEM) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Returns the hardware threads that work may use, by core, the cores in NUMA order; and the same threads by NUMA node.

    A machine that does not show its cores has one thread a core, and one NUMA node.
    """
    usable = os.sched_getaffinity(0) - reserved
    domains = _domains(usable, system)
    cores: dict[tuple[int, ...], None] = {}
    for cpu in (cpu for domain in domains for cpu in domain):
        siblings = _listed(system / f"cpu/cpu{cpu}/topology/thread_siblings_list") or [cpu]
        cores[tuple(sorted(set(siblings) & usable)) or (cpu,)] = None
    return tuple(cores), domains


def _domains(usable: set[int], system: Path) -> tuple[tuple[int, ...], ...]:
    """Returns the usable processors by NUMA node; those of no node come last."""
    found = list[tuple[int, ...]]()
    paths = system.glob("node/node[0-9]*/cpulist") if (system / "node").is_dir() else ()
    for path in sorted(paths, key=lambda path: int(path.parent.name.removeprefix("node"))):
        if own := tuple(sorted(set(_listed(path)) & usable)):
            found.append(own)
    rest = tuple(sorted(usable - {cpu for domain in found for cpu in domain}))
    return (*found, rest) if rest else tuple(found)


def _listed(path: Path) -> list[int]:
    """Returns the processors that a file of the kernel lists; empty: it cannot be read."""
    try:
        return parse_ranges(path.read_text().strip())
    except (OSError, Rejected):
        return []


def describe_cores(reserved: frozenset[int], gpus: int) -> dict[str, Any]:
    """Returns what an attempt has on this node, for the head's agent."""
    cores, domains = read_cores(reserved)
    return {"cores": cores, "domains": domains, "gpus": list(range(gpus))}


def read_description(body: Mapping[str, Any]) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Returns cores, NUMA nodes and GPUs of another node's description; raises ValueError for one of another form."""
    try:
        cores, domains = (tuple(tuple(_number(cpu) for cpu in row) for row in body[name]) for name in ("cores", "domains"))
        gpus = tuple(_number(gpu) for gpu in body["gpus"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"the node is not described: {error}") from error
    if max(sum(map(len, cores)), sum(map(len, domains)), len(gpus)) > MOST_NUMBER:
        raise ValueError(f"the node is not described: it names more than {MOST_NUMBER} processors or GPUs")
    return cores, domains, gpus


def _number(value: object) -> int:
    """Returns the number of a processor or GPU; raises TypeError for another value, and for a number that none has."""
    if type(value) is not int or not 0 <= value < MOST_NUMBER:
        raise TypeError(f"a processor or GPU has a number from 0 to {MOST_NUMBER - 1}")
    return value
