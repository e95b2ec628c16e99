"""Parses the flags of `lattice admin vcluster` into the spec of a VCluster; pure."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import astuple, fields
from decimal import Decimal
from typing import Any, Final

from lattice.cli.values import camel, dashed, milli, walltime_of
from lattice.errors import Rejected
from lattice.scheduling.model.policy import BALANCED, POLICIES, PROFILES, Weights
from lattice.units import is_digits, parse_duration, parse_quantity, whole_number

WEIGHTS: Final = tuple(field.name for field in fields(Weights))
"""The names of w1 to w9."""
_POLICY_WORDS: Final = {
    **{policy.lower(): policy for policy in POLICIES},
    "hpcbackfill": "Backfill",
    "servicebinpack": "BinPack",
    "fifo": "InteractiveFifo",
    "reservation": "SensitiveReservation",
}
_PROFILE_WORDS: Final = {profile.lower(): profile for profile in PROFILES}


def add_weights(parser: argparse.ArgumentParser) -> None:
    """Adds one flag for each weight, and the profile."""
    words = ", ".join(dashed(profile) for profile in PROFILES)
    parser.add_argument("--profile", metavar="PROFILE", help=f"weights of the book's table: {words}; none: the balanced ones")
    for number, name in enumerate(WEIGHTS, start=1):
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="W", help=f"w{number}, for example 0.15 or 150m")


def add_config(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of policy, cycle, borrowing and limits; the value `none` removes a limit."""
    words = ", ".join(dashed(policy) for policy in POLICIES)
    parser.add_argument("--policy", "--scheduler", "--scheduler-type", metavar="POLICY", help=f"{words} (default: backfill)")
    parser.add_argument("--cycle-interval", metavar="TIME", help="longest time between two cycles")
    parser.add_argument("--backfill-depth", metavar="0-1000", help="how many blocked allocations hold a reservation; 1 is EASY")
    parser.add_argument(
        "--group", action="append", metavar="GROUP", help="its home groups, repeatable (default: all nodes that are at home in no vcluster)"
    )
    parser.add_argument("--for-tenant", action="append", metavar="TENANT", help="who may submit, repeatable (default: everybody)")
    parser.add_argument("--partition", action="append", metavar="NAME", help="Slurm partitions that mean it, repeatable")
    parser.add_argument("--default-walltime", metavar="TIME", help="of work that gives none")
    parser.add_argument("--max-walltime", metavar="TIME|none", help="longest walltime")
    for flag, text in (
        ("nodes", "most nodes of one allocation"),
        ("total-nodes", "most nodes of all its work"),
        ("running", "most allocations that hold nodes"),
        ("running-per-user", "of these, of one user"),
        ("nodes-per-user", "most nodes of one user"),
        ("pending-per-user", "most allocations of one user that wait"),
        ("pending", "most allocations that wait"),
        ("pending-per-tenant", "of these, of one tenant"),
        ("running-per-tenant", "most allocations of one tenant that hold nodes"),
        ("nodes-per-tenant", "most nodes of one tenant"),
    ):
        parser.add_argument(f"--max-{flag}", metavar="N|none", help=text)
    parser.add_argument("--max-class", metavar="0-10|none", help="highest preemption class")
    parser.add_argument("--lend", choices=("yes", "no"), help="whether others may use its idle home nodes")
    parser.add_argument("--borrow", choices=("yes", "no"), help="whether its work may run on idle home nodes of others")
    parser.add_argument("--max-borrowed", metavar="N|none", help="most nodes of others at a time")
    parser.add_argument("--borrow-priority", metavar="0-10", help="who borrows first (higher) and gives back last")
    parser.add_argument("--max-borrow-duration", metavar="TIME|none", help="longest walltime of work on borrowed nodes")
    parser.add_argument("--return-grace", metavar="TIME", help="time that its work has to leave a borrowed node")
    parser.add_argument("--min-runtime", metavar="TIME|none", help="no allocation is preempted before it has run so long")
    parser.add_argument("--max-preemptions", metavar="N|none", help="how often one allocation may be preempted")
    state = parser.add_mutually_exclusive_group()
    state.add_argument("--closed", action="store_const", dest="state", const="Closed", help="work is accepted and waits")
    state.add_argument("--open", action="store_const", dest="state", const="Open", help="work is placed")


def config_of(args: argparse.Namespace) -> dict[str, Any]:
    """Returns the part of spec that the flags of `add_config` set; the value None (of the word `none`) removes a limit.

    Raises Rejected, naming the flag, for a value that does not read.
    """
    limits = {"maxNodesPerAllocation": args.max_nodes, "maxNodes": args.max_total_nodes} | {
        camel(f"max_{name}"): getattr(args, f"max_{name}")
        for name in (
            "running", "running_per_user", "nodes_per_user", "pending", "pending_per_user", "pending_per_tenant", "running_per_tenant",
            "nodes_per_tenant",
        )
    }  # fmt: skip
    sections: dict[str, dict[str, Any]] = {
        "cycle": {
            "interval": _given("--cycle-interval", args.cycle_interval, _duration),
            "depth": _given("--backfill-depth", args.backfill_depth, _count),
        },
        "borrowing": {
            "lend": None if args.lend is None else args.lend == "yes",
            "borrow": None if args.borrow is None else args.borrow == "yes",
            "maxBorrowed": _limit("--max-borrowed", args.max_borrowed, _count),
            "priority": _given("--borrow-priority", args.borrow_priority, _count),
            "maxDuration": _limit("--max-borrow-duration", args.max_borrow_duration, _duration),
            "returnGrace": _given("--return-grace", args.return_grace, _duration),
        },
        "defaults": {"walltime": walltime_of(args.default_walltime) if args.default_walltime else None},
        "limits": {
            "maxWalltime": _limit("--max-walltime", args.max_walltime, lambda _flag, text: walltime_of(text)),
            **{key: _limit(f"--{_flag_of(key)}", text, _positive) for key, text in limits.items()},
            "maxPreemptionClass": _limit("--max-class", args.max_class, _count),
        },
        "preemption": {
            "minRuntime": _limit("--min-runtime", args.min_runtime, _duration),
            "maxPerAllocation": _limit("--max-preemptions", args.max_preemptions, _count),
        },
    }
    spec: dict[str, Any] = {
        "policy": policy_word(args.policy) if args.policy else None,
        "nodes": {"selector": {"group": args.group}} if args.group else None,
        "tenants": args.for_tenant or ([args.tenant] if args.tenant else None),
        "partitionNames": args.partition,
        "state": args.state,
    }
    spec |= {name: _only_given(section) for name, section in sections.items()}
    return {key: value for key, value in spec.items() if value not in (None, {})}


