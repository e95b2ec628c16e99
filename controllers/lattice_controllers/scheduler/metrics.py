"""The scheduler's metrics, on a registry of its own; the names are the book's ("Scheduler Self-Monitoring")."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from lattice.daemon.clock import Clock

_FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


class SchedulerMetrics:
    """All metrics of the scheduler, on one registry: cycles, forecasts, the recording of cycles, quotas and the ledger."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._add_cycles(self.registry)
        self._add_forecasts(self.registry)
        self._add_records(self.registry)
        self._add_quotas(self.registry)
        self._add_ledger(self.registry)

    def _add_cycles(self, registry: CollectorRegistry) -> None:
        """Adds metrics of cycles: what they decide, how long they take, and how much waits."""
        self.cycle_seconds = Histogram(
            "lattice_scheduling_cycle_duration_seconds", "Time of one scheduling cycle", ["vcluster"], registry=registry, buckets=_FAST
        )
        self.cycle_failures = Counter(
            "lattice_scheduling_cycle_failures",
            "Scheduling cycles that ended in an error and placed nothing",
            ["vcluster"],
            registry=registry,
        )
        self.bound_ratio = Gauge(
            "lattice_scheduling_bound_ratio",
            "Value (score × nodes) that a cycle placed, by what a linear program proves that none could exceed; the latest cycle that was"
            " held against it",
            ["vcluster"],
            registry=registry,
        )
        self.cost_seconds = Histogram(
            "lattice_scheduling_cost_function_duration_seconds",
            "Time to score all pending allocations of a cycle",
            ["vcluster"],
            registry=registry,
            buckets=_FAST,
        )
        self.placements = Counter(
            "lattice_scheduling_placements",
            "Allocations that were given nodes: claims that the ledger accepted",
            ["vcluster"],
            registry=registry,
        )
        self.active = Gauge("lattice_allocations_active", "Allocations that hold nodes and are not ending", registry=registry)
        self.backfilled = Counter(
            "lattice_scheduling_backfill_jobs",
            "Allocations placed ahead of one that waits with a reservation",
            ["vcluster"],
            registry=registry,
        )
        self.reservation_moves = Counter(
            "lattice_scheduling_reservation_moves",
            "Reservations of pending work that were moved later or taken back, by what moved them",
            ["vcluster", "cause"],
            registry=registry,
        )
        self.queue_depth = Gauge("lattice_scheduling_queue_depth", "Pending allocations", ["vcluster"], registry=registry)
        self.proposals = Counter("lattice_scheduling_proposals", "Claims put to the ledger", ["vcluster", "result"], registry=registry)

    def _add_forecasts(self, registry: CollectorRegistry) -> None:
        """Adds metrics of the forecasts of starts, and of how far they were from the starts that came."""
        self.forecast_seconds = Histogram(
            "lattice_scheduling_forecast_duration_seconds", "Time of one forecast of all pending work", registry=registry, buckets=_FAST
        )
        self.eta_error = Histogram(
            "lattice_scheduler_eta_error_seconds",
            "Distance of a start from its p50, by its first and by its last prediction",
            ["prediction"],
            registry=registry,
            buckets=(1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 24 * 3600),
        )
        self.eta_coverage = Gauge(
            "lattice_scheduler_eta_coverage_ratio", "Share of the latest starts that came by their p90", registry=registry
        )

    def _add_records(self, registry: CollectorRegistry) -> None:
        """Adds metrics of the recording of cycles."""
        self.recording = Gauge("lattice_scheduler_recording", "1 while cycles are recorded", registry=registry)
        self.recorded = Counter(
            "lattice_scheduler_recorded_cycles",
            "Cycles by what became of their record: written, left_out (the disk did not keep up), failed",
            ["result"],
            registry=registry,
        )
        self.recording_bytes = Gauge("lattice_scheduler_recording_bytes", "Bytes of all records of cycles", registry=registry)

    def _add_quotas(self, registry: CollectorRegistry) -> None:
        """Adds metrics of the groups of the quota tree, labelled by quota, tree and resource."""
        self.quota = {
            what: Gauge(f"lattice_quota_{what}", sentence, ["quota", "tree", "resource"], registry=registry)
            for what, sentence in (
                ("request", "What the work of a group of the quota tree asks for, pending and running; cpu in millicores, memory in bytes"),
                ("used", "What the work of a group of the quota tree holds"),
                ("runtime", "What a group of the quota tree may use now"),
            )
        }
        self.quota_revocations = Counter(
            "lattice_quota_revocations",
            "Allocations that were stopped and wait again: revoked (their group used more than it may), preempted (inside their group)",
            ["tree", "kind"],
            registry=registry,
        )

    def _add_ledger(self, registry: CollectorRegistry) -> None:
        """Adds metrics of leadership, of the ledger's commits and faults, and of writes to the API server."""
        self.leader = Gauge("lattice_raft_leader", "1 while this scheduler leads", ["member_id"], registry=registry)
        self.commit_seconds = Histogram(
            "lattice_raft_commit_latency_seconds", "From proposal to commit", ["member_id"], registry=registry, buckets=_FAST
        )
        self.commits = Counter("lattice_ledger_commits", "Writes of the ledger", ["result"], registry=registry)
        self.batch = Histogram(
            "lattice_ledger_commit_proposals",
            "Proposals that shared a commit",
            registry=registry,
            buckets=(1, 2, 4, 8, 16, 32, 64, 128, 256),
        )
        self.bytes = Gauge("lattice_ledger_bytes", "Bytes of all shards", registry=registry)
        self.rows = Gauge("lattice_ledger_rows", "Holders in the ledger", registry=registry)
        self.disagreements = Counter(
            "lattice_ledger_disagreements",
            "Proposals that the API server refused although the committer held them right",
            registry=registry,
        )
        self.faults = Gauge("lattice_ledger_faults", "Faults that the independent verifier found at its last look", registry=registry)
        self.events_dropped = Counter("lattice_events_dropped", "Events about allocations beyond the budget", registry=registry)
        self.writes = Counter("lattice_scheduler_writes", "Writes to the API server", ["what"], registry=registry)
        self.went_back = Gauge("lattice_ledger_went_back", "1 while a node has seen a newer ledger than this one", registry=registry)


@contextmanager
def observe_seconds(clock: Clock, histogram: Histogram, vcluster: str) -> Iterator[None]:
    """Observes the seconds that the block takes, under the label of this vcluster; nothing where the block raises."""
    began = clock.monotonic()
    yield
    histogram.labels(vcluster).observe(clock.monotonic() - began)
