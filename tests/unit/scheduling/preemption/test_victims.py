"""Preemption: who may go, what it costs, and that the set is the cheapest legal one, against every set there is."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.models.reasons import PREEMPTION_REASONS
from lattice.scheduling.model.hardware import Need, NodeFacts
from lattice.scheduling.model.policy import BIN_PACK, INTERACTIVE_FIFO, SENSITIVE_RESERVATION, Borrowing, Policy
from lattice.scheduling.model.work import ANY, IGNORED, PREFERRED, REQUIRED, SPREAD, TIGHT, Candidate, NodeHolder
from lattice.scheduling.preemption.cover import Item, cheapest_cover
from lattice.scheduling.preemption.victims import (
    PROTECTED,
    NoVictims,
    Preemption,
    PreemptionLimits,
    Victims,
    loss,
    may_preempt,
    on_loan,
    own_nodes,
    preemption,
    protection,
    worth,
)
from tests.build import node, uid

NOW = 1_000_000.0
HOUR = 3600.0
LIMITS = PreemptionLimits()


def pending(nodes: int = 1, number: int = 0, **fields: Any) -> Candidate:
    base: dict[str, Any] = {"preemption_class": 7, "submitted": 0.0, "need": Need(), "walltime": 24 * HOUR}
    return Candidate(
        key=f"physics/job-{number}", uid=uid(number), tenant="physics", vcluster="hpc", minimum=nodes, maximum=nodes, **{**base, **fields}
    )


def holder(number: int, *nodes: int, **fields: Any) -> NodeHolder:
    base: dict[str, Any] = {
        "tenant": "physics", "user": "alice", "vcluster": "hpc", "preemption_class": 2, "since": NOW - HOUR, "started": NOW - HOUR,
        "walltime": 10 * HOUR,
    }  # fmt: skip
    return NodeHolder(uid=uid(number), key=f"physics/run-{number}", nodes=nodes, **{**base, **fields})


@dataclass
class Case:
    """One question to the decision; every node is eligible, and free unless somebody holds it."""

    candidate: Candidate
    holders: list[NodeHolder]
    nodes: dict[int, NodeFacts]
    policies: dict[str, Policy] = field(default_factory=dict)
    score: float = 1.0

    @property
    def free(self) -> set[int]:
        return set(self.nodes) - {index for each in self.holders for index in each.nodes}

    def answer(self, limits: PreemptionLimits = LIMITS) -> Preemption:
        return preemption(
            self.candidate, self.holders, self.nodes, self.nodes.keys(), self.free, self.policies, NOW, score=self.score, limits=limits
        )


def case(candidate: Candidate, *holders: NodeHolder, nodes: Iterable[NodeFacts] | None = None, policies: Iterable[Policy] = ()) -> Case:
    found = list(nodes) if nodes is not None else [node(index) for each in holders for index in each.nodes]
    return Case(candidate, list(holders), {each.index: each for each in found}, {policy.name: policy for policy in policies})


def gone(answer: Preemption) -> list[int]:
    """The numbers of the victims."""
    assert isinstance(answer, Victims), answer
    return sorted(int(victim.holder.key.rpartition("-")[2]) for victim in answer.victims)


def why_not(answer: Preemption) -> NoVictims:
    assert isinstance(answer, NoVictims), answer
    assert answer.reason in {reason.word for reason in PREEMPTION_REASONS}
    return answer


# Who may go.


@pytest.mark.parametrize("running", range(11))
@pytest.mark.parametrize("waiting", range(11))
def test_the_bands_are_the_books_table(waiting: int, running: int) -> None:
    least = [1, 4, 4, 4, 7, 7, 7, 10, 10, 10, 11][running]
    assert may_preempt(waiting, running) == (waiting >= least)
    assert not may_preempt(waiting, running) or running < waiting


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"preemption_class": 7}, "ClassTooHigh"),
        ({"preemption_class": 10}, "NonPreemptible"),
        ({"sensitive": True}, "NonPreemptible"),
        ({"preemptible": False}, "NonPreemptible"),
        ({"releasing": True}, "Releasing"),
        ({"checkpointing": True}, "Releasing"),
        ({"vcluster": "vault"}, "NonPreemptible"),
        ({"vcluster": "services"}, "HomeService"),
        ({"vcluster": "services", "borrowed": (1,)}, None),
        ({"walltime": HOUR + 300}, "NearCompletion"),
        ({"walltime": HOUR + 301}, None),
        ({"vcluster": "calm", "started": NOW - 599}, "MinimumRuntime"),
        ({"vcluster": "calm", "started": None}, "MinimumRuntime"),
        ({"vcluster": "calm", "started": NOW - 600}, None),
        ({"vcluster": "calm", "preemptions": 2}, "PreemptedOften"),
        ({"vcluster": "calm", "preemptions": 1}, None),
        ({"checkpointable": False}, None),
        ({"vcluster": "notebooks"}, None),
        ({"preemption_class": 6}, None),
    ],
    ids=lambda value: str(value),
)
def test_each_rule_protects_alone(fields: dict[str, Any], word: str | None) -> None:
    policies = {
        "services": Policy("services", BIN_PACK),
        "vault": Policy("vault", SENSITIVE_RESERVATION),
        "notebooks": Policy("notebooks", INTERACTIVE_FIFO),
        "calm": Policy("calm", min_runtime_before_preemption=600, max_preemptions=2),
    }
    running = holder(1, 1, **fields)
    nodes = {1: node(1)}
    assert protection(pending(), running, nodes, policies, NOW, LIMITS) == word
    answer = preemption(pending(), [running], nodes, {1}, (), policies, NOW)
    if word is None:
        assert gone(answer) == [1]
    else:
        said = why_not(answer)
        assert said.reason == "NoneToPreempt"
        assert f"1 {PROTECTED[word]}" in said.message


def test_work_without_checkpoint_is_protected_from_class_7_on() -> None:
    critical = pending(preemption_class=10)
    assert protection(critical, holder(1, 1, preemption_class=7, checkpointable=False), {}, {}, NOW, LIMITS) == "NonPreemptible"
    assert protection(critical, holder(1, 1, preemption_class=6, checkpointable=False), {}, {}, NOW, LIMITS) is None


def test_a_candidate_may_clear_what_fits_it_and_is_at_home_in_its_vcluster() -> None:
    nodes = {
        1: node(1, home="hpc", gpus=4),
        2: node(2, home="hpc"),
        3: node(3, home="ml", gpus=4),
        4: node(4, gpus=4),
        5: node(5, home="hpc", gpus=4, usable=False),
    }
    candidate = pending(need=Need(gpus=1))
    assert own_nodes(candidate, Policy("hpc", home=True), nodes) == {1}
    assert own_nodes(candidate, Policy("hpc"), nodes) == {4}


def test_a_service_is_a_victim_only_if_all_of_its_nodes_are_borrowed() -> None:
    services = [Policy("services", BIN_PACK)]
    partly = holder(1, 1, 2, vcluster="services", borrowed=(1,))
    said = why_not(case(pending(), partly, policies=services).answer())
    assert "1 are services on nodes of their own vcluster" in said.message
    assert gone(case(pending(), msgspec.structs.replace(partly, borrowed=(1, 2)), policies=services).answer()) == [1]


def test_what_stands_elsewhere_is_not_counted_among_the_protected() -> None:
    asked = case(pending(2), holder(1, 1, preemption_class=8), holder(2, 2, preemption_class=8))
    said = why_not(preemption(asked.candidate, asked.holders, asked.nodes, {1, 3}, (), {}, NOW))
    assert said.reason == "TooFewNodes"
    nodes = {**asked.nodes, 3: node(3)}
    said = why_not(preemption(asked.candidate, asked.holders, nodes, {1, 3}, (3,), {}, NOW))
    assert f"1 {PROTECTED['ClassTooHigh']}" in said.message


def test_a_borrower_gives_nodes_back_to_their_vcluster_whatever_its_class_below_10() -> None:
    mine = node(1, home="hpc")
    borrower = holder(1, 1, preemption_class=9, vcluster="ml", borrowed=(1,))
    answer = case(pending(preemption_class=0), borrower, nodes=[mine]).answer()
    assert isinstance(answer, Victims)
    assert answer.victims[0].reclaimed
    assert (
        why_not(case(pending(preemption_class=0), borrower, nodes=[mine]).answer(replace(LIMITS, reclaim=False))).reason == "NoneToPreempt"
    )
    assert why_not(case(pending(), borrower, nodes=[replace(mine, home="other")]).answer()).reason == "NoneToPreempt"
    ten = msgspec.structs.replace(borrower, preemption_class=10)
    assert why_not(case(pending(), ten, nodes=[mine]).answer()).reason == "NoneToPreempt"


def test_burst_users_go_first_then_borrowers_by_priority_then_the_cheapest() -> None:
    policies = [Policy("low", borrowing=Borrowing(priority=1)), Policy("high", borrowing=Borrowing(priority=8))]
    cheap = holder(1, 1, started=NOW - 60, walltime=HOUR)
    burst = holder(2, 2, burst=1, started=NOW - 5 * HOUR)
    beyond = holder(5, 5, burst=2, started=NOW - 9 * HOUR)
    low = holder(3, 3, vcluster="low", borrowed=(3,), started=NOW - 4 * HOUR)
    high = holder(4, 4, vcluster="high", borrowed=(4,))

    def chosen(count: int, *holders: NodeHolder) -> list[int]:
        nodes = [node(index, home="hpc") for each in holders for index in each.nodes]
        return gone(case(pending(count), *holders, nodes=nodes, policies=policies).answer())

    assert chosen(1, cheap, burst, low, high) == [2]
    assert chosen(1, cheap, burst, beyond, low, high) == [5], "beyond the allowance first, though it is dearer"
    assert chosen(2, cheap, burst, beyond, low, high) == [2, 5]
    assert chosen(2, cheap, burst, low, high) == [2, 3]
    assert chosen(1, cheap, low, high) == [3]
    assert chosen(1, cheap, high) == [4]


# What it costs.


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"started": None}, (2 * 8 / 12, 0, 0)),
        ({"started": NOW - 1 * HOUR}, (2 * 8 / 12, 0, 0)),
        ({"started": NOW - 5 * HOUR}, (2 * 8 / 12, 0, 8 * 5 * 0.5)),
        ({"started": NOW - 9 * HOUR}, (2 * 8 / 12, 0, 8 * 9)),
        ({"started": NOW - 9.5 * HOUR}, (2 * 8 / 12, 0, 8 * 9.5 * 10)),
        ({"started": NOW - 5 * HOUR, "walltime": None}, (2 * 8 / 12, 0, 0)),
        ({"started": NOW - 5 * HOUR, "checkpointable": False}, (0, 8 * 5, 8 * 5 * 0.5)),
        ({"started": NOW - 5 * HOUR, "checkpointable": False, "checkpointed": NOW - HOUR}, (0, 8 * 1, 8 * 5 * 0.5)),
    ],
    ids=["not started", "a tenth", "half", "nine tenths", "nearly done", "unbounded", "no checkpoint", "an hour since the last checkpoint"],
)
def test_a_loss_is_the_books_three_terms_in_gpu_hours(fields: dict[str, Any], expected: tuple[float, float, float]) -> None:
    nodes = {index: node(index, gpus=4, gpu_memory=150 << 30) for index in (1, 2)}  # 600 GiB a node: the 10 minutes that it may take
    found = loss(holder(1, 1, 2, **fields), nodes, NOW)
    assert (found.checkpoint, found.recompute, found.invested) == pytest.approx(expected)


def test_a_node_without_gpus_counts_as_one() -> None:
    run = holder(1, 1, 2, checkpointable=False, started=NOW - HOUR, walltime=None)
    assert loss(run, {1: node(1), 2: node(2, gpus=4)}, NOW).recompute == pytest.approx(5.0)


def test_a_candidate_is_worth_its_score_times_gpus_times_walltime_within_limits() -> None:
    nodes = {1: node(1), 2: node(2, gpus=4)}
    assert worth(pending(walltime=2 * HOUR), (1, 2), nodes, 0.5, LIMITS) == pytest.approx(0.5 * 5 * 2)
    assert worth(pending(walltime=60.0), (1,), nodes, 0.5, LIMITS) == pytest.approx(0.5)
    assert worth(pending(walltime=None), (1,), nodes, 1.0, LIMITS) == pytest.approx(24)
    assert worth(pending(walltime=99 * HOUR), (1,), nodes, 1.0, LIMITS) == pytest.approx(24)


def test_nothing_is_preempted_at_a_cost_that_is_not_below_the_value() -> None:
    asked = case(pending(walltime=2 * HOUR), holder(1, 1, checkpointable=False, started=NOW - 2 * HOUR, walltime=None))
    said = why_not(asked.answer())
    assert said.reason == "CostAboveValue"
    assert "costs 2.0 GPU-hours, not below the 2.0" in said.message
    asked.candidate = replace(asked.candidate, walltime=2.1 * HOUR)
    assert gone(asked.answer()) == [1]


def test_sensitive_work_is_worth_any_cost() -> None:
    vault = pending(preemption_class=10, sensitive=True, walltime=60.0)
    assert gone(case(vault, holder(1, 1, checkpointable=False, started=NOW - 900 * HOUR, walltime=None)).answer()) == [1]


def test_a_burst_set_above_the_value_leaves_the_others_to_be_asked() -> None:
    dear = holder(1, 1, burst=1, checkpointable=False, started=NOW - 90 * HOUR, walltime=None)
    assert gone(case(pending(1), dear, holder(2, 2)).answer()) == [2]


# Which set.


def test_fewer_larger_ones_go_before_many_small_ones_at_the_same_cost() -> None:
    run = {"checkpointable": False, "walltime": None}
    one = holder(1, 1, 2, started=NOW - HOUR, **run)
    asked = case(pending(2), holder(2, 3, started=NOW - HOUR, **run), holder(3, 4, started=NOW - HOUR, **run), one)
    assert gone(asked.answer()) == [1]


def test_one_group_is_preferred_up_to_half_as_much_again() -> None:
    def asked(hours: float) -> Case:
        run = {"checkpointable": False, "walltime": None}
        spread = [holder(1, 1, started=NOW - HOUR, **run), holder(2, 2, started=NOW - HOUR, **run)]
        near = holder(3, 3, 4, started=NOW - hours * HOUR, **run)
        nodes = [node(1, "g1"), node(2, "g2"), node(3, "g3"), node(4, "g3")]
        return case(pending(2), *spread, near, nodes=nodes)

    assert gone(asked(1.5).answer()) == [3]
    assert gone(asked(1.6).answer()) == [1, 2]


def test_tight_work_waits_rather_than_stand_in_more_groups_than_it_must() -> None:
    nodes = [node(1, "g1"), node(2, "g1"), node(3, "g2"), node(4, "g2")]
    holders = [holder(1, 1), holder(2, 2, preemption_class=9), holder(3, 3), holder(4, 4, preemption_class=9)]
    assert gone(case(pending(2), *holders, nodes=nodes).answer()) == [1, 3]
    said = why_not(case(pending(2, topology=TIGHT), *holders, nodes=nodes).answer())
    assert said.reason == "TooFewFreed"
    assert "in at most 1 group" in said.message


def test_tight_work_of_two_groups_finds_the_two() -> None:
    nodes = [node(index, f"g{index // 4}") for index in range(16)]
    holders = [holder(1, 0, 1), holder(2, 4, 5), holder(3, 8, 9), holder(4, 12, preemption_class=9)]
    answer = case(pending(7, topology=TIGHT), *holders, nodes=nodes).answer()
    assert isinstance(answer, Victims)
    assert answer.span == 2
    assert len(answer.victims) == 1


def test_required_conformance_takes_nodes_of_one_fingerprint_and_of_no_unknown_one() -> None:
    nodes = [node(1, fingerprint="a"), node(2, fingerprint="b"), node(3, fingerprint="b"), node(4, fingerprint=""), node(5, fingerprint="")]
    holders = [holder(number, number) for number in (1, 2, 3)]
    assert gone(case(pending(2, conformance=REQUIRED), *holders, nodes=nodes).answer()) == [2, 3]
    said = why_not(
        case(pending(2, conformance=REQUIRED), *holders[:2], nodes=[node(each.index, fingerprint="") for each in nodes]).answer()
    )
    assert said.reason == "TooFewNodes"


def test_nodes_of_unknown_fingerprint_are_not_preferred_as_if_they_were_alike() -> None:
    run = {"checkpointable": False, "walltime": None}
    holders = [
        holder(1, 1, started=NOW - 1.0 * HOUR, **run),
        holder(2, 2, started=NOW - 1.2 * HOUR, **run),
        holder(3, 3, started=NOW - 1.0 * HOUR, **run),
    ]

    def asked(second: str) -> Case:
        return case(pending(2), *holders, nodes=[node(1, fingerprint=second), node(2, fingerprint=second), node(3, fingerprint="b")])

    assert gone(asked("a").answer()) == [1, 2]
    assert gone(asked("").answer()) == [1, 3]


def test_what_fits_already_preempts_nobody() -> None:
    assert why_not(case(pending(1), holder(1, 1), nodes=[node(1), node(2)]).answer()).reason == "FitsWithout"


def test_work_on_nodes_that_do_not_fit_is_left_alone() -> None:
    asked = case(pending(2), holder(1, 1, started=NOW), holder(2, 2), holder(3, 3))
    answer = preemption(asked.candidate, asked.holders, asked.nodes, {2, 3}, (), {}, NOW)
    assert gone(answer) == [2, 3]


def test_more_victims_than_the_limit_are_never_taken() -> None:
    asked = case(pending(4), *(holder(number, number) for number in range(1, 5)))
    said = why_not(asked.answer())
    assert said.reason == "TooFewFreed"
    assert "4 allocations may be preempted, at most 3 at a time, which free at most 3 nodes" in said.message
    assert gone(asked.answer(replace(LIMITS, most_victims=4))) == [1, 2, 3, 4]


# The cheapest set, against every set.


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 5), st.integers(1, 3)), max_size=9), st.integers(1, 12), st.integers(1, 4))
@settings(max_examples=600, deadline=None)
def test_a_cover_is_the_first_in_order_of_all_sets(rows: list[tuple[int, int, int]], wanted: int, most: int) -> None:
    items = [Item(freed, cost, size, number) for number, (freed, cost, size) in enumerate(rows)]
    every = [
        (sum(item.cost for item in chosen), count, -sum(item.size for item in chosen), tuple(item.ident for item in chosen))
        for count in range(1, most + 1)
        for chosen in combinations(items, count)
        if sum(item.freed for item in chosen) >= wanted
    ]
    assert cheapest_cover(items, wanted, most) == min(every, default=None)


def random_case(chance: random.Random) -> Case:
    """A machine of up to 3 groups and 2 fingerprints, partly held, and somebody who waits."""
    size = chance.randint(4, 14)
    groups = chance.randint(1, 3)
    homes = ["hpc", "hpc", "ml", ""]
    nodes = [
        node(
            index,
            f"g{chance.randrange(groups)}",
            fingerprint=chance.choice(["a", "a", "b", ""]),
            gpus=chance.choice([0, 4]),
            home=chance.choice(homes),
        )
        for index in range(size)
    ]
    left = list(range(size))
    chance.shuffle(left)
    holders: list[NodeHolder] = []
    while left and chance.random() < 0.9:
        taken = tuple(sorted(left.pop() for _ in range(min(len(left), chance.choice([1, 1, 2, 2, 3, 4])))))
        vcluster = chance.choice(["hpc", "ml", "services", "calm"])
        holders.append(
            holder(
                len(holders) + 1,
                *taken,
                vcluster=vcluster,
                preemption_class=chance.choice([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]),
                started=chance.choice([None, NOW - 60, NOW - HOUR, NOW - 5 * HOUR, NOW - 9.6 * HOUR, NOW - 9.95 * HOUR]),
                walltime=chance.choice([10 * HOUR, 10 * HOUR, None]),
                checkpointable=chance.random() < 0.7,
                preemptible=chance.random() < 0.9,
                sensitive=chance.random() < 0.05,
                releasing=chance.random() < 0.05,
                preemptions=chance.choice([0, 0, 0, 2]),
                burst=chance.choices((0, 1, 2), (85, 10, 5))[0],
                borrowed=tuple(index for index in taken if nodes[index].home not in ("", vcluster)),
            )
        )
    candidate = pending(
        chance.randint(1, max(1, size * 2 // 3)),
        preemption_class=chance.choice([0, 2, 4, 5, 7, 8, 10, 10]),
        topology=chance.choice([ANY, ANY, TIGHT, SPREAD]),
        conformance=chance.choice([PREFERRED, REQUIRED, IGNORED]),
        walltime=chance.choice([None, 60.0, 3 * HOUR, 24 * HOUR]),
    )
    policies = {
        "services": Policy("services", BIN_PACK),
        "calm": Policy("calm", min_runtime_before_preemption=600, max_preemptions=2),
        "ml": Policy("ml", borrowing=Borrowing(priority=chance.randint(0, 9))),
    }
    return Case(candidate, holders, {each.index: each for each in nodes}, policies, chance.choice([0.2, 0.6, 1.0]))


def regions(case: Case, strict_group: bool, strict_fingerprint: bool) -> Iterator[set[int]]:
    """The sets of nodes among which the candidate may stand at one level of preference, by the plainest reading."""
    fingerprints: list[str | None] = [None]
    if strict_fingerprint:
        fingerprints = sorted({facts.fingerprint for facts in case.nodes.values()} - {""})  # type: ignore[assignment]
    for fingerprint in fingerprints:
        inside = {index for index, facts in case.nodes.items() if fingerprint in (None, facts.fingerprint)}
        groups = sorted({case.nodes[index].group for index in inside})
        if case.candidate.topology == TIGHT:
            for chosen in combinations(groups, least_groups(case)):
                yield {index for index in inside if case.nodes[index].group in chosen}
        elif strict_group:
            yield from ({index for index in inside if case.nodes[index].group == group} for group in groups)
        else:
            yield inside


def least_groups(case: Case) -> int:
    """By trying: the fewest groups that would hold the candidate on an empty machine."""
    needed = case.candidate.conformance == REQUIRED and case.candidate.minimum > 1
    counts: dict[str, Counter[str]] = {}
    for facts in case.nodes.values():
        if facts.fingerprint or not needed:
            counts.setdefault(facts.fingerprint if needed else "", Counter())[facts.group] += 1
    for many in range(1, 4):
        for each in counts.values():
            if sum(count for _, count in each.most_common(many)) >= case.candidate.minimum:
                return many
    return 99


def levels(case: Case) -> list[tuple[bool, bool]]:
    """(one group, one fingerprint), strictest first, as the candidate's words allow."""
    alike = case.candidate.conformance if case.candidate.minimum > 1 else IGNORED
    by_fingerprint = {REQUIRED: [True], PREFERRED: [True, False], IGNORED: [False]}[alike]
    if case.candidate.topology in (TIGHT, SPREAD):
        return [(False, each) for each in by_fingerprint]
    if alike == PREFERRED:
        return [(True, True), (True, False), (False, True), (False, False)]
    return [(group, by_fingerprint[0]) for group in (True, False)]


