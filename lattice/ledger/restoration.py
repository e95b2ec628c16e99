"""Restores, from the nodes' histories, the ends, attempts and rows that a ledger restored from a backup does not know.

Two questions come before: whether a node has seen another ledger than this one (`seen_elsewhere`), and up to which seq the two are
the same (`restored_at`). `restore` then judges every attempt in a node's journal. Running attempts are entered as they run, ended
ones get their end; neither is placed again. Work that no node knows is left unchanged, and `doubts` says why it may have run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from lattice.ledger.attempts import Told, entered, forsaken
from lattice.ledger.format import HELD, NODE_LOST, Key, Row
from lattice.ledger.history import HistoryRow
from lattice.ledger.membership import Evidence, Foreign, sift
from lattice.ledger.plans import RUN, PlanRow, parse_plan
from lattice.ledger.proposals import Adopt, Claim, Limits, Proposal, Release, Stop
from lattice.ledger.reports import NodeReport
from lattice.lifecycle.settle import is_final
from lattice.units import expand_nodes, fold_nodes, format_time, parse_duration
from lattice.views.allocation import Allocation
from lattice.views.ledger import LedgerTerm, Plan
from lattice.workflow.mutexes import mutexes_of

KEEP_SECONDS = 7 * 86400.0
"""Seconds for which nodes keep exit records after the end."""

Patch = dict[str, Any]


def seen_elsewhere(report: NodeReport, terms: Sequence[LedgerTerm], sent: int) -> bool:
    """Tells whether a node has seen a plan that this ledger never wrote, so that the ledger is older than the node.

    `terms` are the ledger's terms of leaders, the newest last; `sent` is the highest seq that this term has put into the node's
    plan. Order is by seq; epoch and term reveal a ledger that went back and has come as far again.
    """
    if not report.epoch:
        return report.seq > max(terms[-1].since - 1, sent)
    own, following = _around(report, terms)
    if own is not None and own.term != report.term:
        return True
    return report.seq >= following.since if following is not None else own is None


def restored_at(terms: Sequence[LedgerTerm], reports: Iterable[NodeReport]) -> tuple[int, int]:
    """Returns the seq up to which this ledger and that of the reports are the same, and when that was written (0: unknown).

    A report of a term that this ledger knows gives it exactly; for another term the answer is a term too early, never too late.
    """
    seqs, times = [terms[-1].since - 1], []
    for report in reports:
        own, following = _around(report, terms)
        known = own is not None and own.term == report.term
        fork = (following if known or own is None else own) or terms[-1]
        place = terms.index(fork)
        seqs.append(fork.since - 1 if known else terms[place - 1].since - 1 if place else 0)
        times.append(fork.left)
    return min(seqs), min(times, default=0)


def _around(report: NodeReport, terms: Sequence[LedgerTerm]) -> tuple[LedgerTerm | None, LedgerTerm | None]:
    """Returns this ledger's term with the epoch of a report, and the term after it; None: there is no such term."""
    own = next((term for term in terms if term.epoch == report.epoch), None)
    return own, next((term for term in terms if term.epoch > report.epoch), None)


@dataclass(frozen=True)
class Answers:
    """The nodes' answers in a recovery: history rows by node, when each node's state directory was made, unreachable nodes
    (`away`).

    `written`: when the restored ledger was written, seconds since the epoch.
    """

    rows: Mapping[str, Sequence[HistoryRow]]
    made: Mapping[str, float] = field(default_factory=dict)
    away: frozenset[str] = frozenset()
    known: frozenset[str] = frozenset()
    """Nodes that the restored state gives to an attempt."""
    written: float = 0.0
    now: float = 0.0

    @property
    def reinstalled(self) -> frozenset[str]:
        """Returns the nodes that held work in the restored state and whose state directory is younger than it, so that they forgot."""
        return frozenset(node for node, made in self.made.items() if node in self.known and made > self.written > 0)

    @property
    def stale(self) -> bool:
        """Tells whether the restored ledger is older than the seven days for which nodes keep exit records."""
        return self.now - self.written > KEEP_SECONDS

    def doubts(self) -> str:
        """Returns, as a clause, why work that no node knows may have run all the same; empty: it surely has not."""
        away = f"{_count(self.away)} cannot be asked ({fold_nodes(sorted(self.away)[:8])})" if self.away else ""
        return "; ".join(filter(None, (away, self.forgotten())))

    def forgotten(self) -> str:
        """Returns, as a clause, which nodes' memories are lost for good; empty: none."""
        reasons = []
        if self.reinstalled:
            reasons.append(f"{_count(self.reinstalled)} lost the memory of it ({fold_nodes(sorted(self.reinstalled)[:8])})")
        if self.stale:
            reasons.append("the snapshot is older than the 7 days for which nodes keep exit records")
        return "; ".join(reasons)


