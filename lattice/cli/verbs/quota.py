"""`lattice quota`: the elastic quota tree as it is, every gate before one allocation, and a tree of a file divided offline."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lattice.cli.quota import explain, solve, tree

if TYPE_CHECKING:
    from lattice.cli.console import Console

INTERMIXED = False
_ACTIONS = {
    "tree": (tree, "show what each group may use, uses and borrows, and what you may still start"),
    "explain": (explain, "show every gate before an allocation with its numbers; the first that blocks is marked"),
    "solve": (solve, "divide a tree of a file: what each group may use now; asks no cluster"),
}
_EXAMPLES = """\
Examples:
  lattice quota tree                      your groups and those above them, the others in sums
  lattice quota tree --resource nodes -w  nodes only, again every five seconds
  lattice quota explain 42                why 42 may not start yet, gate by gate
  lattice quota explain 42 -o json        the same for programs
  lattice quota solve -f tree.json        what would be, without a cluster"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the actions and their flags."""
    parser.epilog, parser.formatter_class = _EXAMPLES, argparse.RawDescriptionHelpFormatter
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, (module, text) in _ACTIONS.items():
        module.arguments(actions.add_parser(name, help=text, description=text.capitalize() + "."))


def run(console: Console) -> int:
    """Runs the action of the command line: tree, explain or solve."""
    code: int = _ACTIONS[console.args.action][0].run(console)
    return code
