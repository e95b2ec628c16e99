"""Remembers the steps of an attempt's prologue: each is noted before it begins, when it is done, before it is undone, and then.

The notes are lines of JSON in two files named `steps`. A step whose effect outlives a reboot is noted on the disk, fsynced before it
begins; the others are noted in the run directory, which goes with the boot as their effects do. A torn last line is no note.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from lattice_agent.attempts import Key
from lattice_agent.standalone import durable as durable_files
from lattice_agent.state.journal import Journal

STEPS = "steps"
BEGUN, DONE, UNDOING, UNDONE = "begun", "done", "undoing", "undone"


class Note(msgspec.Struct, frozen=True):
    """One line of the journal: a step's name, its state (begun, done, undoing, undone), and the variables that it gives the work."""

    step: str
    state: str
    variables: dict[str, str] = {}


class StepJournal:
    """Reads and appends the notes on the prologue steps of a node's attempts, by blocking file operations."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def note(self, key: Key, step: str, state: str, *, durable: bool, variables: Mapping[str, str] | None = None) -> None:
        """Appends a note that a step of the attempt's prologue is in `state`, with the `variables` that it gives the work.

        With `durable` the note goes to the attempt's directory on disk and is synced, else to its run directory in memory; there too where
        the disk refuses it for a step that is undone or being undone. Raises OSError where no note could be written.
        """
        line = msgspec.json.encode(Note(step, state, dict(variables or {}))) + b"\n"
        try:
            _append(self._journal.directory(key) if durable else self._journal.run_directory(key), line, durable=durable)
        except OSError:
            if not durable or state not in (UNDOING, UNDONE):
                raise
            _append(self._journal.run_directory(key), line, durable=False)

    def standing(self, key: Key) -> dict[str, Note]:
        """Returns, by name of the step, the last note on each step of an attempt that has begun and is not undone; empty: there is none."""
        notes: dict[str, Note] = {}
        for directory in (self._journal.directory(key), self._journal.run_directory(key)):
            for note in _read(directory / STEPS):
                if note.state == UNDONE:
                    notes.pop(note.step, None)
                else:
                    notes[note.step] = note
        return notes


def _append(directory: Path, line: bytes, *, durable: bool) -> None:
    """Appends a line to the journal in a directory; ends an incomplete last line first."""
    new = not (directory / STEPS).exists()
    fd = os.open(directory / STEPS, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        durable_files.write_all(fd, line if new else b"\n" + line)
        if durable:
            os.fsync(fd)
    finally:
        os.close(fd)
    if durable and new:
        durable_files.sync_directory(str(directory))


def _read(path: Path) -> list[Note]:
    """Returns the notes of a file in order; torn lines are left out, a missing file has none."""
    found: list[Note] = []
    with suppress(FileNotFoundError, NotADirectoryError):
        for line in path.read_bytes().split(b"\n"):
            with suppress(msgspec.MsgspecError):
                found.append(msgspec.json.decode(line, type=Note))
    return found
