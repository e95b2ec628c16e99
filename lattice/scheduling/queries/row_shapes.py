"""The form of a row of `lattice status`: what scheduler and command line send each other as JSON arrays. Pure, and quick to load."""

from __future__ import annotations

from typing import Final, NamedTuple

STATUS_SCHEMA: Final = "lattice.dev/status-rows/v1"


class StatusRow(NamedTuple):
    """One Allocation in the table of `lattice status`.

    Times are seconds since the epoch, None where there are none. New fields are added at the end only.
    """

    namespace: str
    name: str
    number: int
    """The number that people type; 0: it has none yet."""
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
    """When KILL follows, by the status, while the work runs."""
    over: float | None
    """When the walltime of running work is over."""
    grace_seconds: float
    leaving: str
    """Why it is ending, or is to end; empty for work that goes on or has ended."""
    place: str
    """Its nodes, or the reason in brackets."""
    expected_p50: str | None = None
    expected_p90: str | None = None
    expected_reason: str | None = None
    """Why no start is foreseen; None where no expected start is shown."""


class StatusDetail(NamedTuple):
    """The fields of an Allocation that only the wide table and Slurm's programs show. New fields are added at the end only."""

    job: str
    tenant: str
    project: str
    attempt: int
    preemption_class: int
    score: str
    message: str
    nodelist: str
    """The nodes that it has, or had last."""
    reason: str
    """Why it waits, or how it ended: the word alone; empty while it runs."""
    code: int
    """The exit code of its last attempt, 128+n for signal n; 0 while there is none."""
    signal: int
