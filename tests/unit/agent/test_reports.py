"""What a heartbeat says, when it hurries, and what the reporter writes."""

from __future__ import annotations

import msgspec
import pytest

from lattice.ledger.reports import STATES, ReportRow, parse_report
from lattice.views.work import Work as Allocation
from lattice_agent import reports, status
from lattice_agent.head import Begun, Failure, Open, Over, Verdict
from lattice_agent.members import TaskEnd
from tests.build import uid
from tests.unit.agent.rows import key

IDENTITY = reports.Identity("boot-1", "inst-1")
OVER = Over("TaskFailed", "task 0 on n1 ended with exit code 7", True, 1000.0, 1010.0, Failure("n1", TaskEnd(0, 7, ended=1010.0)))
DONE = Over("Completed", "every task on node n1 ended with 0", True, 1000.0, 1010.0)


def test_the_annotation_says_what_the_format_says() -> None:
    rows = (ReportRow(uid(1), 2, "e", "7"), ReportRow(uid(2), 1, "r"))
    report = parse_report(reports.annotation(IDENTITY, 12, 4711, rows))
    assert (report.hb, report.seq, report.boot, report.inst) == (12, 4711, "boot-1", "inst-1")
    assert set(report.rows) == set(rows)


@pytest.mark.parametrize("state", sorted(STATES))
def test_only_what_the_scheduler_waits_for_hurries_and_only_once(state: str) -> None:
    row = (ReportRow(uid(1), 1, state),)
    assert reports.is_urgent((), row) is (state in "uglxf")
    assert not reports.is_urgent(row, row)


def allocation(*conditions: dict[str, str], **given: object) -> Allocation:
    shown = {"attempt": 1, "reporter": "n1", "phase": "Staging", "nodeCount": 1, "head": "n1", "conditions": list(conditions)} | given
    body = {
        "metadata": {"name": "job-1", "namespace": "physics", "uid": uid(1), "generation": 2, "resourceVersion": "9"},
        "spec": {"user": "alice", "lifecycle": {"type": "Bounded"}},
        "status": shown,
    }
    return msgspec.convert(body, Allocation)


def condition(kind: str, reason: str = "Because") -> dict[str, str]:
    return {"type": kind, "status": "True", "reason": reason, "lastTransitionTime": "2026-01-01T00:00:00Z"}


def decide(found: Allocation, verdict: Verdict) -> status.Outcome:
    return status.decide(found, key(), "n1", verdict, now=1020.0)


def test_the_patch_names_version_report_and_nothing_that_is_the_schedulers() -> None:
    outcome = decide(allocation(condition("Scheduled")), OVER)
    assert isinstance(outcome, status.Write)
    assert outcome.settles
    patch = outcome.patch
    assert patch["metadata"] == {"resourceVersion": "9"}
    written = patch["status"]
    assert written["report"] == {"attempt": 1, "by": "n1"}
    assert written["exit"] == {"code": 7, "signal": 0, "node": "n1", "rank": 0}
    assert written["observedGeneration"] == 2
    assert not written.keys() & {"attempt", "reporter", "nodes", "ledgerSeq", "number", "attempts", "requeues"}
    kinds = [entry["type"] for entry in written["conditions"]]
    assert kinds[:3] == ["Scheduled", "Started", "Finished"]
    assert (written["startTime"], written["endTime"]) == ("1970-01-01T00:16:40Z", "1970-01-01T00:16:50Z")


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        pytest.param(allocation(attempt=0), status.Later, id="the projector has not written this attempt yet"),
        pytest.param(allocation(reporter="n2"), status.Later, id="another node is named as reporter"),
        pytest.param(allocation(attempt=2), status.Closed, id="the next attempt has begun"),
        pytest.param(allocation(condition("Finished")), status.Closed, id="it is finished already"),
        pytest.param(allocation(), status.Write, id="it is ours to write"),
    ],
)
def test_the_reporter_writes_only_what_is_its_to_write(found: Allocation, kind: type[status.Outcome]) -> None:
    assert isinstance(decide(found, DONE), kind)


def test_started_is_written_once() -> None:
    assert isinstance(decide(allocation(), Begun(1000.0, 1)), status.Write)
    assert isinstance(decide(allocation(condition("Started")), Begun(1000.0, 1)), status.Nothing)
    assert isinstance(decide(allocation(), Open()), status.Nothing)


def test_a_lost_attempt_that_may_be_requeued_keeps_its_phase() -> None:
    outcome = decide(allocation(), Over("Lost", "n1 lost it", False, 0.0, 0.0, exit_known=False))
    assert isinstance(outcome, status.Write)
    written = outcome.patch["status"]
    assert written["phase"] == "Staging"
    assert "exit" not in written
    assert {"RequeuePending"} <= {entry["reason"] for entry in written["conditions"]}


def test_another_object_of_the_same_name_is_never_written() -> None:
    other = msgspec.structs.replace(allocation(), metadata=msgspec.structs.replace(allocation().metadata, uid=uid(9)))
    assert isinstance(decide(other, DONE), status.Closed)
