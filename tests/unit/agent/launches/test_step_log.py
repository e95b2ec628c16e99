"""The step log: a row for each launch that is over, whatever rotation, a full disk, a torn write or a killed agent did to it."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.launches.answers import COMPLETED, FAILED, RESULTS, LaunchRow
from lattice_agent.launches import step_log
from lattice_agent.launches.step_log import MOST_BYTES, StepLog, read_rows


def row(number: int, state: str = COMPLETED, reason: str = "") -> LaunchRow:
    """The row of one launch."""
    return LaunchRow(number=number, state=state, command="./app", code=0 if state == COMPLETED else 1, reason=reason)  # type: ignore[arg-type]


def write(directory: Path, numbers: range, state: str = COMPLETED) -> StepLog:
    """A log in which an agent has written these rows before it was killed."""
    log = StepLog(directory, 12)
    for number in numbers:
        log.append(row(number, state), float(number))
    log.close()
    return log


def size(directory: Path) -> int:
    """The bytes of all segments."""
    return sum(path.stat().st_size for path in directory.glob("launches.*"))


def test_the_rows_of_one_agent_and_of_the_next_stand_in_one_log(tmp_path: Path) -> None:
    write(tmp_path, range(3))
    log = write(tmp_path, range(3, 5), FAILED)
    found = read_rows(tmp_path, 100)
    assert [each.number for each in found.rows] == [0, 1, 2, 3, 4]
    assert (found.dropped, found.left_out, found.counted) == (0, 0, 5)
    totals = log.totals()
    assert (totals.total, totals.completed, totals.failed) == (5, 3, 2)
    assert [one.step for one in totals.failures] == ["12.4", "12.3"]
    assert size(tmp_path) == (tmp_path / "launches.1").stat().st_size, "a restart begins no segment"


def test_a_row_that_was_written_just_before_its_agent_was_killed_is_written_and_counted_once(tmp_path: Path) -> None:
    write(tmp_path, range(3))
    log = StepLog(tmp_path, 12)
    assert not log.append(row(2), 9.0)
    assert log.append(row(3), 9.0)
    log.close()
    assert [each.number for each in read_rows(tmp_path, 100).rows] == [0, 1, 2, 3]
    assert log.totals().total == 4


def test_a_torn_last_row_is_dropped_and_what_follows_is_read(tmp_path: Path) -> None:
    write(tmp_path, range(3))
    path = tmp_path / "launches.1"
    path.write_bytes(path.read_bytes()[:-7])
    log = write(tmp_path, range(2, 4))
    assert [each.number for each in read_rows(tmp_path, 100).rows] == [0, 1, 2, 3]
    assert log.totals().total == 4


def test_a_torn_head_of_a_segment_is_removed(tmp_path: Path) -> None:
    write(tmp_path, range(2))
    (tmp_path / "launches.2").write_bytes(b"1 ")
    write(tmp_path, range(2, 3))
    assert [each.number for each in read_rows(tmp_path, 100).rows] == [0, 1, 2]


def test_a_full_disk_loses_rows_and_neither_counts_nor_later_rows(tmp_path: Path) -> None:
    log = StepLog(tmp_path / "gone", 12)  # no row can be written
    log.append(row(0), 1.0)
    (tmp_path / "gone").mkdir()
    log.append(row(1, FAILED), 2.0)
    log.close()
    found = read_rows(tmp_path / "gone", 100)
    assert ([each.number for each in found.rows], found.dropped, found.counted) == ([1], 1, 2)
    assert log.totals().total == 2


def test_a_log_of_another_format_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "launches.1").write_bytes(b"7 0\nwhatever")
    log = write(tmp_path, range(1))
    assert (tmp_path / "launches.1").read_bytes() == b"7 0\nwhatever"
    assert log.totals().total == 1


def test_one_launch_is_found_among_all(tmp_path: Path) -> None:
    write(tmp_path, range(30))
    assert [each.number for each in read_rows(tmp_path, 1, 17).rows] == [17]
    assert read_rows(tmp_path, 1, 170).rows == []


def test_the_newest_rows_are_read_and_the_others_counted(tmp_path: Path) -> None:
    write(tmp_path, range(30))
    found = read_rows(tmp_path, 10)
    assert [each.number for each in found.rows] == list(range(20, 30))
    assert (found.left_out, found.dropped) == (20, 0)


def test_the_log_of_many_long_rows_is_no_larger_than_its_limit_and_says_what_it_dropped(tmp_path: Path) -> None:
    log = StepLog(tmp_path, 12)
    for number in range(5000):
        log.append(row(number, FAILED, "x" * 4000), float(number))
        assert number % 500 or size(tmp_path) <= MOST_BYTES
    log.close()
    assert MOST_BYTES // 2 < size(tmp_path) <= MOST_BYTES
    found = read_rows(tmp_path, 10_000)
    assert found.dropped > 0
    assert found.dropped + len(found.rows) == 5000
    assert found.rows[-1].number == 4999
    assert log.totals().failed == 5000


@settings(max_examples=40, deadline=None)
@given(
    agents=st.lists(st.lists(st.tuples(st.sampled_from(RESULTS), st.integers(0, 250)), max_size=60), min_size=1, max_size=4),
    torn=st.integers(0, 40),
)
def test_whatever_agents_write_and_tear_every_row_is_kept_or_counted(
    tmp_path_factory: object, agents: list[list[tuple[str, int]]], torn: int
) -> None:
    directory = tmp_path_factory.mktemp("log")  # type: ignore[attr-defined]
    number, written = 0, 0
    for rows in agents:
        log = StepLog(directory, 12)
        for state, length in rows:
            log.append(row(number, state, "r" * length), float(number))
            number, written = number + 1, written + 1
        log.close()
    segments = sorted(directory.glob("launches.*"))
    lost = 0
    if segments and torn and agents[-1]:
        data = segments[-1].read_bytes()
        segments[-1].write_bytes(data[: max(data.index(b"\n") + 1, len(data) - torn)])
        lost = 1
    found = read_rows(directory, 10_000)
    assert written - lost <= len(found.rows) + found.dropped <= written
    assert [each.number for each in found.rows] == sorted(each.number for each in found.rows)
    assert StepLog(directory, 12).totals().total == found.counted
    assert step_log.has_log(directory) == bool(segments)