def _count(nodes: frozenset[str]) -> str:
    """Returns a number of nodes in words, such as `1 node` or `3 nodes`."""
    return f"{len(nodes)} nodes" if len(nodes) != 1 else "1 node"


@dataclass(frozen=True)
class Restored:
    """The result of a recovery: first patches of allocations, then proposals in one commit."""

    patches: Sequence[tuple[Allocation, Patch]] = ()
    proposals: Sequence[Proposal] = ()
    number: int = 0
    """The highest number of an allocation in any journal; 0: none."""
    foreign: Sequence[Foreign] = ()
    """History rows of attempts that were never the node's; they do not count."""
    contested: Sequence[Told] = ()
    """Attempts whose nodes contradict each other about where they ran; their ends are unknown."""


@dataclass(frozen=True)
class Present:
    """The restored state before the recovery: allocations by uid, rows of the ledger, node indices by name.

    `gpus`: gives the GPUs of nodes together. `seq`: for the patches.
    """

    allocations: Mapping[str, Allocation]
    rows: Sequence[Row]
    indices: Mapping[str, int]
    seq: int
    gpus: Callable[[Iterable[int]], int] = lambda _nodes: 0
    orders: Sequence[PlanRow] = ()
    """The rows that plans still hold, where the Ledger object itself is gone."""


def restore(answers: Answers, present: Present) -> Restored:
    """Judges every attempt that a node knows and every row that no node knows; equal answers give an equal result."""
    told, foreign = _told(answers, present)
    judge = _Judge(answers, present, told)
    for uid in sorted({*told, *judge.rows, *(order.uid for order in present.orders)}):
        judge.judge(uid)
    every = [one for attempts in told.values() for one in attempts.values()]
    number = max((one.number for one in every), default=0)
    return Restored(judge.patches, judge.proposals(), number, foreign, [one for one in every if one.contested])


def _told(answers: Answers, present: Present) -> tuple[dict[str, dict[int, Told]], list[Foreign]]:
    """Returns the attempts, by uid and attempt number, as the rows that count tell them; and the rows that do not count."""
    members: dict[Key, dict[str, HistoryRow]] = {}
    for node, rows in answers.rows.items():
        for row in rows:
            members.setdefault(row.attempt_key, {})[node] = row
    found: dict[str, dict[int, Told]] = {}
    foreign: list[Foreign] = []
    held = {row.key: row for row in present.rows if row.held}
    names = {index: name for name, index in present.indices.items()}
    remembering = frozenset() if answers.stale else answers.rows.keys() - answers.reinstalled
    for (uid, attempt), by_node in sorted(members.items()):
        given = [names.get(node, "") for node in held[uid, attempt].nodes] if (uid, attempt) in held else []
        told, dropped = sift(uid, attempt, by_node, _evidence(present.allocations.get(uid), attempt, given, remembering))
        foreign += dropped
        if told is not None:
            found.setdefault(uid, {})[attempt] = told
    return found, foreign


def _evidence(allocation: Allocation | None, attempt: int, given: Sequence[str], remembering: Set[str]) -> Evidence:
    """Returns what the restored state says of an attempt.

    `given`: the nodes of its held row (a releasing row names only those not released yet). `remembering`: see `Evidence`.
    """
    if allocation is None:
        return Evidence(frozenset(given))
    status, meta = allocation.status, allocation.metadata
    shown = status.nodes if status.attempt == attempt else next((one.nodes for one in status.attempts if one.attempt == attempt), "")
    return Evidence(frozenset(given or expand_nodes(shown)), f"{meta.namespace}/{meta.name}", remembering)


