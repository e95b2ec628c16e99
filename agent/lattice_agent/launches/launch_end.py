"""Decides how a launch ends: the rules that end it early, its exit code, and the words for the end of a task; pure."""

from __future__ import annotations

import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import msgspec

from lattice_agent.launches.record import KeeperNote, LaunchRecord


@dataclass(frozen=True)
class EndRules:
    """The rules that end a launch before its last rank: `-K`, `-W` and `-t` of srun; a restarted agent has them again with the client."""

    kill_on_bad_exit: bool = False
    wait_seconds: float | None = None
    time_seconds: float | None = None
    quiet: bool = False


def exit_code(record: LaunchRecord) -> int:
    """Returns a launch's exit code, 0 to 255: the highest of its ranks, 128 + n for signal n; 137 where a rank's end is unknown, 1 where it
    did not start.
    """
    if record.refusal:
        return 1
    codes = [_code_of(report, len(record.nodes[place].ranks)) for place, report in record.done.items()]
    return min(max([0, *codes]), 255)  # a code of 256 would end srun with 0


def _code_of(report: dict[str, Any] | None, ranks: int) -> int:
    """Returns the highest exit code that a node reports of so many ranks; 137 where it leaves one out."""
    rows = report.get("ranks", ()) if report is not None else ()
    return max([int(row[1]) for row in rows] + [137] * (len(rows) < ranks), default=0)


def read_note(body: bytes) -> dict[str, Any] | None:
    """Returns the report in the payload of a CLOSED; None: there is none, or it does not read."""
    with suppress(ValueError, RecursionError):
        noted: dict[str, Any] | None = msgspec.to_builtins(msgspec.json.decode(body, type=KeeperNote).noted)
        return noted
    return None


def describe_end(code: int, number: int) -> str:
    """Returns how a task has ended, as srun says it."""
    if not number:
        return f"Exited with exit code {code}"
    with suppress(ValueError):
        return signal.strsignal(number) or f"Signal {number}"
    return f"Signal {number}"
