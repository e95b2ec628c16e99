"""Checks a stored ledger independently, with a parser of its own that shares no code with the committer.

CEL in the API server cannot afford these checks; `lattice admin ledger verify` and the scheduler's audit run `verify` over what
etcd really holds. `verify_step` compares two versions that follow each other: a limit may be lowered below the present use, so one
version alone cannot show whether a limit was kept.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

from lattice.views.ledger import LedgerStatus


def verify(status: LedgerStatus, names: Mapping[int, str]) -> list[str]:
    """Returns every fault of a stored ledger as a sentence; empty: it is sound.

    `names` gives the node of each index; an index without one is a fault.
    """
    faults: list[str] = []
    owner: dict[int, str] = {}
    held: dict[str, str] = {}
    seen: set[str] = set()
    excluded: dict[str, str] = {}
    used = _Used()
    for position, shard in enumerate(status.shards):
        for columns, interned in _rows(position, shard, faults):
            try:
                uid = _uid(columns[0])
                user, tenant = unquote(interned[int(columns[3])]), unquote(interned[int(columns[4])])
                indices = _indices(columns[9])
            except (ValueError, IndexError) as error:
                faults.append(f"shard {position}: unreadable row {' '.join(columns)[:60]!r}: {error}")
                continue
            holder = f"{uid} attempt {columns[1]}"
            if holder in seen:
                faults.append(f"{holder} stands twice")
            seen.add(holder)
            if columns[7] == "h" and held.setdefault(uid, holder) != holder:
                faults.append(f"{uid} is held by two attempts: {held[uid]} and {holder}")
            mutexes = [mutex for mutex in "".join(columns[11:12]).split("+") if mutex]
            twice = [mutex for mutex in mutexes if excluded.setdefault(mutex, holder) != holder]
            faults += [f"mutex {mutex} is held twice: by {excluded[mutex]} and {holder}" for mutex in twice]
            for index in indices:
                if index in owner:
                    faults.append(f"node {names.get(index, index)} is held twice: by {owner[index]} and {holder}")
                owner[index] = holder
                if not names.get(index):
                    faults.append(f"{holder} holds node index {index}, which has no name")
            used.count(tenant, user, len(indices), sensitive=columns[10:11] == ["s"])
    faults += _accounts(status, used)
    together = sum(count for (_, user), count in used.nodes.items() if not user)
    if together > status.total_nodes:
        faults.append(f"{together} nodes are held, {status.total_nodes} exist")
    return faults


def verify_step(before: LedgerStatus, after: LedgerStatus) -> list[str]:
    """Returns, as sentences, the limits that the second of two successive versions exceeds further than the first; empty: none.

    A recovery enters attempts that really run, whatever the limits; it is not judged.
    """
    if after.recoveries != before.recoveries:
        return []
    former, latter = _used_of(before), _used_of(after)
    faults: list[str] = []
    for tenant, account in sorted(after.tenants.items()):
        rows = (
            ("nodes", former.nodes, latter.nodes, account.max_nodes, account.user_max_nodes),
            ("allocations", former.rows, latter.rows, account.max_allocations, account.user_max_allocations),
        )
        for what, then, now, limit, limit_of_user in rows:
            if limit is not None and limit < now.get((tenant, ""), 0) > then.get((tenant, ""), 0):
                faults.append(f"tenant {tenant} holds {now[tenant, '']} {what}, the limit is {limit}")
            for (owner, user), count in sorted(now.items()):
                if owner == tenant and user and limit_of_user is not None and limit_of_user < count > then.get((owner, user), 0):
                    faults.append(f"user {user} of tenant {tenant} holds {count} {what}, the limit is {limit_of_user}")
    if after.sensitive.max < latter.sensitive > former.sensitive:
        faults.append(f"sensitive work holds {latter.sensitive} nodes, the pool has {after.sensitive.max}")
    return faults


@dataclass
class _Used:
    """The nodes and rows in use by the ledger's rows: by (tenant, user), and by (tenant, "") for all users of a tenant."""

    nodes: dict[tuple[str, str], int] = field(default_factory=dict)
    rows: dict[tuple[str, str], int] = field(default_factory=dict)
    sensitive: int = 0

    def count(self, tenant: str, user: str, nodes: int, *, sensitive: bool) -> None:
        """Adds a row on `nodes` nodes to the sums of its tenant (user empty) and of its user, and if sensitive, to the nodes of the
        sensitive pool.
        """
        for who in {(tenant, ""), (tenant, user)}:
            self.nodes[who] = self.nodes.get(who, 0) + nodes
            self.rows[who] = self.rows.get(who, 0) + 1
        self.sensitive += nodes if sensitive else 0


def _used_of(status: LedgerStatus) -> _Used:
    """Returns the use by all readable rows; unreadable ones are faults that `verify` reports."""
    used = _Used()
    for position, shard in enumerate(status.shards):
        for columns, interned in _rows(position, shard, []):
            try:
                user, tenant = unquote(interned[int(columns[3])]), unquote(interned[int(columns[4])])
                used.count(tenant, user, len(_indices(columns[9])), sensitive=columns[10:11] == ["s"])
            except (ValueError, IndexError):
                pass  # a fault of `verify`
    return used


def _uid(text: str) -> str:
    """Returns a uid in its usual form from its base64 form. Raises ValueError where it is none."""
    digits = base64.urlsafe_b64decode(text + "==").hex()
    if len(digits) != 32:
        raise ValueError(f"{text!r} is not a uid")
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def _rows(position: int, shard: str, faults: list[str]) -> list[tuple[list[str], list[str]]]:
    """Returns the columns of each row of a shard, those of both formats in one order, with the shard's interned names.

    Adds a fault for a shard of an unknown format, which has no rows then, and for each row with too few columns, which is left out.
    """
    parts = shard.split("|")
    if len(parts) != 3 or parts[0] not in ("1", "2"):
        faults.append(f"shard {position}: not of format 1 or 2: {shard[:40]!r}")
        return []
    interned = parts[1].split(",")
    found = [(_in_order(row.split(" "), parts[0]), interned) for row in parts[2].split(";") if row]
    short = [columns for columns, _ in found if len(columns) < 10]
    faults.extend(f"shard {position}: row of {len(columns)} columns: {' '.join(columns)[:60]!r}" for columns in short)
    return [row for row in found if len(row[0]) >= 10]


def _in_order(columns: list[str], number: str) -> list[str]:
    """Returns the columns of a row without its walltime: the first ten, the mark of sensitive work, the mutexes."""
    return [*columns[:10], *columns[11:13]] if number == "2" else [*columns[:11], *columns[12:13]]


def _indices(text: str) -> list[int]:
    """Returns node indices from ranges such as 1-3,7. Raises ValueError where the text does not parse."""
    indices: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        indices.extend(range(int(first), int(last or first) + 1))
    return indices


def _accounts(status: LedgerStatus, used: _Used) -> list[str]:
    """Returns a fault for each tenant without an account, and for each account and the sensitive pool where their use differs from what the
    rows say.
    """
    faults: list[str] = []
    nodes_used = {tenant: count for (tenant, user), count in used.nodes.items() if not user}
    rows_used = {tenant: count for (tenant, user), count in used.rows.items() if not user}
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
    if status.sensitive.used != used.sensitive:
        faults.append(f"the sensitive pool: used says {status.sensitive.used}, the rows say {used.sensitive}")
    return faults
