"""An attempt is over on a node only when no rank of its launches is left there: cancel and walltime, on nodes with and without tasks."""

from __future__ import annotations

import os

import pytest

from lattice_dev.instance import Instance
from tests.e2e.people import Person
from tests.e2e.waiting import until
from tests.e2e.work import processes_of

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="launches need cgroups, which need root")]

RANK = "trap 'echo term; exit 0' TERM; sleep {seconds} & wait"


def launched(me: Person, control_plane: Instance, name: str, seconds: int) -> str:
    """Submits a script whose launch has a rank on each of two nodes, which say when TERM reaches them; returns the allocation's number."""
    file = control_plane.where.user_home("alice") / name
    rank = RANK.format(seconds=seconds)
    script = f'#!/bin/bash\nsrun -N 2 -n 2 bash -c "exec >> {file}-\\$SLURM_PROCID; {rank}" &\nsleep {seconds}\n'
    number = me.lattice("submit", "--parsable", "--nodes=2", "-", stdin=script).stdout.strip()
    until(lambda: len(processes_of(control_plane, f"sleep {seconds}")) >= 3, within=60, what="script and ranks")
    return number


@pytest.mark.parametrize("how", ["cancel", "walltime"])
def test_ranks_end_on_every_node_with_their_allocation_and_term_comes_first(me: Person, control_plane: Instance, how: str) -> None:
    seconds = {"cancel": 4321, "walltime": 4322}[how]
    number = launched(me, control_plane, f"ends-{how}", seconds)
    me.lattice(*(("cancel", number) if how == "cancel" else ("update", number, "--walltime=1s")))
    me.lattice("wait", number, ok=False)
    until(lambda: not processes_of(control_plane, f"sleep {seconds}"), within=60, what="the end of the ranks")
    home = control_plane.where.user_home("alice")
    said = [home / f"ends-{how}-{rank}" for rank in (0, 1)]
    # An agent that is started again sends TERM again, and a node may hear of the end from its agent and from the launch at once.
    assert [set(file.read_text().splitlines()) for file in said] == [{"term"}] * 2
    for file in said:
        file.unlink()
