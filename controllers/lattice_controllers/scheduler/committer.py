"""The committer: the one writer of the Ledger (docs/explanation/ledger.md).

Proposals are drained, applied to the book in memory in order, and stored by one PUT of `/status` with
resourceVersion, the leader's own epoch and term, seq + 1 and a random commit id. While a PUT is under way
the next proposals gather: that is the group commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec

from lattice.daemon import starts
from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import Denied, LatticeError, NotFound, Rejected, Retry, Stale, UnknownOutcome
from lattice.kube.cluster import Cluster
from lattice.kube.resources import LEDGERS
from lattice.ledger.commit import Book, Head, Undo, apply_all
from lattice.ledger.format import Row
from lattice.ledger.proposals import Accepted, Claim, Limits, Proposal, ProposalRefused, SensitivePool, Unknown, Verdict
from lattice.ledger.stored import Stored
from lattice.models.conditions import LEDGER_RECOVER
from lattice.views.ledger import Ledger, LedgerStatus
from lattice_controllers.scheduler.metrics import SchedulerMetrics

log = logging.getLogger(__name__)

NAME = "lattice"
BYTES_PER_SECOND = 1 << 20
BURST_SECONDS = 10.0
RETRY_SECONDS = 0.2
DENIED_SECONDS = 1.0

Changes = list[tuple[Row | None, Row | None]]


class Deposed(Stale):
    """Raised when the stored ledger is not this leader's any more (taken by another, gone back, or gone): the term ends at once."""


class LedgerAccess(Protocol):
    """The ledger for those who read its last commit and propose changes; `Committer` is the implementation."""

    @property
    def stored(self) -> Stored:
        """Returns the ledger as of the last commit that the API server has stored."""
        ...

    @property
    def paused(self) -> str:
        """Returns the reason why nothing may be written while the ledger waits for a recovery; empty: the ledger is written as usual."""
        ...

    def propose(self, proposal: Proposal) -> asyncio.Future[Verdict]:
        """Queues a proposal; the future gives its verdict once its commit is stored or refused, and Unknown where the term ends before."""
        ...


class CommitObserver(Protocol):
    """Is told of each stored commit; `Term` is the implementation."""

    def rows_changed(self, changes: Changes) -> None:
        """Receives the rows (before, after) that a stored commit changed; None before: a new row, None after: a row that is gone."""
        ...


@dataclass
class _QueuedProposal:
    proposal: Proposal
    answer: asyncio.Future[Verdict]
    since: float


