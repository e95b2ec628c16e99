"""Decides who may read a daemon's metrics: callers whose token may get /metrics, or who have the scraper's certificate."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from lattice.daemon import metrics
from lattice.daemon.certificates import ServerCertificate
from lattice.daemon.clock import SystemClock
from lattice.daemon.metrics import Admit, Caller
from lattice.daemon.settings import CommonSettings
from lattice.errors import LatticeError
from lattice.kube.clock import Clock
from lattice.kube.cluster import Cluster
from lattice.kube.resources import SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

SCRAPER: Final = "lattice:metrics"
"""The common name of the certificate that may read agents' metrics."""
KEPT_SECONDS: Final = 30.0
MOST_KEPT: Final = 256


class Scrapers:
    """Asks the API server about callers (TokenReview, SubjectAccessReview on /metrics); answers are kept for 30 s."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock
        self._known: dict[str, tuple[float, int]] = {}

    async def admit(self, caller: Caller) -> int:
        """Returns 200 for a caller whose token may get /metrics, else 401 (no valid token), 403, or 503 (the API server does not tell);
        remembers what the API server said, 503 never, for 30 s.
        """
        scheme, _, token = caller.authorization.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            return 401
        key, now = hashlib.sha256(token.strip().encode()).hexdigest(), self._clock.monotonic()
        until, answer = self._known.get(key, (0.0, 0))
        if now < until:
            return answer
        try:
            answer = await self._review(token.strip())
        except LatticeError:
            return 503
        if len(self._known) >= MOST_KEPT:
            self._known.clear()
        self._known[key] = (now + KEPT_SECONDS, answer)
        return answer

    async def _review(self, token: str) -> int:
        """Returns 200 where the owner of a token may get /metrics, 401 where the API server does not know the token, else 403."""
        asked = {"apiVersion": TOKEN_REVIEWS.api_version, "kind": TOKEN_REVIEWS.kind, "spec": {"token": token}}
        status = (await self._cluster.create(TOKEN_REVIEWS, asked)).get("status") or {}
        user = status.get("user") or {}
        if not status.get("authenticated") or not user.get("username"):
            return 401
        spec = {
            "user": user["username"], "groups": user.get("groups") or [], "uid": user.get("uid") or "", "extra": user.get("extra") or {},
            "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
        }  # fmt: skip
        review = {"apiVersion": SUBJECT_ACCESS_REVIEWS.api_version, "kind": SUBJECT_ACCESS_REVIEWS.kind, "spec": spec}
        allowed = ((await self._cluster.create(SUBJECT_ACCESS_REVIEWS, review)).get("status") or {}).get("allowed")
        return 200 if allowed else 403


async def by_certificate(caller: Caller) -> int:
    """Returns 200 for a certificate named `lattice:metrics`, 403 for another one, 401 without any; TLS has verified its authority."""
    names = [value for part in caller.certificate.get("subject", ()) for key, value in part if key == "commonName"]
    return 200 if names == [SCRAPER] else 403 if names else 401


async def serve_metrics(
    registry: CollectorRegistry | None, settings: CommonSettings, ready: Callable[[], tuple[bool, str]], admit: Admit
) -> None:
    """Serves metrics and health as the settings say, over TLS if they name a certificate, until cancelled; returns at once for an empty
    address without a certificate.

    Raises Rejected for an address or a certificate that cannot be used.
    """
    if not settings.metrics_certificate:
        await metrics.serve(registry, settings.metrics_address, ready, admit=admit)
        return
    certificate = ServerCertificate(settings.metrics_certificate, settings.metrics_key)
    async with asyncio.TaskGroup() as group:
        group.create_task(certificate.follow(SystemClock()))
        group.create_task(metrics.serve(registry, settings.metrics_address, ready, admit=admit, context=certificate.context))
