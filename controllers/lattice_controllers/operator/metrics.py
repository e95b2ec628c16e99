"""The operator's metrics, on a registry of its own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from lattice.models.conditions import NODE_STATES


class OperatorMetrics:
    """All metrics of the operator, on one registry: nodes, tenants, usage, retention, certificates."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self.leader = Gauge("lattice_operator_leader", "1 while this process leads", registry=registry)
        self.nodes = Gauge("lattice_nodes_total", "Nodes by state", ["state"], registry=registry)
        self.transitions = Counter("lattice_node_transitions", "Changes of state of nodes", ["state"], registry=registry)
        self.silent = Gauge("lattice_nodes_silent", "Nodes that are expected to report and are silent", registry=registry)
        self.deleted = Counter("lattice_allocations_expired", "Final allocations deleted after their retention", registry=registry)
        self.settled = Counter("lattice_usage_attempts_settled", "Attempts that usage records hold, as read or written", registry=registry)
        self.settlements = Counter("lattice_usage_record_writes", "Writes of usage records", registry=registry)
        self.unsettled = Gauge("lattice_usage_unsettled", "Allocations with an ended attempt that no usage record holds", registry=registry)
        self.used_nodes = Gauge("lattice_quota_used_nodes", "Nodes that a tenant holds", ["tenant"], registry=registry)
        self.max_nodes = Gauge("lattice_quota_max_nodes", "Hard limit of the nodes of a tenant; +Inf: none", ["tenant"], registry=registry)
        self.node_hours = Gauge("lattice_tenant_node_hours", "Node-hours in the period of the budget", ["tenant"], registry=registry)
        self.gpu_hours = Gauge("lattice_tenant_gpu_hours", "GPU-hours in the period of the budget", ["tenant"], registry=registry)
        self.budget_used = Gauge("lattice_budget_used_ratio", "Used share of a budget", ["tenant", "budget"], registry=registry)
        self.failed_open = Counter(
            "lattice_admission_failed_open", "Requests that passed the API server without the admission webhook", registry=registry
        )
        self.certificate_requests = Counter(
            "lattice_node_certificate_requests", "Requests of nodes for certificates, by verdict", ["verdict"], registry=registry
        )
        self.dags = Gauge("lattice_dags_total", "DAGs that exist", registry=registry)
        self.members_made = Counter("lattice_dag_members_made", "Members of DAGs that were made", registry=registry)
        self.tenants = Gauge("lattice_tenants_total", "Tenants", registry=registry)
        for state in NODE_STATES:
            self.nodes.labels(state).set(0)
