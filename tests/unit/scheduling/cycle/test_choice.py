"""Which nodes a cycle takes: by fingerprint, groups, hardware, and the policy of the vcluster."""

from __future__ import annotations

from lattice.scheduling.model.hardware import Need
from lattice.scheduling.model.policy import (
    BIN_PACK,
    INTERACTIVE_FIFO,
    SENSITIVE_RESERVATION,
    Policy,
)  # fmt: skip
from lattice.scheduling.model.work import REQUIRED, SPREAD, TIGHT
from tests.build import job, node, uid
from tests.unit.scheduling.cycle.scenes import HOUR, decided, placed, scene_of, waiting


def test_all_places_of_a_required_fingerprint_are_equal_and_the_largest_equal_set_is_named() -> None:
    nodes = [node(index, fingerprint="a" if index < 3 else "b" if index < 7 else "") for index in range(9)]
    state = scene_of(nodes)
    assert placed(decided(state, job(1, 4, conformance=REQUIRED))[uid(1)]) == (3, 4, 5, 6)
    told = waiting(decided(scene_of(nodes), job(1, 5, conformance=REQUIRED))[uid(1)])
    assert (told.reason, told.message) == (
        "InsufficientConformance", "needs 5 nodes of one fingerprint; the largest equal set has 4 of 9 that fit",
    )  # fmt: skip


def test_tight_work_waits_rather_than_take_more_groups_than_an_empty_machine_needs() -> None:
    state = scene_of([node(index, f"g{index // 4}") for index in range(8)])
    state.node_cache.take((0, 4), HOUR)
    told = waiting(decided(state, job(1, 4, topology=TIGHT))[uid(1)])
    assert told.reason == "WaitingForNodes"
    assert "needs 4 nodes in 1 group (topology Tight); 6 that fit are free, at most 3 of them in 1 group" in told.message
    assert len(placed(decided(state, job(2, 4))[uid(2)])) == 4


def test_neighbouring_groups_are_preferred_and_numbers_count_by_value() -> None:
    sizes = {"g1": 3, "g2": 2, "g10": 3, "g11": 2}
    nodes = [group for group, size in sizes.items() for _ in range(size)]
    state = scene_of([node(index, group) for index, group in enumerate(nodes)])
    chosen = placed(decided(state, job(1, 5))[uid(1)])
    assert {nodes[index] for index in chosen} in ({"g1", "g2"}, {"g10", "g11"})


def test_spread_work_takes_as_many_groups_as_it_can() -> None:
    state = scene_of([node(index, f"g{index // 3}") for index in range(9)])
    assert placed(decided(state, job(1, 4, topology=SPREAD))[uid(1)]) == (0, 1, 3, 6)


def test_hardware_that_others_need_is_taken_last() -> None:
    nodes = [node(0, "g0", gpus=4), node(1, "g0", gpus=4), *(node(index, "g1") for index in range(2, 12))]
    assert placed(decided(scene_of(nodes), job(1, 2))[uid(1)]) == (2, 3)


def test_services_fill_the_fullest_group_first() -> None:
    nodes = [node(index, "g0" if index < 4 else "g1") for index in range(14)]
    state = scene_of(nodes, Policy("hpc", BIN_PACK))
    state.node_cache.take(range(4, 11), HOUR)  # g0: 4 of 4 free, g1: 3 of 10 free
    assert placed(decided(state, job(1, 1))[uid(1)]) == (11,)


def test_nobody_overtakes_in_strict_order_but_who_could_not_use_the_nodes_anyway() -> None:
    nodes = [*(node(index, home="hpc") for index in range(4)), node(4, gpus=4, home="hpc")]
    state = scene_of(nodes, Policy("hpc", INTERACTIVE_FIFO, home=True))
    state.node_cache.take((0,), HOUR)
    found = decided(state, job(1, 4, need=Need(cpus=8), user="x"), job(2, 1), job(3, 1, need=Need(gpus=4)))
    assert placed(found[uid(1)]) == (1, 2, 3, 4)
    state = scene_of(nodes, Policy("hpc", INTERACTIVE_FIFO, home=True))
    state.node_cache.take((0, 4), HOUR)
    found = decided(state, job(1, 4), job(2, 1, 0.1, preemption_class=10))
    assert waiting(found[uid(2)]).reason == "BehindHigherPriority"
    assert "strict order of submission" in waiting(found[uid(2)]).message


def test_sensitive_work_runs_on_equal_known_nodes_or_is_told_what_is_in_its_way() -> None:
    nodes = [*(node(index) for index in range(3)), node(3, fingerprint=""), node(4, fingerprint="b")]
    state = scene_of(nodes, Policy("hpc", SENSITIVE_RESERVATION))
    state.node_cache.take((0, 1), 2 * HOUR)
    told = waiting(decided(state, job(1, 3, sensitive=True))[uid(1)])
    assert (told.reason, told.latest) == ("WaitingForNodes", None)
    assert "of 4 that fit, 2 are free, 2 in use; enough of them come free by 1970-01-01T02:00:00Z" in told.message
    assert placed(decided(state, job(2, 1, sensitive=True))[uid(2)]) in ((2,), (4,))
