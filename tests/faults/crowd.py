"""Clients that each submit, wait for the end and submit again: every client asks for one allocation at a time."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from lattice.errors import AlreadyExists
from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import ALLOCATIONS
from lattice.lifecycle.conditions import condition
from lattice.lifecycle.settle import is_final
from lattice.models.conditions import FINISHED
from lattice_dev.bench import work
from tests.faults.load import PASSING
from tests.faults.transitions import Onlooker

LOOK_SECONDS = 0.02


class Crowd:
    """So many clients of one tenant, as users `users` in turn; a round is one allocation, submitted and ended."""

    def __init__(
        self, connect: Callable[[], BlockingCluster], onlooker: Onlooker, *, tenant: str, users: Sequence[str], clients: int, most: int,
        seed: int,
    ) -> None:  # fmt: skip
        """Each asks for 1 to `most` nodes."""
        self.rounds = 0
        self.ends: Counter[str] = Counter()
        """By the reason of the end."""
        self.submitted: set[str] = set()
        self.failure: BaseException | None = None
        self._connect = connect
        self._onlooker = onlooker
        self._tenant = tenant
        self._most = most
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._client, args=(users[number % len(users)], random.Random(seed * 1000 + number)), daemon=True)
            for number in range(clients)
        ]

    def start(self) -> None:
        """They begin."""
        for thread in self._threads:
            thread.start()

    def work(self, *, rounds: int, within: float) -> None:
        """Return once so many rounds are done."""
        deadline = time.monotonic() + within
        while self.rounds < rounds:
            if self.failure is not None:
                raise self.failure
            assert time.monotonic() < deadline, f"{self.rounds} rounds in {within:.0f} s, {rounds} are wanted"
            time.sleep(LOOK_SECONDS)

    def stop(self, within: float) -> list[str]:
        """Each ends its round and begins no more; answers what has not ended."""
        self._ended.set()
        deadline = time.monotonic() + within
        for thread in self._threads:
            thread.join(timeout=max(0.0, deadline - time.monotonic()))
        if self.failure is not None:
            raise self.failure
        seen = self._onlooker.allocations
        return sorted(name for name in self.submitted if name not in seen or not is_final(seen[name].status))

    def _client(self, user: str, rng: random.Random) -> None:
        try:
            with contextlib.closing(self._connect()) as cluster:
                while not self._ended.is_set():
                    self._round(cluster, user, rng.randint(1, self._most))
        except BaseException as error:
            self.failure = error

    def _round(self, cluster: BlockingCluster, user: str, nodes: int) -> None:
        with self._lock:
            name = f"r{next(self._numbers):05d}"
            self.submitted.add(name)
        body: dict[str, Any] = work.hollow(self._tenant, name, nodes=nodes)
        body["spec"] |= {"tenant": self._tenant, "user": user, "vcluster": "hpc-batch"}
        self._submit(cluster, body)
        seen = self._onlooker.allocations
        while name not in seen or not is_final(seen[name].status):
            time.sleep(LOOK_SECONDS)
        finished = condition(seen[name].status.conditions, FINISHED)
        with self._lock:
            self.rounds += 1
            self.ends[finished.reason if finished else ""] += 1

    def _submit(self, cluster: BlockingCluster, body: dict[str, Any]) -> None:
        while True:
            try:
                cluster.create(ALLOCATIONS, body, self._tenant)
            except AlreadyExists:
                return  # an answer was lost
            except PASSING:
                time.sleep(0.2)
            else:
                return
