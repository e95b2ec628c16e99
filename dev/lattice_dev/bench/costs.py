"""Measures the milliseconds of the API server's processor that a write of each kind takes, beside a lean ConfigMap's in the same run."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from lattice.accounting.records import record_name
from lattice.daemon.announcements import Announcer
from lattice.kube.aiohttp import AiohttpCluster, connect
from lattice.kube.patches import merge
from lattice.kube.resources import ALLOCATIONS, CONFIG_MAPS, LEDGERS, NODE_INDEXES, PLANS, USAGE_RECORDS
from lattice.ledger import projection
from lattice.ledger.format import HELD as ROW_HELD
from lattice.ledger.format import Row
from lattice.replay.synthetic import Dice
from lattice.views import Allocation, Written
from lattice.views.ledger import Ledger, NodeIndex
from lattice.views.work import Work
from lattice_agent.attempts import Key, Seen
from lattice_agent.cluster.heartbeat import Heartbeat
from lattice_agent.cluster.reports import NodeIdentity, ReportContent
from lattice_agent.metrics import AgentMetrics
from lattice_agent.reporter import status
from lattice_agent.reporter.head import Begun, Over
from lattice_controllers.scheduler.status_writer import write_status
from lattice_dev.bench import work
from lattice_dev.bench.cost_rounds import Cost, Round, costs
from lattice_dev.bench.drive import NAMESPACE, Driver
from lattice_dev.bench.figures import Aim, Baseline, Figure, shown
from lattice_dev.bench.processor import ProcessorTime

CREATION, CHANGE = "lean ConfigMap, created", "lean ConfigMap, replaced"
AT_ONCE = 16
HELD = 200
"""Allocations that hold nodes meanwhile, and so have rows in Ledger and plans."""
SETTLE_SECONDS = 0.15
"""Time for what follows a write: watchers, and the watch cache's own decoding."""
IDLE_SECONDS = 1.0
IDLE_SPANS = 5
EMPTY_ROUNDS = 5
GO_METRICS = ("go_gc_heap_allocs_bytes_total", "go_gc_cycles_total_gc_cycles_total")
"""Of the API server: bytes allocated so far, garbage collections so far."""
CREATION_AIM, STATUS_AIM = 3.0, 3.5
USAGE_TENANT, USAGE_MONTH = "bench", "2026-11"
MOST_USAGE_ROWS = 1000
"""Of one UsageRecord of this measurement: the operator, too, begins another part before one is full."""
STOPPED = ("scheduler", "operator", "hollow")
BENCH_USER = "lattice:bench"
"""The user that writes: webhooks are not asked about users of this prefix; it has no role of its own, and impersonates an administrator."""

Call = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class WriteKind:
    """A kind of write to measure; `batch` prepares so many of them, each a call, unmeasured.
    `beside` names the kind it is compared with.
    """

    name: str
    batch: Callable[[int], Awaitable[list[Call]]]
    beside: str
    at_once: int = AT_ONCE
    aim: float | None = None
    """The most that it may cost, as a multiple of the lean ConfigMap's cost; None: no aim."""
    of_a_life: bool = False
    """Whether it goes on with the allocations of the kind before it."""


async def measure(driver: Driver, *, rounds: int, each: int) -> list[Figure]:
    """Returns the cost of a write of every kind, measured in so many rounds of `each` writes, with scheduler, operator and hollow agents
    stopped, and left so.

    Kinds come in another order each round; what the API server does by itself meanwhile is measured too, and taken off. The instance is of
    no use afterwards: what was written stays.
    """
    await _hold_nodes(driver)
    for daemon in STOPPED:
        await asyncio.to_thread(driver.instance.stop, daemon)
    async with _writers(driver) as writers:
        kinds = await writers.kinds()
        await driver.clock.sleep(IDLE_SECONDS)
        server = ServerMeter(driver)
        await server.measure_background()
        dice = Dice(rounds)
        order = [kind for _ in range(rounds) for kind in in_some_order(kinds, dice)]
        known = costs([await server.round(kind.name, kind.at_once, await kind.batch(each)) for kind in order])
    return [_figure(kind, known[kind.name], known[kind.beside].milliseconds) for kind in kinds]


