"""The gateway's peers are killed again and again while people read through it: it outlives all of them, and answers after each."""

from __future__ import annotations

import random
import time

import pytest

from lattice.kube.resources import ALLOCATIONS
from tests.e2e.waiting import until
from tests.faults.reading import Reader
from tests.faults.scene import LONG, Scene
from tests.faults.site import TENANT
from tests.faults.transitions import Transitions

pytestmark = [pytest.mark.faults, pytest.mark.root, pytest.mark.timeout(0 if LONG else 600)]

KILLS = 500 if LONG else 12
PEERS = ("kube-apiserver", "kube-apiserver", "scheduler", "agent-nid001")
READERS = 3


def test_a_gateway_outlives_the_kills_of_its_peers_and_answers_after_each(scene: Scene) -> None:
    rng = random.Random(7)
    name = scene.submit(seconds=36_000, on="nid001")
    scene.running(name)
    gateway = scene.instance.pid("gateway")
    readers = [Reader(scene.instance, TENANT, Transitions(), lambda: [name], seed) for seed in range(READERS)]
    for reader in readers:
        reader.start()
    try:
        for number in range(KILLS):
            victim = rng.choice(PEERS)
            scene.instance.kill(victim)
            time.sleep(rng.uniform(0.0, 0.5))
            scene.instance.start(victim, wait=False)
            before = [reader.read for reader in readers]
            what = f"answers after kill {number + 1}, of {victim}; broken so far: {[dict(reader.broken) for reader in readers]}"
            until(lambda: all(reader.read > then for reader, then in zip(readers, before, strict=True)), within=60, every=0.05, what=what)  # noqa: B023
            assert scene.instance.pid("gateway") == gateway, "it is still the one of the beginning"
    finally:
        for reader in readers:
            reader.stop()
    with scene.here.alice() as cluster:
        cluster.patch(ALLOCATIONS, name, {"spec": {"cancel": {"reason": "read enough"}}}, TENANT)
    assert scene.ends([name]) == [("Cancelled", 143, 1)]
