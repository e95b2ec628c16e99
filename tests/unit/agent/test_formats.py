"""What earlier agents wrote is read by this one: the golden texts of each format number."""

from __future__ import annotations

import shutil
from pathlib import Path

from lattice_agent.host.interface import ExitRecord, Key, Running, TaskExit
from lattice_agent.journal import Journal
from lattice_agent.outputs import Entry, LogReader
from tests.unit.agent.machine import UID, work

GOLDEN = Path(__file__).parent.parent / "formats"
BOOT = "0929a9ed-7050-4cb0-bb26-9b6e59b9c85a"


def test_state_of_format_1_is_read(tmp_path: Path) -> None:
    journal, key = Journal(tmp_path / "state", tmp_path / "run"), Key(UID, 1)
    journal.open()
    journal.directory(key).mkdir()
    for golden, name in (("journal-1", "journal"), ("exit-record-1", "exit"), ("shim-claim-1", "shim"), ("log-segment-1", "stdout.1")):
        shutil.copy(GOLDEN / golden, journal.directory(key) / name)

    entry = journal.entry(key)
    assert entry is not None
    assert entry.boot == BOOT
    assert entry.work == work(account="", variables={"A": "1"}, script="#!/bin/sh\n", walltime_seconds=60.0, submit_time=1700000000.0)
    task = TaskExit(3, 4711, 137, 9, 1700000000.25, 1700000001.5, 0.5, 0.25, 12452)
    assert journal.exit_record(key) == ExitRecord(UID, 2, BOOT, (task,), 1700000001.75)
    assert journal.claimed(key) == Running(4711, 242368, 1700000000.125, 2423.6875)
    reader = LogReader(journal.directory(key), "stdout")
    assert reader.read() == [Entry(1700000000.25, b"first line\nsecond line\n"), Entry(1700000000.5, b"partial")]
    reader.close()
