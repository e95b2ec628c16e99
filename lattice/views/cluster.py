"""The cached LatticeNode, Lease, Tenant, VCluster and LatticeConfig."""

from __future__ import annotations

from lattice.views.allocation import Condition
from lattice.views.meta import Metadata, View


class Hardware(View, frozen=True):
    """The hardware of a node, declared by operators or as first reported; None: nobody said."""

    cpus: int | None = None
    memory: int | str | None = None
    gpus: int | None = None
    gpu_type: str | None = None
    gpu_memory: int | str | None = None
    cxl_memory: int | str | None = None


class Wish(View, frozen=True):
    """An operator's drain of a node: reason, by whom, since when."""

    reason: str = ""
    by: str = ""
    since: str | None = None


class Disable(View, frozen=True):
    """An operator's disable of a node; `fenced`: he vouches that nothing runs there any more."""

    reason: str = ""
    by: str = ""
    since: str | None = None
    fenced: bool = False


class NodeSpec(View, frozen=True):
    """The decisions of operators about a node."""

    group: str = ""
    switch: str = ""
    features: tuple[str, ...] = ()
    hardware: Hardware | None = None
    drain: Wish | None = None
    disable: Disable | None = None


class Capabilities(View, frozen=True):
    """The hardware and features that a node's agent reports; memories are quantities, `gpu_memory` of each GPU."""

    cpus: int = 0
    memory: int | str = 0
    gpus: int = 0
    gpu_type: str = ""
    gpu_memory: int | str = 0
    cxl_memory: int | str = 0
    scratch: int | str = 0
    unified_memory: bool = False
    nominal_watts: int = 0
    architecture: str = ""
    features: tuple[str, ...] = ()


class NodeRecovery(View, frozen=True):
    """A recovery's question to a node: its id, and the seq up to which the ledger knows what was settled."""

    id: str = ""
    since: int = 0


class NodeStatus(View, frozen=True):
    """The state of a node: the operator's verdict, the agent's report, and the index that the scheduler gave it."""

    observed_generation: int = 0
    index: int | None = None
    state: str = "Unknown"
    since: str | None = None
    heartbeat: int = 0
    conditions: tuple[Condition, ...] = ()
    health: str | None = None
    capabilities: Capabilities = Capabilities()
    accepted: Hardware | None = None
    fingerprint: str = ""
    components: dict[str, str] = {}
    kernel: str = ""
    agent_version: str = ""
    address: str = ""
    boot_id: str = ""
    instance: str = ""
    hollow: bool = False
    recovery: NodeRecovery | None = None
    formats: dict[str, int] = {}
    cached_images: tuple[str, ...] | None = None


class Node(View, frozen=True):
    """A LatticeNode."""

    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class LeaseSpec(View, frozen=True):
    """The fields of a Lease that elections and heartbeats use."""

    holder_identity: str = ""
    lease_duration_seconds: int = 0
    acquire_time: str | None = None
    renew_time: str | None = None
    lease_transitions: int = 0


class Lease(View, frozen=True):
    """A `coordination.k8s.io/v1` Lease."""

    metadata: Metadata
    spec: LeaseSpec = LeaseSpec()


class UserQuota(View, frozen=True):
    """Hard limits of each user; None is unlimited."""

    max_nodes: int | None = None
    max_running: int | None = None
    max_pending: int | None = None


class TenantQuota(View, frozen=True):
    """The hard limits of a tenant; None: unlimited."""

    max_nodes: int | None = None
    max_concurrent_allocations: int | None = None
    on_exceeded: str = "Reject"
    max_pending: int | None = None
    per_user: UserQuota = UserQuota()
    max_preemption_class: int | None = None


class Allowance(View, frozen=True):
    """The hours of a budget in a period; 0: no such budget."""

    gpu_hours: int = 0
    node_hours: int = 0


class ProjectBudget(View, frozen=True):
    """The budget of one project of the tenant."""

    name: str
    gpu_hours: int = 0
    node_hours: int = 0


class TenantBudget(View, frozen=True):
    """The budgets of a tenant, which are soft limits; 0 hours: no such budget; shares and allowance are quantities."""

    gpu_hours: int = 0
    node_hours: int = 0
    period: str = "Rolling"
    period_days: int = 90
    on_exhausted: str = "Penalise"
    projects: tuple[ProjectBudget, ...] = ()
    per_user: Allowance | None = None
    fair_share_target: int | str | None = None
    burst_allowance: int | str = "1"


class TenantAccess(View, frozen=True):
    """The people of a tenant."""

    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    admins: tuple[str, ...] = ()


class TenantSpec(View, frozen=True):
    """The contract with a tenant: limits, budgets, access."""

    namespaces: tuple[str, ...] = ()
    quota: TenantQuota = TenantQuota()
    budget: TenantBudget = TenantBudget()
    default_v_cluster: str = ""
    account_names: tuple[str, ...] = ()
    access: TenantAccess = TenantAccess()
    finished_retention: str = "7d"


class TenantUse(View, frozen=True):
    """The tenant's limits and use, mirrored from the ledger; None: unlimited."""

    max_nodes: int | None = None
    used_nodes: int = 0
    max_allocations: int | None = None
    used_allocations: int = 0


