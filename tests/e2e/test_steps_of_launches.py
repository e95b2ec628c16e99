"""The launches of an allocation as people see them through the running daemons: the step log, its totals, and the end of one launch."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import pytest

from lattice_dev.instance import Instance
from tests.e2e.people import Person, person
from tests.e2e.test_agent_metrics import values
from tests.e2e.waiting import until

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="launches need cgroups, which need root")]


def submitted(me: Person, script: str, *words: str, code: int | None = 0) -> str:
    """Submits a script and returns its number; waits for its end with this exit code, None: not."""
    wait = () if code is None else ("--wait",)
    done = me.lattice("submit", "--parsable", *wait, *words, "-", stdin=f"#!/bin/bash\n{script}\n", ok=False)
    assert code is None or done.returncode == code, f"{done.returncode}: {done.stderr}"
    return done.stdout.split()[0].partition(";")[0]


def steps(me: Person, number: str, *words: str) -> dict[str, Any]:
    """The document of an allocation's launches."""
    return json.loads(me.lattice("history", number, "--steps", "-o", "json", *words).stdout)  # type: ignore[no-any-return]


def test_each_launch_has_a_row_and_the_status_has_the_totals(me: Person) -> None:
    number = submitted(me, "srun hostname\nsrun sh -c 'exit 7'\nsrun sh -c 'kill -9 $$'\nsrun -N 2 -n 2 true\ntrue", "--nodes=2")
    found = steps(me, number)
    assert [(row["step"], row["state"]) for row in found["rows"]] == [
        (f"{number}.0", "Completed"), (f"{number}.1", "Failed"), (f"{number}.2", "Failed"), (f"{number}.3", "Completed"),
    ]  # fmt: skip
    assert [row.get("code", 0) for row in found["rows"]] == [0, 7, 137, 0]
    assert found["rows"][3]["nodeCount"] == 2
    launches = found["attempts"][0]["launches"]
    assert (launches["total"], launches["completed"], launches["failed"]) == (4, 2, 2)
    assert [one["step"] for one in launches["failures"]] == [f"{number}.2", f"{number}.1"]
    shown = me.lattice("status", number).stdout
    assert "4 launches: 2 completed, 2 failed" in shown
    table = me.lattice("status", number, "--steps").stdout
    assert re.search(rf"{number}\.1 .*Failed +7:0", table), table
    assert re.search(rf"{number}\.2 .*Failed +0:9", table), table
    assert [row["step"] for row in steps(me, f"{number}.1")["rows"]] == [f"{number}.1"]


def test_one_launch_is_cancelled_and_its_allocation_goes_on(me: Person, control_plane: Instance) -> None:
    number = submitted(me, "srun --overlap sleep 4321\nsrun true\n", code=None)

    def running() -> bool:
        """Whether the launch runs."""
        done = me.lattice("history", number, "--steps", "-o", "json", ok=False)
        return done.returncode == 0 and [row["state"] for row in json.loads(done.stdout)["rows"]] == ["Running"]

    until(running, within=30, what="the launch")
    stranger = person(control_plane, "bob", me.namespace)
    assert stranger.lattice("cancel", f"{number}.0", ok=False).returncode != 0
    unknown = me.lattice("cancel", f"{number}.9", ok=False)
    assert unknown.returncode != 0
    assert "no launch 9" in unknown.stderr
    said = me.lattice("cancel", f"{number}.0", "--reason=enough").stdout
    assert f"launch {number}.0" in said
    me.lattice("wait", number, ok=False)
    first, second = steps(me, number)["rows"]
    assert (first["state"], second["state"]) == ("Cancelled", "Completed")
    assert first["reason"] == "cancelled by alice: enough"
    again = me.lattice("cancel", f"{number}.0")
    assert "has ended already: Cancelled" in again.stdout + again.stderr


def test_a_launch_that_its_script_leaves_behind_ends_as_cancelled(me: Person) -> None:
    begun = "begun=$HOME/launch-left\nrm -f $begun"
    wait = "until [ -e $begun ]; do sleep 0.1; done\nrm $begun"
    number = submitted(me, f'{begun}\nsrun sh -c "touch $begun; exec sleep 4322" &\n{wait}\nexit 0')
    (row,) = steps(me, number)["rows"]
    assert row["state"] == "Cancelled"


def test_launches_are_counted_in_the_metrics_of_their_head(me: Person, control_plane: Instance) -> None:
    node = control_plane.site().nodes[0]

    def counted(result: str) -> float:
        """How many launches have had this result there."""
        found = values(control_plane, node)
        return found.get(("lattice_agent_launches_total", result), 0.0)

    before = counted("Completed"), counted("Failed")
    submitted(me, "srun true\nsrun false\ntrue", f"--nodelist={node}")
    assert (counted("Completed") - before[0], counted("Failed") - before[1]) == (1, 1)
