"""Tenants, vclusters, options and nodes: what an administrator is told."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from lattice.admission import Facts, Request, Verdict, fill, judge
from lattice.admission import chain as chain_module
from lattice.admission.patches import difference
from lattice.admission.reasons import REFUSAL_WORDS, REFUSALS
from lattice.admission.strict import parse_strict
from lattice.quota import checks
from lattice.software import references
from lattice.workflow import dags, members
from lattice_webhooks import reviews
from tests.unit.admission.builders import accepted, allocation, facts, refused, tenant, vcluster

SITE = facts(
    tenants=(
        tenant(defaultVCluster="hpc-batch", accountNames=["six@v100", "nvr"]),
        tenant("chemistry", namespaces=["chem", "chem-dev"], defaultVCluster="ml"),
    ),
    vclusters=(vcluster(partitionNames=["normal"], nodes={"selector": {"group": ["g0", "g1"]}}), vcluster("ml", tenants=["chemistry"])),
)


def make(kind: str, name: str, known: Facts = SITE, **spec: Any) -> Verdict:
    return judge(Request(kind, "CREATE", {"kind": kind, "metadata": {"name": name}, "spec": spec}, {}), known)


@pytest.mark.parametrize(
    ("kind", "name", "spec", "reason", "sentence"),
    [
        pytest.param("Tenant", "bio", {"namespaces": ["chem-dev"]}, "NamespaceTaken", 'belongs to tenant "chemistry"', id="namespace"),
        pytest.param("Tenant", "bio", {"namespaces": ["physics"]}, "NamespaceTaken", 'tenant "physics"', id="default namespace"),
        pytest.param("Tenant", "bio", {"namespaces": ["kube-system"]}, "NamespaceReserved", "kube-system", id="system namespace"),
        pytest.param("Tenant", "bio", {"access": {"groups": ["system:unauthenticated"]}}, "AccessInvalid", "groups", id="anybody"),
        pytest.param("Tenant", "bio", {"quota": {"maxNodes": -1}}, "OptionInvalid", "maxNodes is -1", id="quota"),
        pytest.param("Tenant", "bio", {"quota": {"perUser": {"maxRunning": -1}}}, "OptionInvalid", "perUser.maxRunning is -1", id="user"),
        pytest.param("Tenant", "bio", {"quota": {"maxPreemptionClass": 11}}, "ClassInvalid", "11", id="class"),
        pytest.param("Tenant", "bio", {"quota": {"maxNodes": "many"}}, "Malformed", "spec.quota.maxNodes", id="type"),
        pytest.param("Tenant", "bio", {"finishedRetention": "ever"}, "DurationInvalid", "finishedRetention", id="retention"),
        pytest.param("Tenant", "bio", {"accountNames": ["chemistry"]}, "AccountTaken", 'means tenant "chemistry"', id="account is a name"),
        pytest.param("Tenant", "bio", {"accountNames": ["six@v100"]}, "AccountTaken", 'account "six@v100" already', id="account"),
        pytest.param("Tenant", "nvr", {}, "AccountTaken", '"nvr" is already an account', id="name is an account"),
        pytest.param("Tenant", "bio", {"accountNames": ["a,b"]}, "AccountInvalid", "has 'a,b'", id="accounts in one"),
        pytest.param("VCluster", "new", {"partitionNames": ["normal"]}, "PartitionTaken", 'means vCluster "hpc-batch"', id="partition"),
        pytest.param("VCluster", "new", {"partitionNames": ["ml"]}, "PartitionTaken", 'means vCluster "ml"', id="partition is a name"),
        pytest.param("VCluster", "normal", {}, "PartitionTaken", "already a partition name", id="name is a partition"),
        pytest.param("VCluster", "new", {"nodes": {"selector": {"group": ["g1"]}}}, "GroupTaken", 'group "g1" is at home', id="group"),
        pytest.param(
            "VCluster",
            "new",
            {"defaults": {"walltime": "2h"}, "limits": {"maxWalltime": "1h"}},
            "OptionInvalid",
            "limit: 1h",
            id="walltimes",
        ),
        pytest.param("VCluster", "new", {"limits": {"maxWalltime": "0s"}}, "DurationInvalid", "above 0", id="limit 0"),
        pytest.param(
            "VCluster", "new", {"limits": {"maxRunningPerUser": 0}}, "OptionInvalid", "maxRunningPerUser is 0", id="limit of a user"
        ),
        pytest.param("VCluster", "new", {"weights": {"priority": "-200m"}}, "WeightsInvalid", "priority is -200m, and a", id="negative"),
        pytest.param(
            "VCluster", "new", {"weights": {"waitTime": -1}}, "WeightsInvalid", "spec.weights.waitTime is -1", id="negative number"
        ),
        pytest.param("VCluster", "new", {"weights": {"energy": "some"}}, "WeightsInvalid", "spec.weights.energy: 'some'", id="no quantity"),
        pytest.param("VCluster", "new", {"weights": {"energy": 0, "backlog": "0m"}}, "WeightsInvalid", "all 0", id="all 0"),
        pytest.param("VCluster", "new", {"weights": {}}, "WeightsInvalid", "all 0", id="no weights"),
        pytest.param(
            "VCluster", "new", {"profile": "Service", "weights": {"energy": 1}}, "WeightsInvalid", "both given", id="profile and weights"
        ),
        pytest.param("VCluster", "new", {"cycle": {"interval": "0s"}}, "OptionInvalid", "cycle.interval is 0s", id="cycle"),
        pytest.param("VCluster", "new", {"cycle": {"interval": "soon"}}, "DurationInvalid", "spec.cycle.interval", id="cycle's text"),
        pytest.param("VCluster", "new", {"limits": {"maxPreemptionClass": 11}}, "OptionInvalid", "limits: 0 to 10", id="class"),
        pytest.param("VCluster", "new", {"limits": {"maxPending": 0}}, "OptionInvalid", "maxPending is 0", id="limit of all"),
        pytest.param("VCluster", "new", {"cycle": {"depth": 1001}}, "OptionInvalid", "limits: 0 to 1000", id="depth"),
        pytest.param("VCluster", "new", {"borrowing": {"priority": 11}}, "OptionInvalid", "limits: 0 to 10", id="borrowing"),
        pytest.param("VCluster", "new", {"borrowing": {"maxBorrowed": -1}}, "OptionInvalid", "maxBorrowed is -1", id="borrowed"),
        pytest.param("VCluster", "new", {"borrowing": {"returnGrace": "2d"}}, "OptionInvalid", "limits: 0s to 1d", id="grace"),
        pytest.param("VCluster", "new", {"preemption": {"minRuntime": "x"}}, "DurationInvalid", "preemption.minRuntime", id="runtime"),
        pytest.param("Tenant", "bio", {"budget": {"gpuHours": -1}}, "BudgetInvalid", "gpuHours is -1", id="hours"),
        pytest.param("Tenant", "bio", {"budget": {"periodDays": 0}}, "BudgetInvalid", "periodDays is 0", id="period"),
        pytest.param(
            "Tenant", "bio", {"budget": {"fairShareTarget": "1500m"}}, "BudgetInvalid", "is 1500m, and the whole is 1", id="share"
        ),
        pytest.param("Tenant", "bio", {"budget": {"burstAllowance": "500m"}}, "BudgetInvalid", "burstAllowance is 500m", id="burst"),
        pytest.param("Tenant", "bio", {"budget": {"fairShareTarget": "x"}}, "QuantityInvalid", "fairShareTarget", id="share's text"),
        pytest.param("LatticeConfig", "lattice", {"scheduling": {"victims": 0}}, "OptionInvalid", "limits: 1 to 16", id="victims"),
        pytest.param("LatticeConfig", "lattice", {"scheduling": {"energyPrice": 2}}, "OptionInvalid", "energyPrice is 2", id="price"),
        pytest.param(
            "LatticeConfig", "lattice", {"scheduling": {"recording": {"maxSize": "1Ki"}}}, "OptionInvalid", "at least: 1048576", id="size"
        ),
        pytest.param(
            "LatticeConfig", "lattice", {"scheduling": {"recording": {"maxSize": "big"}}}, "QuantityInvalid", "maxSize", id="no size"
        ),
        pytest.param(
            "LatticeConfig", "lattice", {"scheduling": {"recording": {"maxAge": "1s"}}}, "OptionInvalid", "maxAge is 1s", id="age"
        ),
        pytest.param("LatticeConfig", "lattice", {"scheduling": {"energyPriceUntil": "x"}}, "TimeInvalid", "energyPriceUntil", id="until"),
        pytest.param(
            "LatticeConfig", "lattice", {"scheduling": {"referenceWait": "0s"}}, "OptionInvalid", "referenceWait is 0s", id="wait"
        ),
        pytest.param(
            "LatticeConfig",
            "lattice",
            {"nodes": {"heartbeatTimeout": "10s"}},
            "OptionInvalid",
            "(timeout: 10s, interval: 10s)",
            id="timeout",
        ),
        pytest.param("LatticeConfig", "lattice", {"nodes": {"heartbeatInterval": "0s"}}, "OptionInvalid", "limits: 1s", id="interval 0"),
        pytest.param("LatticeConfig", "lattice", {"nodes": {"bootTimeout": "5s"}}, "OptionInvalid", "bootTimeout", id="boot"),
        pytest.param("LatticeConfig", "lattice", {"work": {"minUid": 0}}, "OptionInvalid", "root never", id="root"),
        pytest.param("LatticeConfig", "lattice", {"work": {"userPrefixes": ["system:"]}}, "OptionInvalid", "'system:'", id="prefix"),
        pytest.param("LatticeConfig", "lattice", {"work": {"logBytes": "1Ki"}}, "OptionInvalid", "65536", id="log bytes"),
        pytest.param("LatticeConfig", "lattice", {"compat": {"qosMapping": {"high": 12}}}, "ClassInvalid", "'high'", id="qos"),
        pytest.param("LatticeNode", "n1", {"drain": {"reason": "  "}}, "ReasonRequired", "spec.drain has no reason", id="drain"),
        pytest.param("LatticeNode", "n1", {"disable": {}}, "ReasonRequired", "spec.disable has no reason", id="disable"),
    ],
)
def test_a_bad_object_is_refused(kind: str, name: str, spec: dict[str, Any], reason: str, sentence: str) -> None:
    verdict = refused(make(kind, name, **spec))
    assert verdict.reason == reason
    assert sentence in verdict.sentence


@pytest.mark.parametrize(
    ("kind", "name", "spec"),
    [
        ("Tenant", "bio", {"namespaces": ["bio", "bio-dev"], "access": {"users": ["oidc:eve"]}, "quota": {"maxNodes": 5}}),
        ("VCluster", "new", {"partitionNames": ["long"], "nodes": {"selector": {"group": ["g2"]}}, "limits": {"maxWalltime": "7d"}}),
        (
            "VCluster",
            "new",
            {"policy": "BinPack", "weights": {"priority": "200m", "waitTime": "0.8"}, "cycle": {"interval": "5s", "depth": 0}},
        ),
        ("VCluster", "new", {"profile": "Service", "borrowing": {"borrow": True, "maxBorrowed": 4, "maxDuration": "2h"}}),
        ("Tenant", "bio", {"budget": {"gpuHours": 100, "fairShareTarget": "150m", "burstAllowance": "1500m"}}),
        ("LatticeConfig", "lattice", {"scheduling": {"energyPrice": "300m", "energyPriceUntil": "2026-12-01T08:00:00Z"}}),
        ("LatticeConfig", "lattice", {"scheduling": {"recording": {"enabled": True, "maxSize": "1Gi", "maxAge": "3d"}}}),
        ("LatticeConfig", "lattice", {}),
        ("LatticeNode", "n1", {"drain": {"reason": "dimm"}}),
        ("Ledger", "lattice", {"anything": 1}),
    ],
)
def test_a_sound_object_is_accepted_without_a_word(kind: str, name: str, spec: dict[str, Any]) -> None:
    assert accepted(make(kind, name, **spec)).warnings == ()


@pytest.mark.parametrize(
    ("kind", "spec", "warning"),
    [
        ("Tenant", {"quota": {"maxNodes": 0}}, "paused"),
        ("Tenant", {"quota": {"perUser": {"maxPending": 0}}}, "nothing is accepted"),
        ("Tenant", {"defaultVCluster": "later"}, "does not exist yet"),
        ("Tenant", {"defaultVCluster": "ml"}, "does not list tenant"),
        ("Tenant", {"access": {"groups": ["system:authenticated"]}}, "everybody"),
        ("VCluster", {"tenants": ["biology"]}, "do not exist yet"),
        ("VCluster", {"weights": {"priority": "200m", "waitTime": "1.1"}}, "sum to 1.3: each is divided by 1.3"),
        ("VCluster", {"borrowing": {"lend": True}}, "no node is at home here"),
        ("VCluster", {"borrowing": {"maxBorrowed": 3}}, "nothing is borrowed"),
    ],
)
def test_what_an_administrator_should_know_is_a_warning(kind: str, spec: dict[str, Any], warning: str) -> None:
    assert any(warning in text for text in accepted(make(kind, "bio", **spec)).warnings)


def test_a_vcluster_that_takes_nodes_from_others_says_how_many_are_left() -> None:
    known = facts(vclusters=(vcluster(), vcluster("ml", nodes={"selector": {"group": ["g9"]}})), groups={"g0": 3, "g1": 2, "g9": 7})
    taking = {"nodes": {"selector": {"group": ["g1"]}}}
    warnings = " ".join(accepted(make("VCluster", "fast", known, **taking)).warnings)
    assert "group g1 (2 nodes) is at home here from now on" in warnings
    assert "vCluster hpc-batch has no home groups" in warnings
    assert "keeps 3 of 5" in warnings
    lending = vcluster(borrowing={"borrow": True})
    lent = accepted(make("VCluster", "fast", facts(vclusters=(lending,), groups={"g1": 2}), **taking, borrowing={"lend": True})).warnings
    assert not any("at home here" in text for text in lent)


def test_a_home_group_without_nodes_is_named_once_with_the_groups_there_are() -> None:
    known = facts(vclusters=(vcluster(),), groups={"g0": 3, "g1": 2})
    empty = {"nodes": {"selector": {"group": ["g1", "nog"]}}}
    assert any("no node is in group nog (there are: g0, g1)" in text for text in accepted(make("VCluster", "new", known, **empty)).warnings)
    again = facts(vclusters=(vcluster(), vcluster("new", **empty)), groups={"g0": 3, "g1": 2})
    assert not any("no node is in" in text for text in accepted(make("VCluster", "new", again, **empty)).warnings)


def test_tenants_whose_only_vcluster_is_joined_by_another_one_are_named() -> None:
    known = facts(tenants=(tenant(), tenant("bio", defaultVCluster="hpc-batch"), tenant("closed")), vclusters=(vcluster(),))
    warnings = " ".join(accepted(make("VCluster", "fast", known, tenants=["physics", "bio"])).warnings)
    assert "their work that names none is refused: physics; set their spec.defaultVCluster" in warnings


def test_a_tenant_that_may_use_several_vclusters_without_a_default_is_warned_of() -> None:
    known = facts(vclusters=(vcluster(), vcluster("fast")))
    verdict = accepted(make("Tenant", "bio", known))
    assert any('tenant "bio" has no default vCluster and may use fast, hpc-batch' in text for text in verdict.warnings)
    assert accepted(make("Tenant", "bio", known, defaultVCluster="fast")).warnings == ()


def test_a_limit_below_the_use_is_accepted_with_the_numbers() -> None:
    obj = {"metadata": {"name": "bio"}, "spec": {"quota": {"maxNodes": 100}}, "status": {"use": {"usedNodes": 150}}}
    assert "100 and 150 are in use" in accepted(judge(Request("Tenant", "UPDATE", obj, {}), SITE)).warnings[0]


@pytest.mark.parametrize("kind", ["Tenant", "VCluster"])
def test_what_is_in_use_is_not_deleted(kind: str) -> None:
    request = Request(kind, "DELETE", {}, {"metadata": {"name": "x"}})
    assert "3 allocations" in refused(judge(request, facts(holders=3))).sentence
    accepted(judge(request, facts(holders=0)))


def test_every_reason_that_a_check_gives_is_documented() -> None:
    given: set[str] = set()
    rules = [Path(checks.__file__).parent / f"{name}.py" for name in ("amounts", "checks", "declared")]
    workflow = [Path(str(module.__file__)) for module in (references, dags, members)]
    for path in (*Path(chain_module.__file__).parent.glob("*.py"), *rules, Path(reviews.__file__), *workflow):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and getattr(node.func, "id", "") in ("Refused", "Wrong", "_wrong")
                and isinstance(node.args[0], ast.Constant)
            ):
                given.add(str(node.args[0].value))
            if isinstance(node, ast.keyword) and node.arg == "reason" and isinstance(node.value, ast.Constant):
                given.add(str(node.value.value))
    no_review_at_all, of_the_images = {"ReviewVersion", "ReviewMalformed"}, {"ViewUnknown"}
    assert given - no_review_at_all - of_the_images == REFUSAL_WORDS
    assert len(REFUSALS) == len(REFUSAL_WORDS)


def test_strict_reading_names_what_was_meant_and_what_is_not_served() -> None:
    obj = allocation(resources={"nods": 3}, lifecycle={"preemption_class": 2}, data={"output": "s3://x"}, sensitive=False)
    assert parse_strict("Allocation", obj) == [
        'spec.lifecycle.preemption_class is no field of spec.lifecycle: did you mean "preemptionClass"?',
        'spec.resources.nods is no field of spec.resources: did you mean "nodes"?',
        "spec.data.output is not served yet: data is not staged by this release; remove the field",
    ]
    assert parse_strict("Allocation", allocation(lifecycle={"preemptionClass": "2"})) == [
        "spec.lifecycle.preemptionClass: input should be a valid integer (given: '2')"
    ]
    assert parse_strict("Allocation", allocation()) == []
    assert "did you mean" in parse_strict("Alocation", {})[0]


def test_a_difference_is_the_smallest_patch_and_escapes_its_path() -> None:
    old = {"spec": {"a": 1, "gone": 2}, "metadata": {"labels": {"x/y": "1"}}}
    new = {"spec": {"a": 1, "b": True}, "metadata": {"labels": {"x/y": "2"}}}
    assert difference(old, new) == [
        {"op": "remove", "path": "/spec/gone"},
        {"op": "add", "path": "/spec/b", "value": True},
        {"op": "replace", "path": "/metadata/labels/x~1y", "value": "2"},
    ]


@pytest.mark.parametrize(("spec", "state"), [({}, "Open"), ({"state": "Closed"}, "Closed"), ({"state": None}, "Open")])
def test_a_vcluster_says_whether_it_is_open(spec: dict[str, Any], state: str) -> None:
    request = Request("VCluster", "CREATE", {"metadata": {"name": "x"}, "spec": spec}, {})
    assert fill(request, SITE).obj["spec"]["state"] == state
