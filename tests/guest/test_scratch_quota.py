"""Scratch space on a disk with project quota, which few machines of developers have: in a guest."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.guest.machine import empty_disk, run
from tests.unit.agent.machine import needs_root

pytestmark = [pytest.mark.root, pytest.mark.guest, needs_root()]
REPOSITORY = Path(__file__).parent.parent.parent


@pytest.mark.timeout(300)
def test_work_gets_no_more_scratch_space_than_it_asks_for_where_the_file_system_has_project_quota(tmp_path: Path) -> None:
    disk = empty_disk(tmp_path / "disk")  # it brings the modules of ext4; the scene makes a disk of its own
    done = run([sys.executable, "-m", "tests.guest.scratch_scene"], tmp_path, cwd=REPOSITORY, disk=disk, within=240.0)
    assert done.code == 0, done.console[-6000:]
    assert "SCRATCH-HELD [0, 3, 0, 3]" in done.console
