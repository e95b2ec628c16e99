"""Reads what a shim has noted of its tasks in the run directory: what is known of their ends where it was killed before its exit record.

The file `tasks` has a line of each task that was started and one of each that has ended. Nothing here guesses: a task whose end is neither
noted nor shown by the kernel has none.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from lattice_agent.attempts import TaskExit
from lattice_agent.standalone import durable

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_STATE, _PARENT, _USER_TICKS, _SYSTEM_TICKS, _EXIT_CODE = 0, 1, 11, 12, 49
"""Places behind the program's name in /proc/PID/stat, of fields 3, 4, 14, 15 and 52."""


class _TaskNote(msgspec.Struct, frozen=True):
    """One line: a task that was started or, with an `end`, has ended."""

    rank: int
    pid: int
    start: float
    code: int = 0
    signal: int = 0
    end: float | None = None
    utime: float = 0.0
    stime: float = 0.0
    maxrss: int = 0


def known_ends(run_directory: Path) -> tuple[TaskExit, ...]:
    """Returns the ends of an attempt's tasks, by rank, where they tell how it has ended: all have ended, or one that did had failed.

    Empty: nobody can tell. Ends that are not known are left out; the first failure counts, and they came after it.
    """
    ended, running = _read(run_directory)
    if running and not any(task.code for task in ended):
        return ()
    return ended


def note_zombies(run_directory: Path, shim: int, now: float) -> int:
    """Notes the ends of tasks that have ended and that their shim (a pid) has not reaped, which the kernel keeps while that lives.

    Their time is `now`, in seconds since the epoch. Returns how many they are. Raises OSError where there is no room.
    """
    found = [end for task in _read(run_directory)[1] if (end := _zombie_end(task, shim, now)) is not None]
    for end in found:
        durable.note_task_end(str(run_directory), msgspec.to_builtins(end))
    return len(found)


def _read(run_directory: Path) -> tuple[tuple[TaskExit, ...], list[_TaskNote]]:
    """Returns the ends that are noted, and the tasks without one; nothing of a file that is absent, or of another format."""
    started, ended = dict[int, _TaskNote](), dict[int, TaskExit]()
    with suppress(OSError):
        head, *lines = (run_directory / durable.TASKS).read_bytes().split(b"\n")
        for text in lines if head == str(durable.FORMAT).encode() else ():
            with suppress(msgspec.MsgspecError):  # the last one may be torn
                line = msgspec.json.decode(text, type=_TaskNote)
                started[line.rank] = line
                if line.end is not None:
                    ended[line.rank] = TaskExit(
                        line.rank, line.pid, line.code, line.signal, line.start, line.end, line.utime, line.stime, line.maxrss
                    )
    running = [line for rank, line in started.items() if rank not in ended]
    return tuple(ended[rank] for rank in sorted(ended)), running


def _zombie_end(task: _TaskNote, shim: int, now: float) -> TaskExit | None:
    """Returns the end of a task by what the kernel keeps of it for its parent; None: it has not ended, or is another's child."""
    try:
        fields = Path(f"/proc/{task.pid}/stat").read_bytes().rpartition(b")")[2].split()
        if fields[_STATE] != b"Z" or int(fields[_PARENT]) != shim:
            return None
        code = os.waitstatus_to_exitcode(int(fields[_EXIT_CODE]))
        utime, stime = (int(fields[place]) / _TICKS_PER_SECOND for place in (_USER_TICKS, _SYSTEM_TICKS))
    except (OSError, IndexError, ValueError):
        return None
    return TaskExit(task.rank, task.pid, code if code >= 0 else 128 - code, max(0, -code), task.start, now, utime, stime)