def cheapest_of_all_sets(case: Case, pool: list[NodeHolder]) -> dict[tuple[bool, bool], int]:
    """The least cost at each level, by trying every set of at most three."""
    found: dict[tuple[bool, bool], int] = {}
    for level in levels(case):
        costs = [
            sum(loss(each, case.nodes, NOW).seconds for each in chosen)
            for inside in regions(case, *level)
            for count in range(4)
            for chosen in combinations(pool, count)
            if len(inside & (case.free | {index for each in chosen for index in each.nodes})) >= case.candidate.minimum
        ]
        if costs:
            found[level] = min(costs)
    return found


def expected_cost(case: Case, pool: list[NodeHolder]) -> int | None:
    found = cheapest_of_all_sets(case, pool)
    loosest = found.get(levels(case)[-1])
    if loosest is None:
        return None
    return next(found[level] for level in levels(case) if level in found and found[level] <= 1.5 * loosest)


def pools(case: Case) -> list[list[NodeHolder]]:
    """Who may go, in the order in which they are asked."""
    legal = [each for each in case.holders if protection(case.candidate, each, case.nodes, case.policies, NOW, LIMITS) is None]

    def rank(each: NodeHolder) -> tuple[int, int]:
        lent = on_loan(case.candidate, each, case.nodes)
        priority = case.policies.get(each.vcluster, Policy(each.vcluster)).borrowing.priority
        return (0, -each.burst) if each.burst else (1, priority) if lent else (2, 0)

    return [[each for each in legal if rank(each) <= top] for top in sorted({rank(each) for each in legal})]


