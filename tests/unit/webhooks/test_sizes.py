"""An object of any size is answered, and none costs more than a moment: what is too large is refused by its size, before it is read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lattice_webhooks.reviews import HEAD_BYTES, MOST_BYTES, MOST_CREATED, MOST_PARTS, MOST_PARTS_OF_ALL, Review, beyond, read_review
from lattice_webhooks.server import MAX_BODY
from tests.unit.webhooks.test_webhook import Running, allocation, made, running

__all__ = ["running"]


def read(obj: dict[str, Any] | None, old: dict[str, Any] | None = None, operation: str = "CREATE", kind: str = "Allocation") -> Review:
    request = {
        "uid": "u-1", "kind": {"group": "lattice.dev", "version": "v1alpha1", "kind": kind}, "operation": operation,
        "object": obj, "oldObject": old,
    }  # fmt: skip
    return read_review(json.dumps({"apiVersion": "admission.k8s.io/v1", "request": request}).encode())


LONG = allocation(script="#!/bin/sh\n" + "x" * MOST_BYTES)
LARGE = {**allocation(), "notes": "x" * MOST_CREATED}
EMPTY = allocation(tags=[[]] * (MOST_PARTS // 2 + 1))
MANY = allocation(tags={f"k{number}": "" for number in range(MOST_PARTS // 2 + 1)})
CROWDED = {**made("Allocation", "job"), "notes": ["x"] * (MOST_PARTS_OF_ALL + 1)}


@pytest.mark.parametrize(
    ("obj", "sentence"),
    [
        pytest.param(LONG, f"bytes as JSON (limit: {MOST_BYTES})", id="bytes"),
        pytest.param(MANY, f"fields and elements (limit: {MOST_PARTS})", id="fields"),
        pytest.param(LARGE, f"bytes as JSON (limit: {MOST_CREATED})", id="a new object as a whole"),
        pytest.param(EMPTY, f"fields and elements (limit: {MOST_PARTS})", id="lists"),
    ],
)
async def test_a_spec_that_is_too_large_is_refused_before_it_is_read(running: Running, obj: dict[str, Any], sentence: str) -> None:
    request = read(obj).request
    assert request is None or "spec" not in request.obj
    for path in ("/mutate", "/validate"):
        response = await running.caller.review(path, obj)
        assert response["allowed"] is False
        assert sentence in response["status"]["message"]
        assert response["status"]["details"]["causes"][0]["reason"] == "TooLarge"


async def test_a_review_of_too_many_parts_is_refused_unless_something_is_deleted(running: Running) -> None:
    response = await running.caller.review("/validate", CROWDED)
    assert response["allowed"] is False
    assert f"fields and elements (limit: {MOST_PARTS_OF_ALL})" in response["status"]["message"]
    assert (await running.caller.review("/validate", None, old=CROWDED, operation="DELETE"))["allowed"] is True


async def test_a_review_larger_than_is_read_is_refused_and_not_left_to_the_failure_policy(running: Running) -> None:
    obj = allocation(script="x" * (MAX_BODY + 1))
    response = await running.caller.review("/mutate", obj)
    assert (response["allowed"], response["status"]["code"]) == (False, 422)
    assert f"(limit: {MAX_BODY})" in response["status"]["message"]
    assert "Hint: " in response["status"]["message"]
    assert (await running.caller.review("/validate", None, old=obj, operation="DELETE"))["allowed"] is True


def test_of_a_large_review_the_first_bytes_must_say_what_is_asked() -> None:
    assert beyond(b'{"kind": "AdmissionReview"' + b" " * HEAD_BYTES, MAX_BODY + 1, MAX_BODY) is None


async def test_what_is_too_large_already_can_be_labelled_and_deleted(running: Running) -> None:
    labelled = {**LONG, "metadata": {**LONG["metadata"], "labels": {"a": "b"}}}
    for path in ("/mutate", "/validate"):
        assert (await running.caller.review(path, labelled, old=LONG, operation="UPDATE"))["allowed"] is True
        assert (await running.caller.review(path, None, old=LONG, operation="DELETE"))["allowed"] is True


def test_of_an_allocation_only_what_is_judged_is_read() -> None:
    obj = allocation()
    obj["metadata"] |= {"annotations": {"a": "b"}, "managedFields": [{"manager": "kubectl"}], "finalizers": ["lattice.dev/release"]}
    request = read(obj).request
    assert request is not None
    assert request.obj == {"metadata": {"name": "job", "labels": {}, "finalizers": ["lattice.dev/release"]}, "spec": obj["spec"]}


def test_other_kinds_are_read_as_a_whole_up_to_the_same_size() -> None:
    tenant = made("Tenant", "physics", {"quota": {"maxNodes": 1}})
    request = read(tenant, kind="Tenant").request
    assert request is not None
    assert request.obj == tenant
    refused = read({**tenant, "spec": {"note": "x" * MOST_BYTES}}, kind="Tenant").too_large
    assert refused is not None
    assert refused.reason == "TooLarge"
