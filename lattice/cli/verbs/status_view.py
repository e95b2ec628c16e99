"""What `lattice status` shows: the table of a list, or those that were named.

It is loaded after the question was sent: the time that loading takes is the server's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from lattice.cli import exits
from lattice.cli.render.allocations import allocation_details, allocation_table, is_final, phase_of, since, submitted
from lattice.kube.resources import ALLOCATIONS
from lattice.models.conditions import PENDING
from lattice.units import parse_time
from lattice.views import Allocation

if TYPE_CHECKING:
    from lattice.cli.console import Console


@dataclass(frozen=True)
class StatusQuery:
    """Says which allocations: what the server selects by, and the states, vcluster and oldest end that are kept of its answer."""

    namespace: str
    fields: str
    states: frozenset[str]
    vcluster: str
    after: float | None


def show_named(console: Console) -> int:
    """Shows the allocations that the command line names, one in full, several as a table."""
    from lattice.cli.failures import explain  # a list needs neither of the two
    from lattice.cli.find import Finder

    found, errors = Finder(console).find_all(console.args.allocations)
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


def show_list(console: Console, wanted: StatusQuery) -> int:
    """Shows all that are wanted, as a table or a document; a remark where there is none."""
    args = console.args
    if console.is_document:
        listed = console.cluster.list(ALLOCATIONS, wanted.namespace, type=dict[str, Any], fields=wanted.fields)
        raw = {item["metadata"]["uid"]: item for item in listed.items}
        shown = keep([msgspec.convert(item, Allocation) for item in raw.values()], wanted)
        console.objects("Allocation", [raw[one.metadata.uid] for one in shown], one=False)
        return exits.DONE
    found = keep(console.cluster.list(ALLOCATIONS, wanted.namespace, type=Allocation, fields=wanted.fields).items, wanted)
    if found:
        console.say(*_table(console, found, users=bool(args.all or args.all_namespaces)))
    else:
        whose = "of everybody" if not wanted.fields else f"of {wanted.fields.removeprefix('spec.user=')}"
        where = "any namespace" if args.all_namespaces else f"namespace {wanted.namespace}"
        console.note(f"No allocations {whose} in {where}; --since shows older ones")
    _say_silence(console, found)
    return exits.DONE


def keep(allocations: Sequence[Allocation], wanted: StatusQuery) -> list[Allocation]:
    """Keeps those in the wanted states and vcluster that have not ended before that; oldest submission first."""
    kept = []
    for one in allocations:
        ended = since(one) if is_final(one) else None
        if wanted.states and phase_of(one) not in wanted.states:
            continue
        if wanted.vcluster and one.spec.vcluster != wanted.vcluster:
            continue
        if wanted.after is not None and ended and parse_time(ended) < wanted.after:
            continue
        kept.append(one)
    return sorted(kept, key=lambda one: (submitted(one), one.status.number or 0, one.metadata.name))


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
    """Warns where something waits and nobody decides about it."""
    if any(phase_of(one) == PENDING for one in found):
        from lattice.cli.leadership import leadership

        sentence = leadership(console).sentence
        if sentence:
            console.warn([sentence])
