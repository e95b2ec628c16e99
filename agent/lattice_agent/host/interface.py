"""The agent's interface to the machine that it runs on: the effects, and the facts that come back.

`LinuxHost` (`host/linux.py`) is the real implementation; a hollow host only waits. Every refusal is an `errors.Rejected` with a reason of
`lattice.models.reasons` and a sentence that names the node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from lattice_agent.attempts import ExitRecord, KeptAttempt, Key, Known, NodeWork, Ordered, Running, Seen


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
        """Sets the callback for ends; earlier ones are delivered at once, in order."""
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
        """Sends TERM to every process of the work; work that was never started ends at once, with an empty record.

        Returns False where no process of the work was left: it had ended before.
        """
        ...

    async def kill(self, key: Key) -> None:
        """Sends KILL to every process of the work until none is left; `on_exit` follows."""
        ...

    async def clear(self, key: Key) -> None:
        """Undoes in reverse what `prepare` has begun for an attempt of which no process is left; again does no more than once.

        Raises Retry while a step cannot be undone.
        """
        ...

    async def remaining(self, key: Key) -> int:
        """Returns how many processes of the work are left, the shim not counted."""
        ...

    async def attempts(self) -> list[Known]:
        """Returns all attempts that journals and scopes show; those that live are followed from now on.

        An attempt that is neither alive nor populated has ended, and no `on_exit` follows. One that is populated without a shim has lost
        its exit code: its processes are killed, and `on_exit` follows. A scope without a journal is left alone until `kill`.
        """
        ...

    async def recall(self, key: Key) -> Known | None:
        """Returns what the disk keeps of one attempt, and follows it where it lives; None: nothing is kept."""
        ...

    async def history(self, since: int) -> list[KeptAttempt]:
        """Returns the attempts that are kept, without those settled by a plan of this seq or an earlier one."""
        ...

    def made(self) -> float:
        """Returns when the state directory was made, seconds since the epoch; of earlier attempts this node knows nothing."""
        ...

    async def forget(self, key: Key, *, seq: int = 0) -> None:
        """Drops an attempt that the plan of this seq has settled: the scope at once, exit record and output after 7 days.

        Raises Retry while processes are left.
        """
        ...

    def facts(self) -> MachineFacts:
        """Returns the facts of the machine."""
        ...

    def ends_in_memory(self) -> int:
        """Returns how many exit records are in memory only, as of the last check of the disk."""
        ...

    async def cache_full(self) -> tuple[str, tuple[str, ...]]:
        """Returns why no room can be made in the image cache for an image that was wanted, and the digests that it has; empty: it can."""
        ...

    def pulling(self) -> Collection[Key]:
        """Returns the attempts whose images are on their way to this node."""
        ...

    def survivors(self) -> dict[Key, str]:
        """Returns the attempts with processes that survived KILL, each with a clause that names them."""
        ...

    async def flaw(self) -> str:
        """Returns why this node should be given no work now, as a clause; empty: nothing is wrong."""
        ...

    def instance(self) -> str:
        """Returns the state directory's random id."""
        ...

    def seen(self) -> Seen:
        """Returns the highest plan seq that this node has kept; an empty value at first."""
        ...

    async def remember(self, seen: Seen) -> None:
        """Keeps a higher seq durably; a lower one changes nothing."""
        ...