class _Judge:
    """Collects the patches and proposals of a recovery, allocation by allocation."""

    def __init__(self, answers: Answers, present: Present, told: Mapping[str, Mapping[int, Told]]) -> None:
        self.patches: list[tuple[Allocation, Patch]] = []
        self.rows: dict[str, list[Row]] = {}
        for row in present.rows:
            self.rows.setdefault(row.uid, []).append(row)
        self._answers = answers
        self._present = present
        self._told = told
        self._names = {index: name for name, index in present.indices.items()}
        self._occupant = {node: (uid, one.attempt) for uid, attempts in told.items() for one in attempts.values() for node in one.alive}
        self._orders: dict[str, list[PlanRow]] = {}
        for order in present.orders:
            self._orders.setdefault(order.uid, []).append(order)
        self._freed: list[Proposal] = []
        self._adopted: list[Adopt] = []

    def proposals(self) -> list[Proposal]:
        """Returns the proposals in order: limits lifted, nodes of ended attempts freed, running attempts entered.

        Limits are lifted since rows of ended attempts may stand beside entered ones; the next term copies them in again.
        """
        tenants = sorted({adopt.claim.tenant for adopt in self._adopted})
        return [*(Limits(tenant, None, None) for tenant in tenants), *self._freed, *self._adopted]

    def judge(self, uid: str) -> None:
        """Judges one allocation; where its object is gone, only its rows, since nodes end work that nobody owns."""
        attempts, rows = self._told.get(uid, {}), self.rows.get(uid, [])
        allocation = self._present.allocations.get(uid)
        newest = max(attempts, default=0)
        if allocation is not None and not is_final(allocation.status):
            self._write(allocation, attempts, rows)
        for row in rows:
            self._judge_row(row, attempts.get(row.attempt), newest)
        if allocation is not None:
            for one in attempts.values():
                self._enter(allocation, one, rows, newest)
            for order in self._orders.get(uid, ()):
                self._enter_order(allocation, order, attempts, rows)

    def _write(self, allocation: Allocation, attempts: Mapping[int, Told], rows: Sequence[Row]) -> None:
        """Adds the patch that shows the ends of the allocation's ended attempts, or the number of the attempt that runs.

        Where no node knows its attempt, work that can no longer start is queued again, and other work left as it is.
        """
        current = max(1, allocation.status.attempt)
        history = [attempts[attempt] for attempt in sorted(attempts) if attempt >= current]
        if history:
            gpus = self._present.gpus(self._present.indices[node] for node in history[-1].nodes if node in self._present.indices)
            patch = entered(allocation, history, away=self._answers.away, seq=self._present.seq, now=self._answers.now, gpus=gpus)
        else:
            row = next((row for row in rows if row.attempt == current), None)
            if row is None or not self._is_lost(row):
                return
            nodes = fold_nodes([self._names.get(node, f"index-{node}") for node in row.nodes])
            patch = forsaken(allocation, current, nodes, seq=self._present.seq, now=self._answers.now)
        if patch is not None:
            self.patches.append((allocation, patch))

    def _is_lost(self, row: Row) -> bool:
        """Tells whether a row that no node knows can no longer start: a node of it has lost its memory, or runs other work."""
        nodes = [self._names.get(node, "") for node in row.nodes]
        forgotten = any(node in self._answers.reinstalled for node in nodes) or (
            self._answers.stale and self._answers.away.isdisjoint(nodes)
        )
        return forgotten or any(self._occupant.get(node, row.key) != row.key for node in nodes)

    def _judge_row(self, row: Row, one: Told | None, newest: int) -> None:
        """Adds the proposals that free the nodes of a row whose attempt has ended, was followed or is lost; nodes that have not answered
        stay held, as lost.
        """
        if one is not None and row.attempt == newest and one.is_open(self._answers.away):
            return
        if one is None and row.attempt >= newest and not self._is_lost(row):
            return
        busy = one.alive if one is not None else frozenset()
        free = tuple(node for node in row.nodes if (name := self._names.get(node)) in self._answers.rows and name not in busy)
        if row.held:
            self._freed.append(Stop(row.key, NODE_LOST))
        if free:
            self._freed.append(Release(row.key, free))

    def _enter(self, allocation: Allocation, one: Told, rows: Sequence[Row], newest: int) -> None:
        """Proposes a row for an attempt without one whose end is open: held where it is the newest, else releasing."""
        key = (allocation.metadata.uid, one.attempt)
        is_open = one.is_open(self._answers.away) if one.attempt == newest else bool(one.alive)
        if not is_open or any(row.attempt == one.attempt for row in rows):
            return
        indices = self._present.indices
        nodes = sorted(indices[node] for node in one.nodes if node in indices and self._occupant.get(node, key) == key)
        if not nodes:
            return
        current = one.attempt == newest and one.attempt >= allocation.status.attempt and not is_final(allocation.status)
        self._adopted.append(Adopt(claim_of(allocation, one.attempt, tuple(nodes)), HELD if current else NODE_LOST))

    def _enter_order(self, allocation: Allocation, order: PlanRow, attempts: Mapping[int, Told], rows: Sequence[Row]) -> None:
        """Proposes a row for an order that a plan names and the ledger lacks, on nodes that have not reported its end and run nothing else.

        None for a final allocation, an attempt that has a row or is entered already, or one that has ended everywhere.
        """
        ended = order.attempt in attempts and not attempts[order.attempt].alive
        if ended or is_final(allocation.status) or any(one.claim.key == order.key for one in self._adopted):
            return
        if any(row.attempt == order.attempt for row in rows):
            return
        indices = self._present.indices
        nodes = tuple(sorted(indices[node] for node in order.nodes if node in indices and self._occupant.get(node, order.key) == order.key))
        if nodes:
            self._adopted.append(Adopt(claim_of(allocation, order.attempt, nodes), HELD if order.order == RUN else order.cause))


