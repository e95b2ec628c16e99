"""Allocation: the universal unit of work (book, "API Design"; `docs/reference/allocation.md` is generated from here)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from lattice.models.forms import pattern_of
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
    rules,
)

Text = Annotated[str, Field(pattern=LINE_PATTERN, max_length=1024)]
Feature = Annotated[str, Field(pattern=LINE_PATTERN, max_length=63)]
DeviceName = Annotated[str, Field(pattern=pattern_of("device"), max_length=253)]
DIGEST_PATTERN = pattern_of("digest")
Variables = Annotated[
    dict[str, Annotated[str, Field(max_length=32768)]],
    Field(max_length=512),
]


class Output(Part):
    """Names files for the work's output, besides `lattice logs`; `%j %x %u %A %a %N %n %%` in names are replaced."""

    stdout: Text = ""
    """File for standard output, relative to the working directory; empty: none."""
    stderr: Text = ""
    """File for standard error; empty: together with standard output."""
    mode: Literal["Truncate", "Append"] = "Truncate"
    """Truncate or Append to a file that exists."""


class VariablesFrom(Part):
    """Names one Secret whose keys become variables of the work, with their values as text."""

    secret_ref: Annotated[str, Field(min_length=1, max_length=253, pattern=pattern_of("secretName"))]
    """A Secret of the allocation's namespace; who submits needs the right to `get` it."""
    prefix: Annotated[str, Field(max_length=64, pattern=pattern_of("variablePrefix"))] = ""
    """Put before each key to make the variable's name."""


class ScriptFrom(Part):
    """Names the ConfigMap with the script of the work under the key `script`, and its digest; `lattice submit` makes both."""

    config_map: Annotated[str, Field(max_length=253, pattern=pattern_of("secretName"))]
    """A ConfigMap of the namespace."""
    digest: Annotated[str, Field(pattern=DIGEST_PATTERN, max_length=71)]
    """Of the script in UTF-8."""


class SoftwareRequirement(Part):
    """What the images of the work must prove on every node before they are used."""

    signature: bool = False
    """True: each is signed by one of the site's keys; files of the user's own are refused."""
    scan: Untyped | None = None
    """That it was scanned."""

    rules: ClassVar = (
        Rule("!has(self.scan)", "spec.environment.require.scan is not served yet: images are not scanned; remove the field"),
    )


class Environment(Part):
    """The working directory, variables, output files and software of the work."""

    variables: Variables = Field(default_factory=dict)
    """Environment variables; secrets never stand here. They win over those of `variablesFrom`."""
    workdir: Text = ""
    """Working directory on the node; it must exist there."""
    slurm_variables: bool | None = None
    """True: it finds Slurm's variables, as scripts with `#SBATCH` lines do."""
    submit_host: Annotated[str, Field(max_length=253, pattern=pattern_of("host"))] | None = None
    """The machine of its submitter: `SLURM_SUBMIT_HOST`."""
    output: Output | None = None
    """Files for the output."""
    uenv: Text | None = None
    """Software environments, by commas: labels, ids, digests or files, each with `:/MOUNT` if wanted."""
    image: Text | None = None
    """An OCI image instead: `[REGISTRY/]REPOSITORY[:TAG][@sha256:…]`, of a registry that the site lists."""
    writable: bool | None = None
    """True: the user may write the root of the image; what is written is memory, and goes with the work."""
    devices: Annotated[list[DeviceName], Field(max_length=32, json_schema_extra=kube(list_type="set"))] | None = None
    """More devices of the node in an image, by their CDI names: `vendor.example/class=name`."""
    view: Text | None = None
    """Views of them, by commas: `view`, or `uenv:view`."""
    no_default_view: bool | None = None
    """True: images of which no view is named give none."""
    tools_uenv: Text | None = None
    """More of them, with tools, mounted at /user-tools unless they name a mount point."""
    require: SoftwareRequirement | None = None
    """What each image must prove before it is used."""
    variables_from: (
        Annotated[list[VariablesFrom], Field(max_length=8, json_schema_extra=kube(list_type="map", list_map_keys=["secretRef"]))] | None
    ) = None
    """Variables from Secrets of the namespace, read when the work starts; of the same name, the later one wins."""

    rules: ClassVar = (
        Rule(
            "!has(self.image) || !(has(self.uenv) || has(self.toolsUenv))",
            "spec.environment.image and uenv are given: work runs in one of them; remove the other",
        ),
        Rule(
            "!has(self.require) || has(self.image) || has(self.uenv) || has(self.toolsUenv)",
            "spec.environment.require is about software: give spec.environment.uenv or image",
        ),
        *(
            Rule(
                f"!has(self.{name}) || has(self.uenv) || has(self.toolsUenv)",
                f"spec.environment.{name} is about software: give spec.environment.uenv",
            )
            for name in ("view", "noDefaultView")
        ),
        *(
            Rule(f"!has(self.{name}) || has(self.image)", f"spec.environment.{name} is about OCI images: give spec.environment.image")
            for name in ("writable", "devices")
        ),
    )


