"""Shows the output of `lattice status`: the table of a list, or the named allocations.

It is loaded after the question was sent: the time that loading takes is the server's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from lattice.cli import exits
from lattice.cli.render.allocations import allocation_details, status_table
from lattice.kube.resources import ALLOCATIONS
from lattice.models.conditions import PENDING
from lattice.scheduling.queries.status_rows import (
    STATUS_SCHEMA,
    Selection,
    StatusDetail,
    StatusRow,
    StatusRows,
    phase_of,
    status_detail,
    status_row,
)
from lattice.views import Allocation

if TYPE_CHECKING:
    from lattice.cli.console import Console
    from lattice.cli.selection import StatusQuery


@dataclass(frozen=True)
class Listed:
    """Holds the rows of a list, in order, with as many details for the wide table, and whose they are."""

    user: str
    rows: Sequence[StatusRow]
    details: Sequence[StatusDetail]
    led: bool
    """Whether the scheduler itself has answered, and so leads."""


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
        rows, details = [status_row(one) for one in found], [status_detail(one) for one in found]
        console.say(*_table(console, Listed("", rows, details if console.format == "wide" else [], led=False), users=True))
    if any(phase_of(one) == PENDING for one in found):
        _say_silence(console)
    for error in errors:
        console.complain(*explain(error))
    return exits.of_several([exits.of_error(error) for error in errors] + [exits.DONE] * len(found))


def show_list(console: Console, wanted: StatusQuery, answer: bytes | None) -> int:
    """Shows all that are wanted, of the gateway's answer or else of the API server's, as a table or a document."""
    args = console.args
    if console.is_document:
        _show_documents(console, wanted)
        return exits.DONE
    found = (None if answer is None else _of_gateway(answer, wanted)) or _of_server(console, wanted)
    if found.rows:
        console.say(*_table(console, found, users=bool(args.all or args.all_namespaces)))
    else:
        whose = f"of {found.user}" if found.user else "of everybody"
        where = "any namespace" if args.all_namespaces else f"namespace {wanted.namespace}"
        console.note(f"No allocations {whose} in {where}; --since shows older ones")
    if not found.led and any(row.phase == PENDING for row in found.rows):
        _say_silence(console)
    return exits.DONE


def _show_documents(console: Console, wanted: StatusQuery) -> None:
    """Shows whole objects, which the API server alone has."""
    listed = console.cluster.list(ALLOCATIONS, wanted.namespace, type=dict[str, Any], fields=wanted.fields)
    raw = {item["metadata"]["uid"]: item for item in listed.items}
    kept = [one for one in (msgspec.convert(item, Allocation) for item in raw.values()) if _selection(wanted).keeps(one)]
    rows = {one.metadata.uid: status_row(one) for one in kept}
    console.objects("Allocation", [raw[uid] for uid in sorted(rows, key=lambda uid: _order(rows[uid]))], one=False)


def _of_gateway(body: bytes, wanted: StatusQuery) -> Listed | None:
    """Reads the gateway's answer; None where it is one of another version than this program."""
    try:
        answer = msgspec.json.decode(body, type=StatusRows)
        rows = msgspec.json.decode(answer.rows, type=list[StatusRow])
        details = msgspec.json.decode(answer.details, type=list[StatusDetail])
    except msgspec.DecodeError:
        return None
    if answer.schema != STATUS_SCHEMA:
        return None
    user = answer.user if wanted.mine else wanted.user
    if not details:
        return Listed(user, sorted(rows, key=_order), [], led=True)
    pairs = sorted(zip(rows, details, strict=True), key=lambda pair: _order(pair[0]))
    return Listed(user, [row for row, _ in pairs], [detail for _, detail in pairs], led=True)


def _of_server(console: Console, wanted: StatusQuery) -> Listed:
    """Returns the rows of what the API server lists."""
    fields = wanted.fields or (f"spec.user={console.user}" if wanted.mine else "")
    listed = console.cluster.list(ALLOCATIONS, wanted.namespace, type=Allocation, fields=fields).items
    selection = _selection(wanted)
    pairs = sorted(((status_row(one), one) for one in listed if selection.keeps(one)), key=lambda pair: _order(pair[0]))
    details = [status_detail(one) for _, one in pairs] if console.format == "wide" else []
    return Listed(fields.removeprefix("spec.user="), [row for row, _ in pairs], details, led=False)


def _selection(wanted: StatusQuery) -> Selection:
    """Returns what is kept of the server's answer, which is of the namespace and the user already."""
    return Selection(states=wanted.states, vcluster=wanted.vcluster, after=wanted.after)


def _order(row: StatusRow) -> tuple[float, int, str]:
    """Sorts by submission, the oldest first."""
    return (row.submitted, row.number, row.name)


def _table(console: Console, found: Listed, *, users: bool) -> list[str]:
    return status_table(
        found.rows,
        found.details,
        now=console.outside.now(),
        users=users,
        namespaces=len({row.namespace for row in found.rows}) > 1,
        width=0 if console.format == "wide" else console.outside.columns,
        color=console.color,
    )


def _say_silence(console: Console) -> None:
    """Warns where something waits and nobody decides about it."""
    from lattice.cli.leadership import leadership

    sentence = leadership(console).sentence
    if sentence:
        console.warn([sentence])
