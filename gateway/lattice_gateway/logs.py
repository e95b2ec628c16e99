"""Merges the output of an allocation into one stream: all nodes of an attempt at a time, attempt after attempt.

Records are written batch by batch to a sink that returns when the reader has room: a slow reader slows the agents down, and nothing piles
up here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import Final

from lattice.errors import Denied, LatticeError, NotFound, Retry
from lattice.kube.clock import Clock
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Change, Informer
from lattice.kube.resources import ALLOCATIONS
from lattice.rpc.v1 import agent_pb2 as pb
from lattice.views import Allocation
from lattice_gateway.agents import OUT_OF_SERVICE, Agents
from lattice_gateway.attempts import Target, following, is_live, is_over, limit_to
from lattice_gateway.lines import OutputLines, Record
from lattice_gateway.query import ALL_LINES, Query

Sink = Callable[[list[Record]], Awaitable[None]]

READERS_AT_A_TIME: Final = 64
"""Nodes that are read at a time when the output is not followed."""
PATIENCE_SECONDS: Final = 60.0
"""How long an agent of a running attempt may be silent until its node is given up."""
LAST_PATIENCE_SECONDS: Final = 10.0
"""How long an agent may be silent once the attempt has ended."""
PART_SECONDS: Final = 1.0
"""How long an unfinished line waits for its end before it is sent as a part."""
CHECK_SECONDS: Final = 10.0
"""Silence of a stream after which its node's state is checked."""
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 2.0


class AllocationState:
    """The newest known state of one allocation, None: it is deleted; `changed` is set at each change."""

    def __init__(self, allocation: Allocation | None) -> None:
        self.allocation = allocation
        self.changed = asyncio.Event()

    def tell(self, allocation: Allocation | None) -> None:
        """Replaces the state, and sets `changed`."""
        self.allocation = allocation
        self.changed.set()


class NodeReader:
    """Reads one node's output of one attempt to its end, over reconnects, into the sink."""

    def __init__(self, agents: Agents, clock: Clock, level: AllocationState, sink: Sink, query: Query) -> None:
        self._agents = agents
        self._clock = clock
        self._level = level
        self._sink = sink
        self._query = query

    async def read(self, uid: str, node: str, attempt: int) -> None:
        """Writes one node's output of an attempt to the sink until it is complete, or the node is given up.

        A node that is given up is the last record (`gone`, with the reason).
        """
        lines, pause = OutputLines(node), FIRST_PAUSE
        heard = self._clock.monotonic()
        while True:
            position = lines.position
            failure = await self._connection(self._request(uid, attempt, lines), lines, attempt)
            if failure is None:
                await self._sink(lines.finish())
                return
            if lines.position != position:
                heard, pause = self._clock.monotonic(), FIRST_PAUSE
            if self._given_up(failure, node, attempt, self._clock.monotonic() - heard):
                await self._sink([*lines.finish(), {"node": node, "gone": failure.message}])
                return
            await self._clock.sleep(pause)
            pause = min(LONGEST_PAUSE, pause * 2)

    def _request(self, uid: str, attempt: int, lines: OutputLines) -> pb.ReadLogsRequest:
        """Returns the request for a node's output from where its lines were read to; the first one has the query's tail."""
        lines.resume()
        return pb.ReadLogsRequest(
            uid=uid,
            attempt=attempt,
            stream=self._query.stream,
            follow=self._query.follow,
            tail_lines=ALL_LINES if lines.begun else self._query.tail,
            since=max(self._query.since, lines.position),
        )

    def _given_up(self, failure: LatticeError, node: str, attempt: int, silent_seconds: float) -> bool:
        """Tells whether a node's output is given up after a failure: at once unless it is followed, may be read, and the node is in
        service; else after a time, which is shorter once the attempt has ended.
        """
        if not self._query.follow or isinstance(failure, Denied) or self._out_of_service(node):
            return True
        if is_live(self._level.allocation, attempt):
            return not isinstance(failure, NotFound) and silent_seconds >= PATIENCE_SECONDS
        return isinstance(failure, NotFound) or silent_seconds >= LAST_PATIENCE_SECONDS

    def _out_of_service(self, node: str) -> bool:
        """Tells whether a node is gone, or in a state in which its agent does not answer."""
        state = self._agents.state(node)
        return not state or state in OUT_OF_SERVICE

    async def _connection(self, request: pb.ReadLogsRequest, lines: OutputLines, attempt: int) -> LatticeError | None:
        """Reads one call to the agent to its end; returns the error that leaves the output incomplete, None: it is complete."""
        chunks: asyncio.Queue[pb.LogChunk | LatticeError | None] = asyncio.Queue(maxsize=4)
        async with asyncio.TaskGroup() as group:
            pump = group.create_task(self._pump(lines.node, request, chunks))
            failure = await self._consume(chunks, lines, attempt)
            pump.cancel()
        return failure

    async def _pump(self, node: str, request: pb.ReadLogsRequest, chunks: asyncio.Queue[pb.LogChunk | LatticeError | None]) -> None:
        """Puts the chunks of a node's output into a queue, with None at their end, or the error that ended them."""
        try:
            async with aclosing(self._agents.read_logs(node, request)) as stream:
                async for chunk in stream:
                    await chunks.put(chunk)
            await chunks.put(None)
        except LatticeError as error:
            await chunks.put(error)

    async def _consume(
        self, chunks: asyncio.Queue[pb.LogChunk | LatticeError | None], lines: OutputLines, attempt: int
    ) -> LatticeError | None:
        """Passes chunks on as records until the output's end, and returns None then, or the error that ended it.

        A line that does not end is passed on in parts; silence that the node's state explains ends it too.
        """
        while True:
            try:
                async with asyncio.timeout(PART_SECONDS if lines.unfinished else CHECK_SECONDS):
                    chunk = await chunks.get()
            except TimeoutError:
                parts = lines.flush()
                await self._sink(parts)
                silence = None if parts else self._explained(lines.node, attempt)
                if silence is not None:
                    return silence
                continue
            if isinstance(chunk, LatticeError):
                return chunk
            if chunk is None:
                return NotFound(f"the output of node {lines.node} stopped without its end", reason="NoEnd") if self._query.follow else None
            await self._sink(lines.feed(chunk))
            if chunk.end:
                return None

    def _explained(self, node: str, attempt: int) -> LatticeError | None:
        """Returns an error that says why a silent stream can bring nothing more; None: it still can."""
        if self._out_of_service(node):
            state = self._agents.state(node) or "gone"
            return NotFound(f"node {node} is {state}: the rest of its output is not reachable", reason="NodeGone")
        if not self._query.follow:
            return Retry(f"the agent of node {node} has said nothing for {CHECK_SECONDS:g} s", reason="AgentSilent")
        allocation = self._level.allocation
        if allocation is None or allocation.status.attempt > attempt:
            return NotFound(f"node {node} is silent, and attempt {attempt} is over: the rest of its output is not known", reason="NoEnd")
        return None


