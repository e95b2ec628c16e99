"""Decides in a recovery which rows of the nodes' histories count, since a stolen node key could report attempts of other nodes.

A row counts where the restored state names its node, in the ledger's row or in the status. For an attempt that this state does not
know, the nodes themselves are the only witnesses: each names the nodes of the whole attempt, and the list named by most of its own
nodes counts. Where two lists have as many witnesses, running work is believed; the end of ended work is then unknown. A node is
believed about an attempt that no other node can know of.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from dataclasses import dataclass

from lattice.ledger.attempts import ALIVE, Told
from lattice.ledger.history import HistoryRow
from lattice.units import fold_nodes

Nodes = tuple[str, ...]


@dataclass(frozen=True)
class Evidence:
    """The facts about one attempt that do not come from the nodes' histories."""

    nodes: frozenset[str] = frozenset()
    """The nodes that the restored state gives to the attempt; empty: it does not know the attempt."""
    path: str = ""
    """NAMESPACE/NAME of its allocation; empty: the allocation does not exist any more."""
    remembering: Set[str] = frozenset()
    """Nodes that have answered and would have a row of the attempt if it had been theirs."""


@dataclass(frozen=True)
class Foreign:
    """A history row that does not count, with the reason: the attempt was not this node's."""

    node: str
    uid: str
    attempt: int
    why: str


def sift(uid: str, attempt: int, members: Mapping[str, HistoryRow], evidence: Evidence) -> tuple[Told | None, list[Foreign]]:
    """Returns the attempt as the rows that count tell it (None: no row counts), and the rows that do not.

    Where the restored state knows the attempt's nodes, only their rows count; else those of the nodes that most of these nodes
    themselves name. `members`: the history row of each node that reports the attempt.
    """
    reasons = {node: _own_fault(node, row, evidence) for node, row in members.items()}
    rows = {node: row for node, row in members.items() if not reasons[node]}
    lists = {row.nodes for row in rows.values() if row.nodes}
    told: Told | None = None
    if evidence.nodes:
        agreed = next((nodes for nodes in sorted(lists) if frozenset(nodes) == evidence.nodes), tuple(sorted(evidence.nodes)))
        told = Told(attempt, rows, agreed) if rows else None
    elif not lists:
        told = Told(attempt, rows, tuple(sorted(rows))) if rows else None
    else:
        best = _best(lists, rows, members, evidence.remembering)
        if len(best) > 1:
            best = [nodes for nodes in best if any(rows[node].state in ALIVE for node in _witnesses(nodes, rows))][:1]
        if not best:
            everybody = tuple(sorted({node for nodes in lists for node in nodes}))
            return Told(attempt, rows, everybody, contested=True), _foreign(uid, attempt, reasons)
        reasons |= {node: f"it ran on {fold_nodes(best[0])}, as those nodes say" for node in rows if node not in best[0]}
        told = Told(attempt, {node: row for node, row in rows.items() if node in best[0]}, best[0])
    return told, _foreign(uid, attempt, reasons)


def _own_fault(node: str, row: HistoryRow, evidence: Evidence) -> str:
    """Returns the reason why a row cannot be true whatever other nodes report; empty: it can be."""
    if row.name and evidence.path and f"{row.namespace}/{row.name}" != evidence.path:
        return f"it calls it {row.namespace}/{row.name}, and it is {evidence.path}"
    if row.nodes and node not in row.nodes:
        return f"by its own word it ran on {fold_nodes(row.nodes)}"
    if evidence.nodes and node not in evidence.nodes:
        return f"it was given {fold_nodes(sorted(evidence.nodes))}"
    return ""


def _best(lists: Iterable[Nodes], rows: Mapping[str, HistoryRow], members: Collection[str], remembering: Set[str]) -> list[Nodes]:
    """Returns the node lists with the most witnesses among their own nodes; of equal ones those that the fewest of their nodes contradict,
    or would remember and do not know.
    """

    def worth(nodes: Nodes) -> tuple[int, int]:
        """Returns how credible it is that an attempt ran on these nodes: how many of them say so; of equal ones, how few contradict it or
        do not know of it.
        """
        witnesses = _witnesses(nodes, rows)
        started = any(rows[node].start for node in witnesses)
        against = [node for node in nodes if node in rows and rows[node].nodes not in ((), nodes)]
        ignorant = [node for node in nodes if started and node in remembering and node not in members]
        return len(witnesses), -len(against) - len(ignorant)

    found = {nodes: worth(nodes) for nodes in lists}
    return sorted(nodes for nodes, value in found.items() if value == max(found.values()))


def _witnesses(nodes: Nodes, rows: Mapping[str, HistoryRow]) -> list[str]:
    """Returns those of these nodes whose own row says that the attempt ran on exactly these nodes."""
    return [node for node in nodes if node in rows and rows[node].nodes == nodes]


def _foreign(uid: str, attempt: int, reasons: Mapping[str, str]) -> list[Foreign]:
    """Returns the rows of an attempt that do not count, by node name; `reasons`: by node, why its row does not count, empty where
    it does.
    """
    return [Foreign(node, uid, attempt, why) for node, why in sorted(reasons.items()) if why]
