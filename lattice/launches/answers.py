"""The document that answers `history --steps` and `status --steps`: the launches of attempts as their head's agent keeps them, as types.

The agent writes the same rows into its step log. Times are RFC 3339 texts; an empty field is left out.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from lattice.views.allocation import LaunchTotals

STEPS_SCHEMA: Final = "lattice.dev/steps/v1"
RUNNING: Final = "Running"
COMPLETED: Final = "Completed"
FAILED: Final = "Failed"
CANCELLED: Final = "Cancelled"
TIMEOUT: Final = "Timeout"
NODE_FAIL: Final = "NodeFail"
RESULTS: Final = (COMPLETED, FAILED, CANCELLED, TIMEOUT, NODE_FAIL)
"""The results of launches that are over, as sacct has them."""
StepState = Literal["Running", "Completed", "Failed", "Cancelled", "Timeout", "NodeFail"]


class StepPart(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """The base of every part of this document: field names in camelCase, empty fields left out."""


class LaunchRow(StepPart, frozen=True):
    """One launch (Slurm's step) of an attempt."""

    number: int
    """Of the launch in its attempt, from 0."""
    state: StepState
    command: str = ""
    """Its arguments, cut."""
    name: str = ""
    nodes: str = ""
    """Its nodes as a node set, cut."""
    node_count: int = 0
    tasks: int = 0
    cpus: int = 0
    """CPUs that are its own, or that its tasks are bound to, on all its nodes; 0: it shares those of others."""
    started: str = ""
    ended: str = ""
    seconds: float = 0.0
    """From its start to its end, or to now."""
    code: int = 0
    """The highest exit code of its tasks; 128+n for signal n."""
    signal: int = 0
    cpu_seconds: float = 0.0
    """CPU time of its processes on all nodes."""
    peak_memory: int = 0
    """Bytes: the most that it held at a time, on the node where that was most; 0: unknown."""
    node: str = ""
    """The node on which it failed; empty: it did not, or on none of its own."""
    reason: str = ""
    """Why it ended, where it did not by itself, or why it did not start."""
    step: str = ""
    """The number of its allocation, a dot, and its own, as Slurm names steps."""
    attempt: int = 0


class StepsOfAttempt(StepPart, frozen=True):
    """The totals of one attempt's launches, and which of its rows are missing."""

    allocation: str
    """`NAMESPACE/NAME`."""
    number: int = 0
    """The allocation's number."""
    attempt: int = 0
    launches: LaunchTotals = LaunchTotals()
    dropped: int = 0
    """Rows of the oldest launches that the log has no more."""
    left_out: int = 0
    """Rows beyond the limit that the question set."""
    incomplete: str = ""
    """Why rows are missing: the node does not answer."""


class LaunchReport(StepPart, frozen=True):
    """The document that answers `--steps`: the launches of allocations, in order of their numbers."""

    schema: Literal["lattice.dev/steps/v1"]
    at: str
    rows: list[LaunchRow]
    attempts: list[StepsOfAttempt] = []


class LaunchOrderAnswer(StepPart, frozen=True):
    """The answer to an order to end a launch: KILL follows TERM after `grace_seconds`; or it is over, as `row` says."""

    ending: bool = False
    grace_seconds: float = 0.0
    row: LaunchRow | None = None


STEP_ANSWERS: Final[dict[str, type[StepPart]]] = {STEPS_SCHEMA: LaunchReport}
"""The document by its schema."""
