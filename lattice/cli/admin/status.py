"""`lattice admin status`: tells whether Lattice works: leaders, nodes, allocations, ledger and configuration on one screen."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from lattice.cli import exits
from lattice.cli.leadership import Leadership, leadership
from lattice.cli.render.text import fields
from lattice.errors import Denied, NotFound
from lattice.kube.resources import ALLOCATIONS, CONFIGS, LEDGERS, NODES, Resource
from lattice.models.conditions import LEDGER_CONDITION
from lattice.scheduling.queries.status_rows import phase_of
from lattice.views import Allocation, Config, Ledger, Node

if TYPE_CHECKING:
    from lattice.cli.console import Console

_Seen = TypeVar("_Seen")
SCHEMA = "lattice.dev/status/v1"
CONFIG_GONE = "the LatticeConfig is gone, or may not be read: what it said last is in force, until a daemon is started anew"


def arguments(_parser: argparse.ArgumentParser) -> None:
    """Adds nothing: the action has no flags of its own."""


def run(console: Console) -> int:
    """Shows whether Lattice works; returns FAILED where scheduler or operator is known not to lead, or the ledger names a condition, else
    DONE, also where these may not be read.
    """
    scheduler, operator = leadership(console), leadership(console, "operator", "tenants and node states stand still")
    nodes, allocations = _every(console, NODES, Node), _every(console, ALLOCATIONS, Allocation)
    answer = summary(scheduler, operator, nodes, allocations, _ledger(console), _config(console))
    if console.format in ("json", "yaml"):
        console.document(answer)
    else:
        console.say(*_sentences(answer))
    stopped = answer["ledger"] is not None and answer["ledger"]["condition"]
    return exits.FAILED if scheduler.sentence or operator.sentence or stopped else exits.DONE


def _every(console: Console, resource: Resource, of: type[_Seen]) -> Sequence[_Seen] | None:
    """Returns all objects of a resource, of every namespace; None where they may not be read."""
    try:
        return console.cluster.list(resource, type=of).items
    except Denied:
        return None


def _ledger(console: Console) -> Ledger | None:
    """Returns the ledger; None where it does not exist or may not be read."""
    try:
        return console.cluster.get(LEDGERS, "lattice", type=Ledger)
    except (NotFound, Denied):
        return None


def _config(console: Console) -> Config | None:
    """Returns the configuration; None where it does not exist or may not be read."""
    try:
        return console.cluster.get(CONFIGS, "lattice", type=Config)
    except (NotFound, Denied):
        return None


def summary(
    scheduler: Leadership, operator: Leadership, nodes: Sequence[Node] | None, allocations: Sequence[Allocation] | None,
    ledger: Ledger | None, config: Config | None,
) -> dict[str, Any]:  # fmt: skip
    """Returns the answer as JSON for programs; its fields are part of the interface. What is None may not be read, or is absent."""
    status = ledger.status if ledger is not None else None
    return {
        "schema": SCHEMA,
        "scheduler": _leader(scheduler),
        "operator": _leader(operator),
        "nodes": None if nodes is None else dict(sorted(Counter(node.status.state for node in nodes).items())),
        "allocations": None if allocations is None else dict(sorted(Counter(phase_of(one) for one in allocations).items())),
        "ledger": None
        if status is None
        else {
            "epoch": status.epoch,
            "seq": status.seq,
            "nextNumber": status.next_number,
            "recoveries": status.recoveries,
            "usedNodes": sum(account.used_nodes for account in status.tenants.values()),
            "totalNodes": status.total_nodes,
            "bytes": sum(map(len, status.shards)),
            "condition": ledger.metadata.annotations.get(LEDGER_CONDITION) if ledger is not None else None,
        },
        "config": None if config is None else {"generation": config.metadata.generation},
    }


def _leader(leader: Leadership) -> dict[str, Any]:
    """Returns a leader as a part of the answer, with null for what is not known."""
    return {"holder": leader.holder or None, "silentSince": leader.silent_since or None, "message": leader.sentence or None}


def _sentences(answer: dict[str, Any]) -> list[str]:
    """Returns the answer as lines: leaders, nodes, allocations and ledger, and a line where the configuration is missing."""
    ledger = answer["ledger"]
    book = "not readable, or not there"
    if ledger is not None:
        held = f"{ledger['usedNodes']} of {ledger['totalNodes']} nodes held"
        book = ledger["condition"] or f"epoch {ledger['epoch']}, seq {ledger['seq']}, {held}, {ledger['bytes']} bytes"
    return fields(
        [
            ("Scheduler", answer["scheduler"]["message"] or f"leads: {answer['scheduler']['holder'] or 'may not be looked at'}"),
            ("Operator", answer["operator"]["message"] or f"leads: {answer['operator']['holder'] or 'may not be looked at'}"),
            ("Nodes", _counts(answer["nodes"])),
            ("Allocations", _counts(answer["allocations"])),
            ("Ledger", book),
            *([] if answer["config"] else [("Options", CONFIG_GONE)]),
        ]
    )


def _counts(counts: dict[str, int] | None) -> str:
    """Returns counts by word as text, such as `3 Ready, 1 Down`."""
    if counts is None:
        return "may not be read: a system admin may"
    return ", ".join(f"{count} {word}" for word, count in counts.items()) or "none"
