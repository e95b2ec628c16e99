"""`lattice cache`: the images that nodes keep, and bringing them there before work asks for them."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

import msgspec

from lattice.cli import exits
from lattice.cli.gateway import open_cache
from lattice.cli.render.caches import cache_table, progress_line
from lattice.errors import Rejected, Retry
from lattice.software.answers import CacheOrder, CacheRecord
from lattice.software.containers import parse_container
from lattice.software.labels import parse_label

if TYPE_CHECKING:
    from lattice.cli.console import Console

INTERMIXED = False
_EXAMPLES = """\
Examples:
  lattice cache status --nodes nid[001-004]                      what they keep, and how much room is left
  lattice cache warm --image prgenv-gnu/24.11:v1 --group g0      bring an image to every node of a group
  lattice cache warm --image prgenv-gnu/24.11:v1 --nodes nid001 --sticky   and keep it whatever room is wanted
  lattice cache warm --image registry.example/team/app:1.0 --group g0      an OCI image
  lattice cache evict --image 3a1f0c9e2b7d4458 --nodes nid001    remove it there"""
_ACTIONS = {
    "status": "show the images that nodes keep",
    "warm": "bring a uenv or an OCI image to nodes before work asks for it",
    "evict": "remove an image from nodes that no work there uses",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the actions of `cache` and their flags."""
    parser.epilog, parser.formatter_class = _EXAMPLES, argparse.RawDescriptionHelpFormatter
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text in _ACTIONS.items():
        one = actions.add_parser(name, help=text, description=f"{name}: {text}")
        one.add_argument("--nodes", "--node", default="", metavar="NODES", help="names or node sets such as nid[001-064]")
        one.add_argument("--group", default="", metavar="GROUP", help="every node of this group")
        if name != "status":
            one.add_argument(
                "--image", required=True, metavar="IMAGE", help="a label that names one uenv, the name of an OCI image, or an id or digest"
            )
        if name == "warm":
            one.add_argument("--sticky", action="store_true", help="keep it there whatever room is wanted, until it is evicted")


def run(console: Console) -> int:
    """Sends the order to the gateway, and shows what each node answers, of a warming its progress; returns FAILED where all failed,
    SOME_FAILED where some did.

    Raises Rejected where not exactly one of nodes and group is named, or the image does not parse.
    """
    args = console.args
    if bool(args.nodes) == bool(args.group):
        raise Rejected("name the nodes: either --nodes, or --group", reason="BadInput")
    image = getattr(args, "image", "")
    if image:
        _check_image(image)
    order = CacheOrder(args.action, args.nodes, args.group, image, sticky=getattr(args, "sticky", False))
    last: dict[str, CacheRecord] = {}
    shown: dict[str, int] = {}
    waits: dict[str, str] = {}
    stream = open_cache(console, msgspec.to_builtins(order))
    try:
        for line in stream.lines():
            record = _read(line)
            last[record.node] = record
            if args.action == "warm" and not console.is_document and (text := progress_line(record, shown, waits)):
                console.note(text)
    finally:
        stream.close()
    return _told(console, [last[node] for node in sorted(last)])


def _check_image(image: str) -> None:
    """Raises Rejected for what is neither a label of a software environment nor the name of an OCI image."""
    try:
        parse_label(image)
    except Rejected as error:
        try:
            parse_container(image)
        except Rejected as other:
            raise Rejected(f"{error.message}. {other.message}", reason=error.reason) from error


def _read(line: bytes) -> CacheRecord:
    """Returns the record of one line. Raises Retry where it does not parse."""
    try:
        return msgspec.json.decode(line, type=CacheRecord)
    except msgspec.DecodeError as error:
        raise Retry(f"the gateway sent what is no record of a cache: {error}", reason="StreamBroken") from error


def _told(console: Console, records: list[CacheRecord]) -> int:
    """Prints what nodes answered, those that failed as errors; returns DONE, SOME_FAILED, or FAILED where none succeeded."""
    failed = [record for record in records if not record.done]
    if console.format in ("json", "yaml"):
        console.document(json.loads(msgspec.json.encode(records)))
    elif console.format == "name":
        console.say(*(record.node for record in records if record.done))
    elif console.args.action == "status":
        console.say(*cache_table(records, wide=console.format == "wide", width=console.outside.columns, color=console.color))
    else:
        word = {"warm": "has", "evict": "has no more"}[console.args.action]
        console.say(*(f"{record.node} {word} {console.args.image}" for record in records if record.done))
    for record in failed:
        console.complain(f"{record.node}: {record.message or 'the answer ended before it was done'}")
    if not failed:
        return exits.DONE
    return exits.SOME_FAILED if len(failed) < len(records) else exits.FAILED
