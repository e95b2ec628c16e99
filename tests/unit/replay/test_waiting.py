"""The queue of a backfill pass against a plain list."""

from __future__ import annotations

from random import Random

import pytest

from lattice.errors import Corrupt
from lattice.replay.waiting import BLOCK, WaitingJobs


def plain_take(waiting: list[int], nodes: list[int], estimate: list[int], free: int, slack: int, extra: int) -> list[int]:
    taken: list[int] = []
    for rank in waiting:
        if nodes[rank] > free or (estimate[rank] > slack and nodes[rank] > extra):
            continue
        free -= nodes[rank]
        if estimate[rank] > slack:
            extra -= nodes[rank]
        taken.append(rank)
    return taken


@pytest.mark.parametrize("seed", range(20))
def test_a_queue_of_many_blocks_is_a_sorted_list_that_is_read_in_order(seed: int) -> None:
    random = Random(seed)
    count = 12 * BLOCK
    nodes = [random.randint(1, 40) for _ in range(count)]
    estimate = [random.randint(1, 100) for _ in range(count)]
    ranks = list(range(count))
    if seed % 2:
        random.shuffle(ranks)
    waiting, plain = WaitingJobs(nodes, estimate), list[int]()
    for turn, rank in enumerate(ranks):
        waiting.push(rank)
        plain = sorted([*plain, rank])
        if turn % 23 == 22:
            asked = (random.randint(0, 60), random.randint(0, 100), random.randint(0, 20))
            taken = plain_take(plain, nodes, estimate, *asked)
            assert waiting.pop_fitting(*asked) == taken
            plain = [rank for rank in plain if rank not in taken]
        if turn % 7 == 6 and plain:
            gone = random.choice(plain)
            waiting.remove(gone)
            plain.remove(gone)
        if turn % 50 == 0:
            waiting.validate()
    assert list(waiting) == plain
    waiting.validate()
    while plain:
        taken = plain_take(plain, nodes, estimate, 80, 60, 40)
        assert waiting.pop_fitting(80, 60, 40) == taken
        plain = [rank for rank in plain if rank not in taken]
        waiting.validate()


def test_a_block_whose_summary_is_wrong_is_found() -> None:
    nodes = [3, 4]
    waiting = WaitingJobs(nodes, [1, 1])
    waiting.push(0)
    nodes[0] = 1
    with pytest.raises(Corrupt, match="1 waiting jobs"):
        waiting.validate()