def in_some_order(kinds: Sequence[WriteKind], dice: Dice) -> list[WriteKind]:
    """Returns the kinds in an order that the dice choose; those of an allocation's life stay in the order of that life, at the places of
    their kind.
    """
    shuffled = sorted(kinds, key=lambda _kind: dice.share())
    life = iter([kind for kind in kinds if kind.of_a_life])
    return [next(life) if kind.of_a_life else kind for kind in shuffled]


def _figure(kind: WriteKind, cost: Cost, lean: float) -> Figure:
    """Returns the figure of what a write of this kind costs, beside that of a lean ConfigMap (`lean`, milliseconds)."""
    aim = None if kind.aim is None else Aim(round(kind.aim * lean, 2))
    detail = f"{cost.writes} in {cost.rounds} rounds: {shown(cost.least)} to {shown(cost.most)}; {shown(cost.kib)} KiB allocated"
    parts = {"ms of garbage collection": cost.collecting}
    return Figure(f"API server's CPU, {kind.name}", cost.milliseconds, "ms", aim, Baseline(f"ms {kind.beside}", lean), detail, parts)


@dataclass(frozen=True, slots=True)
class _Reading:
    """Counters of the API server at a moment: seconds of its processor, bytes allocated, collections; `at` is monotonic."""

    at: float
    seconds: float
    allocated: float
    collections: float


class ServerMeter:
    """The API server's processor and memory, read before and after a round."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._usage = ProcessorTime(driver.instance.pid("kube-apiserver"))
        self._idle = 0.0
        """Seconds of processor a second while nobody writes."""
        self._reading = Round("", 0, 0.0, 0.0, 0.0)
        """What the readings of a round take themselves."""

    async def measure_background(self) -> None:
        """Measures what goes on without any write: watches of other daemons, the server's own work, the readings."""
        spans = []
        for _ in range(IDLE_SPANS):
            before = self._usage.seconds()
            await self._driver.clock.sleep(IDLE_SECONDS)
            spans.append((self._usage.seconds() - before) / IDLE_SECONDS)
        self._idle = statistics.median(spans)
        empty = [await self.round("", 1, []) for _ in range(EMPTY_ROUNDS)]
        taken = (statistics.median(one.seconds for one in empty), statistics.median(one.allocated for one in empty))
        self._reading = Round("", 0, *taken, 0.0)

    async def round(self, kind: str, at_once: int, calls: Sequence[Call]) -> Round:
        """Makes the calls, `at_once` at a time; returns what the API server took for them, without its background and the readings, and
        with how many collections ran.

        Waits a moment before and after.
        """
        clock = self._driver.clock
        await clock.sleep(SETTLE_SECONDS)
        before = await self._read()
        await self._driver.timed(at_once, calls)
        await clock.sleep(SETTLE_SECONDS)
        after = await self._read()
        seconds = after.seconds - before.seconds - self._idle * (after.at - before.at) - self._reading.seconds
        allocated = after.allocated - before.allocated - self._reading.allocated
        return Round(kind, len(calls), seconds, allocated, after.collections - before.collections)

    async def _read(self) -> _Reading:
        """Returns what the server's own metrics say, and then the processor time that it took so far: each round pays one such reading."""
        page = dict(line.rsplit(" ", 1) for line in (await self._driver.admin.metrics()).splitlines() if line.startswith(GO_METRICS))
        allocated, collections = (float(page[name]) for name in GO_METRICS)
        return _Reading(self._driver.clock.monotonic(), self._usage.seconds(), allocated, collections)


