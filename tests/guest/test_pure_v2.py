"""The agent's host on a machine of cgroup v2 alone: the tests of limits and scopes that the hybrid machine passes, run again in a guest."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.guest.machine import run
from tests.unit.agent.machine import needs_root

pytestmark = [pytest.mark.root, pytest.mark.guest, needs_root()]
REPOSITORY = Path(__file__).parent.parent.parent
HOST = "tests/unit/agent/host"
FILES = (
    f"{HOST}/test_scopes.py",
    f"{HOST}/test_manners.py",
    f"{HOST}/test_private_tmp.py",
    f"{HOST}/test_mounts.py",
    f"{HOST}/test_containers.py",
)
WITHIN_SECONDS = 480.0
"""A fifth of it where the machine has nothing else to do: the guest runs without KVM."""


@pytest.mark.timeout(540)
def test_limits_scopes_private_tmp_and_mounts_hold_where_cgroups_are_v2_alone(tmp_path: Path) -> None:
    pytest_there = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "pure_v2",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:hypothesispytest",
        "--color=no",
    ]
    done = run([*pytest_there, *FILES], tmp_path, cwd=REPOSITORY, within=WITHIN_SECONDS)
    assert done.code == 0, done.console[-8000:]
    passed = re.search(r"(\d+) passed", done.console)
    assert passed is not None, done.console[-8000:]
    assert int(passed[1]) >= 15
    assert " skipped" not in done.console
