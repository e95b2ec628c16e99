"""Converts values in flags and in objects: walltimes, weights, names of fields; pure."""

from __future__ import annotations

import re
from decimal import Decimal

from lattice.errors import Rejected
from lattice.units import format_duration, parse_duration, parse_slurm_time


def walltime_of(text: str) -> str:
    """Writes the walltime as the Allocation has it; zero and unlimited are refused."""
    try:
        seconds: float | None = parse_duration(text)
        written = text
    except Rejected:
        seconds = parse_slurm_time(text)
        written = format_duration(seconds or 0)
    if not seconds:
        raise Rejected(f"--walltime={text}: a walltime is more than 0", reason="BadInput")
    return written


def milli(weight: Decimal) -> str:
    """Writes a weight as a quantity: `150m`, or `0.0125` where a thousandth does not say it."""
    thousand = weight * 1000
    return f"{int(thousand)}m" if thousand == int(thousand) else f"{weight.normalize():f}"


def camel(name: str) -> str:
    """Writes `wait_time` as the object has it."""
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def dashed(word: str) -> str:
    """Writes `HpcBatch` as it is typed: hpc-batch."""
    return re.sub(r"(?<!^)([A-Z])", r"-\1", word).lower()
