"""Reservations on a real API server: accepted and refused ones, each with the sentence that a person reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.crd_objects import Collection, accepted, refused
from tests.servers import ApiServer

# Reservation


RESERVED = {"nodes": "nid[001-004]", "start": "2099-12-01T08:00:00Z", "duration": "4h"}


@pytest.fixture
def reservations(api_server: ApiServer) -> Iterator[Collection]:
    found = Collection(api_server, "reservations", "Reservation")
    yield found
    api_server.request("DELETE", found.path)


def reserved(**changes: Any) -> dict[str, Any]:
    return {key: value for key, value in {**RESERVED, **changes}.items() if value is not None}


RESERVATIONS_ACCEPTED = {
    "nodes, once": reserved(),
    "maintenance with empty lists": reserved(maintenance=True, ignoreRunning=True, users=[], tenants=[], vclusters=[]),
    "a number of nodes, again and again, for some": reserved(
        nodes=None, nodeCount=4, features=["nvme"], groups=["g0"], gpuType="GH200", start="2099-12-01T02:00", timeZone="Europe/Zurich",
        recurrence={"weekdays": ["Monday", "Friday"], "count": 10}, users=["oidc:alice"], tenants=["physics"], vclusters=["hpc-batch"],
    ),
    "every third day until": reserved(recurrence={"everyDays": 3, "until": "2100-01-01T00:00:00+01:00"}),
}  # fmt: skip


@pytest.mark.parametrize("manifest", RESERVATIONS_ACCEPTED.values(), ids=RESERVATIONS_ACCEPTED.keys())
def test_a_reservation_is_accepted_and_stands_as_it_was_given(reservations: Collection, manifest: dict[str, Any]) -> None:
    assert accepted(reservations.create("good", spec=manifest))["spec"] == manifest


RESERVATIONS_REFUSED = {
    "no spec": (None, "spec: Required value"),
    "no nodes": (reserved(nodes=None), "give either spec.nodes or spec.nodeCount, exactly one of them"),
    "nodes and a number": (reserved(nodeCount=4), "give either spec.nodes or spec.nodeCount, exactly one of them"),
    "features beside nodes": (reserved(features=["nvme"]), "choose nodes for spec.nodeCount: leave them out beside spec.nodes"),
    "zero nodes": (reserved(nodes=None, nodeCount=0), "spec.nodeCount"),
    "more nodes than a ledger knows": (reserved(nodes=None, nodeCount=16385), "less than or equal to 16384"),
    "a start that is none": (reserved(start="tomorrow"), "spec.start"),
    "a local start without a zone": (reserved(start="2099-12-01T08:00"), "spec.start is a local time: set spec.timeZone"),
    "a zone that climbs": (reserved(timeZone="../../etc/passwd"), "spec.timeZone"),
    "no duration": (reserved(duration=None), "spec.duration: Required value"),
    "a duration of nothing": (reserved(duration="0s"), "spec.duration must be longer than nothing"),
    "a duration without unit": (reserved(duration="90"), "spec.duration"),
    "people for maintenance": (reserved(maintenance=True, users=["alice"]), "spec.maintenance means that nobody may use it"),
    "two rules": (reserved(recurrence={"everyDays": 1, "weekdays": ["Monday"]}), "either spec.recurrence.everyDays or"),
    "no rule": (reserved(recurrence={}), "either spec.recurrence.everyDays or spec.recurrence.weekdays"),
    "two ends": (reserved(recurrence={"everyDays": 1, "count": 3, "until": "2099-12-09T08:00:00Z"}), "not both"),
    "an unknown weekday": (reserved(recurrence={"weekdays": ["Someday"]}), "Unsupported value"),
    "the same weekday twice": (reserved(recurrence={"weekdays": ["Monday", "Monday"]}), "Duplicate value"),
    "every zero days": (reserved(recurrence={"everyDays": 0}), "spec.recurrence.everyDays"),
}


@pytest.mark.parametrize(("manifest", "sentence"), RESERVATIONS_REFUSED.values(), ids=RESERVATIONS_REFUSED.keys())
def test_a_reservation_is_refused_with_a_sentence(reservations: Collection, manifest: dict[str, Any] | None, sentence: str) -> None:
    refused(reservations.create("bad", **({"spec": manifest} if manifest is not None else {})), sentence)


@pytest.mark.parametrize(
    ("patch", "field"),
    [({"nodes": "nid[001-009]"}, "nodes"), ({"start": "2099-12-02T08:00:00Z"}, "start"), ({"timeZone": "Europe/Zurich"}, "timeZone")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_which_nodes_and_from_when_is_fixed(reservations: Collection, patch: dict[str, Any], field: str) -> None:
    accepted(reservations.create("fixed", spec=reserved()))
    sentence = f"spec.{field} cannot be changed after creation: delete this reservation and make a new one"
    refused(reservations.merge("fixed", {"spec": patch}), sentence)


def test_how_long_how_often_and_for_whom_may_change(reservations: Collection) -> None:
    accepted(reservations.create("free", spec=reserved()))
    accepted(reservations.merge("free", {"spec": {"duration": "6h", "recurrence": {"everyDays": 7}, "users": ["alice"]}}))
