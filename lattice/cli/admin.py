"""`lattice admin`: tenants, vclusters, topology, configuration, the ledger; each subject has a module of its own."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lattice.cli.console import Console

INTERMIXED = False
_SUBJECTS = {
    "status": "the scheduler, the operator, nodes, work and the ledger in one look",
    "tenant": "create, list and change tenants",
    "vcluster": "create and list vclusters",
    "topology": "apply a file of groups and switches",
    "config": "get and set options",
    "ledger": "show, verify and recover the ledger",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """The subjects; only the one that is asked for is loaded."""
    subjects = parser.add_subparsers(dest="subject", required=True, metavar="SUBJECT")
    for name, text in _SUBJECTS.items():
        one = subjects.add_parser(name, help=text, description=text.capitalize())
        module = import_module(f"lattice.cli.admin_{name}")
        module.arguments(one)


def run(console: Console) -> int:
    """Ask the subject's module."""
    act: Callable[[Console], int] = import_module(f"lattice.cli.admin_{console.args.subject}").run
    return act(console)
