"""An independent check of a stored ledger, with a parser of its own: it shares no line with the committer.

CEL in the API server cannot afford these checks; `lattice admin ledger verify` and the scheduler's
verifier run them over what etcd really holds.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from urllib.parse import unquote

from lattice.views.ledger import LedgerStatus


def verify(status: LedgerStatus, names: Mapping[int, str]) -> list[str]:
    """Every fault of the ledger as a sentence; an empty list is a sound ledger.

    `names` gives the node of each index; an index without one is a fault.
    """
    faults: list[str] = []
    owner: dict[int, str] = {}
    held: dict[str, str] = {}
    seen: set[str] = set()
    nodes_used: dict[str, int] = {}
    rows_used: dict[str, int] = {}
    for position, shard in enumerate(status.shards):
        for columns, interned in _rows(position, shard, faults):
            try:
                uid = _uid(columns[0])
                tenant, indices = unquote(interned[int(columns[4])]), _indices(columns[9])
            except (ValueError, IndexError) as error:
                faults.append(f"shard {position}: unreadable row {' '.join(columns)[:60]!r}: {error}")
                continue
            holder = f"{uid} attempt {columns[1]}"
            if holder in seen:
                faults.append(f"{holder} stands twice")
            seen.add(holder)
            if columns[7] == "h" and held.setdefault(uid, holder) != holder:
                faults.append(f"{uid} is held by two attempts: {held[uid]} and {holder}")
            for index in indices:
                if index in owner:
                    faults.append(f"node {names.get(index, index)} is held twice: by {owner[index]} and {holder}")
                owner[index] = holder
                if not names.get(index):
                    faults.append(f"{holder} holds node index {index}, which has no name")
            nodes_used[tenant] = nodes_used.get(tenant, 0) + len(indices)
            rows_used[tenant] = rows_used.get(tenant, 0) + 1
    faults += _accounts(status, nodes_used, rows_used)
    if sum(nodes_used.values()) > status.total_nodes:
        faults.append(f"{sum(nodes_used.values())} nodes are held, {status.total_nodes} exist")
    return faults


def _uid(text: str) -> str:
    digits = base64.urlsafe_b64decode(text + "==").hex()
    if len(digits) != 32:
        raise ValueError(f"{text!r} is not a uid")
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _rows(position: int, shard: str, faults: list[str]) -> list[tuple[list[str], list[str]]]:
    parts = shard.split("|")
    if len(parts) != 3 or parts[0] != "1":
        faults.append(f"shard {position}: not of format 1: {shard[:40]!r}")
        return []
    interned = parts[1].split(",")
    found = [(row.split(" "), interned) for row in parts[2].split(";") if row]
    short = [columns for columns, _ in found if len(columns) < 10]
    faults.extend(f"shard {position}: row of {len(columns)} columns: {' '.join(columns)[:60]!r}" for columns in short)
    return [row for row in found if len(row[0]) >= 10]


def _indices(text: str) -> list[int]:
    indices: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        indices.extend(range(int(first), int(last or first) + 1))
    return indices


def _accounts(status: LedgerStatus, nodes_used: Mapping[str, int], rows_used: Mapping[str, int]) -> list[str]:
    faults: list[str] = []
    for tenant in sorted({*status.tenants, *nodes_used}):
        account = status.tenants.get(tenant)
        if account is None:
            faults.append(f"tenant {tenant} holds {nodes_used[tenant]} nodes and has no account")
            continue
        for what, said, counted in (
            ("usedNodes", account.used_nodes, nodes_used.get(tenant, 0)),
            ("usedAllocations", account.used_allocations, rows_used.get(tenant, 0)),
        ):
            if said != counted:
                faults.append(f"tenant {tenant}: {what} says {said}, the rows say {counted}")
    return faults
