"""The exact models: held against each other, against plain search, and as oracles of placement and preemption."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import pytest

from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.model.hardware import Need, NodeFacts
from lattice.scheduling.model.outcomes import Placed
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.work import ANY, IGNORED, PREFERRED, REQUIRED, SPREAD, TIGHT, Candidate
from lattice.scheduling.optimum.formulation import formulate, value_of
from lattice.scheduling.optimum.solver import Bucket, Effort, Job, best_plan, upper_bound
from lattice.scheduling.preemption.victims import PreemptionLimits, Victims, loss, protection
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.views.ledger import TenantAccount
from tests.build import node
from tests.unit.scheduling.optimum.oracle import Evictable, cheapest_clearing, least_span
from tests.unit.scheduling.preemption.test_victims import HOUR, LIMITS, NOW, Case, holder, least_groups, pending, pools, random_case


def everywhere(buckets: list[Bucket]) -> frozenset[int]:
    return frozenset(range(len(buckets)))


def random_buckets(chance: random.Random, most: int = 4) -> list[Bucket]:
    return [Bucket(chance.choice(["a", "b", ""]), f"g{chance.randrange(3)}", chance.randint(0, most)) for _ in range(chance.randint(1, 4))]


def random_job(chance: random.Random, buckets: list[Bucket]) -> Job:
    eligible = frozenset(number for number in range(len(buckets)) if chance.random() < 0.8)
    return Job(
        float(chance.randint(1, 9)), chance.randint(1, 5), eligible, groups=chance.choice([None, None, 1, 2]), alike=chance.random() < 0.3
    )


def ways(job: Job, buckets: list[Bucket]) -> list[tuple[int, ...]]:
    """Every way to stand, as counts by bucket; by trying all of them."""
    found = []
    for counts in product(
        *(range(min(job.nodes, bucket.free) + 1 if number in job.eligible else 1) for number, bucket in enumerate(buckets))
    ):
        used = [bucket for bucket, count in zip(buckets, counts, strict=True) if count]
        prints = {bucket.fingerprint for bucket in used}
        if sum(counts) != job.nodes or (job.groups is not None and len({bucket.group for bucket in used}) > job.groups):
            continue
        if job.alike and job.nodes > 1 and (len(prints) > 1 or "" in prints):
            continue
        found.append(counts)
    return found


def span(counts: Any, buckets: list[Bucket]) -> int:
    return len({buckets[number].group for number, count in counts if count})


def best_by_search(jobs: list[Job], buckets: list[Bucket]) -> tuple[float, int]:
    """The highest value and, of it, the fewest groups: by trying every way of every set of jobs."""
    best = (0.0, 0)

    def extend(place: int, left: tuple[int, ...], value: float, groups: int) -> None:
        nonlocal best
        if place == len(jobs):
            best = max(best, (value, -groups))
            return
        extend(place + 1, left, value, groups)
        for counts in ways(jobs[place], buckets):
            rest = tuple(have - count for have, count in zip(left, counts, strict=True))
            if min(rest) >= 0:
                extend(place + 1, rest, value + jobs[place].value, groups + span(enumerate(counts), buckets))

    extend(0, tuple(bucket.free for bucket in buckets), 0.0, 0)
    return best[0], -best[1]


@pytest.mark.parametrize("seed", range(4))
def test_the_best_plan_is_the_best_of_all_plans_and_no_bound_is_below_it(seed: int) -> None:
    chance = random.Random(seed)
    for _ in range(10):
        buckets = random_buckets(chance)
        jobs = [random_job(chance, buckets) for _ in range(chance.randint(1, 3))]
        plan = best_plan(jobs, buckets)
        value, groups = best_by_search(jobs, buckets)
        assert plan.proven
        assert plan.value == value
        assert plan.bound == pytest.approx(value)
        assert sum(span(counts.items(), buckets) for counts in plan.counts if counts is not None) == groups
        taken: Counter[int] = Counter()
        for counts in plan.counts:
            taken.update(counts or {})
        assert all(count <= buckets[number].free for number, count in taken.items())
        assert upper_bound(jobs, buckets) >= value - 1e-6


@pytest.mark.parametrize("seed", range(2))
def test_the_least_span_is_that_of_the_best_way(seed: int) -> None:
    chance = random.Random(100 + seed)
    for _ in range(40):
        buckets = random_buckets(chance)
        job = random_job(chance, buckets)
        spans = [span(enumerate(counts), buckets) for counts in ways(job, buckets)]
        assert least_span(job, buckets) == min(spans, default=None)


def test_equal_questions_have_equal_answers() -> None:
    chance = random.Random(5)
    buckets = [Bucket(chance.choice("ab"), f"g{number % 5}", chance.randint(0, 20)) for number in range(10)]
    jobs = [Job(chance.random(), chance.randint(1, 30), everywhere(buckets), alike=chance.random() < 0.5) for _ in range(12)]
    assert best_plan(jobs, buckets, Effort(0.03)) == best_plan(jobs, buckets, Effort(0.03))


def test_a_plan_that_is_not_proven_says_so_and_keeps_a_valid_bound() -> None:
    chance = random.Random(6)
    buckets = [Bucket(chance.choice("abcd"), f"g{number % 6}", chance.randint(1, 30)) for number in range(24)]
    jobs = [Job(float(chance.randint(1, 999)), chance.randint(1, 60), everywhere(buckets), alike=True) for _ in range(30)]
    quick, bound = best_plan(jobs, buckets, Effort(0.01)), upper_bound(jobs, buckets)
    assert not quick.proven
    assert quick.value <= quick.bound
    assert best_plan(jobs, buckets, Effort(0.1)).value <= min(quick.bound, bound) + 1e-3


def test_the_bound_shares_what_jobs_of_different_needs_both_want() -> None:
    buckets = [Bucket("a", "g0", 4), Bucket("a", "g1", 4), Bucket("b", "g1", 4)]
    jobs = [Job(8.0, 8, frozenset({0, 1})), Job(8.0, 8, everywhere(buckets)), Job(1.0, 13, everywhere(buckets))]
    assert upper_bound(jobs, buckets) == pytest.approx(12.0)
    assert upper_bound([], buckets) == 0.0
    assert upper_bound([Job(5.0, 5, frozenset({0, 1}), groups=1)], [Bucket("a", "g0", 4), Bucket("a", "g1", 4)]) == 0.0
    alike = [Job(6.0, 6, everywhere(buckets), alike=True), Job(6.0, 6, everywhere(buckets), alike=True)]
    assert upper_bound(alike, buckets) == pytest.approx(8.0)


def test_several_jobs_may_share_one_preemption() -> None:
    buckets = [Bucket("a", "g0", 1), Bucket("a", "g1", 1)]
    jobs = [Job(1.0, 2, everywhere(buckets), groups=1), Job(1.0, 2, everywhere(buckets), groups=1)]
    running = [Evictable(10, {0: 1, 1: 1}), Evictable(4, {0: 1}), Evictable(5, {1: 1}), Evictable(3, {0: 3})]
    found = cheapest_clearing(jobs, buckets, running, 3)
    assert found is not None
    assert (found.chosen, found.cost, found.proven) == ((3,), 3, True)
    assert cheapest_clearing(jobs, buckets, running[:3], 1) is not None
    assert cheapest_clearing(jobs, buckets, running[1:3], 1) is None


# As an oracle of preemption.


def exact_cost(case: Case, pool: list[Any], *, group: bool, alike: bool) -> int | None:
    """The least cost at one level of preference, by the model."""
    cells = sorted({(facts.fingerprint, facts.group) for facts in case.nodes.values()})
    place = {cell: number for number, cell in enumerate(cells)}

    def at(facts: NodeFacts) -> int:
        return place[facts.fingerprint, facts.group]

    free = Counter(at(case.nodes[index]) for index in case.free)
    buckets = [Bucket(*cell, free[number]) for number, cell in enumerate(cells)]
    running = [Evictable(loss(each, case.nodes, NOW).seconds, Counter(at(case.nodes[index]) for index in each.nodes)) for each in pool]
    groups = least_groups(case) if case.candidate.topology == TIGHT else 1 if group else None
    found = cheapest_clearing([Job(1.0, case.candidate.minimum, everywhere(buckets), groups, alike)], buckets, running, LIMITS.most_victims)
    return None if found is None else found.cost


def exact(case: Case, pool: list[Any]) -> int | None:
    """The cost of the set that is preferred: the strictest level that costs at most 1.5 times the loosest."""
    alike = case.candidate.conformance if case.candidate.minimum > 1 else "Ignored"
    prints = {REQUIRED: [True], PREFERRED: [True, False]}.get(alike, [False])
    groups = [False] if case.candidate.topology in (TIGHT, SPREAD) else [True, False]
    *stricter, last = _strictest_first(prints, groups)
    loosest = exact_cost(case, pool, group=last[1], alike=last[0])
    if loosest is None:
        return None
    costs = (exact_cost(case, pool, group=group, alike=each) for each, group in stricter)
    return next((cost for cost in costs if cost is not None and cost <= LIMITS.span_premium * loosest), loosest)


def _strictest_first(prints: list[bool], groups: list[bool]) -> list[tuple[bool, bool]]:
    found = [(each, group) for each in prints for group in groups]
    return sorted(found, key=lambda level: (not level[1], not level[0]))


@pytest.mark.parametrize("seed", range(4))
def test_no_set_of_victims_is_cheaper_than_the_one_chosen_by_the_model_either(seed: int) -> None:
    chance = random.Random(1000 + seed)
    solved = 0
    while solved < 80:
        asked = random_case(chance)
        answer = asked.answer(PreemptionLimits(shortest=9999 * HOUR, longest=9999 * HOUR))
        if not isinstance(answer, Victims):
            continue
        solved += 1
        first = next(cost for pool in pools(asked) if (cost := exact(asked, pool)) is not None)
        assert round(answer.cost * HOUR) == first


def test_the_model_finds_no_set_where_the_decision_finds_none() -> None:
    chance = random.Random(2000)
    refused = 0
    while refused < 40:
        asked = random_case(chance)
        answer = asked.answer()
        if isinstance(answer, Victims) or answer.reason not in ("TooFewFreed", "NoneToPreempt", "TooFewNodes"):
            continue
        refused += 1
        legal = [each for each in asked.holders if protection(asked.candidate, each, asked.nodes, {**asked.policies}, NOW, LIMITS) is None]
        assert exact(asked, legal) is None


def test_pairs_of_jobs_cost_no_more_together_than_one_after_the_other() -> None:
    chance = random.Random(3000)
    for _ in range(20):
        buckets = random_buckets(chance, 2)
        jobs = [Job(1.0, chance.randint(1, 3), everywhere(buckets)) for _ in range(2)]
        running = [
            Evictable(chance.randint(1, 9), {chance.randrange(len(buckets)): chance.randint(1, 3)}) for _ in range(chance.randint(1, 5))
        ]
        found = cheapest_clearing(jobs, buckets, running, 3)
        wanted = sum(job.nodes for job in jobs) - sum(bucket.free for bucket in buckets)
        costs = [
            sum(each.cost for each in chosen)
            for count in range(4)
            for chosen in combinations(running, count)
            if sum(sum(each.frees.values()) for each in chosen) >= wanted
        ]
        assert (None if found is None else found.cost) == min(costs, default=None)


# As an oracle of placement.


def placed(candidate: Candidate, nodes: list[NodeFacts], busy: set[int]) -> tuple[int, ...] | None:
    """Where a cycle puts the candidate on this machine."""
    state = ClusterState(accounts={"physics": TenantAccount()})
    for facts in nodes:
        state.node_cache.put(facts)
    if busy:
        state.put_holder(holder(1, *sorted(busy)))
    outcome = next(decide(state, candidate.vcluster, [candidate], NOW))
    return outcome.nodes if isinstance(outcome, Placed) else None


def spans(candidate: Candidate, nodes: list[NodeFacts], alike: bool) -> int | None:
    """The fewest groups by the model, of one fingerprint or of any."""
    counts = Counter((facts.fingerprint, facts.group) for facts in nodes)
    buckets = [Bucket(*cell, count) for cell, count in sorted(counts.items())]
    return least_span(Job(1.0, candidate.minimum, everywhere(buckets), alike=alike), buckets)


@pytest.mark.parametrize("seed", range(4))
def test_a_placed_job_stands_in_as_few_groups_as_the_model_finds(seed: int) -> None:
    chance = random.Random(4000 + seed)
    met: Counter[str] = Counter()
    for _ in range(40):
        nodes = [
            node(index, f"g{chance.randrange(6)}", fingerprint=chance.choice(["a", "a", "b", "c", ""]))
            for index in range(chance.randint(4, 40))
        ]
        busy = {facts.index for facts in nodes if chance.random() < 0.4}
        free = [facts for facts in nodes if facts.index not in busy]
        conformance, topology = chance.choice([PREFERRED, REQUIRED, IGNORED]), chance.choice([ANY, TIGHT])
        candidate = pending(chance.randint(1, 14), conformance=conformance, topology=topology)
        alike = spans(candidate, free, alike=True)
        anyhow = spans(candidate, free, alike=False)
        least = alike if conformance == REQUIRED or (conformance == PREFERRED and alike is not None) else anyhow
        found = placed(candidate, nodes, busy)
        if topology == TIGHT:
            limit = spans(candidate, nodes, alike=conformance == REQUIRED)
            near = alike if conformance == REQUIRED else anyhow
            assert (found is not None) == (near is not None and limit is not None and near <= limit)
        else:
            limit = least
            assert (found is None) == (least is None)
        if found is None or anyhow is None or limit is None:
            met["not placed"] += 1
            continue
        groups = {nodes[index].group for index in found}
        prints = {nodes[index].fingerprint for index in found}
        met[f"{topology} {conformance} {'alike' if len(prints) == 1 else 'mixed'}"] += 1
        assert len(groups) >= anyhow
        if len(prints) == 1 or conformance == IGNORED or topology == TIGHT:
            assert len(groups) <= limit
        if conformance == REQUIRED and candidate.minimum > 1:
            assert len(prints) == 1
            assert "" not in prints
    assert len(met) > 4


@pytest.mark.parametrize("seed", range(3))
def test_a_cycle_places_no_more_than_the_best_plan_and_that_no_more_than_the_bound(seed: int) -> None:
    chance = random.Random(5000 + seed)
    for _ in range(12):
        state = ClusterState(accounts={"physics": TenantAccount()}, policies={"hpc": Policy("hpc", depth=0)})
        for index in range(chance.randint(4, 30)):
            state.node_cache.put(
                node(index, f"g{chance.randrange(3)}", fingerprint=chance.choice(["a", "b", ""]), gpus=chance.choice([0, 4]))
            )
        candidates = [
            pending(
                chance.randint(1, 8),
                number,
                preemption_class=chance.randint(1, 10),
                conformance=chance.choice([PREFERRED, REQUIRED]),
                need=chance.choice([Need(), Need(gpus=4)]),
            )
            for number in range(1, 8)
        ]
        scores = [candidate.preemption_class / 10 for candidate in candidates]
        asked = formulate(state.node_cache, candidates, scores)
        wide = [replace(candidate, maximum=candidate.maximum * 2) for candidate in candidates]
        asked_wide = formulate(state.node_cache, wide, scores)
        plan = best_plan(asked.jobs, asked.buckets)
        assert plan.proven
        found = value_of(decide(state, "hpc", candidates, NOW))
        assert found <= plan.value + 1e-6
        assert plan.value <= upper_bound(asked.jobs, asked.buckets) + 1e-6
        for uid in list(state.holders):
            state.drop_holder(uid)
        state.backfill_reservations.clear()
        assert value_of(decide(state, "hpc", wide, NOW)) <= upper_bound(asked_wide.jobs, asked_wide.buckets) + 1e-6
