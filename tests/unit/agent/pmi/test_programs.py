"""Real MPI programs on made-up nodes, served by the PMI server alone: what they say to each other is theirs."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterator

import pytest

from tests.mpi import programs
from tests.mpi.driver import Driver, Outcome

TCP = {"FI_PROVIDER": "tcp", "MPIR_CVAR_CH4_NETMOD": "ofi", "MPIR_CVAR_NEMESIS_POLL": "0"}
LAYOUTS = {
    "one node": [[0, 1, 2, 3]],
    "four nodes": [[0], [1], [2], [3]],
    "block": [[0, 1], [2, 3]],
    "cyclic": [[0, 2], [1, 3]],
    "uneven": [[0, 1, 2], [3]],
}
NUMBERS = itertools.count()

mpich = pytest.mark.skipif(bool(programs.missing("mpich")), reason=programs.missing("mpich") or "-")
mpi4py = pytest.mark.skipif(bool(programs.missing("mpich", "mpi4py")), reason=programs.missing("mpich", "mpi4py") or "-")
libpmi2 = pytest.mark.skipif(bool(programs.missing("libpmi2")), reason=programs.missing("libpmi2") or "-")


def launch(nodes: list[list[int]], *argv: object) -> Outcome:
    return Driver(nodes, f"lattice-test-{os.getpid()}-{next(NUMBERS)}").run([str(word) for word in argv], TCP)


@pytest.fixture(autouse=True)
def _no_shared_memory_is_left() -> Iterator[None]:
    with programs.without_leftovers():
        yield


@mpich
@pytest.mark.parametrize("nodes", LAYOUTS.values(), ids=LAYOUTS)
def test_mpich_meets_on_every_layout(nodes: list[list[int]]) -> None:
    outcome = launch(nodes, programs.ring())
    assert outcome.failure == "", outcome
    assert outcome.output == {rank: f"rank {rank} of 4: ring {rank + 1 if rank else 4}, sum 6, all 4711\n" for rank in range(4)}
    assert outcome.codes == dict.fromkeys(range(4), 0)


@mpi4py
def test_mpi4py_meets() -> None:
    outcome = launch([[0, 1], [2]], sys.executable, programs.HERE / "ring.py")
    assert outcome.failure == "", outcome
    assert outcome.output == {rank: f"rank {rank} of 3: ring {rank + 1 if rank else 3}, sum 3, all 4711\n" for rank in range(3)}


@mpich
@pytest.mark.parametrize(
    ("words", "failure"),
    [
        (("abort", 2), "rank 2 on n1 called abort with exit code 13"),
        (("exit", 2), "rank 2 on n1 ended with exit code 5 after init and before finalize"),
        (("kill", 2), "rank 2 on n1 was ended by signal 9 after init and before finalize"),
    ],
    ids=["abort", "exit", "kill"],
)
def test_a_rank_that_fails_takes_the_launch_along(words: tuple[object, ...], failure: str) -> None:
    outcome = launch([[0, 1], [2, 3]], programs.ring(), *words)
    assert outcome.failure.startswith(failure), outcome


@libpmi2
@pytest.mark.parametrize("nodes", LAYOUTS.values(), ids=LAYOUTS)
def test_every_call_of_libpmi2_is_served(nodes: list[list[int]]) -> None:
    outcome = launch(nodes, programs.every_call())
    assert outcome.output == {rank: f"rank {rank} of 4: right\n" for rank in range(4)}
    assert outcome.said == ["rank 0 asks for more processes (MPI_Comm_spawn), which is not served; start all of them with srun -n"]
    assert outcome.failure == ""


@libpmi2
def test_an_abort_of_libpmi2_tells_its_message() -> None:
    outcome = launch([[0, 1], [2, 3]], programs.every_call(), "abort", 3)
    assert outcome.failure == "rank 3 on n1 called abort: boom; on = purpose"


@libpmi2
def test_many_ranks_pass_many_fences() -> None:
    nodes = [list(range(node * 8, node * 8 + 8)) for node in range(4)]
    outcome = launch(nodes, programs.every_call(), "fences", 20)
    assert set(outcome.codes.values()) == {0}