class LogStream:
    """The output of one allocation as one request asks for it, written to the sink."""

    def __init__(self, cluster: Cluster, agents: Agents, clock: Clock, allocation: Allocation, query: Query, sink: Sink) -> None:
        self._cluster = cluster
        self._clock = clock
        self._uid = allocation.metadata.uid
        self._namespace = allocation.metadata.namespace
        self._name = allocation.metadata.name
        self._query = query
        self._sink = sink
        self._level = AllocationState(allocation)
        self._reader = NodeReader(agents, clock, self._level, sink, query)

    async def read(self, target: Target) -> None:
        """Writes the output that one attempt has printed so far, and a last record `end`; returns when all is written."""
        await self._attempt(target)
        await self._sink([{"end": True}])

    async def follow(self) -> None:
        """Writes all output as it comes, attempt after attempt, and a last record `end`.

        Returns once no further attempt can follow (the allocation is final or deleted, or past the one asked for) and its nodes have sent
        everything. Raises Rejected where an attempt did not run on a node that the query names.
        """
        informer = Informer(
            self._cluster,
            ALLOCATIONS,
            type=Allocation,
            clock=self._clock,
            namespace=self._namespace,
            fields=f"metadata.name={self._name}",
            on_change=self._changed,
        )
        async with asyncio.TaskGroup() as group:
            watching = [group.create_task(informer.run()), group.create_task(self._notice_absence(informer))]
            await self._follow_attempts()
            for task in watching:
                task.cancel()
        await self._sink([{"end": True}])

    async def _follow_attempts(self) -> None:
        """Passes on the output of one attempt after another, until no further one can come."""
        done = 0
        while True:
            self._level.changed.clear()
            allocation = self._level.allocation
            target = following(allocation, done, self._query.attempt) if allocation is not None else None
            if target is not None:
                await self._attempt(limit_to(target, self._query.nodes, f"{self._namespace}/{self._name}"))
                done = target.attempt
            elif is_over(allocation, done, self._query.attempt):
                return
            else:
                await self._level.changed.wait()

    async def _notice_absence(self, informer: Informer[Allocation]) -> None:
        """Notes that the allocation is deleted where it was gone before the watch began, since no change will tell."""
        await informer.synced.wait()
        if not informer.objects:
            self._level.tell(None)

    def _changed(self, change: Change[Allocation]) -> None:
        """Notes a newer state of the allocation; its deletion, or an object of its name with another uid, as None."""
        new = change.new
        self._level.tell(new if new is not None and new.metadata.uid == self._uid else None)

    async def _attempt(self, target: Target) -> None:
        """Passes on the output of all nodes of an attempt at the same time."""
        gate = asyncio.Semaphore(len(target.nodes) if self._query.follow else READERS_AT_A_TIME)
        async with asyncio.TaskGroup() as group:
            for node in target.nodes:
                group.create_task(self._node(node, target.attempt, gate))

    async def _node(self, node: str, attempt: int, gate: asyncio.Semaphore) -> None:
        """Passes on the output of one node of an attempt, once it may read."""
        async with gate:
            await self._reader.read(self._uid, node, attempt)