class Tasks(Part):
    """The tasks (processes) of an attempt: their number, and what each of them has.

    An `entrypoint` with `total` is started by a launch, as `srun` starts one: exactly so many tasks, with PMI. In a `script`, and in work
    on the head node, the fields are the defaults of its own `srun`.
    """

    on: Literal["EveryNode", "HeadNode"] | None = None
    """EveryNode (default of `entrypoint`) or HeadNode (default of `script`)."""
    per_node: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Tasks on each node at most; without `total`, as many on each node, 1 by default."""
    total: Annotated[int, Field(ge=1, le=16777216)] | None = None
    """Tasks of the entrypoint on all nodes, started with PMI as `srun` does; of a script, what its `srun` starts by default."""
    cpus: Annotated[int, Field(ge=1, le=65536)] | None = None
    """CPUs of each task, cores of its own; absent: the tasks of a node share its cores evenly."""
    gpus: Annotated[int, Field(ge=1, le=4096)] | None = None
    """GPUs that each task sees, of its own; absent: all of its node."""
    layout: Annotated[str, Field(pattern=pattern_of("layout"), max_length=32)] | None = None
    """How tasks are dealt to nodes, and behind a colon to sockets: Block (default), Cyclic, Plane=4, Block:Cyclic."""
    bind: Literal["None", "Cores", "Threads", "Sockets", "Ldoms"] | None = None
    """CPUs to which each task is bound; absent: an even share, and its own cores where `cpus` is given."""
    mpi: Literal["Auto", "None", "Pmi1", "Pmi2", "Pmix"] | None = None
    """The PMI that tasks are served; Pmix asks for nodes that have it; absent: the site's default (mpi.default)."""


class Constraints(Part):
    """The demands on each node of an allocation, and on how its nodes lie together (topology, equal fingerprints)."""

    features: Annotated[list[Feature], Field(max_length=32, json_schema_extra=kube(list_type="set"))] = Field(default_factory=list)
    """Features that each node must have; `hollow` asks for hollow nodes."""
    node_list: Annotated[str, Field(pattern=LINE_PATTERN, max_length=4096)] = ""
    """Only these nodes: a node set such as `nid[001-064]`."""
    exclude_nodes: Annotated[str, Field(pattern=LINE_PATTERN, max_length=4096)] = ""
    """None of these nodes."""
    topology: Literal["Any", "Tight", "Spread"] | None = None
    """Any packs into few groups (default), Tight waits for the fewest, Spread takes many."""
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
    """How many whole nodes an allocation asks for, and what each of them must have at least."""

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
    """Whether a failed attempt is followed by another one, and by how many at most."""

    policy: Literal["Never", "OnNodeFailure", "Always"] = "OnNodeFailure"
    """Never, OnNodeFailure (default) or Always."""
    max: Annotated[int, Field(ge=0, le=100)] = 3
    """Attempts after the first one."""
    when: Literal["Silent", "Fenced"] = "Silent"
    """Silent: as soon as the node is Down. Fenced: only with proof that its work has ended."""


