"""Reports every attempt whose reporter is this node: collects its nodes' states, directs them, and writes the Allocation's status."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from lattice.daemon import starts
from lattice.daemon.logs import event
from lattice.errors import LatticeError, NotFound, Stale
from lattice.kube.clock import Clock
from lattice.kube.cluster import Cluster
from lattice.kube.patches import merge
from lattice.kube.resources import ALLOCATIONS
from lattice.ledger.plans import PlanRow
from lattice.views.meta import Written
from lattice_agent.attempts import Key
from lattice_agent.cluster.work_source import FetchedWork, WorkSource
from lattice_agent.condition import VersionedCondition
from lattice_agent.members import FINAL, Direction, Member, Order
from lattice_agent.reporter import status
from lattice_agent.reporter.head import AttemptView, Begun, NothingYet
from lattice_agent.work.assignment import walltime_of

log = logging.getLogger(__name__)

FIRST_LOOK, LOOKS_GROW, LONGEST_LOOK = 0.03, 3.0, 5.0
"""Seconds until it is first checked whether the scheduler has written its part of the status, the factor for each next wait, the longest.

A scheduler that is behind must not be slowed down by as many reads as there are attempts.
"""
BEGUN_SECONDS = 0.5
"""How long Started waits for the end of work that ends soon, so that both are one write; nodes' claims prove the start meanwhile."""
RECHECK_SECONDS = 10.0
FIND_SECONDS, FIND_STEP = 2.0, 0.02


class _Case:
    """One attempt that this node reports: its view, its newest plan row, and the state of the status write.

    `named`: the newest plan names the attempt; `described`: its Allocation has been read.
    """

    def __init__(self, row: PlanRow) -> None:
        self.head = AttemptView(Key(*row.key))
        self.row = row
        self.named = True
        self.described = False
        self.changed = VersionedCondition()
        self.direction = Direction()
        self.away: set[str] = set()
        """Nodes whose call broke off before their work had ended."""
        self.looks = 0
        self.begun_at: float | None = None
        """When this reporter learnt that all nodes have started, monotonic; None: not yet."""
        self.found: FetchedWork | None = None
        """The Allocation as read or written here last: a write tries this version first. None: it must be read."""
        self.stale = ""
        """A resourceVersion that is known to be outdated; empty: none."""


