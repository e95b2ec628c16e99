"""Prints the logs of components, whole or followed as they grow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TextIO

from lattice_dev.waiting import Clock


def show(files: Sequence[Path], out: TextIO) -> None:
    """Prints whole logs one after the other; each line begins with the log's component where there are several."""
    for file in files:
        with file.open(errors="replace") as text:
            out.writelines(_prefix(file, files) + line for line in text)


def follow(files: Sequence[Path], out: TextIO, clock: Clock) -> None:
    """Prints the last 4 KiB of each log and then each line that is added, until interrupted; never returns."""
    tails = [(file, _grow(file)) for file in files]
    while True:
        for file, tail in tails:
            for line in tail:
                if not line:
                    break
                out.write(_prefix(file, files) + line)
        out.flush()
        clock.sleep(0.2)


def _grow(file: Path) -> Iterator[str]:
    """Yields each whole line of the last 4 KiB and of what is added, and "" whenever there is none now; never ends."""
    with file.open("rb") as text:
        text.seek(max(0, file.stat().st_size - 4096))
        rest = b""
        while True:
            rest += text.read()
            *lines, rest = rest.split(b"\n")
            yield from (line.decode(errors="replace") + "\n" for line in lines)
            yield ""


def _prefix(file: Path, files: Sequence[Path]) -> str:
    """Returns the name of a log as a prefix of its lines; empty where it is the only one."""
    return f"{file.stem:<24} " if len(files) > 1 else ""
