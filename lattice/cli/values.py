"""Converts values between flags and objects: walltimes, weights, names of fields; pure."""

from __future__ import annotations

import re
from decimal import Decimal

from lattice.errors import Rejected
from lattice.units import format_duration, parse_duration, parse_slurm_time


def walltime_of(text: str) -> str:
    """Returns a walltime as the Allocation has it: our form unchanged, Slurm's converted; raises Rejected for zero, unlimited and other
    text.
    """
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
    """Returns a weight as a quantity: `150m`, or `0.0125` where thousandths are not exact."""
    thousand = weight * 1000
    return f"{int(thousand)}m" if thousand == int(thousand) else f"{weight.normalize():f}"


def camel(name: str) -> str:
    """Returns a name such as `wait_time` in camelCase: `waitTime`."""
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def dashed(word: str) -> str:
    """Returns a name such as `HpcBatch` in small letters with dashes: `hpc-batch`."""
    return re.sub(r"(?<!^)([A-Z])", r"-\1", word).lower()
