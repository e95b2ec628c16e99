"""The `mpirun` of MPICH and of OpenMPI in batch scripts on four nodes: each finds them by itself, needs no ssh, and leaves nothing behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lattice_dev.instance import Instance
from tests.e2e.mpi_scenes import installed, make_mpich, make_openmpi, ran, rings
from tests.e2e.people import Person
from tests.e2e.waiting import until
from tests.mpi import programs

pytestmark = [
    pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="launches need cgroups, which need root"),
    pytest.mark.skipif(bool(programs.missing("mpich")), reason=programs.missing("mpich") or "-"),
]  # fmt: skip


lacking = programs.missing("openmpi4", "openmpi5", "mpi4py", "python")
openmpi = pytest.mark.skipif(bool(lacking), reason=lacking or "-")
OPENMPI = {
    "4.1": "alias mpirun=mpirun.openmpi; shopt -s expand_aliases",
    "5": "export PATH=$PWD/openmpi5/bin:$PATH LD_LIBRARY_PATH=$PWD/openmpi5/lib",
}
"""What a script begins with so that `mpirun` is that of an OpenMPI, by its version."""
UNSET = "unset ${!OMPI_MCA_*} ${!PRTE_MCA_*}"


@pytest.fixture(scope="module")
def here(control_plane: Instance) -> Iterator[Path]:
    """A folder of alice's on every node, with the programs."""
    with installed(control_plane, "mpirun", programs.ring, programs.mpiexec, make_mpich, *([] if lacking else [make_openmpi])) as folder:
        yield folder


