"""An unmodified MPI program inside an OCI image, and inside a uenv, on four nodes: by `srun`, as the entrypoint, by its own mpirun."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import CONFIGS
from lattice_dev.instance import Instance
from tests.containers import push, small_system
from tests.e2e.mpi_scenes import ran, rings
from tests.e2e.people import Person, reason
from tests.e2e.test_containers import traces
from tests.e2e.waiting import until
from tests.e2e.work import processes_of
from tests.mpi import programs
from tests.oci import needs_runc
from tests.registries import running_registry
from tests.squashfs import needs_mksquashfs

pytestmark = [
    pytest.mark.root, needs_runc(), needs_mksquashfs(), pytest.mark.skipif(os.geteuid() != 0, reason="containers need root"),
    pytest.mark.skipif(shutil.which("docker-registry") is None, reason="docker-registry is not installed"),
    pytest.mark.skipif(bool(programs.missing("mpich")), reason=programs.missing("mpich") or "-"),
]  # fmt: skip
APP = "images.example/team/mpi:1"
DIRECTIVE = "#SBATCH --container-image=images.example\\#team/mpi:1"
OPENMPI_DIRECTIVE = "#SBATCH --container-image=images.example\\#team/openmpi:1"
lacking = programs.missing("openmpi4", "openmpi5", "pmix")
openmpi = pytest.mark.skipif(bool(lacking), reason=lacking or "-")
OPENMPI = {"4.1": "/mpi/ring4", "5": "env LD_LIBRARY_PATH=/mpi/openmpi5/lib /mpi/ring4"}
"""By version, the command of the ring in that image: both have libmpi.so.40."""


def mpi_image() -> Any:
    """An image with MPICH, its mpiexec and the ring in /mpi."""
    own = (programs.ring(), programs.mpiexec(), programs.mpiexec().with_name("hydra_pmi_proxy"))
    return small_system({"mpi/lib": programs.BUILD / "lib"} | {f"mpi/{path.name}": path for path in own})


def openmpi_image() -> Any:
    """An image with Debian's OpenMPI 4.1 where Debian has it, OpenMPI 5 in /mpi/openmpi5, and the ring in /mpi."""
    own = Path("/usr/lib") / f"{platform.machine()}-linux-gnu"
    parts = {str(path).lstrip("/"): path for path in (own / "openmpi/lib/openmpi3", own / "pmix2/lib/pmix", Path("/etc/openmpi"))}
    return small_system({"mpi/ring4": programs.openmpi4_ring(), "mpi/openmpi5": programs.openmpi5(), **parts})


