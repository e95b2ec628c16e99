"""Tells MPI which ranks share a node, as PMI's key `PMI_process_mapping`, from which MPICH decides where shared memory is used."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

KEY = b"PMI_process_mapping"
MOST_BYTES = 1000
"""Clients of PMI-2 read at most 1023 bytes of a value."""


def process_mapping(nodes: Sequence[Sequence[int]]) -> bytes | None:
    """Returns `(vector,(FIRST,NODES,RANKS),…)` for the ranks of each node: RANKS ranks in order on each of NODES nodes from FIRST on.

    A layout that repeats and would be too long is given once, as MPICH starts again from the front. None where it is too long even so:
    MPI then compares host names.
    """
    owner = {rank: index for index, ranks in enumerate(nodes) for rank in ranks}
    order = [owner[rank] for rank in sorted(owner)]
    blocks = _blocks([(node, len(list(run))) for node, run in groupby(order)])
    if len(text := _vector(blocks)) <= MOST_BYTES:
        return text
    for period in range(1, len(blocks) // 2 + 1):
        if len(blocks) % period == 0 and blocks == blocks[:period] * (len(blocks) // period):
            text = _vector(blocks[:period])
            return text if len(text) <= MOST_BYTES else None
    return None


def _blocks(runs: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Returns runs (node, ranks) with those joined that stand on neighbouring nodes and have equally many ranks."""
    blocks: list[tuple[int, int, int]] = []
    for node, ranks in runs:
        if blocks and blocks[-1][0] + blocks[-1][1] == node and blocks[-1][2] == ranks:
            blocks[-1] = (blocks[-1][0], blocks[-1][1] + 1, ranks)
        else:
            blocks.append((node, 1, ranks))
    return blocks


def _vector(blocks: Sequence[tuple[int, int, int]]) -> bytes:
    """Returns the value that names these blocks."""
    return b"(vector," + b",".join(b"(%d,%d,%d)" % block for block in blocks) + b")"
