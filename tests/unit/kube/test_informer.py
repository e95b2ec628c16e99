"""The informer through every way in which a watch can lie or die, on a clock that moves when told."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from lattice.daemon.clock import ManualClock
from lattice.errors import Corrupt, Expired, Rejected, Retry
from lattice.kube.fake import FakeCluster
from lattice.kube.informer import INACTIVITY_SECONDS, REACH_SECONDS, STOOD_SECONDS, Change, Informer, collector_paused
from lattice.kube.resources import ALLOCATIONS

NS = "ns"


class Scene:
    """A cluster, an informer of it, and what it told."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.cluster = FakeCluster(self.clock)
        self.told: list[tuple[str, str]] = []
        self.informer: Informer[dict[str, Any]] = Informer(
            self.cluster, ALLOCATIONS, type=dict[str, Any], clock=self.clock, on_change=self._note, jitter=lambda: 0.5
        )

    def _note(self, change: Change[dict[str, Any]]) -> None:
        verb = "added" if change.old is None else "gone" if change.new is None else "changed"
        self.told.append((verb, change.key.removeprefix("ns/")))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.informer.run())
            await self.clock.settle()
            yield
            task.cancel()
        self.validate()

    def validate(self) -> None:
        """At rest the cache is what the server has."""
        assert self.informer.objects == self.cluster.snapshot(ALLOCATIONS)

    async def create(self, name: str) -> None:
        await self.cluster.create(ALLOCATIONS, {"metadata": {"name": name}}, NS)
        await self.clock.settle()

    async def change(self, name: str, value: int) -> None:
        await self.cluster.patch(ALLOCATIONS, name, {"spec": {"value": value}}, NS)
        await self.clock.settle()

    async def delete(self, name: str) -> None:
        await self.cluster.delete(ALLOCATIONS, name, NS)
        await self.clock.settle()

    def count(self, verb: str) -> int:
        return sum(sent.verb == verb for sent in self.cluster.sent)


async def test_initial_events_are_the_list_where_the_server_sends_them() -> None:
    scene = Scene()
    await scene.create("a")
    async with scene.running():
        assert scene.informer.synced.is_set()
        await scene.create("b")
        assert (scene.told, scene.count("list"), scene.count("watch")) == ([("added", "a"), ("added", "b")], 0, 1)


async def test_one_list_and_a_watch_serve_where_initial_events_are_refused() -> None:
    scene = Scene()
    scene.cluster.serves_initial_events = False
    await scene.create("a")
    async with scene.running():
        await scene.clock.run_for(1)
        await scene.create("b")
        assert (scene.told, scene.count("list")) == ([("added", "a"), ("added", "b")], 1)


async def test_a_watch_that_said_something_is_resumed_without_a_list() -> None:
    scene = Scene()
    async with scene.running():
        await scene.create("a")
        scene.cluster.end_watches()
        await scene.clock.settle()
        await scene.create("b")
        assert (scene.told, scene.count("list"), scene.count("watch")) == ([("added", "a"), ("added", "b")], 0, 2)


async def test_a_watch_that_ended_without_a_word_is_followed_by_a_list() -> None:
    scene = Scene()
    async with scene.running():
        await scene.create("a")
        for _ in range(2):  # the first one spoke; its successor does not
            scene.cluster.end_watches()
            await scene.clock.run_for(1)
        assert (scene.count("list"), scene.informer.lists) == (1, 2)


async def test_a_bookmark_counts_as_a_word() -> None:
    scene = Scene()
    async with scene.running():
        for _ in range(5):
            scene.cluster.bookmark()
            await scene.clock.settle()
            scene.cluster.end_watches()
            await scene.clock.settle()
        assert scene.count("list") == 0


async def test_a_silent_watch_is_left_and_what_was_missed_is_found_by_a_list() -> None:
    scene = Scene()
    async with scene.running():
        await scene.create("a")
        since = scene.informer.continuous_since
        scene.cluster.silent = True
        await scene.create("b")
        await scene.delete("a")
        assert list(scene.informer.objects) == ["ns/a"]
        await scene.clock.run_for(INACTIVITY_SECONDS + 1)
        assert scene.told == [("added", "a"), ("gone", "a"), ("added", "b")]
        assert scene.count("list") == 1
        assert scene.informer.continuous_since > since
        scene.cluster.silent = False


async def test_events_keep_the_watch_alive_past_the_limit_of_silence() -> None:
    scene = Scene()
    async with scene.running():
        for number in range(6):
            await scene.clock.run_for(INACTIVITY_SECONDS * 0.6)
            await scene.create(f"a{number}")
        assert (scene.count("watch"), scene.count("list")) == (1, 0)


async def test_an_expired_version_leads_to_a_list_with_deletions_for_what_went() -> None:
    scene = Scene()
    async with scene.running():
        await scene.create("stays")
        await scene.create("goes")
        away = scene.cluster.fail(Retry("down"), verb="watch", times=1_000_000)
        scene.cluster.end_watches(Retry("lost"))
        await scene.delete("goes")
        await scene.change("stays", 2)
        scene.cluster.compact()
        away.times = 0
        await scene.clock.run_for(60)
        assert scene.told[2:] == [("gone", "goes"), ("changed", "stays")]
        assert scene.count("list") == 1


async def test_an_expired_event_inside_a_watch_leads_to_a_list() -> None:
    scene = Scene()
    async with scene.running():
        await scene.create("a")
        scene.cluster.end_watches(Expired("too old"))
        await scene.clock.run_for(1)
        assert scene.count("list") == 1


