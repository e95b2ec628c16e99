"""The values that all rooms of the agent share: an attempt, its work on this node, its process, its end, and the plan that was seen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from lattice.views.allocation import SoftwareImage
from lattice.views.cluster import ImageRegistry, TrustedKey


class Key(NamedTuple):
    """Names one attempt of one Allocation: the object's uid and the attempt's number, from 1."""

    uid: str
    attempt: int


@dataclass(frozen=True)
class AskedTasks:
    """The wishes of `spec.tasks` for launches: those of the entrypoint, else the defaults of `srun`; in the words of srun's options.

    None and empty: not asked.
    """

    per_node: int | None = None
    cpus: int | None = None
    gpus: int | None = None
    layout: str = ""
    bind: str = ""
    mpi: str = ""


@dataclass(frozen=True)
class EarlySignal:
    """The signal that the work gets before its walltime is over: its name, how long before, and which processes get it.

    `to`: `script`, the first process of each task alone; `launches`, the ranks of launches; `work`, all processes.
    """

    name: str
    before_seconds: float
    to: str


@dataclass(frozen=True)
class NodeWork:
    """The work of one attempt on this node, with every default filled in and every name and pattern expanded; the journal keeps it.

    `work.assignment` makes it from the Allocation and the plan row; the launcher starts it.
    """

    key: Key
    number: int
    namespace: str
    name: str
    user: str
    """The user as `spec.user` names him."""
    tenant: str
    job_name: str
    nodes: tuple[str, ...]
    """All nodes of the attempt, in rank order."""
    node: str
    rank_of_node: int
    head: str
    tasks: int
    """Tasks on this node; 0 where the work runs on the head only and this node is not the head."""
    first_rank: int
    total_tasks: int
    entrypoint: str | None = None
    script: str | None = None
    script_arguments: tuple[str, ...] = ()
    variables: dict[str, str] = field(default_factory=dict)
    workdir: str = ""
    """The working directory; empty: the user's home."""
    stdout: str = ""
    """The file for standard output, its pattern expanded, relative to the working directory; empty: no file, only the log store."""
    stderr: str = ""
    """The file for standard error; empty: the same file as `stdout`."""
    append: bool = False
    """False: `prepare` truncates the files. True where the user asks to append, and on every node but rank 0 where all share one file."""
    grace_seconds: float = 30.0
    walltime_seconds: float | None = None
    min_uid: int = 1000
    open_files: int = 65536
    log_bytes: int = 64 << 20
    """Bytes of each stream that this node's log store keeps; the oldest are dropped."""
    max_processes: int = 0
    """Most processes and threads of the work on this node; 0: not limited."""
    reserved_memory: int = 0
    """Bytes of the node's memory that the work may not use; 0: no limit."""
    hook_seconds: float = 60.0
    """How long a hook of the site may run before and after the work."""
    epilogue_seconds: float = 300.0
    """After this the end is reported, though the epilogue is not over."""
    remove_leftovers: bool = False
    """True where its files in /tmp, /var/tmp and /dev/shm are deleted at its end."""
    site_variables: dict[str, str] = field(default_factory=dict)
    """Of the site, for all work: stronger than a login's, weaker than the user's own."""
    core_bytes: int | None = None
    """The limit of core files that it may raise; None: as the agent's own."""
    private_tmp: bool = False
    """Whether it has a /tmp and a /dev/shm of its own."""
    private_tmp_keep: tuple[str, ...] = ()
    """Patterns of what the node's /tmp and /dev/shm go on showing."""
    slurm_env: bool = False
    project: str = ""
    vcluster: str = ""
    submit_time: float = 0.0
    software: tuple[SoftwareImage, ...] = ()
    """Its images of the site's registry, as the operator pinned them."""
    registry: str = ""
    """The site's registry (software.registry), where images come from that the node has not."""
    registries: tuple[ImageRegistry, ...] = ()
    """The site's registries of OCI images (software.registries)."""
    largest_image: int = 0
    """Bytes to which the layers of its OCI image may unpack."""
    require_signature: bool = False
    """Whether a trusted key must have signed each of its images; files of the user's own are refused then."""
    trusted_keys: tuple[TrustedKey, ...] = ()
    image: str = ""
    """The OCI image, as `environment.image` names it; empty: none."""
    pull_seconds: float = 1800.0
    """How long its images may take to be pulled."""
    account: str = ""
    """The user's login on the nodes: the name without a prefix that the site lists; empty: equal to `user`."""
    uenv: str = ""
    """The software environments, as `environment.uenv` names them; empty: none."""
    tools_uenv: str = ""
    view: str = ""
    default_views: bool = True
    """Whether images of which no view is asked for give the one that they declare."""
    user_files: bool = True
    """Whether an image may be a file of the user's own."""
    scratch_bytes: int = 0
    """Bytes of scratch space on this node; 0: it asks for none."""
    writable: bool = False
    """Whether the root of its container may be written; what is written there goes with it."""
    devices: tuple[str, ...] = ()
    """CDI names of the devices that its container has."""
    container_mounts: tuple[str, ...] = ()
    """The site's directories that every container shows, where the node has them."""
    is_launched: bool = False
    """Whether a launch starts `total_tasks` tasks of the entrypoint on all nodes; the one task on the head is its client."""
    node_cpus: tuple[int, ...] = ()
    """The processors that it has on each of its nodes, in rank order, as these have said before the start; empty: not all have."""
    submit_host: str = ""
    """The machine on which it was submitted; empty: nobody has said."""
    cluster_name: str = ""
    """The name of the cluster, as the site has it."""
    asked: AskedTasks = AskedTasks()

    @property
    def wants_software(self) -> bool:
        """Tells whether the agent mounts images for the work on this node, also where none of its tasks begins."""
        return bool(self.uenv or self.tools_uenv)

    @property
    def needs_account(self) -> bool:
        """Tells whether something is done here with the rights of its user: tasks, mounts, scratch space, a container."""
        return bool(self.tasks or self.scratch_bytes or self.wants_software or self.image)