FIXED_LIFECYCLE = ("type", "preemptible", "gracePeriod", "signal")
LIFECYCLE_IS_FIXED = "spec.lifecycle: {} cannot be changed after creation: cancel this allocation and submit a new one".format(
    ", ".join(FIXED_LIFECYCLE)
)
PENDING_LIFECYCLE = ("requeue", "notBefore", "deadline")
LIFECYCLE_OF_PENDING = (
    "spec.lifecycle: {}, preemptionClass can be changed only while the allocation holds no nodes:"
    " cancel this allocation and submit a new one"
).format(", ".join(PENDING_LIFECYCLE))


class EarlySignal(Part):
    """A signal that the work gets before its walltime is over, once at most, so that it can save its state or have itself requeued."""

    name: Literal["HUP", "INT", "QUIT", "ABRT", "KILL", "USR1", "USR2", "ALRM", "TERM", "CONT", "STOP", "TSTP", "URG", "XCPU"]
    """The signal, without SIG."""
    before: Duration | None = None
    """How long before; default 60s. A longer walltime moves it."""
    to: Literal["Script", "Tasks"] | None = None
    """Tasks (default): those of launches, or the entrypoint's processes. Script: the first process alone (Slurm's B:)."""


class Lifecycle(Part):
    """How long an allocation runs, how it is ended, when it may start, and its class for preemption."""

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
    signal: EarlySignal | None = None
    """A signal before the end."""
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
    """The request to end an allocation; once set, it cannot be removed."""

    reason: Annotated[str, Field(pattern=LINE_PATTERN, max_length=512)] = ""
    """Why, for people."""


DEPENDENCY_IS_FIXED = "spec.dependsOn is fixed at submission: take it away, or cancel this allocation and submit a new one"


class Dependency(Part):
    """One edge: a reference to other work, and the condition that it must meet."""

    ref: Annotated[str, Field(pattern=pattern_of("reference"), min_length=1, max_length=317)]
    """A number, a name, or NAMESPACE/NAME, of the same tenant, bound at submission; of a Mutex its name."""
    condition: Literal["Success", "Failure", "Any", "Started", "Corresponding", "Mutex"]
    """Success (it completed), Failure (it failed), Any (it ended), Started, Mutex (one of a user's at a time); Corresponding: not yet."""
    delay: Duration | None = None
    """Counted from the start or the end that meets the condition."""


class Checkpoint(Part):
    """How an allocation saves its state so that a later attempt can go on from it; not served yet."""

    strategy: Literal["Auto", "Manual", "None"] = "Auto"
    """Auto, Manual or None."""


class Telemetry(Part):
    """How much is measured of an allocation while it runs; not served yet."""

    mode: Literal["Prod", "Debug", "Audit"] = "Prod"
    """Prod, Debug or Audit."""


class Data(Part):
    """The scratch space that an allocation has on each of its nodes, and the data that is brought there."""

    scratch_per_node: Quantity | None = None
    """Space on each node, for TMPDIR; empty at the start, gone at the end."""
    defaults: bool | None = None
    """Whether home, scratch and output are mounted."""
    output: Text | None = None
    """Where its results go."""
    mounts: UntypedList | None = None
    """What is mounted."""

    rules: ClassVar = tuple(
        Rule(f"!has(self.{name})", f"spec.data.{name} is not served yet: data is not staged by this release; remove the field")
        for name in ("defaults", "output", "mounts")
    )


IMAGES_ARE_PINNED = "status.software is written once: every attempt uses the same images"


LAUNCHABLE = "has(self.entrypoint) && self.?tasks.?on.orValue('EveryNode') == 'EveryNode'"
"""Whether a launch may start the work, as CEL."""
OF_TASKS = ("cpus", "gpus", "layout", "bind", "mpi")
"""The fields of `spec.tasks` that only a launch honours."""
TASKS_WITHOUT_TOTAL = (
    "spec.tasks.cpus, gpus, layout, bind and mpi are of tasks that a launch starts: set spec.tasks.total, their number on all nodes,"
    " or leave them out"
)


