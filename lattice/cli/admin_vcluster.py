"""`lattice admin vcluster`: create and list vclusters."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lattice.cli import exits
from lattice.cli.render import Column, table
from lattice.cli.update import walltime_of
from lattice.errors import Rejected
from lattice.kube.resources import VCLUSTERS

if TYPE_CHECKING:
    from lattice.cli.console import Console

_COLUMNS = (
    Column("VCLUSTER"),
    Column("STATE"),
    Column("NODES", right=True),
    Column("READY", right=True),
    Column("MAX WALLTIME", right=True),
    Column("MAX NODES", right=True),
    Column("GROUPS", shrink_to=8),
    Column("TENANTS", shrink_to=8),
    Column("PARTITIONS", shrink_to=8),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """The actions and their flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    create = actions.add_parser("create", help="make a vcluster")
    create.add_argument("positional", nargs="?", metavar="NAME")
    create.add_argument("--name", metavar="NAME", help="the book's spelling of NAME")
    create.add_argument("--group", action="append", metavar="GROUP", help="its home groups, repeatable (default: every node)")
    create.add_argument("--for-tenant", action="append", metavar="TENANT", help="who may submit, repeatable (default: everybody)")
    create.add_argument("--partition", action="append", metavar="NAME", help="Slurm partitions that mean it, repeatable")
    create.add_argument("--default-walltime", metavar="TIME", help="of work that gives none")
    create.add_argument("--max-walltime", metavar="TIME", help="longest walltime")
    create.add_argument("--max-nodes", metavar="N", help="most nodes of one allocation")
    create.add_argument("--closed", action="store_true", help="work is accepted and waits")
    actions.add_parser("list", help="list vclusters")


def run(console: Console) -> int:
    """Make or list."""
    args = console.args
    if args.action == "list":
        return _list(console)
    name = args.name or args.positional
    if not name or (args.name and args.positional and args.name != args.positional):
        raise Rejected("give one name of a vcluster", reason="BadInput")
    made = console.cluster.create(VCLUSTERS, {"metadata": {"name": name}, "spec": spec_of(args)}, type=dict[str, Any])
    if console.is_document:
        console.objects("VCluster", [made], one=True)
    else:
        console.say(f"Created vcluster {name}")
    return exits.DONE


def spec_of(args: argparse.Namespace) -> dict[str, Any]:
    """The spec of what was named."""
    spec: dict[str, Any] = {}
    limits: dict[str, Any] = {}
    if args.group:
        spec["nodes"] = {"selector": {"group": args.group}}
    if args.for_tenant or args.tenant:
        spec["tenants"] = args.for_tenant or [args.tenant]
    if args.partition:
        spec["partitionNames"] = args.partition
    if args.default_walltime:
        spec["defaults"] = {"walltime": walltime_of(args.default_walltime)}
    if args.max_walltime:
        limits["maxWalltime"] = walltime_of(args.max_walltime)
    if args.max_nodes:
        if not args.max_nodes.isdigit() or int(args.max_nodes) < 1:
            raise Rejected(f"--max-nodes={args.max_nodes}: not a number from 1 on", reason="BadInput")
        limits["maxNodesPerAllocation"] = int(args.max_nodes)
    if limits:
        spec["limits"] = limits
    if args.closed:
        spec["state"] = "Closed"
    return spec


def _list(console: Console) -> int:
    items = console.cluster.list(VCLUSTERS, type=dict[str, Any]).items
    if console.is_document:
        console.objects("VCluster", items, one=False)
        return exits.DONE
    rows = [_row(item) for item in sorted(items, key=lambda item: str(item["metadata"]["name"]))]
    if rows:
        console.say(*table(_COLUMNS, rows, width=console.outside.columns))
    else:
        console.note("No vclusters")
    return exits.DONE


def _row(item: dict[str, Any]) -> list[str]:
    spec, status = item.get("spec") or {}, item.get("status") or {}
    limits, selector = spec.get("limits") or {}, (spec.get("nodes") or {}).get("selector") or {}
    return [
        item["metadata"]["name"],
        str(spec.get("state", "Open")),
        str(status.get("nodes", "")),
        str(status.get("ready", "")),
        str(limits.get("maxWalltime", "")),
        str(limits.get("maxNodesPerAllocation", "")),
        ",".join(selector.get("group") or ()),
        ",".join(spec.get("tenants") or ()),
        ",".join(spec.get("partitionNames") or ()),
    ]
