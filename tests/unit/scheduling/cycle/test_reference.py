"""The incremental cycle decides as the naive one does, on thousands of random instances, over several cycles each."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.model.hardware import Need, NodeFacts
from lattice.scheduling.model.outcomes import Placed, Waiting
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.windows import ReservationWindow
from lattice.scheduling.model.work import ANY, IGNORED, PREFERRED, REQUIRED, SPREAD, TIGHT, Candidate
from lattice.scheduling.state.cluster_state import ClusterState, mask_of
from lattice.scheduling.state.reservation_order import UNEXPLAINED
from lattice.views.ledger import TenantAccount
from tests.unit.scheduling.cycle.reference import Instance, decide_naively

INSTANCES_A_BATCH = 125
CYCLES = 3
EARLY_CYCLES = 8
EARLY_INSTANCES_A_BATCH = 60


def some_nodes(roll: random.Random) -> list[NodeFacts]:
    groups = [f"g{number}" for number in range(roll.randint(1, 5))]
    classes = [(8, 0, "", 0), (8, 4, "A100", 40), (16, 4, "GH200", 96)][: roll.randint(1, 3)]
    nodes = []
    for index in range(roll.randint(1, 22)):
        cpus, gpus, gpu_type, gpu_memory = roll.choice(classes)
        usable = roll.random() < 0.9
        nodes.append(
            NodeFacts(
                index=index, name=f"n{index}", group=roll.choice(groups), cpus=cpus, memory=64, gpus=gpus, features=frozenset(),
                hollow=False, usable=usable, state="Ready" if usable else "Down", switch=roll.choice(("", "s1", "s2")),
                gpu_type=gpu_type, gpu_memory=gpu_memory, fingerprint=roll.choice(("a", "a", "b", "")),
            )
        )  # fmt: skip
    return nodes


def some_queue(roll: random.Random, lists: list[int], windows: list[ReservationWindow]) -> list[Candidate]:
    needs = [Need(), Need(gpus=4), Need(gpu_type="gh200", gpus=1), Need(cpus=16), Need(only=lists[0]), Need(without=lists[1])]
    queue = []
    for number in range(roll.randint(1, 9)):
        minimum = roll.randint(1, 8)
        queue.append(
            Candidate(
                key=f"t/j{number}", uid=f"u{number}", tenant="t", vcluster="v", preemption_class=roll.randint(0, 10),
                submitted=float(roll.randint(0, 3)), minimum=minimum, maximum=minimum + roll.choice((0, 0, 3)), need=roll.choice(needs),
                walltime=roll.choice((None, 60.0, 600.0, 3600.0, 7200.0)), grace=30.0,
                topology=roll.choice((ANY, ANY, TIGHT, SPREAD)), conformance=roll.choice((PREFERRED, PREFERRED, REQUIRED, IGNORED)),
                reservation=roll.choice(("", "", "", windows[0].name)) if windows else "", held=roll.random() < 0.05,
            )
        )  # fmt: skip
    return queue


def blocks_of_nodes(roll: random.Random) -> list[NodeFacts]:
    """Nodes of one kind in two to four groups, all of one or of two fingerprints."""
    groups, prints = roll.randint(2, 4), roll.choice(("a", "a", "ab"))
    kind: dict[str, Any] = {
        "cpus": 8,
        "memory": 64,
        "gpus": 0,
        "features": frozenset[str](),
        "hollow": False,
        "usable": True,
        "state": "Ready",
    }
    return [
        NodeFacts(index=index, name=f"n{index}", group=f"g{roll.randrange(groups)}", fingerprint=roll.choice(prints), **kind)
        for index in range(roll.randint(12, 22))
    ]  # fmt: skip


def wide_queue(roll: random.Random, nodes: int) -> list[Candidate]:
    """Work of one or two classes that asks for up to three quarters of all nodes."""
    queue = []
    for number in range(roll.randint(3, 7)):
        minimum = roll.randint(1, nodes * 3 // 4)
        queue.append(
            Candidate(
                key=f"t/j{number}", uid=f"u{number}", tenant="t", vcluster="v", preemption_class=roll.choice((5, 5, 5, 7)),
                submitted=float(number), minimum=minimum, maximum=minimum, need=Need(), walltime=roll.choice((600.0, 3600.0, 7200.0, 20000.0)),
                grace=30.0, topology=roll.choice((ANY, ANY, ANY, TIGHT)), conformance=roll.choice((IGNORED, IGNORED, PREFERRED)),
            )
        )  # fmt: skip
    return queue


def some_windows(roll: random.Random, nodes: list[NodeFacts]) -> list[ReservationWindow]:
    if roll.random() < 0.6:
        return []
    found = []
    for number in range(roll.randint(1, 2)):
        start = 1000.0 + roll.choice((-500.0, 500.0, 3000.0))
        chosen = mask_of(roll.sample(range(len(nodes)), roll.randint(1, len(nodes))))
        found.append(ReservationWindow(f"w{number}", start, start + roll.choice((800.0, 5000.0)), chosen))
    return found


def compare(seed: int, *, early: bool = False) -> int:
    """One instance: equal places, equal starts of reservations, cycle after cycle while time goes on and work ends.

    `early`: for more cycles, all nodes are held at first, two reservations or more are given, and nodes come free before their time.
    Returns how many starts came earlier since reservations behind them moved to other nodes.
    """
    roll = random.Random(seed)
    nodes = blocks_of_nodes(roll) if early else some_nodes(roll)
    windows = some_windows(roll, nodes) if not early or roll.random() < 0.3 else []
    if early:
        ends = {group: (roll.randint(2000, 20000), roll.randint(2000, 20000)) for group in sorted({facts.group for facts in nodes})}
        held = {facts.index: float(roll.choice(ends[facts.group])) for facts in nodes}
    else:
        held = {facts.index: roll.choice((900.0, 1100.0, 1500.0, 4000.0, float("inf"))) for facts in nodes if roll.random() < 0.4}
    quota = roll.choice((None, None, 6, 12)) if not early or roll.random() < 0.2 else None
    node_cache = NodeCache()
    for facts in nodes:
        node_cache.put(facts)
    for index, end in held.items():
        node_cache.take([index], end)
    depth = roll.choice((2, 4, 10)) if early else roll.choice((0, 1, 2, 10))
    state = ClusterState(node_cache, policies={"v": Policy("v", depth=depth)}, start_allowance=0.0)
    state.set_windows(windows)
    lists = [mask_of(roll.sample(range(len(nodes)), roll.randint(1, len(nodes)))) for _ in range(2)]
    lists = [] if early and roll.random() < 0.7 else lists
    state.set_lists("others", frozenset(lists))
    queue = wide_queue(roll, len(nodes)) if early else some_queue(roll, lists, windows)
    now, left, rearranged = 1000.0, quota, 0
    for cycle in range(EARLY_CYCLES if early else CYCLES):
        state.accounts = {"t": TenantAccount(max_nodes=quota)}
        known = {
            uid: (promise.start, promise.end, {(k.hardware, k.group, k.switch, k.fingerprint, k.marks): n for k, n in promise.counts})
            for uid, promise in state.backfill_reservations.get("v", {}).items()
        }
        ordered = sorted(queue, key=lambda one: (-one.preemption_class, one.submitted, one.key))
        given = state.heirs.get("v", {}) | {uid: promise.given for uid, promise in state.backfill_reservations.get("v", {}).items()}
        instance = Instance(nodes, dict(node_cache.taken), windows, ordered, depth, now, left, known, given, lists)
        naive = decide_naively(instance, 0.0, state.overrun_seconds)
        outcomes = list(decide(state, "v", queue, now))
        placed = {outcome.candidate.uid: outcome.nodes for outcome in outcomes if isinstance(outcome, Placed)}
        latest = {one.candidate.uid: one.latest for one in outcomes if isinstance(one, Waiting) and one.latest is not None}
        assert [one.candidate.uid for one in outcomes] == naive.order
        assert placed == naive.placed, (seed, cycle)
        assert latest == naive.promised, (seed, cycle)
        state.validate()
        rearranged += len(naive.rearranged)
        if naive.rearranged:  # nobody's start comes later for it
            assert all(move.cause != UNEXPLAINED for move in state.moves["v"]), (seed, cycle)
        if left is not None:
            left -= sum(map(len, placed.values()))
        queue = [one for one in queue if one.uid not in placed]
        extra = [
            replace(one, uid=f"{one.uid}x{cycle}", key=f"{one.key}x{cycle}")
            for one in (wide_queue(roll, len(nodes)) if early else some_queue(roll, lists, windows))[:2]
        ]
        queue = [*queue, *extra]
        now += roll.choice((0.0, 200.0, 700.0))
        placed_on = {index for holder in state.holders.values() for index in holder.nodes}
        node_cache.give([index for index, end in held.items() if end <= now and index in node_cache.taken and index not in placed_on])
        if early:
            for uid in [uid for uid in sorted(state.holders) if roll.random() < 0.3]:
                state.drop_holder(uid)
            left = None if quota is None else quota - sum(len(holder.nodes) for holder in state.holders.values())
            placed_on = {index for holder in state.holders.values() for index in holder.nodes}
            groups = {facts.group for facts in nodes if roll.random() < 0.3}
            rest = [facts.index for facts in nodes if facts.index in node_cache.taken and facts.index not in placed_on]
            node_cache.give([index for index in rest if nodes[index].group in groups and roll.random() < 0.8])
    return rearranged


@pytest.mark.parametrize("batch", range(16))
def test_the_incremental_cycle_equals_the_naive_one(batch: int) -> None:
    for seed in range(batch * INSTANCES_A_BATCH, (batch + 1) * INSTANCES_A_BATCH):
        compare(seed)


@pytest.mark.parametrize("batch", range(4))
def test_reservations_move_to_other_nodes_for_who_comes_first_as_in_the_naive_cycle(batch: int) -> None:
    seeds = range(-(batch + 1) * EARLY_INSTANCES_A_BATCH, -batch * EARLY_INSTANCES_A_BATCH)
    assert sum(compare(seed, early=True) for seed in seeds) > 0
