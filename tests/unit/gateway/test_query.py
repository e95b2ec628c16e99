"""The query of a reader: what is not understood is refused by name."""

from __future__ import annotations

import pytest

from lattice.errors import Rejected
from lattice.rpc.v1 import agent_pb2 as pb
from lattice_gateway.query import Query, read_query


def test_nothing_asked_is_everything_at_once() -> None:
    assert read_query({}, 100.0) == Query(follow=False, nodes=(), stream=pb.STREAM_UNSPECIFIED, tail=-1, since=0.0, attempt=0)


def test_every_parameter_is_read() -> None:
    values = {"follow": "true", "node": "n[1-2]", "stream": "stderr", "tail": "5", "since": "10m", "attempt": "2"}
    assert read_query(values, 1000.0) == Query(True, ("n1", "n2"), pb.STDERR, 5, 400.0, 2)


@pytest.mark.parametrize(("since", "seconds"), [("1970-01-01T00:01:00Z", 60.0), ("61.5", 61.5), ("1h", -3500.0)])
def test_since_is_a_time_or_a_duration(since: str, seconds: float) -> None:
    assert read_query({"since": since}, 100.0).since == seconds


@pytest.mark.parametrize(
    "values",
    [
        {"folow": "1"},
        {"follow": "maybe"},
        {"stream": "both"},
        {"tail": "-1"},
        {"tail": "x"},
        {"since": "later"},
        {"attempt": "0"},
        {"node": "n["},
    ],
)
def test_what_is_not_understood_is_refused(values: dict[str, str]) -> None:
    with pytest.raises(Rejected):
        read_query(values, 100.0)
