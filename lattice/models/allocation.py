"""Allocation: the universal unit of work (book, "API Design"; `docs/reference/allocation.md` is generated from here)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from lattice.models.shape import (
    LINE_PATTERN,
    Column,
    Conditions,
    Duration,
    Kind,
    Meta,
    Name,
    NodeCount,
    Part,
    Quantity,
    Rule,
    Time,
    Untyped,
    UntypedList,
    kube,
    not_served,
)

Text = Annotated[str, Field(pattern=LINE_PATTERN, max_length=1024)]
Feature = Annotated[str, Field(pattern=LINE_PATTERN, max_length=63)]
Variables = Annotated[
    dict[str, Annotated[str, Field(max_length=32768)]],
    Field(max_length=512),
]


class Output(Part):
    """Files that get what the work prints, besides `lattice logs`; patterns `%j %x %u %A %a %N %n %%`."""

    stdout: Text = ""
    """File for standard output, relative to the working directory; empty: none."""
    stderr: Text = ""
    """File for standard error; empty: together with standard output."""
    mode: Literal["Truncate", "Append"] = "Truncate"
    """Truncate or Append to a file that exists."""


class VariablesFrom(Part):
    """Variables of one Secret: each of its keys, with its value as text."""

    secret_ref: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
    """A Secret of the allocation's namespace; who submits needs the right to `get` it."""
    prefix: Annotated[str, Field(max_length=64, pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$")] = ""
    """Put before each key to make the variable's name."""


class Environment(Part):
    """Where and with what the work runs."""

    variables: Variables = Field(default_factory=dict)
    """Environment variables; secrets never stand here. They win over those of `variablesFrom`."""
    workdir: Text = ""
    """Working directory on the node; it must exist there."""
    output: Output | None = None
    """Files for the output."""
    uenv: Text | None = None
    """Software environments, by commas: labels, or squashfs files (`/PATH`, `./PATH`, `~/PATH`), each with `:/MOUNT` if wanted."""
    image: Text | None = None
    """An OCI image."""
    view: Text | None = None
    """Views of them, by commas: `view`, or `uenv:view`."""
    no_default_view: bool | None = None
    """True: images of which no view is named do not give the one that they declare."""
    tools_uenv: Text | None = None
    """More of them, with tools; an image that names no mount point is mounted at /user-tools."""
    require: Untyped | None = None
    """What the image must prove."""
    variables_from: (
        Annotated[list[VariablesFrom], Field(max_length=8, json_schema_extra=kube(list_type="map", list_map_keys=["secretRef"]))] | None
    ) = None
    """Variables from Secrets of the namespace, each named once, read when the work starts; of the same name, the later one wins."""

    rules: ClassVar = (
        *(
            Rule(f"!has(self.{name})", f"spec.environment.{name} is not served yet: {what}; remove the field")
            for name, what in (("image", "OCI images are not run by this release"), ("require", "images are not verified by this release"))
        ),
        *(
            Rule(
                f"!has(self.{name}) || has(self.uenv) || has(self.toolsUenv)",
                f"spec.environment.{name} is about software: give spec.environment.uenv",
            )
            for name in ("view", "noDefaultView")
        ),
    )


class Tasks(Part):
    """How many processes, and where."""

    on: Literal["EveryNode", "HeadNode"] | None = None
    """EveryNode (default of `entrypoint`) or HeadNode (default of `script`)."""
    per_node: Annotated[int, Field(ge=1, le=4096)] = 1
    """Tasks on each node that runs any."""
    total: Annotated[int, Field(ge=1, le=16777216)] | None = None
    """Number of tasks the work was asked for (`--ntasks`); only told to the work, in LATTICE_NPROCS."""


class Constraints(Part):
    """What a node must have."""

    features: Annotated[list[Feature], Field(max_length=32, json_schema_extra=kube(list_type="set"))] = Field(default_factory=list)
    """Features that each node must have; `hollow` asks for hollow nodes."""
    node_list: Annotated[str, Field(pattern=LINE_PATTERN, max_length=4096)] = ""
    """Only these nodes: a node set such as `nid[001-064]`."""
    exclude_nodes: Annotated[str, Field(pattern=LINE_PATTERN, max_length=4096)] = ""
    """None of these nodes."""
    topology: Literal["Any", "Tight", "Spread"] | None = None
    """Any packs into the fewest groups (default), Tight waits rather than take more groups than needed, Spread takes many."""
    gpu_type: Annotated[str, Field(pattern=LINE_PATTERN, min_length=1, max_length=63)] | None = None
    """Model of the GPUs that each node must have, such as GH200; upper and lower case are equal."""
    gpu_memory: Quantity | None = None
    """Memory that each GPU must have at least."""
    conformance: Literal["Required", "Preferred"] | None = None
    """Required: all nodes have the same fingerprint, or it waits. Preferred (default): where they can."""
    memory_policy: Text | None = None
    """NUMA policy."""
    require_unified_memory: bool | None = None
    """True: only nodes whose CPUs and GPUs share one memory."""
    allow_cxl_memory: bool | None = None
    """True: a node's CXL memory counts for `memory`, too."""
    prefer_same_numa: bool | None = None
    """Keep to one NUMA domain."""

    rules: ClassVar = tuple(
        Rule(
            f"!has(self.{name})" + (f" || {unless}" if unless else ""),
            f"spec.resources.constraints.{name} is not served yet: {what}; remove the field",
        )
        for name, what, unless in (
            ("memoryPolicy", "NUMA policies are not applied by this release", ""),
            ("preferSameNuma", "NUMA domains are not discovered by this release", "!self.preferSameNuma"),
        )
    )


class Resources(Part):
    """Whole nodes, and what each of them must offer."""

    nodes: NodeCount = 1
    """How many nodes: 64, or "32-128" for a range."""
    cpus: Annotated[int, Field(ge=1, le=65536)] | None = None
    """CPUs that each node must have."""
    gpus: Annotated[int, Field(ge=0, le=1024)] | None = None
    """GPUs that each node must have."""
    memory: Quantity | None = None
    """Memory that each node must have."""
    constraints: Constraints | None = None
    """Which nodes fit."""


class Requeue(Part):
    """What happens when an attempt fails."""

    policy: Literal["Never", "OnNodeFailure", "Always"] = "OnNodeFailure"
    """Never, OnNodeFailure (default) or Always."""
    max: Annotated[int, Field(ge=0, le=100)] = 3
    """Attempts after the first one."""
    when: Literal["Silent", "Fenced"] = "Silent"
    """Silent: as soon as the node is Down. Fenced: only with proof that its work has ended."""


FIXED_LIFECYCLE = ("type", "preemptible", "gracePeriod", "requeue", "notBefore", "deadline")
LIFECYCLE_IS_FIXED = "of spec.lifecycle only walltime and preemptionClass can be changed: cancel this allocation and submit a new one"


class Lifecycle(Part):
    """How long it runs, how it ends, what it may push aside."""

    type: Literal["Bounded", "Unbounded", "Reactive"] = "Bounded"
    """Bounded (ends by itself or at its walltime) or Unbounded (runs until cancelled, or for its vcluster's maxWalltime)."""
    walltime: Duration | None = None
    """Longest run; required when Bounded, unless the vcluster has a default."""
    preemption_class: Annotated[int, Field(ge=0, le=10)] = 5
    """Priority class, 0 to 10; higher goes first."""
    preemptible: Literal["ByClass", "Never"] = "ByClass"
    """ByClass, or Never."""
    grace_period: Duration | None = None
    """From TERM to KILL; default 30s, at most 15m."""
    requeue: Requeue | None = None
    """What happens when an attempt fails."""
    not_before: Time | None = None
    """Not started before this time."""
    deadline: Time | None = None
    """Cancelled when it has not started by then."""
    scale: Untyped | None = None
    """Scaling of a Reactive allocation."""

    rules: ClassVar = (
        Rule(
            "!has(self.type) || self.type != 'Reactive'",
            "spec.lifecycle.type Reactive is not served yet: nothing scales it; use Bounded or Unbounded",
        ),
        Rule("!has(self.scale)", "spec.lifecycle.scale is not served yet: nothing scales it; remove the field"),
    )


class Cancel(Part):
    """A wish to end it; once set, never unset."""

    reason: Annotated[str, Field(pattern=LINE_PATTERN, max_length=512)] = ""
    """Why, for people."""


class Checkpoint(Part):
    """How it saves its state."""

    strategy: Literal["Auto", "Manual", "None"] = "Auto"
    """Auto, Manual or None."""


class Telemetry(Part):
    """How closely it is watched."""

    mode: Literal["Prod", "Debug", "Audit"] = "Prod"
    """Prod, Debug or Audit."""


IMMUTABLE = (
    "tenant", "user", "project", "vcluster", "intent", "environment", "entrypoint", "script", "tasks", "resources", "quota", "reservation",
)  # fmt: skip


QUOTA_NAME, QUOTA_PREEMPTIBLE = "quota.scheduling.koordinator.sh/name", "quota.scheduling.koordinator.sh/preemptible"
"""Koordinator's labels on work: which leaf it belongs to, and whether it may be revoked."""


def _label_is_fixed(name: str) -> Rule:
    return Rule(
        f"object.metadata.?labels[?'{name}'] == oldObject.metadata.?labels[?'{name}']",
        f"the label {name} cannot be changed after creation: cancel this allocation and submit a new one",
    )


def _immutable(name: str) -> Rule:
    return Rule(
        f"self.?{name} == oldSelf.?{name}",
        f"spec.{name} cannot be changed after creation: cancel this allocation and submit a new one",
    )


class AllocationSpec(Part):
    """What a person asks for."""

    tenant: Name | None = None
    """Who pays; default: the namespace's tenant."""
    user: Annotated[str, Field(pattern=LINE_PATTERN, max_length=253)] | None = None
    """Who it runs as; set from the request."""
    project: Annotated[str, Field(pattern=LINE_PATTERN, max_length=253)] | None = None
    """For accounting."""
    vcluster: Name | None = None
    """Where it queues; default: the tenant's default."""
    tags: Annotated[dict[str, Annotated[str, Field(pattern=LINE_PATTERN, max_length=253)]], Field(max_length=32)] | None = None
    """Free labels for people; `name` is the job name."""
    intent: Literal["Train", "Simulate", "Serve", "Interactive", "Preprocess"] | None = None
    """A hint."""
    environment: Environment | None = None
    """Where and with what it runs."""
    entrypoint: Annotated[str, Field(min_length=1, max_length=65536)] | None = None
    """A command line, split like a shell would, without a shell; runs on every node."""
    script: Annotated[str, Field(min_length=1, max_length=65536)] | None = None
    """A whole script, run by its #! line on the head node."""
    script_from: Untyped | None = None
    """A script in a ConfigMap."""
    tasks: Tasks | None = None
    """How many processes, and where."""
    resources: Resources = Field(default_factory=Resources)
    """What it needs."""
    lifecycle: Lifecycle = Field(default_factory=Lifecycle)
    """How long, and how it ends."""
    quota: Text | None = None
    """Leaf of the elastic quota tree: a name or a path; default: where work of its vcluster, tenant or namespace belongs."""
    reservation: Text | None = None
    """The Reservation to run in."""
    data: Untyped | None = None
    """Data to bring."""
    connectivity: Untyped | None = None
    """Network domains and ports."""
    depends_on: UntypedList | None = None
    """What must end first."""
    checkpoint: Checkpoint | None = None
    """How it saves its state."""
    telemetry: Telemetry | None = None
    """How closely it is watched."""
    liveness_probe: Untyped | None = None
    """How to tell that it lives."""
    sensitive: bool | None = None
    """Regulated data."""
    hold: bool | None = None
    """True: it waits, and keeps its place in age."""
    cancel: Cancel | None = None
    """Set: it is ended, and the object and its history stay."""

    policies: ClassVar = (
        Rule("has(self.entrypoint) != has(self.script)", "give either spec.entrypoint or spec.script, exactly one of them"),
        *(_immutable(name) for name in IMMUTABLE),
        Rule(
            "(!has(oldSelf.lifecycle) || has(self.lifecycle)) && "
            + " && ".join(f"self.?lifecycle.?{name} == oldSelf.?lifecycle.?{name}" for name in FIXED_LIFECYCLE),
            LIFECYCLE_IS_FIXED,
        ),
        Rule(
            "self.?lifecycle.?preemptionClass.orValue(5) == oldSelf.?lifecycle.?preemptionClass.orValue(5)"
            " || object.?status.?nodes.orValue('') == ''",
            "spec.lifecycle.preemptionClass can be changed only while the allocation holds no nodes:"
            " cancel this allocation and submit a new one",
        ),
        Rule("!has(oldSelf.cancel) || has(self.cancel)", "spec.cancel cannot be taken back: submit the work again"),
        *(_label_is_fixed(name) for name in (QUOTA_PREEMPTIBLE, QUOTA_NAME)),
        Rule(
            "oldObject != null || 'lattice.dev/quota' in object.metadata.?labels.orValue({}) || (self.?quota.orValue('') == ''"
            f" && object.metadata.?labels[?'{QUOTA_NAME}'].orValue('') == '')",
            "a leaf of the quota tree is named, and the label lattice.dev/quota, which the admission webhook sets then, is missing:"
            ' it did not answer; try again, or set the label lattice.dev/quota to "named"',
        ),
    )
    rules: ClassVar = (
        not_served("scriptFrom", "scripts above 64 KiB are not read from ConfigMaps by this release"),
        not_served("data", "data is not staged by this release"),
        not_served("connectivity", "network domains are not served by this release"),
        not_served("dependsOn", "dependencies are not released by this release", unless="size(self.dependsOn) == 0"),
        not_served("checkpoint", "checkpoints are not taken by this release", unless="self.checkpoint.?strategy.orValue('Auto') == 'Auto'"),
        not_served(
            "telemetry", "telemetry modes are not switched by this release", unless="self.telemetry.?mode.orValue('Prod') == 'Prod'"
        ),
        not_served("livenessProbe", "probes are not run by this release"),
        not_served("sensitive", "sensitive work is not isolated by this release", unless="!self.sensitive"),
    )


class Exit(Part):
    """How the work ended: the first failure that the reporter saw, else 0; absent while nobody knows it."""

    code: Annotated[int, Field(ge=0, le=255)]
    """Exit code; 128+n for signal n."""
    signal: Annotated[int, Field(ge=0, le=128)] = 0
    """The signal, or 0."""
    node: Annotated[str, Field(max_length=253)] = ""
    """Where."""
    rank: Annotated[int, Field(ge=0)] = 0
    """Which task."""
    cpu_seconds: Quantity | None = None
    """CPU time of all its processes on all nodes; absent: unknown."""
    peak_memory: Quantity | None = None
    """The most memory that it held at a time, on the node where that was most; absent: unknown."""
    oom_kills: Annotated[int, Field(ge=0)] = 0
    """Processes that the kernel killed because memory was short."""


class Attempt(Part):
    """One attempt that has ended."""

    attempt: Annotated[int, Field(ge=1)]
    """Its number."""
    nodes: Annotated[str, Field(max_length=65536)] = ""
    """Where it ran."""
    node_count: Annotated[int, Field(ge=0)] = 0
    """How many nodes."""
    gpus: Annotated[int, Field(ge=0)] = 0
    """GPUs of these nodes together."""
    scheduled_time: Time | None = None
    """When it got its nodes."""
    start_time: Time | None = None
    """First process."""
    end_time: Time | None = None
    """Last process gone, or declared lost."""
    exit: Exit | None = None
    """How it ended."""
    reason: Annotated[str, Field(max_length=64)] = ""
    """Why it ended."""
    node: Annotated[str, Field(max_length=253)] = ""
    """The node whose prologue failed; later attempts avoid it."""
    message: Annotated[str, Field(max_length=1024)] = ""
    """The sentence of a prologue that failed."""


class AttemptsUse(Part):
    """What the attempts that fell out of `attempts` used, together."""

    attempts: Annotated[int, Field(ge=0)] = 0
    """Numbers 1 to this one."""
    node_seconds: Annotated[int, Field(ge=0)] = 0
    """Nodes times seconds."""
    gpu_seconds: Annotated[int, Field(ge=0)] = 0
    """GPUs times seconds."""
    end_time: Time | None = None
    """End of the last of them."""


class Report(Part):
    """Who wrote the reporter's part of the status, and for which attempt."""

    attempt: Annotated[int, Field(ge=0)]
    """The attempt that is reported."""
    by: Annotated[str, Field(max_length=253)]
    """The node whose agent wrote it."""
    failed: Annotated[str, Field(max_length=253)] = ""
    """The node whose prologue failed."""


class ExpectedStart(Part):
    """When it is expected to start."""

    p50: Time | None = None
    """As likely before as after."""
    p90: Time | None = None
    """Nine times of ten before."""
    reason: Annotated[str, Field(max_length=256)] = ""
    """Why there is none."""


class Score(Part):
    """How it ranked when its status was last written; texts with three decimals."""

    total: Annotated[str, Field(max_length=16)]
    """Weighted sum of the terms, times the multiplier of the tenant's budgets."""
    terms: Annotated[dict[str, Annotated[str, Field(max_length=16)]], Field(max_length=12)] = Field(default_factory=dict)
    """While it waits: f1 class, f2 waiting, f3 fair share, f4 topology, f5 data, f6 backlog, f7 energy, f8 checkpoint, f9 conformance."""


class AllocationStatus(Part):
    """What Lattice made of it; never written by people."""

    observed_generation: Annotated[int, Field(ge=0)] = 0
    """The generation of spec that this status judges."""
    number: Annotated[int, Field(ge=1)] | None = None
    """Unique, growing number, SLURM_JOB_ID; a scheduler that was killed leaves the rest of its block of numbers unused."""
    phase: Annotated[str, Field(max_length=16)] = ""
    """For people; derived from the conditions."""
    conditions: Conditions = Field(default_factory=list)
    """The truth."""
    nodes: Annotated[str, Field(max_length=65536)] = ""
    """The nodes, in rank order."""
    node_count: Annotated[int, Field(ge=0)] = 0
    """How many."""
    gpus: Annotated[int, Field(ge=0)] = 0
    """GPUs of these nodes together."""
    head: Annotated[str, Field(max_length=253)] = ""
    """Rank 0."""
    reporter: Annotated[str, Field(max_length=253)] = ""
    """The node whose agent reports."""
    report: Report | None = None
    """Of the last report."""
    attempt: Annotated[int, Field(ge=0)] = 0
    """Which try this is; 0 before the first."""
    ledger_seq: Annotated[int, Field(ge=0)] = 0
    """Sequence number of the ledger that the last scheduler patch was made from."""
    submit_time: Time | None = None
    """Kept over requeues."""
    scheduled_time: Time | None = None
    """When this attempt got its nodes."""
    start_time: Time | None = None
    """First process of this attempt."""
    end_time: Time | None = None
    """Last process gone."""
    kill_time: Time | None = None
    """While it ends: when KILL follows TERM."""
    expected_start: ExpectedStart | None = None
    """When it may start."""
    reserved_at: Time | None = None
    """When it was given the reservation of nodes to come that it holds: a new scheduler plans reservations in this order."""
    score: Score | None = None
    """Its rank."""
    exit: Exit | None = None
    """How it ended."""
    attempts: Annotated[list[Attempt], Field(max_length=10, json_schema_extra=kube(list_type="map", list_map_keys=["attempt"]))] = Field(
        default_factory=list
    )
    """The last ten that ended."""
    usage: AttemptsUse | None = None
    """Of the attempts before those."""
    requeues: Annotated[int, Field(ge=0)] = 0
    """Requeues that were counted against requeue.max."""
    hollow: bool | None = None
    """True: it ran on hollow nodes, which only wait."""

    rules: ClassVar = (
        Rule(
            "!has(oldSelf.ledgerSeq) || (has(self.ledgerSeq) && self.ledgerSeq >= oldSelf.ledgerSeq)",
            "status.ledgerSeq never goes back: this patch was made from an older ledger",
        ),
        Rule("!has(oldSelf.number) || (has(self.number) && self.number == oldSelf.number)", "status.number is given once"),
        Rule("!has(oldSelf.attempt) || (has(self.attempt) && self.attempt >= oldSelf.attempt)", "status.attempt never goes back"),
    )


class Allocation(Kind):
    """The universal unit of work: a training run, a simulation, an inference service."""

    meta: ClassVar = Meta(
        kind="Allocation",
        plural="allocations",
        short_names=("alloc",),
        namespaced=True,
        columns=(
            Column("Number", ".status.number", "integer"),
            Column("Job", ".spec.tags.name"),
            Column("Phase", ".status.phase"),
            Column("Nodes", ".status.nodeCount", "integer"),
            Column("Reason", '.status.conditions[?(@.type=="Ready")].reason'),
            Column("Exit", ".status.exit.code", "integer"),
            Column("VCluster", ".spec.vcluster"),
            Column("User", ".spec.user", priority=1),
            Column("Where", ".status.nodes", priority=1),
            Column("Walltime", ".spec.lifecycle.walltime", priority=1),
            Column("Expected", ".status.expectedStart.p50", priority=1),
            Column("Score", ".status.score.total", priority=1),
            Column("Message", '.status.conditions[?(@.type=="Ready")].message', priority=1),
            Column("Age", ".metadata.creationTimestamp", "date"),
        ),
        selectable=(".spec.tenant", ".spec.vcluster", ".spec.user", ".status.phase"),
        rules=(Rule("!has(oldSelf.status) || has(self.status)", "the status of an allocation is never removed"),),
    )
    kind: str = "Allocation"
    spec: AllocationSpec
    """What a person asks for."""
    status: AllocationStatus | None = None
    """What Lattice made of it."""
