"""Unmodified MPI programs by `srun` in batch scripts, through the running daemons: they meet on one node and on four, and fail whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lattice_dev.instance import Instance
from tests.e2e.mpi_scenes import installed, kill_agents, libpmi2, make_mpich, mpi4py, mpich, ran, rings
from tests.e2e.people import Person
from tests.e2e.waiting import until
from tests.mpi import programs

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="launches need cgroups, which need root")]


@pytest.fixture(scope="module")
def here(control_plane: Instance) -> Iterator[Path]:
    """A folder of alice's on every node, with the programs."""
    with installed(control_plane, "mpi", make_mpich) as folder:
        yield folder


@pytest.fixture
def me(me: Person, here: Path) -> Person:
    """alice, whose folder holds the programs."""
    return me


@mpich
@pytest.mark.parametrize("words", ["-N 1 -n 2 -O", "-n 4", "-N 4 -n 8 -O", "-N 4 -n 8 -O -m cyclic"])
def test_mpich_meets_by_srun(me: Person, here: Path, words: str) -> None:
    size = int(words.split("-n ")[1].split()[0])
    assert ran(me, here, f"srun {words} ./ring", nodes=4) == rings(size)


@mpi4py
def test_mpi4py_meets_by_srun_on_four_nodes(me: Person, here: Path) -> None:
    command = " ".join(programs.mpi4py()).replace("HERE", str(here))
    assert ran(me, here, f"srun -n 4 {command}", nodes=4) == rings(4)


@libpmi2
def test_every_call_of_libpmi2_is_served_on_four_nodes(me: Person, here: Path) -> None:
    lines = ran(me, here, "srun -N 4 -n 8 -O ./every_call", nodes=4)
    assert [line for line in lines if line.startswith("rank ") and "asks" not in line] == [f"rank {rank} of 8: right" for rank in range(8)]


@mpich
def test_many_launches_one_after_the_other_have_names_of_their_own(me: Person, here: Path) -> None:
    assert ran(me, here, "for i in 1 2 3 4 5; do srun -n 4 ./ring; done; ls /dev/shm | grep -c mpich", nodes=4, code=1) == sorted(
        ["0", *rings(4) * 5]
    )


@mpich
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("abort 2", "called abort with exit code 13"),
        ("exit 2", "ended with exit code 5 after init and before finalize"),
        ("kill 2", "was ended by signal 9 after init and before finalize"),
    ],
)
def test_a_rank_that_fails_ends_the_launch_at_once_and_the_script_goes_on(me: Person, here: Path, words: str, said: str) -> None:
    lines = ran(me, here, f"srun -n 4 ./ring {words}; echo code $?; srun -n 4 ./ring", nodes=4)
    assert any("rank 2 on" in line and said in line for line in lines), lines
    assert set(rings(4)) <= set(lines)
    assert "code 0" not in lines


def test_a_program_without_mpi_is_nobody_s_affair(me: Person, here: Path) -> None:
    assert ran(me, here, "srun -n 4 sh -c 'echo $PMI_SIZE'", nodes=4) == ["4"] * 4


def test_a_rank_that_never_comes_ends_those_who_wait_for_it(me: Person, here: Path) -> None:
    line = r"cmd=init pmi_version=1 pmi_subversion=1\ncmd=barrier_in\n"
    script = f"""srun -n 4 bash -c 'if [ $PMI_RANK != 3 ]; then printf "{line}" >&$PMI_FD; exec sleep 100; fi'; test $? != 0"""
    lines = ran(me, here, script, nodes=4)
    assert any("waits in a PMI fence for rank 3 on" in line and "which ended with exit code 0 without PMI" in line for line in lines), lines


@mpich
@libpmi2
@pytest.mark.parametrize("command", ["./ring until go", "./every_call fences 700"], ids=["between two barriers", "in fences"])
def test_killed_agents_cost_an_mpi_program_time_only(me: Person, here: Path, control_plane: Instance, command: str) -> None:
    out, witness = here / "killed", here / "began"
    script = f"#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --time=5\n#SBATCH --output={out}\ncd {here}\ntouch {witness}\nsrun -n 8 -O {command}; echo code $?\n"
    number = me.lattice("submit", "--parsable", "-", stdin=script).stdout.strip()
    until(witness.exists, within=30, what="the script")
    kill_agents(control_plane)
    (here / "go").touch()
    assert me.lattice("wait", number, ok=False).returncode == 0, out.read_text()
    lines = [line for line in out.read_text().splitlines() if not line.startswith("srun: the agent")]
    out.unlink()
    witness.unlink()
    (here / "go").unlink()
    assert sorted(lines) == sorted(["code 0", *(rings(8) if "ring" in command else [f"rank {rank} of 8: right" for rank in range(8)])])
