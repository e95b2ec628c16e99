"""A shim that has taken the right to start tells an end, whatever the texts of its launch are."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
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
        "log_bytes": 1 << 20, "open_files": 1024, "shim_procs": "", "work_procs": [], "work_kill": "", "meters": {}, "private_tmp_keep": [],
        "mounts": [], "container": {}, "private": {}, "groups": [],
    } | changes  # fmt: skip


def record(kept: Path) -> dict[str, Any]:
    """The content of an exit record, below the line of its format."""
    found: dict[str, Any] = json.loads(kept.read_text().partition("\n")[2])
    return found


async def started(described: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The shim's answer, and its exit record."""
    client, kept = RunnerClient(), Path(described["directory"], durable.EXIT)
    try:
        async with asyncio.timeout(90):
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


@contextmanager
def full_after_a_claim(directory: Path) -> Iterator[None]:
    """The directory is a file system of its own in memory, which a claim of somebody else's fills."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(directory)], check=True)
    try:
        (directory / durable.CLAIM).write_bytes(b"another shim's".ljust(4096))
        yield
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def files(*directories: str) -> list[str]:
    return [path.name for directory in directories for path in Path(directory).iterdir()]


def replace_by_file(directory: str) -> None:
    Path(directory).rmdir()
    Path(directory).touch()


def replace_by_directory(file: str) -> None:
    Path(file).unlink()
    Path(file).mkdir()


def write_claim(directory: str) -> None:
    """Another shim's."""
    Path(directory, durable.CLAIM).write_bytes(b"1\n9 3 4.0 5.0\n")


async def test_a_shim_that_cannot_take_the_right_writes_nothing_over_the_work_of_the_one_that_has_it(tmp_path: Path) -> None:
    described, client = launch(tmp_path), RunnerClient()
    with full_after_a_claim(Path(described["run_directory"])):
        try:
            async with asyncio.timeout(90):
                answer = await client.request({"op": "start", "launch": described})
        finally:
            client.close()
        assert (answer["unfit"], "its state cannot be written" in answer["failure"]) == (True, True)
        assert files(described["run_directory"], described["directory"]) == [durable.CLAIM]


async def test_a_shim_that_fails_before_another_takes_the_right_writes_no_end(tmp_path: Path) -> None:
    described, client = launch(tmp_path), RunnerClient()
    replace_by_file(described["run_directory"])  # no claim can be made there, by nobody yet
    try:
        async with asyncio.timeout(90):
            answer = await client.request({"op": "start", "launch": described})
    finally:
        client.close()
    assert (answer["unfit"], "its state cannot be written" in answer["failure"]) == (True, True)
    assert files(described["directory"]) == [], "whoever asked decides, once he has the right"


def root_files() -> list[tuple[str, int]]:
    return [(path.name, path.stat().st_size) for path in Path("/").iterdir() if path.is_file()]


async def test_a_request_that_breaks_leaves_no_file_in_the_root_directory() -> None:
    client, before = RunnerClient(), root_files()
    try:
        async with asyncio.timeout(90):
            assert await client.request({"op": "probe"}) == {"lost": True}
    finally:
        client.close()
    assert root_files() == before


@pytest.mark.parametrize(
    ("kept", "has"),
    [(b"1\n2 3 4.0 5.0\n", True), (b"1\n2 3 4.0 5.0\nmore", False), (b"1\n9 3 4.0 5.0\n", False), (b"", False), (None, False)],
)
def test_a_shim_has_the_right_where_its_own_claim_stands(tmp_path: Path, kept: bytes | None, *, has: bool) -> None:
    if kept is not None:
        (tmp_path / durable.CLAIM).write_bytes(kept)
    assert durable.has_right(str(tmp_path), b"1\n2 3 4.0 5.0\n") is has
