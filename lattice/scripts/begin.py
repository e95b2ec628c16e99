"""Parses the times of `--begin`, `--not-before` and `--deadline` as Slurm writes them, and RFC 3339."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

from lattice.errors import Rejected
from lattice.scripts.asked import Given, Submitter
from lattice.units import format_time, parse_time

_PLUS = re.compile(r"now\s*\+\s*([0-9]{1,9})\s*([a-z]*)")
_UNITS = {"": 1, "second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_CLOCK = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?\s*(am|pm)?")
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})(?:t([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?)?")
_US_DATE = re.compile(r"([0-9]{2})[/.]([0-9]{2})(?:[/.]([0-9]{2}|[0-9]{4}))?(?:[-t]([0-9]{1,2}):([0-9]{2})(?::([0-9]{2}))?)?")
_DIGITS = re.compile(r"([0-9]{2})([0-9]{2})([0-9]{2})?")
_NAMED = {"midnight": 0, "noon": 12, "fika": 15, "teatime": 16}


def read_begin(given: Given, submitter: Submitter) -> str:
    """Returns, as RFC 3339 in UTC, the time that `now+1hour`, `16:00`, `2026-12-01T08:00`, `12/01/26-08:00`, `120126`, `tomorrow` (its
    midnight), `noon`, or a time with its zone means.

    A time of day that has passed is tomorrow's; a date may be past. Raises Rejected for other text.
    """
    text = (given.value or "").strip()
    try:
        return format_time(parse_time(text))
    except Rejected:
        pass  # not RFC 3339: one of Slurm's forms
    word = text.lower()
    plus = _PLUS.fullmatch(word)
    if word == "now":
        return format_time(submitter.now)
    if plus is not None and plus[2].rstrip("s") in _UNITS:
        return format_time(submitter.now + int(plus[1]) * _UNITS[plus[2].rstrip("s")])
    try:
        moment = _local(word, _today(submitter))
    except ValueError as error:
        raise given.rejected(f"{text!r} is not a time: {error}") from error
    if moment is None:
        raise given.rejected(
            f"{text!r} is not a time: write for example now+1hour, 16:00, tomorrow, 2026-12-01T08:00 or 2026-12-01T08:00:00Z"
        )
    return format_time(submitter.local(moment))


def _today(submitter: Submitter) -> datetime:
    """Returns the submitter's local time now, without a zone."""
    guess = datetime(1970, 1, 1) + timedelta(seconds=submitter.now)  # noqa: DTZ001 - local times carry no zone here
    return guess - timedelta(seconds=submitter.local(guess) - submitter.now)


def _local(word: str, now: datetime) -> datetime | None:
    """Returns the local time that a word, a clock time or a date means, clock times and named hours always in the future; None where it is
    none of these.

    Raises ValueError for numbers that are no time.
    """
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if word == "today":
        return now
    if word == "tomorrow":
        return midnight + timedelta(days=1)
    clock, date = _CLOCK.fullmatch(word), _DATE.fullmatch(word)
    if date is not None:
        return datetime(*(int(part or 0) for part in date.groups()))  # type: ignore[arg-type]  # noqa: DTZ001 - as above
    us_date = _US_DATE.fullmatch(word) or _DIGITS.fullmatch(word)
    if us_date is not None:
        return _of_us_date(us_date, midnight)
    if word in _NAMED:
        moment = midnight.replace(hour=_NAMED[word])
    elif clock is not None:
        hour = int(clock[1]) % 12 + (12 if clock[4] == "pm" else 0) if clock[4] else int(clock[1])
        moment = midnight.replace(hour=hour, minute=int(clock[2]), second=int(clock[3] or 0))
    else:
        return None
    return moment if moment > now else moment + timedelta(days=1)


def _of_us_date(found: re.Match[str], today: datetime) -> datetime:
    """Returns the local time of a date that begins with its month, without a year the next such day. Raises ValueError for no date."""
    month, day, year, *clock = found.groups()
    hour, minute, second = (int(part or 0) for part in clock or (0, 0, 0))
    stated = int(year) + (2000 if len(year) == 2 else 0) if year else today.year
    moment = datetime(stated, int(month), int(day), hour, minute, second)  # noqa: DTZ001 - local times carry no zone here
    return moment if year or moment >= today else moment.replace(year=today.year + 1)
