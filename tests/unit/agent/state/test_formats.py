"""What earlier agents wrote is read by this one: the golden texts of each format number."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from lattice.errors import Corrupt
from lattice_agent.attempts import ExitRecord, Key, Running, TaskExit
from lattice_agent.state.journal import Journal
from lattice_agent.state.log_store import LogEntry, LogReader
from tests.unit.agent.machine import UID, work

GOLDEN = Path(__file__).parents[2] / "formats"
BOOT = "0929a9ed-7050-4cb0-bb26-9b6e59b9c85a"


@pytest.mark.parametrize("number", [1, 2])
def test_state_of_this_format_and_of_the_next_is_read(tmp_path: Path, number: int) -> None:
    journal, key = Journal(tmp_path / "state", tmp_path / "run"), Key(UID, 1)
    journal.open()
    (journal.state_dir / "format").write_text(f"{number}\n")
    journal.open()
    assert (journal.state_dir / "format").read_text() == f"{number}\n", "what a later agent wrote there stays"
    journal.directory(key).mkdir()
    texts = {f"journal-{number}": "journal", f"exit-record-{number}": "exit", f"shim-claim-{number}": "shim", "log-segment-1": "stdout.1"}
    for golden, name in texts.items():
        shutil.copy(GOLDEN / golden, journal.directory(key) / name)

    entry = journal.entry(key)
    assert entry is not None
    assert entry.boot == BOOT
    assert entry.work == work(account="", variables={"A": "1"}, script="#!/bin/sh\n", walltime_seconds=60.0, submit_time=1700000000.0)
    task = TaskExit(3, 4711, 137, 9, 1700000000.25, 1700000001.5, 0.5, 0.25, 12452)
    assert journal.exit_record(key) == ExitRecord(UID, 2, BOOT, (task,), 1700000001.75)
    assert journal.claimed(key) == Running(4711, 242368, 1700000000.125, 2423.6875)
    reader = LogReader(journal.directory(key), "stdout")
    assert reader.read() == [LogEntry(1700000000.25, b"first line\nsecond line\n"), LogEntry(1700000000.5, b"partial")]
    reader.close()


@pytest.mark.parametrize(
    ("name", "read"),
    [
        pytest.param("journal", Journal.entry, id="journal"),
        pytest.param("exit", Journal.exit_record, id="exit record"),
        pytest.param("shim", Journal.claimed, id="claim"),
    ],
)
def test_a_text_of_a_later_format_is_refused_by_number_and_a_torn_one_is_none(
    tmp_path: Path, name: str, read: Callable[[Journal, Key], object]
) -> None:
    journal, key = Journal(tmp_path / "state", tmp_path / "run"), Key(UID, 1)
    journal.open()
    journal.directory(key).mkdir()
    for torn in ("", "\0\0\0\0", "2", "1\n{"):
        (journal.directory(key) / name).write_text(torn)
        assert read(journal, key) is None
    (journal.directory(key) / name).write_text("3\n{}\n")
    with pytest.raises(Corrupt, match=rf"{UID}-1 of format '3': this program reads formats 1 and 2"):
        read(journal, key)
