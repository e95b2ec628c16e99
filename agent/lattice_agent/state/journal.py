"""The agent's journal: decisions and ends of attempts, in the state directory on disk; those since the last boot in memory, too.

All of it is synchronous file work without decisions; `LinuxHost` calls it in a thread. Format 1 is written, 1 and 2 are read. An attempt's
journal is fsynced before its first fork. The right to start it is the file `shim` in the run directory (tmpfs), which link(2) can make only
once. A file that exists in memory is read there, so that a disk that does not answer is not asked.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from lattice.errors import Corrupt, NotFound
from lattice.formats import check_format
from lattice.units import is_digits
from lattice_agent.attempts import ExitRecord, Key, NodeWork, Ordered, Running, Seen
from lattice_agent.standalone import durable
from lattice_agent.state import task_notes
from lattice_agent.state.entry_failure import with_entry_failure
from lattice_agent.work.environment import Account

FORMAT, NEWEST = 1, 2
"""The format that is written, and the newest that is read: a node may go back from the next release's agent to this one."""
KEEP_SECONDS = 7 * 86400.0
_T = TypeVar("_T")
_EPOCH_WORDS = ("seq", "epoch", "term")
_NOBODY = Running(0, 0, 0.0, 0.0)
_PLACE = "place"
_ACL_OWNER, _ACL_USER, _ACL_GROUP, _ACL_MASK, _ACL_OTHER, _ACL_NOBODY = 1, 2, 4, 16, 32, 0xFFFFFFFF
"""Tags of a POSIX ACL as its extended attribute has them (linux/posix_acl.h)."""


@dataclass(frozen=True)
class JournalEntry:
    """One attempt's journal: the work that was decided, and the boot in which it was written."""

    boot: str
    work: NodeWork