class Committer:
    """The one writer of the Ledger while this process leads; tells its `observers` which rows each stored commit changed.

    `book` is ahead of `stored` by the commit that is under way: decide from `book`, project from `stored`.
    """

    def __init__(
        self,
        cluster: Cluster,
        clock: Clock,
        book: Book,
        resource_version: str,
        *,
        identity: str,
        new_id: Callable[[], str],
        metrics: SchedulerMetrics,
    ) -> None:
        self.book = book
        self.stored = Stored(book)
        self._cluster = cluster
        self._clock = clock
        self._version = resource_version
        self._identity = identity
        self._new_id = new_id
        self._metrics = metrics
        self.observers: list[CommitObserver] = []
        self._first: list[_QueuedProposal] = []
        """Proposals that are committed before all others and apart from them: a recovery's."""
        self._waiting: list[_QueuedProposal] = []
        self._arrived = asyncio.Event()
        metrics.active.set_function(lambda: sum(row.held for row in self.stored.rows.values()))
        self._budget = BYTES_PER_SECOND * BURST_SECONDS
        self._budget_at = clock.monotonic()
        self._storing = False
        self.paused = ""

    def propose(self, proposal: Proposal) -> asyncio.Future[Verdict]:
        """Queues a proposal; the future gives its verdict once its commit is stored or refused, and Unknown where the term ends before."""
        answer: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self._waiting.append(_QueuedProposal(proposal, answer, self._clock.monotonic()))
        self._arrived.set()
        return answer

    async def run(self) -> None:
        """Commits proposals as they arrive, while paused only those of `commit_paused`, until cancelled; raises Deposed.

        Proposals that are still open then are answered Unknown.
        """
        try:
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                while self._first or (self._waiting and not self.paused):
                    await self._pace()
                    if self._first:
                        batch, self._first = self._first, []
                    else:
                        batch, self._waiting = self._waiting, []
                    await self._commit(batch)
        finally:
            for entry in self._first + self._waiting:
                _answer(entry, Unknown())

    def commit_paused(self, proposals: Sequence[Proposal]) -> list[asyncio.Future[Verdict]]:
        """Queues these proposals for a commit of their own, which happens even while paused; all others go on waiting.

        Returns the futures of their verdicts, in the order given.
        """
        waited, self._waiting = self._waiting, []
        answers = [self.propose(proposal) for proposal in proposals]
        self._first, self._waiting = self._waiting, waited
        return answers

    async def check_stored(self) -> None:
        """Reads the Ledger and raises Deposed where its last commit is not this leader's: another took it, it went back, or it is gone.

        The GET goes to etcd, however old the server's watch cache is. While a commit is under way nothing is read. Other errors of the API
        server are raised as they are.
        """
        head, version = self.book.head, self._version
        if self._storing:
            return
        try:
            kept = await self._cluster.get(LEDGERS, NAME, type=Ledger, metadata_only=True)
            if kept.metadata.resource_version == version or self._storing or self.book.head is not head:
                return
            ledger = await self._cluster.get(LEDGERS, NAME, type=Ledger)
        except NotFound as error:
            raise Deposed("the ledger is gone", reason="LedgerGone") from error
        if not self._storing and self.book.head is head:
            _check(ledger.status, head, (head.commit,))
            self._version = ledger.metadata.resource_version  # an annotation has changed

    async def _commit(self, batch: list[_QueuedProposal]) -> None:
        """Applies a batch to the book, limits before claims, stores the ledger and answers each proposal with its verdict.

        Where nothing has changed, nothing is stored. A batch that the server refuses is committed in halves, until the culprit stands
        alone and is answered with a refusal.
        """
        batch = sorted(batch, key=lambda entry: not isinstance(entry.proposal, Limits | SensitivePool))
        self.book.changes.clear()
        verdicts, undo = apply_all(self.book, [entry.proposal for entry in batch])
        changes = list(self.book.changes)
        if not any(isinstance(verdict, Accepted) and verdict.changed for verdict in verdicts):
            self._settle(batch, verdicts, [])
            return
        self._metrics.batch.observe(len(batch))
        self._trace("batch", batch)
        self._storing = True
        try:
            await self._store(undo)
        except Rejected as error:
            self._metrics.commits.labels("rejected").inc()
            await self._split(batch, error)
            return
        finally:
            self._storing = False
        self._metrics.commits.labels("stored").inc()
        self._trace("commit", batch)
        self._settle(batch, verdicts, changes)

    def _trace(self, step: str, batch: Sequence[_QueuedProposal]) -> None:
        """Logs, where starts are traced, that the claims of a batch have reached a step."""
        for entry in batch if starts.traced() else ():
            if isinstance(entry.proposal, Claim):
                starts.reached(self._clock, step, entry.proposal.uid)

    async def _split(self, batch: list[_QueuedProposal], error: Rejected) -> None:
        """Commits the halves of a batch that the server refused one after the other; a single proposal is answered with the refusal and
        counted as a disagreement.
        """
        if len(batch) == 1:
            self._metrics.disagreements.inc()
            event(log, "The server refused a proposal", proposal=repr(batch[0].proposal), reason=error.reason, message=error.message)
            _answer(batch[0], ProposalRefused("Rejected", error.message))
            return
        middle = len(batch) // 2
        await self._commit(batch[:middle])
        await self._commit(batch[middle:])

    def _settle(self, batch: list[_QueuedProposal], verdicts: list[Verdict], changes: Changes) -> None:
        """Advances `stored` by a commit, answers its proposals, and tells the observers which rows changed; `changes` empty: nothing was
        stored, and nobody is told.
        """
        self.stored.advance(changes, self.book.head, self.book.accounts, self.book.sensitive)
        now = self._clock.monotonic()
        for entry, verdict in zip(batch, verdicts, strict=True):
            self._metrics.commit_seconds.labels(self._identity).observe(now - entry.since)
            _answer(entry, verdict)
        self._metrics.rows.set(len(self.book.rows))
        if changes:
            for observer in self.observers:
                observer.rows_changed(changes)

    async def _store(self, undo: Undo) -> None:
        """PUTs the ledger under the next seq, again and again while the server cannot be reached or denies it, until the outcome is known.

        Undoes the batch and raises Rejected where the server refuses it; raises Deposed where the ledger is gone or another's.
        """
        before = self.book.head
        self.book.head = replace(before, seq=before.seq + 1, commit=self._new_id())
        self.book.written = int(self._clock.now())
        body = _body(self.book, self._version)
        size = self.book.bytes()
        self._metrics.bytes.set(size)
        self._budget -= size
        while True:
            body["metadata"]["resourceVersion"] = self._version
            try:
                stored = await self._cluster.replace(LEDGERS, NAME, body, subresource="status", type=Ledger, metadata_only=True)
            except (Stale, UnknownOutcome):
                if await self._stands(before):
                    return
            except NotFound as error:
                raise Deposed("the ledger is gone", reason="LedgerGone") from error
            except Retry as error:
                await self._clock.sleep(error.after_seconds or RETRY_SECONDS)
            except Denied as error:  # an API server that has just started denies everything until it has read its roles
                event(log, "The ledger may not be written", reason=error.reason, message=error.message)
                await self._clock.sleep(DENIED_SECONDS)
            except Rejected:
                await self._stands(before)
                self.book.head = before
                undo()
                raise
            else:
                self._version = stored.metadata.resource_version
                return

    async def _stands(self, before: Head) -> bool:
        """Reads the Ledger after a PUT without an answer: True where this commit is stored, False where the one before is, or, after 0.2 s,
        where it cannot be read.

        Raises Deposed when neither is stored: another leader has taken the ledger, or it went back.
        """
        try:
            ledger = await self._cluster.get(LEDGERS, NAME, type=Ledger)
        except LatticeError:
            await self._clock.sleep(RETRY_SECONDS)
            return False
        head = self.book.head
        status = _check(ledger.status, before, (head.commit, before.commit))
        self._version = ledger.metadata.resource_version
        return status.commit == head.commit

    async def _pace(self) -> None:
        """Sleeps while the byte budget is overdrawn: etcd stores every version of the whole ledger."""
        now = self._clock.monotonic()
        self._budget = min(BYTES_PER_SECOND * BURST_SECONDS, self._budget + (now - self._budget_at) * BYTES_PER_SECOND)
        self._budget_at = now
        if self._budget < 0:
            await self._clock.sleep(-self._budget / BYTES_PER_SECOND)


