"""Remembers the steps of an attempt's prologue: each is noted before it begins, when it is done, before it is undone, and then.

The notes are lines of JSON in two files named `steps`. A step whose effect outlives a reboot is noted on the disk, fsynced before it
begins; the others are noted in the run directory, which goes with the boot as their effects do. A torn last line is no note.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from lattice_agent.attempts import Key, StepProgress
from lattice_agent.standalone import durable as durable_files
from lattice_agent.state.journal import Journal

STEPS = "steps"
BEGUN, DONE, UNDOING, UNDONE = "begun", "done", "undoing", "undone"


class Note(msgspec.Struct, frozen=True):
    """One line of the journal: a step's name, its state (begun, done, undoing, undone), the variables it gives the work, and the time."""

    step: str
    state: str
    variables: dict[str, str] = {}
    at: float = 0.0
    """Seconds since the epoch; 0: an older agent wrote it."""


class StepJournal:
    """Reads and appends the notes on the prologue steps of a node's attempts, by blocking file operations."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def note(self, key: Key, step: str, state: str, *, durable: bool, variables: Mapping[str, str] | None = None, at: float = 0.0) -> None:
        """Appends a note that a step of the attempt's prologue is in `state`, with `variables` for the work, at the time `at`.

        With `durable` the note goes to the attempt's directory on disk and is synced, else to its run directory in memory; there too where
        the disk refuses it for a step that is undone or being undone. Raises OSError where no note could be written.
        """
        line = msgspec.json.encode(Note(step, state, dict(variables or {}), at)) + b"\n"
        try:
            _append(self._journal.directory(key) if durable else self._journal.run_directory(key), line, durable=durable)
        except OSError:
            if not durable or state not in (UNDOING, UNDONE):
                raise
            _append(self._journal.run_directory(key), line, durable=False)

    def history(self, key: Key) -> list[StepProgress]:
        """Returns every step of an attempt that was ever begun and of which notes are kept, undone ones too, in order of their begin."""
        found: dict[str, StepProgress] = {}
        for directory in (self._journal.directory(key), self._journal.run_directory(key)):
            for note in _read(directory / STEPS):
                found[note.step] = following(found.get(note.step), note.step, note.state, note.at)
        return sorted(found.values(), key=lambda step: step.begun)

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


def following(before: StepProgress | None, step: str, state: str, at: float) -> StepProgress:
    """Returns the progress of a step that comes into `state` at a time (seconds since the epoch); `before`: its progress until then."""
    if before is None or state == BEGUN:
        return StepProgress(step, state, at, begun=at if state == BEGUN else 0.0)
    return replace(before, state=state, since=at, bytes=0, size=0, done=at if state == DONE else before.done)


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
