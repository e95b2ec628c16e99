"""The cached Allocation: the fields that scheduler, operator, agents and gateway read.

`entrypoint` and `script` can be large and are read by agents only, which get the object by name and decode `lattice.views.work.Work`
instead.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lattice.units import parse_node_count, quantity_bytes
from lattice.views.meta import Metadata, View

OCI: Final = "Oci"
"""The kind of a SoftwareImage that is an OCI image."""


class Condition(View, frozen=True):
    """One condition of any kind's status."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


class Requeue(View, frozen=True):
    """The rules by which a failed attempt is followed by another."""

    policy: str = "OnNodeFailure"
    max: int = 3
    when: str = "Silent"


class EarlySignal(View, frozen=True):
    """The signal that the work gets before its walltime is over."""

    name: str = ""
    before: str | None = None
    to: str | None = None


class Lifecycle(View, frozen=True):
    """The times and the class of an allocation, and what may follow its end; durations are texts such as `1h30m`."""

    type: str = "Bounded"
    walltime: str | None = None
    preemption_class: int = 5
    preemptible: str = "ByClass"
    grace_period: str = "30s"
    requeue: Requeue = Requeue()
    not_before: str | None = None
    deadline: str | None = None
    signal: EarlySignal | None = None


class Constraints(View, frozen=True):
    """The requirements on the nodes of an allocation."""

    features: tuple[str, ...] = ()
    node_list: str = ""
    exclude_nodes: str = ""
    topology: str | None = None
    gpu_type: str | None = None
    gpu_memory: int | str | None = None
    conformance: str | None = None
    require_unified_memory: bool | None = None
    allow_cxl_memory: bool | None = None


class Resources(View, frozen=True):
    """The number of whole nodes, and what each must offer; `nodes` is a number or `"min-max"`."""

    nodes: int | str = 1
    cpus: int | None = None
    gpus: int | None = None
    memory: int | str | None = None
    constraints: Constraints = Constraints()


class Data(View, frozen=True):
    """The scratch space on each node."""

    scratch_per_node: int | str | None = None

    @property
    def scratch_bytes(self) -> int:
        """Returns the bytes of scratch space on each node; 0: none is asked for. Raises Rejected for what is no quantity."""
        return quantity_bytes(self.scratch_per_node) if self.scratch_per_node is not None else 0


