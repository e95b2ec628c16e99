"""The jobs of a replay through the production cycle, whatever format they came in, and what of a trace was left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lattice.errors import Rejected
from lattice.replay.tally import Tally
from lattice.scheduling.model.hardware import Need
from lattice.scheduling.model.work import ANY, PREFERRED

ANYTHING: Final = Need()
"""Any node will do."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a trace; times in seconds (of the epoch, or of the log where it has no other), durations in seconds."""

    id: str
    submit: float
    nodes: int
    """The fewest nodes it takes."""
    run: float
    """How long it ran; a replay ends it after that, or at its walltime."""
    walltime: float | None
    """What was requested; None: unbounded."""
    most: int = 0
    """The most nodes it takes; 0: as many as `nodes`."""
    tenant: str = "default"
    user: str = ""
    vcluster: str = "default"
    name: str = ""
    preemption_class: int = 5
    need: Need = ANYTHING
    only: str = ""
    """A node set that it must stay in; empty: any node."""
    without: str = ""
    """A node set that it must not touch."""
    grace: float = 30.0
    topology: str = ANY
    conformance: str = PREFERRED
    checkpointable: bool = True
    preemptible: bool = True
    sensitive: bool = False
    withdrawn: float | None = None
    """When its user cancelled it, if it still waits then."""
    started: float | None = None
    """When it started where the trace was recorded; a replay does not look at it."""
    exit: int | None = None
    """What it ended with where the trace was recorded; a replay does not look at it."""
    line: int = 0
    """Where it stands in the trace, from 1; 0: nowhere."""


@dataclass(frozen=True, slots=True)
class TenantTerms:
    """The agreement with a tenant; None: none."""

    share: float | None = None
    """Its target share of what is used, between 0 and 1."""
    max_nodes: int | None = None
    max_allocations: int | None = None


@dataclass
class Log:
    """The content of a trace: jobs in order of submission, equal times in order of the lines."""

    format: str
    jobs: list[TraceJob] = field(default_factory=list)
    total: int = 0
    """Jobs that the trace speaks of, also those left out."""
    left: Tally = field(default_factory=Tally)
    """What was left out."""
    changed: Tally = field(default_factory=Tally)
    """What is replayed otherwise than it was recorded."""
    inventory: Mapping[str, Any] | None = None
    """The machine, where the trace says it: the document that `lattice.inventory` reads."""
    tenants: dict[str, TenantTerms] = field(default_factory=dict)
    vclusters: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """The settings of each vcluster, as a file of weights has them."""
    open: set[str] = field(default_factory=set)
    """Jobs that had not ended when the trace was captured: written, never replayed."""
    missing: str = ""
    """What the trace itself says that it lacks."""

    def settle(self) -> Log:
        """Sorts by submission and counts what was out of order; Rejected (`BadTrace`) when no job is left."""
        if not self.jobs:
            why = ": " + ", ".join(self.left.phrases()) if self.left.counts else ""
            left = f"0 of {self.total} jobs are left" if self.total else "the trace has none"
            raise Rejected(f"no job to replay: {left}{why}", reason="BadTrace")
        for before, after in zip(self.jobs, self.jobs[1:], strict=False):
            if after.submit < before.submit:
                self.changed.note("jobs out of order sorted by submit time", after.line)
        self.jobs.sort(key=lambda job: job.submit)
        return self