@pytest.fixture(scope="module", autouse=True)
def registry(control_plane: Instance, admin: BlockingCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A registry that the nodes reach, with that image."""
    network = control_plane.site().network
    with running_registry(tmp_path_factory.mktemp("registry"), address=network.gateway if network is not None else "127.0.0.1") as program:
        push(program.host, "team/mpi", "1", mpi_image())
        if not lacking:
            push(program.host, "team/openmpi", "1", openmpi_image())
        registries = [{"name": "images.example", "url": f"http://{program.host}"}]
        admin.patch(CONFIGS, "lattice", {"spec": {"software": {"registries": registries}}})
        yield
        admin.patch(CONFIGS, "lattice", {"spec": {"software": None}})


@pytest.fixture(scope="module")
def here(control_plane: Instance) -> Iterator[Path]:
    """A directory of alice's, which containers show at its own path."""
    folder = control_plane.where.user_home("alice") / "in-images"
    folder.mkdir()
    user = control_plane.user("alice")
    shutil.chown(folder, user.uid, user.uid)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def _nothing_is_left(control_plane: Instance) -> Iterator[None]:
    yield
    until(lambda: not traces(control_plane), within=20, what="no container is left")


def within(me: Person, here: Path, script: str, *, code: int = 0, directives: str = DIRECTIVE) -> list[str]:
    """The lines of a script in the image on four nodes."""
    return ran(me, here, script, nodes=4, code=code, interpreter="/bin/sh", directives=directives)


def said(out: Path) -> list[str]:
    """The lines of a file of output, in the order of the alphabet, without those of `srun` itself."""
    return sorted(line for line in out.read_text().splitlines() if not line.startswith("srun: "))


def test_an_mpi_program_in_an_image_meets_by_srun_and_by_its_own_mpiexec_on_four_nodes(me: Person, here: Path) -> None:
    script = "srun -n 4 ring\nsrun -N 4 -n 8 -O -m cyclic /mpi/ring\nmpiexec -n 4 ring\nsrun -N 4 sh -c 'test -e /usr/bin/python3 || echo only the image'"
    assert within(me, here, script) == sorted([*rings(4) * 2, *rings(8), *["only the image"] * 4])


@openmpi
@pytest.mark.parametrize("version", OPENMPI)
def test_openmpi_in_an_image_meets_by_srun_and_a_rank_that_fails_ends_its_launch(me: Person, here: Path, version: str) -> None:
    ring = OPENMPI[version]
    script = (
        f"srun -n 4 {ring}\nsrun -N 4 -n 8 -O -m cyclic {ring}\nsrun -n 4 {ring} abort 2; echo aborted $?\n"
        f"srun -n 4 {ring} kill 3; echo killed $?\ntest -e /usr/bin/python3 || echo only the image"
    )
    lines = within(me, here, script, directives=OPENMPI_DIRECTIVE)
    assert [line for line in lines if line.startswith("rank ")] == sorted([*rings(4), *rings(8)]), lines
    assert any("rank 2 on nid" in line and "called abort with exit code 13" in line for line in lines), lines
    assert any("rank 3 on nid" in line and "was ended by signal 9 after init and before finalize" in line for line in lines), lines
    assert {"only the image", "killed 137"} <= set(lines), lines


@openmpi
def test_openmpi_as_the_entrypoint_in_an_image_and_in_a_uenv(me: Person, here: Path) -> None:
    environment = {"image": "images.example/team/openmpi:1", "output": {"stdout": f"{here}/openmpi"}}
    me.apply("openmpi", nodes=4, entrypoint="ring4", tasks={"total": 8, "perNode": 2, "mpi": "Pmix"}, environment=environment)
    status = me.ended("openmpi", within=120)
    assert (status["phase"], said(here / "openmpi")) == ("Completed", rings(8)), status
    tree, file, place = here / "tree", here / "openmpi.squashfs", "/user-environment"
    shutil.copytree(programs.openmpi5(), tree / "openmpi5", symlinks=True)
    shutil.copy(programs.openmpi4_ring(), tree / "ring4")
    subprocess.run(
        ["mksquashfs", str(tree), str(file), "-noD", "-noI", "-noF", "-noappend", "-quiet"], check=True, stdout=subprocess.DEVNULL
    )
    shutil.rmtree(tree)
    file.chmod(0o644)
    command = f"env LD_LIBRARY_PATH={place}/openmpi5/lib {place}/ring4"
    script = f"srun -n 4 {command}\nPATH={place}/openmpi5/bin:$PATH LD_LIBRARY_PATH={place}/openmpi5/lib mpirun -n 4 {place}/ring4"
    lines = ran(me, here, script, nodes=4, directives=f"#SBATCH --uenv={file}:{place}")
    assert [line for line in lines if "Warning: setpgid" not in line] == sorted(rings(4) * 2)


def test_exit_codes_and_ended_ranks_in_an_image_are_those_of_bare_work(me: Person, here: Path) -> None:
    script = (
        "srun -n 4 sh -c 'exit $((SLURM_PROCID + 2))'; echo code $?\nsrun -n 4 ring abort 2; echo aborted $?\n"
        "srun -n 4 ring kill 3; echo killed $?\nsrun -n 4 absent; echo absent $?\nsrun -n 4 ring"
    )
    lines = within(me, here, script)
    assert "code 5" in lines
    assert any("rank 2 on nid" in line and "called abort with exit code 13" in line for line in lines), lines
    assert any("rank 3 on nid" in line and "was ended by signal 9 after init and before finalize" in line for line in lines), lines
    assert "killed 137" in lines, lines
    assert "absent 127" in lines, lines
    assert set(rings(4)) <= set(lines)


def test_an_entrypoint_with_tasks_in_an_image_runs_on_all_nodes(me: Person, here: Path) -> None:
    environment = {"image": APP, "output": {"stdout": f"{here}/entry"}}
    me.apply("entry", nodes=4, entrypoint="ring", tasks={"total": 8, "perNode": 2}, environment=environment)
    status = me.ended("entry", within=90)
    assert (status["phase"], status["exit"]["code"], said(here / "entry")) == ("Completed", 0, rings(8)), status
    me.apply("aborts", nodes=4, entrypoint="ring abort 2", tasks={"total": 4}, environment={"image": APP})
    status = me.ended("aborts", within=90)
    assert (status["phase"], reason(status)) == ("Failed", "TaskFailed"), status


def test_killed_agents_cost_ranks_in_images_time_only_and_a_cancel_leaves_nothing(me: Person, here: Path, control_plane: Instance) -> None:
    environment = {"image": APP, "output": {"stdout": f"{here}/killed"}}
    go = here / "go"
    me.apply("killed", nodes=4, entrypoint=f"ring until {go}", tasks={"total": 4}, environment=environment)
    me.phase("killed", "Running", within=60)
    for node in control_plane.site().nodes:
        control_plane.kill(f"agent-{node}")
        control_plane.start(f"agent-{node}", wait=False)
    go.touch()
    status = me.ended("killed", within=90)
    assert (status["phase"], said(here / "killed")) == ("Completed", rings(4)), status
    me.apply("stays", nodes=4, entrypoint="sleep 4325", tasks={"total": 4}, environment={"image": APP})
    until(lambda: len(processes_of(control_plane, "sleep 4325")) == 4, within=60, what="the tasks")
    me.lattice("cancel", "stays")
    assert me.ended("stays", within=60)["phase"] == "Cancelled"
    until(lambda: not processes_of(control_plane, "sleep 4325"), within=60, what="their end")


def test_an_mpi_program_in_a_uenv_meets_on_four_nodes(me: Person, here: Path) -> None:
    tree = here / "tree"
    shutil.copytree(programs.BUILD / "lib", tree / "lib", symlinks=True)
    for path in (programs.ring(), programs.mpiexec(), programs.BUILD / "hydra_pmi_proxy"):
        shutil.copy(path, tree)
    file = here / "mpi.squashfs"
    subprocess.run(
        ["mksquashfs", str(tree), str(file), "-noD", "-noI", "-noF", "-noappend", "-quiet"], check=True, stdout=subprocess.DEVNULL
    )
    shutil.rmtree(tree)
    file.chmod(0o644)
    place = "/user-environment"
    script = f"srun -n 4 {place}/ring; {place}/mpiexec -n 4 {place}/ring; {place}/ring | head -c 6"
    lines = ran(me, here, script, nodes=4, directives=f"#SBATCH --uenv={file}:{place}")
    assert lines == sorted([*rings(4) * 2, "rank 0"])
    out = here / "in-uenv"
    environment = {"uenv": f"{file}:{place}", "output": {"stdout": str(out)}}
    me.apply("in-uenv", nodes=4, entrypoint=f"{place}/ring", tasks={"total": 4}, environment=environment)
    assert (me.ended("in-uenv", within=60)["phase"], said(out)) == ("Completed", rings(4))
