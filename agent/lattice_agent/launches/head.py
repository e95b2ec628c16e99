"""The launches of one attempt, on the node that heads it: numbers from 0, each request once, CPUs in order of asking, which nodes."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from lattice.daemon.clock import Clock
from lattice.daemon.guard import Guard
from lattice.daemon.logs import event
from lattice.errors import LatticeError, Rejected, Retry
from lattice.launches.answers import CANCELLED, NODE_FAIL, LaunchRow
from lattice.launches.verbose import bound_cpus, tell_unbound
from lattice.views.cluster import MpiOptions
from lattice_agent.attempts import NodeWork
from lattice_agent.launches import client_side, description, links, topology
from lattice_agent.launches.client_side import ClientSide
from lattice_agent.launches.description import LaunchPlan
from lattice_agent.launches.interface import AttemptSource, KeeperHost, LaunchMetrics, NoMetrics
from lattice_agent.launches.launch_end import EndRules
from lattice_agent.launches.launch_rows import ends_with_allocation, row_of
from lattice_agent.launches.launch_run import LaunchRun
from lattice_agent.launches.links import NodeLink, OwnLink, PeerLink
from lattice_agent.launches.record import BEGUN, OVER, LaunchRecord, NodePlaces, RecordStore
from lattice_agent.launches.step_log import StepLog
from lattice_agent.peers.interface import UNSERVED, LaunchPeers
from lattice_agent.standalone import frames
from lattice_agent.standalone.frames import LaunchRequest
from lattice_agent.state.entry_failure import EntryFailure

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from lattice.launches.binding import NodeCpus
    from lattice.launches.layout import CpusInUse, LaunchLayout, NodeRanks
    from lattice.launches.options import LaunchOptions
    from lattice.views.allocation import LaunchTotals

log = logging.getLogger(__name__)

ENDED_KEPT = 256
"""Exit codes of finished launches that are kept for a client whose agent has lost the way to it."""
MOST_LAUNCHES = 4096
"""Most launches of an attempt at a time, those that wait included."""
MOST_PARTS = 65536
"""Most places of all launches of an attempt: each launch has one on each of its nodes."""
REQUESTED_BYTES = 64 << 20
"""Most bytes of arguments, variables and programs of all launches of an attempt: a thousand with a large environment."""
DESCRIBED_BYTES = frames.MAX_PAYLOAD - (64 << 10)
"""Most bytes of what one node of a launch is told to start, as JSON: a frame, less what the node adds."""
DESCRIBE_SECONDS, OPEN_SECONDS = 10.0, 60.0
"""How long a node may take to describe itself, and a client to open files."""
ENTRY = 0
"""The number of the launch that starts an entrypoint: its client is the attempt's first process."""
READ_PROGRAMS = 8
"""Files of programs that clients of one attempt read at a time."""
AWAY_SECONDS = 60.0
"""How long a launch waits for a node that does not say what the attempt has there: its agent may be started again, or just be told."""
SAY_SECONDS = 3.0
"""After this time its client is told that it waits."""
FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
RUN_AGAIN_SECONDS = 1.0
"""The pause before a launch whose run has failed is run again."""


@dataclass(frozen=True)
class HeadTools:
    """The means of a head: its node's name and processors, keepers, the other agents, and a group for launches' tasks."""

    node: str
    keepers: KeeperHost
    peers: LaunchPeers
    attempts: AttemptSource
    clock: Clock
    group: asyncio.TaskGroup
    reserved_cpus: frozenset[int] = frozenset()
    gpus: int = 0
    pmix: bool = False
    """Whether this node serves PMIx."""
    mpi: Callable[[], MpiOptions] = MpiOptions
    """The site's options of MPI, as they are now."""
    metrics: LaunchMetrics = field(default_factory=NoMetrics)


@dataclass(frozen=True, eq=False)
class AskingClient:
    """A client whose launch has not begun; `left` is set once it asks no more."""

    client: ClientSide
    left: asyncio.Event = field(default_factory=asyncio.Event)


