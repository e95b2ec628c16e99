"""The two sides of a conversation between agents about one attempt (a member and its reporter), and what carries it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from lattice.launches.answers import LaunchRow
from lattice.views.allocation import LaunchTotals, SoftwareImage
from lattice_agent.attempts import AttemptFacts, BroughtBytes, Key, StepProgress
from lattice_agent.condition import VersionedCondition
from lattice_agent.host.images import CacheContent
from lattice_agent.members import Direction, Member
from lattice_agent.work.image_sources import ImageSources


class MemberSide(Protocol):
    """One node's part in the conversation about one attempt: it gives the node's state and receives the reporter's directions."""

    key: Key
    changed: VersionedCondition
    """Notified when the answer of `member` has changed."""

    def member(self) -> Member | None:
        """Returns the node's whole state of the attempt; None: the node has forgotten it, and the conversation ends."""
        ...

    def directed(self, direction: Direction) -> None:
        """Receives the reporter's newest direction to the nodes of the attempt."""
        ...

    def unreached(self, seconds: float) -> None:
        """Is told for how many seconds calls to the reporter have failed; the next `directed` ends that."""
        ...


class ReporterSide(Protocol):
    """The reporter's part in the conversations about all attempts that it reports; `Reporter` is the implementation."""

    async def find_condition(self, key: Key) -> VersionedCondition | None:
        """Returns the condition that is notified when the attempt's direction changes; None: this agent does not report it.

        Waits a moment for the plan row, which may come later than the first node's message.
        """
        ...

    def hear(self, member: Member) -> bool:
        """Receives a node's whole state; False: this agent does not report the attempt, or the node is not of it."""
        ...

    def direction(self, key: Key) -> Direction | None:
        """Returns the order to all nodes of the attempt; None: this agent does not report it any more."""
        ...

    def left(self, key: Key, node: str) -> None:
        """Is told that the node's call has ended; the node's last state shows whether that was due."""
        ...


class Logs(Protocol):
    """Finds the output of attempts that this node keeps; `LogStore` is the implementation."""

    def newest(self, uid: str) -> int:
        """Returns the newest attempt of the Allocation of which this node has output; 0: none."""
        ...

    def directory(self, key: Key) -> Path | None:
        """Returns the directory of the attempt's log segments; None: this node has none."""
        ...

    def ended(self, key: Key) -> bool:
        """Tells whether the attempt has ended on this node, or is unknown to it, so that its output is complete."""
        ...


class Peers(Protocol):
    """Carries conversations between members and reporters: over gRPC (`GrpcPeers`) or in process (`LocalPeers`)."""

    async def converse(self, reporter: str, address: str, member_side: MemberSide) -> None:
        """Gives the member's states to the reporter, and its directions to the member, until the member has no state any more.

        Reconnects for ever, after 1 s at most, and tells the member how long the reporter has been out of reach.
        """
        ...


class Steps(Protocol):
    """The steps of attempts' prologues as they are now; `Prologue` is the implementation."""

    def progress(self, key: Key) -> Sequence[StepProgress]:
        """Returns the progress of the begun steps of an attempt, in order; empty: nothing is prepared here."""
        ...


@dataclass(frozen=True, slots=True)
class CacheUse:
    """The image cache of a node in numbers (bytes); `message` says why nothing is known of it."""

    directory: str = ""
    images: int = 0
    bytes: int = 0
    total: int = 0
    free: int = 0
    pulls: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True)
