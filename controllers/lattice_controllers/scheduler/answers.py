"""The scheduler's HTTPS server for the gateway: answers `why`, `queue`, `plan`, `status`, `quota`, and serves recorded cycles.

The gateway has authenticated the reader and names him in the query. Only the leader answers; a standby says who leads. Every answer is
computed from the loop's live state and changes nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import msgspec
from aiohttp import web

from lattice.accounting.answers import Unsettled
from lattice.daemon import https
from lattice.daemon.certificates import CHECK_SECONDS, ServerCertificate
from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import Denied, LatticeError, Rejected, Retry
from lattice.scheduling.queries.answers import CycleLog, Cycles, Part, Plan, Queues, Why
from lattice.scheduling.queries.quota_answers import QuotaExplanation, Quotas
from lattice.scheduling.queries.readers import Reader
from lattice.scheduling.queries.row_shapes import STATUS_SCHEMA
from lattice.scheduling.queries.status_rows import Selection, StatusRows
from lattice.scheduling.recording.cycle_log import cycle_of
from lattice.software.answers import PlannedImages
from lattice.units import is_digits, whole_number
from lattice_controllers.scheduler.status_rows import StatusAnswer

log = logging.getLogger(__name__)
T = TypeVar("T")

GATEWAY: Final = "lattice:gateway"
"""The one client that the server answers: the common name of its certificate."""
ANNOTATION: Final = "lattice.dev/answers"
"""The annotation on the leader's Lease with the URL at which it answers."""
LARGEST_BODY: Final = 8 * 1024 * 1024
QUEUE_LIMIT: Final = 200
"""Entries of one vcluster's queue that are answered, where the question names no limit."""


class Queries(Protocol):
    """The questions that a leader answers during one term; `QueryService` is the implementation."""

    async def why(self, uid: str, reader: Reader, *, version: str = "") -> Why:
        """Returns why a pending allocation waits, by a cache no older than `version` (a resourceVersion; empty: any age).

        Raises NotFound when it is not pending, Retry where the cache cannot tell how old it is.
        """
        ...

    async def plan(
        self, allocations: Sequence[dict[str, Any]], reader: Reader, *, optimal: bool, images: Sequence[PlannedImages] = ()
    ) -> Plan:
        """Returns where and when each of these allocations, none of them submitted, would start, in the order given.

        `images`: what registries say of the images of each, where they were asked. `optimal` adds the solver's bound on the
        value of the planned cycle. Raises Rejected for a document that does not read, Denied where its namespace is not its tenant's.
        """
        ...

    async def queue(self, vcluster: str, reader: Reader, limit: int, *, version: str = "") -> Queues:
        """Returns the queue of a vcluster as the reader may see it, at most `limit` entries, by a cache no older than `version`.

        An empty name asks for the queues of all vclusters. Raises NotFound for an unknown one, Retry where the cache's age is unknown.
        """
        ...

    async def status(self, selection: Selection, *, version: str, wide: bool) -> StatusAnswer:
        """Returns the rows of `lattice status` for a selection, from a cache no older than `version` (a resourceVersion; empty: any age).

        Rows are not filtered by anybody's rights: the gateway has checked them. `wide` adds the details. Raises Retry where the age of the
        cache cannot be told, Rejected for more than 50,000 rows.
        """
        ...

    async def unsettled(self, tenants: frozenset[str], user: str) -> Unsettled:
        """Returns the charges that no usage record holds yet: those of any of these tenants or of this user; both empty: of everybody."""
        ...

    async def quota(self, reader: Reader) -> Quotas:
        """Returns the quota trees, with the groups that the reader may see."""
        ...

    async def explain_quota(self, uid: str, reader: Reader) -> QuotaExplanation:
        """Returns the result of every gate for an allocation, by uid; raises NotFound when it neither waits nor holds nodes."""
        ...


class CycleRecords(Protocol):
    """The cycle log of one term; `Recorder` is the implementation."""

    async def cycles(self) -> Cycles:
        """Returns which cycles are recorded, oldest first."""
        ...

    async def cycle(self, number: int) -> CycleLog:
        """Returns the log of one cycle, 0: of the last one; raises NotFound, with a sentence on which cycles there are.

        Raises Rejected where the log on disk is damaged.
        """
        ...


@dataclass(frozen=True)
class ServerFiles:
    """Paths of PEM files: the server's certificate and key, and the CA that the gateway's certificate is checked against."""

    certificate: str
    key: str
    client_ca: str


class _Body(msgspec.Struct, frozen=True):
    allocations: list[dict[str, Any]]
    optimal: bool = False
    images: list[PlannedImages] = []


Answer = Callable[[web.Request], Awaitable[msgspec.Struct | web.Response]]


