"""JSON patches and watch lines: the rules of their RFCs, and bytes in any portions."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.errors import Expired, Rejected, Retry
from lattice.kube import attempts, patches, requests, selectors
from lattice.kube.answers import Failure, Lines, decode_event, error_of
from lattice.kube.resources import ALLOCATIONS

scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3), max_leaves=8
)
objects = st.dictionaries(st.text(max_size=2), values, max_size=4)


def has_null(value: Any) -> bool:
    if isinstance(value, dict):
        return any(item is None or has_null(item) for item in value.values())
    return False


@given(objects, objects)
def test_a_merge_changes_neither_side_and_twice_is_once(target: dict[str, Any], patch: dict[str, Any]) -> None:
    before = copy.deepcopy((target, patch))
    merged = patches.merge(target, patch)
    assert (target, patch) == before
    assert patches.merge(merged, patch) == merged


@given(objects.filter(lambda value: not has_null(value)))
def test_a_merge_into_nothing_is_the_patch(patch: dict[str, Any]) -> None:
    assert patches.merge({}, patch) == patch


@pytest.mark.parametrize(
    ("before", "operations", "after"),
    [
        ({"a": [1, 2]}, [{"op": "add", "path": "/a/1", "value": 9}], {"a": [1, 9, 2]}),
        ({"a": [1]}, [{"op": "add", "path": "/a/-", "value": 2}], {"a": [1, 2]}),
        ({"a/b": 1, "m~n": 2}, [{"op": "remove", "path": "/a~1b"}, {"op": "replace", "path": "/m~0n", "value": 3}], {"m~n": 3}),
        ({"a": {"b": 1}}, [{"op": "move", "from": "/a/b", "path": "/c"}], {"a": {}, "c": 1}),
        ({"a": [1]}, [{"op": "copy", "from": "/a", "path": "/b"}, {"op": "add", "path": "/b/-", "value": 2}], {"a": [1], "b": [1, 2]}),
        ({"a": 1}, [{"op": "test", "path": "/a", "value": 1}, {"op": "replace", "path": "", "value": {}}], {}),
    ],
)
def test_a_json_patch_does_its_operations_in_order(before: Any, operations: list[dict[str, Any]], after: Any) -> None:
    assert patches.apply(before, operations) == after


@pytest.mark.parametrize(
    "operation", [{"op": "remove", "path": "/x"}, {"op": "add", "path": "/a/7", "value": 1}, {"op": "no", "path": "/a"}]
)
def test_an_operation_that_does_not_fit_is_rejected(operation: dict[str, Any]) -> None:
    with pytest.raises(Rejected, match="operation 0"):
        patches.apply({"a": [1]}, [operation])


@given(st.lists(st.binary(max_size=20).map(lambda line: line.replace(b"\n", b"")), max_size=8), st.lists(st.integers(0, 200), max_size=10))
def test_lines_come_out_whole_however_the_bytes_come_in(lines: list[bytes], cuts: list[int]) -> None:
    data = b"".join(line + b"\n" for line in lines)
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    reader = Lines()
    out = [line for begin, end in itertools.pairwise(edges) for line in reader.feed(data[begin:end])]
    assert out == [line for line in lines if line]


WATCH = requests.watch(ALLOCATIONS, "", resource_version="1", labels="", fields="", initial_events=False, timeout_seconds=0)
CREATE = requests.create(ALLOCATIONS, {"metadata": {"name": "a"}}, "ns", False)


def test_an_error_event_is_raised_as_the_error_that_it_is() -> None:
    line = b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old resource version: 1 (9)"}}'
    with pytest.raises(Expired, match="too old resource version"):
        decode_event(WATCH, line, dict[str, Any])


def test_a_rejection_names_each_field_once() -> None:
    body = b'{"reason":"Invalid","message":"m","details":{"causes":[{"field":"spec.a"},{"field":"spec.a"},{"field":"spec.b"},{}]}}'
    error = error_of(CREATE, Failure.from_answer(422, body))
    assert isinstance(error, Rejected)
    assert error.fields == ("spec.a", "spec.b")


@pytest.mark.parametrize(
    ("request_", "error", "attempt", "seconds"),
    [
        pytest.param(CREATE, Retry("x"), 1, None, id="a write without Retry-After is handed on"),
        pytest.param(CREATE, Retry("x", after_seconds=2), 1, 2.5, id="a write with Retry-After waits"),
        pytest.param(CREATE, Retry("x", after_seconds=60), 1, None, id="too long to wait inside a verb"),
        pytest.param(CREATE, Retry("x", after_seconds=1), 5, None, id="not for ever"),
        pytest.param(WATCH, Retry("x"), 1, 0.1, id="a read is repeated"),
        pytest.param(WATCH, Retry("x"), 4, None, id="a read is not repeated for ever"),
        pytest.param(WATCH, Rejected("x"), 1, None, id="what is wrong stays wrong"),
    ],
)
def test_a_request_is_repeated_only_where_nothing_can_have_happened(
    request_: requests.Request, error: Retry, attempt: int, seconds: float | None
) -> None:
    assert attempts.pause(request_, error, attempt, lambda: 0.5) == seconds


@pytest.mark.parametrize("text", ["a b", "a in b"])
def test_a_selector_that_does_not_parse_is_rejected(text: str) -> None:
    with pytest.raises(Rejected):
        selectors.parse(text, "")
    with pytest.raises(Rejected):
        selectors.parse("", text)


def test_a_target_is_quoted() -> None:
    assert requests.list_all(ALLOCATIONS, "ns", "a in (b,c)", "metadata.name=x").target == (
        "/apis/lattice.dev/v1alpha1/namespaces/ns/allocations?labelSelector=a%20in%20%28b%2Cc%29&fieldSelector=metadata.name%3Dx"
    )
    assert requests.create(ALLOCATIONS, {"metadata": {"name": "a"}}, "ns", True).target.endswith("/allocations?dryRun=All")
