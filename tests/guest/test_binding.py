"""Binding of tasks on a machine of two sockets, of cores with two threads, which the machine of the tests is not: in a guest."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.guest.machine import run
from tests.unit.agent.machine import needs_root

pytestmark = [pytest.mark.root, pytest.mark.guest, needs_root()]
REPOSITORY = Path(__file__).parent.parent.parent


@pytest.mark.timeout(540)
def test_tasks_are_bound_by_sockets_cores_and_threads_of_the_machine(tmp_path: Path) -> None:
    quiet = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest", "--color=no"]
    command = [sys.executable, "-m", "pytest", "-q", *quiet, "tests/guest/binding_scene.py"]
    done = run(command, tmp_path, cwd=REPOSITORY, cpus=8, sockets=2, memory_mib=1536)
    assert done.code == 0, done.console[-8000:]
    assert "2 passed" in done.console
