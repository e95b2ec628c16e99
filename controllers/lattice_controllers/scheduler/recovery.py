"""A ledger that went back (etcd restored from an older snapshot) or that is gone, and its recovery.

Each node's report carries the highest seq that it has seen, with epoch and term. One that this ledger has never had: the leader
commits and projects nothing, and reads the ledger. When another scheduler has taken it meanwhile, the report is of that one's plans,
and this term ends; else the leader says `LedgerWentBack` in the annotation `lattice.dev/condition`. `lattice admin ledger recover`
sets the annotation `lattice.dev/recover`. The leader then asks every node for its history (`histories`) and waits for those that
are not Down, the restored states of nodes apart; unknown ones have as long to register. It writes ends and attempts into the
allocations, then one commit: what really runs, and seq, epoch and numbers above all that was seen. Each step may be done again: a
leader that dies in it is followed by one that goes on. Nothing is killed before the commit.

Work that waited and that no node knows is held (`RecoveryUncertain`) while a node cannot be asked, or has forgotten; `recover
--accept` ends that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import LatticeError, NotFound, Stale
from lattice.kube.cluster import Cluster
from lattice.kube.lasting import LastKnown
from lattice.kube.resources import LEDGERS, NODES, PLANS
from lattice.ledger.plans import PlanRow, plan_name
from lattice.ledger.proposals import Pool, Proposal, ProposalRefused, Recover
from lattice.ledger.reports import NodeReport
from lattice.ledger.restoration import Answers, Present, Restored, orders_of, restore, restored_at, seen_elsewhere, uncertain
from lattice.ledger.steps import DOWN
from lattice.models.conditions import LEDGER_ACCEPT, LEDGER_CONDITION, LEDGER_GONE, LEDGER_RECOVER, LEDGER_RECOVERY, LEDGER_UNCERTAIN
from lattice.units import fold_nodes, format_time, parse_duration
from lattice.views.allocation import Allocation
from lattice.views.cluster import Config, Node, NodeOptions
from lattice.views.ledger import Ledger, Plan
from lattice_controllers.scheduler.committer import NAME, Committer, Deposed
from lattice_controllers.scheduler.histories import Histories, NodeHistoryAnswer
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.nodes import Nodes
from lattice_controllers.scheduler.status_writer import write_status

log = logging.getLogger(__name__)

POLL_SECONDS = 1.0
UNCERTAIN_SECONDS = 3.0
"""Between two looks whether nodes that were away have come back, or somebody accepts what is lost."""
SEQ_MARGIN, EPOCH_MARGIN, NUMBER_MARGIN = 1_000_000, 1000, 1000
"""How far a recovery goes beyond what was seen: nodes that are away may have seen more."""
MOST_AHEAD, MOST_EPOCHS_AHEAD, MOST_NUMBERS_AHEAD = 10**12, 10**9, 10**8
"""How far beyond this ledger's own a node's seq, epoch and numbers are believed: more than centuries of work come to."""
WITNESSES = 8
"""So many of the nodes that have seen another ledger are named."""
WENT_BACK = "LedgerWentBack"
UNCERTAIN = "RecoveryUncertain"
THIS_PROCESS = "(this scheduler)"


class Begun(msgspec.Struct, frozen=True):
    """A recovery that is under way, as the annotation `lattice.dev/recovery` keeps it for the next leader.

    `since` and `written` as in `restored_at`; `recoveries` of the ledger before it; `gone`: the Ledger itself is, nothing else.
    """

    id: str
    recoveries: int
    before: float
    """Allocations made before this (seconds since the epoch) were restored."""
    since: int = 0
    written: int = 0
    gone: bool = False


class Doubt(msgspec.Struct, frozen=True):
    """The reason for holding restored work that no node knows, as the annotation `lattice.dev/uncertain` keeps it."""

    id: str
    before: float
    """Allocations made before this (seconds since the epoch) are held while they wait."""
    since: int = 0
    written: int = 0
    away: tuple[str, ...] = ()
    forgotten: str = ""
    """What nobody can tell any more, as a clause."""

    @property
    def sentence(self) -> str:
        """Returns the clause that names what is doubtful."""
        reasons = [f"{len(self.away)} nodes cannot be asked ({fold_nodes(sorted(self.away)[:8])})"] if self.away else []
        return "; ".join([*reasons, *([self.forgotten] if self.forgotten else [])])


class HeldWork(Protocol):
    """The allocations of which a recovery holds some back."""

    @property
    def objects(self) -> Mapping[str, Allocation]:
        """Returns every allocation by uid."""
        ...

    def requeue_pending(self) -> None:
        """Has all that waits looked at again: what was held may go on."""
        ...


def node_options(config: LastKnown[Config]) -> NodeOptions:
    """Returns what the LatticeConfig says of nodes; the defaults where it has never been seen."""
    return config.object.spec.nodes if config.object is not None else NodeOptions()


def _fenced(node: Node) -> bool:
    return node.spec.disable is not None and node.spec.disable.fenced


class Recovery:
    """Watches for reports from another ledger, stops the committer, and recovers when told to.

    `sent` is the highest seq that this term has put into each plan, by name.
    """

    def __init__(
        self, cluster: Cluster, clock: Clock, nodes: Nodes, committer: Committer, metrics: SchedulerMetrics, *,
        sent: Mapping[str, int], config: LastKnown[Config],
    ) -> None:  # fmt: skip
        self.committer = committer
        self.highest = 0
        self.epoch = 0
        self.begun: Begun | None = None
        self.doubt: Doubt | None = None
        self._terms = committer.book.terms
        self._reports: dict[str, NodeReport] = {}
        self._sent = sent
        self._config = config
        self._cluster = cluster
        self._clock = clock
        self._nodes = nodes
        self._histories = Histories(cluster)
        self._metrics = metrics
        self._started, self._began = clock.monotonic(), clock.now()
        self._seen_wrong = False
        self._fenced: frozenset[str] = frozenset()
        self._warned: set[tuple[str, str, int]] = set()

    async def resume(self) -> None:
        """Reads what the leader before has left: a recovery under way, and why work is held; and whose word counts for nothing."""
        nodes = (await self._cluster.list(NODES, type=Node)).items
        self._fenced = frozenset(node.metadata.name for node in nodes if _fenced(node))
        found = (await self._cluster.get(LEDGERS, NAME, type=Ledger)).metadata.annotations
        if text := found.get(LEDGER_RECOVERY):
            self.begun = msgspec.json.decode(text, type=Begun)
        if text := found.get(LEDGER_UNCERTAIN):
            self._doubt(msgspec.json.decode(text, type=Doubt))
        head = self.committer.book.head
        if self.begun is None and head.recoveries == 0 and found.get(LEDGER_RECOVER, "").startswith(LEDGER_GONE):
            self.begun = Begun(secrets.token_hex(6), 0, self._began, gone=True)
            await self._annotate({LEDGER_RECOVERY: msgspec.json.encode(self.begun).decode()})
        done = self.begun is not None and self.begun.recoveries < head.recoveries
        said = found.get(LEDGER_CONDITION, "").startswith(WENT_BACK) and not self._fenced  # a fenced node may have been the only one
        if not done and (said or (self.begun is not None and self.begun.gone)):
            self.committer.paused = WENT_BACK  # before any node has said so to this leader

    def recall(self, written: NodeReport | None) -> None:
        """Counts the last write of an earlier term of this process as a report: nodes that have seen it may be away."""
        if written is not None:
            self.heard(THIS_PROCESS, written)

    def heard(self, node: str, report: NodeReport) -> None:
        """Takes in the last seq that a node has seen; one that this ledger never had means that the ledger went back.

        A node that operators have fenced is not believed: its key may be somebody else's.
        """
        committer = self.committer
        head = committer.book.head
        if report.seq > head.seq + MOST_AHEAD or report.epoch > head.epoch + MOST_EPOCHS_AHEAD:
            event(log, "A node's report is not believed", logging.WARNING, node=node, seen=report.seq, seen_epoch=report.epoch)
            return
        if self._is_fenced(node):
            self._reports.pop(node, None)
            return
        self.highest, self.epoch = max(self.highest, report.seq), max(self.epoch, report.epoch)
        if not seen_elsewhere(report, self._terms, self._sent_to(node)):
            self._reports.pop(node, None)
            return
        self._reports[node] = report
        if not committer.paused:
            committer.paused = WENT_BACK
            event(
                log, "A node has seen another ledger: nothing is committed or projected",
                node=node, seen=report.seq, seen_epoch=report.epoch or None,
                ledger=committer.book.head.seq, epoch=committer.book.head.epoch,
            )  # fmt: skip

    def _sent_to(self, node: str) -> int:
        """Returns the highest seq that this term has put into the plan of a node."""
        index = self._nodes.indices.get(node)
        return self._sent.get(plan_name(index), 0) if index is not None else 0

    def _is_fenced(self, name: str) -> bool:
        node = self._nodes.nodes.get(name)
        return name in self._fenced if node is None else _fenced(node)

    def held(self, allocation: Allocation) -> str:
        """Returns why an allocation that waits is not placed, as a sentence; empty: nothing is doubtful."""
        doubt = self.doubt
        if doubt is None or not uncertain(allocation, doubt.before):
            return ""
        return f"etcd was restored, and it may have run unseen: {doubt.sentence}; operators: `lattice admin ledger recover --accept`"

    async def run(self, work: HeldWork) -> None:
        """Recovers when it is needed and asked for; raises Stale then, since everything else in memory is of the old ledger.

        Raises Deposed when the later ledger is another scheduler's.
        """
        await self._tidy()
        while True:
            await self._clock.sleep(POLL_SECONDS if self.committer.paused or self.doubt is None else UNCERTAIN_SECONDS)
            try:
                if self.committer.paused:
                    await self._paused(dict(work.objects))
                elif self.doubt is not None:
                    await self._resolve_doubt(work)
            except Stale as error:
                if isinstance(error, Deposed) or error.reason == "Recovered":
                    raise
                event(log, "Recovery has to wait", reason=error.reason, message=error.message)
            except LatticeError as error:
                event(log, "Recovery has to wait", reason=error.reason, message=error.message)

    async def _resolve_doubt(self, work: HeldWork) -> None:
        """Looks whether what is doubtful can be told now; what was held is looked at again when the doubt has changed."""
        before = self.doubt
        try:
            await self._doubtful(dict(work.objects))
        finally:
            if self.doubt is not before:
                work.requeue_pending()

    # -- a ledger that went back --------------------------------------------------------------------

    async def _paused(self, allocations: Mapping[str, Allocation]) -> None:
        """Says what is wrong; once somebody wants it, asks the nodes, and recovers when all have answered."""
        ledger = await self._cluster.get(LEDGERS, NAME, type=Ledger)
        if ledger.status is not None and ledger.status.term != self.committer.book.head.term:
            raise Deposed("another scheduler has taken the ledger, and nodes have its plans", reason="Deposed")
        self._metrics.went_back.set(1)
        if self._reports and self.begun is None and all(map(self._is_fenced, self._reports)):
            await self._annotate({LEDGER_CONDITION: None, LEDGER_RECOVER: None})
            raise Stale("only nodes that are fenced have seen another ledger: this term ends, the next one goes on", reason="Recovered")
        wish = ledger.metadata.annotations.get(LEDGER_RECOVER, "") if LEDGER_CONDITION in ledger.metadata.annotations else ""
        if not wish and not (self.begun is not None and self.begun.gone):
            await self._say(ledger, self._missing({}))
            return
        begun = await self._begin()
        await self._histories.ask(self._nodes.nodes.values(), begun.id, begun.since)
        answers = {name: answer for name, answer in (await self._histories.answers(begun.id)).items() if not self._is_fenced(name)}
        missing = self._missing(answers)
        await self._say(ledger, missing)
        if not missing:
            await self._recover(begun, answers, allocations, accepted=wish.startswith(LEDGER_ACCEPT))

    async def _say(self, ledger: Ledger, missing: list[str]) -> None:
        """Keeps the condition current. A wish from before anything was wrong does not count: it goes."""
        annotations = ledger.metadata.annotations
        seen = f"nodes have seen seq {self.highest}{self._witnesses()}"
        said = f"{WENT_BACK}: {seen}; restore etcd rightly, then `lattice admin ledger recover`"
        if missing:
            said += f"; no answer yet from {len(missing)} nodes: {', '.join(missing[:5])}"
        if annotations.get(LEDGER_CONDITION) == said:
            return
        changed: dict[str, str | None] = {LEDGER_CONDITION: said}
        if LEDGER_CONDITION not in annotations and not (self.begun is not None and self.begun.gone):
            changed[LEDGER_RECOVER] = None
        await self._annotate(changed)
        if not self._seen_wrong:
            self._seen_wrong = True
            event(log, "The ledger went back: it waits for a recovery", seen=self.highest, ledger=self.committer.book.head.seq)

    def _witnesses(self) -> str:
        """Returns who has seen it, for operators: one node alone may lie."""
        names = sorted(self._reports)
        more = f" and {len(names) - WITNESSES} more" if len(names) > WITNESSES else ""
        return f" ({fold_nodes(names[:WITNESSES])}{more})" if names else ""

    async def _begin(self) -> Begun:
        """Returns the recovery under way, or a new one; what it is called is kept before any node is asked."""
        recoveries = self.committer.book.head.recoveries
        if self.begun is not None and self.begun.recoveries == recoveries:
            return self.begun
        since, written = restored_at(self._terms, self._reports.values())
        self.begun = Begun(secrets.token_hex(6), recoveries, self._began, since, written)
        await self._annotate({LEDGER_RECOVERY: msgspec.json.encode(self.begun).decode()})
        return self.begun

    def _missing(self, answers: Mapping[str, NodeHistoryAnswer]) -> list[str]:
        """Returns nodes whose answer is waited for: those that this leader has seen alive, and for one Down period every other.

        Whoever does not know a node has not restored it: unknown ones have as long to register. Restored states count for nothing.
        """
        missing = sorted(name for name in self._alive() if name not in answers)
        if missing:
            return missing
        if self._clock.monotonic() - self._started < self._down_seconds():
            silent = sorted(name for name in self._named() - answers.keys() if not self._is_fenced(name))
            return silent or ["(nodes that are not registered)"]
        return []

    def _alive(self) -> list[str]:
        """Returns nodes that have renewed their Lease under this leader, and have not been found Down since."""
        nodes, reports = self._nodes.nodes, self._nodes.reports
        return [
            name for name in self._nodes.seen
            if name in reports and not self._is_fenced(name)
            and not ((node := nodes.get(name)) and node.status.state == DOWN and node.status.heartbeat == reports[name].hb)
        ]  # fmt: skip

    def _named(self) -> set[str]:
        return {*self._nodes.nodes, *self._nodes.indices}

    def _down_seconds(self) -> float:
        options = node_options(self._config)
        return parse_duration(options.heartbeat_timeout) + parse_duration(options.grace_period)

    async def _recover(
        self, begun: Begun, answers: Mapping[str, NodeHistoryAnswer], allocations: Mapping[str, Allocation], *, accepted: bool
    ) -> None:  # fmt: skip
        now = self._clock.now()
        await self._nodes.give_indices()
        plans = [] if not begun.gone else (await self._cluster.list(PLANS, type=Plan)).items
        seq = max([self.highest, *(one.status.ledger_seq for one in allocations.values()), *(plan.spec.seq for plan in plans)]) + SEQ_MARGIN
        epoch = max([self.epoch, self.committer.book.head.epoch, *(plan.spec.epoch for plan in plans)]) + EPOCH_MARGIN
        known = frozenset(
            name for name, node in self._nodes.nodes.items() if node.metadata.creation_timestamp <= format_time(begun.written)
        )
        told = Answers(
            {node: answer.rows for node, answer in answers.items()}, {node: answer.made for node, answer in answers.items()},
            frozenset(self._named() - answers.keys()), known, now if begun.gone else float(begun.written), now,
        )  # fmt: skip
        restored = restore(told, self._present(allocations, seq, orders_of(plans)))
        self._warn(restored)
        if (doubts := told.doubts()) and not accepted:
            doubt = Doubt(begun.id, begun.before, begun.since, begun.written, tuple(sorted(told.away)), told.forgotten())
            event(log, "Restored work that no node knows is held", logging.WARNING, reason=UNCERTAIN, message=doubts)
            await self._annotate({LEDGER_UNCERTAIN: msgspec.json.encode(doubt).decode()})
        await self._write(restored)
        given = max([self.committer.book.head.next_number, *(one.status.number or 0 for one in allocations.values())])
        numbers = max(given, min(restored.number, given + MOST_NUMBERS_AHEAD)) + NUMBER_MARGIN
        await self._commit([Recover(seq, numbers, epoch), Pool(len(self._nodes.names)), *restored.proposals])
        event(log, "Recovered the ledger", seq=seq, epoch=epoch, ends=len(restored.patches), answers=len(answers))
        self._metrics.went_back.set(0)
        with contextlib.suppress(LatticeError):  # the next term tidies up: this recovery stands, and is not done again
            await self._annotate({LEDGER_CONDITION: None, LEDGER_RECOVER: None, LEDGER_RECOVERY: None})
        raise Stale("the ledger was recovered: this term ends, and the next one starts from it", reason="Recovered")

    def _present(self, allocations: Mapping[str, Allocation], seq: int, orders: Iterable[PlanRow] = ()) -> Present:
        rows, nodes = list(self.committer.book.rows.values()), self._nodes
        return Present(allocations, rows, nodes.indices, seq, nodes.gpus, tuple(orders))

    def _warn(self, restored: Restored) -> None:
        """Says once what does not count, and where nodes contradict each other: a node's key may be in wrong hands."""
        for one in restored.foreign:
            if (one.node, one.uid, one.attempt) not in self._warned:
                self._warned.add((one.node, one.uid, one.attempt))
                event(
                    log, "A node tells of an attempt that is not its own: it does not count", logging.WARNING,
                    reason="ForeignHistory", node=one.node, uid=one.uid, attempt=one.attempt, message=one.why,
                )  # fmt: skip
        for told in restored.contested:
            for node, row in told.members.items():
                if (node, row.uid, row.attempt) not in self._warned:
                    self._warned.add((node, row.uid, row.attempt))
                    event(
                        log, "Nodes contradict each other about an attempt: nobody knows its end", logging.WARNING,
                        reason="ContestedHistory", node=node, uid=row.uid, attempt=row.attempt, nodes=fold_nodes(row.nodes),
                    )  # fmt: skip

    async def _write(self, restored: Restored) -> None:
        """Ends, and the attempts that run; raises Stale where an object has changed since it was judged."""
        for allocation, patch in restored.patches:
            try:
                await write_status(self._cluster, allocation, patch["status"], whole=False)
            except NotFound:
                continue  # deleted meanwhile: its row says the rest

    async def _commit(self, proposals: list[Proposal]) -> None:
        verdicts = [await answer for answer in self.committer.commit_paused(proposals)]
        for proposal, verdict in zip(proposals, verdicts, strict=True):
            if isinstance(verdict, ProposalRefused):
                asked, why = repr(proposal), verdict.message
                event(log, "Part of a recovery was refused", logging.WARNING, proposal=asked, reason=verdict.reason, message=why)

    # -- afterwards ---------------------------------------------------------------------------------

    async def _tidy(self) -> None:
        """Takes the question of a finished recovery back from nodes, but not from those that were away."""
        if self.committer.paused:
            return
        begun, head = self.begun, self.committer.book.head
        if begun is not None and begun.recoveries < head.recoveries:
            await self._annotate({LEDGER_CONDITION: None, LEDGER_RECOVER: None, LEDGER_RECOVERY: None})
            self.begun = None
        away = self.doubt.away if self.doubt is not None else ()
        await self._histories.close([node for name, node in self._nodes.nodes.items() if name not in away and node.status.recovery])

    async def _doubtful(self, allocations: Mapping[str, Allocation]) -> None:
        """Hears nodes that come back; lets held work go on once nothing is doubtful, or somebody accepts it."""
        doubt = self.doubt
        ledger = await self._cluster.get(LEDGERS, NAME, type=Ledger)
        if doubt is None:
            return
        if ledger.metadata.annotations.get(LEDGER_RECOVER, "").startswith(LEDGER_ACCEPT):
            event(log, "Restored work is released", logging.WARNING, reason="Accepted", message=doubt.sentence)
            await self._settle(None)
            return
        back = [name for name in doubt.away if name in self._alive()]
        await self._histories.ask([node for name in back if (node := self._nodes.nodes.get(name)) is not None], doubt.id, doubt.since)
        answers = await self._histories.answers(doubt.id) if back else {}
        late = {name: answers[name] for name in back if name in answers}
        if late:
            await self._hear_late(doubt, late, allocations)
        left = tuple(name for name in doubt.away if name not in late and name in self._named())
        forgetful = [name for name, answer in late.items() if answer.made > doubt.written > 0]
        forgotten = "; ".join(filter(None, (doubt.forgotten, f"{fold_nodes(forgetful)} lost the memory of it" if forgetful else "")))
        after = msgspec.structs.replace(doubt, away=left, forgotten=forgotten)
        if after != doubt or not ledger.metadata.annotations.get(LEDGER_CONDITION, "").startswith(UNCERTAIN):
            await self._settle(after if after.sentence else None)

    async def _hear_late(self, doubt: Doubt, late: Mapping[str, NodeHistoryAnswer], allocations: Mapping[str, Allocation]) -> None:
        """Enters what nodes that were away have journaled: ends into allocations, running work into the ledger."""
        now = self._clock.now()
        told = Answers({node: answer.rows for node, answer in late.items()}, written=now, now=now)
        uids = {row.uid for rows in told.rows.values() for row in rows}
        present = self._present(allocations, self.committer.stored.head.seq)
        restored = restore(told, dataclasses.replace(present, rows=[row for row in present.rows if row.uid in uids]))
        self._warn(restored)
        await self._write(restored)
        for proposal in restored.proposals:
            await self.committer.propose(proposal)
        event(log, "Nodes that were away have answered", nodes=fold_nodes(sorted(late)), ends=len(restored.patches))
        await self._histories.close([node for name in late if (node := self._nodes.nodes.get(name)) is not None])

    async def _settle(self, doubt: Doubt | None) -> None:
        """Keeps what is doubtful still; None: nothing."""
        said = (
            f"{UNCERTAIN}: {doubt.sentence}; restored work that no node knows is held: `lattice admin ledger recover --accept`"
            if doubt
            else None
        )
        kept = msgspec.json.encode(doubt).decode() if doubt is not None else None
        await self._annotate({LEDGER_UNCERTAIN: kept, LEDGER_CONDITION: said, LEDGER_RECOVER: None})
        self._doubt(doubt)

    def _doubt(self, doubt: Doubt | None) -> None:
        self.doubt = doubt
        self._nodes.leave_alone(frozenset(doubt.away) if doubt is not None else frozenset())

    async def _annotate(self, annotations: Mapping[str, str | None]) -> None:
        body: dict[str, Any] = {"metadata": {"annotations": dict(annotations)}}
        await self._cluster.patch(LEDGERS, NAME, body)