@pytest.mark.parametrize("seed", range(8))
def test_no_legal_set_is_cheaper_than_the_one_chosen(seed: int) -> None:
    chance = random.Random(seed)
    met: Counter[str] = Counter()
    for _ in range(500):
        asked = random_case(chance)
        answer = asked.answer()
        costs = [expected_cost(asked, pool) for pool in pools(asked)]
        if isinstance(answer, Victims):
            met["Victims"] += 1
            check_legal(asked, answer)
            seconds = round(answer.cost * HOUR)
            assert seconds in costs
            before = [cost for cost in costs[: costs.index(seconds)] if cost is not None]
            assert all(cost >= least_value(asked) * HOUR for cost in before)
        else:
            met[answer.reason] += 1
            if answer.reason in ("NoneToPreempt", "TooFewFreed", "TooFewNodes"):
                assert [cost for cost in costs if cost is not None] == []
            elif answer.reason == "CostAboveValue":
                assert all(cost >= least_value(asked) * HOUR for cost in costs if cost is not None)
    assert min(met[word] for word in ("Victims", "FitsWithout", "NoneToPreempt", "TooFewFreed", "CostAboveValue")) > 0


def least_value(case: Case) -> float:
    """The candidate's value on the cheapest nodes that there are: no true value is below."""
    fewest = sorted(case.nodes, key=lambda index: case.nodes[index].gpus)[: case.candidate.minimum]
    return worth(case.candidate, fewest, case.nodes, case.score, LIMITS)