def claim_of(allocation: Allocation, attempt: int, nodes: tuple[int, ...]) -> Claim:
    """Returns the claim that gives these nodes to an attempt, with the values of the allocation's spec; the first node is the reporter."""
    spec = allocation.spec
    walltime = spec.lifecycle.walltime
    return Claim(
        allocation.metadata.uid, attempt, allocation.metadata.generation, spec.user, spec.tenant, spec.vcluster,
        spec.lifecycle.type[0], nodes[0], nodes, spec.sensitive, int(parse_duration(walltime)) if walltime else None,
        "+".join(mutexes_of(allocation)),
    )  # fmt: skip


def uncertain(allocation: Allocation, before: float) -> bool:
    """Tells whether an allocation was created before the recovery (`before`, seconds since the epoch), so that it may have run unseen."""
    return allocation.metadata.creation_timestamp <= format_time(before)


def orders_of(plans: Iterable[Plan]) -> list[PlanRow]:
    """Returns the orders of all plans, each (uid, attempt) once; raises Corrupt for a plan that cannot be read."""
    rows = {row.key: row for plan in plans if plan.spec.text for row in parse_plan(plan.spec.text)}
    return list(rows.values())


def rebuilt_index(given: Mapping[str, int | None], rows: Iterable[Row], orders: Iterable[PlanRow]) -> dict[int, str]:
    """Returns the names of node indices as the nodes remember them; `given`: index by node name, None where the node remembers none.

    For a node that is gone, a ledger row and the order of the same attempt name it together; an index that nobody names is absent.
    """
    names: dict[int, str] = {}
    for name, index in sorted(given.items()):
        if index is not None:
            names.setdefault(index, name)
    by_key = {row.key: row for row in rows}
    taken = set(names.values())
    for order in orders:
        row = by_key.get(order.key)
        if row is None or len(row.nodes) != len(order.nodes):
            continue
        for index, name in zip(row.nodes, order.nodes, strict=True):
            if index not in names and name not in taken:
                names[index] = name
                taken.add(name)
    return names
