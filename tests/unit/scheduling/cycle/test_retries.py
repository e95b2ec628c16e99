"""Cycles that give no reasons leave out who could find no nodes, and scores that decide nothing; they decide as cycles that explain."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.cycle.cycle import Cycle, decide
from lattice.scheduling.model.outcomes import Outcome, Placed
from lattice.scheduling.model.policy import BACKFILL, INTERACTIVE_FIFO, Limits, Policy
from lattice.scheduling.model.windows import ReservationWindow
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.priority.scoring import Scoring
from lattice.scheduling.priority.shares import Shares, Terms
from lattice.scheduling.state.cluster_state import ClusterState, mask_of
from lattice.views.ledger import TenantAccount
from tests.build import job, node, uid

WORLDS, CYCLES = 40, 20
VCLUSTERS = ("hpc", "ml")
DEPTHS = (0, 1, 3, 10)
WALLTIMES = (60.0, 200.0, 900.0, 3600.0, 3600.0, 14400.0, 40000.0)


@dataclass
class World:
    """A machine over time: in each cycle one more job or none, now and then an end, a window, a withdrawal, a new limit."""

    seed: int
    state: ClusterState = field(init=False)
    queues: dict[str, list[Candidate]] = field(init=False)
    now: float = 1_800_000_000.0

    def __post_init__(self) -> None:
        self.roll = random.Random(self.seed)
        node_cache = NodeCache()
        for index in range(12):
            node_cache.put(replace(node(index), group=f"g{index // 4}", fingerprint="ab"[index % 2]))
        policies = {name: Policy(name, kind=BACKFILL, depth=self.roll.choice(DEPTHS)) for name in VCLUSTERS}
        if self.seed % 10 == 9:
            policies["ml"] = Policy("ml", kind=INTERACTIVE_FIFO)
        shares = Shares()
        shares.agree({"physics": Terms()})
        scoring = Scoring(shares=shares, policies=policies)
        self.state = ClusterState(node_cache, {"physics": TenantAccount()}, policies, dict.fromkeys(VCLUSTERS, scoring))
        self.queues = {name: [] for name in VCLUSTERS}

    def turns(self) -> Iterator[str]:
        """Yields the vcluster of each cycle, once it is its turn."""
        for cycle in range(CYCLES):
            self.now += self.roll.choice((0.0, 1.0, 30.0, 30.0, 300.0, 2000.0))
            self._happen(cycle)
            for name in VCLUSTERS if self.seed % 3 else VCLUSTERS[:1]:
                yield name
                self.queues[name] = [one for one in self.queues[name] if one.uid not in self.state.holders]

    def _happen(self, cycle: int) -> None:
        roll, state = self.roll, self.state
        name = roll.choice(VCLUSTERS if self.seed % 3 else VCLUSTERS[:1])
        for number in range(cycle * 5, cycle * 5 + roll.choice((0, 1, 1, 1, 2, 4))):
            self.queues[name].append(self._job(number, name))
        if roll.random() < 0.15 and state.holders:
            state.drop_holder(roll.choice(sorted(state.holders)))
        if roll.random() < 0.05 and self.queues[name]:
            self.queues[name].pop(roll.randrange(len(self.queues[name])))
        if roll.random() < 0.05:
            begin = self.now + roll.choice((0.0, 3000.0))
            state.set_windows([ReservationWindow("w", begin, begin + 4000.0, mask_of((0, 1, 2)), maintenance=True)])
        if roll.random() < 0.03:
            state.policies[name] = replace(state.policies[name], limits=roll.choice((Limits(), Limits(max_nodes=6))))

    def _job(self, number: int, name: str) -> Candidate:
        roll = self.roll
        return replace(
            job(number, roll.choice((1, 1, 2, 3, 5, 8, 12)), preemption_class=5 if self.seed % 2 else roll.choice((5, 5, 5, 2, 8))), vcluster=name,
            submitted=self.now, walltime=roll.choice(WALLTIMES), not_before=roll.choice((0.0,) * 19 + (self.now + 500.0,)),
        )  # fmt: skip


def decided(world: World, vcluster: str, *, explain: bool) -> list[Outcome]:
    return list(decide(world.state, vcluster, world.queues[vcluster], world.now, explain=explain))


def left_out(world: World, vcluster: str) -> int:
    """Decides as a cycle without reasons does; returns how many candidates it did not evaluate."""
    cycle = Cycle(world.state, vcluster, world.queues[vcluster], world.now, explain=False)
    found = len(list(cycle.unschedulable()))
    pending = cycle.entries()
    while cycle.reservations.contested and (entry := next(pending, None)) is not None:
        cycle.evaluate(entry)
    for _ in cycle.evaluate_capacity(pending):
        pass
    cycle.commit()
    return found


def test_a_cycle_that_gives_no_reasons_decides_as_one_that_does() -> None:
    spared = evaluated = 0
    for seed in range(WORLDS):
        explained, silent, counted = World(seed), World(seed), World(seed)
        for vcluster, _, _ in zip(explained.turns(), silent.turns(), counted.turns(), strict=True):
            expected = decided(explained, vcluster, explain=True)
            found = decided(silent, vcluster, explain=False)
            placed = [(one.candidate.uid, one.nodes, one.backfilled) for one in expected if isinstance(one, Placed)]
            assert [(one.candidate.uid, one.nodes, one.backfilled) for one in found if isinstance(one, Placed)] == placed, seed
            assert {one.candidate.uid for one in found} == {one.candidate.uid for one in expected}
            assert {one.candidate.uid: one.wake for one in found if not isinstance(one, Placed)} == {
                one.candidate.uid: one.wake for one in expected if not isinstance(one, Placed)
            }
            assert silent.state.backfill_reservations == explained.state.backfill_reservations, seed
            assert silent.state.moves == explained.state.moves, seed
            silent.state.validate()
            spared += left_out(counted, vcluster)
            evaluated += len(expected)
        silent.state.validate()
    assert spared > evaluated / 100, "there was something to leave out"


def test_who_found_no_nodes_is_evaluated_again_once_nodes_come_free() -> None:
    node_cache = NodeCache()
    for index in range(4):
        node_cache.put(node(index))
    state = ClusterState(node_cache, {"physics": TenantAccount()}, {"hpc": Policy("hpc")})
    first, wide, small = (replace(job(number, nodes), walltime=3600.0) for number, nodes in ((1, 3), (2, 4), (3, 1)))
    assert len([one for one in decide(state, "hpc", [first, wide], 0.0, explain=False) if isinstance(one, Placed)]) == 1
    cycle = Cycle(state, "hpc", [wide, replace(small, walltime=7200.0)], 1.0, explain=False)
    assert [one.candidate.uid for one in cycle.unschedulable()] == [uid(2)], "a newcomer changes nothing for who waits"
    assert [entry[0].uid for entry in cycle.entries()] == [uid(3)]
    cycle.commit()
    state.drop_holder(uid(1))
    assert [one.candidate.uid for one in decide(state, "hpc", [wide], 2.0, explain=False) if isinstance(one, Placed)] == [uid(2)]
