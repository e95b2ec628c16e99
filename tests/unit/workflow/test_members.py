"""The Allocation of a member: the defaults beside what it says itself, and what may not stand in it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lattice.errors import Rejected
from lattice.views import Metadata
from lattice.views.dag import Dag
from lattice.workflow.members import check_specs, is_ours, member_object, member_of, merged


def dag(*members: dict[str, Any], **spec: Any) -> Dag:
    meta = {"name": "pipeline", "namespace": "physics", "uid": "u-1"}
    return msgspec.convert({"metadata": meta, "spec": {"tenant": "physics", "user": "alice", "members": list(members), **spec}}, Dag)


def test_maps_are_merged_and_any_other_value_of_the_member_wins() -> None:
    defaults = {"vcluster": "hpc", "environment": {"variables": {"A": "1", "B": "1"}, "workdir": "/d"}, "resources": {"nodes": 2}}
    given = {"environment": {"variables": {"B": "2"}}, "resources": {"nodes": 4}, "entrypoint": "true"}
    assert merged(defaults, given) == {
        "vcluster": "hpc", "environment": {"variables": {"A": "1", "B": "2"}, "workdir": "/d"}, "resources": {"nodes": 4},
        "entrypoint": "true",
    }  # fmt: skip
    assert defaults["resources"] == {"nodes": 2}


@pytest.mark.parametrize(
    ("defaults", "given", "whole"),
    [
        ({"script": "#!/bin/sh\n"}, {"entrypoint": "true"}, {"entrypoint": "true"}),
        ({"entrypoint": "true"}, {"script": "#!/bin/sh\n"}, {"script": "#!/bin/sh\n"}),
        (
            {"environment": {"uenv": "a", "workdir": "/d"}},
            {"environment": {"image": "b"}},
            {"environment": {"image": "b", "workdir": "/d"}},
        ),
    ],
)
def test_of_fields_that_exclude_each_other_the_members_own_stands_alone(defaults: Any, given: Any, whole: Any) -> None:
    assert merged(defaults, given) == whole


def test_a_member_names_its_dag_its_edges_and_what_it_was_made_from() -> None:
    one = dag({"name": "prep"}, {"name": "train", "dependsOn": [{"ref": "prep", "condition": "Any", "delay": "5s"}], "onUnmet": "Hold"})
    made = member_object(one, one.spec.members[1])
    assert made["metadata"]["name"] == "pipeline.train"
    assert made["spec"]["dependsOn"] == [{"ref": "pipeline.prep", "condition": "Any", "delay": "5s"}]
    assert (made["spec"]["onUnmet"], made["spec"]["user"], made["spec"]["tenant"]) == ("Hold", "alice", "physics")
    metadata = msgspec.convert(made["metadata"], Metadata)
    assert member_of(metadata) == ("u-1", "train")
    assert is_ours(metadata, made)
    other = member_object(dag({"name": "prep"}, {"name": "train", "spec": {"entrypoint": "false"}}), one.spec.members[0])
    assert not is_ours(metadata, other)
    assert member_of(Metadata(name="pipeline.train")) is None


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a user": ({"user": "bob"}, {}, "spec.members[0].spec.user"),
    "a tenant": ({"tenant": "other"}, {}, "spec.members[0].spec.tenant"),
    "edges in the spec": ({"dependsOn": []}, {}, "spec.members[0].spec.dependsOn"),
    "a cancel": ({"cancel": {}}, {}, "spec.members[0].spec.cancel"),
    "a leaf": ({"quota": "a/b"}, {}, "spec.members[0].spec.quota"),
    "a hold": ({"hold": True}, {}, "spec.members[0].spec.hold"),
    "a secret of its own": ({"environment": {"variablesFrom": [{"secretRef": "s"}]}}, {}, "spec.members[0].spec.environment.variablesFrom"),
    "a user in the defaults": ({}, {"user": "bob"}, "spec.defaults.user"),
}


@pytest.mark.parametrize(("spec", "defaults", "field"), WRONG.values(), ids=WRONG.keys())
def test_what_a_member_has_from_its_dag_it_does_not_name(spec: dict[str, Any], defaults: dict[str, Any], field: str) -> None:
    with pytest.raises(Rejected) as refused:
        check_specs(dag({"name": "a", "spec": spec}, defaults=defaults))
    assert refused.value.fields == (field,)
    check_specs(dag({"name": "a", "spec": {"entrypoint": "true", "hold": False}}))
