"""What people are told of launches whose attempt has ended while nobody followed it: each is written and counted once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lattice.daemon.clock import ManualClock
from lattice.errors import NotFound
from lattice_agent.attempts import Key
from lattice_agent.launches.record import OVER, STARTED, LaunchRecord, NodePlaces, RecordStore
from lattice_agent.launches.step_desk import StepDesk
from lattice_agent.launches.step_log import read_rows
from tests.build import uid

KEY = Key(uid(1), 1)
PLACES = (NodePlaces("n1", 0, (0,), ((0,),), (0,)),)


def desk(directory: Path, *, over: bool = True) -> StepDesk:
    """A desk of an agent that follows no launch."""
    logs, run = directory / "logs", directory / "run"
    logs.mkdir(exist_ok=True)
    run.mkdir(exist_ok=True)
    return StepDesk("n1", lambda _: None, lambda _: logs, lambda _: run, lambda _: over, lambda _: None, ManualClock())


def leave_records(directory: Path, count: int) -> None:
    """Launches that an agent before this one has begun, the odd ones of which are over."""
    store = RecordStore(directory / "run")
    for number in range(count):
        state, done = (OVER, {0: {"ranks": [[0, 0, 0]]}}) if number % 2 else (STARTED, {})
        store.keep_record(LaunchRecord(number, f"{number:032x}", "app", "app", PLACES, state=state, begun=1.0, ended=2.0, done=dict(done)))


async def test_many_readers_beside_the_reporter_write_and_count_each_launch_once(tmp_path: Path) -> None:
    found = desk(tmp_path)
    leave_records(tmp_path, 200)
    reading = [asyncio.ensure_future(found.read_launches(KEY, 1000, None)) for _ in range(12)]
    await asyncio.sleep(0)
    told = found.launch_totals(KEY)
    reports = await asyncio.gather(*reading)
    assert told is not None
    assert (told.total, told.completed, told.cancelled + told.node_fail) == (200, 100, 100)
    assert {len(report.rows) for report in reports} == {200}
    assert {report.totals for report in reports} == {told}
    rows = read_rows(tmp_path / "logs", 1000)
    assert ([row.number for row in rows.rows], rows.counted) == (list(range(200)), 200)
    assert desk(tmp_path).launch_totals(KEY) == told, "the next agent reads the same"


async def test_a_reader_writes_nothing_while_the_attempt_runs(tmp_path: Path) -> None:
    found = desk(tmp_path, over=False)
    leave_records(tmp_path, 3)
    report = await found.read_launches(KEY, 10, None)
    assert (report.rows, report.totals.total) == ([], 0)
    assert len(RecordStore(tmp_path / "run").read_all()) == 3
    assert list((tmp_path / "logs").iterdir()) == []


async def test_a_launch_that_never_was_and_an_attempt_that_is_gone_are_told_apart(tmp_path: Path) -> None:
    found = desk(tmp_path)
    leave_records(tmp_path, 2)
    with pytest.raises(NotFound, match="there is no launch 2 in attempt 1: the last one is 1"):
        await found.end_launch(KEY, 2, "cancelled")
    ended = await found.end_launch(KEY, 1, "cancelled")
    assert not ended.ending
    assert ended.row is not None
    assert ended.row.state == "Completed"
    (tmp_path / "logs" / "launches.1").unlink()
    (tmp_path / "logs").rmdir()
    with pytest.raises(NotFound, match="kept for seven days"):
        await found.read_launches(KEY, 10, None)
