"""Signals before the end of the walltime, through the daemons: to whom, when, once, and whatever becomes of the agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lattice.units import parse_time
from lattice_dev.instance import Instance
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person
from tests.e2e.waiting import Seen, until

TRAP = "#!/bin/sh\ntrap 'date +%s >> {log}' USR1\nwhile :; do sleep 0.1; done\n"


@pytest.fixture(scope="module")
def me(control_plane: Instance, shared_tenant: Room) -> Person:
    """alice, in a tenant of this file."""
    return person(control_plane, "alice", shared_tenant.namespace)


@pytest.fixture
def log(control_plane: Instance, request: pytest.FixtureRequest) -> Path:
    """A file in which the work says what it got."""
    found = control_plane.where.user_home("alice") / f"{request.node.name}.log"
    found.unlink(missing_ok=True)
    return found


def early(before: str, to: str = "Script") -> dict[str, Any]:
    return {"signal": {"name": "USR1", "before": before, "to": to}}


def got(log: Path, count: int, within: float = 40) -> list[int]:
    """The times at which the work got its signals, once there are so many."""
    seen = Seen(lambda: log.read_text().split() if log.exists() else [], lambda lines: len(lines) >= count)
    return [int(line) for line in until(seen, within=within, what=f"{count} signals in {log.name}")]


def test_a_script_gets_its_signal_so_long_before_its_walltime_once_and_its_children_do_not(me: Person, log: Path) -> None:
    work = TRAP.format(log=log).replace("while", f"( trap 'echo child >> {log}' USR1; while :; do sleep 0.1; done ) &\nwhile", 1)
    me.apply("script", script=work, walltime="14s", lifecycle=early("8s"))
    status = me.ended("script", within=60)
    (at,) = got(log, 1)
    assert 5 <= at - parse_time(status["startTime"]) <= 9
    assert status["conditions"], status


def test_an_entrypoint_gets_it_on_every_node(me: Person, log: Path) -> None:
    work = f"python3 -c \"import signal, time; signal.signal(signal.SIGUSR1, lambda *_: open('{log}', 'a').write('1\\n')); time.sleep(60)\""
    me.apply("both", entrypoint=work, nodes=2, walltime="12s", lifecycle=early("6s", "Tasks"))
    me.ended("both", within=60)
    assert got(log, 2) == [1, 1]


def test_a_longer_walltime_moves_it_and_an_agent_that_was_killed_neither_loses_nor_repeats_it(
    me: Person, log: Path, control_plane: Instance
) -> None:
    me.apply("moved", script=TRAP.format(log=log), walltime="30s", lifecycle=early("20s"))
    status = me.phase("moved", "Running")
    me.lattice("update", "moved", "--walltime=25s")
    node = status["head"]
    control_plane.kill(f"agent-{node}")
    control_plane.start(f"agent-{node}")
    first = got(log, 1)
    control_plane.kill(f"agent-{node}")
    control_plane.start(f"agent-{node}")
    assert me.ended("moved", within=90)["phase"] in ("Failed", "Cancelled")
    assert got(log, 1) == first


def test_slurms_scripts_ask_for_it(me: Person, log: Path, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(TRAP.format(log=log).replace("#!/bin/sh\n", "#!/bin/sh\n#SBATCH -t 1 --signal=B:USR1@55\n", 1))
    number = me.lattice("submit", "--parsable", "--chdir=/tmp", "--stdout=", str(script)).stdout.strip()
    assert len(got(log, 1)) == 1
    me.lattice("cancel", number)


def test_without_b_the_tasks_of_launches_get_it_and_neither_the_script_nor_its_srun(me: Person, log: Path, control_plane: Instance) -> None:
    task = control_plane.where.user_home("alice") / "signalled_task.py"
    task.write_text(
        "import signal, sys, time\n"
        f"def note(*_):\n    open('{log}', 'a').write('1 ')\n    sys.exit(0)\n"
        "signal.signal(signal.SIGUSR1, note)\ntime.sleep(60)\n"
    )
    task.chmod(0o644)
    me.apply("ranks", script=f"#!/bin/sh\nsrun -n 2 python3 {task} && exit 7\n", walltime="60s", lifecycle=early("50s", "Tasks"))
    status = me.ended("ranks", within=90)
    assert (got(log, 2), status["exit"]["code"]) == ([1, 1], 7)
