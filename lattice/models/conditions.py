"""The condition types and phases of an Allocation, and the condition types of the other kinds."""

from __future__ import annotations

from typing import Final

ADMITTED: Final = "Admitted"
SCHEDULED: Final = "Scheduled"
STAGED: Final = "Staged"
STARTED: Final = "Started"
CHECKPOINTED: Final = "Checkpointed"
ENDING: Final = "Ending"
FINISHED: Final = "Finished"
SOFTWARE_RESOLVED: Final = "SoftwareResolved"
"""Written by the operator while images are not resolved: Unknown with what keeps them, False with why they never will be."""
READY: Final = "Ready"
RECONCILING: Final = "Reconciling"
STALLED: Final = "Stalled"
UNKILLABLE: Final = "Unkillable"
PROLOGUE_FAILED: Final = "PrologueFailed"
EPILOGUE_FAILED: Final = "EpilogueFailed"
"""The reason of a Finished that is False: KILL was sent, and not everything has ended."""
SOFTWARE_REFUSED: Final = frozenset({"ImageNotFound", "ImageRefused", "MountInvalid", "ViewUnknown"})
"""Ends of attempts whose software no node could mount: none follows, whatever the policy."""

WRITTEN_BY_SCHEDULER: Final = frozenset({ADMITTED, SCHEDULED, ENDING})
WRITTEN_BY_REPORTER: Final = frozenset({STAGED, STARTED, CHECKPOINTED, FINISHED})
"""Of an attempt. What a start waits for (`Staged` is False) the scheduler says, from the reports of all nodes; the reporter ends that."""
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
LEDGER_ACCEPT: Final = "accept "
"""In front of that time: work that no node knows is not held."""
LEDGER_GONE: Final = "gone "
"""In front of that time: the Ledger itself is gone, and is made from what nodes and plans say."""
LEDGER_RECOVERY: Final = "lattice.dev/recovery"
"""Annotation of the Ledger: the recovery that is under way."""
LEDGER_UNCERTAIN: Final = "lattice.dev/uncertain"
"""Annotation of the Ledger: why restored work that no node knows is held."""

NAME_CONFLICT: Final = "NameConflict"
HEALTHY: Final = "Healthy"
CERTIFICATE_EXPIRING: Final = "CertificateExpiring"
CACHE_FULL: Final = "CacheFull"
LIMITS_MISSING: Final = "LimitsMissing"
"""The conditions of a LatticeNode that its agent writes, each only once there is something to say."""

NODE_STATES: Final = ("Unknown", "Booting", "Ready", "Degraded", "Down", "Draining", "Drained", "Disabled", "Failed")
