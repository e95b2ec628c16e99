"""`lattice quota tree`: what each group of the quota trees may use, uses and borrows, as the scheduler knows it."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec

from lattice.cli import exits
from lattice.cli.gateway import ask_scheduler
from lattice.cli.render.quota_tree import LEGEND, tree_lines
from lattice.cli.watch import WATCH_SECONDS, again_and_again
from lattice.errors import NotFound
from lattice.scheduling.queries.quota_answers import Quotas

if TYPE_CHECKING:
    from lattice.cli.console import Console


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of `quota tree`."""
    parser.add_argument(
        "--resource", action="append", default=[], metavar="RESOURCE", help="only this one, for example nodes or gpu/GH200; repeatable"
    )
    parser.add_argument("-w", "--watch", action="store_true", help=f"again every {WATCH_SECONDS:.0f} s")


def run(console: Console) -> int:
    """Shows the quota trees once, or every few seconds with `--watch`; returns the exit code."""
    if console.args.watch:
        return again_and_again(console, lambda: _lines(console))
    if console.format in ("json", "yaml"):
        console.document(msgspec.to_builtins(_ask_quotas(console)))
        return exits.DONE
    found = _ask_quotas(console)
    console.say(*_text_lines(console, found))
    if console.format != "name" and found.trees:
        console.note("", LEGEND)
    return exits.DONE


def _lines(console: Console) -> list[str]:
    """Asks for the quota trees and returns them as lines."""
    return _text_lines(console, _ask_quotas(console))


def _text_lines(console: Console, found: Quotas) -> list[str]:
    """Returns quota trees as lines, or the names of their groups if that format is asked for."""
    if console.format == "name":
        return [group.name for tree in found.trees for group in tree.groups if group.name]
    return tree_lines(found, width=console.outside.columns, wide=console.format == "wide", color=console.color)


def _ask_quotas(console: Console) -> Quotas:
    """Returns the scheduler's answer on the quota trees, of one resource only where that is asked for."""
    found = ask_scheduler(console, "/v1/quota?" + urlencode({"namespaces": console.namespace}), Quotas, "is no quota tree")
    return _select(found, console.args.resource) if console.args.resource else found


def _select(found: Quotas, wanted: list[str]) -> Quotas:
    """Returns the answer with the named resources only; raises NotFound, naming the counted ones, for another."""
    known = dict.fromkeys(total.resource for tree in found.trees for total in tree.totals)
    for name in wanted:
        if name not in known:
            raise NotFound(f"no quota tree counts {name!r}. Counted: {', '.join(known) or 'nothing'}", reason="NoSuchResource")
    replace = msgspec.structs.replace
    trees = []
    for tree in found.trees:
        groups = [
            replace(
                group,
                shares=[share for share in group.shares if share.resource in wanted],
                startable=[one for one in group.startable if one.resource in wanted],
            )
            for group in tree.groups
        ]
        trees.append(replace(tree, totals=[total for total in tree.totals if total.resource in wanted], groups=groups))
    return replace(found, trees=trees)