def check_legal(case: Case, answer: Victims) -> None:
    """Every promise of a set of victims."""
    candidate = case.candidate
    taken = {index for victim in answer.victims for index in victim.holder.nodes}
    assert 1 <= len(answer.victims) <= LIMITS.most_victims
    assert answer.cost < answer.value
    known = candidate.conformance == REQUIRED and candidate.minimum > 1
    assert answer.nodes_freed == sum(1 for index in taken if case.nodes[index].fingerprint or not known)
    assert len(answer.nodes) == len(set(answer.nodes)) == candidate.minimum
    assert set(answer.nodes) <= case.free | taken
    assert answer.span == len({case.nodes[index].group for index in answer.nodes})
    if candidate.conformance == REQUIRED and candidate.minimum > 1:
        assert len({case.nodes[index].fingerprint for index in answer.nodes} - {""}) == 1
        assert all(case.nodes[index].fingerprint for index in answer.nodes)
    if candidate.topology == TIGHT:
        assert answer.span <= least_groups(case)
    for victim in answer.victims:
        each = victim.holder
        assert not each.sensitive
        assert each.preemption_class < 10
        assert not each.releasing
        assert each.preemptible
        assert victim.reclaimed or may_preempt(candidate.preemption_class, each.preemption_class)
        assert not victim.reclaimed or on_loan(candidate, each, case.nodes)
        left = case.free | (taken - set(each.nodes))
        assert not any(len(inside & left) >= candidate.minimum for inside in strictest_regions(case, answer)), "it could have stayed"


def strictest_regions(case: Case, answer: Victims) -> list[set[int]]:
    """The regions of the strictest level that the answer's nodes keep to."""
    chosen = set(answer.nodes)
    for level in levels(case):
        found = list(regions(case, *level))
        if any(chosen <= inside for inside in found):
            return found
    raise AssertionError("the nodes keep to no level that the candidate accepts")


def test_the_same_question_in_another_order_has_the_same_answer() -> None:
    chance = random.Random(99)
    for _ in range(300):
        asked = random_case(chance)
        first = asked.answer()
        chance.shuffle(asked.holders)
        assert asked.answer() == first
