"""All scores of a vcluster at once: each is the weighted sum of its terms, whatever was scored before."""

from __future__ import annotations

from dataclasses import astuple, replace
from functools import partial
from itertools import pairwise
from math import fsum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.accounting.budgets import Allowance, Budgets
from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.model.hardware import Need
from lattice.scheduling.model.outcomes import Score
from lattice.scheduling.model.policy import PROFILES, Policy, Weights
from lattice.scheduling.model.work import Candidate, NodeHolder
from lattice.scheduling.priority import cost
from lattice.scheduling.priority.scoring import Scoring, shown
from lattice.scheduling.priority.shares import Run, Shares, Terms
from tests import build
from tests.build import node

NOW, HOUR = 1_800_000_000.0, 3600.0
job = partial(build.job, submitted=NOW - HOUR)


def node_cache(*groups: tuple[str, int, str], held: tuple[int, ...] = ()) -> NodeCache:
    """Groups of (name, nodes, fingerprint)."""
    made, index = NodeCache(), 0
    for group, nodes, fingerprint in groups:
        for _ in range(nodes):
            made.put(node(index, group, fingerprint=fingerprint))
            index += 1
    made.take(held)
    return made


def scoring(weights: Weights = PROFILES["HpcBatch"], shares: Shares | None = None) -> Scoring:
    return Scoring(shares=shares or Shares(), policies={"hpc": Policy("hpc", weights=weights)})


def of(made: Scoring, *jobs: Candidate, on: NodeCache | None = None, now: float = NOW) -> list[Score]:
    return list(made.score(jobs, on or node_cache(("g0", 4, "a")), now))


def shares_of(terms: Terms | None = None, **used: int) -> Shares:
    """Users of physics and how many nodes each used in the last hour; chemistry used none."""
    shares = Shares()
    shares.agree({"physics": terms or Terms(target=0.5), "chemistry": Terms(target=0.5)})
    for user, nodes in used.items():
        shares.see(Run(f"{user}/1", "physics", user, nodes, 0, NOW - HOUR, NOW))
    return shares


candidates = st.lists(
    st.builds(
        job,
        st.integers(0, 10**6),
        st.integers(1, 9),
        preemption_class=st.integers(0, 10),
        submitted=st.floats(NOW - 9e5, NOW + 10),
        checkpointable=st.booleans(),
        tenant=st.sampled_from(["physics", "chemistry"]),
        user=st.sampled_from(["alice", "bob"]),
        need=st.sampled_from([Need(), Need(cpus=4), Need(cpus=99)]),
    ),
    max_size=12,
    unique_by=lambda candidate: candidate.uid,
)
weights = st.builds(Weights, *[st.floats(0, 1)] * 9).filter(lambda made: sum(astuple(made)) > 0.01).map(Weights.normalised)


@settings(deadline=None, max_examples=40)
@given(candidates, weights)
def test_a_score_is_the_weighted_sum_of_its_terms_times_the_multiplier(jobs: list[Candidate], given_weights: Weights) -> None:
    shares = shares_of(alice=3, bob=1)
    for score in of(scoring(given_weights, shares), *jobs):
        total = score.multiplier * fsum(weight * term for weight, term in zip(astuple(given_weights), score.terms, strict=True))
        assert score.total == pytest.approx(total)
        assert all(0.0 <= term <= 1.0 for term in score.terms)
        assert 0.0 <= score.total <= 1.0 + 1e-9


@settings(deadline=None, max_examples=40)
@given(candidates, candidates, weights)
def test_what_was_scored_before_changes_no_score(first: list[Candidate], second: list[Candidate], given_weights: Weights) -> None:
    kept, on = scoring(given_weights), node_cache(("g0", 4, "a"), ("g1", 3, "b"))
    of(kept, *first, on=on)
    mixed = [*first[::2], *(one for one in second if one.uid not in {other.uid for other in first})]
    assert of(kept, *mixed, on=on, now=NOW + 5) == of(scoring(given_weights), *mixed, on=on, now=NOW + 5)


