"""Carries out the state machine's instructions, one of an attempt after the other, and posts the events that answer them."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

from lattice.daemon.logs import event
from lattice.errors import LatticeError, NotFound, Rejected, Retry, Stale
from lattice.ledger.plans import RUN, PlanRow
from lattice.models.conditions import SOFTWARE_REFUSED
from lattice.views.cluster import ConfigSpec
from lattice.views.work import Work as Allocation
from lattice_agent.attempts import Key, NodeWork, Ordered, Running, Seen
from lattice_agent.cluster.work_source import FetchedWork, WorkSource
from lattice_agent.host.interface import Host
from lattice_agent.lifecycle import events, instructions
from lattice_agent.lifecycle.events import Event
from lattice_agent.lifecycle.instructions import Instruction
from lattice_agent.work import assignment

log = logging.getLogger(__name__)

FIRST_RETRY = 0.1
LONGEST_RETRY = 2.0
LONGEST_EPILOGUE_RETRY = 15.0
REFUSALS = frozenset({"StartFailed", "NodeUnfit", "PrologueFailed", "UserUnknown", "UserRefused", *SOFTWARE_REFUSED})
"""Reasons of END_REASONS with which a host refuses a start."""
NODE_KEY = Key("-", 0)
"""The key under which instructions are queued that concern no attempt."""


class Effects:
    """Carries out the instructions of one node through gateway and host; an instruction is repeated until it succeeds or is refused."""

    def __init__(
        self,
        node: str,
        *,
        host: Host,
        config: Callable[[], ConfigSpec],
        works: WorkSource,
        row_of: Callable[[Key], PlanRow | None],
        awaits: Callable[[Key], bool],
        post: Callable[[Event], None],
        on_read: Callable[[Key, FetchedWork], None],
        node_cpus: Callable[[Key], tuple[int, ...]] = lambda _: (),
    ) -> None:
        """Asks `node_cpus`, at a start, for the processors of each node of the attempt; empty: not all are known."""
        self.node = node
        self._node_cpus = node_cpus
        self._host = host
        self._config = config
        self._works = works
        self._row_of = row_of
        self._awaits = awaits
        self._post = post
        self._on_read = on_read
        self._pending: dict[Key, deque[Instruction]] = {}
        self._objects: dict[Key, Allocation] = {}
        self._rows: dict[Key, PlanRow] = {}
        self._assigned: dict[Key, NodeWork] = {}
        self._private: dict[Key, Mapping[str, str]] = {}
        """Values of Secrets, from the reading to the start; a restart of the agent asks for them again."""
        self._tries: dict[Key, int] = {}
        self._going: dict[Key, asyncio.Timeout] = {}
        """Preparations and starts that are under way: their deadline is moved to now where the work is to end."""
        self.unclean: dict[Key, str] = {}
        """Why an epilogue has not come to its end, by attempt."""
        self.unserved: set[Key] = set()
        """What no gateway has given this node, though it was asked."""

    def put(self, instruction: Instruction) -> Key:
        """Appends an instruction to the queue of its attempt and returns that queue's key; an order to end interrupts a preparation or
        start.
        """
        key = NODE_KEY if isinstance(instruction, instructions.Remember) else instruction.key
        self._pending.setdefault(key, deque()).append(instruction)
        if isinstance(instruction, instructions.Terminate) and key in self._going:
            self._going[key].reschedule(asyncio.get_running_loop().time())
        return key

    async def carry_out(self, key: Key) -> float | None:
        """Carries out the queued instructions of a key in order; returns the seconds until a failed one is repeated, None: all are done.

        A refused one is answered by an event and not repeated; nor is a TERM that fails, since KILL follows it.
        """
        line = self._pending.get(key)
        while line:
            delay = await self._carry_out_one(line[0])
            if delay is not None:
                return delay
            line.popleft()
            self._tries.pop(key, None)
        self._pending.pop(key, None)
        return None

    async def _carry_out_one(self, instruction: Instruction) -> float | None:
        """Carries out one instruction; returns the seconds until it is repeated, None: it is done, answered by an event, or void because
        the attempt is to end or no plan names it.

        A TERM that fails is logged and not repeated.
        """
        match instruction:
            case instructions.Read():
                return await self._read(instruction.key)
            case instructions.Prepare() | instructions.Start() if self._is_to_end(instruction.key):
                pass  # nothing is begun that is to end
            case instructions.Prepare():
                await self._prepare(instruction.key)
            case instructions.Start():
                return await self._start(instruction.key)
            case instructions.Clear():
                return await self._clear(instruction.key)
            case instructions.Terminate():
                return await self._end(instruction.key, "terminate", instruction.order)
            case instructions.Signal():
                await self._signal(instruction)
            case instructions.Kill():
                return await self._end(instruction.key, "kill")
            case instructions.Forget():
                return await self._forget(instruction)
            case instructions.Remember():
                return await self._remember(instruction.seen)
        return None

    async def _remember(self, seen: Seen) -> float | None:
        """Has the host keep the newest plan's seq; returns the seconds until another try, None: it is kept."""
        try:
            await self._host.remember(seen)
        except LatticeError as error:
            return self._again(NODE_KEY, "SeqNotKept", error)
        return None

    async def _read(self, key: Key) -> float | None:
        """Reads the attempt's Allocation from a gateway and posts its terms, or Refused where it is gone, malformed, or its Secrets cannot
        be had.

        Returns the seconds until another try where no gateway answers, or one denies it or gives no Allocation; None: done, or no plan
        names the attempt. An attempt that no gateway answers for is `unserved` until one does.
        """
        row = self._row_of(key)
        if row is None:
            return None  # no plan names it now; the next one that does asks again
        try:
            found = await self._works.find_work(self.node, row, variables=row.order == RUN and self._awaits(key))
            terms = assignment.terms_of(found.work, self.node, row.head, self._config())
        except (NotFound, Rejected) as error:
            self.unserved.discard(key)
            self._post(events.Refused(key, "StartFailed", error.message))
            return None
        except LatticeError as error:
            if isinstance(error, Retry):
                self.unserved.add(key)
            return self._again(key, "WorkUnread", error)
        self.unserved.discard(key)
        self._objects[key], self._rows[key] = found.work, row
        self._on_read(key, found)
        if found.refusal:
            self._post(events.Refused(key, "StartFailed", found.refusal))
            return None
        self._private[key] = found.variables or {}
        self._post(events.TermsRead(key, terms))
        return None

    def _is_to_end(self, key: Key) -> bool:
        """Tells whether an order to end the attempt is queued."""
        return any(isinstance(waiting, instructions.Terminate) for waiting in self._pending.get(key, ()))

    @asynccontextmanager
    async def _interruptible(self, key: Key) -> AsyncIterator[None]:
        """Lets `put` interrupt the block where an order to end the attempt comes; raises TimeoutError at the block's end where it did."""
        try:
            async with asyncio.timeout(None) as self._going[key]:
                yield
        finally:
            del self._going[key]

    async def _prepare(self, key: Key) -> None:
        """Has the host prepare the attempt, and posts how that ended: Prepared, Refused, Recalled or Vanished; nothing where it was
        interrupted.
        """
        try:
            work = assignment.assign(self._objects[key], self._rows[key], self.node, self._config())
            async with self._interruptible(key):
                await self._host.prepare(work)
        except TimeoutError:
            event(log, "PrologueInterrupted", allocation=key.uid, attempt=key.attempt, node=self.node)
        except Stale as error:
            known = await self._host.recall(key)
            self._post(events.Recalled(known) if known is not None else events.Vanished(key, error.message))
        except LatticeError as error:
            self._refuse(key, error)
        else:
            self._assigned[key] = work
            self._post(events.Prepared(key))

    async def _start(self, key: Key) -> float | None:
        """Has the host start the attempt, and posts Started or Refused, nothing where it was interrupted; drops the values of Secrets then.

        Returns the seconds until another try, for which these are kept, where the host cannot tell; None: done.
        """
        try:
            async with self._interruptible(key):
                work = replace(self._assigned[key], node_cpus=self._node_cpus(key))
                running: Running = await self._host.start(work, self._private.get(key, {}))
        except TimeoutError:
            event(log, "StartInterrupted", allocation=key.uid, attempt=key.attempt, node=self.node)
        except Retry as error:
            return self._again(key, "StartUndecided", error)
        except LatticeError as error:
            self._refuse(key, error)
        else:
            self._post(events.Started(key, running))
        self._private.pop(key, None)
        return None

    def _refuse(self, key: Key, error: LatticeError) -> None:
        """Logs why an attempt cannot be prepared or started, and posts Refused; a reason that is not one of refused starts becomes
        StartFailed.
        """
        reason = error.reason if error.reason in REFUSALS else "StartFailed"
        self._warn("StartRefused", key, error)
        self._post(events.Refused(key, reason, error.message))

    async def _end(self, key: Key, how: str, order: Ordered | None = None) -> float | None:
        """Has the host send TERM (with an `order`) or KILL (None); posts Missed where TERM found nothing to end.

        Returns the seconds until another try of a KILL that failed; None: done, or TERM failed, which is logged.
        """
        event(log, "Ending", allocation=key.uid, attempt=key.attempt, node=self.node, how=how)
        try:
            if order is None:
                await self._host.kill(key)
            elif not await self._host.terminate(key, order):
                self._post(events.Missed(key))
        except LatticeError as error:
            if how == "kill":
                return self._again(key, "KillFailed", error)
            self._warn("TerminateFailed", key, error)
        return None

    async def _signal(self, order: instructions.Signal) -> None:
        """Has the host send the signal before the end; one that cannot be noted, and so is not sent, is logged and not repeated: TERM must
        not wait for it.
        """
        key = order.key
        try:
            reached = await self._host.send_signal(key, order.signal)
        except LatticeError as error:
            self._warn("SignalNotSent", key, error)
        else:
            event(log, "Signalled", allocation=key.uid, attempt=key.attempt, node=self.node, signal=order.signal.name, reached=reached)

    async def _clear(self, key: Key) -> float | None:
        """Has the host undo what was prepared, and posts Cleared; returns the seconds until another try, None: it is undone."""
        try:
            await self._host.clear(key)
        except LatticeError as error:
            self.unclean[key] = error.message
            return self._again(key, "EpilogueFailed", error, longest=LONGEST_EPILOGUE_RETRY)
        self.unclean.pop(key, None)
        self._post(events.Cleared(key))
        return None

    async def _forget(self, order: instructions.Forget) -> float | None:
        """Has the host drop a settled attempt, and drops it from memory; returns the seconds until another try, None: it is dropped."""
        key = order.key
        try:
            await self._host.forget(key, seq=order.seq)
        except NotFound:
            pass  # forgotten already
        except LatticeError as error:
            return self._again(key, "ForgetFailed", error)
        self.drop_attempt(key)
        return None

    def drop_attempt(self, key: Key) -> None:
        """Drops everything that is kept in memory of an attempt, except its queued instructions."""
        self.unserved.discard(key)
        self.unclean.pop(key, None)
        self._objects.pop(key, None)
        self._rows.pop(key, None)
        self._private.pop(key, None)
        self._assigned.pop(key, None)

    def _again(self, key: Key, message: str, error: LatticeError, *, longest: float = LONGEST_RETRY) -> float:
        """Counts a failed try of an instruction, and logs the first; returns the seconds until the next, doubled up to `longest`."""
        tries = self._tries[key] = self._tries.get(key, 0) + 1
        if tries == 1:
            self._warn(message, key, error)
        return min(longest, FIRST_RETRY * 2.0 ** min(tries - 1, 10))

    def _warn(self, message: str, key: Key, error: LatticeError) -> None:
        """Logs a failure of an attempt's instruction, with reason and sentence of the error."""
        why = error.message
        event(log, message, logging.WARNING, allocation=key.uid, attempt=key.attempt, node=self.node, reason=error.reason, message=why)
