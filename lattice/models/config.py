"""LatticeConfig: the one object with every option that is served; all of it is hot (read again at each change)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from lattice.models.elastic_quota import Amounts, Revocation
from lattice.models.forms import pattern_of
from lattice.models.shape import Column, Conditions, Duration, Kind, Meta, Part, Quantity, Rule, Time, kube


class RecordingOptions(Part):
    """`scheduling.recording`: whether and how long the scheduler logs what its cycles read and decided, for `lattice replay --cycle`."""

    enabled: bool = False
    """Whether cycles are recorded."""
    max_size: Quantity = "256Mi"
    """Bytes that the log takes at most; the oldest files are removed."""
    max_age: Duration = "7d"
    """How long a cycle is kept."""


class SchedulingOptions(Part):
    """`scheduling`: intervals, backfill, scores, preemption, power and events of the scheduler, which reads them at its next cycle."""

    cycle_interval: Duration = "1s"
    """Longest time between two cycles; a change starts one at once."""
    retry_back_off: Duration = "10s"
    """Delay of an attempt after a node-side failure; doubled with each, at most 5m."""
    backfill_depth: Annotated[int, Field(ge=0, le=1000)] = 10
    """How many blocked allocations of a vcluster hold a reservation, where it does not say itself."""
    reference_wait: Duration = "1h"
    """Waiting that the score calls short; smaller lets early minutes count more."""
    fair_share_half_life: Duration = "7d"
    """Use so long ago counts half in the fair share."""
    victims: Annotated[int, Field(ge=1, le=16)] = 3
    """Most allocations that one decision preempts."""
    near_completion: Duration = "5m"
    """Work so close to the end of its walltime is never preempted."""
    power_budget_kilowatts: Annotated[int, Field(ge=0, le=1000000)] = 0
    """What nodes that hold work may draw together, by their nominal watts; 0: no limit."""
    energy_price: Quantity | None = None
    """Price of electricity now, from 0 (cheapest) to 1; absent: unknown."""
    energy_price_until: Time | None = None
    """When that price ends, and is unknown again; absent: never."""
    sensitive_pool_size: Annotated[int, Field(ge=0, le=16384)] = 0
    """Nodes that sensitive work may hold together, kept by the ledger; sensitive work itself is not served yet."""
    max_dag_size: Annotated[int, Field(ge=1, le=10000)] = 1000
    """Most members of a DAG."""
    events: Literal["All", "Warnings", "Off"] = "All"
    """Which Events allocations get, at most 5 a second in all, none for a success: Warnings are requeues, failures, what never starts."""
    recording: RecordingOptions = Field(default_factory=RecordingOptions)
    """The log of decisions."""


class NodeOptions(Part):
    """`nodes`: heartbeats and the silences after which a node is Degraded, Down or Failed; operator and agents read them at a heartbeat."""

    heartbeat_interval: Duration = "10s"
    """How often an agent renews its Lease."""
    heartbeat_timeout: Duration = "30s"
    """Silence after which a node is Degraded."""
    grace_period: Duration = "60s"
    """Further silence after which a Degraded node is Down."""
    boot_timeout: Duration = "10m"
    """How long a node may be Booting before it is Failed."""
    mass_silence_delay: Duration = "10m"
    """How long Down waits when more than half of the nodes, and at least 10, fall silent at once."""


class CompatOptions(Part):
    """`compat`: Slurm's variables and QOS names; read at submission and at the start of work."""

    set_slurm_env: bool | None = None
    """Set SLURM_* variables for all work (true), or for tasks of srun alone (false); unset: also for scripts with #SBATCH lines."""
    qos_mapping: Annotated[dict[str, Annotated[int, Field(ge=0, le=10)]], Field(max_length=64)] = Field(default_factory=dict)
    """Slurm QOS to preemption class."""
    cluster_name: Annotated[str, Field(min_length=1, max_length=40, pattern=pattern_of("keyName"))] = "lattice"
    """The name of the cluster: `SLURM_CLUSTER_NAME`."""


