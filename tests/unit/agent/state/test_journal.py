"""The state directory says what was decided, survives damage, and lets an attempt be started once."""

from __future__ import annotations

from pathlib import Path

import pytest

from lattice.errors import Corrupt, NotFound
from lattice_agent.attempts import ExitRecord, Key, Running, Seen, TaskExit
from lattice_agent.standalone import durable
from lattice_agent.state.entry_failure import EntryFailure, note_entry_failure
from lattice_agent.state.journal import KEEP_SECONDS, Journal, parse_key
from tests.unit.agent.machine import UID, work

KEY = Key(UID, 1)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    journal = Journal(tmp_path / "state", tmp_path / "run")
    journal.open()
    return journal


def test_work_is_read_back_as_it_was_written(journal: Journal) -> None:
    ours = work(variables={"A": "ü"}, script="#!/bin/sh\n", walltime_seconds=1.5)
    journal.write_journal(ours, "boot-1")
    entry = journal.entry(KEY)
    assert entry is not None
    assert (entry.boot, entry.work) == ("boot-1", ours)
    assert journal.known() == [KEY]


def test_the_instance_is_made_once_and_the_seq_is_kept(journal: Journal) -> None:
    first = journal.instance()
    journal.remember(Seen(4711))
    again = Journal(journal.state_dir, journal.run_dir)
    again.open()
    assert len(first) == 16
    assert (again.instance(), again.read_seen().seq) == (first, 4711)


def test_the_epoch_of_a_seq_is_known_as_long_as_both_files_agree(journal: Journal) -> None:
    journal.remember(Seen(4711, 7, "Ab-3_x"))
    assert journal.read_seen() == Seen(4711, 7, "Ab-3_x")
    (journal.state_dir / "seq").write_text("4712\n")  # an older agent has read on
    assert journal.read_seen() == Seen(4712)
    journal.remember(Seen(4800))
    assert journal.read_seen() == Seen(4800)
    (journal.state_dir / "epoch").write_bytes(b"\xff")
    assert journal.read_seen() == Seen(4800)


def test_a_state_directory_of_another_format_is_refused_and_both_numbers_named(journal: Journal) -> None:
    (journal.state_dir / "format").write_text("3\n")
    with pytest.raises(Corrupt, match="of format '3': this program reads formats 1 and 2"):
        journal.open()


@pytest.mark.parametrize("text", ["x", "", "\n", "-1"])
def test_a_seq_that_is_no_number_is_refused(journal: Journal, text: str) -> None:
    (journal.state_dir / "seq").write_text(text)
    with pytest.raises(Corrupt, match="not a number"):
        journal.read_seen()


@pytest.mark.parametrize("damage", [b"", b"1\n{", b"2\n{}\n", b"\xff\xfe", b"1\n[]\n"])
def test_a_damaged_journal_or_exit_record_is_none_not_an_error(journal: Journal, damage: bytes) -> None:
    journal.write_journal(work(), "b")
    for name in ("journal", "exit", "shim"):
        (journal.directory(KEY) / name).write_bytes(damage)
    assert journal.entry(KEY) is None
    assert journal.exit_record(KEY) is None
    assert journal.claimed(KEY) is None


def test_the_right_to_start_is_taken_once(journal: Journal) -> None:
    journal.write_journal(work(), "b")
    assert journal.claimed(KEY) is None
    assert journal.claim(KEY, Running(12, 34, 56.5, 7.25))
    assert not journal.claim(KEY)
    assert journal.claimed(KEY) == Running(12, 34, 56.5, 7.25)
    with pytest.raises(NotFound):
        journal.claim(Key(UID, 2))


def test_the_exit_record_of_the_shim_is_read_as_written(journal: Journal) -> None:
    journal.write_journal(work(), "b")
    task = {"rank": 0, "pid": 5, "code": 137, "signal": 9, "start": 1.0, "end": 2.0, "utime": 0.5, "stime": 0.25, "maxrss": 99}
    durable.keep_exit(str(journal.run_directory(KEY)), str(journal.directory(KEY)), durable.encode_exit(UID, 1, "b", [task], 3.0))
    assert journal.exit_record(KEY) == ExitRecord(UID, 1, "b", (TaskExit(0, 5, 137, 9, 1.0, 2.0, 0.5, 0.25, 99),), 3.0)
    assert not (journal.directory(KEY) / "reserve").exists()


def test_an_entrypoint_whose_launch_did_not_start_ends_with_that_reason_and_not_with_its_client_s_exit_code(journal: Journal) -> None:
    journal.write_journal(work(), "b")
    failed, ended = ({"rank": 0, "pid": 5, "code": code, "signal": 0, "start": 1.0, "end": 2.0} for code in (1, 0))
    directories = str(journal.run_directory(KEY)), str(journal.directory(KEY))
    note_entry_failure(journal.run_directory(KEY), EntryFailure("StartFailed", "node n2: no"))
    durable.keep_exit(*directories, durable.encode_exit(UID, 1, "b", [failed], 3.0))
    assert journal.exit_record(KEY) == ExitRecord(UID, 1, "b", (), 3.0, failure="node n2: no", reason="StartFailed")
    durable.keep_exit(*directories, durable.encode_exit(UID, 1, "b", [ended], 3.0))
    found = journal.exit_record(KEY)
    assert found is not None
    assert (found.failure, [task.code for task in found.tasks]) == ("", [0])


def test_what_is_forgotten_keeps_its_exit_record_for_seven_days(journal: Journal) -> None:
    journal.write_journal(work(), "b")
    journal.write_empty_exit(KEY, "b", 5.0)
    journal.mark_settled(KEY, 1000.0)
    assert journal.is_settled(KEY)
    assert journal.prune(1000.0 + KEEP_SECONDS - 1) == 0
    assert journal.exit_record(KEY) is not None
    assert journal.prune(1000.0 + KEEP_SECONDS + 1) == 1
    assert journal.known() == []


def test_an_end_that_stands_in_memory_only_is_brought_to_the_disk_before_it_is_forgotten_there(journal: Journal) -> None:
    journal.write_journal(work(), "b")
    (journal.run_directory(KEY) / "exit").write_bytes(durable.encode_exit(UID, 1, "b", [], 3.0))
    assert journal.in_memory_only() == [KEY]
    journal.mark_settled(KEY, 1000.0)
    assert not journal.run_directory(KEY).exists()
    assert journal.exit_record(KEY) == ExitRecord(UID, 1, "b", (), 3.0)


@pytest.mark.parametrize(("name", "key"), [(f"{UID}-12", Key(UID, 12)), ("x", None), ("-1", None), ("a-b", None), ("", None)])
def test_a_directory_name_is_a_key_or_nothing(name: str, key: Key | None) -> None:
    assert parse_key(name) == key
