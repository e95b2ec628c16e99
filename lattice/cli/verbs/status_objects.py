"""Shows allocations as `lattice status` reads them from the API server: whole objects, or the rows that it makes of them itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from lattice.cli import exits
from lattice.cli.failures import explain
from lattice.cli.find import Finder
from lattice.cli.listed_rows import Listed, row_order, rows_table, say_silence
from lattice.cli.render.allocations import allocation_details
from lattice.kube.resources import ALLOCATIONS
from lattice.models.conditions import PENDING
from lattice.scheduling.queries.status_rows import Selection, phase_of, status_detail, status_row
from lattice.views import Allocation

if TYPE_CHECKING:
    from lattice.cli.console import Console
    from lattice.cli.selection import StatusQuery


def show_named(console: Console) -> int:
    """Shows the allocations that the command line names, one in full (with its steps), several as a table; warns where some wait and no
    scheduler is alive; returns the exit code of all, errors of single references being printed.
    """
    found, errors = Finder(console).find_all(console.args.allocations)
    if console.is_document:
        items = [console.cluster.get(ALLOCATIONS, one.metadata.name, one.metadata.namespace, type=dict[str, Any]) for one in found]
        if items:
            console.objects("Allocation", items, one=len(console.args.allocations) == 1)
    elif len(found) == 1 and console.format == "table":
        from lattice.cli.steps import steps_text

        steps = steps_text(console, found[0])
        console.say(*allocation_details(found[0], console.outside.now(), steps, width=console.table_width))
    elif found:
        rows, details = [status_row(one) for one in found], [status_detail(one) for one in found]
        console.say(*rows_table(console, Listed("", rows, details if console.format == "wide" else [], led=False), users=True))
    if any(phase_of(one) == PENDING for one in found):
        say_silence(console)
    for error in errors:
        console.complain(*explain(error))
    return exits.of_several([exits.of_error(error) for error in errors] + [exits.DONE] * len(found))


def show_documents(console: Console, wanted: StatusQuery) -> None:
    """Prints the wanted allocations as whole objects, which the API server alone has, in a format for programs."""
    listed = console.cluster.list(ALLOCATIONS, wanted.namespace, type=dict[str, Any], fields=wanted.fields)
    raw = {item["metadata"]["uid"]: item for item in listed.items}
    kept = [one for one in (msgspec.convert(item, Allocation) for item in raw.values()) if _selection(wanted).keeps(one)]
    rows = {one.metadata.uid: status_row(one) for one in kept}
    console.objects("Allocation", [raw[uid] for uid in sorted(rows, key=lambda uid: row_order(rows[uid]))], one=False)


def list_objects(console: Console, wanted: StatusQuery) -> Listed:
    """Returns the rows of the wanted allocations as the API server lists them, in the order of a list; with details for the wide table."""
    fields = wanted.fields or (f"spec.user={console.user}" if wanted.mine else "")
    listed = console.cluster.list(ALLOCATIONS, wanted.namespace, type=Allocation, fields=fields).items
    selection = _selection(wanted)
    pairs = sorted(((status_row(one), one) for one in listed if selection.keeps(one)), key=lambda pair: row_order(pair[0]))
    details = [status_detail(one) for _, one in pairs] if console.format == "wide" else []
    return Listed(fields.removeprefix("spec.user="), [row for row, _ in pairs], details, led=False)


def _selection(wanted: StatusQuery) -> Selection:
    """Returns what is kept of the server's answer, which is of the namespace and the user already."""
    return Selection(states=wanted.states, vcluster=wanted.vcluster, after=wanted.after)
