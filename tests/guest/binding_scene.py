"""What pytest runs in a guest of two sockets: ranks of real launches are bound as its kernel names sockets, cores and threads.

`test_binding.py` starts it. CPUs of a core are neighbours there: 0 and 1 are the first core of the first socket, 4 to 7 the second socket.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lattice.launches.binding import NodeCpus
from lattice_agent.launches.topology import describe_cores, read_description
from tests.unit.agent.host.test_keepers import attempt, ran
from tests.unit.agent.launch_listener import shell
from tests.unit.agent.machine import open_directory
from tests.unit.launches.test_layout import laid

FIRST, SECOND = (0, 1, 2, 3), (4, 5, 6, 7)
CASES = {
    "-n 2": (FIRST, SECOND),
    "-n 2 -c 2": ((0, 1), (2, 3)),
    "-n 2 -c 2 -m block:cyclic": ((0, 1), (4, 5)),
    "-n 1 -c 4 -m block:fcyclic": ((0, 1, 4, 5),),
    "-n 4 --cpu-bind=cores": ((0, 1), (2, 3), (4, 5), (6, 7)),
    "-n 3 --cpu-bind=threads": ((0,), (2,), (4,)),
    "-n 2 --cpu-bind=sockets": (FIRST, FIRST),
    "-n 2 --cpu-bind=sockets -m block:cyclic": (FIRST, SECOND),
    "-n 2 --cpu-bind=rank_ldom": (FIRST, SECOND),
    "-n 2 --hint=nomultithread": ((0, 2), (4, 6)),
    "-n 4 -c 1 --threads-per-core=1": ((0,), (2,), (4,), (6,)),
    "-n 1 --cpu-bind=none": (FIRST + SECOND,),
}
"""By srun's options, the CPUs that the kernel lets each task use."""


@pytest.fixture
async def place() -> AsyncIterator[Path]:
    with open_directory() as path:
        path.chmod(0o777)
        yield path


def this_node() -> NodeCpus:
    """The guest, as its agent describes it to the head of an attempt."""
    return read_description("n0", describe_cores(frozenset(), 0))


def test_the_agent_sees_sockets_cores_and_threads_of_the_machine() -> None:
    node = this_node()
    assert (node.cores, node.domains, node.sockets) == (((0, 1), (2, 3), (4, 5), (6, 7)), (FIRST, SECOND), (FIRST, SECOND))


async def test_the_kernel_lets_each_rank_use_the_cpus_that_its_options_ask_for(place: Path) -> None:
    async with attempt(place) as (host, _):
        for number, (options, wanted) in enumerate(CASES.items(), 1):
            cpus = laid(options, [this_node()]).nodes[0].cpus
            asked = shell("grep Cpus_allowed_list /proc/self/status", number=number)
            asked["ranks"] = [{"rank": rank, "cpus": list(own)} for rank, own in enumerate(cpus)]
            output = (await ran(host, asked)).output
            found = tuple(_listed(output[1, rank].decode()) for rank in range(len(cpus)))
            assert found == wanted, options


def _listed(text: str) -> tuple[int, ...]:
    """The CPUs of a list of the kernel's."""
    parts = re.findall(r"(\d+)(?:-(\d+))?", text)
    return tuple(cpu for first, last in parts for cpu in range(int(first), int(last or first) + 1))
