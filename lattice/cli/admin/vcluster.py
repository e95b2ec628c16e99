"""`lattice admin vcluster`: create, show and list vclusters; set how they schedule. Changes count from the next cycle."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import msgspec

from lattice.cli import exits
from lattice.cli.admin.vcluster_flags import add_config, add_weights, config_of, weights_of_flags
from lattice.cli.render.vclusters import vcluster_details, vcluster_table, weight_lines, weights_word
from lattice.cli.selection import bare_name
from lattice.errors import Denied, NotFound, Rejected
from lattice.kube.resources import CONFIGS, VCLUSTERS
from lattice.scheduling.conversion.policies import weights_of
from lattice.scheduling.model.policy import BALANCED
from lattice.views import Config, VCluster

if TYPE_CHECKING:
    from lattice.cli.console import Console


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the actions and their flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text in (
        ("create", "make a vcluster"),
        ("set-weights", "change the weights of its cost function, from the next cycle on"),
        ("set-config", "change policy, cycle, borrowing and limits, from the next cycle on"),
        ("get", "show one vcluster, with the weights in force"),
        ("show", "the book's spelling of get"),
    ):
        one = actions.add_parser(name, help=text)
        one.add_argument("positional", nargs="?", metavar="NAME")
        one.add_argument("--name", metavar="NAME", help="the book's spelling of NAME")
        if name in ("create", "set-weights"):
            add_weights(one)
        if name in ("create", "set-config"):
            add_config(one)
    actions.add_parser("list", help="list vclusters")


def run(console: Console) -> int:
    """Makes, changes, shows or lists vclusters; returns DONE.

    Of `--name` and NAME one is enough; raises Rejected where none or two different ones are given, or nothing to change.
    """
    args = console.args
    if args.action == "list":
        return _list(console)
    name = bare_name(args.name or args.positional or "", "VCluster")
    if not name or (args.name and args.positional and args.name != args.positional):
        raise Rejected("give one name of a vcluster", reason="BadInput")
    if args.action in ("get", "show"):
        return _get(console, name)
    if args.action == "create":
        spec = config_of(args) | {key: value for key, value in weights_of_flags(args, BALANCED).items() if value is not None}
        made = console.cluster.create(VCLUSTERS, {"metadata": {"name": name}, "spec": spec}, type=dict[str, Any])
        return _show_made(console, made, f"Created vcluster {name}")
    if args.action == "set-weights":
        return _set_weights(console, name)
    spec = config_of(args)
    if not spec:
        raise Rejected("nothing to change: `lattice admin vcluster set-config --help` lists what can be", reason="BadInput")
    return _show_made(console, console.cluster.patch(VCLUSTERS, name, {"spec": spec}, type=dict[str, Any]), f"Updated vcluster {name}")


def _set_weights(console: Console, name: str) -> int:
    """Changes the weights that flags name, shows those in force, and returns DONE; the others keep their present values, or with a profile
    get its own.

    Raises Rejected where no flag is given.
    """
    now = console.cluster.get(VCLUSTERS, name, type=VCluster)
    spec = weights_of_flags(console.args, weights_of(now.spec))
    if not spec:
        raise Rejected("nothing to change: give a weight such as --fair-share=0.25, or --profile", reason="BadInput")
    made = console.cluster.patch(VCLUSTERS, name, {"spec": spec}, type=dict[str, Any])
    one = msgspec.convert(made, VCluster)
    lines = (f"Weights of vcluster {name} from its next cycle on: {weights_word(one)}", *(f"  {line}" for line in weight_lines(one)))
    return _show_made(console, made, *lines)


def _show_made(console: Console, made: dict[str, Any], *lines: str) -> int:
    """Prints a vcluster as a document where that is asked for, else these lines; returns DONE."""
    if console.is_document:
        console.objects("VCluster", [made], one=True)
    else:
        console.say(*lines)
    return exits.DONE


def _get(console: Console, name: str) -> int:
    """Prints one vcluster with its weights in force; returns DONE. Raises NotFound where there is none."""
    item = console.cluster.get(VCLUSTERS, name, type=dict[str, Any])
    if console.is_document:
        console.objects("VCluster", [item], one=True)
    else:
        console.say(*vcluster_details(item, _config(console)))
    return exits.DONE


def _list(console: Console) -> int:
    """Prints all vclusters, or a note that there are none; returns DONE."""
    items = console.cluster.list(VCLUSTERS, type=dict[str, Any]).items
    if console.is_document:
        console.objects("VCluster", items, one=False)
    elif items:
        console.say(*vcluster_table(items, _config(console), width=0 if console.format == "wide" else console.outside.columns))
    else:
        console.note("No vclusters")
    return exits.DONE


def _config(console: Console) -> Config | None:
    """Returns the LatticeConfig, for the defaults in force; None where it is absent or may not be read."""
    try:
        return console.cluster.get(CONFIGS, "lattice", type=Config)
    except (NotFound, Denied):
        return None
