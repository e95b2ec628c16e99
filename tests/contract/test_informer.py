"""What an informer promises, on the fake as on the real API server, and through the real server's death."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lattice.daemon.clock import SystemClock
from lattice.errors import Expired, Retry
from lattice.kube.aiohttp import connect
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Change, Informer
from lattice.kube.kubeconfig import ClusterConfig
from lattice.kube.resources import NAMESPACES
from tests import servers
from tests.contract.places import GADGETS, WIDGETS, Outage, Place, compact, install, until

Told = list[tuple[str, str]]


def kind_of(change: Change[Any]) -> str:
    return "added" if change.old is None else "gone" if change.new is None else "changed"


@contextlib.asynccontextmanager
async def following(place: Place, told: Told, **options: Any) -> AsyncIterator[Informer[dict[str, Any]]]:
    """An informer of the place's widgets that runs, and is synced."""

    def note(change: Change[dict[str, Any]]) -> None:
        told.append((kind_of(change), change.key.rpartition("/")[2]))

    informer = Informer(
        place.cluster,
        WIDGETS,
        type=dict[str, Any],
        clock=SystemClock(),
        namespace=place.namespace,
        on_change=note,
        **options,
    )
    async with asyncio.TaskGroup() as group:
        running = group.create_task(informer.run())
        async with asyncio.timeout(30):
            await informer.synced.wait()
        yield informer
        running.cancel()


async def test_an_informer_holds_what_exists_and_tells_each_change(place: Place) -> None:
    cluster, namespace, told = place.cluster, place.namespace, Told()
    await cluster.create(WIDGETS, {"metadata": {"name": "before"}}, namespace)
    async with following(place, told) as informer:
        assert list(informer.objects) == [f"{namespace}/before"]
        await cluster.create(WIDGETS, {"metadata": {"name": "a"}}, namespace)
        await cluster.patch(WIDGETS, "a", {"spec": {"size": 2}}, namespace)
        await cluster.delete(WIDGETS, "before", namespace)
        await until(lambda: len(told) == 4, shows=lambda: told)
        assert told == [("added", "before"), ("added", "a"), ("changed", "a"), ("gone", "before")]
        assert informer.objects[f"{namespace}/a"]["spec"] == {"size": 2}


async def test_a_forced_list_begins_after_the_call_and_repeats_nothing(place: Place) -> None:
    told = Told()
    await place.cluster.create(WIDGETS, {"metadata": {"name": "a"}}, place.namespace)
    async with following(place, told) as informer:
        begun = SystemClock().monotonic()
        version = informer.synced_version
        await place.cluster.create(WIDGETS, {"metadata": {"name": "b"}}, place.namespace)
        async with asyncio.timeout(20):
            await informer.relist()
        assert informer.list_begun >= begun
        assert int(informer.synced_version) > int(version)
        assert sorted(informer.objects) == [f"{place.namespace}/a", f"{place.namespace}/b"]
        assert told == [("added", "a"), ("added", "b")]
        await place.cluster.create(WIDGETS, {"metadata": {"name": "c"}}, place.namespace)
        await until(lambda: ("added", "c") in told, shows=lambda: told)


async def test_an_informer_survives_kill_9_of_the_apiserver_and_a_compaction(tmp_path: Any) -> None:
    with servers.running(tmp_path / "control-plane") as server:
        config = install(server)
        async with connect(config, user_agent="lattice-contract") as cluster:
            await cluster.create(NAMESPACES, {"metadata": {"name": "outage"}})
            place, told = Place(cluster, "outage"), Told()
            for name in ("stays", "goes"):
                await cluster.create(WIDGETS, {"metadata": {"name": name}}, "outage")
            old = (await cluster.list(WIDGETS, "outage")).resource_version
            async with following(place, told) as informer:
                outage = Outage(server)
                since = informer.continuous_since
                await asyncio.to_thread(outage.begin)
                await asyncio.to_thread(outage.end)
                await _change_and_compact(config, server)
                await until(
                    lambda: informer.objects.keys() == {"outage/stays", "outage/new"}, shows=lambda: (told, informer.objects.keys())
                )
                assert sorted(told) == [("added", "goes"), ("added", "new"), ("added", "stays"), ("gone", "goes")]
                assert informer.continuous_since > since
            await asyncio.to_thread(Outage(server).begin)
            await asyncio.to_thread(outage.end)
            with pytest.raises(Expired):
                await _watch_when_ready(cluster, old)


async def _watch_when_ready(cluster: Cluster, version: str) -> None:
    """Read a watch to its end, when the server's own cache is filled again."""
    while True:
        try:
            async for _ in cluster.watch(WIDGETS, "outage", resource_version=version):
                pass
        except Retry:
            await asyncio.sleep(0.2)


async def _change_and_compact(config: ClusterConfig, server: servers.ApiServer) -> None:
    """Changes that a watcher from before cannot be told one by one."""
    async with connect(config, user_agent="lattice-contract") as other:
        await other.delete(WIDGETS, "goes", "outage")
        await other.create(WIDGETS, {"metadata": {"name": "new"}}, "outage")
        for number in range(5):
            await other.create(GADGETS, {"metadata": {"name": f"g{number}"}})
    await asyncio.to_thread(compact, server)
