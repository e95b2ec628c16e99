"""Scripts with `srun` as people write them, under Lattice and under a real Slurm: same lines, same files, same exit codes."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lattice_dev import slurm
from lattice_dev.instance import Instance
from lattice_dev.waiting import HostClock
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person
from tests.e2e.waiting import patient
from tests.killed_runs import RUN

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="launches need cgroups, which need root")]
SCRIPTS = sorted((Path(__file__).parent / "scripts/srun").glob("*.sh"))
AT_ONCE = 4
"""Scripts that wait or run beside each other: most of their time is that of queues."""
Result = tuple[int, dict[str, list[str]]]


def run_all(run: Callable[[Path], Result]) -> dict[str, Result]:
    """By script, its exit code and files, several at a time."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return dict(zip((script.stem for script in SCRIPTS), pool.map(run, SCRIPTS), strict=True))


def read(folder: Path) -> dict[str, list[str]]:
    """The files of a script by their names, the lines of each in order of the alphabet."""
    return {str(path.relative_to(folder)): sorted(path.read_text().splitlines()) for path in folder.rglob("*") if path.is_file()}


def under_slurm() -> dict[str, Result]:
    """What each script does under real Slurm, in a folder of its own."""

    def run(script: Path) -> Result:
        folder = Path(os.path.realpath(os.path.join("/var/tmp", f"beside-{RUN}-{script.stem}")))  # noqa: PTH118
        folder.mkdir()
        try:
            command = ["sbatch", "--wait", f"--chdir={folder}", "--output=said", "--error=/dev/null", str(script)]
            done = subprocess.run(command, env=dict(cluster.environment), capture_output=True, timeout=patient(60), check=False)
            return done.returncode, read(folder)
        finally:
            shutil.rmtree(folder)

    with slurm.running(HostClock(), nodes=2, cpus=2) as cluster:
        return run_all(run)


def under_lattice(alice: Person, home: Path) -> dict[str, Result]:
    """What each script does as alice's allocation, in a folder of its own."""

    def run(script: Path) -> Result:
        folder = home / f"beside-{RUN}-{script.stem}"
        folder.mkdir()
        os.chown(folder, home.stat().st_uid, -1)
        try:
            done = alice.lattice(
                "submit", "--wait", "-q", f"--chdir={folder}", "--stdout=said", "--stderr=/dev/null", str(script), ok=False
            )
            print(script.stem, done.returncode, done.stderr)
            return done.returncode, read(folder)
        finally:
            shutil.rmtree(folder)

    return run_all(run)


@pytest.fixture(scope="module")
def results(control_plane: Instance, lab: Room) -> tuple[dict[str, Result], dict[str, Result]]:
    """What each script does under Slurm and under Lattice, which run beside each other: most of the time is that of queues."""
    if why := slurm.missing():
        pytest.skip(why)
    home, alice = control_plane.where.user_home("alice"), person(control_plane, "alice", lab.namespace)
    with ThreadPoolExecutor(2) as pool:
        slurms, ours = pool.submit(under_slurm), pool.submit(under_lattice, alice, home)
        return slurms.result(), ours.result()


@pytest.mark.parametrize("script", [script.stem for script in SCRIPTS])
def test_a_script_ends_as_under_slurm_with_the_same_files_and_lines(
    script: str, results: tuple[dict[str, Result], dict[str, Result]]
) -> None:
    under_slurms, under_ours = results
    assert under_ours[script] == under_slurms[script]
