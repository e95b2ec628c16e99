"""Serves the launches of this node: for its own work, for the agents of other nodes, and after a restart of the agent."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lattice.daemon.clock import Clock
from lattice.daemon.guard import Guard
from lattice.daemon.logs import event
from lattice.errors import Denied, LatticeError, NotFound, Rejected, Retry
from lattice.kube.cluster import Cluster
from lattice.kube.resources import NODES
from lattice.views import Node
from lattice.views.cluster import MpiOptions
from lattice_agent.attempts import Key, NodeWork
from lattice_agent.host import users
from lattice_agent.launches import caller, socket_server
from lattice_agent.launches.caller import Caller
from lattice_agent.launches.interface import AttemptHere, AttemptSource, KeeperHost, LaunchMetrics, NoMetrics
from lattice_agent.peers.interface import ByteStream, LaunchOrder, LaunchPeers
from lattice_agent.standalone import frames
from lattice_agent.standalone.frames import Decoder, Frame, FrameError

if TYPE_CHECKING:
    from lattice_agent.launches.head import AttemptLaunches

log = logging.getLogger(__name__)

PROGRAMS: Final = socket_server.PROGRAMS
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
EXIT_SECONDS: Final = 0.2
"""How much later than its socket's end a process is seen to have ended, at most."""
HANGUP_SECONDS: Final = 5.0
"""How long a head may take to hear that a client's process has ended."""
LAUNCHES: Final = "launch"
"""The directory of the socket and of `srun`, in the agent's state directory."""
AWAY_SECONDS: Final = 60.0
"""How long nothing more is logged of an attempt whose head does not answer."""


def launch_directory(state_dir: Path) -> Path:
    """Returns the directory of the socket and of `srun`: work executes what stands in the state directory, which /run often forbids."""
    return state_dir.resolve() / LAUNCHES


class RunningAttempts:
    """Finds the attempts that run on this node, by its state machine and its journal, and other nodes by their LatticeNodes."""

    def __init__(
        self,
        cluster: Cluster,
        running: Callable[[Key], bool],
        read_work: Callable[[Key], NodeWork | None],
        read_place: Callable[[Key], Mapping[str, Any] | None],
    ) -> None:
        """Asks `running` whether an attempt runs here, `read_work` and `read_place`, which may block, for its journal and its place."""
        self._cluster, self._running, self._read_work, self._read_place = cluster, running, read_work, read_place
        self._found: dict[Key, AttemptHere] = {}
        self._addresses: dict[str, str] = {}
        self._doubted = set[str]()

    async def find_attempt(self, key: Key) -> AttemptHere | None:
        """Returns an attempt that runs here, from its start to its end; None: there is none."""
        if not self._running(key):
            self._found.pop(key, None)
            return None
        if key not in self._found:
            found = await asyncio.to_thread(self._look, key)
            if found is None:
                return None
            self._found = {each: here for each, here in self._found.items() if self._running(each)} | {key: found}
        return self._found[key]

    def _look(self, key: Key) -> AttemptHere | None:
        """Returns an attempt by its journal, and its user by its place here, else by the account; None: the journal does not read.

        Raises Rejected where there is no place, and no account.
        """
        work = self._read_work(key)
        if work is None:
            return None
        if (user := (self._read_place(key) or {}).get("user")) is not None:
            return AttemptHere(work, int(user))
        return AttemptHere(work, users.account(work.account or work.user, min_uid=work.min_uid, node=work.node).uid)

    def is_over(self, key: Key) -> bool:
        """Tells whether an attempt has ended on this node, or is not known here."""
        return not self._running(key)

    async def address(self, node: str) -> str:
        """Returns where the agent of another node listens, as its LatticeNode says: read once, and anew after `doubt_address`.

        The last answer counts where the API server gives none. Raises NotFound, Retry.
        """
        if node in self._addresses and node not in self._doubted:
            return self._addresses[node]  # thousands of launches ask the API server no more than one
        try:
            found = (await self._cluster.get(NODES, node, type=Node)).status.address
        except NotFound:
            raise
        except LatticeError:  # also a refusal: a launch that runs outlives this agent's token
            found = self._addresses.get(node, "")
        if not found:
            raise Retry(f"node {node} has not said where its agent listens", reason="NodeAway")
        self._addresses[node] = found
        self._doubted.discard(node)
        return found

    def doubt_address(self, node: str) -> None:
        """Has the address of a node read anew: a call to it has failed."""
        self._doubted.add(node)


