"""Reads what `programs/mark.c`, `initialize.c` and `fence.c` have said of launches; pure. Times are in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lattice.errors import Corrupt
from lattice.units import is_digits
from lattice_dev.bench.figures import percentile

NANOSECONDS = 1e9


@dataclass(frozen=True)
class RanLaunch:
    """One launch of many: when its `srun` was started and had ended, in seconds since the epoch, and its wait status."""

    began: float
    ended: float
    status: int


def read_marks(text: str) -> list[tuple[str, float]]:
    """Returns the words and times of all marks, in order, in seconds since the epoch; raises Corrupt, with the text, for another line."""
    found = []
    for line in text.splitlines():
        word, _, at = line.partition(" ")
        if word not in ("begin", "first", "start", "ready") or not is_digits(at, 20):
            raise Corrupt(f"a launch has said {line!r}, in: {text[-1000:]}", reason="LaunchFailed")
        found.append((word, int(at) / NANOSECONDS))
    return found


def first_instructions(text: str) -> list[float]:
    """Returns the seconds from the exec of each `srun` to the first instruction of its one rank; raises Corrupt where one of both lacks."""
    marks = read_marks(text)
    begins, firsts = marks[::2], marks[1::2]
    if len(begins) != len(firsts) or {word for word, _ in begins} - {"begin"} or {word for word, _ in firsts} - {"first"}:
        raise Corrupt(f"launches have not said begin and first by turns: {text[-1000:]}", reason="LaunchFailed")
    return [first - began for (_, began), (_, first) in zip(begins, firsts, strict=True)]


def until_ready(text: str, ranks: int) -> tuple[float, float]:
    """Returns the seconds from the exec of a launcher, and those from the begin of the first of its ranks, until all of them are ready.

    A text without a `begin` counts from that first rank. Raises Corrupt where not so many ranks have said so.
    """
    marks = read_marks(text)
    starts, readies = ([at for word, at in marks if word == wanted] for wanted in ("start", "ready"))
    if not len(starts) == len(readies) == ranks:
        raise Corrupt(f"{len(readies)} of {ranks} ranks were ready: {text[-1000:]}", reason="LaunchFailed")
    began = next((at for word, at in marks if word == "begin"), min(starts))
    return max(readies) - began, max(readies) - min(starts)


def read_many(text: str) -> list[RanLaunch]:
    """Returns the launches of `mark many` in order of their ends; a last line that is cut is left out. Raises Corrupt for another line."""
    found = []
    for line in text[: text.rfind("\n") + 1].splitlines():
        words = line.split()
        if len(words) != 4 or words[0] != "ran" or not all(is_digits(word, 20) for word in words[1:]):
            raise Corrupt(f"launches have said: {line}", reason="LaunchFailed")
        found.append(RanLaunch(int(words[1]) / NANOSECONDS, int(words[2]) / NANOSECONDS, int(words[3])))
    return found


def rate(ran: Sequence[RanLaunch]) -> float:
    """Returns launches a second, from the begin of the first to the end of the last."""
    return len(ran) / (max(each.ended for each in ran) - min(each.began for each in ran))


def growth(ran: Sequence[RanLaunch]) -> tuple[float, float]:
    """Returns the median seconds of a launch among the first fifth and among the last fifth."""
    fifth = max(1, len(ran) // 5)
    first, last = ran[:fifth], ran[-fifth:]
    return percentile((each.ended - each.began for each in first), 0.5), percentile((each.ended - each.began for each in last), 0.5)