IMMUTABLE = (
    "tenant", "user", "project", "vcluster", "intent", "environment", "entrypoint", "script", "scriptFrom", "scriptArguments", "tasks",
    "resources", "data", "quota", "reservation", "dependsOnMode", "onUnmet", "rerunOf",
)  # fmt: skip


QUOTA_NAME, QUOTA_PREEMPTIBLE = "quota.scheduling.koordinator.sh/name", "quota.scheduling.koordinator.sh/preemptible"
"""Koordinator's labels on work: which leaf it belongs to, and whether it may be revoked."""


def _label_is_fixed(name: str) -> Rule:
    """Returns the rule that a label cannot be changed after creation."""
    return Rule(
        f"object.metadata.?labels[?'{name}'] == oldObject.metadata.?labels[?'{name}']",
        f"the label {name} cannot be changed after creation: cancel this allocation and submit a new one",
    )


def _immutable(name: str) -> Rule:
    """Returns the rule that a field of the spec cannot be changed after creation."""
    return Rule(
        f"self.?{name} == oldSelf.?{name}",
        f"spec.{name} cannot be changed after creation: cancel this allocation and submit a new one",
    )


ENDED = (
    "object.?status.?conditions.orValue([]).exists(c, c.type == 'Finished' && c.status == 'True')"
    " && object.?status.?conditions.orValue([]).exists(c, c.type in ['Ready', 'Stalled'] && c.status == 'True')"
)
"""Whether an allocation is final, as CEL."""
REQUEUE_STAYS = "spec.requeueAttempt never goes back, and cannot be taken away"
REQUEUE_MAY = (
    "self.?requeueAttempt == oldSelf.?requeueAttempt || (self.?requeueAttempt.orValue(0)"
    " < object.?status.?attempt.orValue(0) + (object.?status.?nodes.orValue('') == '' ? 0 : 1)"
    f" && !({ENDED}))"
)
REQUEUE_NAMES_NOTHING = (
    "spec.requeueAttempt must name an attempt that has nodes, of work that has not ended: what is pending waits already,"
    " and `lattice requeue` submits ended work again"
)


