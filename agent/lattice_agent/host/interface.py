"""What the agent asks of the machine it runs on: the effects, and the facts that come back.

`LinuxHost` (`host/linux.py`) is the real one; a hollow host only waits. Everything that is refused is an
`errors.Rejected` with a reason of `lattice.models.reasons` and a sentence that names the node.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol


class Key(NamedTuple):
    """One attempt of one Allocation."""

    uid: str
    attempt: int


@dataclass(frozen=True)
class Work:
    """What this node starts for one attempt; everything is decided, names and patterns are expanded."""

    key: Key
    number: int
    namespace: str
    name: str
    user: str
    """As in `spec.user`."""
    tenant: str
    job_name: str
    nodes: tuple[str, ...]
    """In rank order."""
    node: str
    rank_of_node: int
    head: str
    tasks: int
    """On this node; 0 where the work runs on the head only and this is not the head."""
    first_rank: int
    total_tasks: int
    entrypoint: str | None = None
    script: str | None = None
    variables: dict[str, str] = field(default_factory=dict)
    workdir: str = ""
    """Empty: the user's home."""
    stdout: str = ""
    """A file for the output, expanded (`patterns.expand`); relative to the working directory; empty: none."""
    stderr: str = ""
    """Empty while `stdout` is set: both go to that file."""
    append: bool = False
    """False: `prepare` truncates the files. True for every node but rank 0 that shares one file."""
    grace_seconds: float = 30.0
    walltime_seconds: float | None = None
    min_uid: int = 1000
    open_files: int = 65536
    log_bytes: int = 64 << 20
    """Kept of each stream on this node; the oldest is dropped."""
    max_processes: int = 0
    """Processes and threads that it may have here; 0: not limited."""
    reserved_memory: int = 0
    """Bytes of the node's memory that it may not have; 0: not limited."""
    remove_leftovers: bool = False
    """Whether its files in /tmp, /var/tmp and /dev/shm go with it."""
    slurm_env: bool = False
    project: str = ""
    vcluster: str = ""
    submit_time: float = 0.0
    account: str = ""
    """The user's login on the nodes: the name without a prefix that the site lists; empty: the same as `user`."""


@dataclass(frozen=True)
class Running:
    """The process that keeps the attempt. Work without tasks on this node has none: pid 0."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat: pid and this together name a process."""
    started: float
    """Seconds since the epoch."""
    started_boottime: float
    """CLOCK_BOOTTIME: the walltime runs on it."""


@dataclass(frozen=True)
class TaskExit:
    """How one task ended; `code` is 128+n for signal n. Times in seconds, maxrss in KiB."""

    rank: int
    pid: int
    code: int
    signal: int
    start: float
    end: float
    utime: float = 0.0
    stime: float = 0.0
    maxrss: int = 0


@dataclass(frozen=True)
class ExitRecord:
    """What the shim wrote last. `failure` is the sentence of a start that failed (no tasks then), `unfit`: by the node's fault."""

    uid: str
    attempt: int
    boot: str
    tasks: tuple[TaskExit, ...]
    end: float
    failure: str = ""
    unfit: bool = False


class Ordered(NamedTuple):
    """Why TERM was sent to an attempt, and when."""

    why: str
    """As `Attempt.ended_by` has it."""
    at: float
    """CLOCK_BOOTTIME."""


@dataclass(frozen=True)
class Known:
    """An attempt as the state directory and the scopes of this node show it."""

    key: Key
    work: Work | None
    """None: the journal is absent or unreadable (a stray scope, a torn disk)."""
    running: Running | None
    """None: it was prepared and never started."""
    alive: bool
    """It was started and its shim lives (or it has no tasks here and has not been ended)."""
    exit: ExitRecord | None
    boot_matches: bool
    """The journal was written in this boot; False when there is no journal."""
    populated: bool
    """Processes are left in its scope, the shim included."""
    forgotten: bool = False
    """It is settled; only its exit record and logs are kept."""
    ordered: Ordered | None = None
    """The order to end it that was carried out in this boot."""


@dataclass(frozen=True)
class Kept:
    """An attempt as a recovery asks for it: what is known, and when it was laid down (seconds since the epoch)."""

    known: Known
    prepared: float


@dataclass(frozen=True)
class Facts:
    """What the machine is."""

    cpus: int
    memory_bytes: int
    kernel: str
    architecture: str
    boot_id: str


@dataclass(frozen=True)
class Seen:
    """The highest plan seq that the node has seen, and epoch and term of the ledger that this plan was made from (0, empty: unknown)."""

    seq: int = 0
    epoch: int = 0
    term: str = ""


OnExit = Callable[[Key, ExitRecord | None], None]
"""Called on the loop once an attempt has ended and no process is left; None: the shim was killed without a record."""


class Host(Protocol):
    """The effects of an agent; calls for one key come one after the other."""

    def on_exit(self, callback: OnExit) -> None:
        """Registers the one callback; ends that came before are delivered at once, in order."""
        ...

    async def prepare(self, work: Work) -> None:
        """Checks user, directories and files, writes the journal, makes the scope; twice does no more than once.

        Raises Rejected (UserUnknown, UserRefused, StartFailed, NodeUnfit); Stale when this key was started here already.
        """
        ...

    async def start(self, work: Work, private: Mapping[str, str] | None = None) -> Running:
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

    async def history(self, since: int) -> list[Kept]:
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

    def facts(self) -> Facts:
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
