"""The HTTPS side of the gateway: routes, identity and rights of callers, errors as JSON, output as lines of JSON."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Final

import msgspec
from aiohttp import ClientConnectionError, web

from lattice.daemon.clock import Clock
from lattice.daemon.https import error_response
from lattice.daemon.logs import event
from lattice.daemon.process import first_cause
from lattice.daemon.tasks import CANCELLED_INSIDE, is_cancelled
from lattice.errors import LatticeError, Retry, TooMany, UnknownOutcome
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Informer
from lattice.kube.resources import ALLOCATIONS
from lattice.views import Allocation, Node, VCluster
from lattice.views.ledger import Plan
from lattice_gateway.agents import Agents
from lattice_gateway.attempts import Target, at_once, limit_to
from lattice_gateway.caches import CACHE, CacheDesk
from lattice_gateway.identity import Authenticator, Identity
from lattice_gateway.image_names import ImageNames
from lattice_gateway.launches import LAUNCHES, LaunchDesk
from lattice_gateway.lines import Record
from lattice_gateway.lists import NODE_LIST, STATUS, Lists
from lattice_gateway.logs import LogStream
from lattice_gateway.metrics import Metrics
from lattice_gateway.node_reports import DIAGNOSIS, NODE, NodeReports
from lattice_gateway.query import Query, read_query
from lattice_gateway.questions import CYCLE, CYCLES, LARGEST_PLAN, PLAN, QUEUE, QUEUE_OF_ONE, QUOTA, QUOTA_EXPLAINED, WHY, Questions
from lattice_gateway.rights import Rights
from lattice_gateway.scheduler import Scheduler
from lattice_gateway.software import UENV, UENVS, SoftwareCatalog
from lattice_gateway.steps import STEPS, StepsDesk
from lattice_gateway.usage import HISTORY, USAGE, USAGE_OF_TENANT, UsageDesk

log = logging.getLogger(__name__)

MOST_STREAMS: Final = 64
"""Streams of output that one person may read at a time."""
MOST_QUESTIONS: Final = {"POST plan": 1, "GET status": 16, "GET nodes": 16, "GET uenvs": 2, "GET uenv": 2, "POST cache": 4}
"""Questions of a kind that one person may have under way, for kinds that differ from `USUAL_QUESTIONS`."""
USUAL_QUESTIONS: Final = 8
AGAIN_SECONDS: Final = {"POST plan": 2.0}
"""Seconds after which a caller who asked too much may ask again, for kinds that differ from `USUAL_AGAIN_SECONDS`."""
USUAL_AGAIN_SECONDS: Final = 1.0
RECHECK_SECONDS: Final = 300.0
"""Time between two checks of the rights of a reader whose stream is open."""
MOST_UNCHECKED: Final = 3
"""Checks in a row of a reader's rights that errors may prevent; the next one that is prevented ends the stream."""
LOGS: Final = "/namespaces/{namespace}/allocations/{name}/logs"
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
Question = Callable[[web.Request, Identity], Awaitable[web.StreamResponse]]


