"""The jobs of a replay through the production cycle, whatever format they came in, and the count of those left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from lattice.errors import Rejected
from lattice.replay.tally import Tally
from lattice.scheduling.model.hardware import Need
from lattice.scheduling.model.work import ANY, PREFERRED

ANYTHING: Final = Need()
"""The need that any node satisfies."""


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a trace in any format; times in seconds since the epoch (or since the log's own beginning), durations in seconds."""

    id: str
    submit: float
    nodes: int
    """The least number of nodes that it takes."""
    run: float
    """How long it ran where it was recorded; a replay ends it after that, or at its walltime if that is shorter."""
    walltime: float | None
    """The requested walltime; None: unbounded."""
    most: int = 0
    """The most nodes that it takes; 0: as many as `nodes`."""
    tenant: str = "default"
    user: str = ""
    vcluster: str = "default"
    name: str = ""
    preemption_class: int = 5
    need: Need = ANYTHING
    only: str = ""
    """The node set (text) that it must run in; empty: any node."""
    without: str = ""
    """The node set (text) whose nodes it must not take."""
    grace: float = 30.0
    topology: str = ANY
    conformance: str = PREFERRED
    checkpointable: bool = True
    preemptible: bool = True
    sensitive: bool = False
    withdrawn: float | None = None
    """When its user cancelled it; a replay removes it then if it still waits. None: never."""
    started: float | None = None
    """When it started where it was recorded; a replay ignores it."""
    exit: int | None = None
    """Its exit code where it was recorded; a replay ignores it."""
    line: int = 0
    """Its line in the trace, counted from 1; 0: it has none."""


@dataclass(frozen=True, slots=True)
class TenantTerms:
    """The share and the limits of a tenant in a trace; None: not set."""

    share: float | None = None
    """Its target share of all usage, between 0 and 1."""
    max_nodes: int | None = None
    max_allocations: int | None = None


@dataclass
class Log:
    """The content of a trace: jobs in order of submission, equal times in order of the lines."""

    format: str
    jobs: list[TraceJob] = field(default_factory=list)
    total: int = 0
    """How many jobs the trace has, those left out included."""
    left: Tally = field(default_factory=Tally)
    """How many jobs were left out, by rule."""
    changed: Tally = field(default_factory=Tally)
    """How many jobs are replayed otherwise than they were recorded, by rule."""
    inventory: Mapping[str, Any] | None = None
    """The machine as the document that `lattice.inventory` reads; None: the trace does not say it."""
    tenants: dict[str, TenantTerms] = field(default_factory=dict)
    vclusters: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """The settings of each vcluster, with the names that a file of weights uses."""
    open: set[str] = field(default_factory=set)
    """Ids of jobs that had not ended when the trace was captured: written to a file, never replayed."""
    missing: str = ""
    """The gaps that the trace itself names."""

    def settle(self) -> Log:
        """Sorts the jobs by submission (equal times keep their order), counts those out of order as changed, and returns the log itself;
        raises Rejected (`BadTrace`) without any job.
        """
        if not self.jobs:
            why = ": " + ", ".join(self.left.phrases()) if self.left.counts else ""
            left = f"0 of {self.total} jobs are left" if self.total else "the trace has none"
            raise Rejected(f"no job to replay: {left}{why}", reason="BadTrace")
        for before, after in zip(self.jobs, self.jobs[1:], strict=False):
            if after.submit < before.submit:
                self.changed.note("jobs out of order sorted by submit time", after.line)
        self.jobs.sort(key=lambda job: job.submit)
        return self
