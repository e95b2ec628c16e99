"""Unmodified programs of OpenMPI 4.1 and 5 by `srun` in batch scripts, through the running daemons: they meet by PMIx, and fail whole."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lattice_dev.instance import Instance
from tests.e2e.mpi_scenes import installed, kill_agents, make_openmpi, ran, rings
from tests.e2e.people import Person
from tests.e2e.waiting import until
from tests.mpi import programs

lacking = programs.missing("mpich", "mpi4py", "python", "openmpi4", "openmpi5", "pmix")
pytestmark = [
    pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="launches need cgroups, which need root"),
    pytest.mark.skipif(bool(lacking), reason=lacking or "-"),
]  # fmt: skip


@pytest.fixture(scope="module")
def here(control_plane: Instance) -> Iterator[Path]:
    """A folder of alice's on every node, with the programs."""
    with installed(control_plane, "pmix", programs.ring, make_openmpi) as folder:
        yield folder


@pytest.fixture
def me(me: Person, here: Path) -> Person:
    """alice, whose folder holds the programs."""
    return me


def commands(here: Path) -> dict[str, str]:
    """The commands of both OpenMPIs: of ring.c, and of ring.py."""
    return {
        "OpenMPI 4.1 in C": "./ring4",
        "OpenMPI 5 in C": f"/usr/bin/env LD_LIBRARY_PATH={here}/openmpi5/lib ./ring4",
        "OpenMPI 5 by mpi4py": " ".join(programs.openmpi5_python()).replace("HERE", str(here)),
    }


def hosts(control_plane: Instance) -> list[int]:
    """The pids of PMIx hosts of this instance, by their cgroup: another one's may run beside it."""
    root, found = control_plane.where.scope_root(), []
    assert root is not None
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            ours = f"/{root.name}/" in (process / "cgroup").read_text()
            if ours and (process / "cmdline").read_bytes() == b"lattice-pmix-host\0":
                found.append(int(process.name))
    return found


@pytest.mark.parametrize("words", ["-N 1 -n 2 -O", "-n 4", "-N 4 -n 8 -O -m cyclic"])
@pytest.mark.parametrize("program", ["OpenMPI 4.1 in C", "OpenMPI 5 in C", "OpenMPI 5 by mpi4py"])
def test_openmpi_meets_by_srun(me: Person, here: Path, words: str, program: str) -> None:
    size = int(words.split("-n ")[1].split()[0])
    assert ran(me, here, f"srun {words} {commands(here)[program]}", nodes=4) == rings(size)


@pytest.mark.parametrize(("program", "mpi"), [("OpenMPI 4.1 in C", "Pmix"), ("OpenMPI 5 in C", "Auto")])
def test_openmpi_as_the_entrypoint_needs_no_launcher(me: Person, here: Path, program: str, mpi: str) -> None:
    out, name = here / f"by-{mpi}", f"by-{mpi.lower()}"
    environment = {"workdir": str(here), "output": {"stdout": str(out)}}
    me.apply(name, nodes=4, entrypoint=commands(here)[program], tasks={"total": 8, "perNode": 2, "mpi": mpi}, environment=environment)
    assert me.ended(name, within=60)["phase"] == "Completed", out.read_text()
    assert sorted(line for line in out.read_text().splitlines() if not line.startswith("srun: ")) == rings(8)


def test_mpich_and_openmpi_meet_in_one_script_and_pmix_is_asked_for_by_name(me: Person, here: Path) -> None:
    script = "srun -n 4 ./ring\nsrun -n 4 ./ring4\nsrun --mpi=pmix -n 4 ./ring4\nunset ${!SLURM_*}\nsrun -n 4 -N 4 ./ring4"
    assert ran(me, here, script, nodes=4) == sorted(rings(4) * 4)


def test_openmpi_meets_without_slurm_s_variables(me: Person, here: Path) -> None:
    script = "srun -n 4 bash -c 'unset ${!SLURM_*}; export JSM_JSRUN_PORT=1; exec ./ring4'"
    assert ran(me, here, script, nodes=4) == rings(4)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("abort 2", "called abort with exit code 13"),
        ("exit 2", "ended with exit code 5 after init and before finalize"),
        ("kill 2", "was ended by signal 9 after init and before finalize"),
    ],
)
def test_a_rank_that_fails_ends_the_launch_at_once_and_the_script_goes_on(
    me: Person, here: Path, control_plane: Instance, words: str, said: str
) -> None:
    lines = ran(me, here, f"srun -n 4 ./ring4 {words}; echo code $?; srun -n 4 ./ring4", nodes=4)
    assert any("rank 2 on" in line and said in line for line in lines), lines
    assert set(rings(4)) <= set(lines)
    assert "code 0" not in lines
    until(lambda: not hosts(control_plane), within=30, what="no host is left")


