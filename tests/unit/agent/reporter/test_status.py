"""What a heartbeat says, when it hurries, and what the reporter writes."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from lattice.ledger.reports import STATES, UNSERVED, ReportRow, parse_report
from lattice.models import allocation as models
from lattice.views.allocation import FailedLaunch, LaunchTotals
from lattice.views.work import Work as Allocation
from lattice_agent.attempts import ResourceUse, Seen
from lattice_agent.cluster import reports
from lattice_agent.members import TaskEnd
from lattice_agent.reporter import status
from lattice_agent.reporter.head import Begun, FirstFailure, NothingYet, Over, Surviving, Verdict
from tests.build import uid
from tests.unit.agent.rows import key

IDENTITY = reports.NodeIdentity("boot-1", "inst-1")
OVER = Over("TaskFailed", "task 0 on n1 ended with exit code 7", True, 1000.0, 1010.0, FirstFailure("n1", TaskEnd(0, 7, ended=1010.0)))
DONE = Over("Completed", "every task on node n1 ended with 0", True, 1000.0, 1010.0)


def test_the_annotation_says_what_the_format_says() -> None:
    rows = (ReportRow(uid(1), 2, "e", "7"), ReportRow(uid(2), 1, "r"))
    report = parse_report(reports.annotation(IDENTITY, 12, Seen(4711, 9, "t"), reports.ReportContent(rows, ("n2", "n3", "x"))))
    assert report.away == ("n2", "n3", "x")
    assert (report.hb, report.seq, report.epoch, report.term, report.boot, report.inst) == (12, 4711, 9, "t", "boot-1", "inst-1")
    assert set(report.rows) == set(rows)


@pytest.mark.parametrize("state", sorted(STATES))
def test_only_what_the_scheduler_waits_for_hurries_and_only_once(state: str) -> None:
    row = (ReportRow(uid(1), 1, state),)
    assert reports.is_urgent(reports.ReportContent(), reports.ReportContent(row)) is (state in "uglxf")
    assert not reports.is_urgent(reports.ReportContent(row), reports.ReportContent(row))


def test_who_can_be_reached_hurries_both_ways() -> None:
    cut = reports.ReportContent((), ("n2",))
    assert reports.is_urgent(reports.ReportContent(), cut)
    assert not reports.is_urgent(cut, cut)
    assert reports.is_urgent(cut, reports.ReportContent())


def test_a_node_that_no_gateway_serves_says_so_of_what_it_has_not_prepared() -> None:
    rows = (ReportRow(uid(1), 1, "p"), ReportRow(uid(2), 1, "p", "r"), ReportRow(uid(3), 1, "r"), ReportRow(uid(4), 1, "p"))
    found = reports.with_detail(rows, {key(number) for number in (1, 2, 3)}, UNSERVED)
    assert found == (ReportRow(uid(1), 1, "p", "g"), *rows[1:])
    said = parse_report(reports.annotation(IDENTITY, 1, Seen(1, 1, "t"), reports.ReportContent(found)))
    assert ReportRow(uid(1), 1, "p", "g") in said.rows
    assert not reports.is_urgent(reports.ReportContent(rows), reports.ReportContent(found)), (
        "a gateway that is away brings no storm of heartbeats"
    )


def test_names_of_peers_never_take_the_room_of_the_rows() -> None:
    rows = tuple(ReportRow(uid(number), 1, "r") for number in range(12))
    away = tuple(f"node-{number * 7}-with-a-long-name" for number in range(300))
    text = reports.annotation(IDENTITY, 1, Seen(1, 1, "t"), reports.ReportContent(rows, away))
    found = parse_report(text)
    assert len(text) <= 1000
    assert len(found.rows) == len(rows)
    assert set(found.away) < set(away)
    assert found.away


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


def test_the_change_names_the_report_and_nothing_that_is_the_schedulers() -> None:
    outcome = decide(allocation(condition("Scheduled")), OVER)
    assert isinstance(outcome, status.Write)
    assert outcome.settles
    written = outcome.status
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


def test_the_exit_says_what_was_used_and_nothing_of_what_is_unknown() -> None:
    used = replace(OVER, use=ResourceUse(1.2345, 3 << 30, 4 << 30, 2))
    for verdict, use in ((used, {"cpuSeconds": "1234m", "peakMemory": "3145728Ki", "oomKills": 2}), (OVER, {})):
        outcome = decide(allocation(), verdict)
        assert isinstance(outcome, status.Write)
        assert outcome.status["exit"] == {"code": 7, "signal": 0, "node": "n1", "rank": 0} | use


def test_started_is_written_once() -> None:
    assert isinstance(decide(allocation(), Begun(1000.0, 1)), status.Write)
    assert isinstance(decide(allocation(condition("Started")), Begun(1000.0, 1)), status.Nothing)
    assert isinstance(decide(allocation(), NothingYet()), status.Nothing)


def test_with_the_start_the_wait_for_it_is_over() -> None:
    waited = condition("Staged", "PeersUnreachable") | {"status": "False"}
    outcome = decide(allocation(waited), Begun(1000.0, 2))
    assert isinstance(outcome, status.Write)
    found = {entry["type"]: (entry["status"], entry["reason"]) for entry in outcome.status["conditions"]}
    assert found["Staged"] == ("True", "NodesPrepared")
    assert outcome.status["phase"] == "Running"


def test_with_the_start_every_node_has_brought_what_the_work_needs_of_the_registry() -> None:
    images = [{"source": source, "digest": "sha256:0", "layer": "sha256:1", "size": 1 << 20} for source in ("a/1:v1", "b/1:v1")]
    outcome = decide(allocation(software=images, nodeCount=2), Begun(1000.0, 2))
    assert isinstance(outcome, status.Write)
    found = {entry["type"]: (entry["status"], entry["reason"], entry["message"]) for entry in outcome.status["conditions"]}
    assert found["Staged"] == ("True", "SoftwareStaged", "each of its 2 nodes has its 2 images of 2.0Mi in all")
    bare = decide(allocation(), Begun(1000.0, 1))
    assert isinstance(bare, status.Write)
    assert "Staged" not in {entry["type"] for entry in bare.status["conditions"]}, "nothing was to be brought"


def test_a_lost_attempt_that_may_be_requeued_keeps_its_phase() -> None:
    outcome = decide(allocation(), Over("Lost", "n1 lost it", False, 0.0, 0.0, exit_known=False))
    assert isinstance(outcome, status.Write)
    written = outcome.status
    assert written["phase"] == "Staging"
    assert "exit" not in written
    assert {"RequeuePending"} <= {entry["reason"] for entry in written["conditions"]}


def test_another_object_of_the_same_name_is_never_written() -> None:
    other = msgspec.structs.replace(allocation(), metadata=msgspec.structs.replace(allocation().metadata, uid=uid(9)))
    assert isinstance(decide(other, DONE), status.Closed)


def test_who_survives_kill_is_written_once_and_the_work_runs_on_for_people() -> None:
    verdict = Surviving("n1: a process has survived KILL: 7 (cp, state D)", begun=True, start=1000.0)
    first = decide(allocation(condition("Scheduled"), condition("Started"), phase="Running"), verdict)
    assert isinstance(first, status.Write)
    assert not first.settles
    written = first.status
    assert written["phase"] == "Running"
    shown = {one["type"]: (one["status"], one["reason"], one["message"]) for one in written["conditions"]}
    assert shown["Finished"] == ("False", "Unkillable", verdict.message)
    assert shown["Ready"] == ("False", "Unkillable", verdict.message)
    assert decide(allocation(*written["conditions"], phase="Running"), verdict) == status.Nothing()


def test_the_launches_stand_beside_the_end_as_the_model_has_them() -> None:
    failed = FailedLaunch(step="12.3", result="Timeout", code=7, node="n1", reason="task 0 exited with code 7")
    outcome = decide(allocation(), replace(DONE, launches=LaunchTotals(total=4, completed=2, failed=1, node_fail=1, failures=(failed,))))
    assert isinstance(outcome, status.Write)
    assert models.LaunchTotals.model_validate(outcome.status["launches"]).model_dump(exclude_defaults=True, by_alias=True) == {
        "total": 4, "completed": 2, "failed": 1, "nodeFail": 1,
        "failures": [{"step": "12.3", "result": "Timeout", "code": 7, "node": "n1", "reason": "task 0 exited with code 7"}],
    }  # fmt: skip
    without = decide(allocation(), DONE)
    assert isinstance(without, status.Write)
    assert "launches" not in without.status