class Reporter:
    """The reporter's part of one node: keeps the attempts that name it as reporter, directs their nodes, writes Started and Finished.

    `on_direction` is called with each new direction, `queue_report` with attempts whose status is to be written, after so many seconds;
    `on_away` when nodes become reachable or unreachable.
    """

    def __init__(
        self,
        node: str,
        *,
        cluster: Cluster,
        works: WorkSource,
        clock: Clock,
        hollow: bool,
        on_direction: Callable[[Key, Direction], None],
        queue_report: Callable[[Key, float], None],
        on_away: Callable[[], None] = lambda: None,
    ) -> None:
        self.node = node
        self._cluster = cluster
        self._works = works
        self._clock = clock
        self._hollow = hollow
        self._on_direction = on_direction
        self._queue_report = queue_report
        self._on_away = on_away
        self._cases: dict[Key, _Case] = {}
        self._heard: set[Key] = set()

    # ── the plan ────────────────────────────────────────────────────────────────────────────────────────────────

    def follow_plan(self, rows: dict[Key, PlanRow]) -> None:
        """Follows the rows of the newest plan: opens attempts that name this node as reporter, and closes those that name another one.

        One that the plan names no longer is closed where its end is settled; else the write of its status is queued.
        """
        for key, row in rows.items():
            case = self._cases.get(key)
            if row.reporter != self.node:
                if case is not None:
                    self._close(key)
                continue
            if case is None:
                case = self._cases[key] = _Case(row)
            case.row, case.named = row, True
            case.head.follow_row(row)
            self._update_direction(key)
        for key in [key for key, case in self._cases.items() if key not in rows and case.named]:
            case = self._cases[key]
            case.named = False
            if case.head.settled:
                self._close(key)
            else:
                self._queue_report(key, 0.0)

    def describe(self, key: Key, found: FetchedWork) -> None:
        """Notes the attempt's Allocation as this node has read it: its walltime, where its tasks run, and the version to write at.

        Does nothing for an attempt that this node does not report.
        """
        case = self._cases.get(key)
        if case is not None:
            case.described = True
            if case.found is None or case.found.version < found.version:
                case.found = found
            spec = found.work.spec
            case.head.describe(
                on_head_only=spec.on_head_only, is_launched=spec.is_launched, walltime_seconds=walltime_of(found.work, case.row)
            )
            self._update_direction(key)

    def reports(self, key: Key) -> bool:
        """Tells whether this node is the attempt's reporter."""
        return key in self._cases

    def node_cpus(self, key: Key) -> tuple[int, ...]:
        """Returns the processors that an attempt has on each of its nodes, in rank order; empty: this node does not report it, or not all
        nodes have said it.
        """
        case = self._cases.get(key)
        members = case.head.members if case is not None else {}
        found = tuple(members[node].cpus if node in members else 0 for node in case.head.nodes) if case is not None else ()
        return found if all(found) else ()

    # ── the nodes (peers.interface.ReporterSide) ────────────────────────────────────────────────────────────────────────

    async def find_condition(self, key: Key) -> VersionedCondition | None:
        """Returns the condition of the attempt's direction, waiting up to 2 s for its plan row; None: this node does not report it."""
        waited = 0.0
        while key not in self._cases and waited < FIND_SECONDS:
            await self._clock.sleep(FIND_STEP)
            waited += FIND_STEP
        case = self._cases.get(key)
        return case.changed if case else None

    def hear(self, member: Member) -> bool:
        """Notes a node's whole state, and updates the direction once for states that arrive together.

        Returns False: this node does not report the attempt, or the sender is not of it.
        """
        case = self._cases.get(member.key)
        if case is None:
            return False
        if member.node in case.away:
            case.away.discard(member.node)
            self._on_away()
        if case.head.members.get(member.node) == member:
            return True
        if not case.head.hear(member):
            return False
        if len(case.head.nodes) == 1:
            self._update_direction(member.key)
        elif member.key not in self._heard:
            self._heard.add(member.key)
            asyncio.get_running_loop().call_soon(self._update_direction, member.key)
        return True

    def direction(self, key: Key) -> Direction | None:
        """Returns the order to all nodes of the attempt; None: this node does not report it any more."""
        case = self._cases.get(key)
        return case.direction if case else None

    def left(self, key: Key, node: str) -> None:
        """Notes that a node's call has ended; before the end of its work there the node counts as unreachable until it is heard again."""
        case = self._cases.get(key)
        member = case.head.members.get(node) if case is not None else None
        if case is not None and member is not None and member.phase not in FINAL:
            case.away.add(node)
            self._on_away()

    def away(self) -> set[str]:
        """Returns the unreachable nodes of all attempts that this node reports."""
        return {node for case in self._cases.values() for node in case.away}

    def _update_direction(self, key: Key) -> None:
        """Concludes an attempt's direction anew, tells its nodes where it has changed, and queues a write of its status unless its end is
        settled.
        """
        self._heard.discard(key)
        case = self._cases.get(key)
        if case is None:
            return
        direction = case.head.direction()
        if direction != case.direction:
            if direction.order is Order.START and case.direction.order is not Order.START:
                starts.reached(self._clock, "gather", key.uid, node=self.node)
            case.direction = direction
            case.changed.notify()
            self._on_direction(key, direction)
        if not case.head.settled:
            self._queue_report(key, 0.0)

    # ── the status ──────────────────────────────────────────────────────────────────────────────────────────────

    async def persist(self, key: Key) -> float | None:
        """Writes the attempt's verdict into the Allocation's status, if one is due; Started waits half a second so that an early end shares
        its write.

        Returns the seconds until it is to be called again, also after an error, which the fifth time is logged; None: only after a
        change. An Allocation that is gone settles the attempt.
        """
        case = self._cases.get(key)
        if case is None or case.head.settled:
            return None
        verdict = case.head.verdict()
        if isinstance(verdict, NothingYet) and case.named and (case.described or not case.head.members):
            return None
        if isinstance(verdict, Begun) and (early := self._early(case)) > 0:
            return early
        try:
            found, outcome = await self._decide(case)
            if isinstance(outcome, status.Write):
                await self._write(case, found, outcome)
        except NotFound as error:
            outcome = status.Closed(error.message)
        except Stale:
            return 0.0
        except LatticeError as error:
            return self._later(case, error.reason, error.message)
        return self._after(key, case, outcome)

    def _early(self, case: _Case) -> float:
        """Returns for how many more seconds Started waits so that it can be written together with the end; 0 or less: no longer.

        Notes the begin of the wait at the first call.
        """
        now = self._clock.monotonic()
        case.begun_at = now if case.begun_at is None else case.begun_at
        return case.begun_at + BEGUN_SECONDS - now

    async def _decide(self, case: _Case) -> tuple[FetchedWork, status.Outcome]:
        """Returns the Allocation and what to do about its status; reads it anew where the known one lacks what the scheduler writes.

        Raises NotFound where it is gone or the attempt is over, Denied, Corrupt, or Retry where no gateway answers.
        """
        if case.found is not None:
            outcome = self._outcome(case, case.found)
            if not isinstance(outcome, status.Later):
                return case.found, outcome
            case.stale = case.found.work.metadata.resource_version
        case.found = await self._works.find_work(self.node, case.row, stale=case.stale)
        if not case.described:
            self.describe(case.head.key, case.found)
        return case.found, self._outcome(case, case.found)

    def _outcome(self, case: _Case, found: FetchedWork) -> status.Outcome:
        """Returns what is to be done about an Allocation's status, by the states of the nodes now."""
        return status.decide(found.work, case.head.key, self.node, case.head.verdict(), now=self._clock.now(), hollow=self._hollow)

    async def _write(self, case: _Case, found: FetchedWork, outcome: status.Write) -> None:
        """Replaces the status at the version that was read, and keeps the answer for the next write; nodes may not patch, since a patch
        would let them read other work.

        Raises Stale and other errors of the API server; the Allocation is read anew then.
        """
        metadata = found.work.metadata
        case.found, case.stale = None, metadata.resource_version
        changed = merge(found.status, outcome.status)
        body = {"metadata": {"name": metadata.name, "namespace": metadata.namespace, "uid": metadata.uid,
                             "resourceVersion": metadata.resource_version}, "status": changed}  # fmt: skip
        written = await self._cluster.replace(
            ALLOCATIONS, metadata.name, body, metadata.namespace, subresource="status", type=Written, metadata_only=True
        )
        case.found = found.written(written.metadata, changed)

    def _after(self, key: Key, case: _Case, outcome: status.Outcome) -> float | None:
        """Follows the outcome of a write: settles an attempt whose end is written.

        Returns the seconds until it is looked at again; None: only after a change.
        """
        match outcome:
            case status.Later():
                return self._later(case, "StatusBehind", outcome.why)
            case status.Write(settles=False):
                event(log, "StartedWritten", allocation=key.uid, attempt=key.attempt, node=self.node)
            case status.Write() | status.Closed():
                why = outcome.why if isinstance(outcome, status.Closed) else "Finished was written"
                event(log, "Settled", allocation=key.uid, attempt=key.attempt, node=self.node, message=why)
                self._settle(key, case)
                return None
            case _:
                pass  # it stands there already
        case.looks = 0
        return None if case.named else RECHECK_SECONDS

    def _later(self, case: _Case, reason: str, message: str) -> float:
        """Counts a try in vain, and logs the fifth and the fiftieth; returns the seconds until the next one."""
        case.looks += 1
        if case.looks in (5, 50):
            event(log, "StatusWaits", logging.WARNING, allocation=case.head.key.uid, node=self.node, reason=reason, message=message)
        return min(LONGEST_LOOK, FIRST_LOOK * LOOKS_GROW ** min(case.looks - 1, 10))

    def _settle(self, key: Key, case: _Case) -> None:
        """Notes that an attempt's end is written, tells its nodes, and closes it where the plan names it no more."""
        case.head.settled = True
        self._update_direction(key)
        if not case.named:
            self._close(key)

    def _close(self, key: Key) -> None:
        """Reports an attempt no longer; conversations about it end."""
        self._cases.pop(key).changed.notify()
