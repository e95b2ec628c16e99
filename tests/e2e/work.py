"""Work of tests that ends when the test says so, and the processes of work, looked for in the instance's own scope."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from lattice_dev.instance import Instance


@dataclass(frozen=True)
class Gate:
    """A file in alice's home, which every node sees: work waits until it is there."""

    path: Path

    @property
    def wait(self) -> str:
        """The shell's words that wait until the gate is open; they hold no quotes."""
        return f"until [ -e {self.path} ]; do sleep 0.1; done"

    @property
    def command(self) -> str:
        """An entrypoint that waits so, and ends with 0."""
        return f"sh -c '{self.wait}'"

    def open(self) -> None:
        """Lets the work go on."""
        self.path.touch()


@contextmanager
def new_gate(instance: Instance) -> Iterator[Gate]:
    """A closed gate, which is gone after the block; work that still waits for it is ended with its tenant."""
    gate = Gate(instance.where.user_home("alice") / f"gate-{os.urandom(4).hex()}")
    try:
        yield gate
    finally:
        gate.path.unlink(missing_ok=True)


def in_scope(instance: Instance) -> Iterator[Path]:
    """The directories in /proc of the processes of this instance's work, zombies apart: another instance's may run beside it."""
    root = instance.where.scope_root()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has just ended
            ours = root is None or f"/{root.name}/" in (process / "cgroup").read_text()
            if ours and ") Z " not in (process / "stat").read_text():
                yield process


def processes_of(instance: Instance, words: str) -> list[int]:
    """The pids of processes of work whose command line begins with these words."""
    return [int(process.name) for process in in_scope(instance) if command_of(process).startswith(words)]


def processes_with(instance: Instance, words: str) -> list[int]:
    """The pids of processes of work whose command line holds these words."""
    return [int(process.name) for process in in_scope(instance) if words in command_of(process)]


def command_of(process: Path) -> str:
    """The command line of a process, its words parted by blanks; empty where it has ended."""
    with suppress(OSError):
        return (process / "cmdline").read_text(errors="replace").replace("\0", " ").strip()
    return ""
