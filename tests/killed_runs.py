"""Whose a machine's leftovers are: instances and directories of tests belong to a process while it holds their lock, which kill −9 releases too.

`sweep` clears what nobody holds any more, and never what lives.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from lattice_dev.instance import Instance
from lattice_dev.state import home_directory

DIRECTORIES: Final = "lattice-host-"
"""How the directories of tests below the machine's temporary directory begin."""
_held: Final = list[int]()
"""Descriptors of locks, open until this process ends."""
RUN: Final = uuid.uuid4().hex[:8]
"""What names of this process's own objects and files hold: process ids come again."""


def instance_name(purpose: str) -> str:
    """A name for an instance of this process, which no leftover has; the purpose has at most 18 characters."""
    _locks().mkdir(parents=True, exist_ok=True)
    while True:
        name = f"{purpose}-{uuid.uuid4().hex[:12]}"
        if (descriptor := _lock(_locks() / name)) is not None:
            _held.append(descriptor)
            return name


@contextmanager
def open_directory() -> Iterator[Path]:
    """A directory of this process that every user may traverse, removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix=DIRECTORIES))
    path.chmod(0o755)
    descriptor = _lock(path)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        if descriptor is not None:
            os.close(descriptor)


def sweep() -> list[str]:
    """Takes down the instances and removes the directories of processes that are gone; returns what was there of them."""
    swept = list[str]()
    for lock in sorted(_locks().glob("*")):
        if (descriptor := _lock(lock)) is not None:
            if (home_directory(os.environ) / lock.name).exists():
                swept.append(f"instance {lock.name}")
            Instance(lock.name).down()
            lock.unlink()
            os.close(descriptor)
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{DIRECTORIES}*")):
        if (descriptor := _lock(path)) is not None:
            swept.append(str(path))
            for mount in _mounts_below(path):
                subprocess.run(["fsfreeze", "--unfreeze", mount], capture_output=True, check=False)  # else its writers hang for ever
                subprocess.run(["umount", "--lazy", mount], capture_output=True, check=False)
            shutil.rmtree(path, ignore_errors=True)
            os.close(descriptor)
    return swept


def _locks() -> Path:
    """The folder with the lock of each instance of a test, which all clones share."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lattice" / "test-instances"


def _lock(path: Path) -> int | None:
    """Locks a file, made where it is not there, or a directory; None: another process holds it, or it is gone."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (0 if path.is_dir() else os.O_CREAT), 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
        else:
            return descriptor
    return None


def _mounts_below(path: Path) -> Iterator[str]:
    """The mounts below a directory, the innermost first."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    yield from (target for line in reversed(lines) if (target := line.split()[4]).startswith(f"{path}/"))


if __name__ == "__main__":
    for gone in sweep():
        print(f"swept what a killed run has left: {gone}", file=sys.stderr)