@settings(deadline=None, max_examples=40)
@given(candidates, candidates, weights)
def test_what_a_score_is_made_of_stays_what_it_was_when_it_was_made(
    first: list[Candidate], second: list[Candidate], given_weights: Weights
) -> None:
    shares, on = shares_of(alice=3), node_cache(("g0", 4, "a"), ("g1", 3, "b"))
    made = scoring(given_weights, shares)
    found = of(made, *first, on=on)
    said = [(score.total, *score.made_of()) for score in found]
    on.take((0, 5))
    shares.see(Run("bob/2", "physics", "bob", 7, 0, NOW, NOW + HOUR))
    of(made, *second, on=on, now=NOW + 9 * HOUR)
    assert [(score.total, *score.made_of()) for score in found] == said


@settings(deadline=None, max_examples=40)
@given(candidates, weights, st.lists(st.integers(0, 240), min_size=2, max_size=4))
def test_longer_waiting_never_lowers_a_score(jobs: list[Candidate], given_weights: Weights, hours: list[int]) -> None:
    made = scoring(given_weights)
    waited = [of(made, *(replace(one, submitted=NOW - each * HOUR) for one in jobs)) for each in sorted(hours)]
    for before, after in pairwise(waited):
        assert all(later.total >= earlier.total - 1e-12 for earlier, later in zip(before, after, strict=True))


def test_totals_to_sort_by_are_those_of_the_scores() -> None:
    found = scoring().score([job(1), job(2, preemption_class=9)], node_cache(("g0", 4, "a")), NOW)
    assert found.totals == [score.total for score in found] == [score.total for score in found[0:2]]
    assert len(found) == 2


def test_the_weights_of_the_next_cycle_count_in_the_next_cycle() -> None:
    made = scoring(Weights(1, 0, 0, 0, 0, 0, 0, 0, 0))
    jobs, on = [job(1, preemption_class=3)], node_cache(("g0", 1, "a"))
    found = made.score(jobs, on, NOW)
    made.policies = {"hpc": Policy("hpc", weights=Weights(0, 1, 0, 0, 0, 0, 0, 0, 0))}
    assert found[0].total == pytest.approx(0.3), "the cycle that has begun keeps the weights that it began with"
    assert made.score(jobs, on, NOW)[0].total == pytest.approx(cost.wait_time(HOUR))


@pytest.mark.parametrize(
    ("nodes", "held", "inter"),
    [
        (1, (), 1.0),
        (4, (), 1.0),
        (7, (), 1.0),
        (9, (), 1.0),
        (4, (0, 1), 1 - 2 / 3),
        (6, (0, 1), 1.0),
    ],
    ids=["one node", "as good as it gets", "the whole machine", "never", "the first group is half full", "does not fit now"],
)
def test_topology_counts_relative_to_the_best_that_work_of_this_width_could_get(nodes: int, held: tuple[int, ...], inter: float) -> None:
    on = node_cache(("g0", 4, "a"), ("g1", 2, "a"), ("g2", 1, "a"), held=held)
    intra = cost.intra_node(0, unified=False)
    expected = inter if inter == 1.0 else cost.topology(inter, intra, nodes) / cost.topology(1 - 1 / 3, intra, nodes)
    assert of(scoring(), job(1, nodes), on=on)[0].terms[3] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("groups", "held", "nodes", "value"),
    [
        ([("g0", 4, "a"), ("g1", 2, "b")], (), 6, 1.0),
        ([("g0", 4, "a"), ("g1", 4, "b")], (0, 1), 4, 1.0),
        ([("g0", 4, "a"), ("g1", 3, "b")], (0, 1), 4, 3 / 4),
        ([("g0", 4, ""), ("g1", 2, "")], (), 4, 1.0),
    ],
    ids=["no six are alike", "the other four are", "three of the free ones are alike", "none are ever alike"],
)
def test_conformance_counts_relative_to_the_largest_equal_set_that_there_is(
    groups: list[tuple[str, int, str]], held: tuple[int, ...], nodes: int, value: float
) -> None:
    assert of(scoring(), job(1, nodes), on=node_cache(*groups, held=held))[0].terms[8] == pytest.approx(value)


