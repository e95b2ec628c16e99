"""Keeps why the launch of an entrypoint has no exit code of its own, in its attempt's run directory; it replaces that of its client.

The launches of the head write it before the client is told; the journal reads it with the exit record. It goes with the run directory.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from lattice_agent.attempts import ExitRecord
from lattice_agent.standalone import durable

NAME: Final = "entry-failure"


class EntryFailure(msgspec.Struct, frozen=True):
    """The reason (a word of END_REASONS) and the sentence with which the attempt ends."""

    reason: str
    message: str


def note_entry_failure(run_directory: Path, failure: EntryFailure) -> None:
    """Writes the failure, once it is known; nothing where the attempt is gone. Raises OSError where there is no room."""
    if run_directory.is_dir():
        durable.write_in_memory(str(run_directory), NAME, msgspec.json.encode(failure))


def with_entry_failure(record: ExitRecord, run_directory: Path) -> ExitRecord:
    """Returns an exit record in which a noted failure stands for the exit code of the launch's client; the record itself where none is
    noted, or the client has ended with 0.
    """
    if record.failure or not any(task.code for task in record.tasks):
        return record
    with suppress(OSError, msgspec.MsgspecError):
        found = msgspec.json.decode((run_directory / NAME).read_bytes(), type=EntryFailure)
        return replace(record, tasks=(), failure=found.message, reason=found.reason)
    return record
