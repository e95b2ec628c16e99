"""Holds the values that every room of the agent speaks of: an attempt, its work, its process, its end, and the plan that was seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Key(NamedTuple):
    """Names one attempt of one Allocation."""

    uid: str
    attempt: int


@dataclass(frozen=True)
class NodeWork:
    """Describes what this node starts for one attempt; everything is decided, names and patterns are expanded."""

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
    """Names the process that keeps an attempt. Work without tasks on this node has none: pid 0."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat: pid and this together name a process."""
    started: float
    """Seconds since the epoch."""
    started_boottime: float
    """CLOCK_BOOTTIME: the walltime runs on it."""


@dataclass(frozen=True)
class TaskExit:
    """Tells how one task ended; `code` is 128+n for signal n. Times are in seconds since the epoch, maxrss is in KiB."""

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
    """Tells how an attempt ended: the last thing its shim writes.

    `failure` is the sentence of a start that failed (then there are no tasks), `unfit` says that the node was at fault.
    """

    uid: str
    attempt: int
    boot: str
    tasks: tuple[TaskExit, ...]
    end: float
    failure: str = ""
    unfit: bool = False


class Ordered(NamedTuple):
    """Tells why TERM was sent to an attempt, and when."""

    why: str
    """As `Attempt.ended_by` has it."""
    at: float
    """CLOCK_BOOTTIME."""


@dataclass(frozen=True)
class Known:
    """Describes an attempt as the state directory and the scopes of this node show it."""

    key: Key
    work: NodeWork | None
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
class KeptAttempt:
    """Describes an attempt for a recovery of the ledger: what is known of it, and when its journal was written (seconds since 1970)."""

    known: Known
    prepared: float


@dataclass(frozen=True)
class Seen:
    """Holds the highest plan seq that the node has seen, with epoch and term of the plan's ledger (0 and empty: unknown)."""

    seq: int = 0
    epoch: int = 0
    term: str = ""
