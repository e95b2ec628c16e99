"""Each file of `examples/` does what its first line says, applied as alice; the demonstration ends with 0."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lattice_dev.demo import EXAMPLES
from lattice_dev.instance import Instance
from tests.e2e.people import Person, person, reason

FOLDER = Path(__file__).resolve().parents[2] / "examples"
SUBMITTED = ("06-batch-script.sh", "07-book-form.yaml")
"""Those that `lattice submit` takes; the others are applied with kubectl."""
BY_ADMINISTRATORS = ("08-quota-tree.yaml", "09-koordinator.yaml")
"""Tried by `test_quota_objects.py`."""
WITH_AN_IMAGE = ("10-own-software.yaml", "11-container.yaml")
"""Tried by `test_uenv.py` and `test_containers.py`, which make the image first."""


@pytest.fixture(scope="module")
def me(control_plane: Instance) -> Person:
    """alice, in the tenant of the examples."""
    return person(control_plane, "alice", "physics")


def test_every_example_is_tried_here() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {
        *SUBMITTED,
        *BY_ADMINISTRATORS,
        *WITH_AN_IMAGE,
        *(example.file for example in EXAMPLES),
    }


def test_the_demonstration_applies_the_first_examples_and_follows_them_to_their_ends(control_plane: Instance, me: Person) -> None:
    argv = [str(Path(sys.executable).with_name("lattice-dev")), "demo", "--name", control_plane.where.name]
    for _ in range(2):
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
    for example in EXAMPLES:
        name = yaml.safe_load((FOLDER / example.file).read_text())["metadata"]["name"]
        status = me.get(name)["status"]
        assert (status["phase"], reason(status)) == (example.phase, example.reason), status
        assert example.code is None or status["exit"]["code"] == example.code


def test_the_batch_script_runs_unmodified(control_plane: Instance, me: Person) -> None:
    home = control_plane.where.user_home("alice")
    done = me.lattice("submit", "--wait", "--parsable", f"--chdir={home}", str(FOLDER / SUBMITTED[0]))
    number = done.stdout.strip()
    written = home / f"batch-{number}.out"
    uid = yaml.safe_load(me.lattice("status", number, "-o", "yaml").stdout)["metadata"]["uid"]
    assert written.read_text().startswith(f"allocation {uid} on nid")
    assert written.read_text().endswith(", 8 tasks\n")
    written.unlink()


def test_the_books_form_is_taken(me: Person) -> None:
    number = me.lattice("submit", "--wait", "--parsable", "-f", str(FOLDER / SUBMITTED[1])).stdout.strip()
    assert {line.rpartition(" ")[2] for line in me.lattice("logs", number).stdout.splitlines()} == {"0", "1"}
    shown = yaml.safe_load(me.lattice("status", number, "-o", "yaml").stdout)
    assert (shown["spec"]["lifecycle"]["preemptionClass"], shown["status"]["nodeCount"]) == (4, 2)