def running(here: Path, *, inside: bool = False) -> list[str]:
    """The processes of programs in this folder: ranks, and the daemons that started them; `inside`: also those that stand in it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (process / "exe").readlink().is_relative_to(here) or (inside and (process / "cwd").readlink() == here):
                found.append(f"{process.name} {(process / 'cmdline').read_bytes()!r}")
    return found


def ranks(here: Path) -> list[str]:
    """Those of them that are ranks."""
    return [line for line in running(here) if "b'./ring" in line]


def test_mpiexec_runs_on_all_nodes_without_a_host_list(me: Person, here: Path) -> None:
    assert ran(me, here, "./mpiexec -n 4 ./ring", nodes=4) == rings(4)
    assert ran(me, here, "./mpiexec -n 4 hostname | sort -u | wc -l", nodes=4) == ["4"]
    assert ran(me, here, "./mpiexec ./ring", nodes=4) == rings(4), "as many as srun starts"


@pytest.mark.skipif(bool(programs.missing("mpi4py", "python")), reason=programs.missing("mpi4py", "python") or "-")
def test_mpiexec_starts_mpi4py_on_all_nodes(me: Person, here: Path) -> None:
    assert ran(me, here, f"./mpiexec -n 4 {' '.join(programs.mpi4py()).replace('HERE', str(here))}", nodes=4) == rings(4)


def test_launchers_variables_and_hosts_of_the_user_count(me: Person, here: Path) -> None:
    assert ran(me, here, "./mpiexec -launcher ssh -n 4 ./ring", nodes=4) == rings(4)
    assert ran(me, here, "./mpiexec -launcher slurm -n 4 ./ring", nodes=4) == rings(4)
    assert ran(me, here, "unset HYDRA_LAUNCHER HYDRA_LAUNCHER_EXEC HYDRA_RMK HYDRA_HOST_FILE\n./mpiexec -n 4 ./ring", nodes=4) == rings(4)
    assert ran(
        me, here, "set -- $(scontrol show hostnames 2>/dev/null || tr : ' ' < $HYDRA_HOST_FILE)\n./mpiexec -iface eth0 -n 4 ./ring", nodes=4
    ) == rings(4)
    assert ran(me, here, "HYDRA_IFACE=eth0 ./mpiexec -n 8 ./ring", nodes=4) == rings(8)


@pytest.mark.parametrize(("words", "codes"), [("abort 2", {13}), ("kill 2", {9, 137, 255})])
def test_a_rank_that_fails_ends_mpiexec_with_its_code(me: Person, here: Path, words: str, codes: set[int]) -> None:
    lines = ran(me, here, f"./mpiexec -n 4 ./ring {words}; echo code $?", nodes=4)
    (code,) = [int(line.split()[1]) for line in lines if line.startswith("code ")]
    assert code in codes, lines
    until(lambda: not running(here), within=10)


def test_the_launcher_is_called_as_ssh_is(me: Person, here: Path) -> None:
    script = r"""
        set -- $(cut -d: -f1 $HYDRA_HOST_FILE)
        lattice-mpi-launcher -x -o BatchMode=yes $2 'test "$(hostname)"' = $2 '&& echo' "'quoted  twice'"; echo code $?
        echo through | lattice-mpi-launcher -q $3 cat
        lattice-mpi-launcher $4 exit 7; echo code $?
        lattice-mpi-launcher nowhere true; echo code $?
        lattice-mpi-launcher -l root $2 id; echo code $?
    """
    lines = ran(me, here, script, nodes=4)
    assert "quoted  twice" in lines
    assert "through" in lines
    assert [line for line in lines if line.startswith("code")] == ["code 0", "code 1", "code 1", "code 7"], lines
    assert any("lattice-mpi-launcher: error: host 'nowhere' is no node of this allocation, which has" in line for line in lines), lines
    assert any("-l root: tasks run as the allocation's user" in line for line in lines), lines


@pytest.mark.parametrize("signal", ["KILL", "INT", "TERM"])
def test_mpiexec_that_is_killed_leaves_no_process_on_any_node(me: Person, here: Path, signal: str) -> None:
    out, witness = here / "out", here / "go"
    script = (
        f"#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --time=5\n#SBATCH --output={out}\ncd {here}\nset -m\n./mpiexec -n 4 ./ring sleep 4200 &\n"
        f"until [ -e go ]; do sleep 0.1; done\nkill -{signal} $!\nwait\nuntil [ -e end ]; do sleep 0.1; done\n"
    )
    number = me.lattice("submit", "--parsable", "-", stdin=script).stdout.strip()
    until(lambda: len(ranks(here)) == 4, within=60, what="the ranks")
    witness.touch()
    until(lambda: not running(here), within=45, what="the end of ranks and daemons")
    (here / "end").touch()
    me.lattice("wait", number, ok=False)
    for path in (witness, here / "end"):
        path.unlink()


def test_cancel_leaves_no_process_and_no_host_file(me: Person, here: Path, control_plane: Instance) -> None:
    script = f"#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --time=5\n#SBATCH --output=/dev/null\ncd {here}\n./mpiexec -n 4 ./ring sleep 4200\n"
    number = me.lattice("submit", "--parsable", "-", stdin=script).stdout.strip()
    until(lambda: len(ranks(here)) == 4, within=60, what="the ranks")
    me.lattice("cancel", number)
    until(lambda: not running(here), within=45, what="the end of ranks and daemons")
    me.lattice("wait", number, ok=False)
    nodes = [control_plane.where.node(node) for node in control_plane.site().nodes]
    until(lambda: not [path for node in nodes for path in (node / "state/launch/hosts").glob("*")], within=20, what="no host file")


def test_a_daemon_that_detaches_lasts_until_its_end_or_the_script_s(me: Person, here: Path) -> None:
    detached = "setsid sh -c 'sleep 2; touch detached' > /dev/null 2>&1 < /dev/null &"
    script = f"""
        set -- $(cut -d: -f1 $HYDRA_HOST_FILE)
        lattice-mpi-launcher $2 "cd {here}; {detached}"
        ls detached; rm detached
    """
    assert ran(me, here, script, nodes=4) == ["detached"]


@openmpi
@pytest.mark.parametrize("version", OPENMPI)
def test_mpirun_of_openmpi_runs_on_all_nodes_without_a_host_list(me: Person, here: Path, version: str) -> None:
    python = " ".join(programs.openmpi5_python()).replace("HERE", str(here))
    script = f"{OPENMPI[version]}\nmpirun -n 4 ./ring4\nmpirun ./ring4\nmpirun -n 4 hostname | sort -u | wc -l\nmpirun --oversubscribe -n 8 ./ring4"
    asked = [*rings(4) * 2, "4", *rings(8)]
    if version == "5":
        script, asked = f"{script}\nmpirun -n 4 {python}", [*asked, *rings(4)]
    assert [line for line in ran(me, here, script, nodes=4) if "Warning: setpgid" not in line] == sorted(asked), "a race of PRRTE's own"


@openmpi
@pytest.mark.parametrize("version", OPENMPI)
@pytest.mark.parametrize(
    "chosen", ["export OMPI_MCA_plm=slurm OMPI_MCA_ras=slurm PRTE_MCA_plm=slurm PRTE_MCA_ras=slurm", UNSET], ids=["set", "unset"]
)
def test_srun_serves_the_slurm_launcher_of_openmpi(me: Person, here: Path, version: str, chosen: str) -> None:
    script = f"{OPENMPI[version]}\n{chosen}\nmpirun -n 4 ./ring4\nmpirun -n 4 hostname | sort -u | wc -l\nlattice-mpi-launcher nowhere true 2> /dev/null"
    assert ran(me, here, script, nodes=4, code=1) == sorted([*rings(4), "4"])


@openmpi
@pytest.mark.parametrize("version", OPENMPI)
def test_a_rank_that_fails_ends_mpirun_of_openmpi_and_leaves_nothing(me: Person, here: Path, version: str) -> None:
    script = f"{OPENMPI[version]}\nfor how in abort kill exit; do mpirun -n 4 ./ring4 $how 2; echo $how $?; done"
    lines = ran(me, here, script, nodes=4)
    codes = dict(line.split() for line in lines if line.startswith(("abort ", "kill ", "exit ")))
    if codes.get("kill") == "14":  # of the ranks, one that found the connection to the dead one closed was quicker with its abort
        codes["kill"] = "137"
    assert codes == {"abort": "13", "kill": "137", "exit": "5"}, lines
    until(lambda: not running(here, inside=True), within=10, what="no process is left")


@openmpi
@pytest.mark.parametrize("version", OPENMPI)
def test_mpirun_of_openmpi_that_is_killed_leaves_no_process_on_any_node(me: Person, here: Path, version: str) -> None:
    script = (
        f"#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --time=5\n#SBATCH --output=out\ncd {here}\n{OPENMPI[version]}\nset -m\n"
        "mpirun -n 4 ./ring4 sleep 4200 &\nuntil [ -e go ]; do sleep 0.1; done\nkill -KILL %1\nwait\ncd /\nexec sleep 4300\n"
    )
    number = me.lattice("submit", "--parsable", f"--chdir={here}", "-", stdin=script).stdout.strip()
    until(lambda: len([line for line in running(here) if "b'./ring4" in line]) == 4, within=60, what="the ranks")
    (here / "go").touch()
    until(lambda: not running(here, inside=True), within=45, what="the end of ranks and daemons")
    me.lattice("cancel", number)
    me.lattice("wait", number, ok=False)
    (here / "go").unlink()
