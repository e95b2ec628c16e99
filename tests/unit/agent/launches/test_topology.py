"""The processors and GPUs of a node as its agent reads and says them: a lie costs nothing but the launch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from lattice.launches.binding import NodeCpus
from lattice_agent.launches.topology import describe_cores, read_description

TRUE: dict[str, Any] = {"cores": [[0, 2], [1, 3]], "domains": [[0, 2, 1, 3]], "gpus": [0]}


def test_what_a_node_says_is_read() -> None:
    assert read_description("n1", TRUE) == NodeCpus("n1", ((0, 2), (1, 3)), ((0, 2, 1, 3),), (0,)), "as a former release says it"
    more = {"sockets": [[0, 2], [1, 3]], "gpuDomains": [0], "gpuVendor": "amd"}
    assert read_description("n1", TRUE | more).sockets == ((0, 2), (1, 3))
    here = read_description("n1", describe_cores(frozenset(), 2))
    assert (set(here.cpus), sorted(here.gpus)) == (os.sched_getaffinity(0), [0, 1])


@pytest.mark.parametrize(
    "lie",
    [
        {"cores": [[1 << 40]]},
        {"cores": [[-1]]},
        {"cores": [["1"]]},
        {"cores": 5},
        {"gpus": [True]},
        {"cores": [[0] * 70_000]},
        {"domains": None},
        {"sockets": [[0] * 70_000]},
        {"gpuDomains": [-1]},
        {"sockets": 5},
    ],
    ids=lambda lie: str(lie)[:24],
)
def test_numbers_that_no_processor_has_are_refused(lie: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the node is not described"):
        read_description("n1", TRUE | lie)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """The kernel's files of a machine with the processors of this one: each a core and a NUMA node (from 1 on), in two sockets."""
    for cpu in sorted(os.sched_getaffinity(0)):
        write(tmp_path / f"system/node/node{cpu + 1}/cpulist", str(cpu))
        write(tmp_path / f"system/cpu/cpu{cpu}/topology/thread_siblings_list", str(cpu))
        write(tmp_path / f"system/cpu/cpu{cpu}/topology/physical_package_id", str(cpu % 2))
    return tmp_path


def test_sockets_are_those_that_the_kernel_names(machine: Path) -> None:
    found = read_description("n1", describe_cores(frozenset(), 0, machine / "system", machine / "devices"))
    cpus = sorted(os.sched_getaffinity(0))
    assert sorted(map(sorted, found.sockets)) == sorted(own for own in (cpus[::2], cpus[1::2]) if own)
    assert found.domains == tuple((cpu,) for cpu in cpus)


def add_device(machine: Path, address: str, kind: str, vendor: str, node: int) -> None:
    for name, text in (("class", kind), ("vendor", vendor), ("numa_node", str(node))):
        write(machine / "devices" / address / name, text)


def test_gpus_are_in_numa_order_where_the_machine_shows_as_many_as_are_declared(machine: Path) -> None:
    first, *_, last = sorted(os.sched_getaffinity(0))
    add_device(machine, "0000:02:00.0", "0x030000", "0x1a03", 1)  # the screen of a board's controller
    add_device(machine, "0000:41:00.0", "0x030200", "0x10de", last + 1)
    add_device(machine, "0000:81:00.0", "0x030200", "0x10de", first + 1)

    def described(gpus: int) -> NodeCpus:
        return read_description("n1", describe_cores(frozenset(), gpus, machine / "system", machine / "devices"))

    found = described(2)
    assert (found.gpus, found.gpu_domains, found.gpu_vendor) == ((1, 0), (0, len(found.domains) - 1), "nvidia")
    other = described(4)
    assert (other.gpus, other.gpu_domains, other.gpu_vendor) == ((0, 1, 2, 3), (), "nvidia"), "partitions, or nothing that PCI shows"
    add_device(machine, "0000:81:00.0", "0x120000", "0x1002", -1)
    mixed = described(2)
    assert (mixed.gpus, mixed.gpu_domains, mixed.gpu_vendor) == ((0, 1), (), "")
