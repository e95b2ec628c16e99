"""Names the variables by which a rank finds PMI, which must never come from the caller of a launch."""

from __future__ import annotations

DROPPED = (
    "PMI_FD", "PMI_RANK", "PMI_SIZE", "PMI_SPAWNED", "PMI_JOBID", "PMI_PORT", "PMI_ID", "PMI_HOSTNAME", "MPI_LOCALRANKID",
    "MPI_LOCALNRANKS", "HYDI_CONTROL_FD",
)  # fmt: skip
"""A rank with one of these would speak on a descriptor that is another one's, or wait for a server that is not there."""