class Journal:
    """Reads and writes the state directory and the run directory, except for what shims write into their attempts' directories."""

    def __init__(self, state_dir: Path, run_dir: Path) -> None:
        self.state_dir, self.run_dir = state_dir, run_dir
        self.attempts_dir = state_dir / "attempts"

    def open(self) -> None:
        """Makes the directories, and writes the state directory's format and random id where they are missing.

        Raises Corrupt for a state directory of an unknown format.
        """
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
        """Returns the state directory's random id, which tells two agents of one name apart; empty before `open`."""
        return (self._read("instance") or b"").decode().strip()

    def read_seen(self) -> Seen:
        """Returns the highest plan seq that the node has kept (0: none), with epoch and term only where their file names the same seq.

        Raises Corrupt for a seq that is not a number.
        """
        seq = self._seen_seq()
        words = (self._read("epoch") or b"").decode(errors="replace").split()
        if len(words) == len(_EPOCH_WORDS) and words[0] == str(seq) and is_digits(words[1]):
            return Seen(seq, int(words[1]), words[2])
        return Seen(seq)

    def _seen_seq(self) -> int:
        """Returns the highest plan seq that the node has kept; 0: none. Raises Corrupt where the file holds no number."""
        text = self._read("seq")
        if text is None:
            return 0
        text = text.strip()
        if not is_digits(text):
            raise Corrupt(f"{self.state_dir / 'seq'} holds {text[:40]!r}, not a number: remove it only if this node runs nothing")
        return int(text)

    def remember(self, seen: Seen) -> None:
        """Keeps a plan's seq durably, and its epoch in a file beside it; replaces a higher one too, so that the caller must compare."""
        if seen.epoch:
            (self.state_dir / "epoch.new").write_text(f"{seen.seq} {seen.epoch} {seen.term}\n", encoding="utf-8")
            (self.state_dir / "epoch.new").rename(self.state_dir / "epoch")
        durable.write_durably(str(self.state_dir), "seq", f"{seen.seq}\n".encode())

    def directory(self, key: Key) -> Path:
        """Returns the path of the attempt's directory on disk, whether it stands there or not."""
        return self.attempts_dir / f"{key.uid}-{key.attempt}"

    def run_directory(self, key: Key) -> Path:
        """Returns the path of the attempt's directory in memory, whether it stands there or not; it lasts until the machine's next boot."""
        return self.run_dir / f"{key.uid}-{key.attempt}"

    def known(self) -> list[Key]:
        """Returns every attempt that has a directory, on disk or in memory."""
        paths = [path for directory in (self.attempts_dir, self.run_dir) for path in directory.iterdir()]
        return sorted({key for path in paths if (key := parse_key(path.name))})

    def write_journal(self, work: NodeWork, boot: str) -> None:
        """Makes the attempt's directories, and writes durably its journal, with the boot id, and the reserved room for its exit record."""
        directory = self.directory(work.key)
        for made, mode in ((directory, 0o711), (self.run_directory(work.key), 0o700)):
            made.mkdir(exist_ok=True)
            made.chmod(mode)
        durable.reserve(str(directory), work.tasks)
        body = msgspec.json.encode(JournalEntry(boot, work))
        durable.write_durably(str(directory), "journal", f"{FORMAT}\n".encode() + body + b"\n")
        durable.sync_directory(str(self.attempts_dir))

    def write_script(self, key: Key, script: str, account: Account | None) -> Path:
        """Writes the script and returns its path; its user may read and execute it, and only the agent change it.

        `account` None: the work runs as the agent's own user.
        """
        path = self.directory(key) / "script"
        path.unlink(missing_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o500)
        with os.fdopen(fd, "wb") as file:
            file.write(script.encode())
            if account is not None:
                _let_execute(fd, account)
        return path

    def entry(self, key: Key) -> JournalEntry | None:
        """Returns the attempt's journal; None where it is absent or torn. Raises Corrupt for an unknown format."""
        return _decode(f"journal of {self.directory(key).name}", self._read_of(key, "journal"), JournalEntry)

    def claimed(self, key: Key) -> Running | None:
        """Returns the process that took the right to start the attempt; None: nobody has.

        pid 0: the attempt was ended before its start, or has no tasks here. Raises Corrupt for an unknown format.
        """
        body = _body(f"claim of {self.directory(key).name}", self._read_of(key, durable.CLAIM))
        try:
            pid, ticks, started, boottime = body.partition(b"\n")[0].split()
            return Running(int(pid), int(ticks), float(started), float(boottime))
        except ValueError:
            return None

    def claim(self, key: Key, running: Running = _NOBODY) -> bool:
        """Takes the right to start the attempt, so that no shim can; returns False when it is taken. Raises NotFound without a directory.

        `running` is the process that the claim names; by default none, and the attempt is over before its start.
        """
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
        """Returns the attempt's exit record, in which a failure of its entrypoint's launch stands for its client's exit code; None: it has
        not ended, or its shim died before it could write.

        Raises Corrupt for an unknown format.
        """
        found = _decode(f"exit record of {self.directory(key).name}", self._read_of(key, durable.EXIT), ExitRecord)
        return with_entry_failure(found, self.run_directory(key)) if found is not None else None

    def write_empty_exit(self, key: Key, boot: str, end: float, *, failure: str = "", unfit: bool = False, reason: str = "") -> None:
        """Writes an exit record without tasks, for an attempt that had none here or never began: in memory, and if possible on disk.

        It replaces a record that is there. `end`: seconds since the epoch; `failure`, `unfit` and `reason`: as in `ExitRecord`.
        """
        text = durable.encode_exit(key.uid, key.attempt, boot, [], end, failure, unfit=unfit, reason=reason)
        durable.write_in_memory(str(self.run_directory(key)), durable.EXIT, text)
        with suppress(OSError):
            durable.write_exit(str(self.directory(key)), text)

    def recover_exit(self, key: Key, end: float) -> ExitRecord | None:
        """Writes and returns the exit record of an attempt whose shim was killed before it did, by the ends of tasks that it has noted.

        None: they do not tell how the attempt has ended. The caller has made sure that no shim lives; `end`: seconds since the epoch.
        """
        run_directory, entry = self.run_directory(key), self.entry(key)
        tasks = task_notes.known_ends(run_directory)
        if not tasks or entry is None:
            return None
        text = durable.encode_exit(key.uid, key.attempt, entry.boot, [msgspec.to_builtins(task) for task in tasks], end)
        durable.write_in_memory(str(run_directory), durable.EXIT, text)
        with suppress(OSError):
            durable.write_exit(str(self.directory(key)), text)
        return self.exit_record(key)

    def write_place(self, key: Key, place: Mapping[str, object]) -> None:
        """Keeps where an attempt's work runs on this node (`task_start.WorkPlace`) in its run directory, for launches of a later agent."""
        durable.write_in_memory(str(self.run_directory(key)), _PLACE, f"{FORMAT}\n".encode() + msgspec.json.encode(place) + b"\n")

    def place(self, key: Key) -> dict[str, Any] | None:
        """Returns where an attempt's work runs on this node, as `write_place` has kept it; None: nobody has."""
        return _decode(f"place of {self.directory(key).name}", self._read_of(key, _PLACE), dict[str, Any])

    def note_order(self, key: Key, order: Ordered) -> None:
        """Writes the order to end an attempt into its run directory, where it lasts until the next boot; nothing without that directory.

        A restarted agent would else take the end for the work's own.
        """
        if self.run_directory(key).is_dir():
            durable.write_in_memory(str(self.run_directory(key)), "order", f"{FORMAT}\n{order.at!r} {order.why}\n".encode())

    def note_signal(self, key: Key) -> bool:
        """Notes that the signal before the end is about to be sent; False: it was before, or the attempt has no run directory here."""
        with suppress(FileExistsError, FileNotFoundError):
            os.close(os.open(self.run_directory(key) / "signalled", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            return True
        return False

    def has_signalled(self, key: Key) -> bool:
        """Tells whether `note_signal` has noted it since the last boot."""
        return (self.run_directory(key) / "signalled").exists()

    def close_launches(self, key: Key) -> None:
        """Lets no launch begin in an attempt any more; nothing without its run directory, where none can begin."""
        with suppress(FileNotFoundError):
            durable.close_launches(str(self.run_directory(key)))

    def order(self, key: Key) -> Ordered | None:
        """Returns the last order to end the attempt; None: there was none since the last boot, or it cannot be read."""
        with suppress(OSError, IndexError, ValueError):
            at, _, why = (self.run_directory(key) / "order").read_text(encoding="utf-8").splitlines()[1].partition(" ")
            return Ordered(why, float(at))
        return None

    def in_memory_only(self) -> list[Key]:
        """Returns the attempts whose exit record is in memory but not on disk."""
        keys = [key for path in self.run_dir.glob(f"*/{durable.EXIT}") if (key := parse_key(path.parent.name))]
        return sorted(key for key in keys if self.directory(key).is_dir() and not (self.directory(key) / durable.EXIT).exists())

    def bring_to_disk(self, key: Key) -> None:
        """Copies an attempt's exit record from memory to disk; raises OSError where it is not in memory, or the disk refuses it."""
        durable.write_exit(str(self.directory(key)), (self.run_directory(key) / durable.EXIT).read_bytes())

    def is_settled(self, key: Key) -> bool:
        """Tells whether the attempt was marked settled: its end stands in the Allocation's status."""
        return (self.directory(key) / "settled").exists()

    def settled_by(self, key: Key) -> int:
        """Returns the seq of the plan that settled the attempt; 0: it is not settled, or an older agent did not keep the seq."""
        text = self._read_of(key, "settled-by") or b""
        return int(text) if is_digits(text.strip()) and self.is_settled(key) else 0

    def prepared_at(self, key: Key) -> float:
        """Returns when the attempt's journal was written, seconds since the epoch; 0: there is none."""
        with suppress(OSError):
            return (self.directory(key) / "journal").stat().st_mtime
        return 0.0

    def made(self) -> float:
        """Returns when the state directory was made, seconds since the epoch."""
        return (self.state_dir / "instance").stat().st_mtime

    def mark_settled(self, key: Key, now: float, seq: int = 0) -> None:
        """Marks an attempt settled at `now` by the plan of this seq (0: unknown), and deletes script, notes on steps and run directory.

        Its exit record and output stay on disk for 7 days. Of an attempt without a directory on disk nothing stays.
        """
        directory = self.directory(key)
        if not directory.is_dir():
            shutil.rmtree(self.run_directory(key), ignore_errors=True)
            return
        if seq:
            with suppress(OSError):
                (directory / "settled-by").write_text(f"{seq}\n", encoding="utf-8")
        if key in self.in_memory_only():
            self.bring_to_disk(key)
        for name in ("script", durable.RESERVE, "steps"):  # first, so that a full disk has room for the mark; every step is undone
            (directory / name).unlink(missing_ok=True)
        durable.write_durably(str(directory), "settled", f"{now!r}\n".encode())
        shutil.rmtree(self.run_directory(key), ignore_errors=True)

    def settled(self) -> list[Key]:
        """Returns the settled attempts that are still kept, the longest settled first."""
        return [key for at, key in sorted((self._settled_at(key), key) for key in self.known()) if at > 0.0]

    def prune(self, now: float) -> int:
        """Deletes attempts that were settled more than 7 days before `now` (seconds since the epoch); returns how many."""
        old = [key for key in self.known() if 0.0 < self._settled_at(key) < now - KEEP_SECONDS]
        for key in old:
            shutil.rmtree(self.directory(key), ignore_errors=True)
            shutil.rmtree(self.run_directory(key), ignore_errors=True)
        return len(old)

    def _settled_at(self, key: Key) -> float:
        """Returns when an attempt was marked settled, seconds since the epoch; 0: it was not, or the mark does not read."""
        with suppress(ValueError):
            return float(self._read_of(key, "settled") or 0)
        return 0.0

    def _read(self, name: str) -> bytes | None:
        """Returns the content of a file of the state directory; None: there is none."""
        try:
            return (self.state_dir / name).read_bytes()
        except FileNotFoundError:
            return None

    def _read_of(self, key: Key, name: str) -> bytes | None:
        """Returns an attempt's file from memory, else from disk; None: neither has it."""
        for directory in (self.run_directory(key), self.directory(key)):
            with suppress(FileNotFoundError, NotADirectoryError):
                return (directory / name).read_bytes()
        return None


def _let_execute(fd: int, account: Account) -> None:
    """Lets the user, who does not own the file, read and execute it by an ACL; by his group, where the disk has no ACLs."""
    entries = ((_ACL_OWNER, 5, _ACL_NOBODY), (_ACL_USER, 5, account.uid), (_ACL_GROUP, 0, _ACL_NOBODY), (_ACL_MASK, 5, _ACL_NOBODY))
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in (*entries, (_ACL_OTHER, 0, _ACL_NOBODY)))
    try:
        os.setxattr(fd, "system.posix_acl_access", acl)
    except OSError:
        os.fchown(fd, -1, account.gid)
        os.fchmod(fd, 0o550)


def parse_key(name: str) -> Key | None:
    """Returns the attempt of a directory name `UID-ATTEMPT`; None for any other name."""
    uid, _, attempt = name.rpartition("-")
    return Key(uid, int(attempt)) if uid and is_digits(attempt) else None


def _decode(what: str, data: bytes | None, kind: type[_T]) -> _T | None:
    """Decodes a file of the journal; None where it is absent or does not read. Raises Corrupt for an unknown format."""
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(_body(what, data), type=kind)
    return None


def _body(what: str, data: bytes | None) -> bytes:
    """Returns the file without its format number; empty where it is absent or torn. Raises Corrupt for an unknown format."""
    number, _, body = (data or b"").partition(b"\n")
    if not is_digits(number):
        return b""
    check_format(what, number.decode(), NEWEST)
    return body
