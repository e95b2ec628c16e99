"""Detects a ledger that went back (etcd restored from an older snapshot) or that is gone, and recovers it from the nodes' journals.

Each node's report carries the highest seq that the node has seen, with its epoch and term. When a report names a seq that this ledger never
had, the leader commits and projects nothing more, and reads the stored ledger. If another scheduler has taken that meanwhile, the report is
of the other's plans, and this term ends; else the leader writes `LedgerWentBack` into the annotation `lattice.dev/condition`.

`lattice admin ledger recover` sets the annotation `lattice.dev/recover`. The leader then asks every node for its journal (`histories`) and
waits for all nodes that are not Down; node states restored from the snapshot do not count, and nodes without an object have one Down period
to register. It writes the ends and attempts found into the Allocations, then one commit: the work that really runs, and seq, epoch and
numbers above all that were seen. Each step may be repeated, so that the next leader goes on where one dies. Nothing is stopped before the
commit.

Pending work that no node knows is held (`RecoveryUncertain`) while a node cannot be asked, or has lost its journal; `recover --accept` ends
that.
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
"""Time between two checks whether nodes that were away are back, or an operator accepts what cannot be known."""
SEQ_MARGIN, EPOCH_MARGIN, NUMBER_MARGIN = 1_000_000, 1000, 1000
"""How far a recovery sets seq, epoch and numbers above the highest seen: nodes that are away may have seen higher ones."""
MOST_AHEAD, MOST_EPOCHS_AHEAD, MOST_NUMBERS_AHEAD = 10**12, 10**9, 10**8
"""A report further ahead of this ledger's seq, epoch or numbers than this is not believed: centuries of work come to less."""
WITNESSES = 8
"""How many of the nodes that have seen another ledger the condition names."""
WENT_BACK = "LedgerWentBack"
UNCERTAIN = "RecoveryUncertain"
THIS_PROCESS = "(this scheduler)"


class Begun(msgspec.Struct, frozen=True):
    """A recovery that is under way; the annotation `lattice.dev/recovery` keeps it, so that the next leader goes on with it.

    `since`: the last seq that the restored ledger and the one that nodes have seen share; `written`: when that was written, seconds since
    the epoch (0: unknown). `recoveries`: the ledger's count of recoveries before this one; a higher count in the ledger means that this one
    is done. `gone`: the Ledger object alone was lost, while plans and Allocations are those of before.
    """

    id: str
    recoveries: int
    before: float
    """Allocations created before this, seconds since the epoch, were restored with etcd."""
    since: int = 0
    written: int = 0
    gone: bool = False


class Doubt(msgspec.Struct, frozen=True):
    """The reason why restored pending work that no node knows is held; the annotation `lattice.dev/uncertain` keeps it for the next leader.

    `id`, `since` and `written` are those of the recovery (`Begun`); `away` names the nodes that have not been asked yet.
    """

    id: str
    before: float
    """Allocations created before this, seconds since the epoch, are held while they wait."""
    since: int = 0
    written: int = 0
    away: tuple[str, ...] = ()
    forgotten: str = ""
    """What no node can tell any more because its journal is lost, as a clause; empty: nothing."""

    @property
    def sentence(self) -> str:
        """Returns what is doubtful as a clause: nodes that cannot be asked, journals that are lost; empty: nothing any more."""
        reasons = [f"{len(self.away)} nodes cannot be asked ({fold_nodes(sorted(self.away)[:8])})"] if self.away else []
        return "; ".join([*reasons, *([self.forgotten] if self.forgotten else [])])


class HeldWork(Protocol):
    """The reconciler of allocations, as a recovery uses it: pending work that was held must be looked at again."""

    @property
    def objects(self) -> Mapping[str, Allocation]:
        """Returns every allocation that is known, by uid."""
        ...

    def requeue_pending(self) -> None:
        """Enqueues every pending allocation to be reconciled, since the recovery may hold it no longer."""
        ...


def node_options(config: LastKnown[Config]) -> NodeOptions:
    """Returns the node options of the LatticeConfig; the defaults where none has ever been seen."""
    return config.object.spec.nodes if config.object is not None else NodeOptions()


def _fenced(node: Node) -> bool:
    """Tells whether operators have fenced a node: it is disabled, and surely off."""
    return node.spec.disable is not None and node.spec.disable.fenced