class AllocationSpec(Part):
    """The request of a person: what to run, as whom, on which nodes, for how long, and in which queue."""

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
    script_arguments: Annotated[list[Annotated[str, Field(max_length=32768)]], Field(max_length=1024)] | None = None
    """The arguments with which the script is run, as `sbatch SCRIPT ARGUMENT …` gives them; no shell reads them."""
    script_from: ScriptFrom | None = None
    """A script of up to 1 MiB, in a ConfigMap."""
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
    data: Data | None = None
    """Data to bring, and scratch space."""
    connectivity: Untyped | None = None
    """Network domains and ports."""
    depends_on: Annotated[list[Dependency], Field(max_length=1000, json_schema_extra=kube(list_type="atomic"))] | None = None
    """What must end, or start, first; it can be taken away later, and not changed."""
    depends_on_mode: Literal["All", "Any"] | None = None
    """All (default) of dependsOn must be met, or Any: the first that is met suffices."""
    on_unmet: Literal["Cancel", "Hold"] | None = None
    """When dependsOn can never be met: Cancel (default), or Hold: it waits until dependsOn is taken away."""
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
    requeue_attempt: Annotated[int, Field(ge=1)] | None = None
    """Set: attempts up to this number are ended, and the next one waits, once; `lattice requeue` sets it."""
    rerun_of: Annotated[str, Field(pattern=pattern_of("reference"), min_length=1, max_length=317)] | None = None
    """The work, ended before, that this one does again; for people."""

    policies: ClassVar = (
        Rule(
            "has(self.entrypoint) != (has(self.script) || has(self.scriptFrom))",
            "give either spec.entrypoint or spec.script, exactly one of them",
        ),
        Rule("!has(self.script) || !has(self.scriptFrom)", "spec.script and spec.scriptFrom are both given: take one of them away"),
        Rule(
            "!has(self.scriptArguments) || has(self.script) || has(self.scriptFrom)",
            "spec.scriptArguments are of a script: give spec.script",
        ),
        Rule(
            f"!({LAUNCHABLE}) || self.?tasks.?total.hasValue() || !("
            + " || ".join(f"self.?tasks.?{name}.hasValue()" for name in OF_TASKS)
            + ")",
            TASKS_WITHOUT_TOTAL,
        ),
        *(_immutable(name) for name in IMMUTABLE),
        Rule(
            "(!has(oldSelf.lifecycle) || has(self.lifecycle)) && "
            + " && ".join(f"self.?lifecycle.?{name} == oldSelf.?lifecycle.?{name}" for name in FIXED_LIFECYCLE),
            LIFECYCLE_IS_FIXED,
        ),
        Rule(
            "object.?status.?nodes.orValue('') == '' || ("
            + " && ".join(f"self.?lifecycle.?{name} == oldSelf.?lifecycle.?{name}" for name in PENDING_LIFECYCLE)
            + " && self.?lifecycle.?preemptionClass.orValue(5) == oldSelf.?lifecycle.?preemptionClass.orValue(5))",
            LIFECYCLE_OF_PENDING,
        ),
        Rule("!has(self.dependsOn) || size(self.dependsOn) == 0 || self.?dependsOn == oldSelf.?dependsOn", DEPENDENCY_IS_FIXED),
        Rule("!has(oldSelf.cancel) || has(self.cancel)", "spec.cancel cannot be taken back: submit the work again"),
        Rule("self.?requeueAttempt.orValue(0) >= oldSelf.?requeueAttempt.orValue(0)", REQUEUE_STAYS),
        Rule(REQUEUE_MAY, REQUEUE_NAMES_NOTHING),
        Rule("oldObject != null || !has(self.requeueAttempt)", "spec.requeueAttempt is of work that runs: leave it out"),
        *(_label_is_fixed(name) for name in (QUOTA_PREEMPTIBLE, QUOTA_NAME)),
        Rule(
            "oldObject != null || 'lattice.dev/quota' in object.metadata.?labels.orValue({}) || (self.?quota.orValue('') == ''"
            f" && object.metadata.?labels[?'{QUOTA_NAME}'].orValue('') == '')",
            "a leaf of the quota tree is named, and the label lattice.dev/quota, which the admission webhook sets then, is missing:"
            ' it did not answer; try again, or set the label lattice.dev/quota to "named"',
        ),
    )
    rules: ClassVar = (
        not_served("connectivity", "network domains are not served by this release"),
        Rule(
            "!has(self.dependsOn) || self.dependsOn.all(edge, edge.condition != 'Corresponding')",
            "spec.dependsOn: the condition Corresponding is not served yet: task groups are of a later release;"
            " use Success, Failure, Any, Started or Mutex",
        ),
        not_served("checkpoint", "checkpoints are not taken by this release", unless="self.checkpoint.?strategy.orValue('Auto') == 'Auto'"),
        not_served(
            "telemetry", "telemetry modes are not switched by this release", unless="self.telemetry.?mode.orValue('Prod') == 'Prod'"
        ),
        not_served("livenessProbe", "probes are not run by this release"),
        not_served("sensitive", "sensitive work is not isolated by this release", unless="!self.sensitive"),
    )


class Exit(Part):
    """The exit of an attempt: that of the first task whose failure its reporter saw, else 0; absent while it is unknown."""

    code: Annotated[int, Field(ge=0, le=255)]
    """Exit code; 128+n for signal n."""
    signal: Annotated[int, Field(ge=0, le=128)] = 0
    """The signal, or 0."""
    node: Annotated[str, Field(max_length=253)] = ""
    """The node of that task; empty: none failed."""
    rank: Annotated[int, Field(ge=0)] = 0
    """The rank of that task."""
    cpu_seconds: Quantity | None = None
    """CPU time of all its processes on all nodes; absent: unknown."""
    peak_memory: Quantity | None = None
    """The most memory that it held at a time, on the node where that was most; absent: unknown."""
    oom_kills: Annotated[int, Field(ge=0)] = 0
    """Processes that the kernel killed because memory was short."""


