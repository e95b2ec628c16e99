"""What a shim has noted of its tasks tells an end, or nothing: no exit code is made up."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from lattice_agent.standalone import durable
from lattice_agent.state.task_notes import known_ends, note_zombies

TWO = [{"rank": 4, "pid": 40, "start": 1.0}, {"rank": 5, "pid": 50, "start": 1.5}]


def end(rank: int, code: int) -> dict[str, object]:
    """The end of one of the two, by a signal above 128."""
    return {"rank": rank, "pid": 10 * rank, "code": code, "signal": max(0, code - 128), "start": 1.0, "end": 2.0, "maxrss": 7}


def noted(place: Path, *ends: dict[str, object]) -> list[tuple[int, int, int]]:
    """Rank, code and signal of what is known."""
    durable.note_tasks(str(place), TWO)
    for each in ends:
        durable.note_task_end(str(place), each)
    return [(task.rank, task.code, task.signal) for task in known_ends(place)]


def test_the_ends_of_all_tasks_and_of_the_first_that_failed_are_known(tmp_path: Path) -> None:
    assert noted(tmp_path, end(5, 0), end(4, 137)) == [(4, 137, 9), (5, 0, 0)]
    assert noted(tmp_path, end(5, 3)) == [(5, 3, 0)], "what follows a failure does not change the end"


def test_without_the_end_of_all_tasks_or_a_failure_nothing_is_known(tmp_path: Path) -> None:
    assert known_ends(tmp_path) == ()
    assert noted(tmp_path) == []
    assert noted(tmp_path, end(5, 0)) == []


@pytest.mark.parametrize(
    "text", ["", "2\n{}\n", "1\n", '1\n{"rank": 0, "pid": 1, "start": 1.0}\n{"rank": 0, "pid": 1, "sta', "1\n\xff\n[]\n"]
)
def test_a_file_that_is_torn_or_of_another_format_tells_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / durable.TASKS).write_text(text)
    assert known_ends(tmp_path) == ()
    assert note_zombies(tmp_path, os.getpid(), 3.0) == 0


def test_no_end_is_noted_where_the_start_was_not(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        durable.note_task_end(str(tmp_path), end(4, 0))
    assert list(tmp_path.iterdir()) == []


def test_what_nobody_has_reaped_is_known_of_the_kernel_and_only_of_the_shims_own_children(tmp_path: Path) -> None:
    tasks = [subprocess.Popen(["/bin/sh", "-c", text]) for text in ("exit 5", "kill -USR1 $$", "sleep 300")]
    for task in tasks[:2]:
        os.waitid(os.P_PID, task.pid, os.WEXITED | os.WNOWAIT)
    durable.note_tasks(str(tmp_path), [{"rank": rank, "pid": task.pid, "start": 1.0} for rank, task in enumerate(tasks)])
    try:
        assert note_zombies(tmp_path, os.getpid() + 1, 3.0) == 0
        assert note_zombies(tmp_path, os.getpid(), 3.0) == 2
        assert note_zombies(tmp_path, os.getpid(), 4.0) == 0, "each is noted once"
        assert [(task.code, task.signal, task.end) for task in known_ends(tmp_path)] == [(5, 0, 3.0), (138, 10, 3.0)]
    finally:
        for task in tasks:
            task.kill()
            task.wait()
