"""The keyed queue: one worker a key, nothing added is forgotten, a failing key waits alone."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.daemon.clock import ManualClock
from lattice.daemon.queue import KeyedQueue
from lattice.errors import Corrupt, Retry, Stale

Reconcile = Callable[[str], Awaitable[float | None]]


@contextlib.asynccontextmanager
async def serving(reconcile: Reconcile, workers: int = 3) -> AsyncIterator[tuple[KeyedQueue, ManualClock]]:
    clock = ManualClock()
    queue = KeyedQueue(reconcile, clock, workers=workers, name="test")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(queue.run())
        await clock.settle()
        yield queue, clock
        task.cancel()


async def test_a_key_added_many_times_before_its_turn_is_reconciled_once() -> None:
    seen: list[str] = []

    async def reconcile(key: str) -> None:
        seen.append(key)

    async with serving(reconcile) as (queue, clock):
        for _ in range(5):
            queue.add("a")
        queue.add("b")
        await clock.settle()
        assert seen == ["a", "b"]


async def test_a_key_added_while_it_is_reconciled_is_reconciled_again_and_never_twice_at_once() -> None:
    running: Counter[str] = Counter()
    done: list[str] = []
    clock = ManualClock()

    async def reconcile(key: str) -> None:
        running[key] += 1
        assert running[key] == 1
        await clock.sleep(1)
        running[key] -= 1
        done.append(key)

    queue = KeyedQueue(reconcile, clock, workers=4)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(queue.run())
        queue.add("a")
        await clock.settle()
        queue.add("a")
        queue.add("a")
        await clock.run_for(3)
        assert done == ["a", "a"]
        task.cancel()


async def test_a_cancellation_from_inside_is_a_failure_of_its_key_and_costs_no_worker() -> None:
    seen: list[str] = []

    async def reconcile(key: str) -> None:
        seen.append(key)
        if key == "leaks" and seen.count(key) == 1:
            inner = asyncio.ensure_future(asyncio.Event().wait())
            asyncio.get_running_loop().call_soon(inner.cancel)
            await inner

    async with serving(reconcile, workers=1) as (queue, clock):
        queue.add("leaks")
        queue.add("b")
        await clock.run_for(1)
        assert seen == ["leaks", "b", "leaks"]
        assert queue.failed == 1


async def test_a_delayed_key_waits_and_an_earlier_wish_wins() -> None:
    seen: list[tuple[str, float]] = []
    clock = ManualClock()

    async def reconcile(key: str) -> None:
        seen.append((key, clock.monotonic()))

    queue = KeyedQueue(reconcile, clock)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(queue.run())
        queue.add("a", after=10)
        queue.add("a", after=4)
        queue.add("a", after=20)
        queue.add("b", after=6)
        await clock.run_for(30)
        assert seen == [("a", 4.0), ("b", 6.0)]
        task.cancel()


async def test_what_is_late_yields_to_the_rest_and_never_takes_more_than_its_workers() -> None:
    clock = ManualClock()
    began: list[str] = []

    async def reconcile(key: str) -> None:
        began.append(key)
        await clock.sleep(1)

    queue = KeyedQueue(reconcile, clock, workers=3, late_workers=1)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(queue.run())
        for key in ("late-1", "late-2", "late-3"):
            queue.add(key, late=True)
        queue.add("delayed", 0.5, late=True)
        await clock.settle()
        assert began == ["late-1"], "two workers stay free for what is not late"
        for key in ("a", "b", "late-3"):
            queue.add(key)
        await clock.settle()
        assert began == ["late-1", "a", "b"]
        await clock.run_for(1.0)
        assert began == ["late-1", "a", "b", "late-3", "late-2"], "what was added again, and not late, goes first"
        await clock.run_for(5.0)
        assert began == ["late-1", "a", "b", "late-3", "late-2", "delayed"], "each once, and none is forgotten"
        assert queue.idle
        task.cancel()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.booleans(), st.sampled_from([0.0, 0.5, 2.0])), max_size=40), st.integers(1, 3))
def test_whatever_is_added_is_reconciled_after_it_was_added(wishes: list[tuple[str, bool, float]], late_workers: int) -> None:
    async def check() -> None:
        clock = ManualClock()
        last: dict[str, float] = {}

        async def reconcile(key: str) -> None:
            last[key] = clock.monotonic()
            await clock.sleep(0.3)

        queue = KeyedQueue(reconcile, clock, workers=3, late_workers=late_workers)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(queue.run())
            added: dict[str, float] = {}
            for key, late, after in wishes:
                queue.add(key, after, late=late)
                added[key] = clock.monotonic()
                await clock.run_for(0.1)
            await clock.run_for(60)
            assert queue.idle
            assert all(last[key] >= when for key, when in added.items())
            task.cancel()

    asyncio.run(check())


async def test_the_seconds_that_reconcile_returns_are_when_it_looks_again() -> None:
    count = 0

    async def reconcile(_: str) -> float | None:
        nonlocal count
        count += 1
        return 5.0 if count < 3 else None

    async with serving(reconcile) as (queue, clock):
        queue.add("a")
        await clock.run_for(4)
        assert count == 1
        await clock.run_for(100)
        assert count == 3


async def test_a_failing_key_backs_off_and_the_others_do_not() -> None:
    tries: Counter[str] = Counter()

    async def reconcile(key: str) -> None:
        tries[key] += 1
        if key == "bad":
            raise ValueError(key)

    async with serving(reconcile) as (queue, clock):
        queue.add("bad")
        for _ in range(100):
            queue.add("good")
            await clock.run_for(1)
        assert tries["good"] == 100
        assert 5 <= tries["bad"] <= 10
        assert queue.failures("bad") == tries["bad"]


async def test_retry_waits_at_least_as_long_as_it_says() -> None:
    tries: list[float] = []
    clock = ManualClock()

    async def reconcile(_: str) -> None:
        tries.append(clock.monotonic())
        raise Retry("later", after_seconds=30)

    queue = KeyedQueue(reconcile, clock)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(queue.run())
        queue.add("a")
        await clock.run_for(31)
        assert tries == [0.0, 30.0]
        task.cancel()


async def test_a_stale_key_is_looked_at_again_at_once() -> None:
    tries = 0

    async def reconcile(_: str) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise Stale("changed")

    async with serving(reconcile) as (queue, clock):
        queue.add("a")
        await clock.settle()
        assert (tries, queue.failures("a")) == (2, 0)


async def test_corrupt_ends_the_queue() -> None:
    async def reconcile(_: str) -> None:
        raise Corrupt("not ours")

    queue = KeyedQueue(reconcile, ManualClock())
    queue.add("a")
    with pytest.raises(ExceptionGroup) as ended:
        await queue.run()
    assert ended.group_contains(Corrupt)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 5), st.floats(0, 3)), max_size=40), st.integers(1, 4))
def test_after_the_last_add_of_a_key_it_is_always_reconciled_once_more(adds: list[tuple[str, float, float]], workers: int) -> None:
    async def scenario() -> None:
        clock = ManualClock()
        began: dict[str, float] = {}
        wanted: dict[str, float] = {}

        async def reconcile(key: str) -> None:
            began[key] = clock.monotonic()
            await clock.sleep(0.7)

        queue = KeyedQueue(reconcile, clock, workers=workers)
        async with asyncio.TaskGroup() as group:
            task = group.create_task(queue.run())
            for key, after, pause in adds:
                queue.add(key, after)
                wanted[key] = clock.monotonic()
                await clock.run_for(pause)
            await clock.run_for(60)
            assert all(began[key] >= moment for key, moment in wanted.items())
            assert queue.idle
            task.cancel()

    asyncio.run(scenario())


async def test_who_waits_for_what_is_enqueued_goes_on_once_it_is_reconciled_or_his_time_is_up() -> None:
    clock, passed = ManualClock(), list[str]()

    async def reconcile(key: str) -> None:
        await clock.sleep(1.0 if key == "a" else 60.0)

    async def wait(name: str, seconds: float) -> None:
        await queue.pass_by(seconds)
        passed.append(name)

    queue = KeyedQueue(reconcile, clock, workers=2)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(queue.run())
        await queue.pass_by(5.0)  # nothing is enqueued
        queue.add("a")
        group.create_task(wait("a", 5.0))
        await clock.run_for(0.5)
        assert passed == []
        await clock.run_for(1.0)
        assert passed == ["a"]
        queue.add("b")
        group.create_task(wait("b", 2.0))
        await clock.run_for(3.0)
        assert passed == ["a", "b"]
        task.cancel()


@settings(max_examples=60)
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 9), st.booleans()), max_size=60), st.integers(1, 3))
async def test_groups_take_turns_none_has_more_than_its_workers_and_every_key_is_served(
    added: list[tuple[str, int, bool]], most: int
) -> None:
    clock, running, served = ManualClock(), Counter[str](), set[str]()

    async def reconcile(key: str) -> None:
        running[key[0]] += 1
        assert running[key[0]] <= most
        await clock.sleep(1)
        running[key[0]] -= 1
        served.add(key)

    queue = KeyedQueue(reconcile, clock, workers=4, group=lambda key: key[0], group_workers=most)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(queue.run())
        for name, number, pause in added:
            queue.add(f"{name}{number}")
            if pause:
                await clock.run_for(0.5)
        await clock.run_for(100)
        assert served == {f"{name}{number}" for name, number, _ in added}
        assert queue.idle
        task.cancel()


async def test_a_group_with_thousands_of_keys_keeps_no_other_one_waiting() -> None:
    clock, served = ManualClock(), list[str]()

    async def reconcile(key: str) -> None:
        await clock.sleep(1)
        served.append(key)

    queue = KeyedQueue(reconcile, clock, workers=4, group=lambda key: key[0], group_workers=3)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(queue.run())
        for number in range(2000):
            queue.add(f"a{number}")
        await clock.run_for(0.5)
        for name in "bcd":
            queue.add(name)
        await clock.run_for(3)
        assert {"b", "c", "d"} <= set(served)
        task.cancel()


@pytest.mark.parametrize(
    ("again", "order"),
    [((True,), ["late", "other", "late"]), ((True, False), ["late", "late", "other"]), ((False, True), ["late", "late", "other"])],
    ids=["late", "late, then not", "not late, then late"],
)
async def test_a_late_key_that_is_added_while_it_is_reconciled_stays_late_unless_it_is_added_otherwise_too(
    again: tuple[bool, ...], order: list[str]
) -> None:
    began: list[str] = []
    busy = asyncio.Event()

    async def reconcile(key: str) -> None:
        began.append(key)
        if len(began) == 1:
            await busy.wait()

    async with serving(reconcile, workers=1) as (queue, clock):
        queue.add("late", late=True)
        await clock.settle()
        for late in again:
            queue.add("late", late=late)
        queue.add("other", late=True)
        busy.set()
        await clock.settle()
    assert began == order