class LaunchService:
    """Answers clients of `srun` on this node, and other agents about launches (peers.interface.LaunchSide)."""

    def __init__(
        self,
        node: str,
        *,
        directory: Path,
        srun: Path,
        root: str,
        run_directory: Callable[[Key], Path],
        keepers: KeeperHost,
        attempts: AttemptSource,
        peers: LaunchPeers,
        clock: Clock,
        reserved_cpus: frozenset[int] = frozenset(),
        gpus: int = 0,
        pmix: bool = False,
        mpi: Callable[[], MpiOptions] = MpiOptions,
        log_directory: Callable[[Key], Path] | None = None,
        metrics: LaunchMetrics | None = None,
    ) -> None:
        """Keeps the socket and a copy of `srun` in `directory`; `root`: the path of the node's scopes below the mount of cgroup v2;
        `run_directory` gives that of an attempt. `log_directory` that of its step log (None: none is kept). `pmix`: this node serves PMIx.
        """
        self.node, self._directory, self._srun, self._root = node, directory, srun, root
        self._run_directory, self._keepers, self._attempts, self._peers, self._clock = run_directory, keepers, attempts, peers, clock
        self._reserved_cpus, self._gpus, self._pmix, self._mpi = reserved_cpus, gpus, pmix, mpi
        self._log_directory, self._metrics = log_directory, metrics or NoMetrics()
        self._heads: dict[Key, AttemptLaunches] = {}
        self._forwarded: Counter[Key] = Counter()
        self._hearing: dict[Key, asyncio.Semaphore] = {}
        self._away: dict[Key, float] = {}
        self._kept: dict[tuple[Key, int], asyncio.Event] = {}
        self._group: asyncio.TaskGroup | None = None

    async def run(self, found: list[Key]) -> None:
        """Serves launches until cancelled; `found` are the attempts that ran here before this agent, whose launches go on.

        Where the socket cannot be made that is logged, and other nodes' launches are served alone.
        """
        async with asyncio.TaskGroup() as self._group:
            for key in found:
                self._group.create_task(self._guarded(key))
            try:
                if why := await asyncio.to_thread(socket_server.install, self._directory, self._srun):
                    event(log, "LaunchesNotOffered", logging.WARNING, node=self.node, message=f"work here finds no srun: {why}")
                listener = await asyncio.to_thread(socket_server.listen, self._directory)
            except OSError as error:
                event(log, "LaunchesNotOffered", logging.ERROR, node=self.node, message=f"{self._directory}: {error}")
            else:
                with listener:
                    await socket_server.SocketServer(listener, self._root, self._serve_own, self._group, self._clock).run()
            await asyncio.Event().wait()

    async def _guarded(self, key: Key) -> None:
        """Goes on with an attempt's launches; an error in it is logged, and concerns no other attempt."""
        await Guard(self._clock, "launches of an attempt").attempt_async(f"{key.uid}-{key.attempt}", lambda: self._adopt(key))

    async def _adopt(self, key: Key) -> None:
        """Goes on with the launches of an attempt that ran before this agent, once it can be read, and removes what no keeper keeps."""
        pause = FIRST_PAUSE
        while True:
            try:
                here = await self._attempts.find_attempt(key)
                break
            except LatticeError as error:
                event(log, "LaunchesNotAdopted", logging.WARNING, allocation=key.uid, attempt=key.attempt, message=error.message)
            await self._clock.sleep(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)
        if here is not None and here.work.head == self.node:
            self._head_of(here.work)

    def find_head(self, key: Key) -> AttemptLaunches | None:
        """Returns the launches of an attempt that this agent follows; None: it heads no such attempt, or nobody has launched anything."""
        return self._heads.get(key)

    def _head_of(self, work: NodeWork) -> AttemptLaunches:
        """Returns the launches of an attempt that this node heads, taken up again where an agent before has begun them."""
        from lattice_agent.launches.head import AttemptLaunches, HeadTools  # nobody pays for launches that has none
        from lattice_agent.launches.record import RecordStore
        from lattice_agent.launches.step_log import StepLog

        assert self._group is not None  # noqa: S101 - `run` serves
        self._heads = {key: head for key, head in self._heads.items() if not (self._attempts.is_over(key) and head.is_idle())}
        found = self._heads.get(work.key)
        if found is None:
            tools = HeadTools(
                self.node, self._keepers, self._peers, self._attempts, self._clock, self._group, self._reserved_cpus, self._gpus,
                self._pmix, self._mpi, self._metrics,
            )  # fmt: skip
            steps = StepLog(self._log_directory(work.key), work.number) if self._log_directory is not None else None
            found = self._heads[work.key] = AttemptLaunches(work, RecordStore(self._run_directory(work.key)), tools, steps)
            found.adopt()
        return found

    # clients on this node

    async def _serve_own(
        self, process: Caller, pidfd: int, stream: ByteStream, request: bytes, rest: list[Frame], decoder: Decoder
    ) -> None:
        """Serves a client on this node: here where this node heads its attempt, else by the head's agent."""
        try:
            here = await self._attempts.find_attempt(process.key)
            why = self._refusal_of(process, here)
        except LatticeError as error:
            event(log, "AttemptUnread", logging.WARNING, allocation=process.key.uid, attempt=process.key.attempt, message=error.message)
            return  # the client calls again
        if here is None or why:
            await _refuse(stream, why or "the allocation of this process does not run")
        elif here.work.head == self.node:
            ended = partial(caller.has_ended, pidfd)
            await self._converse(here.work, (self.node, process.pid, process.ticks), ended, stream, request, rest, decoder)
        else:
            await self._forward(here.work, pidfd, stream, request, rest, decoder)

    def _refusal_of(self, process: Caller, here: AttemptHere | None) -> str:
        """Returns why a process may not launch, as a sentence; empty: it may."""
        if here is None:
            return "the allocation of this process does not run"
        if process.uid != here.uid:
            return f"launches are for the user of the allocation (uid {here.uid}), not for uid {process.uid}"
        return ""

    async def _converse(
        self, work: NodeWork, process: tuple[str, int, int], ended: Callable[[], bool], stream: ByteStream, request: bytes,
        rest: list[Frame], decoder: Decoder,
    ) -> None:  # fmt: skip
        """Serves one client of an attempt that this node heads, until it leaves."""
        from lattice_agent.launches.client_side import ClientProcess, ClientSide

        try:
            asked = frames.decode_launch(request)
        except FrameError as error:
            await _refuse(stream, f"the request does not read: {error}")
            return
        client = ClientSide(stream, ClientProcess(*process), ended, decoder)
        async with asyncio.TaskGroup() as group:
            carrying = group.create_task(client.run(rest))
            await self._head_of(work).serve(client, asked)
            client.close()
            await carrying

    async def _forward(self, work: NodeWork, pidfd: int, stream: ByteStream, request: bytes, rest: list[Frame], decoder: Decoder) -> None:
        """Carries a client's conversation to the agent that heads its attempt, both ways, until either ends."""
        first = frames.encode(frames.LAUNCH, request) + b"".join(frames.encode(frame.kind, frame.payload) for frame in rest)
        try:
            address = await self._attempts.address(work.head)
            async with self._peers.open_launch(work.head, address, LaunchOrder(work.key), forward=True) as peer:
                await peer.write_bytes(first + decoder.rest())
                await carry_both(stream, peer, partial(caller.has_ended, pidfd), self._clock)
        except (Retry, NotFound) as error:
            self._attempts.doubt_address(work.head)
            self._log_away(work, error.message)

    def _log_away(self, work: NodeWork, message: str) -> None:
        """Logs that a client's call to the head of its attempt has failed, once a minute for each attempt."""
        now = self._clock.monotonic()
        self._away = {key: at for key, at in self._away.items() if now - at < AWAY_SECONDS}
        if work.key not in self._away:
            self._away[work.key] = now
            event(log, "HeadAway", allocation=work.key.uid, attempt=work.key.attempt, node=work.head, message=message)

    # what other agents ask (peers.interface.LaunchSide)

    async def keep_launch(self, caller: str, order: LaunchOrder, stream: ByteStream) -> None:
        """Starts or goes on with a launch's ranks on this node for the agent of the node `caller`, until it is removed or the call ends.

        Raises Denied where that node does not head the attempt, Retry where the call breaks.
        """
        from lattice_agent.launches import links, topology

        here = await self._found(order.key)
        if here is None or here.work.head != caller:
            raise Denied(f"node {caller} heads no attempt {order.key.attempt} of {order.key.uid} that runs here", reason="NotTheHead")
        if order.describe:
            body = topology.describe_cores(self._reserved_cpus, self._gpus, pmix=self._pmix)
            await stream.write_bytes(frames.encode(frames.CLOSED, json.dumps(body).encode()))
            return

        async def refusal() -> str:
            """Returns why nothing may start here any more; empty: it may."""
            return f"the allocation does not run on node {self.node}" if self._attempts.is_over(order.key) else ""

        at, mine = (order.key, order.number), asyncio.Event()
        if (older := self._kept.get(at)) is not None:
            older.set()  # a keeper talks to one at a time; the head calls again only where its older call has broken
        self._kept[at] = mine
        try:
            await links.serve_keeper(self._keepers, order, stream, self._clock, refusal, replaced=mine)
        finally:
            if self._kept.get(at) is mine:
                del self._kept[at]

    async def hear_client(self, caller: str, order: LaunchOrder, stream: ByteStream) -> None:
        """Serves a client of `srun` that called the agent of the node `caller`; this node heads the attempt.

        Raises Denied where that node is not of the attempt or this one does not head it, Retry where the call breaks.
        """
        here = await self._found(order.key)
        if here is None or here.work.head != self.node or caller not in here.work.nodes:
            raise Denied(f"node {self.node} heads no attempt {order.key.attempt} of {order.key.uid} with {caller}", reason="NotTheHead")
        if self._forwarded[order.key] >= socket_server.WAITING:
            raise Denied(f"{socket_server.WAITING} clients of other nodes are served, which is the limit", reason="TooManyClients")
        self._forwarded[order.key] += 1
        try:
            decoder, turn = (
                Decoder(socket_server.REQUEST_BYTES),
                self._hearing.setdefault(order.key, asyncio.Semaphore(socket_server.READING)),
            )
            read = await socket_server.read_request(stream, decoder, turn)
            if read:
                await self._converse(here.work, (caller, 0, 0), lambda: False, stream, read[0].payload, read[1:], decoder)
        finally:
            self._forwarded[order.key] -= 1
            if not self._forwarded[order.key]:
                del self._forwarded[order.key]
                self._hearing.pop(order.key, None)

    async def _found(self, key: Key) -> AttemptHere | None:
        """Returns an attempt that runs here; None: there is none, or its user is unknown here."""
        try:
            return await self._attempts.find_attempt(key)
        except Rejected:
            return None


