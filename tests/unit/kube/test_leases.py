"""The elector on a clock that moves when told: who leads, how long, and what happens when answers are lost."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.daemon.clock import ManualClock
from lattice.errors import Retry, Stale, UnknownOutcome
from lattice.kube.fake import FakeCluster
from lattice.kube.leases import Elector
from lattice.kube.resources import LEASES

SECONDS = 15.0


class Candidate:
    """One process that would lead, and what became of it."""

    def __init__(self, cluster: FakeCluster, clock: ManualClock, identity: str) -> None:
        self.elector = Elector(cluster, clock, name="leader", namespace="system", identity=identity, lease_seconds=SECONDS)
        self.working = False
        self.lost = False
        self.finish = asyncio.Event()
        self.failure: Exception | None = None

    async def run(self) -> None:
        try:
            await self.elector.lead(self._work)
        except Stale:
            self.lost = True

    async def _work(self) -> None:
        self.working = True
        try:
            await self.finish.wait()
            if self.failure:
                raise self.failure
        finally:
            self.working = False


@contextlib.asynccontextmanager
async def election(*identities: str) -> AsyncIterator[tuple[ManualClock, FakeCluster, list[Candidate]]]:
    clock = ManualClock()
    cluster = FakeCluster(clock)
    candidates = [Candidate(cluster, clock, identity) for identity in identities]
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(candidate.run()) for candidate in candidates]
        await clock.settle()
        yield clock, cluster, candidates
        for task in tasks:
            task.cancel()


def working(candidates: list[Candidate]) -> list[str]:
    return [candidate.elector.identity for candidate in candidates if candidate.working]


def holder(cluster: FakeCluster) -> str:
    return str(cluster.snapshot(LEASES)["system/leader"]["spec"]["holderIdentity"])


async def test_one_of_two_leads_for_as_long_as_it_renews() -> None:
    async with election("a", "b") as (clock, cluster, candidates):
        for _ in range(20):
            await clock.run_for(SECONDS)
            assert working(candidates) == ["a"]
        renewals = len(cluster.writes(LEASES))
        assert 20 * 3 - 2 <= renewals <= 20 * 3 + 2


async def test_a_released_lease_is_taken_within_seconds() -> None:
    async with election("a", "b") as (clock, cluster, candidates):
        candidates[0].finish.set()
        await clock.settle()
        assert holder(cluster) == ""
        await clock.run_for(2)
        assert working(candidates) == ["b"]


async def test_a_dead_holder_is_replaced_after_its_duration_and_not_before() -> None:
    async with election() as (clock, cluster, _):
        spec = {"holderIdentity": "dead", "leaseDurationSeconds": 15, "renewTime": "2001-01-01T00:00:00.000000Z"}
        await cluster.create(LEASES, {"metadata": {"name": "leader"}, "spec": spec}, "system")
        candidate = Candidate(cluster, clock, "a")
        async with asyncio.TaskGroup() as group:
            task = group.create_task(candidate.run())
            await clock.run_for(SECONDS - 0.5)
            assert not candidate.working
            await clock.run_for(2.5)
            assert candidate.working
            task.cancel()
        assert cluster.snapshot(LEASES)["system/leader"]["spec"]["leaseTransitions"] == 1


async def test_a_clock_that_jumps_takes_nothing_from_anybody() -> None:
    async with election("a", "b") as (clock, _, candidates):
        for jump in (86_400.0, -172_800.0):
            clock.jump(jump)
            await clock.run_for(SECONDS * 2)
            assert working(candidates) == ["a"]


async def test_work_is_stopped_after_two_thirds_without_a_renewal() -> None:
    async with election("a") as (clock, cluster, candidates):
        cluster.fail(Retry("down"), times=1_000_000)
        await clock.run_for(SECONDS * 2 / 3 - 0.1)
        assert working(candidates) == ["a"]
        await clock.run_for(0.2)
        assert (working(candidates), candidates[0].lost) == ([], True)


async def test_a_lease_that_was_renewed_too_late_and_names_us_yet_is_taken_again_at_once() -> None:
    async with election("a") as (clock, cluster, candidates):
        cluster.fail(Retry("down"), times=9)
        await clock.run_for(SECONDS * 2 / 3 + 0.2)
        assert candidates[0].lost
        again = asyncio.ensure_future(candidates[0].run())
        await clock.run_for(SECONDS / 2)
        assert working(candidates) == ["a"]
        again.cancel()
        await asyncio.gather(again, return_exceptions=True)


async def test_a_pause_longer_than_the_lease_ends_the_work_at_once() -> None:
    async with election("a") as (clock, _, candidates):
        clock.advance(SECONDS)
        await clock.settle()
        assert candidates[0].lost


async def test_a_stolen_lease_stops_the_work_at_the_next_renewal() -> None:
    async with election("a") as (clock, cluster, candidates):
        await cluster.patch(LEASES, "leader", {"spec": {"holderIdentity": "thief"}}, "system")
        await clock.run_for(SECONDS / 3 + 0.1)
        assert (candidates[0].lost, holder(cluster)) == (True, "thief")


async def test_a_touched_lease_is_still_ours() -> None:
    async with election("a") as (clock, cluster, candidates):
        await cluster.patch(LEASES, "leader", {"metadata": {"annotations": {"note": "x"}}}, "system")
        await clock.run_for(SECONDS * 3)
        assert working(candidates) == ["a"]
        assert cluster.snapshot(LEASES)["system/leader"]["metadata"]["annotations"] == {"note": "x"}


@pytest.mark.parametrize("verb", ["create", "patch"])
async def test_a_lost_answer_is_looked_up(verb: str) -> None:
    clock = ManualClock()
    cluster = FakeCluster(clock)
    cluster.lose_answer(verb, LEASES)
    candidate = Candidate(cluster, clock, "a")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(candidate.run())
        await clock.run_for(SECONDS * 3)
        assert candidate.working
        task.cancel()
    assert holder(cluster) == ""


async def test_the_error_of_the_work_comes_out_and_the_lease_is_released() -> None:
    async with election() as (clock, cluster, _):
        candidate = Candidate(cluster, clock, "a")
        candidate.failure = ValueError("the work")
        candidate.finish.set()
        with pytest.raises(ValueError, match="the work"):
            await candidate.run()
        assert holder(cluster) == ""


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["wait", "down", "up", "lose", "pause", "release"]), st.floats(0.1, 20.0)), max_size=25))
def test_never_two_work_at_once_whatever_fails(script: list[tuple[str, float]]) -> None:
    async def scenario() -> None:
        async with election("a", "b", "c") as (clock, cluster, candidates):
            for step, seconds in script:
                if step == "down":
                    cluster.fail(Retry("down"), times=1_000_000)
                elif step == "up":
                    cluster.heal()
                elif step == "lose":
                    cluster.fail(UnknownOutcome("lost"), verb="patch", after=True)
                elif step == "pause":
                    clock.advance(seconds)
                elif step == "release":
                    for candidate in candidates:
                        if candidate.working:
                            candidate.finish.set()
                for _ in range(20):
                    await clock.run_for(seconds / 20)
                    assert len(working(candidates)) <= 1

    asyncio.run(scenario())
