"""The reporter's desk of one node: every attempt that its agent reports for, and the status that it persists."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from lattice.daemon.logs import event
from lattice.errors import LatticeError, NotFound, Stale
from lattice.kube.clock import Clock
from lattice.kube.cluster import Cluster
from lattice.kube.resources import ALLOCATIONS
from lattice.ledger.plans import PlanRow
from lattice.units import parse_duration
from lattice.views.work import Work as Allocation
from lattice_agent import status
from lattice_agent.bell import Bell
from lattice_agent.head import Head, Open
from lattice_agent.host.interface import Key
from lattice_agent.members import Direction, Member

log = logging.getLogger(__name__)

FIRST_LOOK, LOOKS_GROW, LONGEST_LOOK = 0.03, 3.0, 5.0
"""Seconds to the first look whether the scheduler's part of the status has come, how much longer each next one waits, and the longest:
a scheduler that is behind is not to be held up by as many reads as there are attempts."""
RECHECK_SECONDS = 10.0
FIND_SECONDS, FIND_STEP = 2.0, 0.02


class _Case:
    """One attempt at the desk."""

    def __init__(self, row: PlanRow) -> None:
        self.head = Head(Key(*row.key))
        self.row = row
        self.named = True
        self.described = False
        self.bell = Bell()
        self.said = Direction()
        self.looks = 0
        self.written: Allocation | None = None
        """The object as this desk wrote it last: the next write tries it before it reads again."""


class Reporter:
    """Collects what the nodes say, tells them what to do, and writes Started and Finished."""

    def __init__(
        self,
        node: str,
        *,
        cluster: Cluster,
        clock: Clock,
        hollow: bool,
        on_direction: Callable[[Key, Direction], None],
        say: Callable[[Key, float], None],
    ) -> None:
        self.node = node
        self._cluster = cluster
        self._clock = clock
        self._hollow = hollow
        self._on_direction = on_direction
        self._say = say
        self._cases: dict[Key, _Case] = {}
        self._heard: set[Key] = set()

    # ── the plan ────────────────────────────────────────────────────────────────────────────────────────────────

    def follow(self, rows: dict[Key, PlanRow]) -> None:
        """Takes the rows of the newest plan: attempts come to this desk, and leave it for another reporter's."""
        for key, row in rows.items():
            case = self._cases.get(key)
            if row.reporter != self.node:
                if case is not None:
                    self._close(key)
                continue
            if case is None:
                case = self._cases[key] = _Case(row)
            case.row, case.named = row, True
            case.head.follow(row)
            self._weigh(key)
        for key in [key for key, case in self._cases.items() if key not in rows and case.named]:
            case = self._cases[key]
            case.named = False
            if case.head.settled:
                self._close(key)
            else:
                self._say(key, 0.0)

    def describe(self, key: Key, found: Allocation) -> None:
        """Takes what the Allocation says about the attempt."""
        case = self._cases.get(key)
        if case is not None:
            walltime = found.spec.lifecycle.walltime
            case.described = True
            case.head.describe(on_head_only=found.spec.on_head_only, walltime_seconds=parse_duration(walltime) if walltime else None)
            self._weigh(key)

    def reports(self, key: Key) -> bool:
        """Whether the attempt is at this desk."""
        return key in self._cases

    # ── the nodes (peers.interface.Desk) ────────────────────────────────────────────────────────────────────────

    async def find(self, key: Key) -> Bell | None:
        """The attempt's bell; its plan row may come a moment later than the first node's word."""
        waited = 0.0
        while key not in self._cases and waited < FIND_SECONDS:
            await self._clock.sleep(FIND_STEP)
            waited += FIND_STEP
        case = self._cases.get(key)
        return case.bell if case else None

    def hear(self, member: Member) -> bool:
        """Takes a node's whole state; what many nodes say at once is weighed once."""
        case = self._cases.get(member.key)
        if case is None:
            return False
        if case.head.members.get(member.node) == member:
            return True
        if not case.head.hear(member):
            return False
        if len(case.head.nodes) == 1:
            self._weigh(member.key)
        elif member.key not in self._heard:
            self._heard.add(member.key)
            asyncio.get_running_loop().call_soon(self._weigh, member.key)
        return True

    def direction(self, key: Key) -> Direction | None:
        """What the nodes of the attempt are told."""
        case = self._cases.get(key)
        return case.said if case else None

    def _weigh(self, key: Key) -> None:
        self._heard.discard(key)
        case = self._cases.get(key)
        if case is None:
            return
        direction = case.head.direction()
        if direction != case.said:
            case.said = direction
            case.bell.ring()
            self._on_direction(key, direction)
        if not case.head.settled:
            self._say(key, 0.0)

    # ── the status ──────────────────────────────────────────────────────────────────────────────────────────────

    async def say(self, key: Key) -> float | None:
        """Persists the verdict; the seconds until the next look, None: when something changes."""
        case = self._cases.get(key)
        if case is None or case.head.settled:
            return None
        verdict = case.head.verdict()
        if isinstance(verdict, Open) and case.named and (case.described or not case.head.members):
            return None
        try:
            found, case.written = case.written or await self._read(case), None
            if not case.described and found.metadata.uid == key.uid:
                self.describe(key, found)
            verdict = case.head.verdict()
            outcome = status.decide(found, key, self.node, verdict, now=self._clock.now(), hollow=self._hollow)
            if isinstance(outcome, status.Write):
                case.written = await self._cluster.patch(
                    ALLOCATIONS, case.row.name, outcome.patch, case.row.namespace, subresource="status", type=Allocation
                )
        except NotFound as error:
            outcome = status.Closed(error.message)
        except Stale:
            return 0.0
        except LatticeError as error:
            return self._later(case, error.reason, error.message)
        return self._after(key, case, outcome)

    async def _read(self, case: _Case) -> Allocation:
        return await self._cluster.get(ALLOCATIONS, case.row.name, case.row.namespace, type=Allocation)

    def _after(self, key: Key, case: _Case, outcome: status.Outcome) -> float | None:
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
        case.looks += 1
        if case.looks in (5, 50):
            event(log, "StatusWaits", logging.WARNING, allocation=case.head.key.uid, node=self.node, reason=reason, message=message)
        return min(LONGEST_LOOK, FIRST_LOOK * LOOKS_GROW ** min(case.looks - 1, 10))

    def _settle(self, key: Key, case: _Case) -> None:
        case.head.settled = True
        self._weigh(key)
        if not case.named:
            self._close(key)

    def _close(self, key: Key) -> None:
        self._cases.pop(key).bell.ring()
