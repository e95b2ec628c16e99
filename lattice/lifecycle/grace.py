"""The grace period: the time from TERM to KILL."""

from __future__ import annotations

from typing import Final

from lattice.units import format_duration, parse_duration

MOST_GRACE_SECONDS: Final = 900.0
"""The longest grace period, as long as a checkpoint may take; it comes on top of the walltime."""
MOST_GRACE: Final = format_duration(MOST_GRACE_SECONDS)


def grace_seconds(text: str) -> float:
    """Returns the seconds from TERM to KILL, at most `MOST_GRACE_SECONDS`; raises Rejected for text that is no duration."""
    return min(parse_duration(text), MOST_GRACE_SECONDS)