async def carry_both(client: ByteStream, head: ByteStream, ended: Callable[[], bool], clock: Clock) -> None:
    """Carries bytes both ways until either side ends; tells the head where the client's process has `ended`."""
    async with asyncio.TaskGroup() as group:
        up, down = group.create_task(_carry(client, head)), group.create_task(_carry(head, client))
        await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        if up.done() and not down.done() and not ended():
            await clock.sleep(EXIT_SECONDS)
        if up.done() and ended():
            with suppress(Retry, TimeoutError):
                async with asyncio.timeout(HANGUP_SECONDS):
                    await head.write_bytes(frames.encode(frames.HANGUP))
                    await asyncio.wait({down})
                    while await head.read_bytes():
                        pass  # the head ends the call once it has heard; a call that is cancelled before loses what was written
        up.cancel()
        down.cancel()


async def _carry(source: ByteStream, target: ByteStream) -> None:
    """Carries bytes from one stream to the other until either ends."""
    with suppress(Retry):
        while data := await source.read_bytes():
            await target.write_bytes(data)


async def _refuse(stream: ByteStream, why: str) -> None:
    """Refuses a client's request with a sentence; one that has gone is passed over."""
    with suppress(Retry):
        await stream.write_bytes(frames.encode(frames.REFUSED, frames.encode_refused(1, why)))
