"""Defaults: only what is absent is filled in."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lattice.admission import Facts, Request, Requester, fill
from lattice.admission.verdicts import Object
from tests.unit.admission.builders import accepted, allocation, facts, submit, tenant, vcluster


def spec_of(obj: Object) -> dict[str, Any]:
    spec: dict[str, Any] = obj["spec"]
    return spec


def test_a_bare_submission_gets_user_tenant_vcluster_walltime_and_finalizer() -> None:
    known = facts(vclusters=(vcluster(defaults={"walltime": "30m"}),))
    obj = allocation(lifecycle=None)
    filled = accepted(submit(obj, known)).obj
    assert spec_of(filled)["user"] == "alice"
    assert spec_of(filled)["tenant"] == "physics"
    assert spec_of(filled)["vcluster"] == "hpc-batch"
    assert spec_of(filled)["lifecycle"] == {"walltime": "30m"}
    assert filled["metadata"]["finalizers"] == ["lattice.dev/release"]


def test_work_that_names_a_leaf_is_labelled_for_the_policy_of_leaves_and_no_other_is() -> None:
    assert "labels" not in accepted(submit(allocation(), facts(vclusters=(vcluster(),)))).obj["metadata"]
    named = fill(Request.creation(allocation(quota="optics"), "physics"), facts(vclusters=(vcluster(),))).obj
    assert named["metadata"]["labels"] == {"lattice.dev/quota": "named"}
    labelled = allocation()
    labelled["metadata"]["labels"] = {"quota.scheduling.koordinator.sh/name": "optics"}
    found = fill(Request.creation(labelled, "physics"), facts(vclusters=(vcluster(),))).obj["metadata"]["labels"]
    assert found == {"lattice.dev/quota": "named", "quota.scheduling.koordinator.sh/name": "optics"}


def test_the_tenants_default_vcluster_comes_before_the_only_one() -> None:
    known = facts(tenants=(tenant(defaultVCluster="ml"),), vclusters=(vcluster(), vcluster("ml")))
    assert spec_of(accepted(submit(allocation(), known)).obj)["vcluster"] == "ml"


def test_the_only_vcluster_that_the_tenant_may_use_is_taken() -> None:
    known = facts(vclusters=(vcluster(tenants=["physics"]), vcluster("ml", tenants=["chemistry"])))
    assert spec_of(accepted(submit(allocation(), known)).obj)["vcluster"] == "hpc-batch"


def test_an_unbounded_allocation_gets_no_walltime() -> None:
    known = facts(vclusters=(vcluster(defaults={"walltime": "30m"}),))
    filled = accepted(submit(allocation(lifecycle={"type": "Unbounded", "walltime": None}), known)).obj
    assert spec_of(filled)["lifecycle"].get("walltime") is None


def test_a_tenants_highest_class_below_the_default_becomes_the_default() -> None:
    known = facts(tenants=(tenant(quota={"maxPreemptionClass": 3}),))
    assert spec_of(accepted(submit(allocation(), known)).obj)["lifecycle"]["preemptionClass"] == 3


def test_other_finalizers_are_kept() -> None:
    obj = allocation()
    obj["metadata"]["finalizers"] = ["example.org/x"]
    assert accepted(submit(obj)).obj["metadata"]["finalizers"] == ["example.org/x", "lattice.dev/release"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=4), children, max_size=3),
    max_leaves=8,
)
spec_keys = st.sampled_from(["user", "tenant", "vcluster", "lifecycle", "resources", "entrypoint", "tags"])


@given(spec=st.dictionaries(spec_keys, json_values, max_size=7) | json_values, drained=json_values)
def test_what_was_given_is_never_rewritten_and_no_input_breaks_the_filling(spec: object, drained: object) -> None:
    obj: Object = {"kind": "Allocation", "metadata": {"name": "x"}, "spec": spec}
    before = copy.deepcopy(obj)
    filled = fill(Request.creation(obj, "physics"), facts()).obj
    assert obj == before
    if isinstance(spec, dict):
        for key, value in spec.items():
            if value in (None, "") or isinstance(value, dict):
                continue
            assert filled["spec"][key] == value
    node: Object = {"kind": "LatticeNode", "metadata": {"name": "n"}, "spec": {"drain": drained}}
    fill(Request("LatticeNode", "UPDATE", node, {}), facts())


def test_filling_twice_changes_nothing_more() -> None:
    once = fill(Request.creation(allocation()), facts()).obj
    assert fill(Request.creation(once), facts()).obj == once


def test_a_drain_says_who_and_since_when_and_keeps_it() -> None:
    node: Object = {"kind": "LatticeNode", "metadata": {"name": "n1"}, "spec": {"drain": {"reason": "dimm"}}}
    known = Facts(requester=Requester("olga"), now=0.0)
    filled = fill(Request("LatticeNode", "UPDATE", node, {}), known).obj
    assert filled["spec"]["drain"] == {"reason": "dimm", "by": "olga", "since": "1970-01-01T00:00:00Z"}
    again = fill(Request("LatticeNode", "UPDATE", node, filled), Facts(requester=Requester("otto"), now=9e9)).obj
    assert again == filled


def test_an_empty_user_or_tenant_is_left_as_it_was_given() -> None:
    obj = allocation(user="", tenant="")
    filled = fill(Request.creation(obj, "physics"), facts()).obj
    assert (filled["spec"]["user"], filled["spec"]["tenant"]) == ("", "")
