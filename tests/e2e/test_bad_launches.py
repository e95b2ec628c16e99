"""Launches of scripts that do what they should not: thousands at once, readers that never read, full disks, what one node alone lacks."""

from __future__ import annotations

import glob
import os
import subprocess
from pathlib import Path

import pytest

from lattice_dev.instance import Instance
from tests.e2e.people import Person
from tests.e2e.test_launches import ran
from tests.e2e.waiting import until
from tests.e2e.work import Gate

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="launches need cgroups, which need root")]


def left(control_plane: Instance) -> list[str]:
    """Cgroups of launches and sockets of keepers that stand."""
    root = control_plane.where.scope_root()
    assert root is not None
    scopes = f"{root}/*/alloc-*.scope"
    patterns = (f"{scopes}/work/launch-*/", f"{scopes}/keep/*/", f"{control_plane.where.directory}/agents/*/run/*/keep-*")
    return [path for pattern in patterns for path in glob.glob(pattern)]  # noqa: PTH207 - pathlib's fails where a directory goes meanwhile


@pytest.mark.timeout(900)
def test_a_thousand_launches_at_once_and_again_all_run_once_and_leave_nothing(me: Person, control_plane: Instance) -> None:
    # Two thousand shells, clients and ranks at once would need all of the 1 GiB that work may have on these nodes.
    script = """
lines=$HOME/thousands; rm -f $lines
for begin in 1 1001; do
  for i in $(seq $begin $((begin + 999))); do { srun -Q --overlap sh -c "echo $i >> $lines"; echo $?; } & done
  wait
done 2> $lines.err | sort | uniq -c
sort $lines | uniq | wc -l; wc -l < $lines; sort $lines.err | uniq -c | head -5; rm $lines $lines.err
"""
    said = ran(me, control_plane, script)
    assert said.split() == ["2000", "0", "2000", "2000"], said
    until(lambda: not left(control_plane), within=60, what="nothing left of them")


def test_a_reader_that_never_reads_holds_only_its_own_launch(me: Person, control_plane: Instance, gate: Gate) -> None:
    script = f"""
srun --overlap sh -c 'touch {gate.path}.yes; exec yes' | sh -c '{gate.wait}' &
until [ -e {gate.path}.yes ]; do sleep 0.1; done; rm {gate.path}.yes
for i in 1 2 3; do srun --overlap echo beside || exit; done
touch {gate.path}; wait
pgrep -u $USER -x yes || echo gone
"""
    said = ran(me, control_plane, script)
    assert [line for line in said.splitlines() if not line.startswith("srun: ")] == ["beside"] * 3 + ["gone"], said
    until(lambda: not left(control_plane), within=60, what="nothing left of it")


@pytest.mark.parametrize("words", ["srun echo x > /dev/full", "srun -o /dev/full echo x", "srun -l -o /dev/full echo x"])
def test_a_full_disk_is_said_and_is_no_success_or_names_the_loss(me: Person, control_plane: Instance, words: str) -> None:
    said = ran(me, control_plane, f"{words}; echo code $?")
    assert "No space left on device" in said, said


@pytest.mark.parametrize(
    ("make", "launch", "word"),
    [
        ("cp /bin/true /tmp/here", "srun -N 2 -n 2 /tmp/here", "/tmp/here"),
        ("mkdir /tmp/there", "srun -N 2 -n 2 -D /tmp/there true", "/tmp/there"),
    ],
    ids=["program", "directory"],
)
def test_what_one_node_alone_lacks_is_said_with_its_name_and_no_rank_begins(
    me: Person, control_plane: Instance, make: str, launch: str, word: str
) -> None:
    said = ran(me, control_plane, f"{make}\n{launch}; echo code $?\nsrun -N 2 -n 2 true; echo code $?", "--nodes=2")
    lines = said.splitlines()
    (why,) = [line for line in lines if line.startswith("srun: error: ")]
    assert word in why, said
    assert any(f"node {node}" in why for node in control_plane.site().nodes), said
    assert [line for line in lines if line.startswith("code ")] == ["code 1", "code 0"], said
    until(lambda: not left(control_plane), within=60, what="nothing left of it")


def test_a_process_outside_of_work_starts_nothing_whoever_it_is(control_plane: Instance) -> None:
    user = control_plane.user("alice").uid
    node = control_plane.site().nodes[0]
    (program,) = Path(control_plane.where.node(node)).rglob("bin/srun")
    environ = {"PATH": os.environ["PATH"], "LATTICE_JOB_ID": "1", "SLURM_JOB_ID": "1"}
    for uid in (user, 0):
        done = subprocess.run([program, "true"], env=environ, user=uid, capture_output=True, text=True, timeout=300, check=False, cwd="/")
        assert done.returncode == 1, done
        assert done.stderr.startswith("srun: error: "), done
    assert left(control_plane) == []


def test_launches_that_end_by_themselves_are_logged_as_abandoned_by_nobody(me: Person, control_plane: Instance) -> None:
    before = abandoned(control_plane)
    ran(me, control_plane, "for i in 1 2 3; do srun true; done; srun -N 2 -n 2 true", "--nodes=2")
    assert abandoned(control_plane) == before


def abandoned(control_plane: Instance) -> int:
    """How many launches the agents have given up."""
    return sum(file.read_text(errors="replace").count("LaunchAbandoned") for file in control_plane.log_files())