@dataclass(frozen=True)
class Running:
    """The process that keeps an attempt: its shim. Work without tasks on this node has none: pid 0."""

    pid: int
    start_ticks: int
    """Field 22 of /proc/PID/stat; together with the pid it identifies the process, even if the pid is reused."""
    started: float
    """When it started, seconds since the epoch."""
    started_boottime: float
    """When it started, CLOCK_BOOTTIME; the walltime is measured by this clock."""


@dataclass(frozen=True)
class TaskExit:
    """The end of one task, as its shim saw it; `code` is 128+n for signal n. Times in seconds since the epoch, `maxrss` in KiB."""

    rank: int
    pid: int
    code: int
    signal: int
    start: float
    end: float
    utime: float = 0.0
    stime: float = 0.0
    maxrss: int = 0


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """Tells what the work of an attempt has used on its nodes; nothing is known of a memory of 0."""

    cpu_seconds: float = 0.0
    """Of all its processes together."""
    peak_memory: int = 0
    """Bytes: the most that it held at a time, page cache included; of several nodes, on the one where it held most."""
    memory_limit: int = 0
    """Bytes: what it may have there; 0: no limit was set."""
    oom_kills: int = 0
    """Processes that the kernel has killed because memory was short."""

    def __add__(self, other: ResourceUse) -> ResourceUse:
        """Returns what two nodes used of the same work together: sums, but peak and limit of the memory of the node where it held more."""
        more = max(self, other, key=lambda use: use.peak_memory)
        return ResourceUse(self.cpu_seconds + other.cpu_seconds, more.peak_memory, more.memory_limit, self.oom_kills + other.oom_kills)


NO_USE = ResourceUse()


