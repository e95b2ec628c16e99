"""Unmodified batch scripts, submitted as alice: their output files are where Slurm would put them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lattice_dev.instance import Instance
from tests.e2e.people import Person, person

SCRIPTS = Path(__file__).parent / "scripts"


@dataclass(frozen=True)
class Case:
    """A script, its exit code, and its files: name (with `{j}` for the number) to what they must hold."""

    script: str
    files: dict[str, str]
    code: int = 0
    warns: tuple[str, ...] = field(default=())


CASES = (
    Case("01-minimal.sh", {"slurm-{j}.out": "minimal on nid00"}),
    Case("02-names.sh", {"names-{j}.log": "job names on 2 nodes"}),
    Case("03-short-options.sh", {"short.{j}.out": "out\n", "short.{j}.err": "err\n"}),
    Case("04-ntasks.sh", {"slurm-{j}.out": "tasks 8 on 2"}),
    Case("05-partition-account.sh", {"slurm-{j}.out": "queue hpc-batch, account physics"}),
    Case("06-chdir.sh", {"results/here.txt": "/results\n"}),
    Case("07-export-none.sh", {"export.out": "greeting=unset"}),
    Case("08-export-named.sh", {"named.out": "greeting=hello colour=blue"}),
    Case("09-warnings.sh", {"warned.out": "ran\n"}, warns=("--mem", "--mail-user")),
    Case("10-fails.sh", {"fails.err": "about to fail\n"}, code=42),
    Case(
        "11-another-site.sh",
        {"results/old of alice.out": "a step on nid00"},
        warns=("--wait-all-nodes",),
    ),
)


@pytest.fixture
def alice_at_home(control_plane: Instance) -> Iterator[tuple[Person, Path]]:
    """alice in the tenant physics, and a folder of hers that every node sees."""
    me = person(control_plane, "alice", "physics")
    user = control_plane.user("alice")
    folder = control_plane.where.user_home("alice") / "batch"
    folder.mkdir()
    (folder / "results").mkdir()
    for path in (folder, folder / "results"):
        shutil.chown(path, user.uid, user.uid)
    yield me, folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.script)
def test_an_unmodified_script_runs_and_its_files_are_where_slurm_would_put_them(alice_at_home: tuple[Person, Path], case: Case) -> None:
    me, folder = alice_at_home
    me.environ["GREETING"] = "hello"
    done = me.lattice("submit", "--wait", str(SCRIPTS / case.script), cwd=folder, ok=False)
    assert done.returncode == case.code, done.stdout + done.stderr
    number = next(word for word in done.stdout.split() if word.isdigit())
    for warned in case.warns:
        assert warned in done.stderr
    for name, holds in case.files.items():
        path = folder / name.format(j=number)
        assert path.is_file(), f"{path.name} is not there: {sorted(found.name for found in folder.rglob('*'))}"
        assert holds in path.read_text()
        assert path.stat().st_uid == folder.stat().st_uid
