"""Shows the list of `lattice status` as a table: of the gateway's answer, or else of what the API server lists.

Beside the gateway's answer it loads little: a list is quicker to show than msgspec and the views are to load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lattice.cli import exits
from lattice.cli.listed_rows import read_rows, rows_table, say_silence
from lattice.models.conditions import PENDING

if TYPE_CHECKING:
    from lattice.cli.console import Console
    from lattice.cli.selection import StatusQuery


def show_list(console: Console, wanted: StatusQuery, answer: bytes | None) -> int:
    """Prints the wanted allocations as a table or a document, from the answer of the gateway (None, or of another version: from the API
    server), and returns DONE.

    Warns where some wait and no scheduler is alive.
    """
    args = console.args
    found = None if answer is None or console.is_document else read_rows(answer)
    if found is None:
        from lattice.cli.verbs.status_objects import list_objects, show_documents

        if console.is_document:
            show_documents(console, wanted)
            return exits.DONE
        found = list_objects(console, wanted)
    if found.rows:
        console.say(*rows_table(console, found, users=bool(args.all or args.all_namespaces)))
    else:
        user = found.user if wanted.mine else wanted.user
        whose = f"of {user}" if user else "of everybody"
        where = "any namespace" if args.all_namespaces else f"namespace {wanted.namespace}"
        console.note(f"No allocations {whose} in {where}; --since shows older ones")
    if not found.led and any(row.phase == PENDING for row in found.rows):
        say_silence(console)
    return exits.DONE