class Recovery:
    """Finds out from reports that the ledger went back, pauses the committer, and recovers the ledger when operators ask for it.

    `sent` is the highest seq that this term has put into each plan, by name: a report of it is no sign of another ledger.
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
        """Reads what the leader before left in the Ledger's annotations: a recovery under way, and the doubt for which work is held.

        Pauses the committer where the ledger is known to have gone back. Begins the recovery of a ledger that was gone, where operators
        have asked for it. Reads, too, which nodes are fenced: their reports do not count.
        """
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
        """Treats the last commit of an earlier term of this process as a report: the nodes that have seen it may be away.

        None: there was no such term, and nothing is done.
        """
        if written is not None:
            self.heard(THIS_PROCESS, written)

    def heard(self, node: str, report: NodeReport) -> None:
        """Reads a node's report: a seq that this ledger never had means that the ledger went back, and pauses the committer.

        A report of a node that operators have fenced is ignored, since somebody else may have its key; so is one that is impossibly far
        ahead.
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
        """Returns the highest seq that this term has put into a node's plan; 0 where it wrote none."""
        index = self._nodes.indices.get(node)
        return self._sent.get(plan_name(index), 0) if index is not None else 0

    def _is_fenced(self, name: str) -> bool:
        """Tells whether a node, by name, is fenced; by what `resume` read where its object is not known yet."""
        node = self._nodes.nodes.get(name)
        return name in self._fenced if node is None else _fenced(node)

    def held(self, allocation: Allocation) -> str:
        """Returns the sentence that says why a pending allocation is held after a restore of etcd; empty: it may be placed, since nothing
        is doubtful, or it was created after the recovery began.
        """
        doubt = self.doubt
        if doubt is None or not uncertain(allocation, doubt.before):
            return ""
        return f"etcd was restored, and it may have run unseen: {doubt.sentence}; operators: `lattice admin ledger recover --accept`"

    async def run(self, work: HeldWork) -> None:
        """Checks each second, or every 3 s, until cancelled: a paused ledger is shown and, once operators ask for it, recovered.

        After a recovery it raises Stale (`Recovered`), since everything in memory is of the old ledger, and Deposed when the ledger is
        another scheduler's. While work is held, it hears nodes that come back, and has `work` looked at again. Other errors are logged.
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
        """Hears nodes that have come back (`_doubtful`); has pending work looked at again where the doubt has changed by that."""
        before = self.doubt
        try:
            await self._doubtful(dict(work.objects))
        finally:
            if self.doubt is not before:
                work.requeue_pending()

    # -- a ledger that went back --------------------------------------------------------------------

    async def _paused(self, allocations: Mapping[str, Allocation]) -> None:
        """Shows the condition of a ledger that went back; once operators ask for it, asks the nodes, and recovers when all have answered.

        Raises Deposed where another scheduler has taken the ledger, Stale (`Recovered`) after a recovery, or where only nodes that are
        fenced have seen another ledger.
        """
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
        """Writes into the Ledger's condition annotation that it went back, unless it stands there so; it never removes the annotation.

        `missing`: the nodes whose answer is waited for (empty: of none). Where there was no condition yet it removes a request to recover,
        which was set before anything was wrong, except while a Ledger that was lost is recovered.
        """
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
        """Returns the names of nodes that have seen another ledger as a clause in parentheses, 8 at most; empty: no node has."""
        names = sorted(self._reports)
        more = f" and {len(names) - WITNESSES} more" if len(names) > WITNESSES else ""
        return f" ({fold_nodes(names[:WITNESSES])}{more})" if names else ""

    async def _begin(self) -> Begun:
        """Returns the recovery under way, or begins one, whose id is stored in an annotation before any node is asked."""
        recoveries = self.committer.book.head.recoveries
        if self.begun is not None and self.begun.recoveries == recoveries:
            return self.begun
        since, written = restored_at(self._terms, self._reports.values())
        self.begun = Begun(secrets.token_hex(6), recoveries, self._began, since, written)
        await self._annotate({LEDGER_RECOVERY: msgspec.json.encode(self.begun).decode()})
        return self.begun

    def _missing(self, answers: Mapping[str, NodeHistoryAnswer]) -> list[str]:
        """Returns the nodes whose answer must still be waited for: those seen alive under this leader, and for one Down period all others.

        Empty: recover now. For that period a placeholder stands for nodes that are not registered; node states that were restored with
        etcd do not count.
        """
        missing = sorted(name for name in self._alive() if name not in answers)
        if missing:
            return missing
        if self._clock.monotonic() - self._started < self._down_seconds():
            silent = sorted(name for name in self._named() - answers.keys() if not self._is_fenced(name))
            return silent or ["(nodes that are not registered)"]
        return []

    def _alive(self) -> list[str]:
        """Returns the names of the nodes that have renewed their Lease under this leader and told a report, are not fenced, and not Down by
        the heartbeat of that report.
        """
        nodes, reports = self._nodes.nodes, self._nodes.reports
        return [
            name for name in self._nodes.seen
            if name in reports and not self._is_fenced(name)
            and not ((node := nodes.get(name)) and node.status.state == DOWN and node.status.heartbeat == reports[name].hb)
        ]  # fmt: skip

    def _named(self) -> set[str]:
        """Returns the names of all nodes that have an object or an index."""
        return {*self._nodes.nodes, *self._nodes.indices}

    def _down_seconds(self) -> float:
        """Returns after how many seconds of silence a node is Down: heartbeat timeout and grace period of the LatticeConfig."""
        options = node_options(self._config)
        return parse_duration(options.heartbeat_timeout) + parse_duration(options.grace_period)

    async def _recover(
        self, begun: Begun, answers: Mapping[str, NodeHistoryAnswer], allocations: Mapping[str, Allocation], *, accepted: bool
    ) -> None:  # fmt: skip
        """Recovers the ledger from the nodes' answers: writes ends into the Allocations, then one commit with seq, epoch and numbers above
        all that were seen, and removes the annotations.

        Work that no node knows is held, unless `accepted`. Always ends with an error: Stale (`Recovered`) once done, or what the API server
        raised.
        """
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
        """Returns what ledger, Allocations and plans say now, for `restore` to compare with the journals; `seq`: the seq that the patches
        show.
        """
        rows, nodes = list(self.committer.book.rows.values()), self._nodes
        return Present(allocations, rows, nodes.indices, seq, nodes.gpus, tuple(orders))

    def _warn(self, restored: Restored) -> None:
        """Logs, once each, rows that do not count because the attempt was not the node's, and rows in which nodes contradict each other."""
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
        """Writes the restored ends and running attempts into the Allocations' statuses; passes over those that are gone.

        Raises Stale where one has changed since it was judged.
        """
        for allocation, patch in restored.patches:
            try:
                await write_status(self._cluster, allocation, patch["status"], whole=False)
            except NotFound:
                continue  # deleted meanwhile: its row says the rest

    async def _commit(self, proposals: list[Proposal]) -> None:
        """Commits these proposals while the ledger is paused, and logs those that are refused."""
        verdicts = [await answer for answer in self.committer.commit_paused(proposals)]
        for proposal, verdict in zip(proposals, verdicts, strict=True):
            if isinstance(verdict, ProposalRefused):
                asked, why = repr(proposal), verdict.message
                event(log, "Part of a recovery was refused", logging.WARNING, proposal=asked, reason=verdict.reason, message=why)

    # -- afterwards ---------------------------------------------------------------------------------

    async def _tidy(self) -> None:
        """Removes what a finished recovery left: its annotations, and its question to nodes, except to those that still owe an answer;
        nothing while the ledger is paused.
        """
        if self.committer.paused:
            return
        begun, head = self.begun, self.committer.book.head
        if begun is not None and begun.recoveries < head.recoveries:
            await self._annotate({LEDGER_CONDITION: None, LEDGER_RECOVER: None, LEDGER_RECOVERY: None})
            self.begun = None
        away = self.doubt.away if self.doubt is not None else ()
        await self._histories.close([node for name, node in self._nodes.nodes.items() if name not in away and node.status.recovery])

    async def _doubtful(self, allocations: Mapping[str, Allocation]) -> None:
        """Asks nodes that have come back, and takes their answers in; drops the doubt once nothing is doubtful, or operators accept it.

        Nodes that are forgotten are waited for no longer. Raises Stale where an Allocation has changed meanwhile.
        """
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
        """Enters the journals of nodes that were away: ends into the Allocations, running work into the ledger, whose refusals are ignored;
        then takes the question back.
        """
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
        """Stores what is still doubtful in the Ledger's annotations and in this process, and removes a request to accept; None: nothing is,
        and all of it is removed.
        """
        said = (
            f"{UNCERTAIN}: {doubt.sentence}; restored work that no node knows is held: `lattice admin ledger recover --accept`"
            if doubt
            else None
        )
        kept = msgspec.json.encode(doubt).decode() if doubt is not None else None
        await self._annotate({LEDGER_UNCERTAIN: kept, LEDGER_CONDITION: said, LEDGER_RECOVER: None})
        self._doubt(doubt)

    def _doubt(self, doubt: Doubt | None) -> None:
        """Keeps what is doubtful, None: nothing, and has nothing placed or stopped on the nodes that still owe an answer."""
        self.doubt = doubt
        self._nodes.leave_alone(frozenset(doubt.away) if doubt is not None else frozenset())

    async def _annotate(self, annotations: Mapping[str, str | None]) -> None:
        """Writes annotations of the ledger's object; None removes one."""
        body: dict[str, Any] = {"metadata": {"annotations": dict(annotations)}}
        await self._cluster.patch(LEDGERS, NAME, body)
