"""`lattice-agent replay FILE`: prints the events and instructions of a stimulus log, and whether this version decides the same."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import msgspec

from lattice import __version__
from lattice.errors import Corrupt
from lattice_agent.lifecycle.replay import Step, replay
from lattice_agent.lifecycle.stimulus_log import Stimulus
from lattice_agent.lifecycle.stimulus_text import CheckpointLine, Header, decode, without_sentences

EXIT_SAME, EXIT_DIFFERENT, EXIT_REFUSED, EXIT_CORRUPT = 0, 1, 2, 3


def main(argv: Sequence[str], out: TextIO | None = None) -> int:
    """Replays the stimulus log that `argv` names and prints its events and differences; returns the exit code.

    0: everything is the same, 1: something differs, 2: the file cannot be read, 3: it is no stimulus log. Flags that do not read end the
    process.
    """
    parser = argparse.ArgumentParser(prog="lattice-agent replay", description=__doc__, allow_abbrev=False)
    parser.add_argument("file", type=Path, metavar="FILE", help="stimulus log of a node")
    parser.add_argument("--allocation", default="", metavar="UID", help="only what names this allocation")
    given = parser.parse_args(list(argv))
    try:
        lines = decode(given.file.read_bytes(), str(given.file))
    except OSError as error:
        sys.stderr.write(f"{given.file} cannot be read: {error.strerror}\n")
        return EXIT_REFUSED
    except Corrupt as error:
        sys.stderr.write(f"{error.message}\n")
        return EXIT_CORRUPT
    events, different = 0, 0
    for step in replay(lines):
        events += isinstance(step.line, Stimulus)
        different += not step.same
        _tell(step, given.allocation, out or sys.stdout)
    end = "all of them lead to the same" if not different else f"{different} of its lines differ"
    (out or sys.stdout).write(f"{events} events replayed: {end}\n")
    return EXIT_DIFFERENT if different else EXIT_SAME


def _tell(step: Step, allocation: str, out: TextIO) -> None:
    """Prints one line of the log where it concerns the allocation (empty: any) or differs, with both sides of a difference."""
    match step.line:
        case Header() as header:
            out.write(f"node {header.node}, written by {header.agent} at {header.written} (boottime {header.boottime:.3f})\n")
            if header.agent != __version__:
                out.write(f"this is {__version__}: what it decides otherwise may be so on purpose\n")
        case CheckpointLine(gap=True):
            out.write("events are missing here\n")
        case Stimulus() as stimulus if allocation.encode() in step.recorded or not step.same:
            orders = ", ".join(f"{type(one).__name__}{_body(one)}" for one in step.instructions) or "nothing"
            event = without_sentences(stimulus.event)
            out.write(f"{stimulus.boottime:14.3f}  {type(event).__name__}{_body(event)}\n{'':16}-> {orders}\n")
        case _:
            pass  # it concerns another allocation, or is a checkpoint that is as it was
    if not step.same:
        out.write(f"  DIFFERS\n  recorded {step.recorded.decode().rstrip()}\n  replayed {step.replayed.decode().rstrip()}\n")
    if step.flaw:
        out.write(f"  INCONSISTENT: {step.flaw}\n")


def _body(value: object) -> str:
    """Returns an event's or instruction's fields as JSON; empty where it has none."""
    return msgspec.json.encode(value).decode() if msgspec.to_builtins(value) else ""
