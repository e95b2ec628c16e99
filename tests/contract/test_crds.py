"""The CRDs on a real API server: accepted and refused objects, each with the sentence that a person reads."""

from __future__ import annotations

from typing import Any

import pytest

from lattice.models.ledger import KINDS_WITHOUT_STATUS, MAX_NODES
from lattice_dev.generate.crds import KINDS
from tests.contract.crd_objects import API, TABLE, Collection, accepted, refused
from tests.servers import ApiServer, until

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.meta.kind))
def test_every_crd_is_established_and_structural(api_server: ApiServer, kind: Any) -> None:
    stands = accepted(api_server.request("GET", f"{CRDS}/{kind.meta.plural}.lattice.dev"))
    conditions = {entry["type"]: entry["status"] for entry in stands["status"]["conditions"]}
    assert conditions["Established"] == "True"
    assert conditions["NamesAccepted"] == "True"
    assert "NonStructuralSchema" not in conditions


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.meta.kind))
def test_every_kinds_table_has_its_columns(api_server: ApiServer, kind: Any) -> None:
    table = accepted(api_server.request("GET", f"{API}/{kind.meta.plural}", accept=TABLE))
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", *(column.name for column in kind.meta.columns)]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.meta.kind))
def test_short_names_categories_and_subresources_are_served(api_server: ApiServer, kind: Any) -> None:
    served = {entry["name"]: entry for entry in accepted(api_server.request("GET", API))["resources"]}
    stands = served[kind.meta.plural]
    assert stands["kind"] == kind.meta.kind
    assert stands["namespaced"] == kind.meta.namespaced
    assert stands["categories"] == ["lattice"]
    assert (f"{kind.meta.plural}/status" in served) == (kind.meta.kind not in KINDS_WITHOUT_STATUS)


