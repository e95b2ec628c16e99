"""`lattice status`: allocations, one line each, or everything about one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from lattice.cli import exits
from lattice.cli.allocation_rows import allocation_details, allocation_table, is_final, phase_of, since, submitted
from lattice.cli.failures import explain
from lattice.cli.find import Finder
from lattice.errors import Rejected
from lattice.kube.resources import ALLOCATIONS
from lattice.models.conditions import PENDING, PHASES
from lattice.units import parse_duration, parse_time
from lattice.views import Allocation

if TYPE_CHECKING:
    from lattice.cli.console import Console

INTERMIXED = True
ENDED_SECONDS = 3600.0
"""How long ended allocations stay in the list when nothing is asked for."""
WATCH_SECONDS = 5.0


def arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `status`."""
    parser.add_argument("allocations", nargs="*", metavar="ALLOCATION", help="names, numbers, uid prefixes or NAMESPACE/NAME")
    parser.add_argument("--all", action="store_true", help="of everybody in the tenant")
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="of every tenant (needs the right)")
    parser.add_argument("--user", metavar="USER", help="of this user")
    parser.add_argument("--state", metavar="STATE,…", help=f"of {', '.join(PHASES).lower()}")
    parser.add_argument("--since", metavar="TIME", help="also those that ended since: 24h (ago), or 2026-12-01T08:00:00Z")
    parser.add_argument("-w", "--watch", action="store_true", help=f"again every {WATCH_SECONDS:.0f} s")


def run(console: Console) -> int:
    """Show them once, or again and again."""
    show = _named if console.args.allocations else _listed
    while console.args.watch:
        try:
            if console.outside.columns:
                console.outside.stdout.write("\x1b[H\x1b[2J")
            show(console)
            console.outside.stdout.flush()
            console.outside.sleep(WATCH_SECONDS)
        except KeyboardInterrupt:
            return exits.DONE
    return show(console)


# Named ones


def _named(console: Console) -> int:
    found, errors = Finder(console).many(console.args.allocations)
    if console.is_document:
        items = [console.cluster.get(ALLOCATIONS, one.metadata.name, one.metadata.namespace, type=dict[str, Any]) for one in found]
        if items:
            console.objects("Allocation", items, one=len(console.args.allocations) == 1)
    elif len(found) == 1 and console.format == "table":
        console.say(*allocation_details(found[0], console.outside.now()))
    elif found:
        console.say(*_table(console, found, users=True))
    _say_silence(console, found)
    for error in errors:
        console.complain(*explain(error))
    return exits.of_several([exits.of_error(error) for error in errors] + [exits.DONE] * len(found))


# Lists


def parse_states(text: str | None) -> frozenset[str]:
    """Phases of `running,pending` in any case; Rejected names those that there are."""
    known = {phase.lower(): phase for phase in PHASES}
    wanted = [word.strip().lower() for word in (text or "").split(",") if word.strip()]
    for word in wanted:
        if word not in known:
            raise Rejected(f"--state={word}: no such state. States: {', '.join(known)}", reason="BadInput")
    return frozenset(known[word] for word in wanted)


def oldest_end(text: str | None, now: float) -> float:
    """The time after which ended ones are shown."""
    if not text:
        return now - ENDED_SECONDS
    try:
        return now - parse_duration(text)
    except Rejected:
        return parse_time(text)


def keep(allocations: Sequence[Allocation], states: frozenset[str], vcluster: str, after: float | None) -> list[Allocation]:
    """Those in the wanted states and vcluster that have not ended before `after`; oldest submission first."""
    kept = []
    for one in allocations:
        ended = since(one) if is_final(one) else None
        if states and phase_of(one) not in states:
            continue
        if vcluster and one.spec.vcluster != vcluster:
            continue
        if after is not None and ended and parse_time(ended) < after:
            continue
        kept.append(one)
    return sorted(kept, key=lambda one: (submitted(one), one.status.number or 0, one.metadata.name))


def _selector(console: Console) -> str:
    args = console.args
    if args.user:
        return f"spec.user={args.user}"
    return "" if args.all or args.all_namespaces else f"spec.user={console.user}"


def _listed(console: Console) -> int:
    args = console.args
    states = parse_states(args.state)
    now = console.outside.now()
    after = None if states and not args.since else oldest_end(args.since, now)
    namespace = "" if args.all_namespaces else console.namespace
    fields = _selector(console)
    vcluster = args.vcluster or ""
    if console.is_document:
        raw = {
            item["metadata"]["uid"]: item for item in console.cluster.list(ALLOCATIONS, namespace, type=dict[str, Any], fields=fields).items
        }
        shown = keep([msgspec.convert(item, Allocation) for item in raw.values()], states, vcluster, after)
        console.objects("Allocation", [raw[one.metadata.uid] for one in shown], one=False)
        return exits.DONE
    found = keep(console.cluster.list(ALLOCATIONS, namespace, type=Allocation, fields=fields).items, states, vcluster, after)
    if found:
        console.say(*_table(console, found, users=bool(args.all or args.all_namespaces)))
    else:
        whose = "of everybody" if not fields else f"of {fields.removeprefix('spec.user=')}"
        console.note(
            f"No allocations {whose} in {'any namespace' if args.all_namespaces else f'namespace {namespace}'}; --since shows older ones"
        )
    _say_silence(console, found)
    return exits.DONE


def _table(console: Console, found: Sequence[Allocation], *, users: bool) -> list[str]:
    return allocation_table(
        found,
        now=console.outside.now(),
        wide=console.format == "wide",
        users=users,
        namespaces=len({one.metadata.namespace for one in found}) > 1,
        width=console.outside.columns,
        color=console.color,
    )


def _say_silence(console: Console, found: Sequence[Allocation]) -> None:
    """Where something waits, say so if nobody decides about it."""
    if any(phase_of(one) == PENDING for one in found):
        from lattice.cli.scheduler import leadership

        sentence = leadership(console).sentence
        if sentence:
            console.warn([sentence])
