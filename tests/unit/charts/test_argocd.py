"""Argo CD's health script, run by a real Lua on statuses that Lattice itself derives."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from lattice.lifecycle.conditions import encode, with_condition
from lattice.lifecycle.settle import settle
from lattice.views.allocation import Condition

SCRIPT = (Path(__file__).resolve().parents[3] / "charts" / "lattice" / "argocd" / "health.lua").read_text(encoding="utf-8")
NOW = "2026-12-01T08:00:00Z"


def health(document: dict[str, Any]) -> tuple[str, str]:
    """What Argo CD shows for an object."""
    runtime = import_module("lupa").LuaRuntime()
    runtime.globals().obj = runtime.table_from(document, recursive=True)
    answer = runtime.execute(SCRIPT)
    return answer["status"], answer["message"]


def allocation(
    *given: tuple[str, str, str], kind: str = "Bounded", requeue: bool = False, hold: bool = False, seen: int = 1
) -> dict[str, Any]:
    """An Allocation of generation 1 with these conditions and all that follows from them."""
    conditions: tuple[Condition, ...] = ()
    for name, value, reason in given:
        conditions = with_condition(conditions, name, value, reason, f"{reason} it is", generation=1, now=NOW)
    settled = settle(conditions, lifecycle_type=kind, may_requeue=requeue, generation=1, now=NOW, phase_before="Running")
    status = {"phase": settled.phase, "observedGeneration": seen, "conditions": encode(settled.conditions)}
    return {"kind": "Allocation", "metadata": {"generation": 1}, "spec": {"hold": hold}, "status": status}


SCHEDULED = ("Scheduled", "True", "Placed")
STARTED = ("Started", "True", "Running")


@pytest.mark.parametrize(
    ("document", "shown"),
    [
        pytest.param(allocation(("Scheduled", "False", "WaitingForNodes")), "Progressing", id="waiting"),
        pytest.param(allocation(("Scheduled", "False", "Held"), hold=True), "Suspended", id="held"),
        pytest.param(allocation(SCHEDULED), "Progressing", id="staging"),
        pytest.param(allocation(SCHEDULED, STARTED), "Progressing", id="running batch work"),
        pytest.param(allocation(SCHEDULED, STARTED, kind="Unbounded"), "Healthy", id="running service"),
        pytest.param(allocation(SCHEDULED, STARTED, kind="Unbounded", seen=0), "Progressing", id="changed since"),
        pytest.param(allocation(SCHEDULED, STARTED, ("Finished", "True", "Completed")), "Healthy", id="completed"),
        pytest.param(allocation(SCHEDULED, STARTED, ("Finished", "True", "Completed"), seen=0), "Healthy", id="completed, then touched"),
        pytest.param(allocation(SCHEDULED, STARTED, ("Finished", "True", "TaskFailed")), "Degraded", id="failed"),
        pytest.param(allocation(SCHEDULED, STARTED, ("Finished", "True", "Cancelled")), "Degraded", id="cancelled"),
        pytest.param(allocation(SCHEDULED, STARTED, ("Finished", "True", "NodeLost"), requeue=True), "Progressing", id="to be requeued"),
    ],
)
def test_argo_cd_shows_work_as_kstatus_does(document: dict[str, Any], shown: str) -> None:
    assert health(document)[0] == shown


def test_the_message_names_the_reason_and_its_sentence() -> None:
    assert health(allocation(("Scheduled", "False", "WaitingForNodes")))[1] == "WaitingForNodes: WaitingForNodes it is"


def test_an_object_without_conditions_is_not_taken_for_healthy() -> None:
    assert health({"kind": "Allocation", "metadata": {"generation": 1}})[0] == "Progressing"


@pytest.mark.parametrize(("ready", "shown"), [("True", "Healthy"), ("False", "Progressing")])
def test_other_kinds_are_judged_by_the_same_conditions(ready: str, shown: str) -> None:
    condition = {"type": "Ready", "status": ready, "reason": "InForce", "message": ""}
    document = {"kind": "Tenant", "metadata": {"generation": 3}, "status": {"observedGeneration": 3, "conditions": [condition]}}
    assert health(document) == (shown, "InForce")
