"""The cached LatticeNode, Lease, Tenant, VCluster and LatticeConfig."""

from __future__ import annotations

from lattice.views.allocation import Condition
from lattice.views.meta import Metadata, View


class Hardware(View, frozen=True):
    """What a machine has, declared or as first reported; None: nobody said."""

    cpus: int | None = None
    memory: int | str | None = None
    gpus: int | None = None
    gpu_type: str | None = None
    gpu_memory: int | str | None = None
    cxl_memory: int | str | None = None


class Wish(View, frozen=True):
    """What an operator wants of a node."""

    reason: str = ""
    by: str = ""
    since: str | None = None


class Disable(View, frozen=True):
    """Out of service; fenced: the operator vouches that nothing runs there any more."""

    reason: str = ""
    by: str = ""
    since: str | None = None
    fenced: bool = False


class NodeSpec(View, frozen=True):
    """What operators decided."""

    group: str = ""
    switch: str = ""
    features: tuple[str, ...] = ()
    hardware: Hardware | None = None
    drain: Wish | None = None
    disable: Disable | None = None


class Capabilities(View, frozen=True):
    """What the machine has; memories are quantities, `gpu_memory` of each GPU."""

    cpus: int = 0
    memory: int | str = 0
    gpus: int = 0
    gpu_type: str = ""
    gpu_memory: int | str = 0
    cxl_memory: int | str = 0
    unified_memory: bool = False
    nominal_watts: int = 0
    architecture: str = ""
    features: tuple[str, ...] = ()


class NodeRecovery(View, frozen=True):
    """A recovery of the ledger: its id, and the seq up to which the ledger knows what was settled."""

    id: str = ""
    since: int = 0


class NodeStatus(View, frozen=True):
    """What is known of the node."""

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


class Node(View, frozen=True):
    """A LatticeNode."""

    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class LeaseSpec(View, frozen=True):
    """The part of a Lease that elections and heartbeats use."""

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
    """Hard limits; None is unlimited."""

    max_nodes: int | None = None
    max_concurrent_allocations: int | None = None
    on_exceeded: str = "Reject"
    max_pending: int | None = None
    per_user: UserQuota = UserQuota()
    max_preemption_class: int | None = None


class Allowance(View, frozen=True):
    """Hours in a period; 0: no such budget."""

    gpu_hours: int = 0
    node_hours: int = 0


class ProjectBudget(View, frozen=True):
    """The budget of one project of the tenant."""

    name: str
    gpu_hours: int = 0
    node_hours: int = 0


class TenantBudget(View, frozen=True):
    """Soft limits; 0 hours: no such budget; shares and allowance are quantities."""

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
    """Who belongs to it."""

    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    admins: tuple[str, ...] = ()


class TenantSpec(View, frozen=True):
    """What was agreed."""

    namespaces: tuple[str, ...] = ()
    quota: TenantQuota = TenantQuota()
    budget: TenantBudget = TenantBudget()
    default_v_cluster: str = ""
    account_names: tuple[str, ...] = ()
    access: TenantAccess = TenantAccess()
    finished_retention: str = "7d"


class TenantUse(View, frozen=True):
    """Limits and use, mirrored from the ledger; None is unlimited."""

    max_nodes: int | None = None
    used_nodes: int = 0
    max_allocations: int | None = None
    used_allocations: int = 0


class ToldHours(View, frozen=True):
    """Hours as an outside source told them, as quantities."""

    used: int | str = 0
    limit: int | str = 0


class ExternalBudget(View, frozen=True):
    """What an outside source told of the tenant's budget."""

    source: str = ""
    gpu_hours: ToldHours = ToldHours()
    node_hours: ToldHours = ToldHours()
    observed: str = ""
    valid_for: str = "1h"


class BudgetState(View, frozen=True):
    """How one budget stands, mirrored; hours and fraction are quantities."""

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
    """Hours and budgets, mirrored; quantities."""

    gpu_hours: int | str = 0
    node_hours: int | str = 0
    budgets: tuple[BudgetState, ...] = ()


class TenantStatus(View, frozen=True):
    """What is in force."""

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
    """Which nodes are home."""

    group: tuple[str, ...] = ()


class VClusterNodes(View, frozen=True):
    """Where its work runs."""

    selector: NodeSelector | None = None


class VClusterDefaults(View, frozen=True):
    """What a submission gets that does not say."""

    walltime: str | None = None


class VClusterLimits(View, frozen=True):
    """What a submission may not exceed."""

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
    """When it schedules, and how far it plans; None: as the LatticeConfig says."""

    interval: str | None = None
    depth: int | None = None


class VClusterBorrowing(View, frozen=True):
    """Idle nodes that it lends and borrows."""

    lend: bool = False
    borrow: bool = False
    max_borrowed: int | None = None
    priority: int = 5
    max_duration: str | None = None
    return_grace: str = "0s"


class VClusterPreemption(View, frozen=True):
    """What protects its running work."""

    min_runtime: str | None = None
    max_per_allocation: int | None = None


class VClusterSpec(View, frozen=True):
    """How it schedules, and for whom."""

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
    """What is in force."""

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

    set_slurm_env: bool = False
    qos_mapping: dict[str, int] = {}


class WorkOptions(View, frozen=True):
    """`work` of the LatticeConfig."""

    min_uid: int = 1000
    open_files: int = 131072
    log_bytes: int | str = "64Mi"
    start_timeout: str = "2m"
    max_processes: int = 32768
    reserved_memory: int | str = "512Mi"
    remove_leftovers: bool = True
    user_prefixes: tuple[str, ...] = ()

    def account_of(self, user: str) -> str:
        """The login of a user: the name without the longest listed prefix that it begins with."""
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
        """Allocations of one user of a tenant that may wait."""
        return self.max_pending_per_user if quota.per_user.max_pending is None else quota.per_user.max_pending

    def pending_of_tenant(self, quota: TenantQuota) -> int:
        """Allocations of a tenant that may wait."""
        return self.max_pending_per_tenant if quota.max_pending is None else quota.max_pending


class ConfigSpec(View, frozen=True):
    """Every option."""

    scheduling: SchedulingOptions = SchedulingOptions()
    nodes: NodeOptions = NodeOptions()
    compat: CompatOptions = CompatOptions()
    work: WorkOptions = WorkOptions()
    quota_tree: QuotaTreeOptions = QuotaTreeOptions()
    submission: SubmissionOptions = SubmissionOptions()


class ConfigStatus(View, frozen=True):
    """Whether it is in force."""

    observed_generation: int = 0
    conditions: tuple[Condition, ...] = ()


class Config(View, frozen=True):
    """The one LatticeConfig."""

    metadata: Metadata
    spec: ConfigSpec = ConfigSpec()
    status: ConfigStatus = ConfigStatus()
