"""An entrypoint with a number of tasks is started by a launch: an MPI program needs no launcher, through the running daemons on four nodes."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lattice_dev.instance import Instance
from tests.e2e.mpi_scenes import installed, kill_agents, libpmi2, make_mpich, mpi4py, mpich, rings
from tests.e2e.people import Person, reason
from tests.e2e.waiting import Seen, until
from tests.e2e.work import Gate, processes_of
from tests.mpi import programs

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="launches need cgroups, which need root")]


@pytest.fixture(scope="module")
def here(control_plane: Instance) -> Iterator[Path]:
    """A folder of alice's on every node, with the programs."""
    with installed(control_plane, "entrypoints", make_mpich) as folder:
        yield folder


def started(me: Person, here: Path, name: str, entrypoint: str, nodes: int = 4, **tasks: Any) -> Path:
    """Applies an Allocation of this entrypoint with these tasks; returns the file of its output."""
    out = here / name
    environment = {"workdir": str(here), "output": {"stdout": str(out)}}
    me.apply(name, nodes=nodes, entrypoint=entrypoint, tasks=tasks, environment=environment)
    return out


def said(out: Path) -> list[str]:
    """The lines of an output, in order, but for what srun says of cores that tasks share."""
    lines = out.read_text().splitlines() if out.exists() else []
    return sorted(line for line in lines if not (line.startswith("srun: ") and "they are not bound" in line))


def finished(status: dict[str, Any]) -> tuple[str, str]:
    """Reason and sentence of an end."""
    return reason(status), next(str(one["message"]) for one in status["conditions"] if one["type"] == "Finished")


@mpich
@pytest.mark.parametrize("layout", ["Block", "Cyclic"])
def test_an_mpi_program_as_the_entrypoint_needs_no_launcher(me: Person, here: Path, layout: str) -> None:
    name = f"ring-{layout.lower()}"
    out = started(me, here, name, "./ring", total=8, perNode=2, layout=layout)
    status = me.ended(name, within=60)
    assert (status["phase"], status["exit"]["code"], status["launches"]["completed"]) == ("Completed", 0, 1), (status, said(out))
    assert [line for line in said(out) if not line.startswith("srun: ")] == rings(8)


@mpi4py
def test_mpi4py_needs_no_launcher_either(me: Person, here: Path) -> None:
    out = started(me, here, "mpi4py", " ".join(programs.mpi4py()).replace("HERE", str(here)), total=4)
    status = me.ended("mpi4py", within=60)
    assert (status["phase"], said(out)) == ("Completed", rings(4)), status


@libpmi2
def test_libpmi2_needs_no_launcher_either(me: Person, here: Path) -> None:
    out = started(me, here, "every-call", "./every_call", total=8, perNode=2)
    status = me.ended("every-call", within=60)
    assert status["phase"] == "Completed", (status, said(out))
    assert [line for line in said(out) if line.startswith("rank ") and "asks" not in line] == [
        f"rank {rank} of 8: right" for rank in range(8)
    ]


