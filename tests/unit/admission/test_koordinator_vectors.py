"""What Koordinator's own tests say about its webhook (`koordinator.json`), said of ours."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from lattice.admission import Accepted, Facts, Refused, Request, Requester, Verdict, fill, judge
from lattice.admission.facts import QuotaFacts
from lattice.admission.quotas import KOORDINATORS, read_quota
from lattice.quota.checks import Around, Odd, check_group
from lattice.quota.declared import PREFIX, Declared, TreeSettings
from lattice.quota.groups import ROOT
from lattice.quota.selection import Selection

VECTORS: Final = json.loads((Path(__file__).parent / "koordinator.json").read_text(encoding="utf-8"))
NOT_SERVED: Final = {
    "AddPod_UpdatePod/parent-pods-gate": "parents have no work of their own here; the gate that allows it does not exist",
}
ABOUT: Final = {
    "selfItem": {"MinAboveMax", "NegativeAmount", "MaxBelowUsed"}, "checkKeys": {"ResourcesDiffer"}, "checkTree": {"TreeInvalid"},
    "checkMin": {"MinSumAboveParent"}, "checkGuar": {"GuaranteeNotCovered"},
}  # fmt: skip
"""The reasons that each partial check of Koordinator's is about."""
LABELS: Final = {"parent": "parent", "treeID": "tree-id"}


def quantities(amounts: dict[str, int]) -> dict[str, str]:
    return {key: f"{amount}m" if key == "cpu" else str(amount) for key, amount in amounts.items()}


def manifest(given: dict[str, Any]) -> dict[str, Any]:
    labels = {PREFIX + label: given[key] for key, label in LABELS.items() if given.get(key)} | (
        {PREFIX + "is-parent": "true"} if given.get("isParent") else {}
    )
    notes = {PREFIX + "shared-weight": json.dumps(quantities(given["sharedWeight"]))} if "sharedWeight" in given else {}
    notes |= {PREFIX + "max-strict-check-resource-keys": json.dumps(given["maxStrict"])} if "maxStrict" in given else {}
    return {
        "kind": "ElasticQuota",
        "metadata": {"name": given["name"], "namespace": "ns", "labels": labels, "annotations": notes},
        "spec": {"min": quantities(given.get("min", {})), "max": quantities(given.get("max", {}))},
        "status": {"used": quantities(given.get("used", {}))},
    }


class Site:
    """What has been written so far."""

    def __init__(self) -> None:
        self.quotas: dict[str, dict[str, Any]] = {}
        self.work: dict[str, str] = {}
        self.guaranteed: dict[str, dict[str, int]] = {}
        """What is guaranteed to groups by name: here, what they hold."""

    def facts(self) -> Facts:
        read = [read_quota(KOORDINATORS, each) for each in self.quotas.values()]
        counts = {leaf: list(self.work.values()).count(leaf) for leaf in self.work.values()}
        return Facts(Requester("root"), quotas=QuotaFacts(declared=tuple(each for each in read if isinstance(each, Declared)), work=counts))

    def step(self, verb: str, given: dict[str, Any], old: dict[str, Any] | None) -> bool:
        """Whether it was allowed."""
        if verb in ("pod", "unpod"):
            self.work |= {given["name"]: given["quota"]} if verb == "pod" else {}
            self.work = self.work if verb == "pod" else {name: leaf for name, leaf in self.work.items() if name != given["name"]}
            return True
        obj = manifest(given)
        self.guaranteed |= {given["name"]: given["guaranteed"]} if "guaranteed" in given else {}
        if verb in ABOUT:
            return not self._reasons(obj, given.get("used")) & ABOUT[verb]
        if verb == "delete" and given["name"] not in self.quotas and given["name"] not in (ROOT, *BUILT_IN):
            return False  # the API server's own answer
        verdict: Verdict = Accepted(obj)
        if verb == "create":
            verdict = judge(Request(KOORDINATORS, "CREATE", obj, {}), self.facts())
        elif verb == "update":
            verdict = judge(Request(KOORDINATORS, "UPDATE", obj, manifest(old or {})), self.facts())
        elif verb == "delete":
            verdict = judge(Request(KOORDINATORS, "DELETE", {}, obj), self.facts())
        if isinstance(verdict, Accepted) and verb == "delete":
            del self.quotas[given["name"]]
        elif isinstance(verdict, Accepted):
            self.quotas[given["name"]] = obj
        return isinstance(verdict, Accepted)

    def _reasons(self, obj: dict[str, Any], used: dict[str, int] | None) -> set[str]:
        read = read_quota(KOORDINATORS, obj)
        if isinstance(read, Refused):
            return {read.reason}
        known = self.facts().quotas or QuotaFacts()
        others = {each.name: each for each in known.declared if each.name != read.name}
        if self.guaranteed:  # an option of a whole tree here: the first level carries it
            option = TreeSettings(Selection(everything=True), guarantee_used=True)
            others = {name: replace(each, tree=None if each.parent else option) for name, each in others.items()}
        around = Around(others, used, held=self.guaranteed or None)
        return {finding.reason for finding in check_group(read, None, around) if not isinstance(finding, Odd)}


BUILT_IN: Final = ("koordinator-system-quota", "koordinator-default-quota")


@pytest.mark.parametrize(
    "vector", [each for each in VECTORS if each["kind"] == "webhook" and each["name"] not in NOT_SERVED], ids=lambda each: each["name"]
)
def test_what_koordinator_allows_and_denies(vector: dict[str, Any]) -> None:
    site = Site()
    results = [site.step(op["verb"], op["obj"], op.get("old")) for op in vector["given"]["ops"]]
    assert results == [result == "allow" for result in vector["expected"]["results"]]


@pytest.mark.parametrize("vector", [each for each in VECTORS if each["kind"] == "webhook.mutate"], ids=lambda each: each["name"])
def test_what_koordinator_fills_in(vector: dict[str, Any]) -> None:
    site = Site()
    for seed in vector["given"]["seed"]:
        site.quotas[seed["name"]] = manifest(seed)
    filled = fill(Request(KOORDINATORS, "CREATE", manifest(vector["given"]["obj"]), {}), site.facts()).obj["metadata"]
    for field, value in vector["expected"]["fields"].items():
        if field == "sharedWeight":
            assert json.loads(filled["annotations"][PREFIX + "shared-weight"]) == quantities(value)
        else:
            assert filled["labels"][PREFIX + LABELS[field]] == value


def test_every_vector_that_is_left_out_exists() -> None:
    assert set(NOT_SERVED) <= {each["name"] for each in VECTORS}
    assert len(VECTORS) == 24