class ReportedAttempt:
    """One attempt on a node: its stage, why it is there or failed, and its facts."""

    key: Key
    stage: str
    message: str
    facts: AttemptFacts


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Everything that an agent tells people of its node beyond the LatticeNode; times in seconds since the epoch, 0: never."""

    version: str
    since: float
    heartbeat: float
    seq: int
    flaw: str
    cgroups: str
    unlimited: tuple[str, ...]
    """Controllers whose limits this machine refuses."""
    reserved_cpus: str
    reserved_memory: int
    cache: CacheUse
    prologue_hooks: tuple[str, ...]
    epilogue_hooks: tuple[str, ...]
    hooks_message: str
    attempts: tuple[ReportedAttempt, ...]
    left_out: int = 0
    scratch: str = ""
    containers: str = ""


class Inspector(Protocol):
    """Looks at the node for people; `NodeInspector` is the implementation."""

    async def look(self, key: Key | None) -> NodeFacts:
        """Returns the facts of the node with those of one attempt, also where that is settled; None: with all that are not settled."""
        ...


class ImageShelf(Protocol):
    """The node's cache of images as operators see it; `Images` is the implementation."""

    async def content(self) -> CacheContent:
        """Returns the images in the node's cache, the digests of those in use, and the size and free space of the cache."""
        ...

    async def warm(self, image: SoftwareImage, sources: ImageSources, *, sticky: bool) -> None:
        """Pulls an image unless the cache has it; `sticky`: it is never evicted for room.

        Raises Rejected, NotFound; Retry (CacheFull) at once where there is no room.
        """
        ...

    async def evict(self, digits: str) -> str:
        """Removes the image whose digest begins with these digits, a sticky one too; returns its whole digest.

        Raises NotFound, Rejected (ImageInUse, or LabelAmbiguous where several begin so).
        """
        ...

    def pulled(self, digest: str) -> BroughtBytes:
        """Returns how far the pull of one image is, and what keeps it; zeros: it is not being pulled."""
        ...


AWAY, UNSERVED = "NodeAway", "LaunchesNotServed"
"""Reasons of a call about a launch that fails: the other agent may serve it later; it is of a release without launches."""


class ByteStream(Protocol):
    """One side of a conversation that two agents carry as frames of launches; `MessageStream` is the implementation."""

    async def write_bytes(self, data: bytes) -> None:
        """Sends bytes; raises Retry where the other side is away."""
        ...

    async def read_bytes(self) -> bytes:
        """Returns the next bytes; empty: nothing more comes. Raises Retry where the other side is away."""
        ...


@dataclass(frozen=True, slots=True)
class LaunchOrder:
    """The first message of a call about a launch: the attempt, the launch's number in it; `describe`: the node is only to be described."""

    key: Key
    number: int = 0
    describe: bool = False


class LaunchSide(Protocol):
    """The node's part in launches, as other agents ask for it; `LaunchService` is the implementation."""

    async def keep_launch(self, caller: str, order: LaunchOrder, stream: ByteStream) -> None:
        """Starts or goes on with a launch's ranks on this node for the agent of the node `caller`, until it is removed or the call ends.

        Raises Denied where that node does not head the attempt, Retry where the call breaks.
        """
        ...

    async def hear_client(self, caller: str, order: LaunchOrder, stream: ByteStream) -> None:
        """Serves a client of `srun` that called the agent of the node `caller`; this node heads the attempt.

        Raises Denied where that node is not of the attempt or this one does not head it, Retry where the call breaks.
        """
        ...


@dataclass(frozen=True, slots=True)
class FoundLaunches:
    """Launches of an attempt, in order of their numbers: older rows that are dropped, rows beyond these, and the totals of all."""

    rows: list[LaunchRow]
    dropped: int
    left_out: int
    deleted: bool
    """Whether the rows were deleted to make room on the node's disk."""
    totals: LaunchTotals


@dataclass(frozen=True, slots=True)
class EndedLaunch:
    """The answer to an order to end a launch: KILL follows TERM after `grace_seconds`; or it is over, and `row` says how it ended."""

    ending: bool
    grace_seconds: float = 0.0
    row: LaunchRow | None = None


class LaunchBook(Protocol):
    """The launches of attempts as people see and end them; `StepDesk` is the implementation."""

    async def read_launches(self, key: Key, limit: int, number: int | None) -> FoundLaunches:
        """Returns the newest `limit` launches of an attempt, those that run among them; with `number` this one alone.

        Raises NotFound where this node has nothing of the attempt, Corrupt for a log of another format.
        """
        ...

    async def end_launch(self, key: Key, number: int, why: str) -> EndedLaunch:
        """Ends a launch of an attempt: TERM, grace, KILL; raises NotFound where there is no such launch."""
        ...


class LaunchPeers(Protocol):
    """Opens calls about launches to other agents; `GrpcPeers` is the implementation."""

    def open_launch(self, node: str, address: str, order: LaunchOrder, *, forward: bool = False) -> AbstractAsyncContextManager[ByteStream]:
        """Opens the call Launch, or with `forward` Forward, to the agent of a node, which proves its name by its certificate.

        Raises Retry where that fails.
        """
        ...
