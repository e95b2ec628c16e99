"""The condition types and phases of an Allocation, and the condition types of the other kinds."""

from __future__ import annotations

from typing import Final

ADMITTED: Final = "Admitted"
SCHEDULED: Final = "Scheduled"
STAGED: Final = "Staged"
STARTED: Final = "Started"
CHECKPOINTED: Final = "Checkpointed"
FINISHED: Final = "Finished"
READY: Final = "Ready"
RECONCILING: Final = "Reconciling"
STALLED: Final = "Stalled"

WRITTEN_BY_SCHEDULER: Final = frozenset({ADMITTED, SCHEDULED})
WRITTEN_BY_REPORTER: Final = frozenset({STAGED, STARTED, CHECKPOINTED, FINISHED})
DERIVED: Final = frozenset({READY, RECONCILING, STALLED})

PENDING: Final = "Pending"
STAGING: Final = "Staging"
RUNNING: Final = "Running"
CHECKPOINTING: Final = "Checkpointing"
SUSPENDED: Final = "Suspended"
COMPLETED: Final = "Completed"
FAILED: Final = "Failed"
CANCELLED: Final = "Cancelled"

PHASES: Final = (PENDING, STAGING, RUNNING, CHECKPOINTING, SUSPENDED, COMPLETED, FAILED, CANCELLED)
FINAL_PHASES: Final = frozenset({COMPLETED, FAILED, CANCELLED})

LEDGER_CONDITION: Final = "lattice.dev/condition"
"""Annotation of the Ledger: what keeps the scheduler from committing, a word and a sentence."""
LEDGER_RECOVER: Final = "lattice.dev/recover"
"""Annotation of the Ledger: since when an administrator wants it recovered."""

NAME_CONFLICT: Final = "NameConflict"
HEALTHY: Final = "Healthy"
"""The conditions of a LatticeNode that its agent writes, each only once there is something to say."""

NODE_STATES: Final = ("Unknown", "Booting", "Ready", "Degraded", "Down", "Draining", "Drained", "Disabled", "Failed")
