"""The HTTPS side of the webhook: /mutate, /validate and /readyz; a review is answered within three seconds, or with an error status."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace

from aiohttp import web

from lattice.admission import Accepted, Refused, Request, fill, judge
from lattice.admission.chain import undecided, unreadable
from lattice.daemon import starts
from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.errors import LatticeError, Rejected
from lattice_webhooks.facts import Caches, Gatherer
from lattice_webhooks.metrics import Metrics
from lattice_webhooks.reviews import HEAD_BYTES, Authenticated, Review, allowed, beyond, filled, judged, read_review

log = logging.getLogger(__name__)

ANSWER_SECONDS = 2.5
"""Time for one answer; the API server waits three seconds."""
EARLY_SECONDS = 1.0
"""Time for the facts of an early judgement, which the validating call can still make up for."""
MAX_BODY = 4 * 1024 * 1024
"""Largest body that is read: two objects of the largest size in etcd, and the rest of a review.

A larger one is refused by its first bytes; an error would leave it to the failure policy, which lets it in.
"""


class Server:
    """Answers reviews; each answer depends only on the review and the facts."""

    def __init__(self, gatherer: Gatherer, caches: Caches, metrics: Metrics, clock: Clock, *, asks_certificate: bool) -> None:
        """Answers only clients whose certificate the TLS context verified, where `asks_certificate` is set."""
        self._asks_certificate = asks_certificate
        self._gatherer = gatherer
        self._caches = caches
        self._metrics = metrics
        self._clock = clock

    def application(self) -> web.Application:
        """Returns a new web application with the routes /mutate, /validate and /readyz."""
        app = web.Application()
        app.router.add_post("/mutate", self._mutate)
        app.router.add_post("/validate", self._validate)
        app.router.add_get("/readyz", self._readyz)
        return app

    def ready(self) -> tuple[bool, str]:
        """Tells whether every cache has been listed, with a sentence that says so or names those that have not."""
        missing = self._caches.unsynced()
        return (False, f"not read yet: {', '.join(missing)}") if missing else (True, "reviews are answered")

    async def _readyz(self, request: web.Request) -> web.Response:
        """Answers 200 where the webhook is ready, else 503, with a sentence."""
        del request
        fine, sentence = self.ready()
        return web.Response(status=200 if fine else 503, text=sentence + "\n")

    async def _mutate(self, request: web.Request) -> web.Response:
        """Answers a review for defaults."""
        return await self._answer(request, "mutate", self._fill)

    async def _validate(self, request: web.Request) -> web.Response:
        """Answers a review for checks."""
        return await self._answer(request, "validate", self._judge)

    async def _answer(self, request: web.Request, method: str, decide: Callable[[Review], Awaitable[bytes]]) -> web.Response:
        """Answers a review by `decide`, and measures that.

        Answers 403 without a client certificate where one is asked for; a body that is too large is refused without reading it whole.
        """
        if self._asks_certificate and not request.get_extra_info("peercert"):
            self._metrics.requests.labels(method, "403").inc()
            return web.Response(
                status=403, text="reviews are for the API server: show its client certificate\n", headers={"Connection": "close"}
            )
        begun = self._clock.monotonic()
        body, size = await _body(request)
        response = await self._decided(body, decide, begun) if size <= MAX_BODY else _unread(body, size)
        self._metrics.seconds.labels(method).observe(max(0.0, self._clock.monotonic() - begun))
        self._metrics.requests.labels(method, str(response.status)).inc()
        return response

    async def _decided(self, body: bytes, decide: Callable[[Review], Awaitable[bytes]], begun: float) -> web.Response:
        """Returns the answer of `decide`; 400 for a body that is no review, 503 for an error of Lattice or 2.5 s without an answer.

        Such a status leaves the request to the webhook's failure policy.
        """
        try:
            review = read_review(body)
        except Rejected as error:
            return web.Response(status=400, text=error.message)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._caches.synced()
                response = web.Response(body=await decide(review), content_type="application/json")
                self._trace(review, begun)
                return response
        except TimeoutError:
            event(log, "ReviewTimedOut", logging.WARNING, seconds=ANSWER_SECONDS, ready=self.ready()[1])
            return web.Response(status=503, text=f"the facts could not be gathered within {ANSWER_SECONDS} s: {self.ready()[1]}")
        except LatticeError as error:
            event(log, "ReviewFailed", logging.WARNING, reason=error.reason, message=error.message)
            return web.Response(status=503, text=f"the facts could not be gathered: {error.message}")

    def _trace(self, review: Review, begun: float) -> None:
        """Logs when a creation arrived and when it was answered, where starts are traced."""
        asked = review.request
        if starts.traced() and asked is not None and (asked.kind, asked.operation) == ("Allocation", "CREATE"):
            key = f"{asked.namespace}/{asked.obj.get('metadata', {}).get('name', '')}"
            starts.reached(self._clock, "post", key, at=begun)
            starts.reached(self._clock, "webhook", key)

    async def _fill(self, review: Review) -> bytes:
        """Returns the answer to a review for defaults: the patch, with the verdict where it can be given already, or a refusal of an object
        that does not read, is too large, or leaves open what defaults cannot decide.

        A new Allocation that is accepted already is counted as waiting.
        """
        if review.too_large is not None:
            return judged(review, review.too_large)
        if review.request is None or review.request.operation == "DELETE":
            return allowed(review)
        refused = unreadable(review.request)
        if refused is not None:
            return judged(review, refused)
        facts = await self._gatherer.defaults(review.request, review.identity)
        accepted = fill(review.request, facts)
        request = replace(review.request, obj=accepted.obj)
        refused = undecided(request, facts)
        if refused is not None:
            return judged(review, refused)
        verdict = await self._judged_early(request, review.identity)
        if verdict is None:
            return filled(review, accepted)
        if not review.judged:
            self._count(request, review)
        return filled(review, verdict, judged=True)

    async def _judged_early(self, request: Request, identity: Authenticated) -> Accepted | None:
        """Returns the acceptance of a new Allocation, which then needs no validating call; None: that call must judge it, as after an
        error, or a second without the facts.

        A refusal is left to that call, so that schema and policies are checked before it.
        """
        if (request.kind, request.operation) != ("Allocation", "CREATE"):
            return None
        try:
            async with asyncio.timeout(EARLY_SECONDS):
                verdict = judge(request, await self._gatherer.checks(request, identity))
        except (LatticeError, TimeoutError):
            return None
        return verdict if isinstance(verdict, Accepted) else None

    def _count(self, request: Request, review: Review) -> None:
        """Counts an admitted Allocation, or the members of a DAG, as waiting until the next count, even if the schema or a policy
        refuses it afterwards.
        """
        if request.kind in ("Allocation", "DAG") and request.operation == "CREATE" and not review.dry_run:
            spec = request.obj.get("spec") or {}
            for _ in range(len(spec.get("members") or ()) if request.kind == "DAG" else 1):
                self._caches.pending.admitted(str(spec.get("tenant") or ""), str(spec.get("user") or ""))

    async def _judge(self, review: Review) -> bytes:
        """Returns the answer to a review for checks; a refusal is logged, an admitted new Allocation counted. Raises errors of the API
        server.
        """
        if review.too_large is not None:
            return judged(review, review.too_large)
        if review.request is None:
            return allowed(review)
        facts = await self._gatherer.checks(review.request, review.identity)
        if review.request.kind == "DAG":
            verdict = await asyncio.to_thread(judge, review.request, facts)  # a thousand members: others are answered meanwhile
        else:
            verdict = judge(review.request, facts)
        if isinstance(verdict, Refused):
            asked = review.request.obj or review.request.old
            name = asked.get("metadata", {}).get("name", "")
            event(
                log,
                "Refused",
                kind=review.request.kind,
                name=f"{review.request.namespace}/{name}".lstrip("/"),
                user=review.identity.user,
                reason=verdict.reason,
                field=verdict.field,
            )
        else:
            self._count(review.request, review)
        return judged(review, verdict)


async def _body(request: web.Request) -> tuple[bytes, int]:
    """Returns the body and its size in bytes; a body beyond 4 MiB is read off the connection, and only its first 64 KiB returned."""
    body, size = bytearray(), 0
    async for chunk in request.content.iter_any():
        size += len(chunk)
        if size > MAX_BODY:
            del body[HEAD_BYTES:]
        else:
            body += chunk
    return bytes(body), size


def _unread(head: bytes, size: int) -> web.Response:
    """Returns the answer to a review that is too large: a refusal where its head tells what it is of, else 413."""
    answer = beyond(head, size, MAX_BODY)
    if answer is None:
        return web.Response(status=413, text=f"the review has {size} bytes (limit: {MAX_BODY})\n")
    event(log, "Refused", reason="TooLarge", bytes=size)
    return web.Response(body=answer, content_type="application/json")