OTHER_KINDS: dict[str, tuple[str, str, str, dict[str, Any], str]] = {
    "a tenant with limits": (
        "tenants",
        "Tenant",
        "t",
        {"spec": {"namespaces": ["a"], "quota": {"maxNodes": 0, "onExceeded": "Queue"}}},
        "",
    ),
    "a tenant with people": ("tenants", "Tenant", "t", {"spec": {"access": {"users": ["oidc:alice"], "groups": ["ml"]}}}, ""),
    "a negative limit": ("tenants", "Tenant", "t", {"spec": {"quota": {"maxNodes": -1}}}, "spec.quota.maxNodes"),
    "limits for each user": (
        "tenants",
        "Tenant",
        "t",
        {"spec": {"quota": {"perUser": {"maxNodes": 0, "maxRunning": 5, "maxPending": 100}}}},
        "",
    ),
    "a negative limit of users": ("tenants", "Tenant", "t", {"spec": {"quota": {"perUser": {"maxRunning": -1}}}}, "perUser.maxRunning"),
    "a budget": ("tenants", "Tenant", "t", {"spec": {"budget": {"gpuHours": 1, "fairShareTarget": "150m"}}}, ""),
    "a negative budget": ("tenants", "Tenant", "t", {"spec": {"budget": {"gpuHours": -1}}}, "spec.budget.gpuHours"),
    "budgets": (
        "tenants",
        "Tenant",
        "t",
        {
            "spec": {
                "budget": {
                    "onExhausted": "Queue",
                    "period": "Month",
                    "perUser": {"nodeHours": 1},
                    "projects": [{"name": "lhc", "gpuHours": 5}],
                }
            }
        },
        "",
    ),
    "an unknown end of a budget": ("tenants", "Tenant", "t", {"spec": {"budget": {"onExhausted": "Refuse"}}}, "Unsupported value"),
    "a project twice": ("tenants", "Tenant", "t", {"spec": {"budget": {"projects": [{"name": "a"}, {"name": "a"}]}}}, "Duplicate value"),
    "a usage record": ("usagerecords", "UsageRecord", "t-2026-11-1", {"spec": {"tenant": "t", "month": "2026-11", "part": 1}}, ""),
    "a usage record of another name": (
        "usagerecords",
        "UsageRecord",
        "t-2026-10",
        {"spec": {"tenant": "t", "month": "2026-11"}},
        "the name of a UsageRecord is TENANT-MONTH",
    ),
    "a usage record of no month": ("usagerecords", "UsageRecord", "t-2026-13", {"spec": {"tenant": "t", "month": "2026-13"}}, "spec.month"),
    "strict isolation": ("tenants", "Tenant", "t", {"spec": {"isolation": "Strict"}}, "spec.isolation Strict is not served yet"),
    "a vcluster": ("vclusters", "VCluster", "v", {"spec": {"nodes": {"selector": {"group": ["g0"]}}, "limits": {"maxWalltime": "7d"}}}, ""),
    "a policy": ("vclusters", "VCluster", "v", {"spec": {"policy": "Backfill", "cycle": {"interval": "5s", "depth": 0}}}, ""),
    "an unknown policy": ("vclusters", "VCluster", "v", {"spec": {"policy": "Lottery"}}, "Unsupported value"),
    "an unknown profile": ("vclusters", "VCluster", "v", {"spec": {"profile": "Fast"}}, "Unsupported value"),
    "weights": ("vclusters", "VCluster", "v", {"spec": {"weights": {"priority": "200m", "waitTime": "0.8"}}}, ""),
    "a negative weight": ("vclusters", "VCluster", "v", {"spec": {"weights": {"priority": "-200m"}}}, "spec.weights.priority"),
    "weights and a profile": ("vclusters", "VCluster", "v", {"spec": {"weights": {"energy": 1}, "profile": "Service"}}, "are both given"),
    "too much depth": ("vclusters", "VCluster", "v", {"spec": {"cycle": {"depth": 1001}}}, "spec.cycle.depth"),
    "lending": (
        "vclusters",
        "VCluster",
        "v",
        {"spec": {"borrowing": {"lend": True, "maxDuration": "2h"}, "limits": {"maxRunning": 3}}},
        "",
    ),
    "a vcluster that is ajar": ("vclusters", "VCluster", "v", {"spec": {"state": "Ajar"}}, "Unsupported value"),
    "the configuration": ("latticeconfigs", "LatticeConfig", "lattice", {"spec": {"work": {"logBytes": "1Mi", "minUid": 500}}}, ""),
    "a second configuration": (
        "latticeconfigs",
        "LatticeConfig",
        "other",
        {"spec": {}},
        "there is one LatticeConfig, and its name is lattice",
    ),
    "prefixes of issuers": ("latticeconfigs", "LatticeConfig", "lattice", {"spec": {"work": {"userPrefixes": ["oidc:"]}}}, ""),
    "a prefix with a space": ("latticeconfigs", "LatticeConfig", "lattice", {"spec": {"work": {"userPrefixes": ["a b:"]}}}, "userPrefixes"),
    "a drain that rings": ("latticenodes", "LatticeNode", "nid001", {"spec": {"drain": {"reason": "\x07"}}}, "spec.drain.reason"),
    "a user in colours": ("tenants", "Tenant", "t", {"spec": {"access": {"users": ["\x1b[31malice"]}}}, "spec.access.users"),
    "directories that containers show": (
        "latticeconfigs",
        "LatticeConfig",
        "lattice",
        {"spec": {"software": {"containerMounts": ["/scratch", "/etc/slurm", "/opt/site", "/run/munge", "/process"]}}},
        "",
    ),
    "kinds of devices": (
        "latticeconfigs",
        "LatticeConfig",
        "lattice",
        {"spec": {"software": {"containerDevices": ["nvidia.com/gpu", "a/b", "*"]}}},
        "",
    ),
    "a device in place of its kind": (
        "latticeconfigs",
        "LatticeConfig",
        "lattice",
        {"spec": {"software": {"containerDevices": ["nvidia.com/gpu=all"]}}},
        "spec.software.containerDevices[0]",
    ),
    **{
        f"a directory of the system in containers, {path}": (
            "latticeconfigs",
            "LatticeConfig",
            "lattice",
            {"spec": {"software": {"containerMounts": ["/scratch", path]}}},
            "spec.software.containerMounts names a directory of the system",
        )
        for path in ("/proc", "/sys/fs/cgroup", "/dev/", "/etc", "/usr")
    },
    "uid 0": ("latticeconfigs", "LatticeConfig", "lattice", {"spec": {"work": {"minUid": 0}}}, "spec.work.minUid"),
    "a node": ("latticenodes", "LatticeNode", "nid001", {"spec": {"group": "g0", "drain": {"reason": "disk"}}}, ""),
    "a drain without reason": ("latticenodes", "LatticeNode", "nid001", {"spec": {"drain": {"by": "me"}}}, "spec.drain.reason: Required"),
    "a node with a long name": ("latticenodes", "LatticeNode", "n" * 64, {"spec": {}}, "a node's name has at most 63 characters"),
    "a second ledger": ("ledgers", "Ledger", "other", {}, "there is one Ledger, and its name is lattice"),
    "a second node index": ("nodeindexes", "NodeIndex", "other", {"spec": {}}, "there is one NodeIndex, and its name is lattice"),
    "a plan": ("nodegroupplans", "NodeGroupPlan", "group-0000", {"spec": {"seq": 1, "text": "1\n"}}, ""),
    "a history": (
        "nodehistories",
        "NodeHistory",
        "nid001.0",
        {"spec": {"node": "nid001", "recovery": "a1", "rows": "1\n", "made": 1}},
        "",
    ),
    "a history of nobody": ("nodehistories", "NodeHistory", "nid002.0", {"spec": {"recovery": "a1", "rows": "1\n"}}, "spec.node: Required"),
    "a plan without seq": ("nodegroupplans", "NodeGroupPlan", "group-0000", {"spec": {"text": "1\n"}}, "spec.seq: Required"),
}


