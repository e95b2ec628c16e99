"""What scenes of MPI programs share: the folder of programs on every node, scripts that run them, what their ranks say."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lattice_dev.instance import Instance
from tests.e2e.people import Person
from tests.mpi import programs

mpich = pytest.mark.skipif(bool(programs.missing("mpich")), reason=programs.missing("mpich") or "-")
mpi4py = pytest.mark.skipif(
    bool(programs.missing("mpich", "mpi4py", "python")), reason=programs.missing("mpich", "mpi4py", "python") or "-"
)
libpmi2 = pytest.mark.skipif(bool(programs.missing("libpmi2")), reason=programs.missing("libpmi2") or "-")


def make_mpich() -> None:
    """Compiles the programs of MPICH, mpi4py and libpmi2 that can be compiled here."""
    if not programs.missing("mpich", "mpi4py", "python"):
        programs.mpi4py()
    if not programs.missing("libpmi2"):
        programs.every_call()


def make_openmpi() -> None:
    """Compiles the programs of OpenMPI 4.1 and 5."""
    programs.openmpi4_ring()
    programs.openmpi5_python()


@contextmanager
def installed(control_plane: Instance, name: str, *make: Callable[[], object]) -> Iterator[Path]:
    """A folder of alice's on every node, with the programs that `make` compiles."""
    for each in make:
        each()
    folder = control_plane.where.user_home("alice") / name
    programs.install(folder)
    user = control_plane.user("alice")
    shutil.chown(folder, user.uid, user.uid)
    yield folder
    shutil.rmtree(folder)


def ran(
    me: Person, here: Path, script: str, *, nodes: int, code: int = 0, interpreter: str = "/bin/bash", directives: str = "#"
) -> list[str]:  # fmt: skip
    """Submits a #SBATCH script, waits for its end with this exit code, and returns its lines in order."""
    out = here / f"out-{os.urandom(4).hex()}"
    text = f"#!{interpreter}\n#SBATCH --nodes={nodes} --time=5\n{directives}\n#SBATCH --output={out}\ncd {here}\n{script}\n"
    file = here / "script.sh"
    file.write_text(text)
    done = me.lattice("submit", "--wait", "-q", str(file), ok=False)
    said = out.read_text() if out.exists() else ""
    assert done.returncode == code, f"{done.returncode}: {done.stderr}\n{said}"
    return sorted(said.splitlines())


def rings(size: int) -> list[str]:
    """What the ranks of a ring say."""
    total = size * (size - 1) // 2
    return [f"rank {rank} of {size}: ring {rank + 1 if rank else size}, sum {total}, all 4711" for rank in range(size)]


def kill_agents(control_plane: Instance, times: int = 2) -> None:
    """Kills the agents of all nodes, a second before each time, and starts them again."""
    for _ in range(times):
        time.sleep(1)
        for node in control_plane.site().nodes:
            control_plane.kill(f"agent-{node}")
            control_plane.start(f"agent-{node}", wait=False)
