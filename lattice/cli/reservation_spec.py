"""The spec of a Reservation from what `lattice reservation create` is given; pure."""

from __future__ import annotations

import argparse
import re
from typing import Any, Final

import msgspec

from lattice.errors import Rejected
from lattice.lifecycle.reservations import WEEKDAYS, calendar_of, read_moment
from lattice.units import expand_nodes, format_duration, format_time, parse_duration, parse_slurm_time
from lattice.views import ReservationSpec

_DAYS: Final = {day[:3].lower(): day for day in WEEKDAYS}
_EVERY: Final = re.compile(r"(?:every:)?([1-9][0-9]{0,2})d")
_LATER: Final = re.compile(r"(?:now)?\+(.+)")


def spec_of(args: argparse.Namespace, now: float) -> dict[str, Any]:
    """The spec of what was named; Rejected names the flag. `now` is seconds since the epoch."""
    zone = args.time_zone or ""
    start = _time("--start", args.start, now)
    spec: dict[str, Any] = {**_nodes(args), "start": start}
    if zone:
        spec["timeZone"] = zone
    spec["duration"] = _duration(args, start, now)
    recurrence = _recurrence(args, now)
    if recurrence:
        spec["recurrence"] = recurrence
    for name in ("users", "tenants", "vclusters"):
        named = [word for text in getattr(args, name) for word in text.split(",") if word]
        if named:
            spec[name] = list(dict.fromkeys(named))
    if args.maintenance:
        spec["maintenance"] = True
    if args.ignore_running:
        spec["ignoreRunning"] = True
    try:
        calendar_of(msgspec.convert(spec, ReservationSpec))
    except Rejected as error:
        raise Rejected(_as_flags(error.message), reason="BadInput", fields=error.fields) from error
    return spec


def _as_flags(sentence: str) -> str:
    """A sentence about fields of spec, with the flags that set them."""
    return re.sub(r"\bspec\.([a-zA-Z]+)\b(?!\.\w)", lambda found: "--" + re.sub("([A-Z])", r"-\1", found[1]).lower(), sentence)


def _nodes(args: argparse.Namespace) -> dict[str, Any]:
    """Which nodes: a set, or a number with what they must have."""
    if bool(args.nodes) == bool(args.node_count):
        raise Rejected("give either --nodes NODES or --node-count N: one of the two", reason="BadInput")
    if args.nodes:
        given = [flag for flag, value in (("--group", args.group), ("--feature", args.feature), ("--gpu-type", args.gpu_type)) if value]
        if given:
            raise Rejected(f"{given[0]} chooses nodes for --node-count: leave it out beside --nodes", reason="BadInput")
        expand_nodes(args.nodes)
        return {"nodes": args.nodes}
    spec: dict[str, Any] = {"nodeCount": _count("--node-count", args.node_count)}
    if args.feature:
        spec["features"] = args.feature
    if args.group:
        spec["groups"] = args.group
    if args.gpu_type:
        spec["gpuType"] = args.gpu_type
    return spec


def _time(flag: str, text: str, now: float) -> str:
    """RFC 3339 of `now` and `+2h`; any other text as it is, for the calendar to read."""
    word = text.strip()
    later = _LATER.fullmatch(word)
    if word == "now":
        return format_time(now)
    if later is None:
        return word
    try:
        return format_time(now + parse_duration(later[1]))
    except Rejected as error:
        raise Rejected(f"{flag}={text}: {error.message}", reason="BadInput") from error


def _duration(args: argparse.Namespace, start: str, now: float) -> str:
    """The length of a window, given or from its end."""
    if bool(args.duration) == bool(args.end):
        raise Rejected("give either --duration TIME or --end TIME: one of the two", reason="BadInput")
    if args.duration:
        return _written(args.duration)
    end = _time("--end", args.end, now)
    zone = args.time_zone or ""
    try:
        begins, ends = read_moment(start, zone, "--start"), read_moment(end, zone, "--end")
    except Rejected as error:
        raise Rejected(error.message, reason="BadInput") from error
    if ends <= begins:
        raise Rejected(f"--end {format_time(ends)} is not after --start {format_time(begins)}", reason="BadInput")
    return format_duration(ends - begins)


def _written(text: str) -> str:
    """The duration as the Reservation writes it: ours as given, Slurm's form as ours."""
    try:
        parse_duration(text)
    except Rejected as ours:
        try:
            seconds = parse_slurm_time(text)
        except Rejected:
            raise Rejected(f"--duration={text}: {ours.message}", reason="BadInput") from ours
        if seconds is None:
            raise Rejected(f"--duration={text}: a reservation has an end: write for example 4h or 7d", reason="BadInput") from ours
        return format_duration(seconds)
    return text


def _recurrence(args: argparse.Namespace, now: float) -> dict[str, Any]:
    """The rule and its end; empty where it is made once."""
    if not args.recurrence:
        if args.until or args.count:
            raise Rejected(f"{'--until' if args.until else '--count'} ends a --recurrence, and there is none", reason="BadInput")
        return {}
    rule = _rule(args.recurrence)
    if args.until and args.count:
        raise Rejected("give --until or --count, not both", reason="BadInput")
    if args.until:
        rule["until"] = _time("--until", args.until, now)
    if args.count:
        rule["count"] = _count("--count", args.count)
    return rule


def _rule(text: str) -> dict[str, Any]:
    word, colon, days = text.strip().lower().partition(":")
    every = _EVERY.fullmatch(text.strip().lower())
    if every is not None:
        return {"everyDays": int(every[1])}
    if word in ("daily", "weekly") and not colon:
        return {"everyDays": 1 if word == "daily" else 7}
    named = [day.strip() for day in days.split(",")]
    if word == "weekly" and all(day[:3] in _DAYS and _DAYS[day[:3]].lower().startswith(day) for day in named):
        return {"weekdays": list(dict.fromkeys(_DAYS[day[:3]] for day in named))}
    raise Rejected(f"--recurrence={text}: write daily, weekly, 3d, or weekly:mon,fri with days of {', '.join(_DAYS)}", reason="BadInput")


def _count(flag: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 9 or int(text) < 1:
        raise Rejected(f"{flag}={text}: not a number from 1 on", reason="BadInput")
    return int(text)