class AttemptLaunches:
    """The launches of one attempt."""

    def __init__(self, work: NodeWork, store: RecordStore, tools: HeadTools, steps: StepLog | None = None) -> None:
        """Writes a row of each launch that is over into `steps`; None: nowhere."""
        self.work, self.key = work, work.key
        self._store, self._tools = store, tools
        self._steps = steps or StepLog(None, work.number)
        self._runs: dict[str, LaunchRun] = {}
        self._ended: OrderedDict[str, tuple[int, str]] = OrderedDict()
        self._asking: dict[str, AskingClient] = {}
        self._next = 0
        self._noted = self._last_kept = -1  # the highest number with a record, and one whose launch is over
        self._requested: Counter[str] = Counter()
        self._programs = asyncio.Semaphore(READ_PROGRAMS)
        self._turn = asyncio.Lock()
        self._given: dict[int, tuple[NodeRanks, ...]] = {}
        """By number: the places of launches whose CPUs are theirs, and which have no record yet: their clients open files."""
        self._freed = asyncio.Event()
        self._cpus: dict[str, NodeCpus] = {}
        self._guard = Guard(tools.clock, "a launch")

    def is_idle(self) -> bool:
        """Tells whether there is no launch, and nobody asks for one."""
        return not self._runs and not self._asking

    # what people ask

    @property
    def begun(self) -> int:
        """Returns how many numbers were given to launches."""
        return self._next

    def running_rows(self) -> list[LaunchRow]:
        """Returns the rows of the launches that run, in order of their numbers."""
        now = self._tools.clock.now()
        records = [run.record for run in self._runs.values() if run.record.state != OVER]
        return [row_of(record, now) for record in sorted(records, key=lambda record: record.number)]

    def present_totals(self) -> LaunchTotals:
        """Returns how many launches there are, those that run included, and how many of them are over, by result."""
        found = self._steps.totals()
        return msgspec.structs.replace(found, total=found.total + sum(1 for run in self._runs.values() if run.record.state != OVER))

    def launch_totals(self) -> LaunchTotals | None:
        """Returns how many launches there were, by result, where the attempt ends now; None: there were none."""
        found = self._steps.totals(unfinished=sum(1 for run in self._runs.values() if run.record.state != OVER))
        return found if found.total else None

    def end_launch(self, number: int, why: str) -> bool:
        """Ends a launch that somebody cancels: TERM, grace, KILL; returns False where none of this number runs."""
        run = next((run for run in self._runs.values() if run.record.number == number and run.record.state != OVER), None)
        if run is not None:
            run.cancel(why)
        return run is not None

    def _note_end(self, record: LaunchRecord) -> None:
        """Writes the row of a launch that is over, and lets those that wait try for its CPUs."""
        if not record.result and record.code and self._store.is_closed() and ends_with_allocation(record):
            record.result, record.why = CANCELLED, record.why or "its allocation has ended"
        row = row_of(record, record.ended)
        if record.number == ENTRY and (record.refusal or row.state == NODE_FAIL):
            self._note_entry_failure("StartFailed" if record.refusal else "ExitUnknown", record.refusal or row.reason)
        if self._steps.append(row, record.ended):
            self._tools.metrics.launch_ended(row.state, row.seconds)
        self._freed.set()

    def _note_entry_failure(self, reason: str, message: str) -> None:
        """Notes that the launch of the entrypoint has not started, or that nobody knows how it has ended, before its client is told: the
        attempt ends with this reason, not with the client's exit code.
        """
        if not self.work.is_launched:
            return
        try:
            self._store.note_entry_failure(EntryFailure(reason, message))
        except OSError as error:
            event(log, "LaunchNotNoted", logging.WARNING, allocation=self.key.uid, launch=ENTRY, message=str(error))

    def adopt(self) -> None:
        """Goes on with the launches that an agent before this one has begun."""
        for record in self._store.read_all():
            self._next, self._noted = max(self._next, record.number + 1), max(self._noted, record.number)
            run = self._make_run(record)
            event(log, "LaunchFound", allocation=self.key.uid, attempt=self.key.attempt, launch=record.number, message=record.state)
            self._spawn(record, run)

    async def serve(self, client: ClientSide, request: LaunchRequest) -> None:
        """Serves one client until it leaves: begins its launch, or takes up the one that it has begun before."""
        digits = request.request_id.hex()
        while (older := self._asking.get(digits)) is not None:
            older.client.cut_off()  # its process has come again: the way of its former call has broken
            await older.left.wait()
        run = self._runs.get(digits)
        if run is None and digits in self._ended:
            code, why = self._ended[digits]
            client.send(frames.REFUSED if why else frames.FINISHED, frames.encode_refused(code, why))
            return
        if run is None and request.step is not None:
            refuse(client, f"launch {self.work.number}.{request.step} is not known any more on node {self._tools.node}")
            return
        if run is None and len(self._runs) + len(self._asking) >= MOST_LAUNCHES:
            refuse(client, f"{MOST_LAUNCHES} launches of this allocation wait or run, which is the limit: wait for some of them")
            return
        try:
            await (self._take_up(client, request, run) if run is not None else self._ask(client, request, digits))
        except LatticeError as error:
            if self._noted < 0:
                self._note_entry_failure("StartFailed", error.message)
            refuse(client, error.message)
        except TimeoutError:
            pass  # the client has left before anything began

    async def _take_up(self, client: ClientSide, request: LaunchRequest, run: LaunchRun) -> None:
        """Serves the client of a launch that was begun before."""
        plan = description.plan_of(self.work, request, self._tools.mpi())
        if not isinstance(plan, LaunchPlan):
            raise Rejected("this request asks for no launch")
        run.rules = rules_of(plan.options)
        if run.record.state == BEGUN and not run.record.ending:
            if plan.options.multi_prog:
                plan = await self._with_programs(client, plan)
            layout = description.recorded_layout(run.record)
            run.describe(await self._starts(client, plan, layout, run.record))
        await run.attend(client, had=dict(request.resumed), interrupts=description.interrupts(plan.options))

    async def _ask(self, client: ClientSide, request: LaunchRequest, digits: str) -> None:
        """Begins a launch, once its CPUs are free; raises Rejected, or TimeoutError where the client leaves before it has begun."""
        plan = description.plan_of(self.work, request, self._tools.mpi())
        if not isinstance(plan, LaunchPlan):
            client.send(frames.OUTPUT, frames.encode_output(frames.Output(0, 1, frames.STDOUT, 0, plan.encode(errors="surrogateescape"))))
            client.send(frames.FINISHED, frames.encode_refused(0, ""))
            return
        for text in plan.said():
            client.say(text)
        asking = self._asking[digits] = AskingClient(client)
        try:
            self._count(digits, description.size_of(plan))
            run = await self._begun(client, plan, digits)
        finally:
            del self._asking[digits]
            asking.left.set()
            if digits not in self._runs:
                del self._requested[digits]
        await run.attend(client, had={}, interrupts=description.interrupts(plan.options))

    async def _begun(self, client: ClientSide, plan: LaunchPlan, digits: str) -> LaunchRun:
        """Begins a launch once its CPUs are free, and returns it; raises Rejected, or TimeoutError where the client leaves before."""
        async with client.unless_left():
            if plan.options.multi_prog:
                plan = await self._with_programs(client, plan)
                self._count(digits, description.size_of(plan))
            async with self._placed(client, plan.options) as (layout, number):
                if plan.options.cpu_bind.verbose:
                    client.say("\n".join(bound_cpus(plan.options.cpu_bind.kind, layout, await self._node_cpus(client))))
                if self.work.is_launched and number == ENTRY and (said := tell_unbound(layout, await self._node_cpus(client))):
                    client.say(f"srun: {said}")
                record = description.record_of(plan, layout, number, digits, client.process, self._tools.clock.now())
                starts = await self._starts(client, plan, layout, record)
                self._note(record)
                run = self._make_run(record)
                run.rules = rules_of(plan.options)
                run.describe(starts)
        self._spawn(record, run)
        return run

    async def _with_programs(self, client: ClientSide, plan: LaunchPlan) -> LaunchPlan:
        """Returns the plan with the text of the file of --multi-prog, which few clients read at a time; raises Rejected."""
        async with self._programs:
            client.limit(client_side.CONTENT_BYTES)
            found = await description.with_programs(client, plan)
            client.limit(client_side.ANSWER_BYTES)
        return found

    def _count(self, digits: str, size: int) -> None:
        """Counts the bytes of a request until its launch is over; raises Rejected where those of the attempt are too many."""
        held = sum(self._requested.values()) - self._requested[digits]
        if held + size > REQUESTED_BYTES:
            raise Rejected(
                f"this launch has {_mebibytes(size)} of arguments, variables and programs, the others of this allocation that wait or run "
                f"have {_mebibytes(held)}, and the limit is {_mebibytes(REQUESTED_BYTES)}: wait for some of them"
            )
        self._requested[digits] = size

    def _check_parts(self, nodes: int) -> None:
        """Raises Rejected where a launch on so many more nodes is one too many."""
        parts = sum(len(run.parts) for run in self._runs.values()) + sum(map(len, self._given.values()))
        if parts + nodes > MOST_PARTS:
            raise Rejected(
                f"this launch is on {nodes} nodes, the others of this allocation are on {parts} together (each launch counts all of its "
                f"own), and the limit is {MOST_PARTS}: wait for some of them"
            )

    async def _starts(self, client: ClientSide, plan: LaunchPlan, layout: LaunchLayout, record: LaunchRecord) -> list[Mapping[str, Any]]:
        """Has the client open its files, and returns what each node is to start."""
        nodes = await self._node_cpus(client)
        streams = description.plan_streams(self.work, plan, layout, record.number)
        patience = asyncio.timeout(OPEN_SECONDS)
        try:
            async with patience:
                await description.open_files(client, streams)
        except TimeoutError:
            if patience.expired():
                raise Rejected(f"srun has not opened the files of its streams within {OPEN_SECONDS:g} s") from None
            raise
        record.input = description.input_of(plan, streams)
        starts = description.starts_of(self.work, plan, layout, record, streams, nodes, self._tools.mpi())
        await asyncio.to_thread(check_sizes, [part.name for part in layout.nodes], starts)
        record.pmi = any(start["pmi"] for start in starts)
        return starts

    def _note(self, record: LaunchRecord) -> None:
        """Writes the record of a new launch; raises Rejected where there is no room for it."""
        try:
            self._store.keep_record(record)
        except OSError as error:
            raise Rejected(f"node {self._tools.node} cannot note the launch: {error.strerror}") from error
        self._noted = max(self._noted, record.number)
        if 0 <= self._last_kept < self._noted:
            self._store.drop_record(self._last_kept)
            self._last_kept = -1

    # CPUs

    @asynccontextmanager
    async def _placed(self, client: ClientSide, options: LaunchOptions) -> AsyncIterator[tuple[LaunchLayout, int]]:
        """Yields where the ranks go, and the launch's number, once its CPUs are free, in order of asking.

        Within the block they are given to nobody else; after it, to others unless a launch has been made of them. Raises Rejected for what
        can never run, and where --immediate waits for nothing more.
        """
        from lattice.launches.layout import CpusInUse

        nodes = await self._node_cpus(client)
        if options.overlap:
            layout = self._lay_out(client, options, nodes)
            assert not isinstance(layout, CpusInUse)  # noqa: S101 - it shares what it finds
            number = self._give(layout)
        else:
            patience = asyncio.timeout(options.immediate)
            try:
                async with patience, self._turn:
                    number = self._give(layout := await self._free_layout(client, options, nodes))
            except TimeoutError:
                if patience.expired():
                    raise Rejected(f"the launch finds too few CPUs within {options.immediate:g} s (--immediate)") from None
                raise
        try:
            yield layout, number
        finally:
            del self._given[number]
            self._freed.set()

    def _give(self, layout: LaunchLayout) -> int:
        """Gives a launch that begins its places, and returns its number; raises Rejected where it has one too many."""
        self._check_parts(len(layout.nodes))
        number, self._next = self._next, self._next + 1
        self._given[number] = layout.nodes
        return number

    def _lay_out(self, client: ClientSide, options: LaunchOptions, nodes: list[NodeCpus]) -> LaunchLayout | CpusInUse:
        """Returns where the ranks go, or that what they need is in use; raises Rejected for what can never run."""
        from lattice.launches.layout import CpusInUse, lay_out

        found = lay_out(options, nodes, busy=self._in_use(lambda part: part.held), busy_gpus=self._in_use(lambda part: part.held_gpus))
        for warning in () if isinstance(found, CpusInUse) or options.quiet else found.warnings:
            client.say(f"srun: {warning}")
        return found

    async def _free_layout(self, client: ClientSide, options: LaunchOptions, nodes: list[NodeCpus]) -> LaunchLayout:
        """Returns where the ranks go, as soon as there are enough CPUs; says to the client, once a text, what it waits for."""
        from lattice.launches.layout import CpusInUse

        said = ""
        while True:
            self._freed.clear()
            found = self._lay_out(client, options, nodes)
            if not isinstance(found, CpusInUse):
                return found
            if options.immediate == 0:
                raise Rejected(found.message)
            if found.message != said and not options.quiet:
                said = found.message
                client.say(f"srun: {said}")
            await self._freed.wait()

    def _in_use(self, held: Callable[[NodePlaces | NodeRanks], Iterable[int]]) -> dict[str, frozenset[int]]:
        """Returns what launches have of one kind (`held` says of which), by node."""
        found: dict[str, set[int]] = {}
        launches: list[Sequence[NodePlaces | NodeRanks]] = [run.record.nodes for run in self._runs.values() if run.record.state != OVER]
        for nodes in (*launches, *self._given.values()):
            for places in nodes:
                found.setdefault(places.name, set()).update(held(places))
        return {name: frozenset(numbers) for name, numbers in found.items()}

    async def _node_cpus(self, client: ClientSide) -> list[NodeCpus]:
        """Returns what the attempt has on each of its nodes, asked once; raises Rejected for a node that does not say it."""
        missing = [node for node in self.work.nodes if node not in self._cpus]
        async with asyncio.TaskGroup() as group:
            asked = {node: group.create_task(self._described(client, node)) for node in missing}
        for node, task in asked.items():
            found = task.result()
            if isinstance(found, str):
                raise Rejected(found)
            self._cpus[node] = found
        return [self._cpus[node] for node in self.work.nodes]

    async def _described(self, client: ClientSide, node: str) -> NodeCpus | str:
        """Asks a node for its CPUs, again while it is away; returns a sentence where it refuses or does not answer for a minute."""
        clock, said, pause = self._tools.clock, False, FIRST_PAUSE
        begun = clock.monotonic()
        while True:
            try:
                return topology.read_description(node, await self._description(node))
            except (LatticeError, ValueError, IndexError) as error:
                why, waited = f"node {node} cannot take part in a launch: {error}", clock.monotonic() - begun
                gone = waited >= AWAY_SECONDS or self._tools.attempts.is_over(self.key)
                if gone or not isinstance(error, Retry) or error.reason == UNSERVED:
                    return why
            if not said and waited >= SAY_SECONDS:
                said = True
                client.say(f"srun: waiting: {why}")
            await clock.sleep(pause)
            pause = min(LONGEST_PAUSE, 2 * pause)

    async def _description(self, node: str) -> Mapping[str, Any]:
        """Returns what a node of the attempt says of itself; raises Retry where it is away, another LatticeError where it refuses."""
        if node == self._tools.node:
            return topology.describe_cores(self._tools.reserved_cpus, self._tools.gpus, pmix=self._tools.pmix)
        address = await self._tools.attempts.address(node)
        try:
            return await links.describe_node(self._tools.peers, address, node, self.key, within=DESCRIBE_SECONDS)
        except Retry:
            self._tools.attempts.doubt_address(node)
            raise

    # runs

    def _make_run(self, record: LaunchRecord) -> LaunchRun:
        """Makes the launch of a record, which counts from now on, and takes its CPUs."""
        run = LaunchRun(
            self.key, record, [self._link(places.name, record.number) for places in record.nodes], store=self._store,
            clock=self._tools.clock, attempt_over=lambda: self._tools.attempts.is_over(self.key), on_over=self._note_end,
            exchange=description.make_exchange(record), on_fence=self._tools.metrics.fence_ended,
            fence_seconds=lambda: description.fence_seconds(self._tools.mpi()),
        )  # fmt: skip
        self._runs[record.request_id] = run
        return run

    def _link(self, node: str, number: int) -> NodeLink:
        """Returns the way to a launch's keeper on a node of the attempt."""
        tools = self._tools
        if node == tools.node:
            return OwnLink(tools.keepers, self.key, number, tools.clock)
        return PeerLink(tools.peers, tools.attempts, node, self.key, number)

    def _spawn(self, record: LaunchRecord, run: LaunchRun) -> None:
        """Begins the task of a launch, which outlives its client's conversations."""
        self._tools.group.create_task(self._run(record, run))

    async def _run(self, record: LaunchRecord, run: LaunchRun) -> None:
        """Runs a launch to its end, and drops it; the record of the last number stays, so that none is given twice.

        A run that fails is run again: its ranks live, and hold their CPUs, until it has heard their end.
        """
        name = str(record.number)
        while (failure := await self._guard.attempt_async(name, run.run)) is not None:
            why = f"the agent of node {self._tools.node} has failed at it ({failure.reason}), see its log"
            if self._tools.attempts.is_over(self.key):
                run.give_up(why)
                break
            run.fail_to_start(f"the launch cannot start: {why}")
            await self._tools.clock.sleep(RUN_AGAIN_SECONDS)
        self._guard.drop(name)
        self._runs.pop(record.request_id, None)
        del self._requested[record.request_id]
        self._freed.set()
        self._ended[record.request_id] = run.conclusion
        while len(self._ended) > ENDED_KEPT:
            self._ended.popitem(last=False)
        if record.number == self._noted:
            self._last_kept = record.number  # so that an agent that is started again gives no number twice
        else:
            self._store.drop_record(record.number)


def refuse(client: ClientSide, why: str, code: int = 1) -> None:
    """Refuses a client's request with a sentence."""
    client.send(frames.REFUSED, frames.encode_refused(code, why))


def check_sizes(nodes: Sequence[str], starts: Sequence[Mapping[str, Any]]) -> None:
    """Raises Rejected where what a node is to start is more than one message takes."""
    for node, start in zip(nodes, starts, strict=True):
        size = len(json.dumps(start))
        if size > DESCRIBED_BYTES:
            raise Rejected(
                f"the arguments, variables and programs of this launch take {_mebibytes(size)} on node {node}, and the limit is "
                f"{_mebibytes(DESCRIBED_BYTES)}: pass less of them (--export), or fewer tasks on a node"
            )


def _mebibytes(size: int) -> str:
    """Returns a number of bytes as people read it."""
    return f"{size / (1 << 20):.1f} MiB"


def rules_of(options: LaunchOptions) -> EndRules:
    """Returns what ends a launch before its last rank."""
    return EndRules(options.kill_on_bad_exit, options.wait_seconds, options.time_seconds, bool(options.quiet))