def weights_of_flags(args: argparse.Namespace, now: Weights) -> dict[str, Any]:
    """Returns the part of spec that weight flags set: a profile alone, or all nine weights, those that no flag names from the profile, if
    one is given, else from `now`; empty where no flag was given.

    The profile `none` stands for the balanced weights, None removes a field; raises Rejected for a flag that does not parse, or weights
    that are all 0.
    """
    named = {name: getattr(args, name) for name in WEIGHTS if getattr(args, name) is not None}
    profile = profile_word(args.profile) if args.profile else ""
    if not named:
        return {"profile": profile or None, "weights": None} if args.profile else {}
    base = now
    if args.profile:
        base = PROFILES[profile] if profile else BALANCED
    exact = dict(zip(WEIGHTS, (Decimal(str(round(weight, 6))) for weight in astuple(base)), strict=True))
    for name, text in named.items():
        exact[name] = _weight(name, text)
    if not any(exact.values()):
        raise Rejected("all weights are 0: give at least one above 0", reason="BadInput")
    return {"profile": None, "weights": {camel(name): milli(weight) for name, weight in exact.items()}}


def policy_word(text: str) -> str:
    """Returns the policy as the object has it, from words such as `hpc-backfill` or `bin-pack`; raises Rejected for others."""
    return _known("--policy", text, _POLICY_WORDS, POLICIES)


def profile_word(text: str) -> str:
    """Returns the profile as the object has it, from words such as `hpc-batch`; empty for `none`. Raises Rejected for others."""
    return "" if text.lower() == "none" else _known("--profile", text, _PROFILE_WORDS, (*PROFILES, "none"))


def _known(flag: str, text: str, words: dict[str, str], known: tuple[str, ...]) -> str:
    """Returns the word that a text means, whatever its case, dashes and underscores.

    Raises Rejected, which lists the known ones, for any other.
    """
    found = words.get(re.sub(r"[-_ ]", "", text).lower())
    if found is None:
        raise Rejected(f"{flag}={text}: write {', '.join(dashed(word) for word in known)}", reason="BadInput")
    return found


def _weight(name: str, text: str) -> Decimal:
    """Returns a weight of at least 0. Raises Rejected where it is negative or no number."""
    flag = f"--{name.replace('_', '-')}"
    if text.startswith("-"):
        raise Rejected(f"{flag}={text}: a weight is at least 0", reason="BadInput")
    try:
        return Decimal(parse_quantity(text))
    except Rejected as error:
        raise Rejected(f"{flag}={text}: a weight is a number such as 0.15 or 150m", reason="BadInput") from error


_NONE: Final = object()


def _limit(flag: str, text: str | None, parse: Callable[[str, str], Any]) -> Any:
    """Returns a flag's parsed value, the mark that takes the limit away for none or unlimited, None where the flag is absent."""
    return _NONE if text is not None and text.lower() in ("none", "unlimited") else _given(flag, text, parse)


def _given(flag: str, text: str | None, parse: Callable[[str, str], Any]) -> Any:
    """Returns a flag's value as `parse(flag, text)` gives it; None where the flag is absent. What `parse` raises is passed on."""
    return None if text is None else parse(flag, text)


def _only_given(section: dict[str, Any]) -> dict[str, Any]:
    """Returns a section without the keys that are absent (None); the mark of none becomes None, which takes the value away."""
    return {key: None if value is _NONE else value for key, value in section.items() if value is not None}


def _duration(flag: str, text: str) -> str:
    """Returns a duration's text unchanged. Raises Rejected where it does not parse."""
    try:
        parse_duration(text)
    except Rejected as error:
        raise Rejected(f"{flag}: {error.message}", reason="BadInput") from error
    return text


def _count(flag: str, text: str) -> int:
    """Returns a whole number from 0 on. Raises Rejected for anything else."""
    if not is_digits(text):
        raise Rejected(f"{flag}={text}: not a number from 0 on", reason="BadInput")
    return int(text)


def _positive(flag: str, text: str) -> int:
    """Returns a whole number from 1 on. Raises Rejected for anything else."""
    if not whole_number(text, 1):
        raise Rejected(f"{flag}={text}: not a number from 1 on, and not none", reason="BadInput")
    return int(text)


def _flag_of(key: str) -> str:
    """Returns the name of the flag for a key of a vcluster's limits, without its dashes before."""
    special = {"maxNodesPerAllocation": "max-nodes", "maxNodes": "max-total-nodes"}
    return special.get(key) or re.sub(r"([A-Z])", r"-\1", key).lower()
