"""Shows the steps of making an instance: one line a step, a tick, and the seconds it took."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Protocol, TextIO

from lattice_dev.waiting import Clock


class Progress(Protocol):
    """Receives steps and remarks."""

    def step(self, text: str) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which the caller does one step; the step is reported when the context ends."""
        ...

    def note(self, text: str) -> None:
        """Reports a remark that a person should read."""
        ...


class Quiet:
    """A progress that shows nothing, for libraries."""

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Yields once and reports nothing."""
        yield

    def note(self, text: str) -> None:
        """Drops the remark."""


class Lines:
    """A progress that prints a line a step; colours only on a terminal and without NO_COLOR."""

    def __init__(self, out: TextIO, clock: Clock) -> None:
        self._out = out
        self._clock = clock
        self._colour = out.isatty() and not os.environ.get("NO_COLOR")
        self._began = clock.monotonic()

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Prints a line at the end of the context: `✓ text 1.2 s`, or `✗ text 1.2 s` when an error left it."""
        began = self._clock.monotonic()
        try:
            yield
        except BaseException:
            self._line("✗", "31", text, self._clock.monotonic() - began)
            raise
        self._line("✓", "32", text, self._clock.monotonic() - began)

    def note(self, text: str) -> None:
        """Prints a line `! text` at once."""
        print(f"{self._paint('!', '33')} {text}", file=self._out, flush=True)

    def conclude(self, text: str) -> None:
        """Prints the text with the seconds since this progress was made."""
        self._line("✓", "32", text, self._clock.monotonic() - self._began)

    def _line(self, mark: str, colour: str, text: str, seconds: float) -> None:
        """Prints a line with a mark in colour, a text, and seconds."""
        print(f"{self._paint(mark, colour)} {text:<60} {seconds:5.1f} s", file=self._out, flush=True)

    def _paint(self, text: str, colour: str) -> str:
        """Returns a text in colour, where colours are used."""
        return f"\x1b[{colour}m{text}\x1b[0m" if self._colour else text


def terminal(clock: Clock) -> Lines:
    """Returns a progress that prints on standard error, so that standard output stays for answers."""
    return Lines(sys.stderr, clock)
