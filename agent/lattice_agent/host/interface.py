"""What the agent asks of the machine it runs on: the effects, and the facts that come back.

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
    """What the machine is."""

    cpus: int
    memory_bytes: int
    kernel: str
    architecture: str
    boot_id: str


OnExit = Callable[[Key, ExitRecord | None], None]
"""Called on the loop once an attempt has ended and no process is left; None: the shim was killed without a record."""


class Host(Protocol):
    """The effects of an agent; calls for one key come one after the other."""

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
        """TERM to every process of the work; what was never started ends at once, with an empty record.

        False: there was no process of the work, it had ended before.
        """
        ...

    async def kill(self, key: Key) -> None:
        """KILL to every process of the work until none is left; `on_exit` follows."""
        ...

    async def remaining(self, key: Key) -> int:
        """Processes of the work that are left, the shim not counted."""
        ...

    async def attempts(self) -> list[Known]:
        """All that this node knows of, from journals and scopes; those that live are watched from now on.

        What is neither alive nor populated has ended, and no `on_exit` follows. What is populated without a shim
        has lost its exit code: the rest is killed, and `on_exit` follows. A stray scope is left alone until `kill`.
        """
        ...

    async def recall(self, key: Key) -> Known | None:
        """One attempt as the disk shows it, watched where it lives; None: nothing is kept of it."""
        ...

    async def history(self, since: int) -> list[KeptAttempt]:
        """All that is kept of attempts but of those that were settled by a plan of this seq or before it."""
        ...

    def made(self) -> float:
        """When the state directory was made, in seconds since the epoch: of what was before, this node knows nothing."""
        ...

    async def forget(self, key: Key, *, seq: int = 0) -> None:
        """Settled, by the plan of this seq: the scope goes at once, exit record and logs after 7 days.

        Raises Retry while processes are left.
        """
        ...

    def facts(self) -> MachineFacts:
        """What the machine is."""
        ...

    def ends_in_memory(self) -> int:
        """Of how many attempts only this boot's memory keeps the end, at the last look for flaws."""
        ...

    def survivors(self) -> dict[Key, str]:
        """Attempts of which KILL has not ended every process, each with a clause that names who is left."""
        ...

    async def flaw(self) -> str:
        """Why this node should be given no work now, as a clause; empty: nothing is wrong."""
        ...

    def instance(self) -> str:
        """The state directory's random id."""
        ...

    def seen(self) -> Seen:
        """The newest plan that this node has seen; nothing at first."""
        ...

    async def remember(self, seen: Seen) -> None:
        """Keeps a higher seq durably; a lower one changes nothing."""
        ...
