"""Looks at attempts for people: their steps with times, the mounts that the work sees, its limits and use, by journal, cgroups and /proc.

Nothing is changed, and nothing here is a secret: variables, scripts and output are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from lattice_agent.attempts import AttemptFacts, Key, ResourceUse, SeenMount
from lattice_agent.host.scopes import Scopes
from lattice_agent.standalone import meters
from lattice_agent.state.journal import Journal
from lattice_agent.state.step_journal import StepJournal

MOST_MOUNTS: Final = 32
LONGEST_TEXT: Final = 256
LARGEST_MOUNTINFO: Final = 1 << 20
"""Bytes of a process's mounts that are read: the work may make as many as it likes."""
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_LOOP: Final = re.compile(r"/dev/loop\d+")


class Inspection:
    """Reads, by blocking file operations, the facts of attempts that this node has or has had."""

    def __init__(self, journal: Journal, scopes: Scopes) -> None:
        self._journal, self._scopes = journal, scopes
        self._notes = StepJournal(journal)

    def look(self, key: Key) -> AttemptFacts:
        """Returns the facts of one attempt; without steps, mounts, limits and times where the node knows nothing of it."""
        record, claimed = self._journal.exit_record(key), self._journal.claimed(key)
        pids = self._scopes.work(key)
        mounts = list(self._mounts(key, pids))
        return AttemptFacts(
            steps=tuple(self._notes.history(key)),
            mounts=tuple(mounts[:MOST_MOUNTS]),
            mounts_left_out=max(0, len(mounts) - MOST_MOUNTS),
            limits=self._scopes.standing_limits(key),
            use=record.use if record is not None else self._use(key),
            processes=len(pids),
            started=claimed.started if claimed is not None else 0.0,
            ended=record is not None,
            failure=record.failure if record is not None else "",
        )

    def _use(self, key: Key) -> ResourceUse:
        """Returns the resources that an attempt has used so far, by its cgroups; 0 for what these do not count."""
        found = meters.read(self._scopes.entrances(key).meters, cpu_seconds=0.0)
        return ResourceUse(
            found.get("cpu_seconds", 0.0),
            int(found.get("peak_memory", 0)),
            int(found.get("memory_limit", 0)),
            int(found.get("oom_kills", 0)),
        )

    def _mounts(self, key: Key, pids: list[int]) -> Iterator[SeenMount]:
        """Yields the mounts in the namespace of the process that keeps it, or else of the work's first one, which the agent has not."""
        own = {place for place, _ in _mountinfo("self")}
        for pid in (*self._scopes.hold_pids(key), *sorted(pids)[:1]):
            found = [mount for place, mount in _mountinfo(str(pid)) if place not in own]
            if found:
                yield from found
                return


def _mountinfo(process: str) -> list[tuple[tuple[str, str, str], SeenMount]]:
    """Returns the mounts that a process sees, each with (device, root, mount point); empty where it has ended."""
    with suppress(OSError), Path("/proc", process, "mountinfo").open("rb") as file:
        lines = file.read(LARGEST_MOUNTINFO).decode(errors="replace").splitlines()
        return [found for line in lines if (found := _mount(line)) is not None]
    return []


def _mount(line: str) -> tuple[tuple[str, str, str], SeenMount] | None:
    """Returns a line of mountinfo as ((device, root, mount point), mount); None: it does not read."""
    before, dash, after = line.partition(" - ")
    words, rest = before.split(" "), after.split(" ")
    if not dash or len(words) < 5 or len(rest) < 2:
        return None
    device, root, target = words[2:5]
    return (device, root, target), SeenMount(_plain(target), rest[0][:LONGEST_TEXT], _source(_plain(rest[1])))


def _source(source: str) -> str:
    """Returns the source of a mount; of a loop device, the file behind it."""
    if _LOOP.fullmatch(source):
        with suppress(OSError):
            behind = Path("/sys/block", Path(source).name, "loop/backing_file").read_text(errors="replace")
            return behind.strip()[:LONGEST_TEXT]
    return source


def _plain(text: str) -> str:
    r"""Returns a text of mountinfo with its octal escapes (`\040` for a blank) resolved, cut to 256 characters."""
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text)[:LONGEST_TEXT]
