"""One launch, as the agent that heads its attempt runs it: all ranks start or none, output, input, signals, its end and its exit code."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import LatticeError, Retry
from lattice.launches.answers import CANCELLED, NODE_FAIL, TIMEOUT
from lattice.units import is_digits
from lattice_agent.attempts import Key
from lattice_agent.launches import client_side
from lattice_agent.launches.client_side import ClientSide
from lattice_agent.launches.fence_watch import NOTHING_OWED, FenceWatch, is_silent, silence_sentence
from lattice_agent.launches.interface import RankExchange
from lattice_agent.launches.launch_end import EndRules, describe_end, exit_code, read_note
from lattice_agent.launches.links import NodeLink
from lattice_agent.launches.node_part import NodePart
from lattice_agent.launches.record import (
    BEGUN,
    GRACE,
    KILL,
    OVER,
    STARTED,
    KeeperReport,
    KeeperState,
    LaunchRecord,
    RecordStore,
)
from lattice_agent.standalone import frames
from lattice_agent.standalone.frames import Frame, FrameError

log = logging.getLogger(__name__)

CLIENT_SECONDS = 60.0
"""How long a launch goes on without its client."""
FENCE_SECONDS = 60.0
"""How long a node that owes its part of a fence may be silent, unless the site says otherwise."""
LOOK_SECONDS = 0.5
"""How often the rules of a launch and its fences are looked at."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
KEPT_BYTES, KEPT_BYTES_OF_RANK = 4 << 20, 256 << 10
"""Most bytes of a node's frames that wait for the client, and of each of its ranks besides; its keeper itself stops at a MiB."""
KEPT_OVERHEAD = 256
"""Bytes that a frame takes beside its payload, about."""
SENTENCE = 4096
"""Most characters of a node's refusal that are passed on."""
SIGNAL_BURST, SIGNALS_PER_SECOND = 16.0, 10.0
"""How often a client may send one signal: so many at once, and so many a second; more are dropped."""
INPUT_PIECE = 4096
"""Pieces of input below this size are joined while they are kept."""
OWED_BYTES = 64 << 10
"""With so many bytes of exchange that its keeper keeps, a node is told at once that it need not; with fewer, with the next answer."""
AT_ONCE = b"\1"
"""The payload of an END without grace."""