def test_of_one_tenant_the_user_with_less_usage_goes_first() -> None:
    one, other = of(scoring(shares=shares_of(alice=9, bob=1)), job(1, user="alice"), job(2, user="bob"))
    assert one.terms[2] == pytest.approx((2**-2 * 2 ** -(0.9 / 0.25)) ** 0.5)
    assert other.terms[2] == pytest.approx((2**-2 * 2 ** -(0.1 / 0.25)) ** 0.5)


def test_the_tenant_below_its_share_goes_first() -> None:
    one, other = of(scoring(shares=shares_of(alice=9)), job(1), job(2, tenant="chemistry"))
    assert [one.terms[2], other.terms[2]] == pytest.approx([2**-2, 1.0])
    assert other.total - one.total == pytest.approx(PROFILES["HpcBatch"].fair_share * 0.75)


def test_users_who_wait_in_another_vcluster_share_the_target_too() -> None:
    made, on = scoring(shares=shares_of(alice=4)), node_cache(("g0", 4, "a"))
    alone = of(made, job(1), on=on)[0].terms[2]
    of(made, job(2, user="bob", vcluster="ml"), on=on)
    assert of(made, job(1), on=on)[0].terms[2] < alone


def test_a_used_up_budget_leaves_a_twentieth_of_the_score() -> None:
    before = of(scoring(shares=shares_of(alice=9)), job(1))[0]
    spent = Terms(target=0.5, budgets=Budgets(Allowance(node_hours=1.0)))
    after = of(scoring(shares=shares_of(spent, alice=9)), job(1))[0]
    assert (before.multiplier, after.multiplier) == (1.0, cost.LEAST_MULTIPLIER)
    assert after.total == pytest.approx(before.total * cost.LEAST_MULTIPLIER)


def test_the_backlog_counts_what_every_vcluster_has_queued() -> None:
    made, on = scoring(), node_cache(("g0", 4, "a"), held=(0, 1))
    holder = NodeHolder("h", "physics/h", "physics", "alice", "hpc", 5, (0, 1), NOW, walltime=4 * HOUR)
    made.running([holder], on)
    assert of(made, job(1, 2), on=on)[0].terms[5] == pytest.approx(2 / 8)
    assert of(made, job(2, 4, vcluster="ml"), on=on)[0].terms[5] == pytest.approx(6 / 8)
    made.drop_vcluster("hpc")
    assert of(made, job(2, 4, vcluster="ml"), on=on)[0].terms[5] == pytest.approx(4 / 8)


def test_a_vcluster_where_nothing_waits_any_more_leaves_the_backlog() -> None:
    made, on = scoring(), node_cache(("g0", 4, "a"), held=(0, 1))
    made.running_gpu_hours = 8.0
    of(made, job(1, 2), on=on)
    later = [of(made, job(2, 4, vcluster="ml"), on=on, now=NOW + seconds)[0].terms[5] for seconds in (59, 61)]
    assert later == [pytest.approx(6 / 8), pytest.approx(4 / 8)]


def test_what_nothing_may_preempt_has_no_checkpoint_to_take() -> None:
    found = of(scoring(), job(1), job(2, checkpointable=False), job(3, preemptible=False), job(4, sensitive=True))
    assert [score.terms[7] for score in found] == [pytest.approx(1 / 6), 0.0, 0.0, 0.0]


def test_a_score_is_shown_with_three_decimals() -> None:
    assert shown(Score(0.73149, (0.5,) * 8 + (1.0,))) == {
        "total": "0.731",
        "terms": {**{f"f{at}": "0.500" for at in range(1, 9)}, "f9": "1.000"},
    }


def test_no_candidates_have_no_scores() -> None:
    assert of(scoring()) == []
