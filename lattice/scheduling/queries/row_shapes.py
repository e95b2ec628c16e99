"""The form of a row of `lattice status`: what scheduler and command line send each other as JSON arrays. Pure, and quick to load."""

from __future__ import annotations

from typing import Final, NamedTuple

STATUS_SCHEMA: Final = "lattice.dev/status-rows/v1"


class StatusRow(NamedTuple):
    """One row; times are seconds since the epoch, absent where there are none. Fields are added at the end alone."""

    namespace: str
    name: str
    number: int
    """0 while it has none."""
    user: str
    phase: str
    nodes: str
    walltime: str | None
    vcluster: str
    submitted: float
    since: float | None
    start: float | None
    end: float | None
    kill: float | None
    """When KILL follows, as the status says it; for work that has started and not ended."""
    over: float | None
    """When the walltime of such work is over."""
    grace_seconds: float
    leaving: str
    """Why it ends, or shall end; empty for work that goes on or has ended."""
    place: str
    """Its nodes, or the reason in brackets."""
    expected_p50: str | None = None
    expected_p90: str | None = None
    expected_reason: str | None = None
    """Absent where no expected start is shown."""


class StatusDetail(NamedTuple):
    """The details that only the wide table shows."""

    job: str
    tenant: str
    project: str
    attempt: int
    preemption_class: int
    score: str
    message: str
