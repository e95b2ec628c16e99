"""What every verb promises, of the fake as of the real API server."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from typing import Any

import pytest

from lattice.errors import AlreadyExists, Expired, NotFound, Rejected, Stale
from lattice.kube import requests
from lattice.kube.cluster import Cluster, EventKind, PatchKind, WatchEvent
from lattice.kube.resources import CONFIG_MAPS, LEASES, Resource
from lattice.views import Lease, Metadata, View
from tests.contract.places import GADGETS, WIDGETS, Place


class WidgetSpec(View, frozen=True):
    color: str = ""
    size: int = 0


class Widget(View, frozen=True):
    metadata: Metadata
    spec: WidgetSpec = WidgetSpec()


def widget(name: str, /, **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": spec}


async def test_what_is_created_is_read_back_with_uid_version_and_first_generation(place: Place) -> None:
    made = await place.cluster.create(WIDGETS, widget("a", color="red"), place.namespace)
    read = await place.cluster.get(WIDGETS, "a", place.namespace)
    assert read["metadata"]["uid"] == made["metadata"]["uid"] != ""
    assert read["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    assert read["metadata"]["generation"] == 1
    assert (read["apiVersion"], read["kind"], read["spec"]) == ("contract.example.com/v1", "Widget", {"color": "red"})


async def test_an_answer_is_decoded_into_the_type_that_is_asked_for(place: Place) -> None:
    made = await place.cluster.create(WIDGETS, widget("a", color="red", size=3), place.namespace, type=Widget)
    assert (made.spec.color, made.spec.size, made.metadata.key) == ("red", 3, f"{place.namespace}/a")
    listing = await place.cluster.list(WIDGETS, place.namespace, type=Widget)
    assert [item.metadata.name for item in listing.items] == ["a"]
    assert listing.resource_version != ""


async def test_of_an_object_the_metadata_alone_may_be_read(place: Place) -> None:
    made = await place.cluster.create(WIDGETS, widget("a", color="red"), place.namespace)
    read = await place.cluster.get(WIDGETS, "a", place.namespace, metadata_only=True)
    assert read["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    assert "spec" not in read


async def test_what_the_servers_cache_has_is_read_as_what_is_stored_once_it_has_come(place: Place) -> None:
    made = await place.cluster.create(WIDGETS, widget("a", color="red"), place.namespace)

    found: dict[str, Any] = {}
    async with asyncio.timeout(60):
        while found != made:  # the cache may be behind
            with suppress(NotFound):
                found = await place.cluster.get(WIDGETS, "a", place.namespace, cached=True)
            await asyncio.sleep(0.02)
    with pytest.raises(NotFound):
        await place.cluster.get(WIDGETS, "none", place.namespace, cached=True)


async def test_a_name_is_taken_once(place: Place) -> None:
    await place.cluster.create(WIDGETS, widget("a"), place.namespace)
    with pytest.raises(AlreadyExists, match="already exists"):
        await place.cluster.create(WIDGETS, widget("a"), place.namespace)


async def test_what_is_not_there_is_not_found_by_any_verb(place: Place) -> None:
    cluster, namespace = place.cluster, place.namespace
    with pytest.raises(NotFound, match="not found"):
        await cluster.get(WIDGETS, "none", namespace)
    with pytest.raises(NotFound):
        await cluster.patch(WIDGETS, "none", {"spec": {}}, namespace)
    with pytest.raises(NotFound):
        await cluster.delete(WIDGETS, "none", namespace)


async def test_a_dry_run_leaves_nothing(place: Place) -> None:
    made = await place.cluster.create(WIDGETS, widget("a"), place.namespace, dry_run=True)
    assert made["metadata"]["name"] == "a"
    with pytest.raises(NotFound):
        await place.cluster.get(WIDGETS, "a", place.namespace)


async def test_a_generated_name_begins_as_asked(place: Place) -> None:
    made = await place.cluster.create(WIDGETS, {"metadata": {"generateName": "job-"}}, place.namespace)
    assert made["metadata"]["name"].startswith("job-")
    assert len(made["metadata"]["name"]) > len("job-")


async def test_a_create_without_a_name_is_rejected(place: Place) -> None:
    with pytest.raises(Rejected):
        await place.cluster.create(WIDGETS, {"metadata": {}}, place.namespace)


async def test_a_replace_from_an_old_version_is_stale_and_changes_nothing(place: Place) -> None:
    old = await place.cluster.create(WIDGETS, widget("a", size=1), place.namespace)
    await place.cluster.replace(WIDGETS, "a", {**old, "spec": {"size": 2}}, place.namespace)
    with pytest.raises(Stale, match="modified"):
        await place.cluster.replace(WIDGETS, "a", {**old, "spec": {"size": 3}}, place.namespace)
    assert (await place.cluster.get(WIDGETS, "a", place.namespace))["spec"] == {"size": 2}


async def test_a_replace_of_a_custom_object_without_a_version_is_rejected(place: Place) -> None:
    await place.cluster.create(WIDGETS, widget("a"), place.namespace)
    with pytest.raises(Rejected, match="must be specified for an update"):
        await place.cluster.replace(WIDGETS, "a", widget("a", size=1), place.namespace)


async def test_a_merge_patch_with_an_old_version_is_stale_and_without_one_it_is_not(place: Place) -> None:
    old = await place.cluster.create(WIDGETS, widget("a", size=1, color="red"), place.namespace)
    await place.cluster.patch(WIDGETS, "a", {"spec": {"size": 2, "color": None}}, place.namespace)
    change = {"metadata": {"resourceVersion": old["metadata"]["resourceVersion"]}, "spec": {"size": 3}}
    with pytest.raises(Stale):
        await place.cluster.patch(WIDGETS, "a", change, place.namespace)
    assert (await place.cluster.get(WIDGETS, "a", place.namespace))["spec"] == {"size": 2}


async def test_a_patch_that_names_another_uid_is_refused(place: Place) -> None:
    await place.cluster.create(WIDGETS, widget("a"), place.namespace)
    change = {"metadata": {"uid": "00000000-0000-4000-8000-000000000000"}, "spec": {"size": 3}}
    with pytest.raises(Rejected, match="immutable") as refused:
        await place.cluster.patch(WIDGETS, "a", change, place.namespace)
    assert refused.value.fields == ("metadata.uid",)


async def test_a_json_patch_changes_its_place_and_a_failed_test_is_rejected(place: Place) -> None:
    await place.cluster.create(WIDGETS, widget("a", size=1), place.namespace)
    wrong = [{"op": "test", "path": "/spec/size", "value": 9}]
    with pytest.raises(Rejected):
        await place.cluster.patch(WIDGETS, "a", wrong, place.namespace, kind=PatchKind.JSON)
    fine: list[dict[str, Any]] = [
        {"op": "test", "path": "/spec/size", "value": 1},
        {"op": "add", "path": "/metadata/labels", "value": {"x": "y"}},
    ]
    made = await place.cluster.patch(WIDGETS, "a", fine, place.namespace, kind=PatchKind.JSON)
    assert made["metadata"]["labels"] == {"x": "y"}


async def test_an_apply_creates_then_merges(place: Place) -> None:
    for size in (1, 2):
        made = await place.cluster.patch(
            WIDGETS, "a", widget("a", size=size), place.namespace, kind=PatchKind.APPLY, manager="contract", force=True
        )
        assert made["spec"]["size"] == size


async def test_an_apply_without_a_manager_is_rejected_before_it_is_sent() -> None:
    with pytest.raises(Rejected, match="manager"):
        requests.patch(WIDGETS, "a", {}, "n", subresource="", kind=PatchKind.APPLY, manager="", force=False)


async def test_a_write_that_changes_nothing_makes_no_new_version(place: Place) -> None:
    old = await place.cluster.create(WIDGETS, widget("a", size=1), place.namespace)
    new = await place.cluster.patch(WIDGETS, "a", {"spec": {"size": 1}}, place.namespace)
    assert new["metadata"]["resourceVersion"] == old["metadata"]["resourceVersion"]


async def test_the_generation_counts_changes_of_the_spec_only(place: Place) -> None:
    await place.cluster.create(WIDGETS, widget("a", size=1), place.namespace)
    assert await _generation(place, {"metadata": {"labels": {"x": "y"}}}) == 1
    assert await _generation(place, {"status": {"phase": "Running"}}, subresource="status") == 1
    assert await _generation(place, {"spec": {"size": 2}}) == 2


async def _generation(place: Place, change: dict[str, Any], subresource: str = "") -> int:
    made = await place.cluster.patch(WIDGETS, "a", change, place.namespace, subresource=subresource)
    generation: int = made["metadata"]["generation"]
    return generation


async def test_status_and_spec_are_written_apart(place: Place) -> None:
    made = await place.cluster.create(WIDGETS, {**widget("a", size=1), "status": {"phase": "Wrong"}}, place.namespace)
    assert "status" not in made
    both = {"spec": {"size": 2}, "status": {"phase": "Running"}}
    assert "status" not in await place.cluster.patch(WIDGETS, "a", both, place.namespace)
    both["spec"] = {"size": 3}
    made = await place.cluster.patch(WIDGETS, "a", both, place.namespace, subresource="status")
    assert (made["spec"], made["status"]) == ({"size": 2}, {"phase": "Running"})
    replaced = await place.cluster.replace(WIDGETS, "a", {**made, "status": {"phase": "Done"}}, place.namespace, subresource="status")
    assert (replaced["spec"], replaced["status"]) == ({"size": 2}, {"phase": "Done"})


async def test_a_kind_without_a_status_subresource_has_none(place: Place) -> None:
    await place.cluster.create(GADGETS, widget(place.namespace))
    with pytest.raises(NotFound):
        await place.cluster.patch(GADGETS, place.namespace, {"status": {}}, subresource="status")


async def test_a_finalizer_holds_a_deleted_object_until_it_is_removed(place: Place) -> None:
    cluster, namespace = place.cluster, place.namespace
    await cluster.create(WIDGETS, {"metadata": {"name": "a", "finalizers": ["contract.example.com/hold"]}}, namespace)
    await cluster.delete(WIDGETS, "a", namespace)
    held = await cluster.get(WIDGETS, "a", namespace)
    assert held["metadata"]["deletionTimestamp"]
    assert held["metadata"]["generation"] == 2
    await cluster.patch(WIDGETS, "a", {"metadata": {"finalizers": None}}, namespace)
    with pytest.raises(NotFound):
        await cluster.get(WIDGETS, "a", namespace)


async def test_a_delete_with_preconditions_takes_only_that_object(place: Place) -> None:
    cluster, namespace = place.cluster, place.namespace
    made = await cluster.create(WIDGETS, widget("a"), namespace)
    uid, version = made["metadata"]["uid"], made["metadata"]["resourceVersion"]
    with pytest.raises(Stale):
        await cluster.delete(WIDGETS, "a", namespace, uid="00000000-0000-4000-8000-000000000000")
    await cluster.patch(WIDGETS, "a", {"spec": {"size": 1}}, namespace)
    with pytest.raises(Stale):
        await cluster.delete(WIDGETS, "a", namespace, uid=uid, resource_version=version)
    await cluster.delete(WIDGETS, "a", namespace, uid=uid)
    with pytest.raises(NotFound):
        await cluster.get(WIDGETS, "a", namespace)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("color=red", ["a", "b"]),
        ("color!=red", ["c", "d"]),
        ("color in (red, blue)", ["a", "b", "c"]),
        ("color notin (red)", ["c", "d"]),
        ("size", ["b"]),
        ("!color", ["d"]),
        ("color=red,!size", ["a"]),
    ],
)
async def test_a_list_takes_label_selectors(place: Place, labels: str, expected: list[str]) -> None:
    given = {"a": {"color": "red"}, "b": {"color": "red", "size": "1"}, "c": {"color": "blue"}, "d": {}}
    for name, own in given.items():
        await place.cluster.create(WIDGETS, {"metadata": {"name": name, "labels": own}}, place.namespace)
    listing = await place.cluster.list(WIDGETS, place.namespace, labels=labels)
    assert [item["metadata"]["name"] for item in listing.items] == expected


@pytest.mark.parametrize(("fields", "expected"), [("metadata.name=b", ["b"]), ("spec.color=red", ["a"]), ("spec.color!=red", ["b"])])
async def test_a_list_takes_field_selectors(place: Place, fields: str, expected: list[str]) -> None:
    for name, color in (("a", "red"), ("b", "blue")):
        await place.cluster.create(WIDGETS, widget(name, color=color), place.namespace)
    listing = await place.cluster.list(WIDGETS, place.namespace, fields=fields)
    assert [item["metadata"]["name"] for item in listing.items] == expected


async def test_a_cluster_kind_needs_no_namespace(place: Place) -> None:
    name = f"gadget-{place.namespace}"
    await place.cluster.create(GADGETS, widget(name, size=1))
    assert (await place.cluster.get(GADGETS, name, type=Widget)).metadata.key == name


async def test_a_core_kind_may_be_replaced_without_a_version_and_a_lease_may_not(place: Place) -> None:
    await place.cluster.create(CONFIG_MAPS, {"metadata": {"name": "m"}, "data": {"a": "1"}}, place.namespace)
    made = await place.cluster.replace(CONFIG_MAPS, "m", {"metadata": {"name": "m"}, "data": {"a": "2"}}, place.namespace)
    assert made["data"] == {"a": "2"}
    lease = {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a", "leaseDurationSeconds": 5}}
    await place.cluster.create(LEASES, lease, place.namespace)
    with pytest.raises(Rejected, match="must be specified"):
        await place.cluster.replace(LEASES, "l", lease, place.namespace, type=Lease)


@pytest.mark.parametrize("name", ["a/b", "..", "a%2fb"])
async def test_a_name_that_leaves_its_place_in_the_path_is_never_sent(name: str) -> None:
    with pytest.raises(Rejected, match="cannot be the name"):
        requests.get(WIDGETS, name, "n")


# Watches


async def read(cluster: Cluster, resource: Resource, namespace: str, count: int, **how: Any) -> list[WatchEvent[dict[str, Any]]]:
    """The next events of a watch."""
    events: list[WatchEvent[dict[str, Any]]] = []
    async with asyncio.timeout(20), aclosing(cluster.watch(resource, namespace, **how)) as stream:
        async for event in stream:
            events.append(event)
            if len(events) == count:
                break
    return events


def told(events: list[WatchEvent[dict[str, Any]]]) -> list[tuple[str, str]]:
    return [(event.kind.value, event.object["metadata"]["name"] if event.object else "") for event in events]


async def test_a_watch_tells_every_change_since_a_version_in_order(place: Place) -> None:
    cluster, namespace = place.cluster, place.namespace
    await cluster.create(WIDGETS, widget("before"), namespace)
    version = (await cluster.list(WIDGETS, namespace)).resource_version
    await cluster.create(WIDGETS, widget("a"), namespace)
    await cluster.patch(WIDGETS, "a", {"spec": {"size": 1}}, namespace)
    await cluster.delete(WIDGETS, "a", namespace)
    events = await read(cluster, WIDGETS, namespace, 3, resource_version=version)
    assert told(events) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
    versions = [int(event.resource_version) for event in events]
    assert versions == sorted(versions)
    assert versions[0] > int(version)


async def test_initial_events_tell_what_exists_then_mark_their_end(place: Place) -> None:
    for name in ("a", "b"):
        await place.cluster.create(WIDGETS, widget(name), place.namespace)
    events = await read(place.cluster, WIDGETS, place.namespace, 3, initial_events=True)
    assert sorted(told(events)[:2]) == [("ADDED", "a"), ("ADDED", "b")]
    assert (events[2].kind, events[2].initial_end, events[2].object) == (EventKind.BOOKMARK, True, None)
    assert int(events[2].resource_version) >= max(int(event.resource_version) for event in events[:2])


async def test_an_object_that_leaves_the_selection_of_a_watch_is_told_as_deleted(place: Place) -> None:
    cluster, namespace = place.cluster, place.namespace
    version = (await cluster.list(WIDGETS, namespace)).resource_version
    await cluster.create(WIDGETS, widget("a", color="red"), namespace)
    await cluster.create(WIDGETS, widget("b", color="blue"), namespace)
    await cluster.patch(WIDGETS, "a", {"spec": {"color": "blue"}}, namespace)
    await cluster.patch(WIDGETS, "b", {"spec": {"color": "red"}}, namespace)
    events = await read(cluster, WIDGETS, namespace, 3, resource_version=version, fields="spec.color=red")
    assert told(events) == [("ADDED", "a"), ("DELETED", "a"), ("ADDED", "b")]


async def test_a_watch_of_one_name_tells_only_of_it(place: Place) -> None:
    cluster, namespace = place.cluster, place.namespace
    version = (await cluster.list(WIDGETS, namespace)).resource_version
    for name in ("a", "b"):
        await cluster.create(WIDGETS, widget(name), namespace)
    events = await read(cluster, WIDGETS, namespace, 1, resource_version=version, fields="metadata.name=b")
    assert told(events) == [("ADDED", "b")]


async def test_a_finalized_deletion_is_told_as_a_change_then_as_a_deletion(place: Place) -> None:
    cluster, namespace = place.cluster, place.namespace
    made = await cluster.create(WIDGETS, {"metadata": {"name": "a", "finalizers": ["contract.example.com/hold"]}}, namespace)
    await cluster.delete(WIDGETS, "a", namespace)
    await cluster.patch(WIDGETS, "a", {"metadata": {"finalizers": None}}, namespace)
    events = await read(cluster, WIDGETS, namespace, 2, resource_version=made["metadata"]["resourceVersion"])
    assert told(events) == [("MODIFIED", "a"), ("DELETED", "a")]


async def test_a_watch_from_a_forgotten_version_is_expired(place: Place) -> None:
    await place.cluster.create(WIDGETS, widget("a"), place.namespace)
    if hasattr(place.cluster, "compact"):
        place.cluster.compact()
    with pytest.raises(Expired):
        await read(place.cluster, WIDGETS, place.namespace, 1, resource_version="1")