class FailedLaunch(Part):
    """A launch (`srun`) that failed."""

    step: Annotated[str, Field(max_length=32)]
    """The number of its allocation, a dot, and its own number in the attempt, as Slurm names steps."""
    result: Literal["Failed", "Timeout", "NodeFail"] = "Failed"
    """Timeout: its own time limit was over; NodeFail: a node, or the process that kept its tasks there, was lost."""
    code: Annotated[int, Field(ge=0, le=255)] = 0
    """The highest exit code of its tasks; 128+n for signal n."""
    signal: Annotated[int, Field(ge=0, le=128)] = 0
    """The signal, or 0."""
    node: Annotated[str, Field(max_length=253)] = ""
    """The node of that task, or that could not start it; empty: of no node."""
    reason: Annotated[str, Field(max_length=256)] = ""
    """Why it ended, where its tasks did not by themselves, or why it did not start."""


class LaunchTotals(Part):
    """The launches (`srun`) of an attempt by result, and the last that failed; the step log on its head node has a row for each."""

    total: Annotated[int, Field(ge=0)] = 0
    """How many were begun."""
    completed: Annotated[int, Field(ge=0)] = 0
    """All of whose tasks ended with 0."""
    failed: Annotated[int, Field(ge=0)] = 0
    """Of which a task failed, or that could not start."""
    cancelled: Annotated[int, Field(ge=0)] = 0
    """That were cancelled, or ended with their allocation or their srun."""
    timeout: Annotated[int, Field(ge=0)] = 0
    """That ran for their own time limit (srun --time)."""
    node_fail: Annotated[int, Field(ge=0)] = 0
    """That lost a node, or the process that kept their tasks there."""
    failures: Annotated[list[FailedLaunch], Field(max_length=5, json_schema_extra=kube(list_type="map", list_map_keys=["step"]))] = Field(
        default_factory=list
    )
    """The last five of those that failed, timed out or lost a node, the newest first."""


class Attempt(Part):
    """The nodes, the times and the end of one attempt that is over."""

    attempt: Annotated[int, Field(ge=1)]
    """The number of the attempt, from 1."""
    nodes: Annotated[str, Field(max_length=65536)] = ""
    """The nodes that it had, as a node set."""
    node_count: Annotated[int, Field(ge=0)] = 0
    """How many nodes."""
    gpus: Annotated[int, Field(ge=0)] = 0
    """GPUs of these nodes together."""
    scheduled_time: Time | None = None
    """When the ledger gave it its nodes."""
    start_time: Time | None = None
    """When its first process started."""
    end_time: Time | None = None
    """When its last process was gone, or the attempt was declared lost."""
    exit: Exit | None = None
    """How it ended."""
    reason: Annotated[str, Field(max_length=64)] = ""
    """Why it ended."""
    node: Annotated[str, Field(max_length=253)] = ""
    """The node whose prologue failed; later attempts avoid it."""
    message: Annotated[str, Field(max_length=1024)] = ""
    """The sentence of a prologue that failed."""


class AttemptsUse(Part):
    """The sums of node-seconds and GPU-seconds of the oldest attempts, which the list `attempts` has dropped."""

    attempts: Annotated[int, Field(ge=0)] = 0
    """The number of the last attempt in the sums; the first is 1."""
    node_seconds: Annotated[int, Field(ge=0)] = 0
    """Sum of nodes times seconds between start and end."""
    gpu_seconds: Annotated[int, Field(ge=0)] = 0
    """Sum of GPUs times seconds between start and end."""
    end_time: Time | None = None
    """End of the last of them."""


class Report(Part):
    """Names the node whose agent last wrote the agents' part of the status, and the attempt that it wrote of."""

    attempt: Annotated[int, Field(ge=0)]
    """The attempt that is reported."""
    by: Annotated[str, Field(max_length=253)]
    """The node whose agent wrote it."""
    failed: Annotated[str, Field(max_length=253)] = ""
    """The node whose prologue failed."""


