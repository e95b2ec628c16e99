"""LatticeNode: a machine that runs work (book, "Node Lifecycle")."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from lattice.models.conditions import NODE_STATES
from lattice.models.forms import pattern_of
from lattice.models.shape import LINE_PATTERN, Column, Conditions, Kind, Meta, Part, Quantity, Rule, Time, kube

Word = Annotated[str, Field(pattern=LINE_PATTERN, min_length=1, max_length=63)]
Version = Annotated[str, Field(pattern=LINE_PATTERN, max_length=128)]


class Wish(Part):
    """The wish of an operator about a node (drain, disable): the reason, who set it, and since when."""

    reason: Annotated[str, Field(pattern=LINE_PATTERN, min_length=1, max_length=512)]
    """Why, for people."""
    by: Annotated[str, Field(pattern=LINE_PATTERN, max_length=253)] = ""
    """Who."""
    since: Time | None = None
    """Since when."""


class Disable(Wish):
    """The wish to take a node out of service at once; work that runs there is requeued or fails."""

    fenced: bool = False
    """True: the operator vouches that nothing runs there any more, so its rows are released."""


class Hardware(Part):
    """The hardware expected of a machine, as operators declare it or as it first reported it; an absent field is not checked."""

    cpus: Annotated[int, Field(ge=0, le=65536)] | None = None
    """Processors."""
    memory: Quantity | None = None
    """Memory; the node may report up to a tenth less."""
    gpus: Annotated[int, Field(ge=0, le=1024)] | None = None
    """GPUs."""
    gpu_type: Annotated[str, Field(pattern=LINE_PATTERN, max_length=63)] | None = None
    """Model of the GPUs."""
    gpu_memory: Quantity | None = None
    """Memory of each GPU."""
    cxl_memory: Quantity | None = None
    """Memory behind CXL."""


class LatticeNodeSpec(Part):
    """What operators decide about a node: group, switch, features, expected hardware, drain and disable."""

    group: Annotated[str, Field(pattern=LINE_PATTERN, max_length=63)] = ""
    """Topology group; empty: a group of its own."""
    switch: Annotated[str, Field(pattern=LINE_PATTERN, max_length=63)] = ""
    """Switch below the group."""
    features: Annotated[list[Word], Field(max_length=32, json_schema_extra=kube(list_type="set"))] = Field(default_factory=list)
    """Features that allocations may ask for."""
    hardware: Hardware | None = None
    """What the node has: one that reports otherwise is Degraded, and counts for no more than this."""
    drain: Wish | None = None
    """Nothing new is placed here; what runs goes on."""
    disable: Disable | None = None
    """Out of service."""


class Capabilities(Part):
    """The hardware that the agent found on its machine, memories in bytes."""

    cpus: Annotated[int, Field(ge=0, le=65536)] = 0
    """Processors."""
    memory: Quantity = 0
    """Memory."""
    gpus: Annotated[int, Field(ge=0, le=1024)] = 0
    """GPUs."""
    gpu_type: Annotated[str, Field(pattern=LINE_PATTERN, max_length=63)] = ""
    """Model of the GPUs, such as GH200; empty: unknown."""
    gpu_memory: Quantity = 0
    """Memory of each GPU; 0: unknown."""
    cxl_memory: Quantity = 0
    """Memory behind CXL, beside `memory`."""
    scratch: Quantity = 0
    """Scratch space: the file system of `--scratch-dir`, or half of the memory."""
    unified_memory: bool = False
    """True: CPU and GPU memory are one domain."""
    nominal_watts: Annotated[int, Field(ge=0, le=1000000)] = 0
    """Power at full load; 0: unknown."""
    architecture: Annotated[str, Field(pattern=LINE_PATTERN, max_length=32)] = ""
    """Machine architecture."""
    features: Annotated[list[Word], Field(max_length=32, json_schema_extra=kube(list_type="set"))] = Field(default_factory=list)
    """Features that the agent was started with."""


class NodeRecovery(Part):
    """Names a recovery of the ledger, after etcd was restored, to which a node must tell what it journaled."""

    id: Annotated[str, Field(pattern=LINE_PATTERN, min_length=1, max_length=32)]
    """Random, of the recovery."""
    since: Annotated[int, Field(ge=0)] = 0
    """What was settled up to this sequence number the ledger knows; what came later the node tells."""


ImageDigest = Annotated[str, Field(pattern=pattern_of("digest"), max_length=71)]


class LatticeNodeStatus(Part):
    """What operator, agent and scheduler know of a node; the writer of each field is named in parentheses."""

    observed_generation: Annotated[int, Field(ge=0)] = 0
    """The generation of spec that the state judges (operator)."""
    index: Annotated[int, Field(ge=0, le=16383)] | None = None
    """Its number (scheduler)."""
    state: Annotated[str, Field(max_length=16, json_schema_extra={"enum": list(NODE_STATES)})] | None = None
    """Where it is in its lifecycle (operator)."""
    since: Time | None = None
    """Since when (operator)."""
    heartbeat: Annotated[int, Field(ge=0)] = 0
    """Number of the heartbeat that the state was judged on (operator)."""
    conditions: Conditions = Field(default_factory=list)
    """Ready (operator); NameConflict, Healthy, CertificateExpiring, CacheFull, LimitsMissing, once there was something to say (agent)."""
    health: Annotated[str, Field(max_length=16, json_schema_extra={"enum": ["Healthy", "Unhealthy"]})] | None = None
    """The agent's own judgement (agent)."""
    capabilities: Capabilities | None = None
    """What the machine has (agent)."""
    accepted: Hardware | None = None
    """What it reported first (operator): where spec.hardware says nothing, it counts for no more than this."""
    fingerprint: Annotated[str, Field(pattern=LINE_PATTERN, max_length=128)] = ""
    """SHA-256 over kernel, agent version and `components`: nodes with the same one run the same software (agent)."""
    components: Annotated[dict[str, Version], Field(max_length=16)] = Field(default_factory=dict)
    """Versions that the agent was told of, by name, such as gpu-driver (agent)."""
    kernel: Annotated[str, Field(pattern=LINE_PATTERN, max_length=128)] = ""
    """Kernel release (agent)."""
    agent_version: Annotated[str, Field(pattern=LINE_PATTERN, max_length=64)] = ""
    """Version of the agent (agent)."""
    address: Annotated[str, Field(pattern=pattern_of("address"), max_length=262)] = ""
    """HOST:PORT of the agent's gRPC server (agent)."""
    boot_id: Annotated[str, Field(pattern=LINE_PATTERN, max_length=64)] = ""
    """Boot id of the kernel (agent)."""
    instance: Annotated[str, Field(pattern=LINE_PATTERN, max_length=64)] = ""
    """Random, of the agent's state directory: tells two agents of one name apart (agent)."""
    hollow: bool = False
    """True: nothing runs here, the agent only waits (agent)."""
    recovery: NodeRecovery | None = None
    """The recovery of the ledger to which the node owes its history (scheduler)."""
    formats: Annotated[dict[str, Annotated[int, Field(ge=1)]], Field(max_length=16)] = Field(default_factory=dict)
    """Highest format number that the agent reads, by text (agent)."""
    cached_images: Annotated[list[ImageDigest], Field(max_length=256, json_schema_extra=kube(list_type="set"))] | None = None
    """While its image cache is full: the digests of the images that it has (agent)."""


