"""Measures rates a second: creations, admissions by a scheduler that starts, and whole lives."""

from __future__ import annotations

import asyncio

from lattice.kube.resources import ALLOCATIONS
from lattice_dev.bench import work
from lattice_dev.bench.drive import CONNECTIONS, NAMESPACE, Driver
from lattice_dev.bench.figures import Aim, Baseline, Figure, percentile, shown
from lattice_dev.bench.processor import ProgramTimes

ADMISSIONS_AIM = Aim(300, at_least=True)
CREATIONS_AIM = Aim(600, at_least=True)
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

        def admitted() -> bool:
            """Tells whether all allocations are scheduled and in a plan."""
            return seen.count_reached("scheduled", names) == count and all(seen.lives[name].uid in seen.planned for name in names)

        await seen.until(admitted, within=120 + count / 10, what=f"the admission of {count}")
        moments = [max(seen.lives[name].scheduled or 0.0, seen.planned[seen.lives[name].uid]) - began for name in names]
        first, last = min(moments), max(moments)
        batches = [len(step.claimed) for step in seen.steps if step.claimed]
        by_program = _by_program(times, count)
    detail = f"{count} waiting; first after {shown(first)} s, p50 {shown(percentile(moments, 0.5))} s, last {shown(last)} s"
    parts = {
        "claims a commit": sum(batches) / len(batches),
        "a second between first and last": (count - 1) / max(last - first, 1e-9),
    } | by_program
    base = Baseline("/s PATCHes of ConfigMaps", patches)
    return [created, Figure("admissions, from the scheduler's start", count / last, "/s", ADMISSIONS_AIM, base, detail, parts | by_program)]


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
