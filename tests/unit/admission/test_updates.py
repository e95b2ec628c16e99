"""What may change in an Allocation, when, and by whom."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from lattice.admission import Request, wanted_rights
from lattice.admission.updates import CHANGED_WHILE_PENDING, IMMUTABLE, IMMUTABLE_IN_LIFECYCLE
from lattice.models import allocation as model
from tests.unit.admission.builders import NOW, accepted, allocation, change, facts, refused, submit, vcluster


def stored(*, status: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    obj = accepted(submit(allocation(**spec))).obj
    return {**obj, "status": status or {}}


def changed(obj: dict[str, Any], **spec: Any) -> dict[str, Any]:
    new = copy.deepcopy(obj)
    for key, value in spec.items():
        if isinstance(value, dict) and key == "lifecycle":
            new["spec"][key] = {**new["spec"].get(key, {}), **value}
        elif value is None:
            new["spec"].pop(key, None)
        else:
            new["spec"][key] = value
    return new


def conditions(**statuses: str) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": status} for kind, status in statuses.items()]}


FINAL = conditions(Finished="True", Ready="True") | {"number": 12345}


def test_an_unchanged_spec_is_accepted_whatever_it_is() -> None:
    obj = stored(status=FINAL)
    new = copy.deepcopy(obj)
    new["metadata"]["finalizers"] = []
    assert accepted(change(obj, new)).warnings == ()


@pytest.mark.parametrize("field", IMMUTABLE)
def test_immutable_fields_say_what_to_do_instead(field: str) -> None:
    obj = stored()
    values: dict[str, Any] = {
        "resources": {"nodes": 3},
        "tasks": {"perNode": 2},
        "environment": {"workdir": "/x"},
        "data": {"scratchPerNode": "1Gi"},
        "scriptArguments": ["other"],
        "scriptFrom": {"configMap": "other", "digest": "sha256:" + 64 * "0"},
    }
    verdict = refused(change(obj, changed(obj, **{field: values.get(field, "other")})))
    assert (verdict.reason, verdict.field) == ("Immutable", f"spec.{field}")
    assert "submit a new one" in verdict.hint


def test_the_immutable_fields_are_those_of_the_model() -> None:
    assert IMMUTABLE == model.IMMUTABLE
    assert IMMUTABLE_IN_LIFECYCLE == model.FIXED_LIFECYCLE
    assert CHANGED_WHILE_PENDING == model.PENDING_LIFECYCLE


@pytest.mark.parametrize(
    "field", [{"hold": True}, {"cancel": {"reason": "x"}}, {"tags": {"name": "b"}}, {"lifecycle": {"walltime": "30m"}}]
)
def test_what_may_change_may_change(field: dict[str, Any]) -> None:
    obj = stored()
    accepted(change(obj, changed(obj, **field)))


def test_a_cancel_is_never_taken_back() -> None:
    obj = stored(cancel={"reason": "x"})
    assert refused(change(obj, changed(obj, cancel=None))).reason == "CancelUnset"


def test_a_final_object_stays_as_it_is() -> None:
    obj = stored(status=FINAL)
    verdict = refused(change(obj, changed(obj, hold=True)))
    assert verdict.reason == "Final"
    assert 'allocation 12345 "job" has ended' in verdict.sentence


def test_an_end_that_may_be_requeued_is_not_final() -> None:
    obj = stored(status=conditions(Finished="True", Reconciling="True", Ready="False"))
    accepted(change(obj, changed(obj, cancel={})))


def test_a_longer_walltime_needs_a_right_and_a_shorter_one_none() -> None:
    obj = stored()
    longer, shorter = changed(obj, lifecycle={"walltime": "2h"}), changed(obj, lifecycle={"walltime": "10m"})
    assert wanted_rights(Request("Allocation", "UPDATE", longer, obj), "alice") == ("physics", frozenset({"extend", "manage"}))
    assert wanted_rights(Request("Allocation", "UPDATE", shorter, obj), "alice") == ("physics", frozenset())
    verdict = refused(change(obj, longer))
    assert verdict.reason == "WalltimeExtension"
    assert "(current: 1h, requested: 2h)" in verdict.sentence
    accepted(change(obj, longer, facts(rights=frozenset({"manage"}))))
    accepted(change(obj, longer, facts(rights=frozenset({"extend"}))))
    accepted(change(obj, shorter))


def test_endless_is_longer_than_every_walltime() -> None:
    obj = stored(lifecycle={"type": "Unbounded", "walltime": "1h"})
    endless = changed(obj)
    endless["spec"]["lifecycle"].pop("walltime")
    verdict = refused(change(obj, endless))
    assert (verdict.reason, "(current: 1h, requested: none)" in verdict.sentence) == ("WalltimeExtension", True)
    accepted(change(obj, endless, facts(rights=frozenset({"extend"}))))


def test_a_longer_walltime_stays_within_the_vclusters_limit() -> None:
    obj = stored()
    known = facts(vclusters=(vcluster(limits={"maxWalltime": "90m"}),), rights=frozenset({"extend"}))
    verdict = refused(change(obj, changed(obj, lifecycle={"walltime": "2h"}), known))
    assert "(current: 1h, requested: 2h, limit: 90m)" in verdict.sentence


def test_a_walltime_that_has_passed_already_is_warned_of() -> None:
    obj = stored(status={"startTime": "2027-01-15T07:30:00Z"})
    warnings = accepted(change(obj, changed(obj, lifecycle={"walltime": "10m"}), facts(now=NOW))).warnings
    assert "ended at once" in warnings[0]


def test_a_bounded_allocation_keeps_a_walltime() -> None:
    obj = stored()
    assert refused(change(obj, changed(obj, lifecycle={"walltime": None}))).reason == "WalltimeRequired"


def test_the_class_changes_only_while_pending() -> None:
    pending, placed = stored(), stored(status=conditions(Scheduled="True"))
    accepted(change(pending, changed(pending, lifecycle={"preemptionClass": 8})))
    verdict = refused(change(placed, changed(placed, lifecycle={"preemptionClass": 8})))
    assert (verdict.reason, "current: 5, requested: 8" in verdict.sentence) == ("NotPending", True)


def test_holding_what_has_its_nodes_is_accepted_with_the_word_that_it_goes_on() -> None:
    obj = stored(status=conditions(Scheduled="True", Started="True"))
    (warning,) = accepted(change(obj, changed(obj, hold=True))).warnings
    assert "has its nodes already, and goes on" in warning
    assert accepted(change(stored(), changed(stored(), hold=True))).warnings == ()


PLACED: dict[str, Any] = {**conditions(Scheduled="True"), "attempt": 2, "nodes": "n1"}


@pytest.mark.parametrize("field", CHANGED_WHILE_PENDING)
def test_what_only_pending_work_may_change_is_refused_once_it_holds_nodes(field: str) -> None:
    value: Any = {"policy": "Always"} if field == "requeue" else "2099-01-01T00:00:00Z"
    accepted(change(stored(), changed(stored(), lifecycle={field: value})))
    verdict = refused(change(stored(status=PLACED), changed(stored(status=PLACED), lifecycle={field: value})))
    assert (verdict.reason, verdict.field) == ("NotPending", f"spec.lifecycle.{field}")


@pytest.mark.parametrize(
    ("before", "asked", "status", "said"),
    [
        pytest.param(None, 2, PLACED, "", id="the present attempt"),
        pytest.param(None, 1, PLACED, "", id="one that has ended, which changes nothing"),
        pytest.param(2, 2, PLACED, "", id="the same again"),
        pytest.param(None, 3, PLACED, "has not begun (current attempt: 2)", id="one to come"),
        pytest.param(2, 1, PLACED, "cannot go back (current: 2, requested: 1)", id="back"),
        pytest.param(2, None, PLACED, "cannot go back (current: 2, requested: none)", id="taken away"),
        pytest.param(None, 2, {"attempt": 2}, "has no nodes yet", id="one that waits"),
        pytest.param(None, 1, FINAL, "has ended", id="ended work"),
    ],
)
def test_a_requeue_names_an_attempt_that_runs(before: int | None, asked: int | None, status: dict[str, Any], said: str) -> None:
    given = {} if before is None else {"requeueAttempt": before}
    obj = stored(status=status, **given)
    new = changed(obj, **({} if asked is None else {"requeueAttempt": asked}))
    if asked is None:
        del new["spec"]["requeueAttempt"]
    if said:
        assert said in refused(change(obj, new)).sentence
    else:
        accepted(change(obj, new))