async def test_a_server_that_is_away_is_asked_ever_more_rarely_and_found_again() -> None:
    scene = Scene()
    fault = scene.cluster.fail(Retry("down"), times=1_000_000)
    async with scene.running():
        await scene.clock.run_for(600)
        assert 10 < len(scene.cluster.sent) < 40
        assert not scene.informer.synced.is_set()
        fault.times = 0
        await scene.clock.run_for(60)
        assert scene.informer.synced.is_set()


async def test_a_quiet_watch_that_stood_is_no_failure_and_one_that_ends_at_once_is() -> None:
    scene = Scene()
    scene.cluster.serves_initial_events = False
    async with scene.running():
        for lost in range(1, 10):
            await scene.clock.run_for(STOOD_SECONDS)
            scene.cluster.end_watches()
            await scene.clock.run_for(0.1)
            assert scene.count("list") == lost + 1
        for _ in range(5):
            scene.cluster.end_watches()
            await scene.clock.run_for(0.5)
        asked = scene.count("list")
        await scene.clock.run_for(0.1)
        scene.cluster.end_watches()
        await scene.clock.run_for(0.5)
        assert scene.count("list") == asked


async def test_retry_after_is_honoured() -> None:
    scene = Scene()
    scene.cluster.fail(Retry("later", after_seconds=40.0))
    async with scene.running():
        await scene.clock.run_for(39)
        assert len(scene.cluster.sent) == 1
        await scene.clock.run_for(2)
        assert scene.informer.synced.is_set()


async def test_a_forced_list_tells_nothing_twice_and_returns_after_it() -> None:
    scene = Scene()
    async with scene.running():
        await scene.create("a")
        await scene.clock.run_for(10)
        async with asyncio.timeout(60):
            await scene.informer.relist()
        assert (scene.count("list"), scene.informer.list_begun, scene.told) == (1, 10.0, [("added", "a")])


async def test_a_forced_list_that_fails_is_tried_until_it_succeeds() -> None:
    scene = Scene()
    async with scene.running(), asyncio.TaskGroup() as group:
        scene.cluster.fail(Retry("down"), verb="list", times=3)
        waiting = group.create_task(scene.informer.relist())
        await scene.clock.settle()
        assert not waiting.done()
        await scene.clock.run_for(30)
        assert waiting.done()


async def test_two_that_force_a_list_at_once_share_it() -> None:
    scene = Scene()
    async with scene.running():
        await asyncio.gather(scene.informer.relist(), scene.informer.relist())
        assert scene.count("list") <= 2


async def test_the_collector_is_off_only_while_listing() -> None:
    scene = Scene()
    async with scene.running():
        assert gc.isenabled()


def test_pauses_of_the_collector_nest() -> None:
    with collector_paused(), collector_paused() as resume:
        resume()
        resume()
        assert not gc.isenabled()
    assert gc.isenabled()


@pytest.mark.parametrize("error", [Corrupt("not ours"), Rejected("field label not supported")], ids=["corrupt", "rejected"])
async def test_what_repeating_cannot_cure_ends_the_informer(error: Corrupt | Rejected) -> None:
    scene = Scene()
    scene.cluster.fail(error, times=3)
    async with asyncio.timeout(60):
        with pytest.raises(type(error)):
            await scene.informer.run()


async def test_a_forced_list_in_the_middle_of_another_loses_no_change() -> None:
    scene = Scene()
    for number in range(1200):
        await scene.cluster.create(ALLOCATIONS, {"metadata": {"name": f"a{number:04d}"}}, NS)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(scene.informer.run())
        while not scene.told:  # noqa: ASYNC110 - the moment inside the list matters
            await asyncio.sleep(0)
        assert len(scene.told) < 1200
        await scene.informer.relist()
        assert len(scene.told) == 1200
        task.cancel()
    scene.validate()


async def test_a_reader_waits_until_the_cache_has_come_to_the_version_that_he_has_seen() -> None:
    scene = Scene()
    await scene.create("a")
    async with scene.running(), asyncio.TaskGroup() as group:
        assert await scene.informer.reach() == scene.informer.version
        ahead = str(int(scene.informer.version) + 1)
        waiting = group.create_task(scene.informer.reach(ahead))
        await scene.clock.run_for(0.1)
        assert not waiting.done()
        await scene.create("b")
        await scene.clock.run_for(0.1)
        assert int(await waiting) >= int(ahead)
        assert "ns/b" in scene.informer.objects


async def test_a_version_that_does_not_come_is_not_waited_for_long() -> None:
    scene = Scene()
    async with scene.running(), asyncio.TaskGroup() as group:
        waiting = group.create_task(refusal(scene, "99999"))
        await scene.clock.run_for(REACH_SECONDS + 0.1)
        assert await waiting == "CacheBehind"


async def test_a_cache_whose_watch_is_lost_or_that_was_never_filled_answers_nobody() -> None:
    scene = Scene()
    assert await refusal(scene) == "WatchLost"
    await scene.create("a")
    async with scene.running():
        assert await scene.informer.reach()
        fault = scene.cluster.fail(Retry("down"), times=1_000_000)
        scene.cluster.end_watches()
        await scene.clock.run_for(5)
        assert await refusal(scene) == "WatchLost"
        fault.times = 0
        await scene.clock.run_for(120)
        assert await scene.informer.reach()


async def refusal(scene: Scene, version: str = "") -> str:
    with pytest.raises(Retry) as refused:
        await scene.informer.reach(version)
    return refused.value.reason
