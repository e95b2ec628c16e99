"""`lattice admin ledger`: show it, verify it independently, and recover it after a restore of etcd."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lattice.cli import exits
from lattice.cli.render.text import Column, fields, plural, table
from lattice.errors import NotFound
from lattice.kube.resources import LEDGERS, NODE_INDEXES
from lattice.models.conditions import LEDGER_ACCEPT, LEDGER_CONDITION, LEDGER_GONE, LEDGER_RECOVER, LEDGER_UNCERTAIN
from lattice.units import format_time, parse_duration
from lattice.views import Ledger, LedgerStatus, NodeIndex

if TYPE_CHECKING:
    from lattice.cli.console import Console

_PAUSE = 1.0
_UNCERTAIN = "RecoveryUncertain"
_HINT = "  Hint: right after a restore wait for one heartbeat of the nodes, then look at `lattice admin status`"
_QUESTION = "Recover the ledger? Do this only after etcd was restored from a snapshot; what nodes run and have ended is taken up."
_QUESTION_GONE = "Make the ledger again? Do this only when the object is gone and etcd is not to be restored."
_RELEASE = "Release restored work that no node knows? What has run on nodes that cannot be asked runs again."
_COLUMNS = (
    Column("TENANT"),
    Column("NODES", right=True),
    Column("MAX", right=True),
    Column("ALLOCATIONS", right=True),
    Column("MAX", right=True),
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the actions and their flags."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("show", help="epoch, sequence number, limits and use")
    actions.add_parser("verify", help="check what etcd really holds: no node twice, sums, names; 1 when something is wrong")
    recover = actions.add_parser("recover", help="after etcd was restored, or the ledger is gone: take up what nodes know, then go on")
    recover.add_argument("--accept", action="store_true", help="do not hold work that may have run on nodes that cannot be asked")
    recover.add_argument("--yes", action="store_true", help="do not ask")
    recover.add_argument("--timeout", default="10m", metavar="TIME", help="how long to wait for the scheduler")


def run(console: Console) -> int:
    """Runs the action of the command line: show, verify or recover."""
    return {"show": _show, "verify": _verify, "recover": _recover}[console.args.action](console)


def _read_status(console: Console) -> LedgerStatus:
    """Returns the ledger's status. Raises NotFound where the scheduler has not written it yet."""
    status = console.cluster.get(LEDGERS, "lattice", type=Ledger).status
    if status is None:
        raise NotFound("the ledger is empty: the scheduler has not written it yet", reason="LedgerEmpty")
    return status


def _show(console: Console) -> int:
    """Prints the ledger's head and the use and limits of each tenant; returns DONE."""
    if console.is_document:
        console.objects("Ledger", [console.cluster.get(LEDGERS, "lattice", type=dict[str, Any])], one=True)
        return exits.DONE
    status = _read_status(console)
    used = sum(account.used_nodes for account in status.tenants.values())
    lines = fields(
        [
            ("Epoch", str(status.epoch)),
            ("Sequence", str(status.seq)),
            ("Next number", str(status.next_number)),
            ("Recoveries", str(status.recoveries)),
            ("Nodes", f"{used} of {status.total_nodes} held"),
            ("Sensitive pool", f"{status.sensitive.used} of {status.sensitive.max} held"),
            ("Size", f"{sum(map(len, status.shards))} bytes in {plural(len(status.shards), 'shard')}"),
        ]
    )
    rows = [
        [name, str(one.used_nodes), _limit(one.max_nodes), str(one.used_allocations), _limit(one.max_allocations)]
        for name, one in sorted(status.tenants.items())
    ]
    console.say(*lines, *(["", *table(_COLUMNS, rows)] if rows else []))
    return exits.DONE


def _limit(limit: int | None) -> str:
    """Returns a limit as text; `unlimited` for None."""
    return "unlimited" if limit is None else str(limit)


def names_of(names: Mapping[str, str]) -> dict[int, str]:
    """Returns node names by index; free indices are left out."""
    return {int(index): name for index, name in names.items() if name}