@dataclass(frozen=True)
class ExitRecord:
    """The end of an attempt on this node: the last thing that its shim writes.

    `failure` is the sentence of a start that failed (there are then no tasks; empty: none failed); `unfit`: the node was at fault.
    """

    uid: str
    attempt: int
    boot: str
    tasks: tuple[TaskExit, ...]
    end: float
    failure: str = ""
    unfit: bool = False
    use: ResourceUse = NO_USE
    reason: str = ""
    """A word of END_REASONS for the failure; empty: StartFailed, or NodeUnfit."""


class Ordered(NamedTuple):
    """An order to end an attempt, once TERM was sent for it: the cause and the time."""

    why: str
    """The cause, in the words of `Attempt.ended_by`."""
    at: float
    """When TERM was sent, CLOCK_BOOTTIME."""


@dataclass(frozen=True, slots=True)
class StepProgress:
    """The progress of one step of a prologue: `state` as the step journal has it; `since` in seconds since the epoch (0: before
    this agent began); `bytes` of `size` stand where it brings something now.
    """

    name: str
    state: str
    since: float = 0.0
    bytes: int = 0
    size: int = 0
    begun: float = 0.0
    """When it began, seconds since the epoch; 0: unknown."""
    done: float = 0.0
    """When it was done; 0: it is not, or that is unknown."""
    waits: str = ""
    """What keeps it: the failure of the registry that it asks again; empty: nothing."""
    waits_since: float = 0.0
    """Since when, seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class BroughtBytes:
    """The part of `size` bytes that stands of what a step brings; `waits` and `waits_since` as `StepProgress` has them."""

    bytes: int = 0
    size: int = 0
    waits: str = ""
    waits_since: float = 0.0


@dataclass(frozen=True, slots=True)
class SeenMount:
    """A file system that the work sees and the node's own processes do not: mount point, type, and source (of an image, the file)."""

    target: str
    type: str
    source: str


@dataclass(frozen=True, slots=True)
class AttemptFacts:
    """One attempt as this node shows it to people: its steps in order of their begin, its mounts, its limits by controller, its use."""

    steps: tuple[StepProgress, ...] = ()
    mounts: tuple[SeenMount, ...] = ()
    mounts_left_out: int = 0
    limits: Mapping[str, str] = field(default_factory=dict)
    use: ResourceUse = NO_USE
    processes: int = 0
    started: float = 0.0
    """Seconds since the epoch; 0: it was not started here."""
    ended: bool = False
    failure: str = ""
    """Why it did not start; empty: it did, or no end is known."""


@dataclass(frozen=True)
class Known:
    """Everything that the state directory and the scopes of this node show of one attempt; a
    restarted agent rebuilds the attempt from it.
    """

    key: Key
    work: NodeWork | None
    """None: there is no readable journal (a stray scope, a torn disk)."""
    running: Running | None
    """None: it was prepared and never started."""
    alive: bool
    """True where it was started and its shim lives, or where it has no tasks here and was not ended."""
    exit: ExitRecord | None
    boot_matches: bool
    """True where its journal was written since the machine's last boot; False without a journal."""
    populated: bool
    """True where its scope holds processes, the shim included."""
    forgotten: bool = False
    """True where it is settled: only its exit record and output are kept."""
    ordered: Ordered | None = None
    """The last order to end it that was carried out since the last boot; None: there was none."""
    unclean: bool = False
    """Steps of its prologue have begun and are not undone."""
    signalled: bool = False
    """Whether the signal before its end was sent, or was about to be."""


@dataclass(frozen=True)
class KeptAttempt:
    """One attempt for a recovery of the ledger: what is known of it, and when its journal was
    written (seconds since the epoch; 0: none).
    """

    known: Known
    prepared: float


@dataclass(frozen=True)
class Seen:
    """The highest plan seq that this node has seen, with epoch and term of that plan's ledger (0 and empty: unknown)."""

    seq: int = 0
    epoch: int = 0
    term: str = ""
