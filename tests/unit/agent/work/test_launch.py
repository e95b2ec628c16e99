"""What cannot run is refused with the reason, before anything is made."""

from __future__ import annotations

from typing import Any

import pytest

from lattice.errors import Rejected
from lattice_agent.attempts import AskedTasks
from lattice_agent.work import launch
from tests.unit.agent.machine import work


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"script": "echo hi\n"}, "the script has no #! line; its first line is 'echo hi'"),
        ({"script": "#!/bin/sh\r\necho\r\n"}, "ends with CR LF"),
        ({"script": "#!/bin/sh\n\0ELF"}, "character 11 of it is NUL"),
        ({"script": "#!\nx"}, "names no interpreter"),
        ({"script": ""}, "no #! line"),
        ({"script": "#!/bin/sh\n", "script_arguments": ("a\0",)}, "an argument of the script contains a NUL"),
        ({"entrypoint": "  "}, "the entrypoint is empty"),
        ({"entrypoint": "''"}, "the entrypoint is empty"),
        ({"entrypoint": "echo 'x"}, "cannot be split into words: No closing quotation"),
        ({"entrypoint": "a\0b"}, "NUL character at position 2"),
        ({"variables": {"A": "\0"}}, "the variable A contains a NUL"),
        ({"workdir": "run"}, "'run' is not an absolute path"),
        ({"stdout": "a\0"}, "the name of the output file contains a NUL"),
    ],
)
def test_the_sentence_names_what_is_wrong_and_the_node(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Rejected) as refusal:
        launch.check(work(**changes))
    assert refusal.value.reason == "StartFailed"
    assert sentence in refusal.value.message
    assert "node n1 cannot start it" in refusal.value.message


def test_an_entrypoint_is_split_as_a_shell_would_and_runs_without_one() -> None:
    assert launch.command(work(entrypoint="echo 'a  b' $HOME \"*\""), "/s") == ["echo", "a  b", "$HOME", "*"]
    launch.check(work(entrypoint="echo 'a  b'"))


def test_a_script_is_run_by_its_own_path() -> None:
    launch.check(work(script="#!/bin/sh\n"))
    assert launch.command(work(script="#!/bin/sh\n"), "/s") == ["/s"]


def test_a_script_gets_its_arguments_as_they_are() -> None:
    script = work(script="#!/bin/sh\n", script_arguments=("a b", "$HOME", ""))
    launch.check(script)
    assert launch.command(script, "/s") == ["/s", "a b", "$HOME", ""]


def test_an_entrypoint_with_a_number_of_tasks_is_started_by_srun_with_every_wish_as_an_argument() -> None:
    asked = AskedTasks(per_node=4, cpus=8, gpus=1, layout="cyclic", bind="cores", mpi="pmi2")
    launched = work(entrypoint="./app 'a b'", is_launched=True, total_tasks=256, asked=asked)
    assert launch.command(launched, "/s", "/programs") == [
        "/programs/srun", "--ntasks=256", "--ntasks-per-node=4", "--cpus-per-task=8", "--gpus-per-task=1", "--distribution=cyclic",
        "--cpu-bind=cores", "--mpi=pmi2", "--", "./app", "a b",
    ]  # fmt: skip
    plain = work(entrypoint="./app", is_launched=True, total_tasks=3)
    assert launch.command(plain, "/s", "/programs") == ["/programs/srun", "--ntasks=3", "--overcommit", "--", "./app"]


def test_the_wishes_of_a_script_change_nothing_about_its_own_start() -> None:
    script = work(script="#!/bin/sh\n", total_tasks=9, asked=AskedTasks(per_node=3))
    assert launch.command(script, "/s", "/programs") == ["/s"]


def test_tasks_that_cannot_be_launched_are_refused_and_never_run_otherwise() -> None:
    with pytest.raises(Rejected, match="n1 cannot start it: it starts no launches") as refusal:
        launch.command(work(is_launched=True), "/s", "")
    assert refusal.value.reason == "StartFailed"
