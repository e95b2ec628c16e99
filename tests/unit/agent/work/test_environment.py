"""The work finds its login, its variables and its place, in this order of strength."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.scripts.commands import ALSO_SET, OURS
from lattice_agent.attempts import AskedTasks
from lattice_agent.work import environment
from lattice_agent.work.environment import Account, compose, effective, flaw, of_node, of_task, parse_environment_file, slurm_of_host
from tests.unit.agent.machine import UID, work

ALICE = Account("alice", 1000, 1000, (1000, 20), "/home/alice", "/bin/bash")


def test_the_environment_is_login_then_variables_then_lattice() -> None:
    found = compose(
        work(variables={"PATH": "/opt/bin", "A": "1", "LATTICE_JOB_ID": "0"}), ALICE, "LANG=C.UTF-8\nPATH=/usr/bin\n", workdir="/w"
    )
    assert found["HOME"] == "/home/alice"
    assert found["USER"] == found["LOGNAME"] == "alice"
    assert found["SHELL"] == "/bin/bash"
    assert found["LANG"] == "C.UTF-8"
    assert found["PATH"] == "/opt/bin"
    assert found["A"] == "1"
    assert found["LATTICE_JOB_ID"] == "7"
    assert found["LATTICE_SUBMIT_DIR"] == "/w"


def test_variables_of_secrets_are_weaker_than_those_of_the_work_and_of_lattice() -> None:
    ours = work(variables={"MODE": "plain"}, slurm_env=True)
    private = {"API_TOKEN": "t", "MODE": "secret", "LATTICE_TENANT": "x", "SLURM_JOB_ID": "9", "PATH": "/opt/bin"}
    assert effective(private, ours, workdir="/w") == {"API_TOKEN": "t", "PATH": "/opt/bin"}


def test_slurm_variables_come_only_when_the_site_says_so() -> None:
    assert not [name for name in of_node(work(), workdir="/") | of_task(work(), 0) if name.startswith("SLURM")]
    several = work(nodes=("n1", "n2"), node="n2", rank_of_node=1, tasks=2, first_rank=2, total_tasks=4, slurm_env=True)
    shared = of_node(several, workdir="/w")
    assert shared["SLURM_JOB_ID"] == shared["SLURM_JOBID"] == "7"
    assert shared["SLURM_NODELIST"] == shared["SLURM_JOB_NODELIST"] == "n[1-2]"
    assert (shared["SLURM_NNODES"], shared["SLURM_NTASKS"], shared["SLURM_NODEID"]) == ("2", "4", "1")
    assert shared["SLURM_TASKS_PER_NODE"] == "2(x2)"
    assert of_node(work(nodes=("n1", "n2"), slurm_env=True), workdir="/")["SLURM_TASKS_PER_NODE"] == "1(x2)"
    assert (shared["SLURM_JOB_PARTITION"], shared["SLURM_JOB_ACCOUNT"], shared["SLURMD_NODENAME"]) == ("batch", "physics", "n2")
    own = {"LATTICE_PROCID": "3", "LATTICE_LOCAL_RANK": "1", "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_GTIDS": "2,3"}
    assert of_task(several, 1) == own


def test_the_variables_of_slurms_that_submit_promises_are_those_that_are_set() -> None:
    asked = AskedTasks(per_node=8, cpus=4, gpus=1, layout="cyclic")
    made = work(slurm_env=True, asked=asked, node_cpus=(8, 8, 4), submit_host="login1", cluster_name="daint")
    found = made.variables | of_node(made, workdir="/") | of_task(made, 0) | slurm_of_host(made, ALICE, 8, 4)
    assert slurm_of_host(work(), ALICE, 8, 4) == {}
    assert {name for name in found if name.startswith("SLURM")} | {"SLURM_TASK_PID"} == OURS.keys() | ALSO_SET, "the last is the shim's"
    assert (found["SLURM_JOB_CPUS_PER_NODE"], found["SLURM_SUBMIT_HOST"], found["SLURM_CLUSTER_NAME"]) == ("8(x2),4", "login1", "daint")
    assert (found["SLURM_GPUS_ON_NODE"], found["SLURM_JOB_GPUS"]) == ("4", "0,1,2,3")
    assert set(OURS.values()) <= found.keys()


def test_what_nobody_has_said_is_not_set() -> None:
    names = of_node(work(slurm_env=True), workdir="/").keys() | slurm_of_host(work(slurm_env=True), ALICE, 8).keys()
    unsaid = {"SLURM_JOB_CPUS_PER_NODE", "SLURM_SUBMIT_HOST", "SLURM_CLUSTER_NAME", "SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS"}
    assert not unsaid & names


def test_a_layout_of_planes_is_told_as_slurm_tells_it() -> None:
    shared = of_node(work(slurm_env=True, asked=AskedTasks(layout="plane=4")), workdir="/")
    assert (shared["SLURM_DISTRIBUTION"], shared["SLURM_DIST_PLANESIZE"]) == ("plane", "4")
    assert of_node(work(slurm_env=True, asked=AskedTasks(layout="plane=4:cyclic")), workdir="/")["SLURM_DISTRIBUTION"] == "plane=4:cyclic"


def test_each_task_knows_the_whole_and_its_place() -> None:
    shared = of_node(work(nodes=("n1", "n2"), tasks=2, total_tasks=4, project="p"), workdir="/")
    assert shared["LATTICE_ALLOC_ID"] == UID
    assert shared["LATTICE_NODELIST"] == "n1,n2"
    assert (shared["LATTICE_NNODES"], shared["LATTICE_NPROCS"], shared["LATTICE_LOCAL_SIZE"]) == ("2", "4", "2")
    assert (shared["LATTICE_HEAD_NODE"], shared["LATTICE_NODENAME"], shared["LATTICE_NODE_RANK"]) == ("n1", "n1", "0")
    assert (shared["LATTICE_ATTEMPT"], shared["LATTICE_PROJECT"]) == ("1", "p")


@given(st.integers(1, 64), st.integers(0, 1000))
def test_ranks_of_a_node_are_consecutive_and_distinct(tasks: int, first: int) -> None:
    ours = work(tasks=tasks, first_rank=first)
    assert [int(of_task(ours, local)["LATTICE_PROCID"]) for local in range(tasks)] == list(range(first, first + tasks))


def test_the_environment_file_is_read_as_pam_reads_it() -> None:
    text = "# comment\nexport A=1\nB = \n C='two words'\nD=\"x\"\nno equals\n3X=1\n=y\n"
    assert parse_environment_file(text) == {"A": "1", "C": "two words", "D": "x"}


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"A": "b"}, ""),
        ({"A": "\0"}, "the variable A contains a NUL"),
        ({"": "x"}, "'' is not possible"),
        ({"A=B": "x"}, "'A=B' is not possible"),
    ],
)
def test_a_variable_that_no_process_can_have_is_named(variables: dict[str, str], expected: str) -> None:
    found = flaw(variables)
    assert expected in found
    assert bool(found) is bool(expected)


def test_a_launch_on_another_node_finds_the_programs_of_that_node() -> None:
    found = environment.on_this_node({"PATH": "/own:/n1/bin:/usr/bin", "LATTICE_BIN": "/n1/bin"}, "/n2/bin")
    assert found == {"PATH": "/own:/n2/bin:/usr/bin", "LATTICE_BIN": "/n2/bin"}
    same = {"PATH": "/own:/usr/bin", "LATTICE_BIN": "/n1/bin"}
    assert environment.on_this_node(same, "/n1/bin") == same
    assert environment.on_this_node({"PATH": "/usr/bin"}, "/n2/bin") == {"PATH": "/usr/bin"}


def test_work_finds_lattices_own_programs_first() -> None:
    assert environment.with_programs({"PATH": "/usr/bin"}, "/n1/bin") == {"PATH": "/n1/bin:/usr/bin", "LATTICE_BIN": "/n1/bin"}
    assert environment.with_programs({"A": "1"}, "") == {"A": "1"}
