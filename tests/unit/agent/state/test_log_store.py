"""What the work printed is read back whole, with its times, and what is missing is counted."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.errors import Corrupt
from lattice_agent.standalone.streams import SEGMENTS, LogStream
from lattice_agent.state.log_store import LogEntry, LogReader, segments, shed, tail
from tests.unit.agent.machine import needs_root


def fill(directory: Path, chunks: list[bytes], keep_bytes: int = 1 << 20) -> None:
    log = LogStream(str(directory), "stdout", keep_bytes)
    for number, chunk in enumerate(chunks):
        log.write(1000.0 + number, chunk)
    log.close()


def everything(directory: Path) -> list[LogEntry]:
    reader = LogReader(directory, "stdout")
    found = []
    while entries := reader.read(max_bytes=1000):
        found += entries
    reader.close()
    return found


@given(st.lists(st.binary(min_size=1, max_size=3000), max_size=40))
def test_what_is_written_is_read_back_in_order_with_its_time(chunks: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as name:
        fill(Path(name), chunks)
        assert [(entry.time, entry.data) for entry in everything(Path(name))] == [(1000.0 + n, chunk) for n, chunk in enumerate(chunks)]


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=80))
def test_beyond_the_limit_the_oldest_goes_and_every_byte_is_accounted_for(sizes: list[int]) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        fill(directory, [b"x" * size for size in sizes], keep_bytes=8 * 4096)
        found = everything(directory)
        assert sum(len(entry.data) + entry.dropped for entry in found) == sum(sizes)
        assert len(segments(directory, "stdout")) <= SEGMENTS
        assert sum((directory / f"stdout.{n}").stat().st_size for n in segments(directory, "stdout")) <= 8 * (4096 + 5000 + 40)


def test_a_follower_sees_what_comes_and_learns_what_was_dropped_under_it(tmp_path: Path) -> None:
    log, reader = LogStream(str(tmp_path), "stdout", 8 * 4096), LogReader(tmp_path, "stdout")
    assert reader.read() == []
    log.write(1.0, b"first\n")
    assert reader.read() == [LogEntry(1.0, b"first\n")]
    for number in range(100):
        log.write(2.0, bytes([65 + number % 26]) * 1000)
    log.close()
    later = reader.read(max_bytes=1 << 30)
    assert sum(len(entry.data) + entry.dropped for entry in later) == 100_000
    assert sum(entry.dropped for entry in later) > 0
    assert reader.read() == []
    reader.close()


def test_a_torn_last_record_is_not_shown(tmp_path: Path) -> None:
    fill(tmp_path, [b"whole\n", b"torn\n"])
    segment = tmp_path / "stdout.1"
    os.truncate(segment, segment.stat().st_size - 2)
    assert [entry.data for entry in everything(tmp_path)] == [b"whole\n"]


def test_another_format_is_refused_and_both_numbers_named(tmp_path: Path) -> None:
    (tmp_path / "stdout.1").write_bytes(b"9 0\n")
    with pytest.raises(Corrupt, match=r"'9 0.*format 1"):
        LogReader(tmp_path, "stdout").read()


@given(st.lists(st.text("ab\n", min_size=1, max_size=12), max_size=20), st.integers(0, 12))
def test_a_tail_is_the_last_lines(chunks: list[str], lines: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        fill(Path(name), [chunk.encode() for chunk in chunks])
        found, reader = tail(Path(name), "stdout", lines)
        reader.close()
        text = "".join(chunks).splitlines(keepends=True)
        assert b"".join(entry.data for entry in found).decode() == "".join(text[len(text) - min(lines, len(text)) :])


@given(st.lists(st.tuples(st.integers(0, 3000), st.booleans()), max_size=40), st.integers(0, 60))
def test_a_tail_over_many_segments_is_the_last_lines_that_are_kept(chunks: list[tuple[int, bool]], lines: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        log = LogStream(name, "stdout", 8 * 4096)
        for number, (size, ends) in enumerate(chunks):
            log.write(1000.0, b"%03d" % number + b"x" * size + b"\n" * ends)
        kept = b"".join(entry.data for entry in everything(directory)).splitlines(keepends=True)
        found, reader = tail(directory, "stdout", lines)
        assert b"".join(entry.data for entry in found) == b"".join(kept[len(kept) - min(lines, len(kept)) :])
        log.write(1001.0, b"more\n")
        log.close()
        assert [(entry.data, entry.dropped) for entry in reader.read()] == [(b"more\n", 0)]
        reader.close()


def test_a_tail_reads_no_segment_that_holds_none_of_its_lines(tmp_path: Path) -> None:
    fill(tmp_path, [b"x" * 1999 + b"\n" for _ in range(40)], keep_bytes=8 * 4096)
    oldest = segments(tmp_path, "stdout")[0]
    (tmp_path / f"stdout.{oldest}").write_bytes(b"9 0\n")
    found, reader = tail(tmp_path, "stdout", 2)
    reader.close()
    assert sum(entry.data.count(b"\n") for entry in found) == 2


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=80))
def test_output_that_is_given_up_is_all_counted_as_dropped(sizes: list[int]) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        fill(directory, [b"x" * size for size in sizes], keep_bytes=8 * 4096)
        before = sum(path.stat().st_size for path in directory.iterdir())
        assert shed(directory, "stdout", 2000.0) in (before, 0 if before <= 64 else before)
        found = everything(directory)
        if before > 64:
            assert [(entry.time, entry.data, entry.dropped) for entry in found] == [(2000.0, b"", sum(sizes))]
        assert shed(directory, "stdout", 3000.0) == 0
        assert everything(directory) == found


@needs_root()
def test_a_full_disk_loses_lines_counts_them_and_goes_on(tmp_path: Path) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], check=True)
    try:
        log = LogStream(str(tmp_path), "stdout", 1 << 20)
        for _ in range(100):
            log.write(1.0, b"x" * 1999 + b"\n")
        full = (tmp_path / "stdout.1").stat().st_size
        assert full <= 65536
        subprocess.run(["mount", "-o", "remount,size=1m", tmp_path], check=True)
        log.write(2.0, b"room again\n")
        log.close()
        found = everything(tmp_path)
        assert found[-1].data == b"room again\n"
        assert sum(len(entry.data) + entry.dropped for entry in found) == 100 * 2000 + len(b"room again\n")
    finally:
        subprocess.run(["umount", tmp_path], check=True)