Prefix = Annotated[str, Field(min_length=1, max_length=253, pattern=pattern_of("prefix"))]


VariableValue = Annotated[str, Field(max_length=4096)]
TmpPattern = Annotated[str, Field(max_length=253, pattern=pattern_of("tmpPattern"))]


class WorkOptions(Part):
    """`work`: limits, timeouts, variables and clean-up of the work that agents start; read at each start."""

    min_uid: Annotated[int, Field(ge=1, le=2147483647)] = 1000
    """Users below it are refused."""
    open_files: Annotated[int, Field(ge=64, le=1073741816)] = 131072
    """Limit of open files (nofile)."""
    log_bytes: Quantity = "64Mi"
    """Kept of each stream on each node; the oldest is dropped, and said."""
    start_timeout: Duration = "2m"
    """From the last node that was prepared; what has not started by then is placed anew, at most 3 times in a row. At least 20s."""
    max_processes: Annotated[int, Field(ge=0, le=4194304)] = 32768
    """Processes and threads of an attempt on each node, at most half of what the kernel can number; 0: not limited."""
    reserved_memory: Quantity = "512Mi"
    """Memory of each node that work may not have, at most a tenth of it; 0: work is not limited."""
    remove_leftovers: bool = True
    """Whether what a user has made in /tmp, /var/tmp and /dev/shm goes with his last work on the node."""
    environment: Annotated[dict[str, VariableValue], Field(max_length=64)] = Field(default_factory=dict)
    """Variables of all work, such as BASH_ENV, without which `module` is unknown in scripts; what the user sets is stronger."""
    core_bytes: Quantity = 0
    """Limit of core files, which work may raise (`ulimit -c unlimited`); 0: none are written."""
    private_tmp: bool = True
    """Whether each attempt has a /tmp and a /dev/shm of its own on each node, which go with it."""
    private_tmp_keep: Annotated[list[TmpPattern], Field(max_length=32)] = Field(
        default_factory=lambda: ["/tmp/krb5cc_*", "/tmp/.X11-unix"]  # noqa: S108
    )
    """Patterns of what the node's own /tmp and /dev/shm go on showing to work, where it is its user's or root's."""
    prologue_retries: Annotated[int, Field(ge=0, le=10)] = 3
    """Attempts that follow, in a row, one whose prologue failed on a node; each avoids these nodes. They do not count as requeues."""
    hook_timeout: Duration = "60s"
    """How long each of the site's hooks may run before it is ended and has failed. At least 1s."""
    epilogue_timeout: Duration = "5m"
    """From the last process to the report of the end at the latest; a node that is not clean by then is Unhealthy until it is."""
    user_prefixes: Annotated[list[Prefix], Field(max_length=16)] = Field(default_factory=list)
    """Issuers' prefixes, such as `oidc:`, that user names carry and accounts do not; other names with a colon are refused."""


class QuotaTreeOptions(Part):
    """`quotaTree`: how the capacity of quota trees is divided among groups; a tree's own spec.tree wins. Read at the next cycle."""

    scale_min: bool = True
    """Whether mins shrink in proportion where their sum is above what there is."""
    guarantee_used: bool = False
    """Whether what groups hold is never divided again, whatever their min."""
    revocation: Revocation = "Notify"
    """Off, Notify (say it) or On (end work) when a group holds more than its runtime."""
    delay: Duration = "120s"
    """How long a group may hold too much before anything is revoked."""
    max_per_round: Annotated[int, Field(ge=1, le=1000)] = 10
    """Most allocations that are revoked at a time."""
    on_shrink: bool = False
    """Whether capacity that went, and nothing else, may start a revocation."""
    default_max: Amounts | None = None
    """Ceiling of the group `default`, which has the work of no other group; absent: none."""


Pending = Annotated[int, Field(ge=1, le=1000000)]


