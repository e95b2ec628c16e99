"""The state directory: what was decided, what became of it, and how far the plan was seen (state directory 1).

Synchronous file work without decisions; `LinuxHost` calls it in a thread. The journal of an attempt is fsynced
before its first fork; the right to start it is the file `shim`, which is taken once by link(2).
"""

from __future__ import annotations

import os
import secrets
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from lattice.errors import Corrupt, NotFound
from lattice_agent import shim
from lattice_agent.host.interface import ExitRecord, Key, Running, Work

FORMAT = 1
KEEP_SECONDS = 7 * 86400.0
RESERVE_BYTES = 64 << 10
_T = TypeVar("_T")
_NOBODY = Running(0, 0, 0.0, 0.0)


@dataclass(frozen=True)
class Entry:
    """One journal: what was decided, in which boot."""

    boot: str
    work: Work


class Journal:
    """The one owner of STATE, but for what a shim writes into its attempt's directory."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.attempts_dir = state_dir / "attempts"

    def open(self) -> None:
        """Makes the directory, or refuses one of another format (Corrupt)."""
        for directory in (self.state_dir, self.attempts_dir):
            directory.mkdir(parents=True, exist_ok=True)
            directory.chmod(0o711)
        found = self._read("format")
        if found is None:
            shim.write_durably(str(self.state_dir), "format", f"{FORMAT}\n".encode())
        elif found.strip() != str(FORMAT).encode():
            raise Corrupt(f"{self.state_dir} has the state format {found.decode(errors='replace').strip()!r}; this agent reads {FORMAT}")
        if not self._read("instance"):
            shim.write_durably(str(self.state_dir), "instance", f"{secrets.token_hex(8)}\n".encode())

    def instance(self) -> str:
        """The directory's random id."""
        return (self._read("instance") or b"").decode().strip()

    def seen_seq(self) -> int:
        """The highest plan seq kept; a file that is not a number is Corrupt."""
        text = self._read("seq")
        if text is None:
            return 0
        text = text.strip()
        if not text.isdigit():
            raise Corrupt(f"{self.state_dir / 'seq'} holds {text[:40]!r}, not a number: remove it only if this node runs nothing")
        return int(text)

    def remember_seq(self, seq: int) -> None:
        """Keeps it durably."""
        shim.write_durably(str(self.state_dir), "seq", f"{seq}\n".encode())

    def directory(self, key: Key) -> Path:
        """Where the attempt's files stand."""
        return self.attempts_dir / f"{key.uid}-{key.attempt}"

    def known(self) -> list[Key]:
        """Every attempt that has a directory."""
        return sorted(key for path in self.attempts_dir.iterdir() if (key := parse_key(path.name)))

    def write(self, work: Work, boot: str) -> None:
        """Makes the attempt's directory with journal, script and reserve, durably."""
        directory = self.directory(work.key)
        directory.mkdir(exist_ok=True)
        directory.chmod(0o711)
        with (directory / "reserve").open("wb") as reserve:
            os.posix_fallocate(reserve.fileno(), 0, RESERVE_BYTES)
        body = msgspec.json.encode(Entry(boot, work))
        shim.write_durably(str(directory), "journal", f"{FORMAT}\n".encode() + body + b"\n")
        shim.sync_directory(str(self.attempts_dir))

    def write_script(self, key: Key, script: str, owner: tuple[int, int] | None) -> Path:
        """The script, readable and executable for its owner alone."""
        path = self.directory(key) / "script"
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o500)
        with os.fdopen(fd, "wb") as file:
            file.write(script.encode())
            if owner:
                os.fchown(fd, *owner)
        return path

    def entry(self, key: Key) -> Entry | None:
        """The journal; None when it is absent, torn, or of another format."""
        return _decode(self._read_of(key, "journal"), Entry)

    def claimed(self, key: Key) -> Running | None:
        """Who took the right to start; pid 0: it was ended before, or has no tasks here. None: nobody yet."""
        lines = (self._read_of(key, "shim") or b"").split(b"\n")
        try:
            pid, ticks, started, boottime = lines[1].split()
            return Running(int(pid), int(ticks), float(started), float(boottime))
        except (IndexError, ValueError):
            return None

    def claim(self, key: Key, running: Running = _NOBODY) -> bool:
        """Takes the right to start away from every shim; False when one has it. NotFound without a directory."""
        text = shim.encode_claim(running.pid, running.start_ticks, running.started, running.started_boottime)
        try:
            shim.claim(str(self.directory(key)), text)
        except FileExistsError:
            return False
        except FileNotFoundError as error:
            raise NotFound(f"there is no attempt {key.attempt} of {key.uid} on this node") from error
        except OSError:  # a full disk: what ends here needs the room that was kept for its end
            (self.directory(key) / "reserve").unlink(missing_ok=True)
            return self._claim_again(key, text)
        return True

    def _claim_again(self, key: Key, text: bytes) -> bool:
        try:
            shim.claim(str(self.directory(key)), text)
        except FileExistsError:
            return False
        return True

    def exit_record(self, key: Key) -> ExitRecord | None:
        """How it ended; None while it has not, or when no shim could say."""
        return _decode(self._read_of(key, "exit"), ExitRecord)

    def write_empty_exit(self, key: Key, boot: str, end: float, *, failure: str = "", unfit: bool = False) -> None:
        """The record of an attempt that had no tasks here, or never began."""
        text = shim.encode_exit(key.uid, key.attempt, boot, [], end, failure, unfit=unfit)
        shim.write_durably(str(self.directory(key)), "exit", text)

    def forgotten(self, key: Key) -> bool:
        """Whether it is settled."""
        return (self.directory(key) / "settled").exists()

    def forget(self, key: Key, now: float) -> None:
        """Settles it: exit record and logs stay for a while."""
        directory = self.directory(key)
        if not directory.is_dir():
            return
        shim.write_durably(str(directory), "settled", f"{now!r}\n".encode())
        for name in ("script", "reserve"):
            (directory / name).unlink(missing_ok=True)

    def settled(self) -> list[Key]:
        """Attempts that are settled and still kept, the longest settled first."""
        return [key for at, key in sorted((self._settled_at(key), key) for key in self.known()) if at > 0.0]

    def prune(self, now: float) -> int:
        """Removes what was settled more than 7 days ago; how many."""
        old = [key for key in self.known() if 0.0 < self._settled_at(key) < now - KEEP_SECONDS]
        for key in old:
            shutil.rmtree(self.directory(key), ignore_errors=True)
        return len(old)

    def _settled_at(self, key: Key) -> float:
        with suppress(ValueError):
            return float(self._read_of(key, "settled") or 0)
        return 0.0

    def _read(self, name: str) -> bytes | None:
        try:
            return (self.state_dir / name).read_bytes()
        except FileNotFoundError:
            return None

    def _read_of(self, key: Key, name: str) -> bytes | None:
        try:
            return (self.directory(key) / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None


def parse_key(name: str) -> Key | None:
    """`UID-ATTEMPT`, or None."""
    uid, _, attempt = name.rpartition("-")
    return Key(uid, int(attempt)) if uid and attempt.isdigit() else None


def _decode(data: bytes | None, kind: type[_T]) -> _T | None:
    number, _, body = (data or b"").partition(b"\n")
    if number != str(FORMAT).encode():
        return None
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(body, type=kind)
    return None
