"""The end of a charge, which the node that reports it alone has said."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from lattice.accounting.charges import Charge, bounded

BEGUN = 1_790_000_000


def charge(ended: int, nodes: int = 4, gpus: int = 16) -> Charge:
    held = max(0, ended - BEGUN)
    return Charge(
        "u", 1, 1, 7, "physics", "physics", "job", "", "alice", "", "hpc-batch", nodes, gpus, BEGUN - 60, BEGUN, BEGUN + 1, ended, "Completed",
        "Completed", 0, nodes * held, gpus * held, 5,
    )  # fmt: skip


def test_an_end_before_the_last_word_of_a_node_that_runs_it_erases_no_hours() -> None:
    paid = bounded(charge(BEGUN), heard=BEGUN + 3600.0, now=BEGUN + 3605.0)
    assert (paid.ended, paid.node_seconds, paid.gpu_seconds) == (BEGUN + 3600, 4 * 3600, 16 * 3600)
    assert bounded(charge(BEGUN - 500_000_000), heard=BEGUN + 60.0, now=BEGUN + 61.0).node_seconds == 4 * 60


def test_an_end_that_is_still_to_come_costs_nothing_more_than_now() -> None:
    assert bounded(charge(BEGUN + 10_000_000), heard=0.0, now=BEGUN + 10.0).node_seconds == 40


@given(st.integers(-1000, 1000), st.floats(-1000, 1000), st.integers(0, 1000))
def test_an_honest_end_stays_and_every_end_lies_between_commit_and_now(ended: int, heard: float, now: int) -> None:
    paid = bounded(charge(BEGUN + ended), heard=BEGUN + heard, now=BEGUN + now)
    assert BEGUN <= paid.ended <= BEGUN + now or paid == charge(BEGUN + ended)
    assert paid.node_seconds == 4 * max(0, paid.ended - BEGUN)
    if 0 <= ended <= now and heard <= ended + 2:
        assert paid == charge(BEGUN + ended)


def test_what_has_no_nodes_or_no_end_is_left_alone() -> None:
    for odd in (charge(0), msgspec.structs.replace(charge(BEGUN + 5), committed=0), msgspec.structs.replace(charge(BEGUN + 5), nodes=0)):
        assert bounded(odd, heard=BEGUN + 100.0, now=BEGUN + 200.0) == odd
