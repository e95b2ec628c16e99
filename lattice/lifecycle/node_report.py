"""Answers of the gateway about nodes and the attempts on them, as `lattice node status` and `lattice diag` show them."""

from __future__ import annotations

import msgspec

from lattice.lifecycle.preparation import StepRow


class MountRow(msgspec.Struct, rename="camel", frozen=True):
    """A file system that the work sees and the node itself does not: its mount point, type, and source (of an image, the file)."""

    target: str
    type: str
    source: str


class AttemptRow(msgspec.Struct, rename="camel", frozen=True):
    """One attempt on a node: its steps with times, its mounts, the limits that the kernel holds it to, and what it has used until now."""

    uid: str
    attempt: int
    stage: str
    namespace: str = ""
    """Empty, as `name`: the plan of the node does not name the attempt any more."""
    name: str = ""
    number: int = 0
    message: str = ""
    started: float = 0.0
    """Seconds since the epoch; 0: it has not started."""
    steps: list[StepRow] = []
    mounts: list[MountRow] = []
    mounts_left_out: int = 0
    limits: dict[str, str] = {}
    processes: int = 0
    cpu_seconds: float = 0.0
    peak_memory: int = 0
    """Bytes; 0: unknown."""
    memory_limit: int = 0
    oom_kills: int = 0


class CacheNumbers(msgspec.Struct, rename="camel", frozen=True):
    """The image cache of a node in bytes and files; `message` says why nothing is known of it."""

    directory: str = ""
    images: int = 0
    bytes: int = 0
    total: int = 0
    free: int = 0
    pulls: int = 0
    message: str = ""


class NodeReport(msgspec.Struct, rename="camel", frozen=True):
    """The answer of a node's agent; where there is none, `message` says why, and the rest is empty. Times: seconds since the epoch."""

    node: str
    state: str = ""
    """The state of the LatticeNode, as the gateway has it."""
    message: str = ""
    version: str = ""
    since: float = 0.0
    heartbeat: float = 0.0
    seq: int = 0
    flaw: str = ""
    """Why the node should be given no work."""
    cgroups: str = ""
    unlimited: list[str] = []
    """Controllers whose limits the machine refuses."""
    reserved_cpus: str = ""
    reserved_memory: int = 0
    cache: CacheNumbers = CacheNumbers()
    prologue_hooks: list[str] = []
    epilogue_hooks: list[str] = []
    hooks_message: str = ""
    scratch: str = ""
    containers: str = ""
    """The OCI runtime, or why work in images does not run there, and the site's directories for containers that it lacks."""
    attempts: list[AttemptRow] = []
    hidden: int = 0
    """Attempts of work that the reader may not see."""
    left_out: int = 0


class OutputEnd(msgspec.Struct, rename="camel", frozen=True):
    """The last lines of standard error on one node; `message` says why there are none."""

    node: str
    lines: list[str] = []
    message: str = ""


class Diagnosis(msgspec.Struct, rename="camel", frozen=True):
    """The answers of an attempt's nodes, the head first; `left_out`: how many more it had than were asked."""

    attempt: int
    nodes: list[NodeReport]
    left_out: int = 0
    output: list[OutputEnd] = []
    output_message: str = ""
    """Why the reader is shown no output."""