class Tasks(View, frozen=True):
    """The number of processes, the nodes they run on, and what each has; `on` None: the default of entrypoint or script."""

    on: str | None = None
    per_node: int | None = None
    total: int | None = None
    cpus: int | None = None
    gpus: int | None = None
    layout: str | None = None
    bind: str | None = None
    mpi: str | None = None

    @property
    def is_of_launch(self) -> bool:
        """Tells whether something is asked for that only a launch honours."""
        return any(value is not None for value in (self.cpus, self.gpus, self.layout, self.bind, self.mpi))

    def raise_resources(self, resources: Resources) -> Resources:
        """Returns the resources of each node with CPUs and GPUs enough for the tasks that it may run; the same object where tasks ask for
        none, or for no more.

        Where no number of tasks on each node is given they are dealt evenly to the least nodes. Raises Rejected for a number of nodes that
        does not parse.
        """
        if self.cpus is None and self.gpus is None:
            return resources
        there = self.per_node or -(-(self.total or 1) // parse_node_count(resources.nodes)[0])
        there = min(there, self.total or there)
        cpus, gpus = (max(had or 0, there * (each or 0)) for had, each in ((resources.cpus, self.cpus), (resources.gpus, self.gpus)))
        if (cpus, gpus) == (resources.cpus or 0, resources.gpus or 0):
            return resources
        return msgspec.structs.replace(resources, cpus=cpus or None, gpus=gpus or None)


class Cancel(View, frozen=True):
    """The order to end an allocation."""

    reason: str = ""


class Checkpoint(View, frozen=True):
    """The way in which the work saves its state."""

    strategy: str = "Auto"


class SoftwareRequirement(View, frozen=True):
    """Names the proofs that every image of the work must give on each node before it is used."""

    signature: bool = False


class SoftwareReferences(View, frozen=True):
    """The software environments that the work asks for, as the person wrote them; the agents read the rest of `environment`."""

    uenv: str = ""
    tools_uenv: str = ""
    view: str = ""
    image: str = ""
    devices: tuple[str, ...] = ()
    require: SoftwareRequirement = SoftwareRequirement()


class Dependency(View, frozen=True):
    """One edge: a reference to other work, the condition that it must meet, and how long after that this work still waits."""

    ref: str = ""
    condition: str = "Success"
    delay: str | None = None


class AllocationSpec(View, frozen=True):
    """The request of a person, without the parts that only agents read."""

    tenant: str = ""
    user: str = ""
    project: str = ""
    vcluster: str = ""
    tags: dict[str, str] = {}
    environment: SoftwareReferences = SoftwareReferences()
    tasks: Tasks = Tasks()
    resources: Resources = Resources()
    data: Data = Data()
    lifecycle: Lifecycle = Lifecycle()
    hold: bool = False
    cancel: Cancel | None = None
    requeue_attempt: int = 0
    rerun_of: str = ""
    checkpoint: Checkpoint = Checkpoint()
    sensitive: bool = False
    quota: str = ""
    reservation: str = ""
    depends_on: tuple[Dependency, ...] = ()
    depends_on_mode: str = "All"
    on_unmet: str = "Cancel"

    @property
    def node_resources(self) -> Resources:
        """Returns what each node must offer: the resources asked for, and CPUs and GPUs for the tasks that it may run.

        Raises Rejected for a number of nodes that does not parse.
        """
        return self.tasks.raise_resources(self.resources)


class Exit(View, frozen=True):
    """The end of the work; `code` None: nobody knows it."""

    code: int | None = None
    signal: int = 0
    node: str = ""
    rank: int = 0
    cpu_seconds: int | str | None = None
    peak_memory: int | str | None = None
    oom_kills: int = 0


class FailedLaunch(View, frozen=True):
    """One launch that failed."""

    step: str
    result: str = "Failed"
    code: int = 0
    signal: int = 0
    node: str = ""
    reason: str = ""


class LaunchTotals(View, frozen=True):
    """The launches of an attempt by result, and the last that failed."""

    total: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    timeout: int = 0
    node_fail: int = 0
    failures: tuple[FailedLaunch, ...] = ()


class Attempt(View, frozen=True):
    """One attempt that has ended."""

    attempt: int
    nodes: str = ""
    node_count: int = 0
    gpus: int = 0
    scheduled_time: str | None = None
    start_time: str | None = None
    end_time: str | None = None
    exit: Exit | None = None
    reason: str = ""
    node: str = ""
    message: str = ""


class AttemptsUse(View, frozen=True):
    """The use of the attempts that no longer fit in `attempts`: numbers 1 to `attempts` together."""

    attempts: int = 0
    node_seconds: int = 0
    gpu_seconds: int = 0
    end_time: str | None = None


class Report(View, frozen=True):
    """The node whose agent wrote the reporter's part of the status, and for which attempt."""

    attempt: int = 0
    by: str = ""
    failed: str = ""


class Score(View, frozen=True):
    """The score when the status was last written: texts with three decimals, the terms by `f1` to `f9`."""

    total: str = ""
    terms: dict[str, str] = {}


class ExpectedStart(View, frozen=True):
    """The forecast of the start (p50 and p90), or the reason why there is none."""

    p50: str | None = None
    p90: str | None = None
    reason: str = ""


class SoftwareImage(View, frozen=True):
    """An image of one of the site's registries that a reference of the spec names: resolved once, the same in every attempt.

    `digest`: of its manifest; `layer`: of its squashfs file, of `size` bytes; `mount` empty: the image's own metadata says.
    `metadata`: of the archive of metadata that was attached to it when it was resolved; empty: nothing was. `kind` is Oci for an OCI
    image: its `digest` may be that of an index, `size` is that of its layers as they are pulled, `registry` one of the site's list, and
    `architectures` are those for which it is made, as the kernel calls them.
    """

    source: str
    digest: str
    size: int = 0
    mount: str = ""
    repository: str = ""
    layer: str = ""
    metadata: str = ""
    kind: str = ""
    registry: str = ""
    architectures: tuple[str, ...] = ()

    @property
    def is_container(self) -> bool:
        """Tells whether it is an OCI image, which nodes pack themselves, and no uenv."""
        return self.kind == OCI


class Edge(View, frozen=True):
    """The state of one entry of spec.dependsOn, by its place there: bound to `uid`, answered M (met), F or N (never), or open."""

    index: int
    uid: str = ""
    answer: str = ""
    due: str | None = None


class AllocationStatus(View, frozen=True):
    """The state of an allocation, written by scheduler and reporter."""

    observed_generation: int = 0
    number: int | None = None
    phase: str = ""
    conditions: tuple[Condition, ...] = ()
    nodes: str = ""
    node_count: int = 0
    gpus: int = 0
    head: str = ""
    reporter: str = ""
    report: Report | None = None
    attempt: int = 0
    ledger_seq: int = 0
    submit_time: str | None = None
    scheduled_time: str | None = None
    start_time: str | None = None
    end_time: str | None = None
    kill_time: str | None = None
    expected_start: ExpectedStart | None = None
    reserved_at: str | None = None
    score: Score | None = None
    exit: Exit | None = None
    launches: LaunchTotals | None = None
    attempts: tuple[Attempt, ...] = ()
    usage: AttemptsUse | None = None
    requeues: int = 0
    hollow: bool | None = None
    edges: tuple[Edge, ...] = ()
    software: tuple[SoftwareImage, ...] = ()


class Allocation(View, frozen=True):
    """A cached Allocation."""

    metadata: Metadata
    spec: AllocationSpec = AllocationSpec()
    status: AllocationStatus = AllocationStatus()
