"""Keeps the launches of an attempt in its run directory, in memory: what an agent that is started again goes on with."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from lattice_agent.standalone import durable
from lattice_agent.state.entry_failure import EntryFailure, note_entry_failure

DIRECTORY: Final = "launches"
BEGUN, STARTED, OVER = "begun", "started", "over"
"""States of a launch: its ranks are being prepared; all were told to begin; all have ended."""
GRACE, KILL = "grace", "kill"


class NodePlaces(msgspec.Struct, frozen=True):
    """The ranks of a launch on one node: the node's place in the allocation, its ranks, each with its CPUs, and the CPUs that count."""

    name: str
    index: int
    ranks: tuple[int, ...]
    cpus: tuple[tuple[int, ...], ...] = ()
    held: tuple[int, ...] = ()
    gpus: tuple[tuple[int, ...] | None, ...] = ()
    held_gpus: tuple[int, ...] = ()


class KeeperState(msgspec.Struct, frozen=True):
    """The first message of a keeper to an agent that connects; other fields are for its own node."""

    room: int | None = None
    frames: int = 1
    """How many frames it has kept so far, acknowledged ones too."""


RankRow = Annotated[list[int | float], msgspec.Meta(min_length=2, max_length=64)]
"""A rank, its exit code, and what else the step log has of it."""


class KeeperReport(msgspec.Struct, frozen=True):
    """The report of a keeper once all its ranks have ended."""

    failure: str = ""
    ranks: list[RankRow] = []
    cpu_seconds: float = 0.0
    peak_memory: int | float = 0


class KeeperNote(msgspec.Struct, frozen=True):
    """The last message about a launch that is removed on a node; `noted`: the report of its keeper, where nobody has heard it."""

    noted: KeeperReport | None = None


class LaunchRecord(msgspec.Struct):
    """One launch of an attempt: who asked, where its ranks are, and how far it is."""

    number: int
    request_id: str
    """The random id of the request, in hexadecimal digits."""
    name: str
    command: str
    """The command as people read it, cut."""
    nodes: tuple[NodePlaces, ...]
    input: str = "none"
    """The ranks that take the client's input: all, none, or one rank's number."""
    pmi: bool = False
    """Whether its ranks find a PMI server."""
    caller_node: str = ""
    caller_pid: int = 0
    caller_ticks: int = 0
    begun: float = 0.0
    """Seconds since the epoch."""
    state: str = BEGUN
    done: dict[int, Any] = {}
    """By place in `nodes`, what its keeper has reported at its end; None: it left nothing."""
    code: int = 0
    """The exit code of the whole, once it is over."""
    refusal: str = ""
    """Why it did not start; empty: it did."""
    ended: float = 0.0
    ending: str = ""
    """How its ranks are being ended: by TERM and grace, or by KILL; empty: they are not."""
    result: str = ""
    """The result that the order to end it brings about, in sacct's words; empty: that of its ranks."""
    why: str = ""
    """Why it was ordered to end, as a sentence; empty: it was not."""


class RecordStore:
    """Reads and writes the records of one attempt's launches."""

    def __init__(self, run_directory: Path) -> None:
        self._run_directory, self.directory = run_directory, run_directory / DIRECTORY

    def keep_record(self, record: LaunchRecord) -> None:
        """Writes a record whole, in place of an older one; raises OSError where there is no room, or the attempt is gone."""
        self.directory.mkdir(mode=0o700, exist_ok=True)
        durable.write_in_memory(str(self.directory), f"{record.number}.json", msgspec.json.encode(record))

    def drop_record(self, number: int) -> None:
        """Removes a record; nothing where there is none."""
        with suppress(OSError):
            (self.directory / f"{number}.json").unlink()

    def note_entry_failure(self, failure: EntryFailure) -> None:
        """Notes why the launch of the entrypoint has no exit code; raises OSError where there is no room."""
        note_entry_failure(self._run_directory, failure)

    def is_closed(self) -> bool:
        """Tells whether the attempt is being ended, so that no launch begins any more."""
        return durable.are_launches_closed(str(self._run_directory))

    def read_all(self) -> list[LaunchRecord]:
        """Returns every record that reads, by number."""
        found = list[LaunchRecord]()
        for path in self.directory.glob("*.json") if self.directory.is_dir() else ():
            with suppress(OSError, msgspec.MsgspecError):
                found.append(msgspec.json.decode(path.read_bytes(), type=LaunchRecord))
        return sorted(found, key=lambda record: record.number)
