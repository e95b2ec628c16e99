"""What is remembered of a quota tree is what it says when it is asked anew, whoever asked before and whatever happened since."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.quota.forest import Forest
from lattice.quota.groups import Options
from lattice.quota.tree import QuotaTree
from lattice.scheduling.model.hardware import Need
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.scheduling.state.quota_usage import QuotaUsage
from tests.unit.scheduling.moments import NOW
from tests.unit.scheduling.state.test_quota_usage import DEPARTMENT, asks, group, site

GPUS = group("gpu", max={"nodes": 6, "gpu/GH200": 12})
IDLE = group("idle", "dept", 2)


def some_work(roll: random.Random, number: int) -> Candidate:
    least = roll.randint(1, 4)
    return asks(
        number, roll.choice(["a", "b", "gpu", "nowhere"]), least, maximum=least + roll.choice([0, 0, 3]), not_before=roll.choice([0.0, NOW + 9]),
        need=Need(gpus=roll.choice([0, 0, 1])), preemptible=roll.random() < 0.7, preemption_class=roll.randint(1, 9),
    )  # fmt: skip


def asked_anew(state: ClusterState, waiting: list[Candidate], candidate: Candidate) -> object:
    """What a tree says that was never asked before."""
    assert state.quota_usage is not None
    fresh = QuotaUsage(Forest.restored(state.quota_usage.forest.snapshot()), state.node_cache)
    fresh.adopt(waiting, state.holders.values(), NOW)
    return fresh.shares.share(candidate)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_what_is_remembered_is_what_the_tree_says_anew(seed: int) -> None:
    roll = random.Random(seed)
    state = site(12, (*DEPARTMENT, IDLE, GPUS), gpus=4)
    quota_usage = state.quota_usage
    assert quota_usage is not None
    waiting: list[Candidate] = []
    for number in range(8):
        waiting.append(some_work(roll, number))
        quota_usage.ask(waiting, NOW)
        if roll.random() < 0.5:
            started = waiting.pop(roll.randrange(len(waiting)))
            free = [index for index in range(12) if index not in state.node_cache.taken]
            if len(free) >= started.minimum:
                state.claim(started, tuple(sorted(roll.sample(free, started.minimum))), NOW)
            quota_usage.drop(started.uid)
        for uid in [uid for uid in state.holders if roll.random() < 0.2]:
            state.drop_holder(uid)
        for candidate in roll.sample(waiting, len(waiting)):
            found, anew = quota_usage.shares.share(candidate), asked_anew(state, waiting, candidate)
            assert found == anew
            assert getattr(found, "message", "") == getattr(anew, "message", "")
    state.validate()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_what_a_level_borrows_is_told_as_it_is_after_every_event(seed: int) -> None:
    roll = random.Random(seed)
    groups = (*DEPARTMENT, IDLE, group("other", least=2))
    tree = QuotaTree({"nodes": 12}, Options(scale_min=True), groups)
    for _ in range(12):
        name, more = roll.choice(["a", "b", "idle", "other"]), {"nodes": roll.randint(-3, 5)}
        match roll.randint(0, 3):
            case 0:
                tree.demand_added(name, more, {}, {})
            case 1:
                tree.demand_added(name, more, more, {})
            case 2:
                tree.total_changed({"nodes": roll.randint(4, 14)})
            case _:
                tree.demand_added(name, {"nodes": 5}, {}, {})
                with tree.supposed(name, more):
                    tree.borrowed("dept", "nodes")
        for parent in ("dept", "koordinator-root-quota"):
            found = tree.borrowed(parent, "nodes")
            more_of = {each: tree.used(each).get("nodes", 0) - tree.effective_min(each).get("nodes", 0) for each in tree.children(parent)}
            assert {one.quota: one.amount for one in found.borrowers} == {each: more for each, more in more_of.items() if more > 0}
            assert found.amount == sum(one.amount for one in found.borrowers)
            assert [one.amount for one in found.borrowers] == sorted((one.amount for one in found.borrowers), reverse=True)
