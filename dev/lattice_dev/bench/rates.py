"""Measures rates a second: creations, admissions by a scheduler that starts, and whole lives."""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Sequence

from lattice.kube.resources import ALLOCATIONS
from lattice_dev.bench import work
from lattice_dev.bench.drive import CONNECTIONS, NAMESPACE, Driver
from lattice_dev.bench.figures import Aim, Baseline, Figure, percentile, shown
from lattice_dev.bench.observe import Watching
from lattice_dev.bench.processor import ProgramTimes

ADMISSIONS_AIM = Aim(300, at_least=True)
CREATIONS_AIM = Aim(600, at_least=True)
CREATED_A_SECOND = 60
"""Creations a second that every machine reaches."""
STOPPED_SECONDS = 2.0
LEAST_MILLISECONDS = 0.05
"""Programs that take less for each thing done are not named."""


async def creations(driver: Driver, count: int) -> Figure:
    """Returns how many one-node allocations are created a second, 48 at once, each through the webhooks; they stay for the scheduler, which
    the caller has stopped.
    """
    lean, _ = await driver.baseline()
    times = ProgramTimes(driver.instance)
    took = await driver.create([work.hollow(NAMESPACE, _name(number), seconds=None) for number in range(count)])
    detail = f"{count} by {CONNECTIONS} at once, {shown(took)} s, through the webhooks, no scheduler running"
    parts = _by_program(times, count)
    return Figure("creations", count / took, "/s", CREATIONS_AIM, Baseline("/s lean ConfigMaps", lean), detail, parts)


async def admissions(driver: Driver, count: int) -> list[Figure]:
    """Returns creations and admissions a second: from the start of a scheduler until each allocation is Scheduled and in a plan.

    All work is created before. Everything created stays: the instance is removed afterwards.
    """
    instance = driver.instance
    instance.stop("scheduler")
    created = await creations(driver, count)
    _, patches = await driver.baseline()
    names = [_name(number) for number in range(count)]
    async with driver.watch(ledger=True, plans=True) as seen:
        times = ProgramTimes(instance)
        began = driver.clock.monotonic()
        await asyncio.to_thread(instance.start, "scheduler")
        await seen.until(lambda: _all_admitted(seen, names), within=120 + count / 10, what=f"the admission of {count}")
        moments = [moment - began for moment in _admitted(seen, names)]
        first, last = min(moments), max(moments)
        batches = [len(step.claimed) for step in seen.steps if step.claimed]
        by_program = _by_program(times, count)
    detail = f"{count} waiting; {_spread(moments)}"
    parts = {
        "claims a commit": sum(batches) / len(batches),
        "a second between first and last": (count - 1) / max(last - first, 1e-9),
    } | by_program
    base = Baseline("/s PATCHes of ConfigMaps", patches)
    return [created, Figure("admissions, from the scheduler's start", count / last, "/s", ADMISSIONS_AIM, base, detail, parts | by_program)]


async def admissions_without_agents(driver: Driver, count: int) -> Figure:
    """Returns admissions a second while no node reports or starts anything, as beside kube-scheduler no kubelet does.

    All work is created with the same `notBefore`. The nodes' process is stopped by SIGSTOP two seconds before it, and goes on once each
    allocation is Scheduled and in a plan; everything stays.
    """
    instance, clock = driver.instance, driver.clock
    opens = math.ceil(clock.now() + 20 + count / CREATED_A_SECOND)
    manifests = [work.hollow(NAMESPACE, f"alone-{number:05d}", seconds=None, not_before=opens) for number in range(count)]
    names = [manifest["metadata"]["name"] for manifest in manifests]
    async with driver.watch(ledger=True, plans=True) as seen:
        await driver.create(manifests)
        await clock.sleep(opens - clock.now() - STOPPED_SECONDS)
        await asyncio.to_thread(instance.kill, "hollow", signal.SIGSTOP)
        try:
            await clock.sleep(opens - clock.now())
            times, began = ProgramTimes(instance), clock.monotonic()
            await seen.until(lambda: _all_admitted(seen, names), within=120 + count / 10, what=f"the admission of {count}")
            parts = _by_program(times, count)
        finally:
            await asyncio.to_thread(instance.kill, "hollow", signal.SIGCONT)
        moments = [moment - began for moment in _admitted(seen, names)]
    detail = f"{count} with one notBefore, which is second 0: {_spread(moments)}"
    return Figure("admissions without agents", count / max(moments), "/s", detail=detail, parts=parts)


def _all_admitted(seen: Watching, names: Sequence[str]) -> bool:
    """Tells whether all allocations are scheduled and in a plan."""
    return seen.count_reached("scheduled", names) == len(names) and all(seen.lives[name].uid in seen.planned for name in names)


def _admitted(seen: Watching, names: Sequence[str]) -> list[float]:
    """Returns when each allocation was both scheduled and in a plan, on the monotonic clock."""
    return [max(seen.lives[name].scheduled or 0.0, seen.planned[seen.lives[name].uid]) for name in names]


def _spread(moments: Sequence[float]) -> str:
    """Returns first, median and last of these seconds, as a clause."""
    return f"first after {shown(min(moments))} s, p50 {shown(percentile(moments, 0.5))} s, last {shown(max(moments))} s"


async def lives(driver: Driver, *, seconds: float, outstanding: int) -> Figure:
    """Returns how many allocations that end at once come to their end a second, `outstanding` under way at a time, for `seconds`; those
    that end later do not count.
    """
    begun = ended = 0
    times = ProgramTimes(driver.instance)
    async with driver.watch() as seen:
        stop = driver.clock.monotonic() + seconds

        async def keep_going(lane: int) -> None:
            """Creates an allocation, waits for its end, and goes on so until the time is over."""
            nonlocal begun, ended
            while driver.clock.monotonic() < stop:
                begun += 1
                name = f"life-{lane:03d}-{begun:06d}"
                seen.expect(name)
                await driver.user.create(ALLOCATIONS, work.hollow(NAMESPACE, name, seconds=0.0), NAMESPACE)
                await seen.end_of(name, within=60)
                ended += driver.clock.monotonic() < stop

        await asyncio.gather(*(keep_going(lane) for lane in range(outstanding)))
        took = [life.ended - life.seen for life in seen.lives.values() if life.ended is not None]
    detail = f"over {seconds:.0f} s, {outstanding} under way at a time; creation to end p50 {shown(percentile(took, 0.5))} s"
    return Figure("whole lives", ended / seconds, "/s", detail=detail, parts=_by_program(times, max(1, len(took))))


def _by_program(times: ProgramTimes, count: int) -> dict[str, float]:
    """Returns milliseconds of processor for each of `count`, of all programs together and of each that counts."""
    spent = times.spent(count)
    shares = {f"ms of {name}": each for name, each in spent.items() if each >= LEAST_MILLISECONDS}
    return {"ms of processor each": sum(spent.values()), **shares}


def _name(number: int) -> str:
    """Returns the name of the allocation of this number."""
    return f"admission-{number:05d}"
