"""Writes and reads times and durations as Slurm's programs do, in local time; pure but for the time zone."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Final

from lattice.errors import Rejected
from lattice.units import is_digits

_UNITS: Final = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_RELATIVE = re.compile(r"now(?:([+-])([0-9]{1,9})([a-z]*))?")
_FORMS: Final = ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d", "%m/%d/%y-%H:%M:%S", "%m/%d/%y-%H:%M", "%m/%d/%y", "%m/%d", "%m%d%y")
_CLOCKS: Final = ("%H:%M:%S", "%H:%M")


def stamp(epoch: float | None, absent: str = "Unknown") -> str:
    """Returns a moment as Slurm writes it in local time, `2026-11-27T11:01:08`; `absent` for None."""
    return absent if epoch is None else datetime.fromtimestamp(int(epoch)).strftime("%Y-%m-%dT%H:%M:%S")  # noqa: DTZ006 - local, as Slurm


def short_span(seconds: float | None) -> str:
    """Returns a duration as squeue and sinfo write it: `0:02`, `1:00:00`, `2-00:00:00`; UNLIMITED for None."""
    if seconds is None:
        return "UNLIMITED"
    days, hours, minutes, rest = _parts(seconds)
    if days:
        return f"{days}-{hours:02d}:{minutes:02d}:{rest:02d}"
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def long_span(seconds: float | None) -> str:
    """Returns a duration as sacct and scontrol write it: `00:00:02`, `2-00:00:00`; UNLIMITED for None."""
    if seconds is None:
        return "UNLIMITED"
    days, hours, minutes, rest = _parts(seconds)
    return (f"{days}-" if days else "") + f"{hours:02d}:{minutes:02d}:{rest:02d}"


def processor_time(seconds: float) -> str:
    """Returns CPU time as sacct writes it: `00:01.250` below an hour, else without fractions."""
    if seconds >= 3600:
        return long_span(seconds)
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes):02d}:{rest:06.3f}"


def _parts(seconds: float) -> tuple[int, int, int, int]:
    """Returns days, hours, minutes and seconds of a duration."""
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return days, hours, minutes, rest


def midnight(now: float) -> float:
    """Returns the beginning of the local day, from which sacct lists by default."""
    return datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0).timestamp()  # noqa: DTZ006 - local, as Slurm


def read_moment(text: str, now: float) -> float:
    """Returns the seconds since the epoch that `--starttime` and `--endtime` mean: a local time, a clock of today, `now-2days`, `today`.

    Raises Rejected for other text.
    """
    word = text.strip().lower()
    relative = _RELATIVE.fullmatch(word)
    if relative is not None:
        unit = (relative[3] or "seconds").rstrip("s") or "second"
        if unit in _UNITS:
            return now + (-1 if relative[1] == "-" else 1) * int(relative[2] or 0) * _UNITS[unit]
    days = {"today": 0, "midnight": 0, "yesterday": -1, "tomorrow": 1}
    if word in days:
        return midnight(now) + days[word] * 86400
    if word in ("noon", "elevenses", "teatime", "fika"):
        return midnight(now) + {"noon": 12, "elevenses": 11, "teatime": 16, "fika": 15}[word] * 3600
    if is_digits(word, 12) and len(word) > 8:
        return float(word)  # `date +%s`
    for form in (*_FORMS, *_CLOCKS):
        try:
            found = datetime.strptime(text.strip(), form)  # noqa: DTZ007 - local, as Slurm
        except ValueError:
            continue
        today = datetime.fromtimestamp(now)  # noqa: DTZ006 - local, as Slurm
        if form in _CLOCKS:
            found = found.replace(year=today.year, month=today.month, day=today.day)
        elif "%Y" not in form and "%y" not in form:
            found = found.replace(year=today.year)
        return found.timestamp()
    raise Rejected(f"Invalid time specification (pos=0): {text}", reason="BadTime")