def _verify(console: Console) -> int:
    """Checks the stored ledger with a parser of its own and prints each fault; returns FAILED where there is one.

    Raises NotFound where there is no ledger yet.
    """
    from lattice.ledger.verify import verify

    status = _read_status(console)
    index = console.cluster.get(NODE_INDEXES, "lattice", type=NodeIndex)
    faults = verify(status, names_of(index.spec.names))
    if console.format in ("json", "yaml"):
        console.document({"schema": "lattice.dev/verification/v1", "epoch": status.epoch, "seq": status.seq, "faults": faults})
    elif faults:
        console.say(*faults)
    else:
        console.say(f"The ledger is sound: epoch {status.epoch}, seq {status.seq}, {plural(status.total_nodes, 'node')}")
    if faults:
        console.complain(
            f"Error: {plural(len(faults), 'fault')} in the ledger", "  Hint: stop the scheduler, and keep a copy of the object"
        )
        return exits.FAILED
    return exits.DONE


def _recover(console: Console) -> int:
    """Asks the scheduler, once the person agrees, to recover the ledger or, with `--accept`, to release held work, waits until that is
    done, and returns the exit code: FAILED where there is nothing to recover or the person does not agree, NOT_YET after `--timeout`.

    A ledger that is gone or empty is made again instead.
    """
    ledger = _read_ledger(console)
    if ledger is None or ledger.status is None:
        return _make(console, exists=ledger is not None)
    condition = ledger.metadata.annotations.get(LEDGER_CONDITION, "")
    held = condition.startswith(_UNCERTAIN)
    if not condition or (held and not console.args.accept):
        console.complain(
            f"Error: there is nothing to recover: {condition or 'no node has seen a newer ledger than this one'}",
            "  Hint: `--accept` releases restored work that is held" if held else _HINT,
        )
        return exits.FAILED
    console.note(condition)
    if not console.confirm(_RELEASE if held else _QUESTION):
        console.note("Nothing was changed")
        return exits.FAILED
    _ask(console, LEDGER_ACCEPT if console.args.accept else "")
    console.note("Asked the scheduler" + ("" if held else "; it waits for every node that is not Down"))
    before = ledger.status.recoveries
    return _wait_until(console, lambda found: LEDGER_UNCERTAIN not in found.metadata.annotations if held else _recoveries(found) > before)


def _make(console: Console, *, exists: bool) -> int:
    """Asks the scheduler, once the person agrees, to make a ledger that is gone again, waits until that is done, and returns the exit code.

    `exists`: its object is there, empty; else the object is created too.
    """
    console.note("The ledger is gone: the scheduler makes it again from what nodes and plans say")
    if not console.confirm(_QUESTION_GONE):
        console.note("Nothing was changed")
        return exits.FAILED
    if exists:
        _ask(console, LEDGER_GONE)
    else:
        wish = {LEDGER_RECOVER: f"{LEDGER_GONE}{format_time(console.outside.now())}"}
        body = {"apiVersion": LEDGERS.api_version, "kind": LEDGERS.kind, "metadata": {"name": "lattice", "annotations": wish}}
        console.cluster.create(LEDGERS, body, type=dict[str, Any])
    console.note("Asked the scheduler; it waits for every node that is not Down")
    return _wait_until(console, lambda found: _recoveries(found) > 0)


def _read_ledger(console: Console) -> Ledger | None:
    """Returns the ledger; None where there is none."""
    try:
        return console.cluster.get(LEDGERS, "lattice", type=Ledger)
    except NotFound:
        return None


def _recoveries(ledger: Ledger) -> int:
    """Returns how many recoveries a ledger counts; 0 where it has no status."""
    return ledger.status.recoveries if ledger.status is not None else 0


def _ask(console: Console, prefix: str) -> None:
    """Asks the scheduler for a recovery, by an annotation of the ledger that consists of the prefix and the present time."""
    wish = {"metadata": {"annotations": {LEDGER_RECOVER: f"{prefix}{format_time(console.outside.now())}"}}}
    console.cluster.patch(LEDGERS, "lattice", wish, type=dict[str, Any])


def _wait_until(console: Console, done: Callable[[Ledger], bool]) -> int:
    """Waits until `done` is true of a Ledger with a status, then prints how it stands, and returns DONE.

    After `--timeout` it prints an error and returns NOT_YET.
    """
    now = console.outside.now
    deadline = now() + parse_duration(console.args.timeout)
    while now() < deadline:
        found = _read_ledger(console)
        if found is not None and found.status is not None and done(found):
            status = found.status
            console.say(f"Recovered: epoch {status.epoch}, seq {status.seq}, next number {status.next_number}")
            return exits.DONE
        console.outside.sleep(_PAUSE)
    console.complain(
        f"Error: the ledger is not recovered after {console.args.timeout}",
        "  Hint: `lattice admin ledger show -o yaml` says in `lattice.dev/condition` which nodes it waits for; the wish stands",
    )
    return exits.NOT_YET