def _check(status: LedgerStatus | None, last: Head, commits: Collection[str]) -> LedgerStatus:
    """Returns the ledger status just read if this leader wrote it: its term, and one of these commits.

    Raises Deposed otherwise: `LedgerWentBack` where it is older than `last`, else another leader has taken the ledger.
    """
    if status is not None and status.term == last.term and status.commit in commits:
        return status
    if status is not None and (status.epoch < last.epoch or status.term == last.term):
        raise Deposed(f"the ledger stands at seq {status.seq}, and {last.seq} was written last", reason="LedgerWentBack")
    raise Deposed("another scheduler has taken the ledger", reason="Deposed")


def _answer(entry: _QueuedProposal, verdict: Verdict) -> None:
    """Gives a queued proposal its verdict, unless its future is done or cancelled."""
    if not entry.answer.done():
        entry.answer.set_result(verdict)


async def take_over(cluster: Cluster, new_id: Callable[[], str], *, evidence: Callable[[], Awaitable[str]]) -> tuple[Book, str]:
    """Fences older leaders by raising the epoch with a new term; returns the book and the resourceVersion of the Ledger.

    While the old leader still commits, the ledger is read again and the write repeated. Without a ledger, `evidence` is asked for a
    sentence on work that a plan or a report knows of (empty: none); beside such work no empty ledger is created, unless operators have
    asked for its recovery: Stale. Raises Stale, too, when another leader took the ledger meanwhile.
    """
    taken_from, term = None, ""
    while True:
        ledger = await _ledger_to_take(cluster, evidence)
        status = ledger.status
        if status is not None and term and status.term == term:
            return Book.load(status), ledger.metadata.resource_version  # the write whose answer was lost stands
        epoch = status.epoch if status is not None else 0
        if taken_from is not None and epoch != taken_from:
            raise Stale("another scheduler has taken the ledger meanwhile", reason="Deposed")
        taken_from, term = epoch, new_id()
        if status is None:
            book = Book.empty(term, new_id())
        else:
            book = Book.load(status)
            book.take(term, new_id())
        try:
            body = _body(book, ledger.metadata.resource_version)
            stored = await cluster.replace(LEDGERS, NAME, body, subresource="status", type=Ledger, metadata_only=True)
        except (Stale, UnknownOutcome) as error:
            event(log, "The ledger is read again", reason=error.reason, epoch=epoch)
        else:
            return book, stored.metadata.resource_version


async def _ledger_to_take(cluster: Cluster, evidence: Callable[[], Awaitable[str]]) -> Ledger:
    """Returns the Ledger as it stands; creates it, without a status, where there is none.

    Raises Stale where `evidence` names work beside a ledger that is gone or empty, unless operators have asked for its recovery.
    """
    try:
        ledger = await cluster.get(LEDGERS, NAME, type=Ledger)
    except NotFound:
        ledger = None
    if ledger is not None and ledger.status is not None:
        return ledger
    asked = ledger is not None and LEDGER_RECOVER in ledger.metadata.annotations
    if not asked and (known := await evidence()):
        sentence = f"there is no ledger, and {known}: `lattice admin ledger recover` makes it again from what nodes and plans say"
        raise Stale(f"{sentence} (after a loss of etcd restore that first)", reason="LedgerWentBack")
    if ledger is None:
        body = {"apiVersion": "lattice.dev/v1alpha1", "kind": "Ledger", "metadata": {"name": NAME}}
        ledger = await cluster.create(LEDGERS, body, type=Ledger)
    return ledger


def _body(book: Book, version: str) -> dict[str, Any]:
    """Returns the Ledger object with the book in its status, to be PUT over the version (resourceVersion) that was read last."""
    return {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "Ledger",
        "metadata": {"name": NAME, "resourceVersion": version},
        "status": msgspec.to_builtins(book.render()),
    }
