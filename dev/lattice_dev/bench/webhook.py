"""Measures the admission webhook: answers a second and the slowest of them, asked directly as the API server asks."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import aiohttp

from lattice.errors import Corrupt
from lattice.kube.resources import ELASTIC_QUOTAS
from lattice_dev.bench import work
from lattice_dev.bench.drive import NAMESPACE, USER, Driver
from lattice_dev.bench.figures import Baseline, Figure, percentile, shown

AT_ONCE = 16
"""Requests under way at a time."""
A_DEPARTMENT = 10
"""Leaves below each group of the first level."""


async def measure(driver: Driver, *, groups: int, count: int) -> list[Figure]:
    """Creates about so many groups of the quota tree, and returns the rate and the p99 of the webhook's reviews beside those of `/readyz`.

    `count` reviews are of submissions, a tenth of that (at least 20) of new groups. Raises Corrupt where the webhook refuses one.
    """
    await _plant(driver, groups)
    here = driver.instance.site()
    trust = ssl.create_default_context(cafile=str(here.authority("ca")))
    shown = here.pair("webhook-clients-ca", "kube-apiserver")
    trust.load_cert_chain(shown.certificate, shown.key)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust, limit=AT_ONCE)) as session:
        ready = await _load(driver, count, partial(_get, session, f"{here.webhook}/readyz"))
        found: list[Figure] = []
        for what, review, number in (("submissions", _submission(), count), ("groups", _group(), max(20, count // 10))):
            ask = partial(_post, session, f"{here.webhook}/validate", json.dumps(review).encode())
            found += _figures(what, groups, ready, await _load(driver, number, ask))
        return found


def _figures(what: str, groups: int, ready: tuple[float, list[float]], seen: tuple[float, list[float]]) -> list[Figure]:
    """Returns the figures of answers a second and of the slowest, beside those of /readyz; each pair is seconds and the time of each
    answer.
    """
    seconds, took = seen
    plain, alone = len(ready[1]) / ready[0], percentile(ready[1], 0.99) * 1000
    detail = f"{len(took)} by {AT_ONCE} at once, beside {groups} groups; p50 {shown(percentile(took, 0.5) * 1000)} ms"
    rate = Figure(f"webhook, {what}", len(took) / seconds, "/s", None, Baseline("/s of /readyz", plain), detail)
    worst = percentile(took, 0.99) * 1000
    return [rate, Figure(f"webhook, {what}, p99", worst, "ms", None, Baseline("ms, p99 of /readyz", alone), detail)]


async def _plant(driver: Driver, groups: int) -> None:
    """Creates about so many groups: departments with ten teams each, one at least; the submissions belong to the first team."""
    departments = max(1, groups // (A_DEPARTMENT + 1))
    for number in range(departments):
        top = _quota(f"bench-d{number:04d}", isParent=True, min={"nodes": A_DEPARTMENT})
        await driver.admin.create(ELASTIC_QUOTAS, top)
        leaves = (
            _quota(f"bench-d{number:04d}-t{team}", parent=top["metadata"]["name"], min={"nodes": 1},
                   **({"bindings": [{"tenant": NAMESPACE}]} if number == team == 0 else {}))
            for team in range(A_DEPARTMENT)
        )  # fmt: skip
        await driver.timed(A_DEPARTMENT, (partial(driver.admin.create, ELASTIC_QUOTAS, leaf) for leaf in leaves))


def _quota(name: str, **spec: Any) -> dict[str, Any]:
    """Returns an ElasticQuota with this spec."""
    body = {"max": {"nodes": 1000}, **spec}
    return {"apiVersion": ELASTIC_QUOTAS.api_version, "kind": ELASTIC_QUOTAS.kind, "metadata": {"name": name}, "spec": body}


def _submission() -> dict[str, Any]:
    """Returns the review of a submission."""
    manifest = work.hollow(NAMESPACE, "bench-review", seconds=1)
    spec = {**manifest["spec"], "user": USER, "tenant": NAMESPACE, "vcluster": "hpc-batch"}
    return _review("Allocation", NAMESPACE, {**manifest, "spec": spec})


def _group() -> dict[str, Any]:
    """Returns the review of a new group."""
    return _review("ElasticQuota", "", _quota("bench-new"))


def _review(kind: str, namespace: str, obj: dict[str, Any]) -> dict[str, Any]:
    """Returns the review of a new object."""
    request = {
        "uid": "bench", "operation": "CREATE",
        "kind": {"group": "lattice.dev", "version": "v1alpha1", "kind": kind}, "namespace": namespace,
        "userInfo": {"username": USER, "groups": ["system:authenticated"]}, "object": obj, "oldObject": None, "dryRun": True,
    }  # fmt: skip
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


async def _load(driver: Driver, count: int, ask: Callable[[], Awaitable[None]]) -> tuple[float, list[float]]:
    """Asks `count` times on open connections, 16 at a time, after some that are not measured; returns the seconds that all took together,
    and those of each.
    """
    await driver.timed(AT_ONCE, (ask for _ in range(2 * AT_ONCE)))
    took: list[float] = []

    async def one() -> None:
        """Asks once, and notes how long that took."""
        began = driver.clock.monotonic()
        await ask()
        took.append(driver.clock.monotonic() - began)

    return await driver.timed(AT_ONCE, (one for _ in range(count))), took


async def _get(session: aiohttp.ClientSession, url: str) -> None:
    """Gets a page and drops it."""
    async with asyncio.timeout(30), session.get(url) as response:
        await response.read()


async def _post(session: aiohttp.ClientSession, url: str, body: bytes) -> None:
    """Posts a review. Raises Corrupt where it is not allowed."""
    async with asyncio.timeout(30), session.post(url, data=body) as response:
        text = await response.read()
        if response.status != 200 or json.loads(text)["response"]["allowed"] is not True:
            raise Corrupt(f"the webhook answered {response.status}: {text[:300]!r}", reason="ReviewRefused")
