"""The processors of a node as its agent says them: a lie costs nothing but the launch."""

from __future__ import annotations

from typing import Any

import pytest

from lattice_agent.launches.topology import describe_cores, read_description

TRUE: dict[str, Any] = {"cores": [[0, 2], [1, 3]], "domains": [[0, 2, 1, 3]], "gpus": [0]}


def test_what_a_node_says_is_read() -> None:
    assert read_description(TRUE) == (((0, 2), (1, 3)), ((0, 2, 1, 3),), (0,))
    cores, _, gpus = read_description(describe_cores(frozenset(), 2))
    assert (bool(cores), gpus) == (True, (0, 1))


@pytest.mark.parametrize(
    "lie",
    [
        {"cores": [[1 << 40]]},
        {"cores": [[-1]]},
        {"cores": [["1"]]},
        {"cores": 5},
        {"gpus": [True]},
        {"cores": [[0] * 70_000]},
        {"domains": None},
    ],
    ids=lambda lie: str(lie)[:24],
)
def test_numbers_that_no_processor_has_are_refused(lie: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the node is not described"):
        read_description(TRUE | lie)
