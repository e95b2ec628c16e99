"""Prints errors and warnings as Slurm's programs do: each line behind the program's name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from lattice.cli.failures import explain
from lattice.cli.render.text import printable

if TYPE_CHECKING:
    from lattice.cli.console import Outside
    from lattice.errors import LatticeError


def error(outside: Outside, program: str, *sentences: str) -> None:
    """Writes each line of the sentences as an error of the program."""
    _write(outside, f"{program}: error: ", sentences)


def warn(outside: Outside, program: str, sentences: Iterable[str]) -> None:
    """Writes each sentence as a warning of the program."""
    _write(outside, f"{program}: warning: ", sentences)


def say(outside: Outside, program: str, *sentences: str) -> None:
    """Writes each sentence as a message of the program."""
    _write(outside, f"{program}: ", sentences)


def complain(outside: Outside, program: str, failure: LatticeError, before: str = "") -> None:
    """Writes an error of Lattice as one of the program, `before` in front of its sentence, with the hint that belongs to it."""
    first, *more = explain(failure)
    error(outside, program, before + first.removeprefix("Error: "), *(line.strip() for line in more))


def plain(outside: Outside, text: str) -> None:
    """Writes lines to standard error as they are, as getopt does."""
    _write(outside, "", [text])


def answer(outside: Outside, text: str) -> None:
    """Writes a text of the program itself, its version or its usage, to standard output."""
    outside.stdout.write(text + "\n")


def ask(outside: Outside, question: str) -> None:
    """Writes a question to standard output, where Slurm's programs ask, and leaves the cursor behind it."""
    outside.stdout.write(printable(question) + " ")
    outside.stdout.flush()


def _write(outside: Outside, lead: str, sentences: Iterable[str]) -> None:
    """Writes each line of the sentences behind `lead` to standard error."""
    for sentence in sentences:
        for line in sentence.split("\n"):
            outside.stderr.write(printable(lead + line) + "\n")
