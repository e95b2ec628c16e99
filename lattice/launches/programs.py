"""Reads the file of `--multi-prog`: which program each rank runs (`srun(1)`, "MULTIPLE PROGRAM CONFIGURATION")."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lattice.errors import Rejected
from lattice.scripts.directives import split_line
from lattice.units import format_ranges, is_digits

MOST_BYTES: Final = 8 << 20
"""Characters of the programs and arguments of all tasks of a launch together, each of which counts 64 more."""


def read_programs(text: str, tasks: int, name: str) -> tuple[tuple[str, ...], ...]:
    """Returns program and arguments of each rank of 0 to `tasks` - 1, with `%t` as its number and `%o` as its place in its line.

    Raises Rejected, with the line of the file `name`, for one that does not read, for programs that are too long together, and for ranks
    that no line names.
    """
    programs: dict[int, tuple[str, ...]] = {}
    room = MOST_BYTES
    for number, line in _lines(text):
        place = f"--multi-prog: {name}, line {number}"
        words = split_line(line, place)
        if not words:
            continue
        if len(words) == 1:
            raise Rejected(f"{place}: no program stands behind {words[0]!r}", reason="BadPrograms")
        for offset, rank in enumerate(_ranks(words[0], tasks, place)):
            if rank in programs:
                raise Rejected(f"{place}: task {rank} has a program already", reason="BadPrograms")
            programs[rank] = tuple(word.replace("%t", str(rank)).replace("%o", str(offset)) for word in words[1:])
            room -= sum(64 + len(word) for word in programs[rank])
            if room < 0:
                limit = f"the limit is {MOST_BYTES >> 20} MiB: give the arguments in files"
                raise Rejected(f"{place}: the programs of all tasks are too long together, {limit}", reason="BadPrograms")
    if missing := [rank for rank in range(tasks) if rank not in programs]:
        shown = format_ranges(missing)
        raise Rejected(
            f"--multi-prog: {name} names no program for task {shown} of {tasks}: add a line, or give -n",
            reason="BadPrograms",
        )
    return tuple(programs[rank] for rank in range(tasks))


def _lines(text: str) -> list[tuple[int, str]]:
    """Returns the lines that are no comments with their numbers; one that ends with a backslash goes on in the next."""
    found: list[tuple[int, str]] = []
    joined, first = "", 0
    for number, line in enumerate(text.split("\n"), start=1):
        first = first or number
        if line.endswith("\\"):
            joined += line[:-1]
            continue
        if not (joined + line).lstrip().startswith("#"):
            found.append((first, joined + line))
        joined, first = "", 0
    return [*found, (first, joined)] if joined else found


def _ranks(text: str, tasks: int, place: str) -> Iterator[int]:
    """Yields the ranks that `0-2,5` or `*` (all) names, of those that the launch has; raises Rejected for other text."""
    if text == "*":
        yield from range(tasks)
        return
    for part in text.split(","):
        low, dash, high = part.partition("-")
        if not is_digits(low, 9) or not (is_digits(high, 9) if dash else not high):
            raise Rejected(f"{place}: {text!r} names no tasks: write for example 0, 1-3 or 0,4-7", reason="BadPrograms")
        if int(high or low) < int(low):
            raise Rejected(f"{place}: the range {part!r} runs backwards", reason="BadPrograms")
        yield from range(int(low), min(int(high or low), tasks - 1) + 1)
