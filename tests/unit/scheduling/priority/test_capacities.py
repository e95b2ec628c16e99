"""What the machine holds for a need: followed event by event it is what a count of all nodes gives."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.errors import Corrupt
from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.model.hardware import Need, NodeFacts
from lattice.scheduling.model.policy import BACKFILL, SENSITIVE_RESERVATION, Borrowing, Policy
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.priority.capacities import Capacities, Capacity
from lattice.scheduling.priority.scoring import Scoring
from tests.build import node

ANYWHERE = frozenset({""})
NEEDS = (Need(), Need(gpus=2), Need(cpus=99), Need(only=0b1111), Need(without=0b1))


def node_cache(*nodes: NodeFacts) -> NodeCache:
    made = NodeCache()
    for each in nodes:
        made.put(each)
    return made


nodes = st.builds(
    node,
    st.integers(0, 11),
    st.sampled_from(["g0", "g1", "g2"]),
    fingerprint=st.sampled_from(["a", "b", ""]),
    gpus=st.sampled_from([0, 2]),
    usable=st.booleans(),
    home=st.sampled_from(["", "hpc"]),
)
events = st.lists(
    st.one_of(
        nodes.map(lambda facts: ("put", facts)),
        st.integers(0, 11).map(lambda index: ("drop", index)),
        st.integers(0, 11).map(lambda index: ("take", [index])),
        st.integers(0, 11).map(lambda index: ("give", [index])),
    ),
    max_size=40,
)


@settings(deadline=None, max_examples=40)
@given(events, st.sampled_from([frozenset[int](), frozenset({0b1111, 0b1})]))
def test_any_sequence_of_events_leaves_what_a_count_of_all_nodes_gives(told: list[tuple[str, object]], masks: frozenset[int]) -> None:
    made, kept = NodeCache(), Capacities()
    made.split(masks)
    for word, what in told:
        getattr(made, word)(what)
        kept.follow(made)
        for need in NEEDS:
            for homes in (ANYWHERE, frozenset({"", "hpc"})):
                kept.capacity(made, need, homes)
        kept.validate(made)


def test_nodes_at_home_elsewhere_do_not_count() -> None:
    made, kept = node_cache(node(0), node(1, home="hpc"), node(2, home="ml")), Capacities()
    kept.follow(made)
    assert kept.capacity(made, Need(), frozenset({"hpc"})).usable == [1]
    assert kept.capacity(made, Need(), frozenset({"hpc", "ml"})).usable == [2]


def test_free_and_usable_are_told_apart() -> None:
    made, kept = (
        node_cache(node(0), node(1), node(2, "g1", fingerprint="b"), node(3, "g1", fingerprint="", usable=False, state="Down")),
        Capacities(),
    )
    made.take([0])
    kept.follow(made)
    assert kept.capacity(made, Need(), ANYWHERE) == Capacity(free=[1, 2], usable=[2, 3], free_alike=1, usable_alike=2)


def test_another_machine_is_counted_from_its_beginning() -> None:
    kept = Capacities()
    for count in (1, 2, 3):
        made = node_cache(*(node(index) for index in range(count)))
        kept.follow(made)
        assert kept.capacity(made, Need(), ANYWHERE).usable == [count]


def test_a_count_that_differs_is_noticed() -> None:
    made, kept = node_cache(node(0)), Capacities()
    kept.follow(made)
    kept.capacity(made, Need(), ANYWHERE).free.append(7)
    with pytest.raises(Corrupt, match="differs from the nodes"):
        kept.validate(made)


def test_work_is_judged_on_its_home_and_on_what_it_may_borrow() -> None:
    made = node_cache(
        *(node(index, "g0", home="hpc", fingerprint="ab"[index // 4]) for index in range(5)),
        *(node(index, "g1", home="ml") for index in range(5, 9)),
    )
    made.take((0, 1))
    wide = Candidate("p/a", "a", "p", "hpc", 5, 0.0, 3, 3, Need())

    def conformance(borrow: bool, lender: str = BACKFILL) -> float:
        hpc = Policy("hpc", home=True, borrowing=Borrowing(borrow=borrow))
        scoring = Scoring(policies={"hpc": hpc, "ml": Policy("ml", lender, home=True, borrowing=Borrowing(lend=True))})
        found = scoring.score([wide], made, 0.0)[0].terms[8]
        scoring.validate(made)
        return found

    assert (conformance(False), conformance(True)) == (2 / 3, 1.0)
    assert conformance(True, SENSITIVE_RESERVATION) == 2 / 3, "its policy never lends"
