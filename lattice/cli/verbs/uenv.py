"""`lattice uenv`: the software environments of the site's registry, and what one says of itself."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING
from urllib.parse import urlencode

import msgspec

from lattice.cli import exits
from lattice.cli.gateway import ask_document
from lattice.cli.render.uenvs import uenv_details, uenv_table, view_lines
from lattice.errors import NotFound
from lattice.software.answers import UenvDetails, UenvRow, UenvRows
from lattice.software.labels import parse_label

if TYPE_CHECKING:
    from lattice.cli.console import Console

INTERMIXED = False
_EXAMPLES = """\
Examples:
  lattice uenv list                          all images of this system
  lattice uenv list prgenv-gnu               all versions and tags of one environment
  lattice uenv list 'prgenv-gnu@*%gh200'     of every system, for one architecture
  lattice uenv inspect prgenv-gnu/24.11:v1   size, digest, mount point and views
  lattice uenv inspect prgenv-gnu/24.11:v1 --view default   the variables that a view changes"""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the actions of `uenv` and their flags."""
    parser.epilog, parser.formatter_class = _EXAMPLES, argparse.RawDescriptionHelpFormatter
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list images", description="List the images that a label names.")
    listing.add_argument("label", nargs="?", default="", metavar="LABEL", help="name[/version][:tag][@system][%%uarch], an id, or a digest")
    details = actions.add_parser("inspect", help="show one image", description="Show what one image says of itself.")
    details.add_argument("label", metavar="LABEL", help="a label that names one image, an id, or a digest")
    details.add_argument("--view", metavar="VIEW", default="", help="show what this view does to variables")


def run(console: Console) -> int:
    """Asks the gateway for images, and shows them."""
    label = console.args.label
    query = urlencode({"label": str(parse_label(label))}) if label else ""
    if console.args.action == "inspect":
        return _inspect(console, ask_document(console, f"/v1/uenv?{query}", UenvDetails))
    return _list(console, ask_document(console, f"/v1/uenvs?{query}", UenvRows))


def _list(console: Console, found: UenvRows) -> int:
    """Prints the images found, or a note that there are none; warns where some were left out; returns DONE."""
    if console.format in ("json", "yaml"):
        console.document(msgspec.to_builtins(found))
    elif console.format == "name":
        console.say(*(_full_label(row, console.args.label) for row in found.rows))
    elif found.rows:
        console.say(*uenv_table(found.rows, wide=console.format == "wide", width=console.outside.columns, color=console.color))
    else:
        console.note("No images")
    if found.left_out:
        console.warn([f"{found.left_out} more images are not shown: give a name, @system or %uarch"])
    return exits.DONE


def _inspect(console: Console, found: UenvDetails) -> int:
    """Prints what an image says of itself, or one of its views; returns DONE. Raises NotFound for a view that it does not have."""
    if console.format in ("json", "yaml"):
        console.document(msgspec.to_builtins(found))
    elif console.format == "name":
        console.say(_full_label(found.row, console.args.label))
    elif console.args.view:
        lines = view_lines(found, console.args.view)
        if lines is None:
            raise _unknown_view(found, console.args.view)
        console.say(*lines)
    else:
        console.say(*uenv_details(found))
    return exits.DONE


def _full_label(row: UenvRow, asked: str) -> str:
    """Returns the label that names this image alone, with its namespace where the label asked for names one."""
    namespace = f"{row.namespace}::" if asked and parse_label(asked).namespace else ""
    return f"{namespace}{row.name}/{row.version}:{row.tag}@{row.system}%{row.uarch}"


def _unknown_view(found: UenvDetails, view: str) -> NotFound:
    """Returns the error that an image has no such view, or that its views are not known, with the next step."""
    if not found.attached:
        label = f"{found.row.name}/{found.row.version}:{found.row.tag}"
        said = f"the views of {label} are not known before it is mounted: no metadata is attached to it"
        hint = f"`lattice submit --uenv=… --view={view}` sets the view where the image has it, and fails with ViewUnknown where it has not"
        return NotFound(f"{said}. Hint: {hint}", reason="ViewUnknown")
    there = ", ".join(one.name for one in found.views) or "none"
    return NotFound(f"the view {view!r} does not exist; there are: {there}", reason="ViewUnknown")
