"""The two phases of a cycle: once nobody left can gain, move or lose a reservation it stays so, and the short way decides as the long."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from lattice.scheduling.cycle.cycle import Cycle, decide
from lattice.scheduling.model.hardware import Need
from lattice.scheduling.model.outcomes import Outcome, Placed
from lattice.scheduling.model.policy import BACKFILL
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.state.cluster_state import ClusterState
from tests.unit.scheduling import moments
from tests.unit.scheduling.cycle.test_invariants import NOW, VCLUSTERS, some_work, some_world
from tests.unit.scheduling.state.test_quota_usage import DEPARTMENT, asks, group, site

GROUPS = (*DEPARTMENT, group("gpu", max={"nodes": 4, "gpu/GH200": 8}))
WORLDS, CYCLES = 60, 4


@dataclass
class Turn:
    """One cycle to decide: the state as it is when the turn comes, and what waits."""

    state: ClusterState
    vcluster: str
    queue: list[Candidate]
    now: float


def worlds_over_time(seed: int) -> Iterator[Turn]:
    """Cycles of three vclusters that share nodes, lend and borrow, under windows, limits and a power budget, while time goes on."""
    world, roll = some_world(seed), random.Random(seed)
    state, queues, now = world.state, world.queues, NOW
    if seed % 2:
        for name in VCLUSTERS:
            state.policies[name] = replace(state.policies[name], kind=BACKFILL, depth=roll.choice((1, 3, 10)))
    for cycle in range(CYCLES):
        for place, name in enumerate(VCLUSTERS):
            yield Turn(state, name, queues[name], now)
            queues[name] = [one for one in queues[name] if one.uid not in state.holders]
            first = 1000 + 100 * cycle + 10 * place
            newcomers = range(first, first + roll.randint(0, 3))
            queues[name] += [some_work(roll, number, name, [0b1011011, 0b110], list(state.windows)) for number in newcomers]
        now += roll.choice((0.0, 60.0, 700.0, 3600.0))
        for uid in [uid for uid in state.holders if roll.random() < 0.2]:
            state.drop_holder(uid)


def quota_trees_over_time(seed: int) -> Iterator[Turn]:
    """Cycles of two vclusters under a quota tree."""
    roll, state = random.Random(seed), site(12, GROUPS, gpus=4)
    quota_usage = state.quota_usage
    assert quota_usage is not None
    queues: dict[str, dict[str, Candidate]] = {name: {} for name in moments.VCLUSTERS}
    for number in range(10):
        now = moments.NOW + 10 * number
        for each in range(roll.randint(1, 3)):
            least = roll.randint(1, 4)
            one = asks(
                10 * number + each, roll.choice(["a", "b", "gpu", "default"]), least, maximum=least + roll.choice([0, 3]),
                need=Need(gpus=roll.choice([0, 0, 1])), vcluster=roll.choice(moments.VCLUSTERS), preemption_class=roll.randint(1, 9),
            )  # fmt: skip
            queues[one.vcluster][one.uid] = one
        for uid in [uid for uid in state.holders if roll.random() < 0.25]:
            state.drop_holder(uid)
        for name, queue in queues.items():
            yield Turn(state, name, list(queue.values()), now)
            for uid in [uid for uid in queue if uid in state.holders]:
                del queue[uid]
                quota_usage.drop(uid)


def the_long_way(turn: Turn) -> list[Outcome]:
    """Evaluates everybody as in the contested phase; fails where a phase that was over begins again."""
    cycle = Cycle(turn.state, turn.vcluster, turn.queue, turn.now, explain=True)
    pending = cycle.entries()
    contested, outcomes = [cycle.reservations.contested], list[Outcome]()
    for entry in pending:
        outcomes.append(cycle.evaluate(entry))
        contested.append(cycle.reservations.contested)
    cycle.commit()
    assert contested == sorted(contested, reverse=True), "it was over, and began again"
    return outcomes


@pytest.mark.parametrize("scenario", [worlds_over_time, quota_trees_over_time])
def test_the_contested_phase_never_begins_again_and_evaluates_nobody_otherwise_than_the_short_way(
    scenario: Callable[[int], Iterator[Turn]],
) -> None:
    placed = behind = 0
    for seed in range(WORLDS):
        for first, second in zip(scenario(seed), scenario(seed), strict=True):
            expected = the_long_way(first)
            found = list(decide(second.state, second.vcluster, second.queue, second.now))
            assert found == expected, (seed, first.vcluster)
            assert second.state.backfill_reservations == first.state.backfill_reservations
            assert second.state.moves == first.state.moves
            first.state.validate()
            placed += sum(isinstance(one, Placed) for one in found)
            behind += sum(not isinstance(one, Placed) and one.reason == "BehindHigherPriority" for one in found)
    assert placed > WORLDS
    assert behind
