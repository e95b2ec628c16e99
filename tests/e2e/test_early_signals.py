"""Signals before the end of the walltime, through the daemons: to whom, when, once, and whatever becomes of the agent.

A signal is due an hour before the end; work says when it can take it, and only then is its walltime cut down to little more than that hour.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lattice.units import parse_time
from lattice_dev.instance import Instance
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person
from tests.e2e.waiting import Seen, until

TRAP = "#!/bin/sh\ntrap 'date +%s >> {log}' USR1\necho up >> {log}.up\nwhile :; do sleep 0.1; done\n"
LONG, HOUR = "2h", 3600


@pytest.fixture(scope="module")
def me(control_plane: Instance, shared_tenant: Room) -> Person:
    """alice, in a tenant of this file."""
    return person(control_plane, "alice", shared_tenant.namespace)


@pytest.fixture
def log(control_plane: Instance, request: pytest.FixtureRequest) -> Path:
    """A file in which the work says what it got; beside it stands one in which it says that it listens."""
    found = control_plane.where.user_home("alice") / f"{request.node.name}.log"
    for path in (found, ups(found)):
        path.unlink(missing_ok=True)
    return found


def ups(log: Path) -> Path:
    return log.with_name(f"{log.name}.up")


def early(to: str = "Script") -> dict[str, Any]:
    return {"signal": {"name": "USR1", "before": "1h", "to": to}}


def lines(path: Path, count: int) -> list[str]:
    """The lines of a file, once there are so many."""
    seen = Seen(lambda: path.read_text().split() if path.exists() else [], lambda found: len(found) >= count)
    return list(until(seen, within=40, what=f"{count} lines in {path.name}"))


def got(log: Path, count: int) -> list[int]:
    """The times at which the work got its signals, once there are so many."""
    return [int(line) for line in lines(log, count)]


def due_in(me: Person, name: str, seconds: int) -> None:
    """Has the signal come so many seconds after the start, which may be over."""
    me.lattice("update", name, f"--walltime={HOUR + seconds}s")


def cancelled(me: Person, name: str) -> None:
    """Ends the work: the agent has taken more orders since the signal, and whatever else it would send has come."""
    me.lattice("cancel", name)
    assert me.ended(name, within=60)["phase"] == "Cancelled"


def test_a_script_gets_its_signal_so_long_before_its_walltime_once_and_its_children_do_not(me: Person, log: Path) -> None:
    child = f"( trap 'echo child >> {log}' USR1; echo up >> {log}.up; while :; do sleep 0.1; done ) &\necho up"
    me.apply("script", script=TRAP.format(log=log).replace("echo up", child, 1), walltime=LONG, lifecycle=early())
    status = me.phase("script", "Running")
    lines(ups(log), 2)
    due_in(me, "script", 7)
    (at,) = got(log, 1)
    assert at - parse_time(status["startTime"]) >= 6, "its seconds are whole ones"
    due_in(me, "script", 6)  # once more
    cancelled(me, "script")
    assert got(log, 1) == [at]


def test_an_entrypoint_gets_it_on_every_node(me: Person, log: Path) -> None:
    work = (
        f"import signal, time; signal.signal(signal.SIGUSR1, lambda *_: open('{log}', 'a').write('1\\n')); "
        f"open('{ups(log)}', 'a').write('up\\n'); time.sleep(4271)"
    )
    me.apply("both", entrypoint=f'python3 -c "{work}"', nodes=2, walltime=LONG, lifecycle=early("Tasks"))
    lines(ups(log), 2)
    due_in(me, "both", 1)
    got(log, 1)
    assert got(log, 2) == [1, 1]
    cancelled(me, "both")
    assert got(log, 2) == [1, 1]


def test_a_changed_walltime_moves_it_and_an_agent_that_was_killed_neither_loses_nor_repeats_it(
    me: Person, log: Path, control_plane: Instance
) -> None:
    me.apply("moved", script=TRAP.format(log=log), walltime=LONG, lifecycle=early())
    node = me.phase("moved", "Running")["head"]
    lines(ups(log), 1)
    due_in(me, "moved", 9)
    control_plane.kill(f"agent-{node}")
    control_plane.start(f"agent-{node}")
    first = got(log, 1)
    control_plane.kill(f"agent-{node}")
    control_plane.start(f"agent-{node}")
    due_in(me, "moved", 8)  # once more
    cancelled(me, "moved")
    assert got(log, 1) == first


def test_slurms_scripts_ask_for_it(me: Person, log: Path, tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text(TRAP.format(log=log).replace("#!/bin/sh\n", f"#!/bin/sh\n#SBATCH -t 120 --signal=B:USR1@{HOUR}\n", 1))
    number = me.lattice("submit", "--parsable", "--chdir=/tmp", "--stdout=", str(script)).stdout.strip()
    lines(ups(log), 1)
    due_in(me, number, 1)
    assert len(got(log, 1)) == 1
    me.lattice("cancel", number)


def test_without_b_the_tasks_of_launches_get_it_and_neither_the_script_nor_its_srun(me: Person, log: Path, control_plane: Instance) -> None:
    task = control_plane.where.user_home("alice") / "signalled_task.py"
    task.write_text(
        "import signal, sys, time\n"
        f"def note(*_):\n    open('{log}', 'a').write('1 ')\n    sys.exit(0)\n"
        f"signal.signal(signal.SIGUSR1, note)\nopen('{ups(log)}', 'a').write('up\\n')\ntime.sleep(4271)\n"
    )
    task.chmod(0o644)
    me.apply("ranks", script=f"#!/bin/sh\nsrun -n 2 python3 {task} && exit 7\n", walltime=LONG, lifecycle=early("Tasks"))
    lines(ups(log), 2)
    due_in(me, "ranks", 1)
    status = me.ended("ranks", within=90)
    assert (got(log, 2), status["exit"]["code"]) == ([1, 1], 7)
