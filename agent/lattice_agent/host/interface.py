"""The agent's interface to the machine that it runs on: the effects, and the facts that come back.

`LinuxHost` (`host/linux.py`) is the real implementation; a hollow host only waits. Every refusal is an `errors.Rejected` with a reason of
`lattice.models.reasons` and a sentence that names the node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from lattice_agent.attempts import EarlySignal, ExitRecord, KeptAttempt, Key, Known, NodeWork, Ordered, Running, Seen


@dataclass(frozen=True)
class MachineFacts:
    """The facts of the machine."""

    cpus: int
    memory_bytes: int
    kernel: str
    architecture: str
    boot_id: str


OnExit = Callable[[Key, ExitRecord | None], None]
"""Is called on the loop once an attempt has ended and no process is left; None: its shim was killed without a record."""


class Host(Protocol):
    """Carries out the effects of an agent on its machine; calls for one key come one after the other."""

    def on_exit(self, callback: OnExit) -> None:
        """Sets the function that is called with each end from now on; ends that came before are delivered to it at once, in order."""
        ...

    async def prepare(self, work: NodeWork) -> None:
        """Writes the journal and carries out the steps of the prologue; twice does no more than once.

        It may be interrupted, which ends its step within 2 s; `clear` undoes what it has begun.

        Raises Rejected (UserUnknown, UserRefused, StartFailed, NodeUnfit, PrologueFailed, or a word of SOFTWARE_REFUSED); Stale when this
        key was started here already.
        """
        ...

    async def start(self, work: NodeWork, private: Mapping[str, str] | None = None) -> Running:
        """Starts a prepared attempt, at most once ever: a second call returns the first one's answer.

        `private` are variables that are written nowhere: they reach the tasks through memory and pipes alone. Raises Rejected (StartFailed,
        NodeUnfit) with the command and the kernel's message; `on_exit` is then not called.
        """
        ...

    async def terminate(self, key: Key, order: Ordered) -> bool:
        """Sends TERM to every process of the work, and keeps `order` until the next boot, for an agent that is started again.

        Work that was never started, or has no tasks here, ends at once with an empty record, and `on_exit` follows. Returns False where no
        process of the work was left: it had ended before.
        """
        ...

    async def send_signal(self, key: Key, early: EarlySignal) -> int:
        """Sends the signal before the end, once at most until the next boot: it is noted first. Returns how many processes had it.

        Raises Retry where it could not be noted.
        """
        ...

    async def kill(self, key: Key) -> None:
        """Sends KILL to every process of the work, and repeats that in the background until none is left; `on_exit` follows.

        Work that was never started, or has no tasks here, ends at once with an empty record.
        """
        ...

    async def clear(self, key: Key) -> None:
        """Undoes, in reverse order, what `prepare` has begun for an attempt of which no process is left; a repeated call does nothing more.

        Raises Retry while a step cannot be undone; the next call begins with that step.
        """
        ...

    async def remaining(self, key: Key) -> int:
        """Returns how many processes of the work are left, the shim not counted."""
        ...

    async def attempts(self) -> list[Known]:
        """Returns all attempts that journals and scopes show; those that live are followed from now on, and `on_exit` tells their end.

        An attempt that is neither alive nor populated has ended, and no `on_exit` follows. One that is populated without a shim has lost
        its exit code: its processes are killed, and `on_exit` follows. A scope without journal and claim is left alone until `kill`.
        """
        ...

    async def recall(self, key: Key) -> Known | None:
        """Returns what the disk keeps of one attempt, and follows it from now on where it lives; None: the disk keeps nothing of it."""
        ...

    async def history(self, since: int) -> list[KeptAttempt]:
        """Returns every attempt that is kept, except those that a plan of the seq `since` or of a lower one has settled."""
        ...

    def made(self) -> float:
        """Returns when the state directory was made, seconds since the epoch; of earlier attempts this node knows nothing."""
        ...

    async def forget(self, key: Key, *, seq: int = 0) -> None:
        """Drops an attempt that the plan of this seq (0: unknown) has settled: the scope at once, exit record and output after 7 days.

        Raises Retry while processes are left, or a step of its prologue cannot be undone.
        """
        ...

    def facts(self) -> MachineFacts:
        """Returns CPUs, memory, kernel, architecture and boot id of the machine."""
        ...

    def ends_in_memory(self) -> int:
        """Returns how many exit records are in memory only, as of the last check of the disk."""
        ...

    async def cache_full(self) -> tuple[str, tuple[str, ...]]:
        """Returns a sentence on why the image cache has no room for an image that work wanted, and digests of the images in it.

        Both are empty where there is room, or the node keeps no images.
        """
        ...

    def pulling(self) -> Collection[Key]:
        """Returns the attempts whose images are being pulled or checked now."""
        ...

    def survivors(self) -> dict[Key, str]:
        """Returns the attempts with processes that survived KILL, each with a clause that names them."""
        ...

    async def unenforced(self) -> str:
        """Returns which limits of work do not hold on this machine, as a clause; empty: all do."""
        ...

    async def flaw(self) -> str:
        """Returns why this node should be given no work now, as a clause; empty: nothing is wrong."""
        ...

    def instance(self) -> str:
        """Returns the random id of the state directory, which tells two agents under one node's name apart."""
        ...

    def seen(self) -> Seen:
        """Returns the highest plan seq that this node has kept, with epoch and term of that plan; seq 0: none was kept."""
        ...

    async def remember(self, seen: Seen) -> None:
        """Keeps `seen` durably where its seq is higher than the kept one; else changes nothing. Raises Retry where the disk refuses it."""
        ...
