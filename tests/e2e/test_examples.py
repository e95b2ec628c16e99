"""Each file of `examples/` does what its first line says, applied as alice; the demonstration ends with 0."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lattice_dev.demo import EXAMPLES
from lattice_dev.instance import Instance
from tests.e2e.people import Person, person, reason
from tests.e2e.waiting import patient

FOLDER = Path(__file__).resolve().parents[2] / "examples"
SUBMITTED = ("06-batch-script.sh", "07-book-form.yaml")
"""Those that `lattice submit` takes; the others are applied with kubectl."""
BY_ADMINISTRATORS = ("08-quota-tree.yaml", "09-koordinator.yaml")
"""Tried by `test_quota_objects.py`."""
WITH_AN_IMAGE = ("10-own-software.yaml", "11-container.yaml")
"""Tried by `test_uenv.py` and `test_containers.py`, which make the image first."""
LAUNCHED = "13-mpi-entrypoint.yaml"

IN_TURN = "12-dependencies.yaml"
GRAPH = "14-dag.yaml"


@pytest.fixture(scope="module")
def me(control_plane: Instance) -> Person:
    """alice, in the tenant of the examples."""
    return person(control_plane, "alice", "physics")


def test_every_example_is_tried_here() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {
        *SUBMITTED,
        *BY_ADMINISTRATORS,
        *WITH_AN_IMAGE,
        IN_TURN,
        LAUNCHED,
        GRAPH,
        *(example.file for example in EXAMPLES),
    }


def test_the_demonstration_applies_the_first_examples_and_follows_them_to_their_ends(control_plane: Instance, me: Person) -> None:
    argv = [str(Path(sys.executable).with_name("lattice-dev")), "demo", "--name", control_plane.where.name]
    for _ in range(2):
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=patient(60))
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


def test_the_second_work_waits_for_the_first(me: Person) -> None:
    me.kubectl("apply", "-f", str(FOLDER / EXAMPLES[0].file))
    me.kubectl("apply", "-f", str(FOLDER / IN_TURN))
    first, then = me.ended("first"), me.ended("analyse")
    assert (first["phase"], then["phase"]) == ("Completed", "Completed")
    assert first["endTime"] <= then["endTime"]


def test_the_graph_completes_and_skips_what_no_failure_needs(me: Person) -> None:
    done = me.lattice("dag", "submit", "--wait", str(FOLDER / GRAPH))
    assert "Submitted DAG pipeline with 4 allocations" in done.stdout
    assert "notify-failure [Cancelled]" in me.lattice("dag", "status", "pipeline", "--graph").stdout


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="launches need cgroups, which need root")
def test_the_tasks_of_an_entrypoint_are_started_without_a_launcher(me: Person) -> None:
    me.kubectl("apply", "-f", str(FOLDER / LAUNCHED))
    assert me.ended("mpi-entrypoint", within=60)["phase"] == "Completed"
    said = [line.split(" on ")[0] for line in me.lattice("logs", "mpi-entrypoint").stdout.splitlines()]
    assert sorted(said) == [f"rank {rank} of 4" for rank in range(4)]