class SubmissionOptions(Part):
    """`submission`: how many allocations may wait and how many ended ones stay, where a tenant's quota does not say; read at each cycle."""

    max_pending_per_user: Pending = 1000
    """Allocations of one user of a tenant that wait; of more, only the oldest may start."""
    max_pending_per_tenant: Pending = 10000
    """Allocations of a tenant that wait; of more, only the oldest may start."""
    max_finished_per_tenant: Annotated[int, Field(ge=100, le=1000000)] = 10000
    """Allocations of a tenant that have ended and stay; of more, the oldest are deleted before their retention has passed."""


class ImageRegistry(Part):
    """A registry of OCI images that work may name."""

    name: Annotated[str, Field(max_length=253, pattern=pattern_of("registry"))]
    """As references have it: `registry.example`, `registry.example:5000`, `docker.io`."""
    url: Annotated[str, Field(max_length=512, pattern=pattern_of("registryUrl"))] = ""
    """Where it is asked, such as a mirror, with the path below which its images stand; empty: https at its name."""


class TrustedKey(Part):
    """A public key whose signatures of images count."""

    name: Annotated[str, Field(max_length=63, pattern=pattern_of("keyName"))]
    """Its name in messages."""
    key: Annotated[str, Field(max_length=4096, pattern=pattern_of("key"))]
    """The key in PEM, as `cosign generate-key-pair` leaves it in cosign.pub: ECDSA, RSA or Ed25519."""


class SignatureRule(Part):
    """`software.requireSignature`: whose work runs signed images alone, whatever it asks for; `*` stands for all."""

    tenants: Annotated[list[Annotated[str, Field(max_length=63)]], Field(max_length=256, json_schema_extra=kube(list_type="set"))] = Field(
        default_factory=list
    )
    """Tenants."""
    vclusters: Annotated[list[Annotated[str, Field(max_length=63)]], Field(max_length=256, json_schema_extra=kube(list_type="set"))] = (
        Field(default_factory=list)
    )
    """Vclusters."""


class SoftwareOptions(Part):
    """`software`: the registries of software environments (uenv) and of OCI images, and what labels mean that leave parts out; read at
    each question.
    """

    registry: Annotated[str, Field(max_length=512, pattern=pattern_of("registryUrl"))] = ""
    """URL of the OCI registry, with the path below which its images stand: `https://registry.example/uenv`; empty: there is none."""
    namespace: Annotated[str, Field(max_length=128, pattern=pattern_of("softwareName"))] = "deploy"
    """Meant by labels without `namespace::`."""
    system: Annotated[str, Field(max_length=128, pattern=pattern_of("system"))] = ""
    """This cluster's name in labels, meant by labels without `@system`; empty: every system."""
    user_files: bool = True
    """Whether work may mount squashfs files of its user's own, whose contents the kernel reads; false: images of the registry alone."""
    resolve_timeout: Duration = "1h"
    """How long work waits until its images are resolved, from its submission; then it has failed. At least 1s."""
    pull_timeout: Duration = "30m"
    """How long a node may take to pull the images of an attempt; then its prologue has failed. At least 1s."""
    registries: Annotated[list[ImageRegistry], Field(max_length=32, json_schema_extra=kube(list_type="map", list_map_keys=["name"]))] = (
        Field(default_factory=list)
    )
    """Registries whose OCI images work may name, the first for names without a registry; empty: OCI images are refused."""
    container_mounts: Annotated[
        list[Annotated[str, Field(max_length=1024, pattern=pattern_of("directory"))]],
        Field(max_length=64, json_schema_extra=kube(list_type="set")),
    ] = Field(default_factory=list)
    """Directories of the nodes, none of the system, that work in OCI images sees at the same path beside its home, such as /scratch."""
    container_devices: Annotated[
        list[Annotated[str, Field(max_length=253, pattern=pattern_of("deviceKind"))]],
        Field(max_length=64, json_schema_extra=kube(list_type="set")),
    ] = Field(default_factory=lambda: ["*"])
    """Kinds (`vendor.example/class`) of the CDI devices that work in OCI images may name in spec.environment.devices; `*`: all."""
    largest_image: Quantity = "100Gi"
    """Bytes to which the layers of an OCI image may unpack on a node; a larger one is refused."""
    trusted_keys: Annotated[list[TrustedKey], Field(max_length=16, json_schema_extra=kube(list_type="map", list_map_keys=["name"]))] = (
        Field(default_factory=list)
    )
    """Keys of which one must have signed an image where signatures are required."""
    require_signature: SignatureRule = Field(default_factory=SignatureRule)
    """Tenants and vclusters whose work runs signed images alone."""

    rules: ClassVar = (
        Rule(
            "!has(self.containerMounts) || self.containerMounts.all(path, !path.matches("
            "'^/((proc|sys|dev)(/.*)?|(bin|boot|etc|lib|lib32|lib64|root|run|sbin|tmp|usr|var)/?)$'))",
            "spec.software.containerMounts names a directory of the system, which is the image's own in a container; name one below it,"
            " or remove it",
        ),
    )