class ToldHours(View, frozen=True):
    """Used hours and their limit as an outside source reported them, as quantities."""

    used: int | str = 0
    limit: int | str = 0


class ExternalBudget(View, frozen=True):
    """The budget of a tenant as an outside source reported it."""

    source: str = ""
    gpu_hours: ToldHours = ToldHours()
    node_hours: ToldHours = ToldHours()
    observed: str = ""
    valid_for: str = "1h"


class BudgetState(View, frozen=True):
    """The state of one budget, mirrored into the status; hours and fraction are quantities."""

    key: str
    scope: str = "Tenant"
    name: str = ""
    source: str = "Internal"
    gpu_hours: int | str | None = None
    gpu_hours_limit: int | str | None = None
    node_hours: int | str | None = None
    node_hours_limit: int | str | None = None
    fraction: int | str = 0
    period_start: str | None = None
    period_end: str | None = None
    told: int = 0
    crossings: int = 0


class TenantUsage(View, frozen=True):
    """The used hours and the budgets of a tenant, mirrored into its status; hours are quantities."""

    gpu_hours: int | str = 0
    node_hours: int | str = 0
    budgets: tuple[BudgetState, ...] = ()


class TenantStatus(View, frozen=True):
    """The state of a tenant: conditions, use and usage."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    use: TenantUse | None = None
    usage: TenantUsage | None = None
    external_budget: ExternalBudget | None = None


class Tenant(View, frozen=True):
    """A Tenant."""

    metadata: Metadata
    spec: TenantSpec = TenantSpec()
    status: TenantStatus = TenantStatus()


class NodeSelector(View, frozen=True):
    """The groups whose nodes are at home in a vcluster."""

    group: tuple[str, ...] = ()


class VClusterNodes(View, frozen=True):
    """The nodes on which a vcluster's work runs."""

    selector: NodeSelector | None = None


class VClusterDefaults(View, frozen=True):
    """The values that a submission to the vcluster gets where it names none."""

    walltime: str | None = None


class VClusterLimits(View, frozen=True):
    """The limits of a vcluster; None: unlimited."""

    max_walltime: str | None = None
    max_nodes_per_allocation: int | None = None
    max_nodes: int | None = None
    max_running: int | None = None
    max_running_per_user: int | None = None
    max_nodes_per_user: int | None = None
    max_pending_per_user: int | None = None
    max_pending: int | None = None
    max_pending_per_tenant: int | None = None
    max_preemption_class: int | None = None
    max_running_per_tenant: int | None = None
    max_nodes_per_tenant: int | None = None


class CostWeights(View, frozen=True):
    """The share of each term in the score, as quantities; None is 0."""

    priority: int | str | None = None
    wait_time: int | str | None = None
    fair_share: int | str | None = None
    topology: int | str | None = None
    data_readiness: int | str | None = None
    backlog: int | str | None = None
    energy: int | str | None = None
    checkpoint: int | str | None = None
    conformance: int | str | None = None


class VClusterCycle(View, frozen=True):
    """The interval of a vcluster's cycles and the depth of its backfill; None: as the LatticeConfig says."""

    interval: str | None = None
    depth: int | None = None


class VClusterBorrowing(View, frozen=True):
    """The rules by which a vcluster lends and borrows idle nodes."""

    lend: bool = False
    borrow: bool = False
    max_borrowed: int | None = None
    priority: int = 5
    max_duration: str | None = None
    return_grace: str = "0s"


class VClusterPreemption(View, frozen=True):
    """The protection of a vcluster's running work from preemption."""

    min_runtime: str | None = None
    max_per_allocation: int | None = None


class VClusterSpec(View, frozen=True):
    """The policy of a vcluster, its nodes, limits and tenants."""

    policy: str | None = None
    profile: str | None = None
    weights: CostWeights | None = None
    cycle: VClusterCycle = VClusterCycle()
    nodes: VClusterNodes = VClusterNodes()
    borrowing: VClusterBorrowing = VClusterBorrowing()
    defaults: VClusterDefaults = VClusterDefaults()
    limits: VClusterLimits = VClusterLimits()
    tenants: tuple[str, ...] = ("*",)
    state: str = "Open"
    preemption: VClusterPreemption = VClusterPreemption()
    partition_names: tuple[str, ...] = ()