@pytest.mark.parametrize("words", ["-n 4", "-N 1 -n 4 -O"])
def test_a_rank_that_never_comes_ends_those_who_wait_for_it(me: Person, here: Path, words: str) -> None:
    script = f"srun {words} bash -c 'test $PMIX_RANK = 3 && exit 7; exec ./ring4'; test $? != 0"
    lines = ran(me, here, script, nodes=4)
    assert any("waits in a PMIx fence for rank 3 on" in line and "which ended with exit code 7 without PMI" in line for line in lines), (
        lines
    )


def test_a_host_that_is_killed_ends_the_launch_with_its_reason(me: Person, here: Path, control_plane: Instance) -> None:
    out = here / "killed"
    script = (
        f"#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --time=5\n#SBATCH --output={out}\ncd {here}\nsrun -n 4 ./ring4 sleep 4200; echo code $?\n"
    )
    number = me.lattice("submit", "--parsable", "-", stdin=script).stdout.strip()
    until(lambda: len(ring4s(here)) == 4, within=60, what="the ranks")
    until(lambda: len(hosts(control_plane)) == 4, within=60, what="their hosts")
    os.kill(hosts(control_plane)[0], 9)
    me.lattice("wait", number, ok=False)
    said = out.read_text()
    out.unlink()
    assert "which serves its ranks, was ended by signal 9" in said
    assert "code 0" not in said
    until(lambda: not hosts(control_plane) and not ring4s(here), within=30, what="nobody is left")


def ring4s(here: Path) -> list[str]:
    """The processes of ring4."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "exe").readlink() == here / "ring4":
                found.append(process.name)
    return found


def test_killed_agents_cost_an_openmpi_program_time_only(me: Person, here: Path, control_plane: Instance) -> None:
    out, witness = here / "agents", here / "began"
    script = f"#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --time=5\n#SBATCH --output={out}\ncd {here}\ntouch {witness}\nsrun -n 8 -O ./ring4 until go; echo code $?\n"
    number = me.lattice("submit", "--parsable", "-", stdin=script).stdout.strip()
    until(witness.exists, within=30, what="the script")
    kill_agents(control_plane)
    (here / "go").touch()
    assert me.lattice("wait", number, ok=False).returncode == 0, out.read_text()
    lines = [line for line in out.read_text().splitlines() if not line.startswith("srun: the agent")]
    out.unlink()
    witness.unlink()
    assert sorted(lines) == sorted(["code 0", *rings(8)])


def test_daemons_of_another_launcher_and_single_tasks_find_no_host(me: Person, here: Path) -> None:
    script = """
        set -- $(cut -d: -f1 $HYDRA_HOST_FILE)
        srun -N 1 -n 1 sh -c 'echo single ${PMIX_RANK-none}'
        srun -n 4 --external-launcher sh -c 'echo external ${PMIX_RANK-none}'
        lattice-mpi-launcher $2 'echo launcher ${PMIX_RANK-none}'
        srun -n 4 --mpi=none sh -c 'echo without ${PMIX_RANK-none}'
        srun -n 4 --mpi=pmi2 sh -c 'echo pmi2 ${PMIX_RANK-none}'
    """
    lines = ran(me, here, script, nodes=4)
    assert set(lines) == {"single none", "external none", "launcher none", "without none", "pmi2 none"}


def test_spawn_is_refused_with_a_sentence(me: Person, here: Path) -> None:
    python = commands(here)["OpenMPI 5 by mpi4py"].replace("ring.py", "spawn.py")
    (here / "spawn.py").write_text(
        "import sys\nfrom mpi4py import MPI\nMPI.COMM_WORLD.Set_errhandler(MPI.ERRORS_RETURN)\n"
        "try:\n    MPI.COMM_SELF.Spawn(sys.executable, ['-c', ''])\nexcept MPI.Exception:\n    print('refused')\n"
    )
    lines = ran(me, here, f"srun -n 2 {python}; true", nodes=4)
    assert any("MPI_Comm_spawn), which is not served" in line for line in lines), lines
