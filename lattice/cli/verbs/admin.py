"""`lattice admin`: tenants, vclusters, topology, configuration, the ledger; each subject has a module of its own."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lattice.cli.admin import config, ledger, status, tenant, topology, vcluster

if TYPE_CHECKING:
    from lattice.cli.console import Console

INTERMIXED = False
_SUBJECTS = {
    "status": (status, "the scheduler, the operator, nodes, work and the ledger in one look"),
    "tenant": (tenant, "create, list and change tenants"),
    "vcluster": (vcluster, "create, show, change and list vclusters: policy, weights, limits"),
    "topology": (topology, "apply a file of groups and switches"),
    "config": (config, "get and set options"),
    "ledger": (ledger, "show, verify and recover the ledger"),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the subjects and their flags."""
    subjects = parser.add_subparsers(dest="subject", required=True, metavar="SUBJECT")
    for name, (module, text) in _SUBJECTS.items():
        module.arguments(subjects.add_parser(name, help=text, description=text.capitalize()))


def run(console: Console) -> int:
    """Runs the subject's module."""
    code: int = _SUBJECTS[console.args.subject][0].run(console)
    return code
