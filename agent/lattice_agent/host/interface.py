"""Defines what the agent asks of the machine it runs on: the effects, and the facts that come back.

`LinuxHost` (`host/linux.py`) is the real one; a hollow host only waits. Everything that is refused is an
`errors.Rejected` with a reason of `lattice.models.reasons` and a sentence that names the node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from lattice_agent.attempts import ExitRecord, KeptAttempt, Key, Known, NodeWork, Ordered, Running, Seen


@dataclass(frozen=True)
class MachineFacts:
    """Gives the facts of the machine."""

    cpus: int
    memory_bytes: int
    kernel: str
    architecture: str
    boot_id: str


OnExit = Callable[[Key, ExitRecord | None], None]
"""Called on the loop once an attempt has ended and no process is left; None: the shim was killed without a record."""


class Host(Protocol):
    """Carries out the effects of an agent on its machine; calls for one key come one after the other."""

    def on_exit(self, callback: OnExit) -> None:
        """Registers the one callback; ends that came before are delivered at once, in order."""
        ...

    async def prepare(self, work: NodeWork) -> None:
        """Checks user, directories and files, writes the journal, makes the scope; twice does no more than once.

        Raises Rejected (UserUnknown, UserRefused, StartFailed, NodeUnfit); Stale when this key was started here already.
        """
        ...

    async def start(self, work: NodeWork, private: Mapping[str, str] | None = None) -> Running:
        """Starts a prepared attempt, at most once ever: a second call returns the first one's answer.

        `private` are variables that are nowhere written down: they reach the tasks through memory and pipes alone.

        Raises Rejected (StartFailed, NodeUnfit) with the command and the kernel's word; `on_exit` is then not called.
        """
        ...

    async def terminate(self, key: Key, order: Ordered) -> bool:
        """Sends TERM to every process of the work; work that was never started ends at once, with an empty record.

        False: there was no process of the work, it had ended before.
        """
        ...

    async def kill(self, key: Key) -> None:
        """Sends KILL to every process of the work until none is left; `on_exit` follows."""
        ...

    async def remaining(self, key: Key) -> int:
        """Counts the processes of the work that are left, without the shim."""
        ...

    async def attempts(self) -> list[Known]:
        """Lists all attempts that this node knows of, from journals and scopes; those that live are watched from now on.

        What is neither alive nor populated has ended, and no `on_exit` follows. What is populated without a shim
        has lost its exit code: the rest is killed, and `on_exit` follows. A stray scope is left alone until `kill`.
        """
        ...

    async def recall(self, key: Key) -> Known | None:
        """Looks one attempt up on the disk, and watches it where it lives; None: nothing is kept of it."""
        ...

    async def history(self, since: int) -> list[KeptAttempt]:
        """Lists the attempts that are kept, without those that a plan of this seq or an earlier one has settled."""
        ...

    def made(self) -> float:
        """Gives when the state directory was made, in seconds since the epoch: of what was before, this node knows nothing."""
        ...

    async def forget(self, key: Key, *, seq: int = 0) -> None:
        """Lets go of an attempt that the plan of this seq has settled: the scope at once, exit record and logs after 7 days.

        Raises Retry while processes are left.
        """
        ...

    def facts(self) -> MachineFacts:
        """Gives the facts of the machine."""
        ...

    def ends_in_memory(self) -> int:
        """Counts the attempts whose end only this boot's memory keeps, at the last look for flaws."""
        ...

    def survivors(self) -> dict[Key, str]:
        """Lists the attempts of which KILL has not ended every process, each with a clause that names who is left."""
        ...

    async def flaw(self) -> str:
        """Tells why this node should be given no work now, as a clause; empty: nothing is wrong."""
        ...

    def instance(self) -> str:
        """Gives the state directory's random id."""
        ...

    def seen(self) -> Seen:
        """Gives the newest plan that this node has seen; an empty one at first."""
        ...

    async def remember(self, seen: Seen) -> None:
        """Keeps a higher seq durably; a lower one changes nothing."""
        ...
