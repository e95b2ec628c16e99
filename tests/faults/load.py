"""The load of a fault run: allocations with known ends, submitted by alice so that a wanted number is in flight."""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lattice.errors import AlreadyExists, Denied, Rejected, Retry, Stale, UnknownOutcome
from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import ALLOCATIONS
from lattice.lifecycle.settle import is_final
from tests.faults import witness
from tests.faults.transitions import Onlooker, Transitions

LOOK_SECONDS = 0.1
CODES = (0, 0, 0, 3, 7)
LONG_SECONDS = 60.0
PASSING = (Retry, UnknownOutcome, Stale, Denied)
"""The server, or a part of it, is away; one that has just started denies everything until it has read its roles."""


@dataclass(frozen=True)
class Wish:
    """One allocation as it is wanted; `walltime` above 0 ends it, `cancel_after` seconds its owner cancels it."""

    name: str
    nodes: int
    seconds: float
    code: int
    stubborn: bool
    lines: int
    walltime: int = 0
    cancel_after: float | None = None
    held: bool = False
    """It ends when it is told to, after `seconds` at the latest."""

    def body(self, namespace: str, script: Path, directory: Path) -> dict[str, Any]:
        """The object, complete: it needs no webhook."""
        told = witness.told(directory, self.name) if self.held else None
        run = witness.command(
            script, directory, seconds=self.seconds, code=self.code, stubborn=self.stubborn, lines=self.lines, told=told
        )  # fmt: skip
        lifecycle = {"type": "Bounded", "walltime": f"{self.walltime or 300}s", "gracePeriod": "1s"}
        return {
            "apiVersion": "lattice.dev/v1alpha1",
            "kind": "Allocation",
            "metadata": {"name": self.name, "namespace": namespace},
            "spec": {
                "tenant": namespace, "user": "alice", "vcluster": "hpc-batch",
                "entrypoint": run, "resources": {"nodes": self.nodes}, "lifecycle": lifecycle,
            },
        }  # fmt: skip


def wishes(rng: random.Random, longest_seconds: float) -> Callable[[], Wish]:
    """An endless, repeatable row of wishes."""
    number = 0

    def following() -> Wish:
        nonlocal number
        number += 1
        nodes = rng.choices((1, 2, 4), (70, 20, 10))[0]
        seconds, code = rng.uniform(1.0, longest_seconds), rng.choice(CODES)
        stubborn, lines = rng.random() < 0.1, rng.choice((0, 0, 1, 5, 200))
        fate = rng.random()
        cancel = rng.uniform(0.2, 5.0) if fate < 0.12 else None
        walltime = 2 if 0.12 <= fate < 0.18 else 0
        return Wish(f"w{number:05d}", nodes, LONG_SECONDS if walltime else seconds, code, stubborn, lines, walltime, cancel)

    return following


@dataclass
class Sample:
    """In flight: submitted and not final; holding: placed on nodes."""

    in_flight: list[int] = field(default_factory=list)
    holding: list[int] = field(default_factory=list)


class Load:
    """Keeps `population` allocations in flight, cancels those whose owner wishes it, and counts."""

    def __init__(
        self, connect: Callable[[], BlockingCluster], onlooker: Onlooker, transitions: Transitions, following: Callable[[], Wish],
        *, namespace: str, script: Path, directory: Path, population: int,
    ) -> None:  # fmt: skip
        self.submitted: dict[str, Wish] = {}
        self.cancelled: set[str] = set()
        """Names whose cancellation the server has acknowledged."""
        self.sample = Sample()
        self._connect = connect
        self._onlooker = onlooker
        self._transitions = transitions
        self._following = following
        self._namespace, self._script, self._directory = namespace, script, directory
        self._population = population
        self._wanted = threading.Event()
        self._wanted.set()
        self._due: list[tuple[float, str]] = []
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """Begins to submit."""
        self._thread.start()

    def drain(self, within: float) -> list[str]:
        """Submits no more and waits until everything is final; answers what is not."""
        self._wanted.clear()
        deadline = time.monotonic() + within
        while time.monotonic() < deadline and (self.open() or self._due):
            time.sleep(LOOK_SECONDS)
        if self.failure is not None:
            raise self.failure
        return self.open()

    def open(self) -> list[str]:
        """Names that are submitted and not final, as last seen."""
        seen = self._onlooker.allocations
        return [name for name in list(self.submitted) if name not in seen or not is_final(seen[name].status)]

    def _run(self) -> None:
        try:
            with closing(self._connect()) as cluster:
                while self._wanted.is_set() or self._due:
                    self._turn(cluster)
                    time.sleep(LOOK_SECONDS)
        except BaseException as error:
            self.failure = error

    def _turn(self, cluster: BlockingCluster) -> None:
        opened = self.open()
        if self._wanted.is_set():
            seen = self._onlooker.allocations
            self.sample.in_flight.append(len(opened))
            self.sample.holding.append(sum(1 for name in opened if name in seen and seen[name].status.nodes))
            for _ in range(max(0, self._population - len(opened))):
                self._submit(cluster, self._following())
        while self._due and self._due[0][0] <= time.monotonic():
            _, name = heapq.heappop(self._due)
            if not self._cancel(cluster, name):
                heapq.heappush(self._due, (time.monotonic() + 0.5, name))

    def _submit(self, cluster: BlockingCluster, wish: Wish) -> None:
        body = wish.body(self._namespace, self._script, self._directory)
        while True:
            self._transitions.note("submission")
            try:
                cluster.create(ALLOCATIONS, body, self._namespace)
            except AlreadyExists:
                break  # an answer was lost; names are used once
            except PASSING:
                time.sleep(0.3)
            else:
                break
        self.submitted[wish.name] = wish
        if wish.cancel_after is not None:
            heapq.heappush(self._due, (time.monotonic() + wish.cancel_after, wish.name))

    def _cancel(self, cluster: BlockingCluster, name: str) -> bool:
        try:
            cluster.patch(ALLOCATIONS, name, {"spec": {"cancel": {"reason": "its owner thought better of it"}}}, self._namespace)
        except PASSING:
            return False
        except Rejected:
            return True  # it has ended meanwhile, and stays as it is
        self.cancelled.add(name)
        return True
