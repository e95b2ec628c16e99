"""`lattice reservation`: creates, lists, shows and deletes Reservations of nodes."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lattice.cli import exits
from lattice.cli.failures import explain
from lattice.cli.readable import list_readable
from lattice.cli.render.reservations import reservation_details, reservation_table
from lattice.cli.selection import bare_name
from lattice.errors import Denied, LatticeError, NotFound, Rejected
from lattice.kube.resources import RESERVATIONS
from lattice.lifecycle.reservations import STATES, WEEKDAYS, calendar_of, read_moment
from lattice.units import expand_nodes, format_duration, format_time, is_digits, parse_duration, parse_slurm_time
from lattice.views import Reservation, ReservationSpec

if TYPE_CHECKING:
    from lattice.cli.console import Console

INTERMIXED = False
_CREATE = """\
TIME is RFC 3339 (2026-12-01T08:00:00Z), now, +2h, or a local time with --time-zone (2026-12-01T08:00).
RULE is daily, weekly, 3d (every third day) or weekly:mon,fri; it recurs at the same local time of --time-zone."""

_DAYS: Final = {day[:3].lower(): day for day in WEEKDAYS}
_EVERY: Final = re.compile(r"(?:every:)?([1-9][0-9]{0,2})d")
_LATER: Final = re.compile(r"(?:now)?\+(.+)")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the actions and their flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = actions.add_parser(
        "create",
        help="set nodes aside",
        description="Set nodes aside.",
        epilog=_CREATE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_create(create)
    listing = actions.add_parser("list", help="list reservations")
    listing.add_argument("--state", metavar="STATE,…", help=f"in {', '.join(STATES).lower()}")
    for word, text in (("show", "everything about one, with its next windows"), ("get", "the same as show")):
        actions.add_parser(word, help=text).add_argument("name", metavar="NAME")
    delete = actions.add_parser("delete", help="give the nodes back; work that runs goes on")
    delete.add_argument("names", nargs="+", metavar="NAME")


def _add_create(create: argparse.ArgumentParser) -> None:
    """Adds the arguments of `lattice reservation create`."""
    create.add_argument("name", metavar="NAME")
    create.add_argument("--nodes", metavar="NODES", help="these nodes, for example nid[001-064]")
    create.add_argument("--node-count", metavar="N", help="so many nodes, chosen by the scheduler")
    create.add_argument("--group", action="append", default=[], metavar="GROUP", help="with --node-count: of this group, repeatable")
    create.add_argument(
        "--feature", action="append", default=[], metavar="FEATURE", help="with --node-count: with this feature, repeatable"
    )
    create.add_argument("--gpu-type", metavar="MODEL", help="with --node-count: with GPUs of this model")
    create.add_argument("--start", required=True, metavar="TIME", help="begin of the first window")
    create.add_argument("--duration", metavar="TIME", help="length of each window: 4h, 30m, 7d, or Slurm's forms; or")
    create.add_argument("--end", metavar="TIME", help="end of the first window")
    create.add_argument("--time-zone", metavar="ZONE", help="IANA name such as Europe/Zurich (default: UTC)")
    create.add_argument("--recurrence", metavar="RULE", help="daily, weekly, 3d, weekly:mon,fri (default: once)")
    create.add_argument("--until", metavar="TIME", help="no window begins later")
    create.add_argument("--count", metavar="N", help="so many windows")
    create.add_argument("--users", action="append", default=[], metavar="USER,…", help="who may use it (default: everybody)")
    create.add_argument("--tenants", action="append", default=[], metavar="TENANT,…", help="tenants whose work may use it")
    create.add_argument("--vclusters", action="append", default=[], metavar="VCLUSTER,…", help="vclusters whose work may use it")
    create.add_argument("--maintenance", action="store_true", help="nobody may use it: the nodes stay empty")
    create.add_argument("--ignore-running", action="store_true", help="allow it over work that runs into it; that work goes on to its end")
    create.add_argument("--dry-run", action="store_true", help="have the server judge it, and keep nothing")


def run(console: Console) -> int:
    """Runs the action of the command line: create, list, show or delete."""
    actions = {"create": _create, "list": _list, "show": _show, "get": _show, "delete": _delete}
    return actions[console.args.action](console)


def _create(console: Console) -> int:
    """Creates the Reservation that the flags describe, prints that, and returns DONE; with --dry-run the server judges it and keeps
    nothing.

    Raises Rejected for flags that do not parse or do not belong here.
    """
    args = console.args
    for flag, meant in (("tenant", args.tenant), ("vcluster", args.vcluster)):
        if meant:
            raise Rejected(
                f"--{flag}={meant} says whose work is meant, not who may use the nodes: write --{flag}s={meant}", reason="BadInput"
            )
    spec = spec_of(args, console.outside.now())
    made = console.cluster.create(RESERVATIONS, {"metadata": {"name": args.name}, "spec": spec}, type=dict[str, Any], dry_run=args.dry_run)
    if console.is_document:
        console.objects("Reservation", [made], one=True)
    else:
        console.say(f"{'Would create' if args.dry_run else 'Created'} reservation {args.name}")
    return exits.DONE


def _list(console: Console) -> int:
    """Prints the Reservations in the states asked for (none given: in all) that this person may read, or a note that there are none;
    returns DONE.

    Raises Rejected for an unknown state.
    """
    wanted = [word.strip().capitalize() for word in (console.args.state or "").split(",") if word.strip()]
    unknown = [word for word in wanted if word not in STATES]
    if unknown:
        raise Rejected(f"--state={console.args.state}: {unknown[0].lower()} is none of {', '.join(STATES).lower()}", reason="BadInput")
    readable = list_readable(console, RESERVATIONS, console.namespace, type=dict[str, Any])
    raw = [item for item in readable if not wanted or (item.get("status") or {}).get("state") in wanted]
    if console.is_document:
        console.objects("Reservation", raw, one=False)
        return exits.DONE
    found = [msgspec.convert(item, Reservation) for item in raw]
    if found:
        console.say(*reservation_table(found, wide=console.format == "wide", width=console.outside.columns, color=console.color))
    else:
        console.note("No reservations")
    return exits.DONE


def _show(console: Console) -> int:
    """Prints one Reservation; returns DONE. Raises NotFound where there is none, or none that this person may read."""
    name = bare_name(console.args.name, "Reservation")
    try:
        if console.is_document:
            console.objects("Reservation", [console.cluster.get(RESERVATIONS, name, type=dict[str, Any])], one=True)
        else:
            console.say(*reservation_details(console.cluster.get(RESERVATIONS, name, type=Reservation), console.outside.now()))
    except NotFound as error:
        raise _not_found(name) from error
    except Denied as error:
        raise NotFound(f'no reservation "{name}" that concerns you. Hint: `lattice reservation list` shows those that do') from error
    return exits.DONE


def _delete(console: Console) -> int:
    """Deletes the Reservations named, prints each, errors too, and returns the exit code of them all."""
    codes = []
    for text in console.args.names:
        name = text
        try:
            name = bare_name(text, "Reservation")
            console.cluster.delete(RESERVATIONS, name)
        except NotFound:
            codes.append(_complained(console, _not_found(name)))
        except LatticeError as error:
            codes.append(_complained(console, error))
        else:
            console.say(f"Deleted reservation {name}")
            codes.append(exits.DONE)
    return exits.of_several(codes)


def _complained(console: Console, error: LatticeError) -> int:
    """Prints an error and returns its exit code."""
    console.complain(*explain(error))
    return exits.of_error(error)


def _not_found(name: str) -> NotFound:
    """Returns the error that there is no Reservation of this name."""
    return NotFound(f'no reservation "{name}". Hint: `lattice reservation list` shows them', reason="ReservationNotFound")


# The spec of what `create` is given


def spec_of(args: argparse.Namespace, now: float) -> dict[str, Any]:
    """Returns the spec of a Reservation from the flags of `create`; `now` in seconds since the epoch.

    Raises Rejected naming the flag that is wrong.
    """
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
    """Returns a sentence with the names of spec fields replaced by those of their flags."""
    return re.sub(r"\bspec\.([a-zA-Z]+)\b(?!\.\w)", lambda found: "--" + re.sub("([A-Z])", r"-\1", found[1]).lower(), sentence)


def _nodes(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the part of spec that selects nodes: a node set, or a number of nodes with group, features and GPU type.

    Raises Rejected where not exactly one of the two is given, or it does not parse.
    """
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
    """Returns `now`, `+2h` and `now+2h` as RFC 3339; other texts unchanged, for the calendar to read.

    Raises Rejected where what follows + is no duration.
    """
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
    """Returns the length of a window, from `--duration` or from `--end`.

    Raises Rejected where not exactly one of the two is given, it does not parse, or the end is not after the start.
    """
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
    """Returns a duration as the Reservation has it: ours unchanged, Slurm's form converted (a bare number is minutes).

    Raises Rejected where it is neither, or unlimited.
    """
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
    """Returns the part of spec with the recurrence and its end; empty where there is none.

    Raises Rejected where it does not parse, has two ends, or only an end is given.
    """
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
    """Returns a recurrence from text such as daily, weekly, 3d or weekly:mon,fri. Raises Rejected for anything else."""
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
    """Returns a whole number from 1 on, of at most nine digits. Raises Rejected for anything else."""
    if not is_digits(text, 9) or int(text) < 1:
        raise Rejected(f"{flag}={text}: not a number from 1 on", reason="BadInput")
    return int(text)