def test_exactly_so_many_tasks_run_and_each_knows_its_place(me: Person, here: Path) -> None:
    script = "echo $SLURM_PROCID $LATTICE_PROCID of $SLURM_NTASKS $LATTICE_NPROCS $PMI_SIZE on $LATTICE_NODE_RANK in $LATTICE_LAUNCH_ID"
    out = started(me, here, "ten", f"sh -c '{script}'", nodes=3, total=10, perNode=4)
    number = me.ended("ten", within=60)["number"]
    places = [0, 0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert said(out) == sorted(f"{rank} {rank} of 10 10 10 on {places[rank]} in {number}.0" for rank in range(10))


def test_submit_starts_so_many_tasks_of_a_command_and_a_script_once(me: Person, here: Path) -> None:
    done = me.lattice(
        "submit", "--wait", "-q", "--ntasks=3", "--nodes=3", f"--stdout={here}/by-submit", "--", "sh", "-c", "echo $PMI_RANK of $PMI_SIZE"
    )
    assert (done.returncode, said(here / "by-submit")) == (0, ["0 of 3", "1 of 3", "2 of 3"])
    script = f"#!/bin/bash\n#SBATCH --nodes=3 --ntasks=3 --output={here}/by-script\necho once\nsrun sh -c 'echo $PMI_RANK of $PMI_SIZE'\n"
    me.lattice("submit", "--wait", "-q", "-", stdin=script)
    assert said(here / "by-script") == ["0 of 3", "1 of 3", "2 of 3", "once"]


def test_the_fields_are_the_defaults_of_srun_in_scripts_and_on_the_head_node(me: Person, here: Path) -> None:
    tasks = {"total": 4, "perNode": 2, "layout": "Cyclic", "mpi": "None"}
    script = "#!/bin/sh\necho once\nsrun sh -c 'echo $SLURM_PROCID on $SLURM_NODEID ${PMI_RANK-none}'\n"
    me.apply("defaults", nodes=2, script=script, tasks=tasks, environment={"workdir": str(here), "output": {"stdout": f"{here}/defaults"}})
    started(me, here, "head", "sh -c 'echo once ${PMI_RANK-none}'", nodes=2, total=4, on="HeadNode")
    assert (me.ended("defaults")["phase"], me.ended("head")["phase"]) == ("Completed", "Completed")
    assert said(here / "defaults") == ["0 on 0 none", "1 on 1 none", "2 on 0 none", "3 on 1 none", "once"]
    assert said(here / "head") == ["once none"]


@mpich
def test_a_rank_that_aborts_is_named_and_ends_the_attempt_at_once(me: Person, here: Path) -> None:
    out = started(me, here, "aborts", "./ring abort 2", total=4)
    status = me.ended("aborts", within=60)
    why, message = finished(status)
    assert (status["phase"], why) == ("Failed", "TaskFailed"), (status, said(out))
    assert "rank 2 on nid" in message, message
    assert "called abort with exit code 13" in message
    assert status["exit"]["code"] > 0


@mpich
@pytest.mark.parametrize("words", ["exit 2", "kill 2"])
def test_a_rank_that_fails_ends_the_attempt_at_once_and_the_first_seen_is_named(me: Person, here: Path, words: str) -> None:
    name = words.replace(" ", "-")
    out = started(me, here, name, f"./ring {words}", total=4)
    status = me.ended(name, within=60)
    why, message = finished(status)
    assert (status["phase"], why) == ("Failed", "TaskFailed"), (status, said(out))
    assert re.match(r"rank [0-3] on nid.* (ended with exit code|was ended by signal) [0-9]+ after init and before finalize", message)
    assert status["exit"]["code"] > 0  # those to which it was connected may fail before it is seen to have ended


def test_the_exit_code_is_the_highest_and_a_signal_128_more(me: Person, here: Path) -> None:
    out = started(
        me, here, "highest", "sh -c 'test $SLURM_PROCID = 1 && exit 7; test $SLURM_PROCID = 2 && kill -11 $$; exit 3'", total=3, nodes=3
    )
    status = me.ended("highest", within=60)
    assert (status["exit"]["code"], finished(status)[0]) == (139, "TaskFailed"), (status, said(out))
    assert "task 2 was ended by signal 11" in finished(status)[1]


def test_what_does_not_start_is_the_attempt_s_reason_and_no_exit_code(me: Person, here: Path) -> None:
    started(me, here, "missing", "/nothing/there", total=4)
    started(me, here, "cpus", "true", total=4096, perNode=1024, bind="Cores")
    status = me.ended("missing", within=60)
    why, message = finished(status)
    assert (status["phase"], why, "exit" in status) == ("Failed", "StartFailed", False), status
    assert message.startswith("node nid")
    assert "/nothing/there" in message
    status = me.ended("cpus", within=60)
    why, message = finished(status)
    assert (why, "exit" in status, "4096 tasks of 1 CPU do not fit on 4 nodes: nid" in message) == ("StartFailed", False, True), status


def test_nodes_with_too_few_cpus_for_the_tasks_do_not_fit_and_why_says_so(me: Person) -> None:
    me.apply("wide", nodes=2, entrypoint="true", tasks={"total": 8, "perNode": 4, "cpus": 2000})
    answer = Seen(lambda: me.lattice("why", "wide").stdout, lambda text: "8000 CPUs" in text)
    text = until(answer, within=30, what="why")
    assert "no node has 8000 CPUs; the most on one node is " in text
    me.lattice("cancel", "wide")


def test_cancel_ends_every_task_on_every_node(me: Person, here: Path, control_plane: Instance) -> None:
    started(me, here, "stays", "sleep 4323", total=8, perNode=2)
    until(lambda: len(processes_of(control_plane, "sleep 4323")) == 8, within=60, what="the tasks")
    me.lattice("cancel", "stays")
    assert me.ended("stays", within=60)["phase"] == "Cancelled"
    until(lambda: not processes_of(control_plane, "sleep 4323"), within=60, what="the end of the tasks")


def test_what_cannot_be_is_refused_in_words(me: Person, here: Path) -> None:
    for tasks, words in (
        ({"total": 9, "perNode": 2}, "spec.tasks.total is 9, and 4 nodes with 2 each start 8"),
        ({"cpus": 2}, "spec.tasks.total"),
        ({"total": 4, "layout": "Round"}, "is no layout"),
    ):
        done = me.apply("refused", nodes=4, entrypoint="true", tasks=tasks, ok=False)
        assert (done.returncode, words in done.stderr) == (1, True), done.stderr
    assert here.is_dir()


@mpich
def test_killed_agents_cost_time_only(me: Person, here: Path, control_plane: Instance) -> None:
    out = started(me, here, "killed", "./ring until go", total=8, perNode=2)
    me.phase("killed", "Running", within=60)
    kill_agents(control_plane)
    (here / "go").touch()
    status = me.ended("killed", within=90)
    assert (status["phase"], status["exit"]["code"]) == ("Completed", 0), (status, said(out))
    assert [line for line in said(out) if not line.startswith("srun: ")] == rings(8)


def test_a_killed_keeper_invents_no_exit_code_once_the_other_tasks_have_ended(
    me: Person, here: Path, control_plane: Instance, gate: Gate
) -> None:
    started(me, here, "unkept", gate.command, total=2, nodes=2)
    until(lambda: len(processes_of(control_plane, f"sh -c {gate.wait}")) == 2, within=60, what="the tasks")
    rank, _ = processes_of(control_plane, f"sh -c {gate.wait}")
    os.kill(int(Path(f"/proc/{rank}/stat").read_text().rpartition(")")[2].split()[1]), signal.SIGKILL)
    gate.open()
    status = me.ended("unkept", within=90)
    assert (status["phase"], finished(status)[0], "exit" in status) == ("Failed", "ExitUnknown", False), status
    assert "was killed" in finished(status)[1]
    until(lambda: not processes_of(control_plane, f"sh -c {gate.wait}"), within=20, what="the end of the task that nobody keeps")
