"""A shim that has taken the right to start tells an end, whatever the texts of its launch are."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from lattice_agent.host.runner_client import RunnerClient
from lattice_agent.standalone import durable
from tests.unit.agent.machine import UID, needs_root, until

pytestmark = [pytest.mark.root, needs_root()]


def launch(place: Path, **changes: Any) -> dict[str, Any]:
    """One task of root's, without cgroups."""
    for name in ("state", "run"):
        (place / name).mkdir()
    return {
        "directory": str(place / "state"), "run_directory": str(place / "run"), "uid_text": UID, "attempt": 1, "boot": "boot-1",
        "argv": ["/bin/true"], "environment": {}, "task_environments": [{}], "first_rank": 0, "workdir": "/", "stdout": "", "stderr": "",
        "log_bytes": 1 << 20, "open_files": 1024, "shim_procs": "", "work_procs": [], "work_kill": "",
    } | changes  # fmt: skip


def record(kept: Path) -> dict[str, Any]:
    """The content of an exit record, below the line of its format."""
    found: dict[str, Any] = json.loads(kept.read_text().partition("\n")[2])
    return found


async def started(described: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The shim's answer, and its exit record."""
    client, kept = RunnerClient(), Path(described["directory"], durable.EXIT)
    try:
        async with asyncio.timeout(20):
            answer = await client.request({"op": "start", "launch": described})
            assert "lost" not in answer
            await until(kept.exists)
    finally:
        client.close()
    return answer, record(kept)


async def test_a_note_that_no_encoding_knows_keeps_no_task_from_starting(tmp_path: Path) -> None:
    answer, told = await started(launch(tmp_path, note="views.\ud800 is no object"))
    assert "running" in answer
    assert [task["code"] for task in told["tasks"]] == [0]


async def test_what_keeps_tasks_from_starting_unforeseen_is_an_end_of_the_work(tmp_path: Path) -> None:
    answer, told = await started(launch(tmp_path, workdir="/\ud800", stdout="out"))
    assert (answer["failure"], answer["unfit"]) == (told["failure"], False)
    assert "it cannot be started: UnicodeEncodeError" in told["failure"]
