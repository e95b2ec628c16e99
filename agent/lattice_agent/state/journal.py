"""Remembers decisions and ends: in the state directory, on a disk; those of this boot in the run directory, too, in memory.

All of it is synchronous file work without decisions; `LinuxHost` calls it in a thread. Format 1 is written, 1 and 2 are read. The
journal of an attempt is fsynced before its first fork; the right to start it is the file `shim` of the run directory, which is taken
once by link(2). What stands in memory is read there, so that a disk that does not answer is not asked.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import struct
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from lattice.errors import Corrupt, NotFound
from lattice.formats import check_format
from lattice_agent.attempts import ExitRecord, Key, NodeWork, Ordered, Running, Seen
from lattice_agent.standalone import durable
from lattice_agent.work.environment import Account

FORMAT, NEWEST = 1, 2
"""The number that is written, and the highest one that is read: a node may go back to this agent from the next one."""
KEEP_SECONDS = 7 * 86400.0
_T = TypeVar("_T")
_EPOCH_WORDS = ("seq", "epoch", "term")
_NOBODY = Running(0, 0, 0.0, 0.0)
_ACL_OWNER, _ACL_USER, _ACL_GROUP, _ACL_MASK, _ACL_OTHER, _ACL_NOBODY = 1, 2, 4, 16, 32, 0xFFFFFFFF
"""Tags of a POSIX ACL as its extended attribute has them (linux/posix_acl.h)."""


@dataclass(frozen=True)
class JournalEntry:
    """Holds one journal: what was decided, and in which boot."""

    boot: str
    work: NodeWork


class Journal:
    """Reads and writes the state directory and the run directory, but for what a shim writes into its attempt's."""

    def __init__(self, state_dir: Path, run_dir: Path) -> None:
        self.state_dir, self.run_dir = state_dir, run_dir
        self.attempts_dir = state_dir / "attempts"

    def open(self) -> None:
        """Makes the directories. Raises Corrupt for a state directory of another format."""
        for directory in (self.state_dir, self.attempts_dir, self.run_dir):
            directory.mkdir(parents=True, exist_ok=True)
            if stat.S_IMODE(directory.stat().st_mode) != 0o711:
                directory.chmod(0o711)
        found = self._read("format")
        if found is None:
            durable.write_durably(str(self.state_dir), "format", f"{FORMAT}\n".encode())
        else:
            check_format(f"state directory {self.state_dir}", found.decode(errors="replace").strip(), NEWEST)
        if not self._read("instance"):
            durable.write_durably(str(self.state_dir), "instance", f"{secrets.token_hex(8)}\n".encode())

    def instance(self) -> str:
        """Reads the directory's random id."""
        return (self._read("instance") or b"").decode().strip()

    def read_seen(self) -> Seen:
        """Reads the newest plan that is kept. Its epoch is known where the two files agree.

        Raises Corrupt for a seq that is not a number.
        """
        seq = self._seen_seq()
        words = (self._read("epoch") or b"").decode(errors="replace").split()
        if len(words) == len(_EPOCH_WORDS) and words[0] == str(seq) and words[1].isdigit():
            return Seen(seq, int(words[1]), words[2])
        return Seen(seq)

    def _seen_seq(self) -> int:
        text = self._read("seq")
        if text is None:
            return 0
        text = text.strip()
        if not text.isdigit():
            raise Corrupt(f"{self.state_dir / 'seq'} holds {text[:40]!r}, not a number: remove it only if this node runs nothing")
        return int(text)

    def remember(self, seen: Seen) -> None:
        """Keeps the seq durably, and its epoch beside it.

        An older agent reads `seq` alone, and an epoch that is torn is known no more.
        """
        if seen.epoch:
            (self.state_dir / "epoch.new").write_text(f"{seen.seq} {seen.epoch} {seen.term}\n", encoding="utf-8")
            (self.state_dir / "epoch.new").rename(self.state_dir / "epoch")
        durable.write_durably(str(self.state_dir), "seq", f"{seen.seq}\n".encode())

    def directory(self, key: Key) -> Path:
        """Names the directory of the attempt's files."""
        return self.attempts_dir / f"{key.uid}-{key.attempt}"

    def run_directory(self, key: Key) -> Path:
        """Names the directory of this boot's part of the attempt."""
        return self.run_dir / f"{key.uid}-{key.attempt}"

    def known(self) -> list[Key]:
        """Lists every attempt that has a directory."""
        paths = [path for directory in (self.attempts_dir, self.run_dir) for path in directory.iterdir()]
        return sorted({key for path in paths if (key := parse_key(path.name))})

    def write_journal(self, work: NodeWork, boot: str) -> None:
        """Makes the attempt's directories with journal and reserve, durably."""
        directory = self.directory(work.key)
        for made, mode in ((directory, 0o711), (self.run_directory(work.key), 0o700)):
            made.mkdir(exist_ok=True)
            made.chmod(mode)
        durable.reserve(str(directory), work.tasks)
        body = msgspec.json.encode(JournalEntry(boot, work))
        durable.write_durably(str(directory), "journal", f"{FORMAT}\n".encode() + body + b"\n")
        durable.sync_directory(str(self.attempts_dir))

    def write_script(self, key: Key, script: str, account: Account | None) -> Path:
        """Writes the script, which its user may read and execute, and only the agent change; without an account it is the agent's own."""
        path = self.directory(key) / "script"
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o500)
        with os.fdopen(fd, "wb") as file:
            file.write(script.encode())
            if account is not None:
                _let_execute(fd, account)
        return path

    def entry(self, key: Key) -> JournalEntry | None:
        """Reads the journal; None when it is absent or torn. Raises Corrupt for another format."""
        return _decode(f"journal of {self.directory(key).name}", self._read_of(key, "journal"), JournalEntry)

    def claimed(self, key: Key) -> Running | None:
        """Reads who took the right to start; pid 0: the attempt was ended before, or has no tasks here; None: nobody yet.

        Raises Corrupt for another format.
        """
        body = _body(f"claim of {self.directory(key).name}", self._read_of(key, durable.CLAIM))
        try:
            pid, ticks, started, boottime = body.partition(b"\n")[0].split()
            return Running(int(pid), int(ticks), float(started), float(boottime))
        except ValueError:
            return None

    def claim(self, key: Key, running: Running = _NOBODY) -> bool:
        """Takes the right to start away from every shim; False when one has it. Raises NotFound without a directory."""
        text = durable.encode_claim(running.pid, running.start_ticks, running.started, running.started_boottime)
        self.run_directory(key).mkdir(exist_ok=True, mode=0o700)
        try:
            durable.take_right(str(self.run_directory(key)), str(self.directory(key)), text)
        except FileExistsError:
            return False
        except FileNotFoundError as error:
            self.run_directory(key).rmdir()
            raise NotFound(f"there is no attempt {key.attempt} of {key.uid} on this node") from error
        except OSError:
            if self.claimed(key) is None:
                raise
        return True

    def exit_record(self, key: Key) -> ExitRecord | None:
        """Reads how the attempt ended; None while it has not, or when no shim could say. Raises Corrupt for another format."""
        return _decode(f"exit record of {self.directory(key).name}", self._read_of(key, durable.EXIT), ExitRecord)

    def write_empty_exit(self, key: Key, boot: str, end: float, *, failure: str = "", unfit: bool = False) -> None:
        """Writes the record of an attempt that had no tasks here, or never began; in memory where the disk does not take it."""
        text = durable.encode_exit(key.uid, key.attempt, boot, [], end, failure, unfit=unfit)
        durable.write_in_memory(str(self.run_directory(key)), durable.EXIT, text)
        with suppress(OSError):
            durable.write_exit(str(self.directory(key)), text)

    def note_order(self, key: Key, order: Ordered) -> None:
        """Keeps why an attempt is ended, for this boot: an agent that finds it ended shall not take that for the attempt's own doing."""
        if self.run_directory(key).is_dir():
            durable.write_in_memory(str(self.run_directory(key)), "order", f"{FORMAT}\n{order.at!r} {order.why}\n".encode())

    def order(self, key: Key) -> Ordered | None:
        """Reads the last order to end the attempt; None where there was none in this boot."""
        with suppress(OSError, IndexError, ValueError):
            at, _, why = (self.run_directory(key) / "order").read_text(encoding="utf-8").splitlines()[1].partition(" ")
            return Ordered(why, float(at))
        return None

    def in_memory_only(self) -> list[Key]:
        """Lists the attempts whose end no disk has yet."""
        keys = [key for path in self.run_dir.glob(f"*/{durable.EXIT}") if (key := parse_key(path.parent.name))]
        return sorted(key for key in keys if self.directory(key).is_dir() and not (self.directory(key) / durable.EXIT).exists())

    def bring_to_disk(self, key: Key) -> None:
        """Writes the end that stands in memory to the disk too."""
        durable.write_exit(str(self.directory(key)), (self.run_directory(key) / durable.EXIT).read_bytes())

    def is_settled(self, key: Key) -> bool:
        """Tells whether the attempt is settled."""
        return (self.directory(key) / "settled").exists()

    def settled_by(self, key: Key) -> int:
        """Reads the seq of the plan that settled the attempt; 0: it is not settled, or an older agent did it."""
        text = self._read_of(key, "settled-by") or b""
        return int(text) if text.strip().isdigit() and self.is_settled(key) else 0

    def prepared_at(self, key: Key) -> float:
        """Reads when the journal was written, in seconds since the epoch; 0: there is none."""
        with suppress(OSError):
            return (self.directory(key) / "journal").stat().st_mtime
        return 0.0

    def made(self) -> float:
        """Reads when the state directory was made, in seconds since the epoch."""
        return (self.state_dir / "instance").stat().st_mtime

    def mark_settled(self, key: Key, now: float, seq: int = 0) -> None:
        """Settles an attempt, by the plan of this seq (0: unknown): exit record and logs stay for a while."""
        directory = self.directory(key)
        if not directory.is_dir():
            shutil.rmtree(self.run_directory(key), ignore_errors=True)
            return
        if seq:
            with suppress(OSError):
                (directory / "settled-by").write_text(f"{seq}\n", encoding="utf-8")
        if key in self.in_memory_only():
            self.bring_to_disk(key)
        for name in ("script", durable.RESERVE):  # first, so that a full disk has room for the mark
            (directory / name).unlink(missing_ok=True)
        durable.write_durably(str(directory), "settled", f"{now!r}\n".encode())
        shutil.rmtree(self.run_directory(key), ignore_errors=True)

    def settled(self) -> list[Key]:
        """Lists the attempts that are settled and still kept, the longest settled first."""
        return [key for at, key in sorted((self._settled_at(key), key) for key in self.known()) if at > 0.0]

    def prune(self, now: float) -> int:
        """Removes what was settled more than 7 days ago. Returns how many attempts."""
        old = [key for key in self.known() if 0.0 < self._settled_at(key) < now - KEEP_SECONDS]
        for key in old:
            shutil.rmtree(self.directory(key), ignore_errors=True)
            shutil.rmtree(self.run_directory(key), ignore_errors=True)
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
        """Reads the file as it stands in memory, else on the disk."""
        for directory in (self.run_directory(key), self.directory(key)):
            with suppress(FileNotFoundError, NotADirectoryError):
                return (directory / name).read_bytes()
        return None


