"""The grace period: how long work that was told to end may go on."""

from __future__ import annotations

from typing import Final

from lattice.units import format_duration, parse_duration

MOST_GRACE_SECONDS: Final = 900.0
"""It comes on top of the walltime and of every order to end, so that it is bounded too: as long as a checkpoint may take."""
MOST_GRACE: Final = format_duration(MOST_GRACE_SECONDS)


def grace_seconds(text: str) -> float:
    """Seconds from TERM to KILL, the most at the most, whoever admitted more. Raises Rejected for what is no duration."""
    return min(parse_duration(text), MOST_GRACE_SECONDS)
