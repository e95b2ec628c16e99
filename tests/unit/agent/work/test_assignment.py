"""What is started for a row."""

from __future__ import annotations

import msgspec
import pytest

from lattice.errors import Rejected
from lattice.views.cluster import CompatOptions, ConfigSpec, SoftwareOptions, WorkOptions
from lattice.views.work import Work as Allocation
from lattice_agent.attempts import AskedTasks
from lattice_agent.work.assignment import assign, terms_of
from tests.build import uid
from tests.unit.agent.rows import run

NODES = ("n1", "n2", "n3")


def allocation(**spec: object) -> Allocation:
    body = {
        "metadata": {"name": "job-1", "namespace": "physics", "uid": uid(1), "generation": 3, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"tenant": "physics", "user": "oidc:alice", "entrypoint": "true", "lifecycle": {"walltime": "1h", "gracePeriod": "5s"}}
        | spec,
    }
    return msgspec.convert(body, Allocation)


def test_an_entrypoint_runs_on_every_node_with_ranks_that_follow_each_other() -> None:
    found = allocation(tasks={"perNode": 4})
    works = [assign(found, run(nodes=NODES), node, ConfigSpec()) for node in NODES]
    assert [(work.tasks, work.first_rank, work.rank_of_node) for work in works] == [(4, 0, 0), (4, 4, 1), (4, 8, 2)]
    assert {work.total_tasks for work in works} == {12}


def test_a_script_runs_once_and_on_the_head_only() -> None:
    found = allocation(entrypoint=None, script="#!/bin/sh\n", tasks={"perNode": 4, "total": 9})
    works = [assign(found, run(nodes=NODES), node, ConfigSpec()) for node in NODES]
    assert [work.tasks for work in works] == [1, 0, 0]
    assert works[0].total_tasks == 9


@pytest.mark.parametrize(("site", "found"), [(None, True), (True, True), (False, False)], ids=["open", "all work", "none"])
def test_work_that_asks_for_slurm_variables_has_them_unless_the_site_says_no(site: bool | None, found: bool) -> None:
    asks = allocation(entrypoint=None, script="#!/bin/sh\n", scriptArguments=["a b", "c"], environment={"slurmVariables": True})
    work = assign(asks, run(nodes=NODES), "n1", ConfigSpec(compat=CompatOptions(set_slurm_env=site)))
    assert (work.slurm_env, work.script_arguments) == (found, ("a b", "c"))


def test_an_entrypoint_with_a_number_of_tasks_has_one_client_on_the_head_and_wishes_in_the_words_of_srun() -> None:
    found = allocation(tasks={"total": 9, "perNode": 4, "cpus": 2, "gpus": 1, "layout": "Plane=2:Cyclic", "bind": "None", "mpi": "Pmi1"})
    works = [assign(found, run(nodes=NODES), node, ConfigSpec()) for node in NODES]
    assert [(work.tasks, work.total_tasks, work.is_launched) for work in works] == [(1, 9, True), (0, 9, True), (0, 9, True)]
    assert works[0].asked == AskedTasks(4, 2, 1, "plane=2:cyclic", "none", "pmi1")
    assert found.spec.on_head_only


@pytest.mark.parametrize(
    "spec",
    [
        {"tasks": {"total": 9, "on": "HeadNode"}},
        {"tasks": {"total": 9}, "entrypoint": None, "script": "#!/bin/sh\n"},
        {"tasks": {"total": 9, "perNode": 3, "on": "EveryNode"}, "entrypoint": None, "script": "#!/bin/sh\n"},
        {"tasks": {"perNode": 3}},
    ],
    ids=["on the head node", "a script", "a script on every node", "no number in all"],
)
def test_nothing_else_is_launched(spec: dict[str, object]) -> None:
    assert not assign(allocation(**spec), run(nodes=NODES), "n1", ConfigSpec()).is_launched


def test_output_patterns_are_expanded_and_a_shared_file_is_truncated_by_rank_0_alone() -> None:
    found = allocation(tags={"name": "train"}, environment={"output": {"stdout": "%x-%j.out", "stderr": "%u.err"}})
    config = ConfigSpec(work=WorkOptions(user_prefixes=("oidc:",)))
    works = [assign(found, run(nodes=NODES), node, config) for node in NODES]
    assert [(work.stdout, work.stderr, work.append) for work in works] == [
        ("train-41.out", "alice.err", False), ("train-41.out", "alice.err", True), ("train-41.out", "alice.err", True)
    ]  # fmt: skip
    own = assign(allocation(environment={"output": {"stdout": "out.%N"}}), run(nodes=NODES), "n2", ConfigSpec())
    assert (own.stdout, own.append) == ("out.n2", False)


@pytest.mark.parametrize(
    ("prefixes", "user", "account"),
    [
        ((), "alice", "alice"),
        ((), "oidc:alice", "oidc:alice"),
        (("oidc:",), "oidc:alice", "alice"),
        (("oidc:",), "github:alice", "github:alice"),
        (("oidc:",), "oidc:github:alice", "github:alice"),
        (("https://idp.example#", "https://idp.example#staff:"), "https://idp.example#staff:alice", "alice"),
    ],
)
def test_only_prefixes_that_the_site_lists_are_no_part_of_the_account(prefixes: tuple[str, ...], user: str, account: str) -> None:
    config = ConfigSpec(work=WorkOptions(user_prefixes=prefixes))
    assert assign(allocation(user=user), run(nodes=NODES), "n1", config).account == account


def test_an_agent_kills_work_within_the_most_grace_whoever_admitted_more() -> None:
    found = allocation(lifecycle={"walltime": "1h", "gracePeriod": "999999999d"})
    assert (
        terms_of(found, "n1", "n1", ConfigSpec()).grace_seconds == assign(found, run(nodes=NODES), "n1", ConfigSpec()).grace_seconds == 900
    )


def test_an_agent_takes_no_work_that_names_devices_which_the_site_does_not_list() -> None:
    found = allocation(environment={"image": "app", "devices": ["a/b=c"]})
    assert assign(found, run(nodes=NODES), "n1", ConfigSpec(software=SoftwareOptions(container_devices=("a/b",)))).devices == ("a/b=c",)
    with pytest.raises(Rejected, match="containerDevices"):
        assign(found, run(nodes=NODES), "n1", ConfigSpec(software=SoftwareOptions(container_devices=())))


def test_the_options_of_the_site_are_taken_and_the_times_are_seconds() -> None:
    options = ConfigSpec(compat=CompatOptions(set_slurm_env=True), work=WorkOptions(min_uid=500, open_files=1024, log_bytes="1Mi"))
    work = assign(allocation(), run(nodes=NODES), "n1", options)
    assert (work.min_uid, work.open_files, work.log_bytes, work.slurm_env) == (500, 1024, 1 << 20, True)
    assert (work.walltime_seconds, work.grace_seconds) == (3600.0, 5.0)
    assert terms_of(allocation(), "n1", "n1", options).generation == 3


@pytest.mark.parametrize(
    ("asked", "admitted", "walltime"), [("1h", 60, 60), ("1m", 3600, 60), ("1h", None, 3600), (None, 60, 60), (None, None, None)]
)
def test_the_shorter_walltime_is_kept_for_an_agent_that_comes_back(asked: str | None, admitted: int | None, walltime: float | None) -> None:
    lifecycle = {"walltime": asked} if asked else {"type": "Unbounded"}
    assert assign(allocation(lifecycle=lifecycle), run(nodes=NODES, walltime=admitted), "n1", ConfigSpec()).walltime_seconds == walltime