class MpiOptions(Part):
    """`mpi`: how launches of `srun` serve MPI; read at each launch."""

    default: Literal["Auto", "None", "Pmi1", "Pmi2", "Pmix"] = "Auto"
    """What `srun` without `--mpi` means: Auto is PMI and, where all nodes have it, PMIx; Pmix refuses nodes without; None serves none."""
    fence_timeout: Duration = "60s"
    """How long a node may be silent in a fence before the launch ends, and a rank late before it is named. At least 1s."""


class LatticeConfigSpec(Part):
    """The options of scheduler, agents, submission, software and MPI, each with its default."""

    scheduling: SchedulingOptions = Field(default_factory=SchedulingOptions)
    """Cycles."""
    nodes: NodeOptions = Field(default_factory=NodeOptions)
    """Heartbeats and node states."""
    compat: CompatOptions = Field(default_factory=CompatOptions)
    """Slurm compatibility."""
    work: WorkOptions = Field(default_factory=WorkOptions)
    """How work is started."""
    quota_tree: QuotaTreeOptions = Field(default_factory=QuotaTreeOptions)
    """How quota trees are divided."""
    submission: SubmissionOptions = Field(default_factory=SubmissionOptions)
    """How much may wait."""
    software: SoftwareOptions = Field(default_factory=SoftwareOptions)
    """Where software environments come from."""
    mpi: MpiOptions = Field(default_factory=MpiOptions)
    """How launches serve MPI."""


class LatticeConfigStatus(Part):
    """Which generation of the options was read last, and whether it is in force."""

    observed_generation: Annotated[int, Field(ge=0)] = 0
    """The generation that was read."""
    conditions: Conditions = Field(default_factory=list)
    """The truth."""


class LatticeConfig(Kind):
    """Every option of the cluster, in one object named `lattice`."""

    meta: ClassVar = Meta(
        kind="LatticeConfig",
        plural="latticeconfigs",
        short_names=("lcfg",),
        namespaced=False,
        columns=(
            Column("Ready", '.status.conditions[?(@.type=="Ready")].status'),
            Column("Reason", '.status.conditions[?(@.type=="Ready")].reason'),
            Column("Generation", ".metadata.generation", "integer"),
            Column("Given", ".spec", priority=1),
            Column("Message", '.status.conditions[?(@.type=="Ready")].message', priority=1),
            Column("Age", ".metadata.creationTimestamp", "date"),
        ),
        rules=(Rule("self.metadata.name == 'lattice'", "there is one LatticeConfig, and its name is lattice"),),
    )
    kind: str = "LatticeConfig"
    spec: LatticeConfigSpec = Field(default_factory=LatticeConfigSpec)
    """Every option that is served."""
    status: LatticeConfigStatus | None = None
    """Whether it is in force."""
