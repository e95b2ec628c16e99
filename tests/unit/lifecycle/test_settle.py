"""Phase, Ready, Reconciling and Stalled follow from the conditions, and from nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.lifecycle.settle import is_final, may_requeue, requeue_asked, settle
from lattice.models import conditions as kinds
from lattice.models.conditions import PHASES
from lattice.models.reasons import END_WORDS
from lattice.views.allocation import AllocationStatus, Condition, Lifecycle, Requeue
from tests.build import condition

NOW = "2026-01-01T00:00:00Z"


def settled(*given_conditions: Condition, again: bool = False, decided: bool = False, lifecycle: str = "Bounded") -> AllocationStatus:
    result = settle(
        given_conditions, lifecycle_type=lifecycle, may_requeue=again, generation=1, now=NOW, phase_before="Running", decided=decided
    )
    return AllocationStatus(phase=result.phase, conditions=result.conditions)


@pytest.mark.parametrize(
    ("status", "phase", "final"),
    [
        pytest.param(settled(), "Pending", False, id="nothing yet"),
        pytest.param(settled(condition("Scheduled", "False", "WaitingForNodes")), "Pending", False, id="waiting"),
        pytest.param(settled(condition("Scheduled")), "Staging", False, id="placed"),
        pytest.param(settled(condition("Scheduled"), condition("Started")), "Running", False, id="running"),
        pytest.param(settled(condition("Finished", "True", "Completed")), "Completed", True, id="completed"),
        pytest.param(settled(condition("Finished", "True", "TaskFailed")), "Failed", True, id="failed"),
        pytest.param(
            settled(condition("Finished", "True", "TaskFailed"), again=True), "Running", False, id="failed, another attempt may follow"
        ),
        pytest.param(settled(condition("Finished", "True", "NodeLost"), again=True, decided=True), "Failed", True, id="failed, decided"),
        pytest.param(settled(condition("Finished", "True", "Stopped")), "Running", False, id="stopped: the scheduler decides"),
        pytest.param(settled(condition("Finished", "True", "Cancelled"), decided=True), "Cancelled", True, id="cancelled"),
    ],
)
def test_phase_and_finality_follow_from_the_conditions(status: AllocationStatus, phase: str, final: bool) -> None:
    assert (status.phase, is_final(status)) == (phase, final)


def test_a_service_is_ready_while_it_runs_and_a_batch_job_is_not() -> None:
    for lifecycle, ready in (("Unbounded", "True"), ("Bounded", "False")):
        status = settled(condition("Started"), lifecycle=lifecycle)
        assert {entry.type: entry.status for entry in status.conditions}["Ready"] == ready


some = st.builds(
    condition,
    st.sampled_from((kinds.SCHEDULED, kinds.STARTED, kinds.FINISHED)),
    st.sampled_from(("True", "False")),
    st.sampled_from(sorted(END_WORDS)),
)


@given(st.lists(some, unique_by=lambda entry: entry.type), st.booleans(), st.booleans())
def test_settling_twice_changes_nothing_and_kstatus_never_sees_two_verdicts(entries: list[Condition], again: bool, decided: bool) -> None:
    once = settled(*entries, again=again, decided=decided)
    twice = settled(*once.conditions, again=again, decided=decided)
    assert set(twice.conditions) == set(once.conditions)
    assert once.phase in PHASES
    status = {entry.type: entry.status for entry in once.conditions}
    assert [status.get("Ready") == "True", status.get("Reconciling") == "True", status.get("Stalled") == "True"].count(True) <= 1


@pytest.mark.parametrize(
    ("policy", "reason", "requeues", "wanted"),
    [
        ("OnNodeFailure", "NodeLost", 0, True),
        ("OnNodeFailure", "NodeLost", 3, False),
        ("OnNodeFailure", "NodeUnfit", 2, True),
        ("OnNodeFailure", "StartFailed", 0, False),
        ("OnNodeFailure", "TaskFailed", 0, False),
        ("Always", "TaskFailed", 0, True),
        ("Always", "WalltimeExceeded", 0, False),
        ("Always", "Completed", 0, False),
        ("Never", "NodeLost", 0, False),
        ("Never", "PrologueFailed", 3, True),
        ("Always", "ImageRefused", 0, False),
        ("Always", "ViewUnknown", 0, False),
    ],
)
def test_the_policy_says_which_ends_are_requeued(policy: str, reason: str, requeues: int, wanted: bool) -> None:
    assert may_requeue(Lifecycle(requeue=Requeue(policy=policy, max=3)), reason, requeues, cancelled=False) is wanted


def test_what_was_cancelled_is_never_requeued() -> None:
    assert not may_requeue(Lifecycle(requeue=Requeue(policy="Always")), "NodeLost", 0, cancelled=True)
    assert not may_requeue(Lifecycle(), "PrologueFailed", 0, cancelled=True)


@pytest.mark.parametrize("reason", ["Completed", "TaskFailed", "WalltimeExceeded", "NodeLost", "PrologueFailed", "Stopped"])
def test_what_its_owner_has_requeued_is_requeued_whatever_its_end_and_not_final(reason: str) -> None:
    assert may_requeue(Lifecycle(requeue=Requeue(policy="Never", max=0)), reason, 3, cancelled=False, asked=True)
    assert not may_requeue(Lifecycle(), reason, 0, cancelled=True, asked=True)
    ended = (condition("Finished", "True", reason),)
    settled = settle(ended, lifecycle_type="Bounded", may_requeue=True, generation=1, now=NOW, phase_before="Running")
    assert settled.phase == "Running"
    assert not any(entry.type in ("Ready", "Stalled") and entry.status == "True" for entry in settled.conditions)


def test_sensitive_work_is_requeued_by_people_alone() -> None:
    always = Lifecycle(requeue=Requeue(policy="Always"))
    assert not may_requeue(always, "NodeLost", 0, cancelled=False, sensitive=True)
    assert may_requeue(always, "NodeLost", 0, cancelled=False, sensitive=True, asked=True)


@pytest.mark.parametrize(("asked", "attempt", "ends"), [(0, 0, False), (1, 0, True), (1, 1, True), (1, 2, False), (3, 2, True)])
def test_a_requeue_ends_attempts_up_to_its_number(asked: int, attempt: int, ends: bool) -> None:
    assert requeue_asked(asked, attempt) is ends
