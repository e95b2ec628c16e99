"""Measures lists that people read: the wall time of `lattice status`, and the gateway's answers to ten simultaneous readers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Final

from lattice.cli.gateway import ANSWER_SECONDS
from lattice.cli.stream import open_stream
from lattice.kube.kubeconfig import ClusterConfig, load
from lattice.kube.resources import CONFIG_MAPS
from lattice_dev.bench import footprint, work
from lattice_dev.bench.drive import NAMESPACE, USER, Driver
from lattice_dev.bench.figures import Aim, Figure, percentile
from lattice_dev.bench.observe import Life

READERS: Final = 10
QUESTIONS: Final = 12
"""Questions of each reader, one after the other, each over a connection of its own as a command's is."""
ANSWER_AIMS: Final = {1_000: Aim(100), 10_000: Aim(250)}
ASKED: Final = (
    ("status", f"/v1/status?namespace={NAMESPACE}&mine=true"),
    ("nodes", "/v1/nodes"),
    ("queue", f"/v1/queue?namespaces={NAMESPACE}"),
    ("usage", "/v1/usage?user=me"),
    ("history", "/v1/history?user=me"),
)


async def measure(driver: Driver, counts: Sequence[int]) -> list[Figure]:
    """Returns for each of `counts` (ascending) the wall time of `lattice status` and p95 of the answers to each question, with so many held
    allocations that wait; they stay.
    """
    figures: list[Figure] = []
    public = (await driver.admin.get(CONFIG_MAPS, "lattice-public", "lattice-system", type=dict[str, Any]))["data"]
    config = load(str(driver.instance.kubeconfig(USER)))
    async with driver.watch() as seen:
        for former, count in pairwise((0, *counts)):
            await driver.create([_held(f"lists-{number:05d}") for number in range(former, count)])
            await seen.until(partial(_explained, seen.lives, count), within=120 + count / 20, what="a reason for each that is held")
            figures.append((await asyncio.to_thread(footprint.commands, driver.instance, count))[0])
            figures += [await _answers(config, public, what, path, count) for what, path in ASKED]
    return figures


def _held(name: str) -> work.Manifest:
    """Returns an Allocation that is held."""
    manifest = work.real(NAMESPACE, name, "true")
    manifest["spec"]["hold"] = True
    return manifest


def _explained(lives: Mapping[str, Life], count: int) -> bool:
    """Tells whether so many allocations exist and each has been given a reason."""
    return len(lives) == count and all(life.reasons for life in lives.values())


async def _answers(config: ClusterConfig, public: dict[str, str], what: str, path: str, count: int) -> Figure:
    """Returns p95 of one question's answers, each measured until it is complete."""
    await asyncio.to_thread(_ask, config, public, path)  # what is encoded once is encoded now
    took: list[float] = []

    async def reader() -> None:
        """Asks QUESTIONS times, one after another, and notes how long each answer took."""
        took.extend([await asyncio.to_thread(_ask, config, public, path) for _ in range(QUESTIONS)])

    async with asyncio.TaskGroup() as group:
        for _ in range(READERS):
            group.create_task(reader())
    aim = ANSWER_AIMS.get(count) if what in ("status", "nodes") else None
    detail = f"p50 {percentile(took, 0.5):.1f} ms; {READERS} readers at a time, {QUESTIONS} questions each"
    return Figure(f"gateway's {what}, {count} allocations, p95", percentile(took, 0.95), "ms", aim, detail=detail)


def _ask(config: ClusterConfig, public: dict[str, str], path: str) -> float:
    """Returns the milliseconds until the answer is complete."""
    began = time.monotonic()
    stream = open_stream(config, public["gateway"], public["ca"], path, None, ANSWER_SECONDS)
    try:
        for _ in stream.lines():
            pass
    finally:
        stream.close()
    return (time.monotonic() - began) * 1000