class LaunchRun:
    """Runs one launch from its record to its end; it has one client at most, and goes on without one for a minute."""

    def __init__(
        self,
        key: Key,
        record: LaunchRecord,
        links: Sequence[NodeLink],
        *,
        store: RecordStore,
        clock: Clock,
        attempt_over: Callable[[], bool],
        on_over: Callable[[LaunchRecord], None],
        exchange: RankExchange | None = None,
        on_fence: Callable[[float], None] = lambda _: None,
        fence_seconds: Callable[[], float] = lambda: FENCE_SECONDS,
    ) -> None:
        """Calls `on_over` once no rank is left, before that is written, and `on_fence` with the seconds of each fence of several nodes.

        `exchange` None: its ranks stand on one node, or have no PMI. `fence_seconds` gives how long a node may be silent in a fence.
        """
        self.key, self.record, self.rules = key, record, EndRules()
        self.parts = [NodePart(at, places, link) for at, (places, link) in enumerate(zip(record.nodes, links, strict=True))]
        self._store, self._clock = store, clock
        self._attempt_over, self._on_over, self._exchange, self._on_fence = attempt_over, on_over, exchange, on_fence
        self._fence_begun: float | None = None
        self._fence_seconds, self._fence_watch, self._fence_failed = fence_seconds, FenceWatch(), record.result == NODE_FAIL
        self._client: ClientSide | None = None
        self._behind: deque[NodePart] = deque()
        self._starts: list[Mapping[str, Any]] | None = None
        self._described = asyncio.Event()
        self._released = asyncio.Event()
        self._abandoned = self._cut_short = self._unwritten = False
        self._told: ClientSide | None = None
        self._client_away: float | None = None
        self._end: bytes | None = {GRACE: b"", KILL: AT_ONCE}.get(record.ending)
        self._signalled: dict[int, tuple[float, float]] = {}
        self._clients_refused = 0
        self._input: deque[tuple[int, bytes]] = deque()
        self._input_taken = 0
        self._input_end: int | None = None
        self._room = -1
        self._first_end: float | None = None
        for part in self.parts:
            part.silent_since = clock.monotonic()
        for place in [place for place, report in record.done.items() if report is None]:
            self.parts[place].lost = True
            if exchange is not None:
                exchange.lose(place)

    # its life

    async def run(self) -> None:
        """Runs the launch until no rank, no keeper and no client is left.

        What was begun and not started waits for `describe`, as its client says again what is to start.
        """
        if self.record.state != BEGUN or self._end is not None:
            self._described.set()
        if self._exchange is not None:
            self._end_for_exchange(self._exchange)
        if self._client is None:
            self._watch_for_client()
        async with asyncio.TaskGroup() as group:
            timers = group.create_task(self._keep_time())
            following = [group.create_task(self._follow(part)) for part in self.parts]
            await asyncio.wait(following)
            self._conclude()
            await self._released.wait()
            timers.cancel()

    def fail_to_start(self, why: str) -> None:
        """Refuses a launch that has not begun, with this sentence; one that has begun is left as it is."""
        if self.record.state == BEGUN:
            self.record.refusal = self.record.refusal or why
            self.end_ranks(at_once=True)

    def give_up(self, why: str) -> None:
        """Concludes a launch whose nodes are heard no more: the ends of its ranks are unknown."""
        for part in self.parts:
            part.drop_kept()
            self._lose(part, why)
        self._conclude()

    async def _follow(self, part: NodePart) -> None:
        """Keeps the way to a node's keeper up until the launch is gone there, or its attempt is over."""
        await self._described.wait()
        pause = FIRST_PAUSE
        while not part.closed:
            start = self._starts[part.place] if self._starts is not None and not part.stands and self._end is None else None
            try:
                await part.link.carry(start, partial(self._receive, part))
            except Retry as error:
                if self._attempt_over():
                    self._lose(part, f"node {part.ranks.name} is away: {error.message}")
                    break
            except LatticeError as error:
                part.closed = True
                self._refuse(part, error.message)
                break
            finally:
                if part.up:
                    part.up, part.silent_since = False, self._clock.monotonic()
            await self._clock.sleep(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)

    async def _keep_time(self) -> None:
        """Ends the launch when its time is over, or some time after its first rank's end, as its rules ask, or once its client was away
        for a minute; watches its fences.
        """
        kept = False
        while True:
            await self._clock.sleep(LOOK_SECONDS)
            if self._client_away is not None and self._clock.monotonic() - self._client_away >= CLIENT_SECONDS:
                self.abandon()
            kept = kept or self._keep_rules()
            self._watch_fences()
            if self._unwritten:
                self._write()
            for part in self.parts:
                self._acknowledge(part)

    def _keep_rules(self) -> bool:
        """Ends the launch where its rules ask for that now; returns whether they did."""
        now, rules = self._clock.monotonic(), self.rules
        if rules.time_seconds is not None and self._clock.now() - self.record.begun >= rules.time_seconds:
            self._tell(f"srun: error: the launch has run for its time limit of {rules.time_seconds:g} s: it is ended")
            self.end_ranks(result=TIMEOUT, why=f"its time limit of {rules.time_seconds:g} s was over (srun --time)")
            return True
        if rules.wait_seconds is not None and self._first_end is not None and now - self._first_end >= rules.wait_seconds:
            self._tell(f"srun: the first task has ended {rules.wait_seconds:g} s ago: the others are ended")
            self.end_ranks(why=f"its first task had ended {rules.wait_seconds:g} s before (srun --wait)")
            return True
        return False

    def _watch_fences(self) -> None:
        """Ends the launch where a node is silent for too long in a fence, and has nodes name the ranks that others wait for."""
        if self._exchange is None or self.record.state == OVER:
            return
        now, seconds = self._clock.monotonic(), self._fence_seconds()
        if self._fence_failed:
            self._give_up_parts([part for part in self.parts if is_silent(part) and now - part.silent_since >= seconds])
            return
        owed = self._exchange.owed if self._end is None else NOTHING_OWED
        self._fence_watch.note_fences(owed, now)
        if silent := self._fence_watch.silent_parts(self.parts, owed, now, seconds):
            self._fence_failed, sentence = True, silence_sentence(silent, seconds)
            self._tell(f"srun: error: {sentence}: the launch is ended")
            self.end_ranks(at_once=True, result=NODE_FAIL, why=sentence)
            self._give_up_parts(silent)
            return
        for part, kind, number in self._fence_watch.late_parts(self.parts, owed, now, seconds):
            part.link.send(Frame(frames.EXCHANGED, self._exchange.ask_for_late(kind, number, seconds)))

    def _give_up_parts(self, parts: Sequence[NodePart]) -> None:
        """Waits for the ends of ranks on silent nodes no more; they are ended there as soon as the nodes are heard again."""
        for part in parts:
            part.lost = True
            self.record.done.setdefault(part.place, None)
        if parts:
            self._over_or_write()

    # what nodes say

    def _receive(self, part: NodePart, frame: Frame) -> None:
        """Takes one frame of a node's keeper; one that is malformed is dropped, and the first of a node logged.

        Raises Retry for output that the keeper should have held back: the way goes up again once the client has had some.
        """
        if frame.kind in (frames.OUTPUT, frames.ENDED) and part.kept_bytes > KEPT_BYTES + KEPT_BYTES_OF_RANK * len(part.ranks.ranks):
            raise Retry(f"node {part.ranks.name} sends output that nobody has asked for", reason="NodeAway")
        try:
            self._take(part, frame)
        except (FrameError, ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
            if part.malformed:
                return
            part.malformed = True
            event(
                log, "FrameRefused", logging.WARNING, allocation=self.key.uid, attempt=self.key.attempt, node=part.ranks.name,
                launch=self.record.number, message=str(error),
            )  # fmt: skip

    def _take(self, part: NodePart, frame: Frame) -> None:
        """Takes one frame of a node's keeper; raises FrameError or ValueError for a malformed one."""
        match frame.kind:
            case frames.STATE:
                self._stands(part, msgspec.json.decode(frame.payload, type=KeeperState))
            case frames.STARTED if frame.payload:
                self._refuse(part, frame.payload.decode(errors="replace"))
            case frames.OUTPUT:
                output = frames.decode_output(frame.payload)
                if len(output.data) > frames.OUTPUT_BYTES:
                    raise FrameError(f"{len(output.data)} bytes of output, where {frames.OUTPUT_BYTES} are the most")
                self._keep(part, output.number, frames.OUTPUT, frames.encode_output(_placed(output, part.place)))
            case frames.ENDED:
                self._rank_ended(part, frames.decode_ended(frame.payload))
            case frames.EXCHANGE:
                self._exchanged(part, *frames.decode_numbered(frame.payload))
            case frames.KEEPER_SAY:
                self._tell(frame.payload.decode(errors="replace"))
            case frames.ROOM:
                part.room = frames.decode_room(frame.payload)
                self._give_room()
            case frames.DONE:
                self._done(part, *frames.decode_numbered(frame.payload))
            case frames.REFUSED:
                part.closed = True
                self._refuse(part, frame.payload[1:].decode(errors="replace") or "it says not why")
            case frames.CLOSED:
                self._closed(part, frame.payload)
            case _:
                pass  # of a newer keeper

    def _stands(self, part: NodePart, state: KeeperState) -> None:
        """Brings a keeper up to date to which the way stands anew: its order to begin or end, signals, input, exchange, what was had."""
        part.stands = part.up = True
        if state.room is not None:
            part.room = state.room
        if self._exchange is not None and state.frames:  # one that has sent nothing yet has nothing to send again
            part.link.send(Frame(frames.EXCHANGED, self._exchange.again()))
        if self.record.state == STARTED:
            part.link.send(Frame(frames.GO, b""))
        elif all(each.stands for each in self.parts) and self._end is None:
            self._begin()
        while part.signals:
            part.link.send(Frame(frames.SIGNAL, frames.encode_signal(part.signals.popleft())))
        if self._end is not None:
            part.link.send(Frame(frames.END, self._end))
        for offset, data in self._input:
            part.link.send(Frame(frames.INPUT, frames.encode_input(offset, data)))
        if self._input_end is not None:
            part.link.send(Frame(frames.INPUT, frames.encode_input(self._input_end, b"")))
        if part.acknowledged:
            part.link.send(Frame(frames.HAD, frames.encode_had(0, part.acknowledged)))
        self._give_room()

    def _begin(self) -> None:
        """Tells all keepers to begin, once every one of them has its ranks ready."""
        self.record.state = STARTED
        self._starts = None  # nobody starts it again
        self._write()
        for part in self.parts:
            part.link.send(Frame(frames.GO, b""))

    def _keep(self, part: NodePart, number: int, kind: int, payload: bytes) -> None:
        """Keeps a frame for the client until it has acknowledged it, and sends it; one that was seen before is dropped."""
        if number <= part.seen:
            return
        part.seen = number
        if self._abandoned or part.lost or number <= part.had:
            self._acknowledge(part)
            return
        entry = number, Frame(kind, payload)
        part.kept.append(entry)
        part.kept_bytes += len(payload) + KEPT_OVERHEAD
        if self._client is None:
            return
        if not part.unsent:
            self._behind.append(part)
        part.unsent.append(entry)
        self._send_kept()

    def _send_kept(self) -> None:
        """Sends the client what it has not been sent, a frame of each node in turn, until it has enough to read."""
        while self._behind and self._client is not None and not self._client.is_full:
            part = self._behind.popleft()
            if part.unsent:
                _, frame = part.unsent.popleft()
                self._client.send(frame.kind, frame.payload)
            if part.unsent:
                self._behind.append(part)

    def _rank_ended(self, part: NodePart, ended: frames.RankEnded) -> None:
        """Passes a rank's end on, and ends the others where that is asked for."""
        if ended.number <= part.seen:
            return
        if ended.rank not in part.ended:
            part.ended.add(ended.rank)
            if self._first_end is None:
                self._first_end = self._clock.monotonic()
            if ended.code and ended.number > part.had and self._end is None and not self.rules.quiet:
                self._tell(f"srun: error: {part.ranks.name}: task {ended.rank}: {describe_end(ended.code, ended.signal)}")
            if ended.code and self.rules.kill_on_bad_exit and self._end is None:
                self._tell("srun: error: a task has failed, and --kill-on-bad-exit is set: the launch is ended")
                self.end_ranks(why=f"task {ended.rank} failed (srun --kill-on-bad-exit)")
        placed = frames.RankEnded(part.place, ended.number, ended.rank, ended.code, ended.signal)
        self._keep(part, ended.number, frames.ENDED, frames.encode_ended(placed))

    def _exchanged(self, part: NodePart, number: int, payload: bytes) -> None:
        """Gives a node's message to the exchange of ranks, and sends what comes of it; ends the launch at once where that fails."""
        new = number > part.seen
        part.seen = max(number, part.seen)
        if self._exchange is None:
            self._acknowledge(part)
            return
        fences = self._exchange.fences
        for place, answer in self._exchange.receive(part.place, payload):
            self.parts[place].link.send(Frame(frames.EXCHANGED, answer))
            self._acknowledge(self.parts[place])  # goes with the answer: one message to the node, not two
        part.owed_bytes += len(payload) if new else 0
        if part.owed_bytes > OWED_BYTES:
            self._acknowledge(part)
        self._time_fence(self._exchange, fences)
        self._end_for_exchange(self._exchange)

    def _time_fence(self, exchange: RankExchange, before: int) -> None:
        """Measures a fence from its first node's message to its end; `before`: how many had ended before the last message."""
        now = self._clock.monotonic()
        if exchange.fences > before and self._fence_begun is not None:
            self._on_fence(now - self._fence_begun)
            self._fence_begun = None
        if exchange.is_waiting and self._fence_begun is None:
            self._fence_begun = now

    def _end_for_exchange(self, exchange: RankExchange) -> None:
        """Ends the launch at once, with the reason, where the ranks' exchange has failed."""
        if exchange.failure is not None and self._end != AT_ONCE:
            self._tell(f"srun: error: {exchange.failure.sentence}")
            self.end_ranks(at_once=True, why=exchange.failure.sentence)

    def _done(self, part: NodePart, number: int, body: bytes) -> None:
        """Notes what a keeper reports once all its ranks have ended."""
        if number <= part.seen:
            return
        report = msgspec.json.decode(body, type=KeeperReport)
        if len(report.ranks) > len(part.ranks.ranks):
            raise FrameError(f"a report of {len(report.ranks)} ranks, where there are {len(part.ranks.ranks)}")
        part.seen, part.done = number, number
        self.record.done[part.place] = msgspec.to_builtins(report)
        if report.failure and not part.lost:
            self._refuse(part, report.failure)
        if self._stays(part) and self._is_left():
            self._unwritten = True  # its keeper tells it again to an agent that is started again before
        else:
            self._over_or_write()
        self._acknowledge(part)

    def _closed(self, part: NodePart, body: bytes) -> None:
        """Notes that a launch is removed on a node; ranks of which nobody knows the end were killed with their keeper."""
        part.closed = True
        if part.done or part.place in self.record.done:
            self._conclude()
            return
        noted = read_note(body)
        self.record.done[part.place] = noted
        if noted is None and not self.record.refusal:
            self._tell(f"srun: error: {part.ranks.name}: the process that kept the tasks was killed, and they with it")
        if noted is None and self._exchange is not None:
            self._exchange.lose(part.place)
            self._end_for_exchange(self._exchange)
        self._over_or_write()

    def _lose(self, part: NodePart, why: str) -> None:
        """Gives a node up that cannot be reached any more: its attempt is over."""
        part.closed = True
        if part.done:
            return
        if part.place not in self.record.done:
            self.record.done[part.place] = None
            self._tell(f"srun: error: {why}")
        self._over_or_write()

    def _refuse(self, part: NodePart, sentence: str) -> None:
        """Ends a launch that cannot start, because of this node."""
        sentence = sentence[:SENTENCE]
        if not self.record.refusal:
            named = len(self.parts) > 1 and part.ranks.name not in sentence
            self.record.refusal = f"node {part.ranks.name}: {sentence}" if named else sentence
            self.end_ranks(at_once=True)
        self._over_or_write()

    def _over_or_write(self) -> None:
        """Concludes the exit code once no rank is left, and writes the record."""
        if self.record.state != OVER and not self._is_left():
            self.record.state, self.record.ended = OVER, self._clock.now()
            self.record.code = exit_code(self.record)
            self._on_over(self.record)
            self._write()
            for part in self.parts:
                self._acknowledge(part)
            self._conclude()
        elif self.record.state != OVER:
            self._write()

    def _is_left(self) -> bool:
        """Tells whether a rank may be left."""
        return not all(part.over for part in self.parts)

    def _write(self) -> None:
        """Writes the record; one that cannot be written is logged: only a restart of the agent needs it."""
        self._unwritten = False
        try:
            self._store.keep_record(self.record)
        except OSError as error:
            event(log, "LaunchNotNoted", logging.WARNING, allocation=self.key.uid, launch=self.record.number, message=str(error))

    def _acknowledge(self, part: NodePart) -> None:
        """Tells a keeper which frames it needs to keep no longer: those before the first that the client has not had.

        With that of its end it goes: where ranks of other nodes may still need what it knows, it stays until all are over.
        """
        if self._stays(part):
            return
        number = part.kept[0][0] - 1 if part.kept else part.seen
        if number > part.acknowledged:
            part.acknowledged, part.owed_bytes = number, 0
            part.link.send(Frame(frames.HAD, frames.encode_had(0, number)))

    def _stays(self, part: NodePart) -> bool:
        """Tells whether a keeper whose ranks have ended stays, with its report, until those of all nodes have."""
        return part.done > 0 and self._exchange is not None and self.record.state != OVER

    # the client

    async def attend(self, client: ClientSide, *, had: Mapping[int, int], interrupts: int = 0) -> None:
        """Serves a client until it leaves; `had`: by place, the last frame that it has written out. It takes an older client's place."""
        if self._client is not None:
            self._client.cut_off()
        self._client, self._room, self._client_away = client, -1, None
        client.limit(client_side.NEWS_BYTES)
        client.drained = self._send_kept
        client.send(frames.ACCEPTED, frames.encode_accepted(self.record.number, len(self.parts), interrupts))
        for part in self.parts:
            self._had(part, had.get(part.place, 0))
            part.unsent = part.kept.copy()
        self._behind = deque(part for part in self.parts if part.unsent)
        self._send_kept()
        self._give_room()
        self._conclude()
        try:
            while (heard := await client.next_frame()) is not None:
                self._hear(heard)
        except FrameError as error:
            self._clients_refused += 1
            if self._clients_refused == 1:
                event(log, "ClientRefused", allocation=self.key.uid, launch=self.record.number, message=str(error))
            client.cut_off()
        finally:
            client.drained = None  # nor does either keep the other from being freed
            if self._client is client:
                self._client = None
                self._client_left(client)

    def describe(self, starts: list[Mapping[str, Any]]) -> None:
        """Is told what each node is to start; again where the launch was begun and not started before the agent was started again."""
        if self._starts is None and not self._described.is_set():
            self._starts = starts
            self._described.set()

    def _hear(self, frame: Frame) -> None:
        """Takes one frame of the client; raises FrameError for a malformed one, and for input beyond the room that it was given."""
        match frame.kind:
            case frames.INPUT:
                self._take_input(*frames.decode_input(frame.payload))
            case frames.SIGNAL:
                self.send_signal(frames.decode_signal(frame.payload))
            case frames.HAD:
                place, number = frames.decode_had(frame.payload)
                if place < len(self.parts):
                    self._had(self.parts[place], min(number, self.parts[place].sent))
                self._conclude()
            case frames.OPENED:
                if frames.decode_opened(frame.payload)[1]:
                    self.end_ranks()
            case _:
                raise FrameError(f"no frame of a client: {frame.kind}")

    def _had(self, part: NodePart, number: int) -> None:
        """Drops the frames of a node up to this number, which the client has written out."""
        part.had = max(part.had, number)
        while part.kept and part.kept[0][0] <= part.had:
            part.kept_bytes -= len(part.kept.popleft()[1].payload) + KEPT_OVERHEAD
        self._acknowledge(part)

    def send_signal(self, number: int) -> None:
        """Sends a signal to all ranks, unless it comes too often; the first of each number is logged.

        Those of a node that is not heard now get it with the next word from there, and nobody twice. The TERM that reaches srun because its
        attempt is being ended goes no further: each node's agent sends its ranks their own.
        """
        if number == signal.SIGTERM and self._store.is_closed():
            return
        now = self._clock.monotonic()
        room, at = self._signalled.get(number, (SIGNAL_BURST, now))
        room = min(SIGNAL_BURST, room + (now - at) * SIGNALS_PER_SECOND)
        first, allowed = number not in self._signalled, room >= 1
        self._signalled[number] = room - allowed, now
        if not allowed:
            return
        with suppress(ValueError):
            if first:
                event(log, "LaunchSignalled", allocation=self.key.uid, launch=self.record.number, message=signal.Signals(number).name)
        for part in self.parts:
            if part.up:
                part.link.send(Frame(frames.SIGNAL, frames.encode_signal(number)))
            else:
                part.signals.append(number)

    def end_ranks(self, *, at_once: bool = False, result: str = "", why: str = "") -> None:
        """Ends all ranks: TERM, grace, KILL, or KILL at once; the first order says `why`, and the `result` (empty: that of its ranks)."""
        if why and not self.record.why and self.record.state != OVER:
            self.record.result, self.record.why = result, why[:SENTENCE]
        self._end = AT_ONCE if at_once else (self._end or b"")
        ending = KILL if self._end else GRACE
        if self.record.ending != ending and self.record.state != OVER:
            self.record.ending = ending
            self._write()  # an agent that is started again ends them, too
        self._starts = None  # nobody starts it any more
        self._described.set()
        for part in self.parts:
            part.link.send(Frame(frames.END, self._end))

    def _takers(self) -> list[NodePart]:
        """Returns the nodes whose ranks take the client's input and have not ended."""
        wanted = self.record.input
        return [
            part for part in self.parts if not part.over and (wanted == "all" or (is_digits(wanted) and int(wanted) in part.ranks.ranks))
        ]

    def _give_room(self) -> None:
        """Tells the client up to which offset every node has room for its input, where that has grown."""
        takers = self._takers()
        if self._client is None or not takers or any(part.room is None for part in takers):
            return
        room = min(part.room or 0 for part in takers)
        while self._input and self._input[0][0] + len(self._input[0][1]) <= room - frames.INPUT_WINDOW:
            self._input.popleft()
        if room > self._room:
            self._room = room
            self._client.send(frames.ROOM, frames.encode_room(room))

    def _take_input(self, offset: int, data: bytes) -> None:
        """Passes input on to the nodes that take it, and keeps it until all have it; raises FrameError for more than there is room for."""
        if offset + len(data) > max(self._room, 0):
            raise FrameError(f"input up to {offset + len(data)}, where there is room up to {max(self._room, 0)}")
        begin, last = max(offset, self._input_taken), not data
        offset, data = begin, data[begin - offset :]
        if self._input_end is not None or not (data or last):
            return  # it was passed on before, and is sent again wherever a way breaks
        if last:
            self._input_end = offset
        else:
            self._keep_input(offset, data)
        for part in self._takers():
            part.link.send(Frame(frames.INPUT, frames.encode_input(offset, data)))

    def _keep_input(self, offset: int, data: bytes) -> None:
        """Keeps input until all nodes have it, small pieces joined."""
        self._input_taken = offset + len(data)
        before, piece = self._input[-1] if self._input else (0, b"")
        if self._input and before + len(piece) == offset and len(piece) + len(data) <= INPUT_PIECE:
            self._input[-1] = before, piece + data
        else:
            self._input.append((offset, data))

    def _tell(self, text: str) -> None:
        """Sends lines for people to the client's standard error, unless none is there."""
        if self._client is not None:
            self._client.say(text)

    def _conclude(self) -> None:
        """Sends the exit code once no rank is left and the client has had everything; releases a launch that nobody waits for."""
        if self.record.state != OVER or not all(part.over for part in self.parts):
            return
        if self._client is not None and self._told is not self._client and not any(part.kept for part in self.parts):
            self._told = self._client
            code, why = self.conclusion
            self._client.send(frames.REFUSED if why else frames.FINISHED, frames.encode_refused(code, why))
            self._client.close()
        if self._abandoned:
            self._released.set()

    @property
    def conclusion(self) -> tuple[int, str]:
        """Returns the exit code of a launch that is over, and why it has no other; empty: its ranks have ended by themselves, and what they
        have written was passed on.
        """
        if self._cut_short and not self.record.refusal:
            return self.record.code or 1, f"the launch was ended: its srun was away for {CLIENT_SECONDS:g} s; start it again"
        return self.record.code, self.record.refusal

    def _client_left(self, client: ClientSide) -> None:
        """Ends the launch of a client whose process has gone; else waits for it to come again."""
        if self._told is client:
            self._released.set()  # all that it was told is written
        if self._released.is_set():
            return
        if client.is_gone:
            self.abandon()
        else:
            self._watch_for_client()

    def _watch_for_client(self) -> None:
        """Gives the launch up if no client has come for a minute, counted from now."""
        self._client_away = self._clock.monotonic()

    def cancel(self, why: str) -> None:
        """Ends the launch as somebody asks for it: TERM, grace, KILL; its client is told."""
        event(log, "LaunchCancelled", allocation=self.key.uid, attempt=self.key.attempt, launch=self.record.number, message=why)
        self._tell(f"srun: error: the launch was {why}")
        self.end_ranks(result=CANCELLED, why=why)

    def abandon(self) -> None:
        """Ends a launch whose client has gone for good: TERM, grace, KILL, and nobody gets its output."""
        if self._abandoned or self._released.is_set():
            return
        self._abandoned = True
        unread = any(frame.kind == frames.OUTPUT for part in self.parts for _, frame in part.kept)
        self._cut_short = unread or self.record.state != OVER
        event(log, "LaunchAbandoned", allocation=self.key.uid, attempt=self.key.attempt, launch=self.record.number)
        if self.record.state != OVER:
            self.end_ranks(result=CANCELLED, why="its srun has ended before it, or was away")
        for part in self.parts:
            part.drop_kept()
            self._acknowledge(part)
        self._conclude()


def _placed(output: frames.Output, place: int) -> frames.Output:
    """Returns output with the place of its node in the launch."""
    return frames.Output(place, output.number, output.stream, output.rank, output.data)