class AnswerServer:
    """The HTTPS server of one scheduler process, leader or standby; it runs as long as the process.

    `queries` and `records` return the running term's query service and recorder, or None while this process does not lead: then every
    question is refused with Retry, and the sentence names `leader`, the holder of the Lease as last seen.
    """

    def __init__(
        self, files: ServerFiles, clock: Clock, *, queries: Callable[[], Queries | None], leader: Callable[[], str],
        records: Callable[[], CycleRecords | None] = lambda: None,
    ) -> None:  # fmt: skip
        self._files = files
        self._clock = clock
        self._queries = queries
        self._records = records
        self._leader = leader
        self._certificate = ServerCertificate(files.certificate, files.key, client_ca=self._authority())

    async def run(self, address: str, on_listen: Callable[[str, int], None]) -> None:
        """Serves on HOST:PORT until cancelled, and reads changed certificates and CA again.

        Calls `on_listen` with the host and port that it listens on (port 0 asks for any).
        """

        def listens(host: str, port: int) -> None:
            """Logs the address and calls `on_listen`."""
            event(log, "Listening", address=f"{host}:{port}")
            on_listen(host, port)

        async with asyncio.TaskGroup() as group:
            group.create_task(self._certificate.follow(self._clock))
            group.create_task(self._follow_authority())
            group.create_task(https.serve(self.application(), address, self._certificate.context, on_listen=listens, cancel_abandoned=True))

    def application(self) -> web.Application:
        """Returns a new web application that answers the gateway's questions under /v1, and refuses every other client with Denied."""
        app = web.Application(client_max_size=LARGEST_BODY)
        app.router.add_get("/v1/why/{uid}", self._answered(self._why))
        app.router.add_get("/v1/status", self._answered(self._status))
        app.router.add_get("/v1/queue", self._answered(self._queue))
        app.router.add_get("/v1/queue/{vcluster}", self._answered(self._queue))
        app.router.add_post("/v1/plan", self._answered(self._plan))
        app.router.add_get("/v1/unsettled", self._answered(self._unsettled))
        app.router.add_get("/v1/quota", self._answered(self._quota))
        app.router.add_get("/v1/quota/explain/{uid}", self._answered(self._explain_quota))
        app.router.add_get("/v1/cycles", self._answered(self._cycles))
        app.router.add_get("/v1/cycles/{cycle}", self._answered(self._cycle))
        return app

    # -- the questions ------------------------------------------------------------------------------------------------

    async def _why(self, request: web.Request) -> Part:
        """Answers why a pending allocation waits."""
        return await self._leading().why(request.match_info["uid"], reader_of(request.query), version=version_of(request.query))

    async def _queue(self, request: web.Request) -> Part:
        """Answers with the queue of one vcluster, or of all, 200 entries where the query names no `limit`; raises Rejected where that is
        not 1 to 10000.
        """
        query, vcluster = request.query, request.match_info.get("vcluster", "")
        limit = query.get("limit", "")
        if limit and whole_number(limit, 1, 10_000) is None:
            raise Rejected(f"the parameter limit is {limit!r}: 1 to 10000", reason="ParameterInvalid", fields=("limit",))
        return await self._leading().queue(vcluster, reader_of(query), int(limit or QUEUE_LIMIT), version=version_of(query))

    async def _status(self, request: web.Request) -> web.Response:
        """Answers a request for status rows; with 304 and no body where the request's `If-None-Match` names the present answer."""
        query = request.query
        user, wide = reader_of(query).user, query.get("wide") == "true"
        found = await self._leading().status(selection_of(query), version=version_of(query), wide=wide)
        headers = {"ETag": f'"{found.tag}"'}
        if request.headers.get("If-None-Match") == headers["ETag"]:
            return web.Response(status=304, headers=headers)
        rows = StatusRows(schema=STATUS_SCHEMA, user=user, version=found.version, rows=found.rows, details=found.details)
        return web.Response(body=msgspec.json.encode(rows), content_type="application/json", headers=headers)

    async def _plan(self, request: web.Request) -> Part:
        """Answers where the allocations in the body would start; raises Rejected where the body does not read."""
        try:
            body = msgspec.json.decode(await request.read(), type=_Body)
        except msgspec.DecodeError as error:
            raise Rejected(f"the body of a plan is no list of allocations: {error}", reason="PlanInvalid") from error
        return await self._leading().plan(body.allocations, reader_of(request.query), optimal=body.optimal, images=body.images)

    async def _quota(self, request: web.Request) -> Part:
        """Answers with the quota trees as the reader may see them."""
        return await self._leading().quota(reader_of(request.query))

    async def _explain_quota(self, request: web.Request) -> Part:
        """Answers with the result of every gate for one allocation."""
        return await self._leading().explain_quota(request.match_info["uid"], reader_of(request.query))

    async def _unsettled(self, request: web.Request) -> msgspec.Struct:
        """Answers with the charges that no usage record holds yet, of the tenants or the user that the query names."""
        tenants = frozenset(name for name in request.query.get("tenants", "").split(",") if name)
        return await self._leading().unsettled(tenants, request.query.get("user", ""))

    async def _cycles(self, request: web.Request) -> Part:
        """Answers which cycles are recorded."""
        del request
        return await self._of_leader(self._records()).cycles()

    async def _cycle(self, request: web.Request) -> Part:
        """Answers with the log of one recorded cycle; raises Rejected where the path names no cycle number."""
        return await self._of_leader(self._records()).cycle(cycle_of(request.match_info["cycle"]))

    def _leading(self) -> Queries:
        """Returns the query service of the running term; raises Retry while this process does not lead."""
        return self._of_leader(self._queries())

    def _of_leader(self, part: T | None) -> T:
        """Returns a part of the running term; raises Retry, naming the leader, where it is None because this process does not lead."""
        if part is None:
            raise Retry(f"this scheduler is a standby; {self._leader() or 'nobody'} leads", reason="NotLeading")
        return part

    # -- around them --------------------------------------------------------------------------------------------------

    def _answered(self, answer: Answer) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        """Returns a handler that checks the caller, awaits an answer and encodes it as JSON; errors of Lattice become error responses,
        others are raised.
        """

        async def answered(request: web.Request) -> web.StreamResponse:
            """Answers one request of a peer that may ask, as JSON; an error of Lattice becomes an answer of its own."""
            try:
                _check_peer(request)
                found = await answer(request)
                if isinstance(found, web.Response):
                    return found
                return web.Response(body=msgspec.json.encode(found), content_type="application/json")
            except LatticeError as error:
                return https.error_response(error)

        return answered

    def _authority(self) -> str:
        """Reads the file of the CA that the gateway's certificate is checked against; raises Rejected where it cannot be read."""
        try:
            return Path(self._files.client_ca).read_text()
        except (OSError, UnicodeDecodeError) as error:
            raise Rejected(f"{self._files.client_ca} cannot be read: {error}", reason="CertificateUnreadable") from error

    async def _follow_authority(self) -> None:
        """Reads the CA's file again every few seconds and trusts what it holds; an unreadable file leaves the last CA in force.

        Never returns.
        """
        while True:
            await self._clock.sleep(CHECK_SECONDS)
            try:
                self._certificate.trust(self._authority())
            except Rejected as error:
                event(log, "CertificateUnusable", logging.WARNING, certificate=self._files.client_ca, message=error.message)


