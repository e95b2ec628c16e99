"""`lattice quota solve -f TREE.json`: what each group of an elastic quota tree may use, offline; asks no cluster."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lattice.cli import exits
from lattice.cli.failures import explain
from lattice.cli.files import read_bounded, read_file
from lattice.cli.render.quota import LEGEND, rows
from lattice.errors import Rejected
from lattice.quota.document import Document, answer, read_document, refuse

if TYPE_CHECKING:
    from lattice.cli.console import Console

_LONGEST = 64 * 1024 * 1024


def arguments(solve: argparse.ArgumentParser) -> None:
    """Adds the flags of `quota solve`."""
    solve.add_argument("-f", "--filename", required=True, metavar="FILE", help="the tree as JSON; - is standard input")
    solve.add_argument(
        "--rules",
        choices=("refuse", "warn"),
        help="what to do with a tree that breaks a rule (default: refuse; warn where the first level names koordinator-root-quota)",
    )


def run(console: Console) -> int:
    """Reads a tree, checks and divides it, and prints the result; every refusal exits as bad input; returns the exit code."""
    try:
        return _solve(console)
    except Rejected as error:
        console.complain(*explain(error), *([f"  Reason: {error.reason}"] if console.args.verbose else []))
        return exits.USAGE


def _solve(console: Console) -> int:
    """Reads the tree of a document, checks it, and prints what each group may use; returns DONE."""
    document = read_document(_text(console))
    _check(console, document)
    tree = document.tree()
    names = [group.name for group in document.groups]
    if console.format in ("json", "yaml"):
        console.document(answer(tree, names))
    elif console.format == "name":
        console.say(*names)
    else:
        console.say(*rows(tree, wide=console.format == "wide", width=console.outside.columns))
        console.note("", LEGEND)
    return exits.DONE


def _check(console: Console, document: Document) -> None:
    """Raises Rejected for a tree that breaks a rule, or only warns of it, as `--rules` says."""
    faults = document.faults()
    if (console.args.rules or ("warn" if document.of_koordinator else "refuse")) == "refuse":
        refuse(faults)
    console.warn(f"{fault.sentence} [{fault.reason}]" for fault in [*faults, *document.oddities()])


def _text(console: Console) -> str:
    """Returns the text of the document's file, or of standard input for `-`. Raises Rejected where it is too long or not UTF-8."""
    path = console.args.filename
    name = "standard input" if path == "-" else path
    reason = "BadDocument"
    data = read_bounded(console.outside.stdin, _LONGEST, name, reason) if path == "-" else read_file(path, _LONGEST, reason)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Rejected(f"{name} is not UTF-8: byte {error.start + 1} is wrong", reason="BadDocument") from error