class SoftwareImage(Part):
    """An image of one of the site's registries that a reference of the spec names."""

    source: Annotated[str, Field(min_length=1, max_length=512)]
    """The reference, as it was written, without its mount point; of equal ones the first stands for all."""
    digest: Annotated[str, Field(pattern=DIGEST_PATTERN, max_length=71)]
    """Of its manifest, or of the index of an OCI image for several architectures; its first 16 digits are its id."""
    size: Annotated[int, Field(ge=0)] = 0
    """Bytes of its squashfs file, or of the layers of an OCI image."""
    mount: Annotated[str, Field(max_length=1024)] = ""
    """Where it is mounted where the reference says nothing; empty: where the metadata inside it says."""
    repository: Annotated[str, Field(max_length=512)] = ""
    """Where it stands in the registry."""
    layer: Annotated[str, Field(pattern=DIGEST_PATTERN, max_length=71)] | None = None
    """Digest of its squashfs file; absent: it is an OCI image."""
    kind: Literal["Uenv", "Oci"] | None = None
    """Oci: an OCI image, packed on each node; absent: a uenv."""
    registry: Annotated[str, Field(max_length=253)] | None = None
    """Of software.registries, by name; absent: software.registry."""
    architectures: Annotated[list[Annotated[str, Field(pattern=LINE_PATTERN, max_length=32)]], Field(max_length=16)] | None = None
    """Of an OCI image, those for which it is made, as nodes call theirs; nodes of another one do not fit."""
    metadata: Annotated[str, Field(pattern=DIGEST_PATTERN, max_length=71)] | None = None
    """Digest of the metadata attached to it; absent: the metadata inside it counts."""


EDGES_ARE_BOUND = "an edge is bound once, and answered once"


PinnedImages = Annotated[
    list[SoftwareImage],
    Field(
        max_length=16, json_schema_extra=kube(list_type="map", list_map_keys=["source"]) | rules(Rule("self == oldSelf", IMAGES_ARE_PINNED))
    ),
]


class Edge(Part):
    """The state of one entry of spec.dependsOn; an answer is given once."""

    index: Annotated[int, Field(ge=0, le=999)]
    """Its place in spec.dependsOn, and here, from 0."""
    uid: Annotated[str, Field(max_length=64)] = ""
    """The object that the reference named at submission; empty: nobody knew it."""
    answer: Literal["M", "F", "N"] | None = None
    """M: met; F: never met, as it failed or was cancelled; N: never met, as nothing failed; absent: open."""
    due: Time | None = None
    """Of a met one with a delay: when that is over."""


Edges = Annotated[
    list[Edge],
    Field(
        max_length=1000,
        json_schema_extra=kube(list_type="atomic")
        | rules(
            Rule(
                "self == oldSelf || size(self) >= size(oldSelf) && oldSelf.all(o, self[o.index] == o || self[o.index].index == o.index"
                " && (!has(o.uid) || has(self[o.index].uid) && self[o.index].uid == o.uid)"
                " && (!has(o.answer) || has(self[o.index].answer) && self[o.index].answer == o.answer))",
                EDGES_ARE_BOUND,
            )
        ),
    ),
]
"""In the order of spec.dependsOn. One rule holds for all of them, and compares whole entries first: a thousand entries with three rules
each, in a list that the API server matches entry by entry, cost it more than all else at each write of the object."""


class ExpectedStart(Part):
    """The forecast of an allocation's start; without times, `reason` says why none is foreseen."""

    p50: Time | None = None
    """The time before which the start comes in five of ten cases."""
    p90: Time | None = None
    """The time before which the start comes in nine of ten cases."""
    reason: Annotated[str, Field(max_length=256)] = ""
    """Why no start is foreseen; empty where one is."""


class Score(Part):
    """The score of an allocation when its status was last written: the higher goes first; numbers as texts with three decimals."""

    total: Annotated[str, Field(max_length=16)]
    """Weighted sum of the terms, times the multiplier of the tenant's budgets."""
    terms: Annotated[dict[str, Annotated[str, Field(max_length=16)]], Field(max_length=12)] = Field(default_factory=dict)
    """While it waits: f1 class, f2 waiting, f3 fair share, f4 topology, f5 data, f6 backlog, f7 energy, f8 checkpoint, f9 conformance."""


