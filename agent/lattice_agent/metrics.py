"""Holds the agent's metrics, on a registry of its own; names as in the book."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

BEAT_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
STARTUP_SECONDS = (0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 15.0, 60.0, 300.0)
PULL_SECONDS = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 180.0, 600.0, 1800.0)
LAUNCH_SECONDS = (0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0, 21600.0, 86400.0)
FENCE_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 60.0)
DONE = "done"
PULL_FAILURES = frozenset(
    {
        "ImageNotFound", "DigestMismatch", "CacheFull", "CacheBroken", "PullerKilled", "Interrupted", "RegistryAuthInvalid",
        "RegistryBroken", "RegistryBusy", "RegistryDenied", "RegistryInvalid", "RegistryRefused", "RegistryUnreachable",
    }
)  # fmt: skip
"""Words by which failed pulls are counted."""


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
        self._label = label
        self.step_seconds = Histogram(
            "lattice_agent_prologue_step_seconds",
            "Time of one step of a prologue that was done: probe, scope, scratch, hooks, images (their pull), mounts, container",
            ["node_id", "step"],
            buckets=STARTUP_SECONDS,
            registry=self.registry,
        )
        self.steps = Counter(
            "lattice_agent_steps_total",
            "Steps of prologues by result: done, refused, failed, interrupted; undone, unclean (could not be undone, and is tried again)",
            ["node_id", "step", "result"],
            registry=self.registry,
        )
        self.prologue_seconds = Histogram(
            "lattice_agent_prologue_seconds",
            "Time of a whole prologue that was done",
            ["node_id"],
            buckets=STARTUP_SECONDS,
            registry=self.registry,
        ).labels(label)
        self.first_process = Histogram(
            "lattice_agent_first_process_seconds",
            "Time from the order to start until the first process of the work is known to run",
            ["node_id"],
            buckets=STARTUP_SECONDS,
            registry=self.registry,
        ).labels(label)
        self._add_cache_metrics()
        self._add_launch_metrics()
        self.oom_kills = Counter(
            "lattice_agent_oom_kills_total",
            "Processes of work that the kernel killed for want of memory",
            ["node_id"],
            registry=self.registry,
        ).labels(label)

    def _add_launch_metrics(self) -> None:
        """Adds the metrics of launches, which the node that heads an attempt counts."""
        self.launches = Counter(
            "lattice_agent_launches_total",
            "Launches (srun) that are over, by result: Completed, Failed, Cancelled, Timeout, NodeFail; counted by their attempt's head",
            ["node_id", "result"],
            registry=self.registry,
        )
        self.launch_seconds = Histogram(
            "lattice_agent_launch_seconds",
            "Time of one launch from its request to the end of its last task",
            ["node_id"],
            buckets=LAUNCH_SECONDS,
            registry=self.registry,
        ).labels(self._label)
        self.fence_seconds = Histogram(
            "lattice_agent_fence_seconds",
            "Time of one fence of a launch on several nodes, from the first node whose ranks are in it to the last",
            ["node_id"],
            buckets=FENCE_SECONDS,
            registry=self.registry,
        ).labels(self._label)

    def launch_ended(self, result: str, seconds: float) -> None:
        """Counts a launch that is over, with its result (a word of sacct's) and its length."""
        self.launches.labels(self._label, result).inc()
        self.launch_seconds.observe(seconds)

    def fence_ended(self, seconds: float) -> None:
        """Counts a fence of a launch on several nodes."""
        self.fence_seconds.observe(seconds)

    def _add_cache_metrics(self) -> None:
        """Adds the metrics of the image cache and of pulls."""

        def counter(name: str, text: str) -> Counter:
            """Returns a new counter of this name, with the node's label."""
            return Counter(f"lattice_agent_{name}", text, ["node_id"], registry=self.registry).labels(self._label)

        def gauge(name: str, text: str) -> Gauge:
            """Returns a new gauge of this name, with the node's label."""
            return Gauge(f"lattice_agent_{name}", text, ["node_id"], registry=self.registry).labels(self._label)

        self.cache_bytes = gauge("cache_bytes", "Bytes of all images in the node's cache")
        self.cache_files = gauge("cache_files", "Images in the node's cache")
        self.cache_hits = counter("cache_hits_total", "Images that were wanted, by work or to warm the cache, and stood in it")
        self.cache_evictions = counter("cache_evictions_total", "Images removed from the cache, for room or by an operator")
        self.pulled_bytes = counter("pulled_bytes_total", "Bytes of images that were pulled")
        self.pull_seconds = Histogram(
            "lattice_agent_pull_seconds",
            "Time of one pull of an image",
            ["node_id"],
            buckets=PULL_SECONDS,
            registry=self.registry,
        ).labels(self._label)
        self.pull_failures = Counter(
            "lattice_agent_pull_failures_total",
            "Pulls of images that failed, by reason: a word of registry, cache or puller; Interrupted where they were given up; Other",
            ["node_id", "reason"],
            registry=self.registry,
        )

    def step_ended(self, step: str, result: str, seconds: float) -> None:
        """Counts the end of one step of a prologue, or of its undoing; `step` is a name of the agent's own list."""
        self.steps.labels(self._label, step, result).inc()
        if result == DONE:
            self.step_seconds.labels(self._label, step).observe(seconds)

    def prologue_ended(self, seconds: float) -> None:
        """Counts a whole prologue that was done."""
        self.prologue_seconds.observe(seconds)

    def pull_failed(self, reason: str) -> None:
        """Counts a pull that failed with a reason (a word of errors); a word that no list names counts as Other."""
        self.pull_failures.labels(self._label, reason if reason in PULL_FAILURES else "Other").inc()
