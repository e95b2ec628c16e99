"""What cannot run is refused with the reason, before anything is made."""

from __future__ import annotations

from typing import Any

import pytest

from lattice.errors import Rejected
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
