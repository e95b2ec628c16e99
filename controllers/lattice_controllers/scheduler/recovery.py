"""A ledger that went back (etcd restored from an older snapshot), and its recovery.

Each node's report carries the highest seq that it has seen. One report above the ledger's own seq: the leader
commits and projects nothing, and reads the ledger. When another scheduler has taken it meanwhile, the report is of
that one's plans, and this term ends; else the leader says `LedgerWentBack` in the annotation `lattice.dev/condition`.
`lattice admin ledger recover` sets the annotation `lattice.dev/recover`; the leader then waits for every node
that is not Down, enters what really runs, raises seq and the next number above all that was reported, and
goes on. Nothing is killed before that; what nobody can place is answered with a stop row as usual.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import LatticeError, Stale
from lattice.kube.cluster import Cluster
from lattice.kube.resources import LEDGERS
from lattice.ledger.format import HELD, NODE_LOST, Key, Row
from lattice.ledger.proposals import Adopt, Claim, Limits, Proposal, Recover, Refused, Release, Stop
from lattice.ledger.reports import ENDING, PREPARING, RUNNING, UNNAMED, NodeReport
from lattice.ledger.steps import DOWN
from lattice.models.conditions import LEDGER_CONDITION, LEDGER_RECOVER
from lattice.views.allocation import Allocation
from lattice.views.ledger import Ledger
from lattice_controllers.scheduler.committer import NAME, Committer, Deposed
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.nodes import Nodes

log = logging.getLogger(__name__)

ALIVE = frozenset((PREPARING, RUNNING, ENDING, UNNAMED))
POLL_SECONDS = 1.0
SEQ_MARGIN = 1000
WENT_BACK = "LedgerWentBack"


class Recovery:
    """Watches for reports from the future, stops the committer, and recovers when told to.

    `loaded` is the ledger's seq as this term found it, `sent` the highest seq that this term has put into the plan
    of a node: what is above both, the node has from a ledger that is no more.
    """

    def __init__(self, cluster: Cluster, clock: Clock, nodes: Nodes, committer: Committer, metrics: SchedulerMetrics, *,
        loaded: int, sent: Callable[[str], int],
    ) -> None:  # fmt: skip
        self.committer = committer
        self.highest = 0
        self._loaded = loaded
        self._sent = sent
        self._asked_before = False
        self._cluster = cluster
        self._clock = clock
        self._nodes = nodes
        self._metrics = metrics

    def newer_seen(self, node: str, seq: int) -> None:
        """A node has seen this seq; if it cannot have it from this ledger, the ledger went back."""
        self.highest = max(self.highest, seq)
        committer = self.committer
        if committer.paused or seq <= max(self._loaded, self._sent(node)):
            return
        committer.paused = WENT_BACK
        event(log, "A node has seen a later ledger: nothing is committed or projected", node=node, seen=seq, ledger=committer.book.head.seq)

    async def run(self, allocations: Callable[[], Iterable[Allocation]]) -> None:
        """Recover when it is needed and asked for; raises Stale then, since everything else in memory is of the old ledger.

        Raises Deposed when the later ledger is another scheduler's.
        """
        while True:
            await self._clock.sleep(POLL_SECONDS)
            if not self.committer.paused:
                continue
            try:
                asked = await self._asked()
                if asked and not self._missing():
                    await self._recover(self.committer, allocations())
            except Stale as error:
                if isinstance(error, Deposed) or error.reason == "Recovered":
                    raise
                event(log, "Recovery has to wait", error=error)
            except LatticeError as error:
                event(log, "Recovery has to wait", error=error)

    async def _asked(self) -> str:
        """The wish to recover, if it was given since the condition stands; keeps the condition current."""
        ledger = await self._cluster.get(LEDGERS, NAME, type=Ledger)
        status, head = ledger.status, self.committer.book.head
        if status is not None and (status.term, status.epoch) != (head.term, head.epoch):
            raise Deposed("another scheduler has taken the ledger, and nodes have its plans", reason="Deposed")
        self._metrics.went_back.set(1)
        annotations = ledger.metadata.annotations
        missing = self._missing()
        said = f"{WENT_BACK}: nodes have seen seq {self.highest}; restore etcd rightly, then `lattice admin ledger recover`"
        if missing:
            said += f"; no report yet from {len(missing)} nodes: {', '.join(missing[:5])}"
        if not self._asked_before or annotations.get(LEDGER_CONDITION) != said:  # a wish from before this was seen does not count
            wish = annotations.get(LEDGER_RECOVER) if self._asked_before else None
            await self._cluster.patch(LEDGERS, NAME, {"metadata": {"annotations": {LEDGER_CONDITION: said, LEDGER_RECOVER: wish}}})
            if not self._asked_before:
                event(log, "The ledger went back: it waits for a recovery", seen=self.highest, ledger=head.seq)
            self._asked_before = True
            return ""
        return annotations.get(LEDGER_RECOVER, "")

    def _missing(self) -> list[str]:
        """Nodes that are not Down and have not reported to this process yet."""
        return sorted(
            name
            for name, node in self._nodes.nodes.items()
            if node.status.state != DOWN and node.spec.disable is None and (name not in self._nodes.seen or name not in self._nodes.reports)
        )

    async def _recover(self, committer: Committer, allocations: Iterable[Allocation]) -> None:
        by_uid = {allocation.metadata.uid: allocation for allocation in allocations}
        adopted = list(adoptions(self._nodes.reports, self._nodes.indices, by_uid))
        numbers = max((allocation.status.number or 0 for allocation in by_uid.values()), default=0)
        seqs = max([self.highest, *(allocation.status.ledger_seq for allocation in by_uid.values())])
        released = displaced(committer.book.holders, adopted)
        gone = {release.key for release in released}
        proposals: list[Proposal] = [
            Recover(seqs + SEQ_MARGIN, numbers + SEQ_MARGIN),
            *lifted(adopted),
            *released,
            *outlived((row for row in committer.book.rows.values() if row.key not in gone), adopted),
            *adopted,
        ]
        verdicts = [await answer for answer in committer.resume(proposals)]
        for proposal, verdict in zip(proposals, verdicts, strict=True):
            if isinstance(verdict, Refused):
                asked, why = repr(proposal), verdict.message
                event(log, "Part of a recovery was refused", logging.WARNING, proposal=asked, reason=verdict.reason, message=why)
        event(log, "Recovered the ledger", seq=committer.book.head.seq, adopted=len(adopted))
        self._metrics.went_back.set(0)
        await self._cluster.patch(LEDGERS, NAME, {"metadata": {"annotations": {LEDGER_CONDITION: None, LEDGER_RECOVER: None}}})
        raise Stale("the ledger was recovered: this term ends, and the next one starts from it", reason="Recovered")


def adoptions(reports: Mapping[str, NodeReport], indices: Mapping[str, int], allocations: Mapping[str, Allocation]) -> Iterable[Adopt]:
    """What really runs, as rows: every attempt that a node reports alive and whose allocation exists.

    Held is the newest of them, unless its object tells of a newer one; the others are ending.
    """
    at: dict[tuple[str, int], list[int]] = {}
    for node, report in reports.items():
        for row in report.rows:
            if row.state in ALIVE and node in indices and row.uid in allocations:
                at.setdefault((row.uid, row.attempt), []).append(indices[node])
    last = dict(sorted(at))
    for (uid, attempt), nodes in sorted(at.items()):
        allocation = allocations[uid]
        newest = attempt >= max(1, allocation.status.attempt, last[uid])
        yield Adopt(_claim(allocation, attempt, tuple(sorted(nodes))), HELD if newest else NODE_LOST)


def lifted(adopted: Iterable[Adopt]) -> list[Limits]:
    """The limits of those whose work is adopted are taken away in the same commit: rows of what has ended stand beside it.

    The next term copies them in again; then nothing new starts until use has fallen below them.
    """
    return [Limits(tenant, None, None) for tenant in sorted({adopt.claim.tenant for adopt in adopted})]


def outlived(rows: Iterable[Row], adopted: Iterable[Adopt]) -> list[Stop]:
    """Held rows of older attempts than one that runs: the allocation was requeued after the ledger was written."""
    running = {adopt.claim.uid: adopt.claim.attempt for adopt in adopted if adopt.state == HELD}
    return [Stop(row.key, NODE_LOST) for row in rows if row.held and row.attempt < running.get(row.uid, 0)]


def displaced(holders: Mapping[int, Key], adopted: Iterable[Adopt]) -> list[Release]:
    """Rows of the old ledger on nodes where something else really runs: they have ended since it was written.

    All other rows stay: their nodes answer with the exit record that they keep, or run them still.
    """
    ended = {
        holders[node]: None
        for adopt in adopted
        for node in adopt.claim.nodes
        if node in holders and holders[node] != adopt.claim.key
    }  # fmt: skip
    return [Release(key) for key in ended]


def _claim(allocation: Allocation, attempt: int, nodes: tuple[int, ...]) -> Claim:
    spec: Any = allocation.spec
    return Claim(
        allocation.metadata.uid, attempt, allocation.metadata.generation, spec.user, spec.tenant, spec.vcluster,
        spec.lifecycle.type[0], nodes[0], nodes,
    )  # fmt: skip