class VClusterStatus(View, frozen=True):
    """The state of a vcluster: conditions, policy in force, and numbers of nodes."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()
    nodes: int = 0
    ready: int = 0
    policy: str = ""
    state: str = ""


class VCluster(View, frozen=True):
    """A VCluster."""

    metadata: Metadata
    spec: VClusterSpec = VClusterSpec()
    status: VClusterStatus = VClusterStatus()


class RecordingOptions(View, frozen=True):
    """`scheduling.recording` of the LatticeConfig."""

    enabled: bool = False
    max_size: int | str = "256Mi"
    max_age: str = "7d"


class SchedulingOptions(View, frozen=True):
    """`scheduling` of the LatticeConfig."""

    cycle_interval: str = "1s"
    retry_back_off: str = "10s"
    backfill_depth: int = 10
    reference_wait: str = "1h"
    fair_share_half_life: str = "7d"
    victims: int = 3
    near_completion: str = "5m"
    power_budget_kilowatts: int = 0
    energy_price: int | str | None = None
    energy_price_until: str | None = None
    sensitive_pool_size: int = 0
    max_dag_size: int = 1000
    events: str = "All"
    recording: RecordingOptions = RecordingOptions()


class NodeOptions(View, frozen=True):
    """`nodes` of the LatticeConfig."""

    heartbeat_interval: str = "10s"
    heartbeat_timeout: str = "30s"
    grace_period: str = "60s"
    boot_timeout: str = "10m"
    mass_silence_delay: str = "10m"


class CompatOptions(View, frozen=True):
    """`compat` of the LatticeConfig."""

    set_slurm_env: bool | None = None
    qos_mapping: dict[str, int] = {}
    cluster_name: str = "lattice"


class WorkOptions(View, frozen=True):
    """`work` of the LatticeConfig."""

    min_uid: int = 1000
    open_files: int = 131072
    log_bytes: int | str = "64Mi"
    start_timeout: str = "2m"
    max_processes: int = 32768
    reserved_memory: int | str = "512Mi"
    remove_leftovers: bool = True
    environment: dict[str, str] = {}
    core_bytes: int | str = 0
    private_tmp: bool = True
    private_tmp_keep: tuple[str, ...] = ("/tmp/krb5cc_*", "/tmp/.X11-unix")  # noqa: S108
    prologue_retries: int = 3
    hook_timeout: str = "60s"
    epilogue_timeout: str = "5m"
    user_prefixes: tuple[str, ...] = ()

    def account_of(self, user: str) -> str:
        """Returns the login of a user: his name without the longest listed prefix that it begins with."""
        prefix = max((prefix for prefix in self.user_prefixes if user.startswith(prefix)), key=len, default="")
        return user[len(prefix) :]


class QuotaTreeOptions(View, frozen=True):
    """`quotaTree` of the LatticeConfig; `default_max` are quantities by resource."""

    scale_min: bool = True
    guarantee_used: bool = False
    revocation: str = "Notify"
    delay: str = "120s"
    max_per_round: int = 10
    on_shrink: bool = False
    default_max: dict[str, int | str] | None = None


class SubmissionOptions(View, frozen=True):
    """`submission` of the LatticeConfig."""

    max_pending_per_user: int = 1000
    max_pending_per_tenant: int = 10000
    max_finished_per_tenant: int = 10000

    def pending_of_user(self, quota: TenantQuota) -> int:
        """Returns how many allocations of one user of a tenant may wait: by the tenant's quota (0: none), else by default."""
        return self.max_pending_per_user if quota.per_user.max_pending is None else quota.per_user.max_pending

    def pending_of_tenant(self, quota: TenantQuota) -> int:
        """Returns how many allocations of a tenant may wait: by its quota (0: none), else by default."""
        return self.max_pending_per_tenant if quota.max_pending is None else quota.max_pending


class ImageRegistry(View, frozen=True):
    """A registry of OCI images, by the name that references have; `url` empty: https at that name."""

    name: str
    url: str = ""


class TrustedKey(View, frozen=True):
    """A public key (PEM) whose signatures of images count, by its name in messages."""

    name: str
    key: str


class SignatureRule(View, frozen=True):
    """The tenants and the vclusters whose work runs signed images alone; `*` stands for all."""

    tenants: tuple[str, ...] = ()
    vclusters: tuple[str, ...] = ()


class SoftwareOptions(View, frozen=True):
    """`software` of the LatticeConfig."""

    registry: str = ""
    namespace: str = "deploy"
    system: str = ""
    user_files: bool = True
    resolve_timeout: str = "1h"
    pull_timeout: str = "30m"
    container_mounts: tuple[str, ...] = ()
    container_devices: tuple[str, ...] = ("*",)
    registries: tuple[ImageRegistry, ...] = ()
    largest_image: int | str = "100Gi"
    trusted_keys: tuple[TrustedKey, ...] = ()
    require_signature: SignatureRule = SignatureRule()


class MpiOptions(View, frozen=True):
    """`mpi` of the LatticeConfig."""

    default: str = "Auto"
    fence_timeout: str = "60s"


class ConfigSpec(View, frozen=True):
    """All options of the cluster, by section."""

    scheduling: SchedulingOptions = SchedulingOptions()
    nodes: NodeOptions = NodeOptions()
    compat: CompatOptions = CompatOptions()
    work: WorkOptions = WorkOptions()
    quota_tree: QuotaTreeOptions = QuotaTreeOptions()
    submission: SubmissionOptions = SubmissionOptions()
    software: SoftwareOptions = SoftwareOptions()
    mpi: MpiOptions = MpiOptions()


class ConfigStatus(View, frozen=True):
    """The conditions of the LatticeConfig."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()


class Config(View, frozen=True):
    """The one LatticeConfig."""

    metadata: Metadata
    spec: ConfigSpec = ConfigSpec()
    status: ConfigStatus = ConfigStatus()
