"""Holds the agent's metrics, on a registry of its own; names as in the book."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

BEAT_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
STARTUP_SECONDS = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 15.0, 60.0, 300.0)


class AgentMetrics:
    """All metrics of one agent process, on one registry; `label` is the node's name, or the prefix of many hollow nodes."""

    def __init__(self, label: str) -> None:
        self.registry = CollectorRegistry()
        self.heartbeat_latency = Histogram(
            "lattice_agent_heartbeat_latency_seconds",
            "Heartbeat round-trip time",
            ["node_id"],
            buckets=BEAT_SECONDS,
            registry=self.registry,
        ).labels(label)
        self.startup = Histogram(
            "lattice_agent_allocation_startup_seconds",
            "Time from the plan row to the process start",
            ["node_id"],
            buckets=STARTUP_SECONDS,
            registry=self.registry,
        ).labels(label)
        self.last_heartbeat = Gauge(
            "lattice_agent_last_heartbeat_timestamp", "When the last heartbeat was acknowledged", ["node_id"], registry=self.registry
        ).labels(label)
        self.certificate_expiry = Gauge(
            "lattice_agent_certificate_expiry_timestamp_seconds",
            "When the node's certificate ends, for the API server (api) and for agents and gateways (peer)",
            ["node_id", "use"],
            registry=self.registry,
        )
        self.certificate_renewals = Counter(
            "lattice_agent_certificate_renewals_total",
            "Renewals of the node's certificates: done, refused by the operator, failed",
            ["node_id", "use", "outcome"],
            registry=self.registry,
        )
        self.plans_ignored = Counter(
            "lattice_agent_plans_ignored_total", "Plans that were older than one seen, or unreadable", ["node_id"], registry=self.registry
        ).labels(label)