def _let_execute(fd: int, account: Account) -> None:
    """Gives the user, who does not own the file, the right to read and execute it.

    Where the disk knows no ACLs, his group gets the right.
    """
    entries = ((_ACL_OWNER, 5, _ACL_NOBODY), (_ACL_USER, 5, account.uid), (_ACL_GROUP, 0, _ACL_NOBODY), (_ACL_MASK, 5, _ACL_NOBODY))
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in (*entries, (_ACL_OTHER, 0, _ACL_NOBODY)))
    try:
        os.setxattr(fd, "system.posix_acl_access", acl)
    except OSError:
        os.fchown(fd, -1, account.gid)
        os.fchmod(fd, 0o550)


def parse_key(name: str) -> Key | None:
    """Parses `UID-ATTEMPT`; None for any other name."""
    uid, _, attempt = name.rpartition("-")
    return Key(uid, int(attempt)) if uid and attempt.isdigit() else None


def _decode(what: str, data: bytes | None, kind: type[_T]) -> _T | None:
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(_body(what, data), type=kind)
    return None


def _body(what: str, data: bytes | None) -> bytes:
    """Cuts off the format number; empty where the file is absent or torn. Raises Corrupt for a number that is not read."""
    number, _, body = (data or b"").partition(b"\n")
    if not number.isdigit():
        return b""
    check_format(what, number.decode(), NEWEST)
    return body
