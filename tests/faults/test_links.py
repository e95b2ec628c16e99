"""Nodes of one attempt that cannot reach each other, while both reach the API server: everybody learns of it through the plan."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator

import pytest

from lattice.kube.resources import ALLOCATIONS
from lattice.lifecycle.conditions import condition
from lattice.models.conditions import STAGED
from lattice.units import expand_nodes
from lattice.views import Allocation
from tests.e2e.waiting import Seen, until
from tests.faults.scene import LONG, Scene, administrator
from tests.faults.site import TENANT

pytestmark = [pytest.mark.faults, pytest.mark.root, pytest.mark.netns]

PAIR = ("nid005", "nid006")
TOLD_SECONDS = 5.0
"""A rank that failed is known to the other nodes after that."""
ENDED_SECONDS = 15.0


@pytest.fixture
def pair(scene: Scene) -> Iterator[tuple[str, str]]:
    """Two nodes whose link is whole again afterwards; what does not start on them goes back after 20 s."""
    scene.here.configure({"work": {"startTimeout": "20s"}, "scheduling": {"retryBackOff": "1s"}})
    try:
        yield PAIR
    finally:
        scene.instance.mend_between(*PAIR)
        scene.here.configure({"work": None, "scheduling": {"retryBackOff": None}})


@contextlib.contextmanager
def cut(scene: Scene) -> Iterator[float]:
    """Meanwhile the two nodes cannot reach each other; when that began."""
    scene.instance.cut_between(*PAIR)
    try:
        yield time.monotonic()
    finally:
        scene.instance.mend_between(*PAIR)


def runs_on_both(scene: Scene, seconds: float = 300.0, *, code: int = 0, walltime: int = 0) -> Allocation:
    """Work that runs on both nodes."""
    return scene.running(scene.submit(nodes=2, seconds=seconds, code=code, walltime=walltime, on=",".join(PAIR)))


def kill_tasks(scene: Scene, found: Allocation, node: str) -> None:
    """What runs of it on the node is killed, and its shim is not."""
    root = scene.instance.where.scope_root()
    assert root is not None
    for file in (root / node).glob(f"alloc-{found.metadata.uid}-*.scope/work/**/cgroup.procs"):
        for pid in map(int, file.read_text().split()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_a_gang_whose_nodes_cannot_talk_says_so_goes_back_and_starts_once_they_can(scene: Scene, pair: tuple[str, str]) -> None:
    with cut(scene):
        name = scene.submit(nodes=2, seconds=2, code=3, on=",".join(pair))

        waits = Seen(lambda: scene.get(name), lambda now: any(one.reason == "PeersUnreachable" for one in now.status.conditions))
        found: Allocation = until(waits, within=20, what="the sentence about who cannot reach whom")
        staged = condition(found.status.conditions, STAGED)
        assert staged is not None
        other = next(node for node in pair if node != found.status.reporter)
        assert f"{other} cannot reach {found.status.reporter}" in staged.message
        why = administrator(scene).lattice("why", name, "-n", TENANT).stdout
        assert "PeersUnreachable" in why
        assert f"{other} cannot reach {found.status.reporter}" in why
        seen = Seen(lambda: scene.get(name), lambda now: [entry.reason for entry in now.status.attempts] == ["StartTimeout"])
        assert until(seen, within=60, what="the next attempt").status.requeues == 0
    assert scene.ends([name]) == [("TaskFailed", 3, 2)]


@pytest.mark.parametrize("which", ["another rank", "the reporter"] if LONG else ["another rank"])
def test_a_rank_that_fails_is_known_to_the_others_through_the_plan(scene: Scene, pair: tuple[str, str], which: str) -> None:
    found = runs_on_both(scene)
    failing = found.status.reporter if which == "the reporter" else next(node for node in pair if node != found.status.reporter)
    (other,) = set(pair) - {failing}
    with cut(scene):
        began = time.monotonic()
        kill_tasks(scene, found, failing)
        until(lambda: scene.alive(found, other) == [], within=TOLD_SECONDS, what=f"the end of the work on {other}")
        print(f"{which} failed: the other node knew after {time.monotonic() - began:.1f} s")
        assert scene.ends([found.metadata.name], within=ENDED_SECONDS) == [("TaskFailed", 137, 1)]
        print(f"{which} failed: final after {time.monotonic() - began:.1f} s")


@pytest.mark.parametrize("how", ["cancel", "end", "walltime"] if LONG else ["cancel"])
def test_an_end_arrives_by_the_plan_where_nodes_cannot_talk(scene: Scene, pair: tuple[str, str], how: str) -> None:
    seconds, walltime = (8.0, 0) if how == "end" else (300.0, 10 if how == "walltime" else 0)
    found = runs_on_both(scene, seconds, code=7 if how == "end" else 0, walltime=walltime)
    name = found.metadata.name
    with cut(scene):
        if how == "cancel":
            with scene.here.alice() as cluster:
                cluster.patch(ALLOCATIONS, name, {"spec": {"cancel": {"reason": "wrong input"}}}, TENANT)
        began = time.monotonic()
        until(
            lambda: all(scene.alive(found, node) == [] for node in expand_nodes(found.status.nodes)), within=15, what="the end of the work"
        )
        ended = time.monotonic()
        reason, code, attempt = scene.ends([name], within=ENDED_SECONDS)[0]
        print(f"{how}: processes gone after {ended - began:.1f} s, final {time.monotonic() - ended:.1f} s later")
    assert attempt == 1
    assert reason == {"cancel": "Cancelled", "end": "TaskFailed", "walltime": "WalltimeExceeded"}[how]
    assert code == 7 if how == "end" else code in (None, 0, 143)