OLDER_LEDGER = "status.ledgerSeq never goes back: this patch was made from an older ledger"


class AllocationStatus(Part):
    """What scheduler and agents have done with an allocation; only they write it.

    What is never taken back stands at the field itself, where a rule costs least; that pinned images are never removed stands at the
    status (`Allocation.status`), since the rule of a field is not asked when the field goes. That number, attempt, ledgerSeq and the
    status as a whole are never removed stands in the policy `lattice-allocation-status`.
    """

    observed_generation: Annotated[int, Field(ge=0)] = 0
    """The generation of spec that this status judges."""
    number: Annotated[int, Field(ge=1, json_schema_extra=rules(Rule("self == oldSelf", "status.number is given once")))] | None = None
    """Unique, growing number, SLURM_JOB_ID; a scheduler that was killed leaves some unused."""
    phase: Annotated[str, Field(max_length=16)] = ""
    """One word for people, derived from the conditions; no controller reads it."""
    conditions: Conditions = Field(default_factory=list)
    """The observations from which everything else is derived: Admitted, Scheduled, Started, Finished and others."""
    nodes: Annotated[str, Field(max_length=65536)] = ""
    """The nodes, in rank order."""
    node_count: Annotated[int, Field(ge=0)] = 0
    """How many nodes the present attempt has."""
    gpus: Annotated[int, Field(ge=0)] = 0
    """GPUs of these nodes together."""
    head: Annotated[str, Field(max_length=253)] = ""
    """The node of rank 0, on which scripts run."""
    reporter: Annotated[str, Field(max_length=253)] = ""
    """The node whose agent writes the status on behalf of all nodes of the attempt."""
    report: Report | None = None
    """Who wrote the last report, and of which attempt."""
    attempt: Annotated[int, Field(ge=0, json_schema_extra=rules(Rule("self >= oldSelf", "status.attempt never goes back")))] = 0
    """The number of the present attempt; 0 before the first."""
    ledger_seq: Annotated[int, Field(ge=0, json_schema_extra=rules(Rule("self >= oldSelf", OLDER_LEDGER)))] = 0
    """Sequence number of the ledger that the last scheduler patch was made from."""
    submit_time: Time | None = None
    """When the allocation was submitted; requeues do not change it."""
    scheduled_time: Time | None = None
    """When this attempt got its nodes."""
    start_time: Time | None = None
    """When the first process of this attempt started."""
    end_time: Time | None = None
    """When the last process of this attempt was gone."""
    kill_time: Time | None = None
    """While it ends: when KILL follows TERM."""
    expected_start: ExpectedStart | None = None
    """The forecast of its start."""
    reserved_at: Time | None = None
    """When it was given the nodes to come that it holds: a new scheduler plans in this order."""
    score: Score | None = None
    """Its score when this status was last written."""
    exit: Exit | None = None
    """How the present attempt ended; absent before."""
    launches: LaunchTotals | None = None
    """The launches of the present attempt, written with its end; absent: it had none, or its head's agent does not tell."""
    attempts: Annotated[list[Attempt], Field(max_length=10, json_schema_extra=kube(list_type="map", list_map_keys=["attempt"]))] = Field(
        default_factory=list
    )
    """The last ten attempts that ended."""
    usage: AttemptsUse | None = None
    """The sums of the attempts before those in `attempts`."""
    requeues: Annotated[int, Field(ge=0)] = 0
    """Requeues that were counted against requeue.max."""
    hollow: bool | None = None
    """True: it ran on hollow nodes, which only wait."""
    edges: Edges | None = None
    """What became of spec.dependsOn, entry by entry, while and after it waits for them."""
    software: PinnedImages | None = None
    """Its images, resolved once before nodes are sought; every attempt uses these digests."""


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
        selectable=(".spec.tenant", ".spec.vcluster", ".spec.user", ".status.phase", ".status.number"),
    )
    kind: str = "Allocation"
    spec: AllocationSpec
    """What a person asks for."""
    status: AllocationStatus | None = None
    """What Lattice made of it."""
