"""Whether a node serves PMIx: the host's program is there, and runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from lattice_agent.host.pmix import flaw_of
from tests.mpi import programs


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert flaw_of(tmp_path / "host") == f"{tmp_path}/host is not there: it is made of pmix/host.c (--pmix-host)"


@pytest.mark.parametrize(
    ("text", "said"), [("#!/bin/sh\necho no libpmix >&2\nexit 127\n", "ends with exit code 127: no libpmix"), ("", "--check: ")]
)
def test_a_program_that_does_not_run_says_why(tmp_path: Path, text: str, said: str) -> None:
    program = tmp_path / "host"
    program.write_text(text)
    program.chmod(0o755)
    assert said in flaw_of(program)


@pytest.mark.skipif(bool(programs.missing("pmix")), reason=programs.missing("pmix") or "-")
def test_the_host_as_it_is_built_runs() -> None:
    assert flaw_of(programs.pmix_host()) == ""