async def _hold_nodes(driver: Driver) -> None:
    """Starts endless work on half of the nodes, on 200 at most, and waits until it is placed and three seconds more, so that Ledger and
    plans have rows.
    """
    index = await driver.admin.get(NODE_INDEXES, "lattice", type=NodeIndex)
    count = min(HELD, len(index.spec.names) // 2)
    names = [f"held-{number:04d}" for number in range(count)]
    async with driver.watch() as seen:
        await driver.create([work.hollow(NAMESPACE, name, seconds=None) for name in names])
        await seen.until(lambda: seen.count_reached("scheduled", names) == count, within=120, what=f"the placement of {count}")
    await driver.clock.sleep(3.0)  # they start, and are shown


@asynccontextmanager
async def _writers(driver: Driver) -> AsyncIterator[_DaemonWrites]:
    """Yields connections with the identities of the daemons."""
    async with AsyncExitStack() as stack:
        made: list[AiohttpCluster] = []
        for name in ("scheduler", "operator", "hollow"):
            file = str(driver.instance.kubeconfig(name))
            made.append(await stack.enter_async_context(connect(file, user_agent="lattice-bench", connections=AT_ONCE)))
        yield _DaemonWrites(driver, *made)


class _DaemonWrites:
    """Makes the writes of an allocation's life in batches: created, placed, started, ended."""

    def __init__(self, driver: Driver, scheduler: AiohttpCluster, operator: AiohttpCluster, hollow: AiohttpCluster) -> None:
        self._driver, self._admin = driver, driver.admin
        self._scheduler, self._operator, self._hollow = scheduler, operator, hollow
        self._count = 0
        self._names: dict[int, str] = {}
        self._ledger_seq = 0
        self._created: list[str] = []
        self._placed: list[str] = []
        self._started: list[str] = []
        self._usage_part, self._usage_rows = -1, 0

    async def kinds(self) -> list[WriteKind]:
        """Returns every kind of write, an allocation's in the order of its life."""
        index = await self._admin.get(NODE_INDEXES, "lattice", type=NodeIndex)
        self._names = {int(number): name for number, name in index.spec.names.items() if name.startswith("hollow-")}
        ledger = await self._admin.get(LEDGERS, "lattice", type=Ledger)
        self._ledger_seq = ledger.status.seq if ledger.status is not None else 0
        return [
            WriteKind(CREATION, self._maps, CREATION),
            WriteKind(CHANGE, self._map_changes, CHANGE),
            WriteKind("Allocation, created", self._creations, CREATION, aim=CREATION_AIM, of_a_life=True),
            WriteKind("Allocation, created without webhook", self._creations_unasked, CREATION),
            WriteKind("status, placed by the scheduler", self._placements, CHANGE, aim=STATUS_AIM, of_a_life=True),
            WriteKind(
                "status, started by the reporter",
                partial(self._reports, self._placed, self._started, _begun),
                CHANGE,
                aim=STATUS_AIM,
                of_a_life=True,
            ),
            WriteKind(
                "status, ended by the reporter", partial(self._reports, self._started, [], _over), CHANGE, aim=STATUS_AIM, of_a_life=True
            ),
            WriteKind("Ledger, committed", self._commits, CHANGE, at_once=1),
            WriteKind("NodeGroupPlan, replaced", self._plans, CHANGE, at_once=1),
            WriteKind("Lease, renewed", self._heartbeats, CHANGE),
            WriteKind("Event, created", self._events, CREATION),
            WriteKind("UsageRecord, appended to", self._usage, CHANGE, at_once=1),
        ]

    def _fresh(self, prefix: str, count: int) -> list[str]:
        """Returns so many names that were not used before."""
        first, self._count = self._count, self._count + count
        return [f"{prefix}-{first + number:06d}" for number in range(count)]

    async def _maps(self, count: int) -> list[Call]:
        """Returns calls that each create a lean ConfigMap."""
        made = [work.lean_config_map(NAMESPACE, name) for name in self._fresh("lean", count)]
        return [partial(self._admin.create, CONFIG_MAPS, body, NAMESPACE) for body in made]

    async def _map_changes(self, count: int) -> list[Call]:
        """Creates lean ConfigMaps, and returns calls that each change one."""
        names = self._fresh("changed", count)
        made = [work.lean_config_map(NAMESPACE, name) for name in names]
        await self._driver.timed(AT_ONCE, [partial(self._admin.create, CONFIG_MAPS, body, NAMESPACE) for body in made])
        changed = [{**body, "data": {"a": "1"}} for body in made]
        return [partial(self._admin.replace, CONFIG_MAPS, name, body, NAMESPACE) for name, body in zip(names, changed, strict=True)]

    async def _creations(self, count: int) -> list[Call]:
        """Returns calls that each create an Allocation as the user does, and notes their names."""
        names = self._fresh("created", count)
        self._created[:] = names
        return [partial(self._driver.user.create, ALLOCATIONS, work.hollow(NAMESPACE, name, seconds=None), NAMESPACE) for name in names]

    async def _creations_unasked(self, count: int) -> list[Call]:
        """Returns calls that each create an Allocation about which no webhook is asked."""
        bench = self._admin.impersonate(BENCH_USER, ("system:masters",))
        made = [work.hollow(NAMESPACE, name, seconds=None) for name in self._fresh("unasked", count)]
        for body in made:
            body["metadata"]["finalizers"] = ["lattice.dev/release"]
            body["spec"] |= {"user": BENCH_USER, "tenant": NAMESPACE, "vcluster": "hpc-batch"}
        return [partial(bench.create, ALLOCATIONS, body, NAMESPACE) for body in made]

    async def _placements(self, count: int) -> list[Call]:
        """Returns calls that each write a placement into an Allocation of the last `_creations`, whatever `count` is, and notes their
        names.
        """
        del count
        nodes = sorted(self._names)
        calls: list[Call] = []
        for number, name in enumerate(self._created):
            found = await self._admin.get(ALLOCATIONS, name, NAMESPACE, type=Allocation)
            node = nodes[number % len(nodes)]
            patch = projection.placed(
                found, _row(found, node), self._names, number=1_000_000 + self._count + number, seq=self._ledger_seq,
                now=self._driver.clock.now(), hollow=True, score=_SCORE,
            )  # fmt: skip
            calls.append(partial(write_status, self._scheduler, found, patch["status"], whole=True))
        self._placed[:] = self._created
        return calls

    async def _reports(
        self, names: Sequence[str], then: list[str], verdict: Callable[[float], Begun | Over], count: int
    ) -> list[Call]:  # fmt: skip
        """Returns calls that each write an agent's report into one of these Allocations (`count` is ignored), whose names become the
        content of `then`.

        Raises TypeError where the reporter would write nothing.
        """
        del count
        now = self._driver.clock.now()
        calls: list[Call] = []
        for name in names:
            found = await self._admin.get(ALLOCATIONS, name, NAMESPACE)
            known = msgspec.convert(found, Work)
            node = known.status.reporter
            outcome = status.decide(known, Key(known.metadata.uid, 1), node, verdict(now), now=now, hollow=True)
            if not isinstance(outcome, status.Write):
                raise TypeError(f"the reporter writes nothing: {outcome}")
            kept = {key: found["metadata"][key] for key in ("name", "namespace", "uid", "resourceVersion")}
            body = {"metadata": kept, "status": merge(found["status"], outcome.status)}
            agent = self._hollow.impersonate(f"lattice:agent:{node}", ("lattice:agents",))
            calls.append(partial(agent.replace, ALLOCATIONS, name, body, NAMESPACE, subresource="status", type=Written, metadata_only=True))
        then[:] = names
        return calls

    async def _commits(self, count: int) -> list[Call]:
        """Returns calls that each write the next commit of the ledger; they must be made one after another."""

        async def commit(number: int) -> None:
            """Writes the next commit of the ledger."""
            status = {**stands["status"], "seq": self._ledger_seq + 1, "commit": f"bench-{number}"}
            body = {"metadata": {"name": "lattice", "resourceVersion": stands["metadata"]["resourceVersion"]}, "status": status}
            answer = await self._scheduler.replace(LEDGERS, "lattice", body, subresource="status", type=Ledger, metadata_only=True)
            stands["metadata"]["resourceVersion"] = answer.metadata.resource_version
            self._ledger_seq += 1

        stands = await self._admin.get(LEDGERS, "lattice")
        return [partial(commit, number) for number in range(count)]

    async def _plans(self, count: int) -> list[Call]:
        """Returns calls that each write the longest plan with a higher number; they must be made one after another."""

        async def write(number: int) -> None:
            """Writes the plan with a higher number."""
            spec = {**stands["spec"], "seq": stands["spec"]["seq"] + number + 1}
            version = stands["metadata"]["resourceVersion"]
            body = {"metadata": {"name": stands["metadata"]["name"], "resourceVersion": version}, "spec": spec}
            answer = await self._scheduler.replace(PLANS, stands["metadata"]["name"], body, type=Written, metadata_only=True)
            stands["metadata"]["resourceVersion"] = answer.metadata.resource_version

        stands = max((await self._admin.list(PLANS)).items, key=lambda plan: len(plan["spec"]["text"]))
        return [partial(write, number) for number in range(count)]

    async def _heartbeats(self, count: int) -> list[Call]:
        """Returns calls that each write a heartbeat of a hollow node."""
        nodes = [self._names[number] for number in sorted(self._names)][:count]
        metrics = AgentMetrics("bench")
        beats = [
            Heartbeat(
                node, self._hollow.impersonate(f"lattice:agent:{node}", ("lattice:agents",)), self._driver.clock,
                NodeIdentity("bench", "bench"), metrics, seconds=lambda: 10.0,
            )
            for node in nodes
        ]  # fmt: skip
        return [partial(beats[number % len(beats)].beat, Seen(self._ledger_seq), ReportContent()) for number in range(count)]

    async def _events(self, count: int) -> list[Call]:
        """Returns calls that each write an Event of an Allocation placed before; as many as there are, at most `count`."""
        announcer = Announcer(self._scheduler, self._driver.clock, "bench", "lattice.dev/scheduler")
        found = [await self._admin.get(ALLOCATIONS, name, NAMESPACE, type=Allocation) for name in self._placed]
        return [
            partial(announcer.announce, ALLOCATIONS, one.metadata, "Scheduled", f"1 node: {one.status.nodes}", action="Place")
            for one in found[:count]
        ]

    async def _usage(self, count: int) -> list[Call]:
        """Returns calls that each append a row to a UsageRecord, which is created where none has room; they must be made one after
        another.
        """

        async def append(number: int) -> None:
            """Appends a row to the UsageRecord."""
            stands["rows"] += _USAGE_ROW
            patch = {"metadata": {"resourceVersion": stands["version"]}, "spec": {"rows": stands["rows"], "sealed": False}}
            answer = await self._operator.patch(USAGE_RECORDS, name, patch, type=Written)
            stands["version"] = answer.metadata.resource_version

        if self._usage_part < 0 or self._usage_rows + count > MOST_USAGE_ROWS:
            self._usage_part, self._usage_rows = self._usage_part + 1, 0
            await self._operator.create(USAGE_RECORDS, _usage_record(self._usage_part))
        self._usage_rows += count
        name = record_name(USAGE_TENANT, USAGE_MONTH, self._usage_part)
        found = await self._admin.get(USAGE_RECORDS, name)
        stands = {"rows": found["spec"]["rows"], "version": found["metadata"]["resourceVersion"]}
        return [partial(append, number) for number in range(count)]


_USAGE_ROW = "AAAAAAAAAAAAAAAAAAAAAA 1 1 1000001 example created-000001 - alice - hpc-batch 1 0 1 1 1 1 C Completed 0 1 0 5\n"
_SCORE = {"total": "0.512", "terms": {f"f{number}": "0.500" for number in range(1, 10)}}


def _usage_record(part: int) -> dict[str, Any]:
    """Returns a UsageRecord without rows."""
    spec = {"tenant": USAGE_TENANT, "month": USAGE_MONTH, "part": part, "sealed": False, "rows": "1\n"}
    metadata = {"name": record_name(USAGE_TENANT, USAGE_MONTH, part)}
    return {"apiVersion": USAGE_RECORDS.api_version, "kind": USAGE_RECORDS.kind, "metadata": metadata, "spec": spec}


def _row(found: Allocation, node: int) -> Row:
    """Returns the ledger's row of an Allocation that holds one node."""
    spec = found.spec
    return Row(
        found.metadata.uid, 1, found.metadata.generation, spec.user, spec.tenant, spec.vcluster, "B", ROW_HELD, node, (node,), walltime=600
    )  # fmt: skip


def _begun(now: float) -> Begun:
    """Returns the verdict that work has begun."""
    return Begun(now, 1)


def _over(now: float) -> Over:
    """Returns the verdict that work has ended well."""
    return Over("Completed", "every task ended with 0", begun=True, start=now, end=now)
