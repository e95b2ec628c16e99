"""`lattice reservation`: set nodes aside in advance, list, show and delete what is set aside."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING, Any

import msgspec

from lattice.cli import exits
from lattice.cli.failures import explain
from lattice.cli.readable import names_readable
from lattice.cli.render.reservations import reservation_details, reservation_table
from lattice.cli.reservation_spec import spec_of
from lattice.errors import Denied, LatticeError, NotFound, Rejected
from lattice.kube.resources import RESERVATIONS
from lattice.lifecycle.reservations import STATES
from lattice.views import Reservation

if TYPE_CHECKING:
    from lattice.cli.console import Console

INTERMIXED = False
_CREATE = """\
TIME is RFC 3339 (2026-12-01T08:00:00Z), now, +2h, or a local time with --time-zone (2026-12-01T08:00).
RULE is daily, weekly, 3d (every third day) or weekly:mon,fri; it recurs at the same local time of --time-zone."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The actions and their flags."""
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
    """Do what the action says."""
    actions = {"create": _create, "list": _list, "show": _show, "get": _show, "delete": _delete}
    return actions[console.args.action](console)


def _create(console: Console) -> int:
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
    wanted = [word.strip().capitalize() for word in (console.args.state or "").split(",") if word.strip()]
    unknown = [word for word in wanted if word not in STATES]
    if unknown:
        raise Rejected(f"--state={console.args.state}: {unknown[0].lower()} is none of {', '.join(STATES).lower()}", reason="BadInput")
    raw = [item for item in readable(console) if not wanted or (item.get("status") or {}).get("state") in wanted]
    if console.is_document:
        console.objects("Reservation", raw, one=False)
        return exits.DONE
    found = [msgspec.convert(item, Reservation) for item in raw]
    if found:
        console.say(*reservation_table(found, wide=console.format == "wide", width=console.outside.columns, color=console.color))
    else:
        console.note("No reservations")
    return exits.DONE


def readable(console: Console) -> list[dict[str, Any]]:
    """Every reservation; for who may not list them, those that they may read by name, as the server says."""
    try:
        return console.cluster.list(RESERVATIONS, type=dict[str, Any]).items
    except Denied:
        pass  # ordinary users read those that concern them
    found = []
    for name in names_readable(console, RESERVATIONS.plural, console.namespace):
        with contextlib.suppress(NotFound):  # deleted just now
            found.append(console.cluster.get(RESERVATIONS, name, type=dict[str, Any]))
    return found


def _show(console: Console) -> int:
    name = console.args.name
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
    codes = []
    for name in console.args.names:
        try:
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
    console.complain(*explain(error))
    return exits.of_error(error)


def _not_found(name: str) -> NotFound:
    return NotFound(f'no reservation "{name}". Hint: `lattice reservation list` shows them', reason="ReservationNotFound")
