"""Cycles under a quota tree are recorded with the tree, and decide again byte for byte what they decided."""

from __future__ import annotations

import random

import pytest

from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.model.hardware import Need
from lattice.scheduling.model.outcomes import Placed
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.recording.codec import CycleDecoder, CycleEncoder, encoded
from lattice.scheduling.recording.record import SnapshotTaker, completed, reproduce
from tests.build import node
from tests.unit.scheduling.moments import NOW, VCLUSTERS
from tests.unit.scheduling.state.test_quota_usage import DEPARTMENT, asks, group, site

GROUPS = (*DEPARTMENT, group("gpu", max={"nodes": 4, "gpu/GH200": 8}))


@pytest.mark.parametrize("seed", range(6))
def test_a_cycle_under_a_quota_tree_decides_again_what_it_decided(seed: int) -> None:
    roll = random.Random(seed)
    state = site(12, GROUPS, gpus=4)
    assert state.quota_usage is not None
    looker, chronicler, reader = SnapshotTaker(state), CycleEncoder("test"), CycleDecoder()
    queues: dict[str, dict[str, Candidate]] = {name: {} for name in VCLUSTERS}
    waited = 0
    for number in range(12):
        now = NOW + 10 * number
        for each in range(roll.randint(1, 3)):
            least = roll.randint(1, 4)
            one = asks(
                10 * number + each, roll.choice(["a", "b", "gpu", "default"]), least, maximum=least + roll.choice([0, 3]),
                need=Need(gpus=roll.choice([0, 0, 1])), preemptible=roll.random() < 0.8, vcluster=roll.choice(VCLUSTERS),
                preemption_class=roll.randint(1, 9), not_before=roll.choice([0.0, now + 15]),
            )  # fmt: skip
            queues[one.vcluster][one.uid] = one
        for uid in [uid for uid in state.holders if roll.random() < 0.25]:
            state.drop_holder(uid)
        if roll.random() < 0.3:
            index = roll.randrange(12)
            state.node_cache.put(node(index, f"g{index // 4}", gpus=roll.choice([0, 4])))
            state.quota_usage.nodes_changed([index])
        for queue in queues.values():
            state.quota_usage.ask(queue.values(), now)
        for name, queue in queues.items():
            moment = looker.take_snapshot(name, list(queue.values()), now, number)
            outcomes = list(decide(state, name, list(queue.values()), now))
            whole = number % 4 == 0 and name == VCLUSTERS[0]
            turn = reader.turn(chronicler.payload(completed(moment, state), outcomes, whole=whole), whole=whole)
            assert encoded(reproduce(turn.moment)) == encoded(outcomes)
            waited += sum(one.reason == "WaitingForQuotaShare" for one in outcomes if not isinstance(one, Placed))
            for outcome in outcomes:
                if isinstance(outcome, Placed):
                    del queue[outcome.candidate.uid]
                    state.quota_usage.drop(outcome.candidate.uid)
            state.validate()
    assert waited
