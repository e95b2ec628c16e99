"""Who reads metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from lattice.daemon.clock import ManualClock
from lattice.daemon.metrics import Caller
from lattice.daemon.scrapers import KEPT_SECONDS, Scrapers, by_certificate
from lattice.errors import Retry
from lattice.kube.fake import FakeCluster
from lattice.kube.resources import Resource


class Reviews(FakeCluster):
    """An API server that knows two tokens, one of which may read metrics."""

    asked = 0
    away = False

    async def create(self, resource: Resource, obj: Mapping[str, Any], *args: Any, **kwargs: Any) -> Any:
        self.asked += 1
        if self.away:
            raise Retry("no answer")
        if resource.kind == "TokenReview":
            name = {"good": "prometheus", "poor": "alice"}.get(obj["spec"]["token"], "")
            return {"status": {"authenticated": bool(name), "user": {"username": name}}}
        assert obj["spec"]["nonResourceAttributes"] == {"path": "/metrics", "verb": "get"}
        return {"status": {"allowed": obj["spec"]["user"] == "prometheus"}}


def caller(authorization: str = "", name: str = "") -> Caller:
    return Caller(authorization, {"subject": ((("commonName", name),),)} if name else {})


@pytest.mark.parametrize(
    ("sent", "status"), [("", 401), ("Basic eDp5", 401), ("Bearer ", 401), ("Bearer bad", 401), ("Bearer poor", 403), ("bearer good", 200)]
)
async def test_a_token_that_may_get_metrics_reads_them(sent: str, status: int) -> None:
    clock = ManualClock()
    assert await Scrapers(Reviews(clock), clock).admit(caller(sent)) == status


async def test_answers_are_kept_for_a_while_and_not_while_the_api_server_is_away() -> None:
    clock = ManualClock()
    cluster = Reviews(clock)
    scrapers = Scrapers(cluster, clock)
    cluster.away = True
    assert await scrapers.admit(caller("Bearer good")) == 503
    cluster.away = False
    assert [await scrapers.admit(caller("Bearer good")) for _ in range(5)] == [200] * 5
    assert cluster.asked == 3
    await clock.run_for(KEPT_SECONDS + 1)
    await scrapers.admit(caller("Bearer good"))
    assert cluster.asked == 5


async def test_agents_are_read_by_the_certificate_of_the_scraper_alone() -> None:
    assert await by_certificate(caller()) == 401
    assert await by_certificate(caller(name="lattice:agent:n1")) == 403
    assert await by_certificate(caller(name="lattice:metrics")) == 200
