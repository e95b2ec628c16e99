"""An attempt is over on a node only when no rank of its launches is left there: cancel and walltime, on nodes with and without tasks."""

from __future__ import annotations

import os
import subprocess

import pytest

from lattice_dev.instance import Instance
from tests.e2e.people import Person
from tests.e2e.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="launches need cgroups, which need root")]

RANK = "trap 'echo term; exit 0' TERM; sleep {seconds} & wait"


def launched(me: Person, control_plane: Instance, name: str, seconds: int, *words: str) -> str:
    """Submits a script whose launch has a rank on each of two nodes, which say when TERM reaches them; returns the allocation's number."""
    file = control_plane.where.user_home("alice") / name
    rank = RANK.format(seconds=seconds)
    script = f'#!/bin/bash\nsrun -N 2 -n 2 bash -c "exec >> {file}-\\$SLURM_PROCID; {rank}" &\nsleep {seconds}\n'
    number = me.lattice("submit", "--parsable", "--nodes=2", *words, "-", stdin=script).stdout.strip()
    until(lambda: count(seconds) >= 3, within=60, what="script and ranks")
    return number


def count(seconds: int) -> int:
    """How many sleeps of this length run."""
    done = subprocess.run(["pgrep", "-fc", f"^sleep {seconds}$"], capture_output=True, text=True, check=False)
    return int(done.stdout)


@pytest.mark.parametrize("how", ["cancel", "walltime"])
def test_ranks_end_on_every_node_with_their_allocation_and_term_comes_first(me: Person, control_plane: Instance, how: str) -> None:
    seconds = {"cancel": 4321, "walltime": 4322}[how]
    number = launched(me, control_plane, f"ends-{how}", seconds, *(["--time=0:08"] if how == "walltime" else []))
    if how == "cancel":
        me.lattice("cancel", number)
    me.lattice("wait", number, ok=False)
    until(lambda: count(seconds) == 0, within=60, what="the end of the ranks")
    home = control_plane.where.user_home("alice")
    said = [home / f"ends-{how}-{rank}" for rank in (0, 1)]
    # An agent that is started again sends TERM again, and a node may hear of the end from its agent and from the launch at once.
    assert [set(file.read_text().splitlines()) for file in said] == [{"term"}] * 2
    for file in said:
        file.unlink()
