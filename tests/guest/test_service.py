"""The agent as a service of systemd, and a machine that is switched off under its work: in a guest, where both are real."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.guest.machine import DISK, Done, empty_disk, run
from tests.unit.agent.machine import needs_root

pytestmark = [pytest.mark.root, pytest.mark.guest, needs_root()]
REPOSITORY = Path(__file__).parent.parent.parent


def scene(name: str, folder: Path, disk: Path) -> Done:
    command = [sys.executable, "-m", "tests.guest.service_scene", f"{DISK}/node", name]
    return run(["sh", "-c", f"mkdir -p {DISK}/node && exec {' '.join(command)}"], folder, cwd=REPOSITORY, systemd=True, disk=disk)


@pytest.mark.timeout(540)
def test_work_goes_on_while_systemd_restarts_its_agent_and_its_exit_code_is_heard(tmp_path: Path) -> None:
    done = scene("restart", tmp_path, empty_disk(tmp_path / "disk"))
    assert done.code == 0, done.console[-8000:]
    assert "SCENE OK" in done.console


@pytest.mark.timeout(540)
def test_after_a_machine_was_switched_off_its_attempt_is_found_dead_and_everything_undone(tmp_path: Path) -> None:
    disk = empty_disk(tmp_path / "disk")
    for name in ("reboot", "rebooted"):
        done = scene(name, tmp_path, disk)
        assert done.code == 0, done.console[-8000:]
        assert "SCENE OK" in done.console
