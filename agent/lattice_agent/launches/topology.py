"""Reads the processors that work has on this node, by cores in NUMA order, and its GPUs; says them to the head of an attempt as JSON."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lattice.errors import Rejected
from lattice.units import is_digits, parse_ranges

if TYPE_CHECKING:
    from lattice.launches.binding import NodeCpus

_SYSTEM = Path("/sys/devices/system")
_DEVICES = Path("/sys/bus/pci/devices")
MOST_NUMBER = 1 << 16
"""Processors and GPUs that another node may name, and their numbers: masks have as many bits."""
_GPU_CLASSES: Final = ("0x0300", "0x0302", "0x0380", "0x1200")
"""Classes of PCI devices that GPUs have: display, 3D and other display controllers, processing accelerators."""
_VENDORS: Final = {"0x10de": "nvidia", "0x1002": "amd", "0x8086": "intel"}


def read_cores(reserved: frozenset[int], system: Path = _SYSTEM) -> tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]:
    """Returns the hardware threads that work may use, by core, the cores in NUMA order; and the same threads by NUMA node.

    A machine that does not show its cores has one thread a core, and one NUMA node.
    """
    usable = os.sched_getaffinity(0) - reserved
    domains = tuple(_domains(usable, system).values())
    cores: dict[tuple[int, ...], None] = {}
    for cpu in (cpu for domain in domains for cpu in domain):
        siblings = _listed(system / f"cpu/cpu{cpu}/topology/thread_siblings_list") or [cpu]
        cores[tuple(sorted(set(siblings) & usable)) or (cpu,)] = None
    return tuple(cores), domains


def _domains(usable: set[int], system: Path) -> dict[int, tuple[int, ...]]:
    """Returns the usable processors by the number of their NUMA node; those of no node come last, as -1."""
    found = dict[int, tuple[int, ...]]()
    paths = system.glob("node/node[0-9]*/cpulist") if (system / "node").is_dir() else ()
    numbered = ((int(path.parent.name.removeprefix("node")), path) for path in paths)
    for number, path in sorted(numbered):
        if own := tuple(sorted(set(_listed(path)) & usable)):
            found[number] = own
    rest = tuple(sorted(usable - {cpu for domain in found.values() for cpu in domain}))
    return found | {-1: rest} if rest else found


def _sockets(cpus: Sequence[int], system: Path) -> tuple[tuple[int, ...], ...]:
    """Returns these processors by socket; empty where the machine does not show which each is of."""
    found = dict[str, list[int]]()
    for cpu in cpus:
        number = _text(system / f"cpu/cpu{cpu}/topology/physical_package_id")
        found.setdefault(number, []).append(cpu)
    return () if {"", "-1"} & set(found) else tuple(map(tuple, found.values()))


def _gpus(count: int, domains: Sequence[int], devices: Path) -> tuple[list[int], list[int], str]:
    """Returns the numbers of a node's GPUs in NUMA order, the place among `domains` (numbers of NUMA nodes) of each, and their vendor.

    GPUs are numbered by their PCI addresses. Where the machine shows another number of them than it is said to have, or one of no
    domain, they are in order of their numbers, and where they are is unknown (empty).
    """
    found = [path for path in sorted(devices.glob("*")) if _text(path / "class")[:6] in _GPU_CLASSES and _text(path / "vendor") in _VENDORS]
    vendors = {_VENDORS[_text(path / "vendor")] for path in found}
    vendor = vendors.pop() if len(vendors) == 1 else ""
    places = [domains.index(int(number)) for path in found if is_digits(number := _text(path / "numa_node"), 6) and int(number) in domains]
    if not count or len(places) != count or len(found) != count:
        return list(range(count)), [], vendor
    order = sorted(range(count), key=lambda gpu: (places[gpu], gpu))
    return order, [places[gpu] for gpu in order], vendor


def _listed(path: Path) -> list[int]:
    """Returns the processors that a file of the kernel lists; empty: it cannot be read."""
    try:
        return parse_ranges(_text(path))
    except Rejected:
        return []


def _text(path: Path) -> str:
    """Returns the text of a file of the kernel's; empty: it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def describe_cores(
    reserved: frozenset[int], gpus: int, system: Path = _SYSTEM, devices: Path = _DEVICES, *, pmix: bool = False
) -> dict[str, Any]:  # fmt: skip
    """Returns what an attempt has on this node, for the head's agent; `pmix`: whether the node serves PMIx."""
    cores, domains = read_cores(reserved, system)
    numbers = tuple(_domains({cpu for domain in domains for cpu in domain}, system))
    order, places, vendor = _gpus(gpus, numbers, devices)
    sockets = _sockets([cpu for core in cores for cpu in core], system)
    return {"cores": cores, "domains": domains, "sockets": sockets, "gpus": order, "gpuDomains": places, "gpuVendor": vendor, "pmix": pmix}


def read_description(node: str, body: Mapping[str, Any]) -> NodeCpus:
    """Returns what another node has said of itself, an agent of an earlier release less; raises ValueError for what has another form."""
    from lattice.launches.binding import NodeCpus

    try:
        cores, domains, sockets = (
            tuple(tuple(_number(cpu) for cpu in row) for row in rows) for rows in (body["cores"], body["domains"], body.get("sockets", ()))
        )
        gpus, places = (tuple(_number(one) for one in numbers) for numbers in (body["gpus"], body.get("gpuDomains", ())))
    except (KeyError, TypeError) as error:
        raise ValueError(f"the node is not described: {error}") from error
    if max(sum(map(len, cores)), sum(map(len, domains)), sum(map(len, sockets)), len(gpus), len(places)) > MOST_NUMBER:
        raise ValueError(f"the node is not described: it names more than {MOST_NUMBER} processors or GPUs")
    return NodeCpus(node, cores, domains, gpus, places, sockets, str(body.get("gpuVendor", ""))[:16], pmix=body.get("pmix") is True)


def _number(value: object) -> int:
    """Returns the number of a processor or GPU; raises TypeError for another value, and for a number that none has."""
    if type(value) is not int or not 0 <= value < MOST_NUMBER:
        raise TypeError(f"a processor or GPU has a number from 0 to {MOST_NUMBER - 1}")
    return value
