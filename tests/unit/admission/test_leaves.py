"""The leaf of a submitted Allocation: named, bound or default; whether it may be used, and takes what is asked for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lattice.admission import Accepted, Facts, Refused, Request, Verdict, admit
from lattice.admission.facts import QuotaFacts
from lattice.quota.declared import NAME_LABEL, PREEMPTIBLE_LABEL, Binding, Declared, Source, bindings_of
from tests.unit.admission.builders import allocation, facts


def group(name: str, parent: str = "", **more: Any) -> Declared:
    return Declared(name, Source("lattice.dev", name), parent=parent, **{"max": {"nodes": 10}, **more})


def known(*groups: Declared, **more: Any) -> Facts:
    """physics has the leaf theory; a job asks for two nodes."""
    standing = groups or (
        group("science", is_parent=True),
        group("theory", "science", bindings=(Binding("physics"),)),
        group("lab", "science"),
    )
    quotas = QuotaFacts(
        declared=standing, groups={each.name: each for each in standing}, bindings=bindings_of(standing), charge={"nodes": 2}, may_use=False
    )
    return facts(quotas=replace(quotas, **more))


def submitted(site: Facts, labels: dict[str, str] | None = None, **spec: Any) -> Verdict:
    obj = allocation(**spec)
    obj["metadata"]["labels"] = labels or {}
    return admit(Request.creation(obj), site)


def sentence(verdict: Verdict, reason: str) -> str:
    assert isinstance(verdict, Refused), verdict
    assert verdict.reason == reason
    return verdict.message


def accepted(verdict: Verdict) -> dict[str, Any]:
    assert isinstance(verdict, Accepted), verdict
    return verdict.obj


def test_work_without_a_name_for_its_leaf_is_taken() -> None:
    accepted(submitted(known()))


@pytest.mark.parametrize("name", ["theory", "science/theory"])
def test_the_own_leaf_needs_no_right(name: str) -> None:
    accepted(submitted(known(), quota=name))


def test_another_leaf_needs_the_verb_use_by_field_and_by_label() -> None:
    for verdict in (submitted(known(), quota="lab"), submitted(known(), {NAME_LABEL: "lab"})):
        assert 'alice may not use quota "lab"' in sentence(verdict, "QuotaNotAllowed")
    accepted(submitted(known(may_use=True), quota="lab"))
    accepted(submitted(known(may_use=True), {NAME_LABEL: "lab"}))


def test_an_unknown_leaf_is_refused_with_the_leaves_of_the_tenant() -> None:
    message = sentence(submitted(known(), quota="nothing"), "QuotaUnknown")
    assert 'quota "nothing" does not exist' in message
    assert "leaves of your tenant are theory" in message
    assert "lab" not in message
    sentence(submitted(known(), quota="engineering/theory"), "QuotaUnknown")
    sentence(submitted(known(), {NAME_LABEL: "nothing"}), "QuotaUnknown")


def test_a_parent_has_no_work_of_its_own() -> None:
    assert "below it are lab, theory" in sentence(submitted(known(), quota="science"), "QuotaIsParent")


def test_a_ceiling_of_submissions_counts_what_was_submitted() -> None:
    groups = (group("science", is_parent=True, admission={"nodes": 5}), group("theory", "science", bindings=(Binding("physics"),)))
    accepted(submitted(known(*groups, requested={"science": {"nodes": 3}})))
    message = sentence(submitted(known(*groups, requested={"science": {"nodes": 4}})), "QuotaExceeded")
    assert "(submitted: 4, requested: 2, limit: 5)" in message


def test_a_ceiling_of_zero_pauses_and_one_that_is_absent_does_not() -> None:
    paused = group("theory", bindings=(Binding("physics"),), admission={"nodes": 0})
    assert "takes no submissions: its admission of nodes is 0" in sentence(submitted(known(paused)), "QuotaPaused")
    other = group("theory", bindings=(Binding("physics"),), admission={"gpu": 0})
    accepted(submitted(known(other, requested={"theory": {"nodes": 99}})))


def test_more_than_max_is_refused_since_it_could_never_start() -> None:
    small = group("theory", bindings=(Binding("physics"),), max={"nodes": 1})
    assert "(requested: 2, max: 1)" in sentence(submitted(known(small)), "AboveQuotaMax")
    accepted(submitted(known(group("theory", bindings=(Binding("physics"),), max={"gpu": 0}))))


def test_work_in_the_default_group_is_bounded_by_no_group() -> None:
    accepted(submitted(known(group("lab", max={"nodes": 1}))))


def test_the_label_of_koordinator_makes_work_non_preemptible() -> None:
    spec = accepted(submitted(known(), {PREEMPTIBLE_LABEL: "false"}))["spec"]
    assert spec["lifecycle"]["preemptible"] == "Never"
    verdict = submitted(known(), {PREEMPTIBLE_LABEL: "false"}, lifecycle={"preemptible": "ByClass"})
    assert "spec.lifecycle.preemptible is ByClass" in sentence(verdict, "ConstraintsContradict")
    assert "preemptible" not in accepted(submitted(known(), {PREEMPTIBLE_LABEL: "true"}))["spec"]["lifecycle"]