@pytest.mark.parametrize(("plural", "kind", "name", "parts", "sentence"), OTHER_KINDS.values(), ids=OTHER_KINDS.keys())
def test_the_other_kinds_accept_and_refuse(
    api_server: ApiServer, plural: str, kind: str, name: str, parts: dict[str, Any], sentence: str
) -> None:
    found = Collection(api_server, plural, kind)
    answer = found.create(name, **parts)
    found.drop(name)
    if sentence:
        refused(answer, sentence)
    else:
        assert accepted(answer)["spec"] == parts["spec"]


def test_the_largest_usage_record_is_still_only_appended_to_and_never_after_its_seal(api_server: ApiServer) -> None:
    found = Collection(api_server, "usagerecords", "UsageRecord")
    rows = "1\n" + "x" * 131_000
    accepted(found.create("u-2026-11", spec={"tenant": "u", "month": "2026-11", "rows": rows}))
    refused(found.merge("u-2026-11", {"spec": {"rows": rows[:-1]}}), "only appended to")
    refused(found.merge("u-2026-11", {"spec": {"rows": None}}), "only appended to")
    refused(found.merge("u-2026-11", {"spec": {"month": "2026-12"}}), "never change")
    accepted(found.merge("u-2026-11", {"spec": {"rows": rows + "y", "sealed": True}}))
    refused(found.merge("u-2026-11", {"spec": {"rows": rows + "yz"}}), "the part is sealed")
    refused(found.merge("u-2026-11", {"spec": {"sealed": False}}), "the part is sealed")
    found.drop("u-2026-11")


def test_a_plan_is_never_replaced_by_an_older_one(api_server: ApiServer) -> None:
    plans = Collection(api_server, "nodegroupplans", "NodeGroupPlan")
    accepted(plans.create("group-0001", spec={"seq": 5, "text": "1\n"}))
    refused(plans.merge("group-0001", {"spec": {"seq": 4}}), "a plan is never replaced by one made from an older ledger")
    accepted(plans.merge("group-0001", {"spec": {"seq": 5, "text": "1\n\n"}}))
    plans.drop("group-0001")


# The node index ------------------------------------------------------------------------------------------------------------------


def test_an_index_is_given_once_freed_by_an_empty_name_and_never_dropped(api_server: ApiServer) -> None:
    found = Collection(api_server, "nodeindexes", "NodeIndex")
    names = {str(index): f"nid{index:05d}" for index in range(MAX_NODES)}
    try:
        accepted(found.create("lattice", spec={"names": names}))
        sentence = "an index keeps its node until it is forgotten"
        refused(found.merge("lattice", {"spec": {"names": {"16383": "other"}}}), sentence)
        accepted(found.merge("lattice", {"spec": {"names": {"16383": ""}}}))
        accepted(found.merge("lattice", {"spec": {"names": {"16383": "other"}}}))
        refused(found.merge("lattice", {"spec": {"names": {"7": None}}}), "an index is freed by an empty name, never dropped")
        refused(found.merge("lattice", {"spec": {"names": None}}), "an index is freed by an empty name, never dropped")
        refused(found.merge("lattice", {"spec": None}), "the names of the node index are never removed")
        refused(found.merge("lattice", {"spec": {"names": {"16384": "one-too-many"}}}), "spec.names: Too many")
    finally:
        found.drop("lattice")
    until(lambda: not api_server.request("GET", f"{found.path}/lattice").ok, "the node index is gone", within=5)
