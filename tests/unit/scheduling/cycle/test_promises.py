"""What the cycle promises over time: reservations hold, nobody starves, one user does not delay another, limits hold."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from lattice.scheduling.cluster.backfill_table import BackfillReservation
from lattice.scheduling.cluster.eligibility import census_of
from lattice.scheduling.cluster.node_cache import NEVER, NodeCache
from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.cycle.rearrangement import Rearrangement
from lattice.scheduling.model.hardware import Need
from lattice.scheduling.model.outcomes import Outcome, Placed, Score, Waiting
from lattice.scheduling.model.policy import BIN_PACK, INTERACTIVE_FIFO, Limits, Policy
from lattice.scheduling.model.windows import ReservationWindow
from lattice.scheduling.model.work import REQUIRED, SPREAD, TIGHT, Candidate
from lattice.scheduling.recording.record import rebuild, take_snapshot
from lattice.scheduling.state.cluster_state import ClusterState, PowerBudget, QueueScores, ScoreList, mask_of
from lattice.scheduling.state.reservation_order import Move
from lattice.views.ledger import TenantAccount
from tests.build import job, node, uid
from tests.unit.scheduling.cycle.scenes import HOUR, decided, placed, scene_of, waiting


@dataclass
class World:
    """Time that goes on: work arrives, cycles run at each event, work ends when it has run."""

    state: ClusterState
    now: float = 0.0
    queue: dict[str, Candidate] = field(default_factory=dict)
    runs: dict[str, float] = field(default_factory=dict)
    """How long it really runs, by uid; at most its walltime."""
    ends: dict[str, float] = field(default_factory=dict)
    started: dict[str, float] = field(default_factory=dict)
    promised: dict[str, float] = field(default_factory=dict)
    """The start that it was promised, as long as no work before it in the queue has overtaken that."""
    broken: list[str] = field(default_factory=list)
    """What became later although nothing before it in the queue was placed in that cycle."""

    def arrive(self, candidate: Candidate, runs: float) -> None:
        self.queue[candidate.uid] = candidate
        self.runs[candidate.uid] = runs

    def cycle(self) -> None:
        placed_before = False
        for outcome in decide(self.state, "hpc", list(self.queue.values()), self.now):
            uid = outcome.candidate.uid
            promised = self.promised.get(uid)
            match outcome:
                case Placed():
                    del self.queue[uid]
                    self.started[uid] = self.now
                    self.ends[uid] = self.now + self.runs[uid]
                    later, placed_before = promised is not None and self.now > promised, True
                case Waiting(latest=latest):
                    later = promised is not None and (latest is None or latest > promised) and not placed_before
                    if latest is None and placed_before:
                        self.promised.pop(uid, None)
                    elif latest is not None:
                        self.promised[uid] = latest
            if later:
                self.broken.append(f"{uid}: promised {promised}, now {self.now}, {outcome}")

    def until(self, time: float) -> None:
        """Run the events up to a time."""
        while self.ends and min(self.ends.values()) <= time:
            self.now = min(self.ends.values())
            for ended in [one for one, end in self.ends.items() if end <= self.now]:
                del self.ends[ended]
                self.state.drop_holder(ended)
            self.cycle()
        self.now = time
        self.cycle()


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("depth", [1, 10])
def test_nobody_starts_later_than_promised_while_smaller_work_goes_ahead(seed: int, depth: int) -> None:
    roll = random.Random(seed)
    world = World(
        scene_of([node(index, f"g{index // 6}", fingerprint=roll.choice("ab")) for index in range(18)], Policy("hpc", depth=depth))
    )
    for number in range(60):
        walltime = roll.choice((0.25, 1.0, 4.0))
        wish = roll.choice(({}, {}, {"topology": TIGHT}, {"topology": SPREAD}))
        exact = walltime * HOUR * (1.0 if seed % 2 else roll.random())
        world.arrive(job(number, roll.choice((1, 2, 6, 12)), walltime, **wish), exact)
        world.until(world.now + roll.choice((0.0, 300.0, 2000.0)))
    world.until(world.now + 1000 * HOUR)
    assert not world.queue
    assert not world.broken
    assert world.promised
    world.state.validate()


@pytest.mark.parametrize(
    ("windows", "level", "placed_first"),
    [
        pytest.param([], 6, uid(0), id="of a higher class, and but for it, it fits"),
        pytest.param([], 5, uid(1), id="of the same class"),
        pytest.param([ReservationWindow("m", HOUR, 2 * HOUR, mask_of((0, 1)), maintenance=True)], 6, uid(1), id="it fits in neither case"),
    ],
)
def test_only_a_higher_class_starts_on_nodes_promised_to_work_behind_it(
    windows: list[ReservationWindow], level: int, placed_first: str
) -> None:
    state = scene_of([node(index) for index in range(4)])
    state.set_windows(windows)
    ahead, behind = job(0, 3, 2.0, preemption_class=level), job(1, 2, 0.1)
    keys = [bucket.key for bucket in state.node_cache.buckets.values() if bucket.usable >= 2]
    state.backfill_reservations["hpc"] = {
        uid(0): BackfillReservation(uid(0), "hpc", 9 * HOUR, 11 * HOUR, ((keys[0], 2), (keys[-1], 1))),
        uid(1): BackfillReservation(uid(1), "hpc", 600.0, 0.5 * HOUR, ((keys[0], 2),)),
    }
    found = decided(state, ahead, behind)
    assert next(uid for uid, outcome in found.items() if isinstance(outcome, Placed)) == placed_first


class Twice(World):
    """A world in which every cycle is decided by a scene that knows nothing of earlier ones, too."""

    def cycle(self) -> None:
        queue = list(self.queue.values())
        anew = rebuild(take_snapshot(self.state, "hpc", queue, self.now, 0))
        self.state.profile(self.now).validate()
        expected = list(decide(anew, "hpc", queue, self.now))
        promised = {uid: promise.counts for uid, promise in anew.backfill_reservations["hpc"].items()}
        super().cycle()
        self.state.validate()
        assert {uid: promise.counts for uid, promise in self.state.backfill_reservations["hpc"].items()} == promised
        assert {one.candidate.uid for one in expected if isinstance(one, Waiting)} == set(self.queue)
        latest = {one.candidate.uid: one.latest for one in expected if isinstance(one, Waiting) and one.latest is not None}
        assert {uid: promise.start for uid, promise in self.state.backfill_reservations["hpc"].items()} == latest


@pytest.mark.parametrize("seed", range(10))
def test_a_cycle_that_goes_on_from_the_last_one_decides_as_one_that_begins_anew(seed: int) -> None:
    roll = random.Random(seed)
    nodes = [node(index, f"g{index // 4}", fingerprint="ab"[index % 3 == 0]) for index in range(12)]
    world = Twice(scene_of(nodes, Policy("hpc", depth=roll.choice((1, 3, 10)))))
    if seed % 2:
        begins = [roll.choice((0.0, 0.1, 3.0, 9.0, 40.0)) * HOUR for _ in range(roll.randint(1, 3))]
        world.state.set_windows(
            ReservationWindow(
                f"w{at}", begin, begin + roll.choice((300.0, 4000.0, 20000.0)), mask_of(roll.sample(range(12), roll.randint(1, 12)))
            )
            for at, begin in enumerate(begins)
        )
    for number in range(50):
        walltime = roll.choice((0.1, 0.5, 2.0, 30.0))
        wish = roll.choice(({}, {}, {}, {"topology": TIGHT}, {"conformance": REQUIRED}))
        given = job(number, roll.choice((1, 2, 3, 8)), walltime, preemption_class=roll.choice((3, 5, 5, 7)), **wish)
        world.arrive(given, walltime * HOUR * roll.choice((1.0, 0.9, roll.random())))
        world.until(world.now + roll.choice((0.0, 60.0, 900.0, 5000.0)))
        for _ in range(roll.randrange(3)):  # nothing happens but that time goes on
            world.until(world.now + roll.choice((0.0, 1.0, 40.0)))
        if roll.random() < 0.1:
            world.state.node_cache.put(node(roll.randrange(12), usable=roll.random() < 0.7))
            world.cycle()
    world.until(world.now + 400 * HOUR)


def test_a_wide_job_of_the_top_class_starts_once_the_longest_walltime_before_it_is_over() -> None:
    world = World(scene_of([node(index) for index in range(8)]))
    for number in range(20):
        world.arrive(job(number, 1, 2.0), 2.0 * HOUR)
    world.until(60.0)
    world.arrive(job(100, 8, 1.0, preemption_class=9), 1.0 * HOUR)
    for number in range(200, 500):
        world.until(world.now + 120.0)
        world.arrive(job(number, 1, 0.5), 0.5 * HOUR)
    assert world.started[uid(100)] <= 60.0 + 2.0 * HOUR


@pytest.mark.parametrize(
    "head",
    [
        pytest.param({"nodes": 99}, id="never fits"),
        pytest.param({"nodes": 3, "held": True}, id="held"),
        pytest.param({"nodes": 3, "not_before": 9e9}, id="not before"),
        pytest.param({"nodes": 3, "tenant": "poor"}, id="quota"),
    ],
)
@pytest.mark.parametrize("kind", ["Backfill", INTERACTIVE_FIFO, BIN_PACK])
def test_a_head_that_cannot_start_at_all_delays_nobody(head: dict[str, Any], kind: str) -> None:
    state = scene_of([node(index) for index in range(4)], Policy("hpc", kind))
    state.accounts = {"physics": TenantAccount(), "poor": TenantAccount(max_nodes=1)}
    fields = dict(head)
    tenant = fields.pop("tenant", "physics")
    first = job(0, fields.pop("nodes"), 100.0, preemption_class=10, **fields)
    first = replace(first, tenant=tenant)
    found = decided(state, first, job(1, 4, 100.0))
    assert placed(found[uid(1)]) == (0, 1, 2, 3)
    assert waiting(found[uid(0)]).latest is None


def test_ten_thousand_jobs_of_one_user_do_not_delay_a_fitting_job_of_another() -> None:
    state = scene_of([node(index) for index in range(64)], Policy("hpc", limits=Limits(max_running_per_user=10)))
    crowd = [job(number, 1, None) for number in range(10_000)]
    other = job(20_000, 4, user="bob")
    found = decided(state, *crowd, other)
    assert isinstance(found[uid(20000)], Placed)
    assert sum(isinstance(outcome, Placed) for outcome in found.values()) == 11
    told = waiting(found[uid(10)])
    assert told.reason == "WaitingForQuotaHeadroom"
    assert (
        'user "alice" would exceed limits.maxRunningPerUser of vCluster "hpc" (allocations held: 10, requested: 1, limit: 10)'
        in told.message
    )


@pytest.mark.parametrize("seed", range(20))
def test_a_smaller_job_behind_changes_no_reservation_before_it(seed: int) -> None:
    roll = random.Random(seed)
    nodes = [node(index, f"g{index % 3}") for index in range(12)]

    def run(jobs: list[Candidate]) -> dict[str, float | None]:
        state = scene_of(nodes)
        state.node_cache.take(range(7), 5000.0)
        return {uid: one.latest for uid, one in decided(state, *jobs).items() if isinstance(one, Waiting)}

    first = [job(number, roll.choice((2, 6, 9, 12)), roll.choice((0.5, 3.0)), preemption_class=8) for number in range(4)]
    behind = [job(100 + number, roll.choice((1, 2, 4)), roll.choice((0.5, 1.0, 9.0)), preemption_class=2) for number in range(6)]
    alone, together = run(first), run([*first, *behind])
    assert {uid: together[uid] for uid in alone} == alone


class Favouring:
    """A cost function that puts newer work first."""

    def score(self, candidates: Sequence[Candidate], node_cache: NodeCache, now: float) -> QueueScores:
        return ScoreList([Score(one.submitted) for one in candidates])


def test_newer_work_of_a_higher_score_is_planned_around_a_promise_of_its_class() -> None:
    state = scene_of([node(index) for index in range(4)], scorings={"hpc": Favouring()})
    state.node_cache.take((0, 1), HOUR)
    assert waiting(decided(state, job(1, 4, 2.0))[uid(1)]).latest == 3616.0  # an hour, rounded up to the next multiple of 32
    found = decided(state, job(1, 4, 2.0), job(2, 4, 2.0), job(3, 1, 0.5), job(4, 1, 5.0), now=10.0)
    assert waiting(found[uid(1)]).latest == 3616.0
    assert (waiting(found[uid(2)]).latest or 0.0) >= 3616.0 + 2 * HOUR
    assert placed(found[uid(3)]) == (2,)
    assert waiting(found[uid(4)]).reason == "BehindHigherPriority"
    assert state.moves == {"hpc": []}


def test_work_of_a_higher_class_and_score_moves_a_promise_and_is_named() -> None:
    state = scene_of([node(index) for index in range(4)])
    state.node_cache.take((0, 1), HOUR)
    decided(state, job(1, 4, 2.0))
    found = decided(state, job(1, 4, 2.0), job(2, 4, 2.0, preemption_class=9), now=10.0)
    assert waiting(found[uid(2)]).latest == 3616.0
    later = waiting(found[uid(1)]).latest
    assert later is not None
    assert later >= 3616.0 + 2 * HOUR
    assert state.moves["hpc"] == [Move(uid(1), 10.0, 3616.0, later, "HigherClass", uid(2))]
    assert state.backfill_reservations["hpc"][uid(1)].given == 0.0


def split_by_a_promise(second: Candidate) -> tuple[ClusterState, list[Candidate]]:
    """All 25 nodes of one group have come free early, of which ten and more were promised to the second in the queue; those of the other
    group, of which five have GPUs as all of the first have, are held for two hours.
    """
    state = scene_of([node(index, "g0" if index < 25 else "g1", gpus=4 if index < 30 else 0) for index in range(40)])
    state.node_cache.take(range(15), HOUR)
    state.node_cache.take(range(15, 25), 3 * HOUR)
    state.node_cache.take(range(25, 40), 2 * HOUR)
    queue = [job(1, 25, 4.0), second, job(3, 30, 4.0)]
    found = decided(state, *queue)
    assert [waiting(found[one.uid]).latest for one in queue[:2]] == [7232.0, 10880.0]
    promised = {key.group: count for key, count in state.backfill_reservations["hpc"][uid(2)].counts}
    assert promised["g0"] == 10
    state.node_cache.give(range(25))
    return state, queue


def test_who_comes_first_starts_on_nodes_that_came_free_early_and_a_promise_behind_it_moves_to_others() -> None:
    state, queue = split_by_a_promise(job(2, 10, 8.0))
    before = dict(state.backfill_reservations["hpc"])
    found = decided(state, *queue, now=1800.0)
    assert placed(found[uid(1)]) == tuple(range(25))
    assert waiting(found[uid(2)]).latest == 7232.0
    assert (waiting(found[uid(3)]).latest or NEVER) <= before[uid(3)].start
    assert state.moves["hpc"] == []
    assert {uid: promise.given for uid, promise in state.backfill_reservations["hpc"].items()} == {uid(2): 0.0, uid(3): 0.0}


def test_every_promise_stands_where_one_behind_cannot_be_kept_on_other_nodes_and_that_is_searched_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tried: list[str] = []
    earlier = Rearrangement.earlier

    def counted(self: Rearrangement, candidate: Candidate, *rest: Any) -> Any:
        tried.append(candidate.uid)
        return earlier(self, candidate, *rest)

    monkeypatch.setattr(Rearrangement, "earlier", counted)
    state, queue = split_by_a_promise(job(2, 12, 8.0, need=Need(gpus=4)))
    before = dict(state.backfill_reservations["hpc"])
    for second in range(5):
        found = decided(state, *queue, now=1800.0 + second)
        after = state.backfill_reservations["hpc"]
        assert after[uid(1)] == before[uid(1)]
        assert all(after[one].start <= before[one].start for one in before)
        assert all(isinstance(outcome, Waiting) for outcome in found.values())
    assert tried == [uid(1), uid(1), uid(2)], "the second cycle goes on from promises that the first one has moved"


def short_of_power(state: ClusterState) -> None:
    state.node_cache.give((0, 1))
    state.power = PowerBudget(1000)


@pytest.mark.parametrize(
    ("event", "cause"),
    [
        pytest.param(lambda state: state.node_cache.put(node(3, usable=False, state="Draining")), "NodesLost", id="drained"),
        pytest.param(
            lambda state: state.set_windows([ReservationWindow("m", HOUR, 2 * HOUR, mask_of((0, 1)), maintenance=True)]), "Maintenance", id="maintenance"
        ),
        pytest.param(lambda state: state.node_cache.take((0, 1), 5 * HOUR), "WalltimeGranted", id="more walltime"),
        pytest.param(lambda state: setattr(state, "accounts", {"physics": TenantAccount(max_nodes=3)}), "QuotaGone", id="quota"),
        pytest.param(short_of_power, "PowerBudget", id="power"),
        pytest.param(lambda state: None, "OwnerChange", id="owner"),
    ],
)  # fmt: skip
def test_what_else_moves_a_promise_is_told_by_its_cause(event: Callable[[ClusterState], object], cause: str) -> None:
    state = scene_of([node(index, watts=500) for index in range(4)])
    state.node_cache.take((0, 1), HOUR)
    assert waiting(decided(state, job(1, 4, 2.0))[uid(1)]).latest == 3616.0
    event(state)
    decided(state, job(1, 4, 200.0 if cause == "OwnerChange" else 2.0, held=cause == "OwnerChange"), now=10.0)
    assert [move.cause for move in state.moves["hpc"]] == [cause]


def test_who_loses_a_promise_with_the_nodes_is_planned_first_when_they_are_back() -> None:
    nodes = [node(index) for index in range(4)]
    state = scene_of(nodes, scorings={"hpc": Favouring()})
    state.node_cache.take((0, 1), HOUR)
    decided(state, job(1, 4, 2.0))
    state.node_cache.put(node(3, usable=False, state="Down"))
    assert waiting(decided(state, job(1, 4, 2.0), job(2, 3, 2.0), now=10.0)[uid(1)]).latest is None
    assert state.heirs == {"hpc": {uid(1): 0.0}}
    state.node_cache.put(nodes[3])
    found = decided(state, job(1, 4, 2.0), job(2, 3, 2.0), job(3, 4, 1.0), now=20.0)
    latest = {uid: waiting(one).latest or 0.0 for uid, one in found.items()}
    assert latest[uid(2)] < latest[uid(1)] < latest[uid(3)], "u2 got its reservation while u1 could have none, and keeps it"


def test_a_new_scheduler_plans_first_who_held_a_reservation_in_the_order_in_which_they_were_given() -> None:
    state = scene_of([node(index) for index in range(4)], scorings={"hpc": Favouring()})
    state.node_cache.take((0, 1), HOUR)
    state.heirs["hpc"] = {uid(3): 5.0, uid(2): 7.0}
    found = decided(state, *(job(number, 4, 2.0) for number in range(1, 6)), now=10.0)
    latest = {uid: waiting(one).latest for uid, one in found.items()}
    assert sorted(latest, key=lambda uid: latest[uid] or 0.0) == [uid(3), uid(2), uid(5), uid(4), uid(1)]
    assert [promise.given for promise in state.backfill_reservations["hpc"].values()] == [5.0, 7.0, 10.0, 10.0, 10.0]
    assert state.heirs == {"hpc": {}}


def test_no_more_reservations_are_given_than_the_depth_and_none_is_lost_to_newer_work() -> None:
    state = scene_of([node(index) for index in range(4)], Policy("hpc", depth=2), scorings={"hpc": Favouring()})
    state.node_cache.take((0, 1), HOUR)
    decided(state, job(1, 4), job(2, 4))
    found = decided(state, *(job(number, 4) for number in range(1, 5)), now=10.0)
    assert sorted(state.backfill_reservations["hpc"]) == [uid(1), uid(2)]
    found = decided(state, *(job(number, 4) for number in range(1, 5)), job(9, 4, preemption_class=8), now=20.0)
    assert sorted(state.backfill_reservations["hpc"]) == [uid(1), uid(2), uid(9)], "work of a higher class has places of its own"
    assert waiting(found[uid(9)]).latest == 3616.0


def test_the_power_budget_holds_and_a_job_that_it_blocks_reserves_nothing() -> None:
    state = scene_of([node(index, watts=500) for index in range(8)], power=PowerBudget(2000))
    found = decided(state, job(1, 3), job(2, 2, preemption_class=4), job(3, 1, preemption_class=3))
    assert isinstance(found[uid(1)], Placed)
    told = waiting(found[uid(2)])
    assert (told.reason, told.message) == (
        "PowerBudget", "needs 2 nodes that draw 1.0 kW; 1.5 kW of the power budget of 2.0 kW are in use",
    )  # fmt: skip
    assert told.latest is None
    assert isinstance(found[uid(3)], Placed)


def test_equal_scenes_and_candidates_give_equal_outcomes_in_any_order_of_arrival() -> None:
    roll = random.Random(7)
    jobs = [job(number, roll.randint(1, 6), roll.choice((0.5, 2.0, None)), submitted=float(roll.randint(0, 3))) for number in range(40)]

    def run(seed: int) -> list[Outcome]:
        shuffled = list(jobs)
        random.Random(seed).shuffle(shuffled)
        nodes = [node(index, f"g{index % 5}", fingerprint="ab"[index % 2]) for index in range(40)]
        random.Random(seed).shuffle(nodes)
        state = scene_of(nodes)
        state.node_cache.take(range(20), HOUR)
        return list(decide(state, "hpc", shuffled, 0.0))

    assert run(1) == run(2) == run(3)


def test_what_the_ledger_refuses_is_given_back() -> None:
    state = scene_of([node(index) for index in range(4)])
    assert len(placed(decided(state, job(1, 4))[uid(1)])) == 4
    assert state.uses.claimed["physics"].nodes == 4
    state.drop_holder(uid(1))
    state.validate()
    assert census_of(state.node_cache, Need()).free == 4
    assert state.uses.claimed["physics"].nodes == 0


def test_every_vcluster_keeps_what_another_one_promised() -> None:
    state = scene_of([node(index) for index in range(4)], Policy("hpc"), Policy("ml"))
    state.node_cache.take((0, 1), HOUR)
    latest = waiting(decided(state, job(1, 4, 2.0))[uid(1)]).latest
    found = decided(state, job(2, 2, 3.0, vcluster="ml"), job(3, 2, 0.5, vcluster="ml"), vcluster="ml")
    assert waiting(found[uid(2)]).reason == "BehindHigherPriority"
    assert placed(found[uid(3)]) == (2, 3)
    assert waiting(decided(state, job(1, 4, 2.0), now=1.0)[uid(1)]).latest == latest


def test_a_promise_lasts_when_a_node_list_splits_its_nodes() -> None:
    state = scene_of([node(index) for index in range(6)])
    state.node_cache.take(range(4), HOUR)
    latest = waiting(decided(state, job(1, 5, 2.0))[uid(1)]).latest
    listed = job(2, 1, 0.5, need=Need(only=mask_of((0, 5))), preemption_class=1)
    found = decided(state, job(1, 5, 2.0), listed, job(3, 2, 9.0, preemption_class=1))
    assert waiting(found[uid(1)]).latest == latest
    assert placed(found[uid(2)]) == (5,)
    assert isinstance(found[uid(3)], Waiting)


@pytest.mark.parametrize("seed", range(10))
def test_longer_waiting_never_lowers_a_place_in_the_queue(seed: int) -> None:
    roll = random.Random(seed)
    jobs = [job(number, 9, preemption_class=roll.randint(0, 10), submitted=float(roll.randint(0, 50))) for number in range(12)]

    def place(queue: list[Candidate]) -> int:
        return list(decided(scene_of([node(0)]), *queue, now=100.0)).index(uid(5))

    earlier = [replace(one, submitted=one.submitted - roll.randint(0, 60)) if one.uid == uid(5) else one for one in jobs]
    assert place(earlier) <= place(jobs)