def _check_peer(request: web.Request) -> None:
    """Raises Denied, and logs the caller, unless the client has shown the gateway's certificate."""
    certificate: Mapping[str, Any] | None = request.transport.get_extra_info("peercert") if request.transport is not None else None
    names = [value for part in (certificate or {}).get("subject", ()) for key, value in part if key == "commonName"]
    if names != [GATEWAY]:
        shown = ", ".join(names) or "nobody"
        event(log, "CallerRefused", logging.WARNING, caller=shown)
        raise Denied(f"questions are asked through the gateway, not by {shown}", reason="NotTheGateway")


def selection_of(query: Mapping[str, str]) -> Selection:
    """Returns the selection of rows that the query parameters ask for; raises Rejected where `after` or `numbers` does not read."""
    try:
        after = float(query["after"]) if query.get("after") else None
    except ValueError as error:
        raise Rejected(f"the parameter after is {query['after']!r}: seconds since the epoch", reason="ParameterInvalid") from error
    states = frozenset(state for state in query.get("states", "").split(",") if state)
    vcluster, namespace = query.get("vcluster", ""), query.get("namespace", "")
    return Selection(
        namespace=namespace, user=query.get("of", ""), states=states, vcluster=vcluster, after=after,
        numbers=numbers_of(query.get("numbers", "")), called=query.get("numbers", ""),
    )  # fmt: skip


def numbers_of(text: str) -> tuple[int, int] | None:
    """Returns the first and the last number of `12` or `12-17`; None for an empty text. Raises Rejected where the text is neither."""
    first, dash, last = text.partition("-")
    if not text:
        return None
    if not all(is_digits(part, 12) for part in ((first, last) if dash else (first,))):
        raise Rejected(f"the parameter numbers is {text!r}: 12, or 12-17", reason="ParameterInvalid", fields=("numbers",))
    return int(first), int(last or first)


def version_of(query: Mapping[str, str]) -> str:
    """Returns the resourceVersion that the answer must not be older than; empty: any age. Raises Rejected where it is no number."""
    version = query.get("version", "")
    if version and not is_digits(version, 20):
        raise Rejected(f"the parameter version is {version!r}: a resourceVersion", reason="ParameterInvalid", fields=("version",))
    return version


def reader_of(query: Mapping[str, str]) -> Reader:
    """Returns the reader that the gateway names in the query parameters; raises Rejected without a user."""
    if not query.get("user"):
        raise Rejected("the parameter user says who asks, and is missing", reason="ParameterInvalid", fields=("user",))
    namespaces = frozenset(name for name in query.get("namespaces", "").split(",") if name)
    return Reader(query["user"], namespaces, query.get("all") == "true", query.get("groups") == "true")