class Server:
    """Answers people's requests; an output stream is one request, and no state outlives a request."""

    def __init__(
        self, cluster: Cluster, agents: Agents, scheduler: Scheduler, clock: Clock, metrics: Metrics, nodes: Informer[Node],
        vclusters: Informer[VCluster], plans: Mapping[str, Plan], registry_auth: str = "",
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._agents = agents
        self._clock = clock
        self._metrics = metrics
        self._authenticator = Authenticator(cluster, clock)
        self._rights = Rights(cluster, clock)
        self._turns: Counter[tuple[str, str]] = Counter()
        names = ImageNames(cluster, registry_auth)
        self._questions = Questions(cluster, self._rights, scheduler, names)
        self._lists = Lists(self._rights, scheduler, nodes, vclusters, clock)
        self._software = SoftwareCatalog(cluster, registry_auth)
        self._steps = StepsDesk(cluster, self._rights, agents)
        self._launches = LaunchDesk(cluster, self._rights, agents, clock)
        self._reports = NodeReports(cluster, self._rights, agents, nodes.objects, plans)
        self._caches = CacheDesk(self._rights, agents, nodes.objects, names)
        self.usage = UsageDesk(cluster, clock, self._rights, scheduler)

    def application(self) -> web.Application:
        """Returns a new web application that answers people; its routes are under /v1 and /api/v1, and /healthz."""
        app = web.Application(client_max_size=LARGEST_PLAN)
        for root in ("/v1", "/api/v1"):
            app.router.add_get(root + LOGS, self._measured("GET logs", self._answer_logs))
            for verb, path, answer in self._questions_served():
                name = f"{verb} {path.split('/')[1]}"
                app.router.add_route(verb, root + path, self._measured(name, self._identified(name, answer)))
        app.router.add_get("/healthz", self._healthz)
        return app

    def _questions_served(self) -> tuple[tuple[str, str, Question], ...]:
        """Returns method, path and function of each question that is answered in one piece."""
        asked, usage, lists, software = self._questions, self.usage, self._lists, self._software
        return (
            ("GET", STATUS, lists.status), ("GET", NODE_LIST, lists.nodes),
            ("GET", WHY, asked.why), ("GET", QUEUE, asked.queue), ("GET", QUEUE_OF_ONE, asked.queue), ("GET", QUOTA, asked.quota),
            ("GET", QUOTA_EXPLAINED, asked.quota_explained), ("GET", CYCLES, asked.cycles), ("GET", CYCLE, asked.cycles),
            ("GET", USAGE, usage.usage), ("GET", USAGE_OF_TENANT, usage.usage), ("GET", HISTORY, usage.history), ("POST", PLAN, asked.plan),
            ("GET", UENVS, software.list_images), ("GET", UENV, software.inspect), ("POST", CACHE, self._caches.answer),
            ("GET", STEPS, self._steps.answer), ("GET", NODE, self._reports.node), ("GET", DIAGNOSIS, self._reports.diagnosis),
            ("GET", LAUNCHES, self._launches.list_launches), ("POST", LAUNCHES, self._launches.cancel),
        )  # fmt: skip

    async def _healthz(self, request: web.Request) -> web.Response:
        """Answers that the process lives."""
        del request
        return web.Response(text="ok\n")

    def _measured(self, method: str, answer: Answer) -> Answer:
        """Returns the handler with LatticeErrors turned into JSON answers, counted and timed under the name `method`; other errors are
        raised.
        """

        async def measured(request: web.Request) -> web.StreamResponse:
            """Answers a request and measures that; a reader that has left counts as 499, an error that is not Lattice's own as 500."""
            begun = self._clock.monotonic()
            status = "500"
            try:
                response = await _answered(answer, request)
                status = str(response.status)
                return response
            except web.HTTPException as error:
                status = str(error.status)
                raise
            except (asyncio.CancelledError, ClientConnectionError):
                status = "499"  # the reader has left
                raise
            finally:
                self._metrics.requests.labels(method, status).inc()
                self._metrics.seconds.labels(method).observe(max(0.0, self._clock.monotonic() - begun))

        return measured

    def _identified(self, method: str, answer: Question) -> Answer:
        """Returns the handler with the caller identified, and limited to a few questions of the kind `method` at a time (TooMany)."""

        async def identified(request: web.Request) -> web.StreamResponse:
            """Answers a request of an identified caller, as one of those that he may have open at a time."""
            identity = await self._identify(request)
            with self._turn(identity, method, MOST_QUESTIONS.get(method, USUAL_QUESTIONS)):
                return await answer(request, identity)

        return identified

    @contextlib.contextmanager
    def _turn(self, identity: Identity, method: str, most: int) -> Iterator[None]:
        """Counts a question of this person as under way; raises TooMany where he has `most` already."""
        key = (identity.user, method)
        if self._turns[key] >= most:
            said = f'"{identity.user}" has {self._turns[key]} requests {method} under way (limit: {most}): wait for their answers'
            raise TooMany(said, reason="TooManyQuestions", after_seconds=AGAIN_SECONDS.get(method, USUAL_AGAIN_SECONDS))
        self._turns[key] += 1
        try:
            yield
        finally:
            self._turns[key] -= 1
            if not self._turns[key]:
                del self._turns[key]

    async def _answer_logs(self, request: web.Request) -> web.StreamResponse:
        """Answers with the output of an allocation as a stream of lines.

        Raises Denied where the caller may not read it, NotFound where it does not exist, Rejected for a bad parameter, Stale while
        nothing has started unless it is followed, and TooMany beyond 64 streams of one person.
        """
        identity = await self._identify(request)
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        await self._rights.may_read_logs(identity, namespace, name)
        allocation = await self._cluster.get(ALLOCATIONS, name, namespace, type=Allocation)
        await self._rights.may_see_work_of(identity, allocation)
        query = read_query(request.query, self._clock.now())  # only now: reading it may be work
        target = None if query.follow else limit_to(at_once(allocation, query.attempt), query.nodes, allocation.metadata.key)
        event(log, "LogsRead", allocation=allocation.metadata.key, user=identity.user, follow=query.follow)
        with self._turn(identity, "GET logs", MOST_STREAMS), self._metrics.streams.labels("logs").track_inprogress():
            return await self._stream(request, allocation, query, target)

    async def _identify(self, request: web.Request) -> Identity:
        """Returns who asks, by client certificate or token. Raises Denied where neither is known."""
        certificate = request.transport.get_extra_info("peercert") if request.transport is not None else None
        return await self._authenticator.identify(certificate, request.headers.get("Authorization", ""))

    async def _stream(self, request: web.Request, allocation: Allocation, query: Query, target: Target | None) -> web.StreamResponse:
        """Writes an allocation's output into the answer until its end, or until the reader leaves or loses the right; an error ends it with
        a last line.

        `target`: the attempt to read; None: it follows all attempts.
        """
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson", "Cache-Control": "no-store"})
        await response.prepare(request)
        turn = asyncio.Lock()

        async def sink(records: list[Record]) -> None:
            """Writes one batch; returns when the reader has room for more."""
            if records:
                async with turn:
                    await response.write(b"".join(msgspec.json.encode(record) + b"\n" for record in records))

        stream = LogStream(self._cluster, self._agents, self._clock, allocation, query, sink)
        try:
            async with asyncio.TaskGroup() as group:
                checking = group.create_task(self._recheck(request, allocation))
                await (stream.follow() if target is None else stream.read(target))
                checking.cancel()
            await response.write_eof()
        except* LatticeError as errors:
            await self._cut(response, allocation, errors)
        except* ClientConnectionError:
            pass  # the reader has left
        return response

    async def _cut(self, response: web.StreamResponse, allocation: Allocation, errors: BaseExceptionGroup[LatticeError]) -> None:
        """Ends a stream that has begun with the reason as its last record, and without `end`."""
        cause = first_cause(errors)
        if not isinstance(cause, LatticeError):
            return
        event(log, "LogsCut", logging.WARNING, allocation=allocation.metadata.key, reason=cause.reason, message=cause.message)
        record = {"error": cause.message, "reason": cause.reason}
        with contextlib.suppress(ClientConnectionError):  # the reader has left
            await response.write(msgspec.json.encode(record) + b"\n")
            await response.write_eof()

    async def _recheck(self, request: web.Request, allocation: Allocation) -> None:
        """Raises Denied as soon as the caller may no longer read this output, by a check every 5 minutes; else runs until cancelled.

        A check that a passing error of the API server prevents is made again 5 minutes later; the fourth such error in a row is raised, and
        other errors at once.
        """
        unchecked = 0
        while True:
            await self._clock.sleep(RECHECK_SECONDS)
            try:
                identity = await self._identify(request)
                await self._rights.may_read_logs(identity, allocation.metadata.namespace, allocation.metadata.name)
                await self._rights.may_see_work_of(identity, allocation)
                unchecked = 0
            except (Retry, UnknownOutcome) as error:
                unchecked += 1
                if unchecked > MOST_UNCHECKED:
                    raise
                event(
                    log, "RightNotChecked", logging.WARNING, allocation=allocation.metadata.key, reason=error.reason, message=error.message
                )


async def _answered(answer: Answer, request: web.Request) -> web.StreamResponse:
    """Returns the answer to a request; an error of Lattice, or a cancellation from within, becomes an answer of its own."""
    try:
        return await answer(request)
    except LatticeError as error:
        return error_response(error)
    except asyncio.CancelledError as error:  # aiohttp would close the connection without a word
        if is_cancelled():
            raise
        event(log, "HandlerCancelled", logging.ERROR, error=error, path=request.path, message=CANCELLED_INSIDE)
        return error_response(Retry(CANCELLED_INSIDE, reason="Cancelled"))
