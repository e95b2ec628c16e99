"""What the agent asks of the machine it runs on: the effects, and the facts that come back.

`LinuxHost` (`host/linux.py`) is the real one; a hollow host only waits. Everything that is refused is an
`errors.Rejected` with a reason of `lattice.models.reasons` and a sentence that names the node.
"""

from __future__ import annotations

from collections.abc import Callable
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
    """As in `spec.user`; an issuer prefix (`oidc:alice`) is stripped by the host."""
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
    slurm_env: bool = False
    project: str = ""
    vcluster: str = ""
    submit_time: float = 0.0


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


@dataclass(frozen=True)
class Facts:
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

    async def prepare(self, work: Work) -> None:
        """Checks user, directories and files, writes the journal, makes the scope; twice does no more than once.

        Raises Rejected (UserUnknown, UserRefused, StartFailed, NodeUnfit); Stale when this key was started here already.
        """
        ...

    async def start(self, work: Work) -> Running:
        """Starts a prepared attempt, at most once ever: a second call returns the first one's answer.

        Raises Rejected (StartFailed, NodeUnfit) with the command and the kernel's word; `on_exit` is then not called.
        """
        ...

    async def terminate(self, key: Key) -> None:
        """TERM to every process of the work; what was never started ends at once, with an empty record."""
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

    async def forget(self, key: Key) -> None:
        """Settled: the scope goes at once, exit record and logs after 7 days. Raises Retry while processes are left."""
        ...

    def facts(self) -> Facts:
        """What the machine is."""
        ...

    async def flaw(self) -> str:
        """Why this node should be given no work now, as a clause; empty: nothing is wrong."""
        ...

    def instance(self) -> str:
        """The state directory's random id."""
        ...

    def seen_seq(self) -> int:
        """The highest plan seq that this node has seen, 0 at first."""
        ...

    async def remember_seq(self, seq: int) -> None:
        """Keeps a higher seq durably; a lower one changes nothing."""
        ...
