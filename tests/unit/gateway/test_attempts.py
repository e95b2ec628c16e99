"""Which attempt is read, and whether another one may follow."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lattice.errors import NotFound, Rejected, Stale
from lattice.views import Allocation
from lattice_gateway.attempts import Target, at_once, following, is_live, is_over, limit_to


def allocation(attempt: int = 1, nodes: str = "n[1-2]", attempts: list[dict[str, Any]] | None = None, **conditions: str) -> Allocation:
    status = {
        "attempt": attempt,
        "nodes": nodes,
        "attempts": attempts or [],
        "conditions": [{"type": kind, "status": value} for kind, value in conditions.items()],
    }
    return msgspec.convert({"metadata": {"name": "job", "namespace": "physics"}, "status": status}, Allocation)


ENDED = [{"attempt": 1, "nodes": "n9"}]


def test_the_present_attempt_is_read() -> None:
    assert at_once(allocation(), 0) == Target(1, ("n1", "n2"))


def test_between_attempts_the_last_one_is_read_and_the_next_one_is_followed() -> None:
    pending = allocation(2, "", ENDED, Scheduled="False")
    assert at_once(pending, 0) == Target(1, ("n9",))
    assert following(pending, 0, 0) is None
    assert not is_over(pending, 0, 0)
    assert following(allocation(2, "n3", ENDED, Scheduled="True"), 1, 0) == Target(2, ("n3",))


def test_nodes_of_an_attempt_that_is_not_scheduled_are_not_read() -> None:
    assert at_once(allocation(2, "n1", ENDED, Scheduled="False"), 0) == Target(1, ("n9",))


def test_an_attempt_can_be_named_while_its_nodes_are_known() -> None:
    second = allocation(2, "n3", ENDED)
    assert at_once(second, 1) == Target(1, ("n9",))
    with pytest.raises(NotFound, match="no record of attempt 1; the newest is 5"):
        at_once(allocation(5, "n3"), 1)


def test_what_has_not_started_says_so() -> None:
    with pytest.raises(Stale, match="has not started"):
        at_once(allocation(0, ""), 0)


def test_a_final_allocation_that_never_had_nodes_is_over() -> None:
    cancelled = allocation(0, "", Finished="True", Ready="True")
    assert following(cancelled, 0, 0) is None
    assert is_over(cancelled, 0, 0)


def test_a_final_allocation_is_drained_before_it_is_over() -> None:
    done = allocation(Finished="True", Ready="True")
    assert following(done, 0, 0) == Target(1, ("n1", "n2"))
    assert following(done, 1, 0) is None
    assert is_over(done, 1, 0)
    assert not is_live(done, 1)


def test_only_nodes_of_the_attempt_can_be_named() -> None:
    assert limit_to(Target(1, ("n1", "n2")), ("n2",), "physics/job") == Target(1, ("n2",))
    with pytest.raises(Rejected, match="did not run on node n7"):
        limit_to(Target(1, ("n1",)), ("n7",), "physics/job")
