"""`lattice admin tenant`: create, show, list and change tenants."""

from __future__ import annotations

import argparse
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from lattice.cli import exits
from lattice.cli.render.text import Column, fields, table
from lattice.cli.selection import bare_name
from lattice.cli.values import milli
from lattice.errors import Rejected
from lattice.kube.resources import TENANTS
from lattice.units import is_digits, parse_quantity

if TYPE_CHECKING:
    from lattice.cli.console import Console

_COLUMNS = (
    Column("TENANT"),
    Column("NODES", right=True),
    Column("MAX", right=True),
    Column("ALLOCATIONS", right=True),
    Column("MAX", right=True),
    Column("ON EXCEEDED", leave=2),
    Column("SHARE", right=True, leave=1),
    Column("VCLUSTER", shrink_to=8, leave=3),
    Column("READY"),
    Column("PER USER"),
    Column("NAMESPACES"),
    Column("ACCOUNTS"),
    Column("MESSAGE"),
)


_LIMITS = (
    ("maxNodes", "nodes"),
    ("maxConcurrentAllocations", "allocations with nodes"),
    ("maxPending", "allocations that wait"),
    ("maxPreemptionClass", "class"),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the actions and their flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, text in (("create", "make a tenant"), ("update", "change a tenant"), ("set-quota", "change a tenant's hard quota")):
        one = actions.add_parser(name, help=text)
        one.add_argument("positional", nargs="?", metavar="NAME")
        one.add_argument("--name", metavar="NAME", help="the book's spelling of NAME")
        one.add_argument("--max-nodes", metavar="N|none", help="nodes held at a time; 0 pauses, none is unlimited")
        one.add_argument(
            "--max-concurrent-allocations", "--max-allocations", dest="max_allocations", metavar="N|none",
            help="allocations that hold nodes at a time; 0 pauses",
        )  # fmt: skip
        one.add_argument("--max-nodes-per-user", metavar="N|none", help="nodes that one user holds at a time, in all vclusters")
        one.add_argument("--max-running-per-user", metavar="N|none", help="allocations of one user that hold nodes at a time")
        one.add_argument("--max-pending-per-user", metavar="N|none", help="allocations of one user that wait; more are refused")
        one.add_argument("--max-preemption-class", metavar="0-10|none", help="highest class that may be asked for")
        one.add_argument("--on-exceeded", choices=("reject", "queue"), help="at submission, when the quota is full")
        one.add_argument("--gpu-hours-budget", metavar="N|none", help="GPU-hours in a period: use above 80 %% lowers scores")
        one.add_argument("--node-hours-budget", metavar="N|none", help="node-hours in a period; the worse of the two counts")
        one.add_argument("--budget-period-days", metavar="N", help="length of the rolling window (default: 90)")
        one.add_argument(
            "--budget-period", choices=("rolling", "month", "quarter", "year"), help="a rolling window (default) or the calendar's"
        )
        one.add_argument("--on-exhausted", choices=("penalise", "queue"), help="at the end of a budget scores fall, or new work waits")
        one.add_argument("--fair-share-target", metavar="SHARE|none", help="its share of all use, for example 0.15 or 150m")
        one.add_argument(
            "--burst-allowance",
            metavar="FACTOR",
            help="1.5: up to 150 %% of its share; beyond it its work is preempted before that of others above their share",
        )
        if name != "set-quota":
            one.add_argument("--for-namespace", action="append", metavar="NAMESPACE", help="its namespaces (default: its name)")
            one.add_argument("--default-vcluster", metavar="VCLUSTER", help="where its work goes that names none")
            one.add_argument("--account", action="append", metavar="ACCOUNT", help="Slurm accounts that mean it; all of them, repeatable")
            one.add_argument("--retention", metavar="TIME", help="how long ended allocations stay")
            for role in ("user", "group", "admin"):
                one.add_argument(f"--{role}", action="append", metavar=role.upper(), help=f"its {role}s; all of them, repeatable")
    for word, text in (("get", "show one tenant: who belongs to it, limits, budgets, use"), ("show", "the same as get")):
        actions.add_parser(word, help=text).add_argument("positional", metavar="NAME")
    actions.add_parser("list", help="list tenants with limits and use")


def run(console: Console) -> int:
    """Makes, changes, shows or lists tenants; returns DONE.

    Of `--name` and NAME one is enough; raises Rejected where none or two different ones are given, or nothing to change.
    """
    args = console.args
    if args.action == "list":
        return _list(console)
    if args.action in ("get", "show"):
        return _get(console, bare_name(args.positional, "Tenant"))
    name = bare_name(args.name or args.positional or "", "Tenant")
    if not name or (args.name and args.positional and args.name != args.positional):
        raise Rejected("give one name of a tenant", reason="BadInput")
    spec = spec_of(args)
    if args.action == "create":
        made = console.cluster.create(TENANTS, {"metadata": {"name": name}, "spec": _without_nothing(spec)}, type=dict[str, Any])
        word = "Created"
    else:
        if not spec:
            raise Rejected("nothing to change: `lattice admin tenant update --help` lists what can be", reason="BadInput")
        made = console.cluster.patch(TENANTS, name, {"spec": spec}, type=dict[str, Any])
        word = "Updated"
    if console.is_document:
        console.objects("Tenant", [made], one=True)
    else:
        console.say(f"{word} tenant {name}")
    return exits.DONE


def spec_of(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the fields of spec that flags set; the value None (of the word `none`) removes a limit.

    `set-quota` sets quota and budget alone. Raises Rejected for wrong values.
    """
    quota: dict[str, Any] = {}
    for flag, key in (
        ("max_nodes", "maxNodes"),
        ("max_allocations", "maxConcurrentAllocations"),
        ("max_preemption_class", "maxPreemptionClass"),
    ):
        text = getattr(args, flag)
        if text is not None:
            quota[key] = limit_of(flag.replace("_", "-"), text)
    own = {
        key: limit_of(flag.replace("_", "-"), getattr(args, flag))
        for flag, key in (
            ("max_nodes_per_user", "maxNodes"), ("max_running_per_user", "maxRunning"), ("max_pending_per_user", "maxPending"),
        )
        if getattr(args, flag) is not None
    }  # fmt: skip
    if own:
        quota["perUser"] = own
    if args.on_exceeded:
        quota["onExceeded"] = args.on_exceeded.capitalize()
    budget = _budget_of(args)
    spec: dict[str, Any] = {key: value for key, value in (("quota", quota), ("budget", budget)) if value}
    if args.action == "set-quota":
        return spec
    access = {
        key: getattr(args, role) for role, key in (("user", "users"), ("group", "groups"), ("admin", "admins")) if getattr(args, role)
    }
    others = {
        "namespaces": args.for_namespace,
        "defaultVCluster": args.default_vcluster,
        "accountNames": args.account,
        "finishedRetention": args.retention,
        "access": access,
    }
    return spec | {key: value for key, value in others.items() if value}


def _budget_of(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the budget that the flags give, without those that are absent; None takes a value away.

    Raises Rejected for a flag that does not parse.
    """
    budget: dict[str, Any] = {}
    for flag, key in (
        ("gpu_hours_budget", "gpuHours"),
        ("node_hours_budget", "nodeHours"),
        ("budget_period_days", "periodDays"),
    ):
        text = getattr(args, flag)
        if text is not None:
            budget[key] = limit_of(flag.replace("_", "-"), text)
    for flag, key in (("budget_period", "period"), ("on_exhausted", "onExhausted")):
        if getattr(args, flag) is not None:
            budget[key] = getattr(args, flag).capitalize()
    for flag, key in (("fair_share_target", "fairShareTarget"), ("burst_allowance", "burstAllowance")):
        text = getattr(args, flag)
        if text is not None:
            budget[key] = None if text.lower() == "none" else _quantity_of(flag.replace("_", "-"), text)
    return budget


def _quantity_of(flag: str, text: str) -> str:
    """Returns a flag's number in thousandths, such as 150m. Raises Rejected where it does not parse."""
    try:
        return milli(Decimal(parse_quantity(text)))
    except Rejected as error:
        raise Rejected(f"--{flag}={text}: not a number such as 0.15 or 150m, and not none", reason="BadInput") from error


def limit_of(flag: str, text: str) -> int | None:
    """Returns the limit that a flag gives, 0 included; None for `none` or `unlimited`.

    Raises Rejected, naming the flag, for other words.
    """
    if text.lower() in ("none", "unlimited"):
        return None
    if not is_digits(text):
        raise Rejected(f"--{flag}={text}: not a number, and not none", reason="BadInput")
    return int(text)


def _without_nothing(spec: dict[str, Any]) -> dict[str, Any]:
    """Returns a copy of a spec without the keys whose value is None, at any depth."""
    return {key: _without_nothing(value) if isinstance(value, dict) else value for key, value in spec.items() if value is not None}


def _get(console: Console, name: str) -> int:
    """Prints one tenant; returns DONE. Raises NotFound where there is none."""
    item = console.cluster.get(TENANTS, name, type=dict[str, Any])
    if console.is_document:
        console.objects("Tenant", [item], one=True)
    else:
        console.say(*details(item))
    return exits.DONE


def details(item: dict[str, Any]) -> list[str]:
    """Returns the lines on one tenant: its contract, access and present use."""
    spec, status = item.get("spec") or {}, item.get("status") or {}
    quota, access, use = spec.get("quota") or {}, spec.get("access") or {}, status.get("use") or {}
    ready: dict[str, Any] = next((one for one in status.get("conditions") or () if one["type"] == "Ready"), {})
    limits = ", ".join(f"{word} {quota[key]}" for key, word in _LIMITS if key in quota)
    return fields(
        [
            ("Tenant", item["metadata"]["name"]),
            ("Ready", f"{ready.get('status', 'not judged yet')}: {ready.get('message', '')}".removesuffix(": ")),
            ("Namespaces", ",".join(spec.get("namespaces") or [item["metadata"]["name"]])),
            ("VCluster", str(spec.get("defaultVCluster") or "none by default: work names its own where it may use several")),
            ("Accounts", ",".join(spec.get("accountNames") or ())),
            *((word, ",".join(access.get(key) or ())) for key, word in (("users", "Users"), ("groups", "Groups"), ("admins", "Admins"))),
            ("Limits", limits or "none"),
            ("Per user", _per_user(quota)),
            ("On exceeded", str(quota.get("onExceeded", "Reject"))),
            ("Budget", ", ".join(f"{key} {value}" for key, value in (spec.get("budget") or {}).items())),
            ("In use", f"{use.get('usedNodes', 0)} nodes, {use.get('usedAllocations', 0)} allocations"),
            ("Kept", spec.get("finishedRetention") or ""),
        ]
    )


def _list(console: Console) -> int:
    """Prints all tenants in order of their names, or a note that there are none; returns DONE."""
    items = console.cluster.list(TENANTS, type=dict[str, Any]).items
    if console.is_document:
        console.objects("Tenant", items, one=False)
        return exits.DONE
    rows = [_row(item, console.format == "wide") for item in sorted(items, key=lambda item: str(item["metadata"]["name"]))]
    if rows:
        console.say(*table(_COLUMNS, rows, width=console.outside.columns))
    else:
        console.note("No tenants")
    return exits.DONE


def _row(item: dict[str, Any], wide: bool) -> list[str]:
    """Returns the cells of one tenant; the wide ones are empty unless asked for."""
    spec, status = item.get("spec") or {}, item.get("status") or {}
    quota, use = spec.get("quota") or {}, status.get("use") or {}
    ready: dict[str, Any] = next((one for one in status.get("conditions") or () if one["type"] == "Ready"), {})
    return [
        item["metadata"]["name"],
        str(use.get("usedNodes", "")),
        str(quota.get("maxNodes", "unlimited")),
        str(use.get("usedAllocations", "")),
        str(quota.get("maxConcurrentAllocations", "unlimited")),
        str(quota.get("onExceeded", "Reject")),
        str((spec.get("budget") or {}).get("fairShareTarget", "")),
        str(spec.get("defaultVCluster", "")),
        str(ready.get("status", "")),
        _per_user(quota) if wide else "",
        ",".join(spec.get("namespaces") or ()) if wide else "",
        ",".join(spec.get("accountNames") or ()) if wide else "",
        str(ready.get("message", "")) if wide else "",
    ]


def _per_user(quota: dict[str, Any]) -> str:
    """Returns the limits of each user that are set, as a clause; empty: none."""
    own = quota.get("perUser") or {}
    words = (("maxNodes", "nodes"), ("maxRunning", "running"), ("maxPending", "pending"))
    return ", ".join(f"{own[key]} {word}" for key, word in words if key in own)