class LatticeNode(Kind):
    """One machine that runs work: what it has, how it is, and what operators want of it."""

    meta: ClassVar = Meta(
        kind="LatticeNode",
        plural="latticenodes",
        short_names=("ln",),
        namespaced=False,
        columns=(
            Column("State", ".status.state"),
            Column("Reason", '.status.conditions[?(@.type=="Ready")].reason'),
            Column("Since", ".status.since", "date"),
            Column("CPUs", ".status.capabilities.cpus", "integer"),
            Column("Memory", ".status.capabilities.memory"),
            Column("GPUs", ".status.capabilities.gpus", "integer"),
            Column("GPU", ".status.capabilities.gpuType"),
            Column("Group", ".spec.group"),
            Column("GPU-Memory", ".status.capabilities.gpuMemory", priority=1),
            Column("Unified", ".status.capabilities.unifiedMemory", "boolean", priority=1),
            Column("Watts", ".status.capabilities.nominalWatts", "integer", priority=1),
            Column("Fingerprint", ".status.fingerprint", priority=1),
            Column("Hollow", ".status.hollow", "boolean", priority=1),
            Column("Index", ".status.index", "integer", priority=1),
            Column("Kernel", ".status.kernel", priority=1),
            Column("Agent", ".status.agentVersion", priority=1),
            Column("Address", ".status.address", priority=1),
            Column("Message", '.status.conditions[?(@.type=="Ready")].message', priority=1),
            Column("Age", ".metadata.creationTimestamp", "date"),
        ),
        rules=(Rule("self.metadata.name.size() <= 63", "a node's name has at most 63 characters"),),
    )
    kind: str = "LatticeNode"
    spec: LatticeNodeSpec = Field(default_factory=LatticeNodeSpec)
    """What operators decide about the node."""
    status: LatticeNodeStatus | None = None
    """What is known of the node."""
