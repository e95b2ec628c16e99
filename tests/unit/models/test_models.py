"""What the models take and refuse before any server is asked."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lattice.ledger.plans import NODES_PER_PLAN, plan_name
from lattice.models import conditions, reasons
from lattice.models.allocation import FIXED_LIFECYCLE, IMMUTABLE, Allocation, AllocationSpec, Lifecycle
from lattice.models.ledger import MAX_NODES
from lattice.models.shape import DURATION_PATTERN, QUANTITY_PATTERN, Kind, Rule
from lattice_dev.generate.crds import KINDS


def aliases(model: Any) -> set[str]:
    return {field.alias or name for name, field in model.model_fields.items()}


def test_a_manifest_is_read_by_its_camel_case_names_and_written_the_same() -> None:
    manifest = {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "Allocation",
        "metadata": {"name": "a", "namespace": "n"},
        "spec": {"entrypoint": "true", "lifecycle": {"preemptionClass": 2, "gracePeriod": "45s"}, "resources": {"nodes": "2-4"}},
    }
    read = Allocation.model_validate(manifest)
    assert read.spec.lifecycle.preemption_class == 2
    assert read.model_dump(by_alias=True, exclude_unset=True) == manifest


@pytest.mark.parametrize(
    "spec",
    [
        {"entrypoint": "true", "nodes": 4},
        {"entrypoint": ""},
        {"entrypoint": "true", "lifecycle": {"preemptionClass": 11}},
        {"entrypoint": "true", "lifecycle": {"type": "bounded"}},
        {"entrypoint": "true", "lifecycle": {"walltime": "90"}},
        {"entrypoint": "true", "tenant": "My Team"},
        {"entrypoint": "true", "tasks": {"perNode": 0}},
        {"entrypoint": "x" * 65537},
    ],
    ids=["unknown field", "empty entrypoint", "class 11", "lower case", "no unit", "blanks", "no tasks", "too long"],
)
def test_bad_input_is_refused(spec: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Allocation.model_validate({"metadata": {"name": "a"}, "spec": spec})


def test_every_field_that_a_rule_calls_fixed_exists() -> None:
    assert set(IMMUTABLE) <= aliases(AllocationSpec)
    assert set(FIXED_LIFECYCLE) <= aliases(Lifecycle)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: str(kind.meta.kind))
def test_a_kind_names_itself(kind: type[Kind]) -> None:
    assert kind.model_fields["kind"].default == kind.meta.kind
    assert kind.__name__ == kind.meta.kind
    assert kind.meta.plural == kind.meta.plural.lower()


def test_short_names_and_plurals_are_given_once() -> None:
    given_names = [name for kind in KINDS for name in (kind.meta.plural, *kind.meta.short_names)]
    assert len(given_names) == len(set(given_names))


def test_a_rule_is_written_as_kubernetes_has_it() -> None:
    rule = Rule("self.a", "m", message_expression="'x'", field_path=".a", reason="FieldValueInvalid", optional_old_self=True)
    assert rule.schema() == {
        "rule": "self.a", "message": "m", "messageExpression": "'x'", "fieldPath": ".a", "reason": "FieldValueInvalid",
        "optionalOldSelf": True,
    }  # fmt: skip


@given(
    st.tuples(*(st.none() | st.integers(0, 10**6) for _ in range(4))).map(
        lambda parts: "".join(f"{n}{u}" for n, u in zip(parts, "dhms", strict=True) if n is not None)
    )
)
def test_every_mix_of_days_hours_minutes_and_seconds_is_a_duration(text: str) -> None:
    assert re.search(DURATION_PATTERN, text)


@pytest.mark.parametrize("text", ["1", "h", "1m1h", "1.5h", "-1h", "1h 30m", "1H"])
def test_what_is_no_duration_does_not_match(text: str) -> None:
    assert not re.search(DURATION_PATTERN, text)


@pytest.mark.parametrize(
    ("text", "good"), [("500Gi", True), ("150m", True), ("24", True), ("1.5", True), ("-1", False), ("5 Gi", False), ("Gi", False)]
)
def test_quantities_are_kubernetes_quantities(text: str, good: bool) -> None:
    assert bool(re.search(QUANTITY_PATTERN, text)) == good


@given(st.integers(0, MAX_NODES - 1))
def test_a_plan_carries_64_neighbouring_nodes(index: int) -> None:
    assert plan_name(index) == f"group-{index // NODES_PER_PLAN:04d}"
    assert plan_name(index) == plan_name(index // NODES_PER_PLAN * NODES_PER_PLAN)


PENDING = (
    "WaitingForNodes", "BehindHigherPriority", "NodesUnavailable", "ReservedNodes", "WaitingForQuotaHeadroom", "WaitingForQuotaShare",
    "BudgetExhausted", "WaitingForDependency", "DependencyFailed", "DependencyNotNeeded", "DependencyLost", "WaitingForDag", "WaitingForData", "WaitingForImages", "WaitingForNetworkDomain", "InsufficientConformance", "PowerBudget",
    "WaitingForVictims", "QuotaReclaimed", "Requeued", "Held", "NotBefore", "RetryBackOff", "RecoveryUncertain", "VClusterClosed", "NotAdmitted", "NeverFits", "NotYetEvaluated",
)  # fmt: skip


def test_the_list_of_pending_reasons_is_the_documented_one() -> None:
    assert sorted(reasons.PENDING_WORDS) == sorted(PENDING)


LISTS = [
    reasons.PENDING_REASONS, reasons.PREEMPTION_REASONS, reasons.END_REASONS, reasons.NODE_REASONS, reasons.ADMINISTRATION_REASONS,
    reasons.RESERVATION_REASONS, reasons.QUOTA_REASONS, reasons.STAGING_REASONS, reasons.DAG_REASONS,
]  # fmt: skip


@pytest.mark.parametrize(
    "listed", LISTS, ids=["pending", "preemption", "end", "node", "administration", "reservation", "quota", "staging", "dag"]
)
def test_reasons_are_camel_case_words_given_once_with_a_meaning(listed: tuple[reasons.Reason, ...]) -> None:
    words = [reason.word for reason in listed]
    assert len(words) == len(set(words))
    assert all(re.fullmatch(r"[A-Z][A-Za-z0-9]*", word) and len(word) <= 64 for word in words)
    assert all(reason.meaning and not reason.meaning.endswith(".") for reason in listed)


def test_a_pending_reason_says_what_to_do_next() -> None:
    assert all(reason.next_step for reason in reasons.PENDING_REASONS)


def test_each_condition_has_one_kind_of_writer() -> None:
    groups = (conditions.WRITTEN_BY_SCHEDULER, conditions.WRITTEN_BY_REPORTER, conditions.DERIVED)
    assert sum(map(len, groups)) == len(frozenset().union(*groups))
    assert frozenset(conditions.PHASES) >= conditions.FINAL_PHASES


def test_words_are_read_without_loading_pydantic() -> None:
    code = "import lattice.models.conditions, lattice.models.reasons, lattice.views, sys; sys.exit('pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
