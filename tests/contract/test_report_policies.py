"""Policies on the status of Allocations: who reports what, and what is never taken back."""

from __future__ import annotations

from typing import Any

import pytest

from tests.contract.policy_scenes import (
    ALLOCATIONS,
    GROUP,
    JSON_PATCH,
    PLACED,
    STARTED,
    Person,
    agent,
    allocation,
    bound_agent,
    passed,
    placed,
    refused,
    report,
    reports,
)
from tests.servers import MERGE, ApiServer


def test_the_reporter_writes_its_conditions(server: ApiServer) -> None:
    passed(reports(agent(server, "n1"), placed(server, "reported"), report()))
    passed(reports(bound_agent(server, "n1"), placed(server, "reported-by-account"), report()))


def test_only_the_reporter_of_the_current_attempt_reports(server: ApiServer) -> None:
    path = placed(server, "strange-report")
    refused(reports(agent(server, "n2"), path, report()), 'the reporter of this allocation is "n1"')
    refused(reports(bound_agent(server, "n2"), path, report()), 'the reporter of this allocation is "n1"')
    refused(reports(agent(server, "n1"), path, report(report={"attempt": 1, "by": "n1"})), "attempt 1", "attempt 2", "dropped")
    refused(reports(agent(server, "n1"), path, report(report={"attempt": 2, "by": "n9"})), "dropped")
    refused(
        Person(server, "root", ("system:masters",))("PATCH", path, report()),
        "written by the scheduler, by the agent that reports it and by the operator",
    )
    refused(Person(server, "alice")("PATCH", path, report()))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attempt", 3),
        ("reporter", "n2"),
        ("nodes", "n[1-3]"),
        ("number", 8),
        ("ledgerSeq", 41),
        ("head", "n2"),
        ("nodeCount", 3),
        ("requeues", 0),
    ],
)
def test_an_agent_leaves_what_the_scheduler_writes(server: ApiServer, field: str, value: object) -> None:
    path = placed(server, f"field-{field.lower()}")
    changes: dict[str, Any] = {field: value}
    if field == "attempt":
        changes["report"] = {"attempt": 3, "by": "n1"}
    refused(reports(agent(server, "n1"), path, report(**changes)))


def test_a_reporter_starts_and_ends_nothing_before_it_was_placed(server: ApiServer) -> None:
    path = placed(server, "times")
    passed(Person(server, "lattice:scheduler")("PATCH", path, {"status": {"scheduledTime": "2026-01-01T00:10:00Z"}}))
    by = agent(server, "n1")
    refused(reports(by, path, report(startTime="2020-01-01T00:00:00Z")), "after it was placed at 2026-01-01T00:10:00Z", 'node "n1"')
    refused(reports(by, path, report(endTime="2026-01-01T00:04:59Z")), "after it was placed")
    passed(reports(by, path, report(startTime="2026-01-01T00:09:58Z")))
    refused(reports(by, path, report(endTime="2026-01-01T00:04:57Z")))
    passed(reports(by, path, report(startTime="2026-01-01T01:00:00Z")))
    refused(reports(by, path, report(endTime="2026-01-01T00:54:00Z")), "endTime is before startTime")
    passed(reports(by, path, report(endTime="2026-01-01T01:00:00.250Z")))


def test_an_agent_leaves_the_schedulers_conditions(server: ApiServer) -> None:
    path = placed(server, "conditions")
    refused(reports(agent(server, "n1"), path, report(conditions=[STARTED])), "Admitted, Scheduled and Ending")
    admitted = {**STARTED, "type": "Admitted"}
    refused(reports(agent(server, "n1"), path, report(conditions=[*PLACED["conditions"], admitted])), "Admitted, Scheduled and Ending")  # type: ignore[misc]


IMAGE = {"source": "prgenv/24.11:v1", "digest": "sha256:" + "a" * 64, "size": 7, "repository": "uenv/a", "layer": "sha256:" + "b" * 64}
AWAITED = {**STARTED, "type": "SoftwareResolved", "status": "Unknown", "reason": "RegistryAwaited"}


def test_the_operator_pins_images_once_and_writes_nothing_else_of_a_status(server: ApiServer) -> None:
    passed(Person(server, "alice")("POST", ALLOCATIONS, allocation("images")))
    path, operator, scheduler = f"{ALLOCATIONS}/images/status", Person(server, "lattice:operator"), Person(server, "lattice:scheduler")
    waits = {**PLACED["conditions"][0], "status": "False", "reason": "WaitingForImages"}  # type: ignore[index]
    passed(scheduler("PATCH", path, {"status": {"conditions": [waits], "phase": "Pending", "number": 7}}))
    passed(operator("PATCH", path, {"status": {"conditions": [waits, AWAITED]}}))
    for change in (
        {"phase": "Failed"}, {"number": 10}, {"nodes": "n1"}, {"attempt": 1}, {"exit": {"code": 0}}, {"conditions": [AWAITED]},
        {"conditions": [{**waits, "status": "True"}, AWAITED]}, {"conditions": [waits, {**STARTED, "type": "Finished"}]},
    ):  # fmt: skip
        refused(operator("PATCH", path, {"status": change}))
    passed(operator("PATCH", path, {"status": {"software": [IMAGE], "conditions": [waits]}}))
    refused(operator("PATCH", path, {"status": {"software": [{**IMAGE, "digest": "sha256:" + "c" * 64}]}}), "written once")
    refused(scheduler("PATCH", path, {"status": {"software": []}}), "written once")
    refused(scheduler("PATCH", path, {"status": {"software": None}}), "written once")
    passed(scheduler("PATCH", path, {"status": PLACED}))
    refused(operator("PATCH", path, {"status": {"software": None}}), "written once")
    refused(operator("PATCH", path, {"status": {"conditions": [*PLACED["conditions"], AWAITED]}}), "before the first attempt")  # type: ignore[misc]


def test_edges_are_bound_and_answered_once_by_the_scheduler_alone(server: ApiServer) -> None:
    path, scheduler = placed(server, "edges"), Person(server, "lattice:scheduler")
    edges = [{"index": 0, "uid": "u"}, {"index": 1, "uid": "v", "answer": "M"}]
    refused(reports(agent(server, "n1"), path, report(edges=edges)), "and edges are written by the scheduler alone")
    passed(scheduler("PATCH", path, {"status": {"edges": edges}}))
    passed(scheduler("PATCH", path, {"status": {"edges": [{**edges[0], "answer": "F"}, edges[1]]}}))
    for changed in ({"index": 0, "uid": "u", "answer": "M"}, {"index": 0, "uid": "w", "answer": "F"}):
        refused(scheduler("PATCH", path, {"status": {"edges": [changed, edges[1]]}}), "bound once, and answered once")
    answered = {"index": 0, "uid": "u", "answer": "F"}
    for less in ([edges[0], edges[1]], [answered, {"index": 1, "uid": "v"}], [answered], [answered, {"index": 1, "answer": "M"}]):
        refused(scheduler("PATCH", path, {"status": {"edges": less}}), "bound once, and answered once")
    refused(scheduler("PATCH", path, {"status": {"edges": None}}), "status.edges is never removed")
    refused(Person(server, "lattice:operator")("PATCH", path, {"status": {"edges": []}}))


def test_a_thousand_edges_are_bound_answered_and_reported_over(server: ApiServer) -> None:
    path, scheduler = placed(server, "thousand"), Person(server, "lattice:scheduler")
    edges = [{"index": index, "uid": f"00000000-0000-0000-0000-{index:012d}"} for index in range(1000)]
    passed(scheduler("PATCH", path, {"status": {"edges": edges}}))
    passed(scheduler("PATCH", path, {"status": {"edges": [{**edge, "answer": "M", "due": "2026-01-01T00:00:00Z"} for edge in edges]}}))
    refused(scheduler("PATCH", path, {"status": {"edges": edges}}))
    passed(reports(agent(server, "n1"), path, report()))


def test_no_agent_changes_which_images_work_uses_or_says_that_they_are_refused(server: ApiServer) -> None:
    path = placed(server, "no-images")
    refused(reports(agent(server, "n1"), path, report(software=[IMAGE])), "software by the operator")
    said: Any = [*report()["status"]["conditions"], AWAITED]
    refused(reports(agent(server, "n1"), path, report(conditions=said)), "SoftwareResolved by the operator")


def test_a_late_report_does_not_bring_an_ended_attempt_back(server: ApiServer) -> None:
    path = placed(server, "ended")
    finished = {**STARTED, "type": "Finished", "reason": "Completed"}
    passed(reports(agent(server, "n1"), path, report(conditions=[*PLACED["conditions"], STARTED, finished])))  # type: ignore[misc]
    refused(reports(agent(server, "n1"), path, report()), "late report")
    passed(
        Person(server, "lattice:scheduler")("PATCH", path, {"status": {"conditions": PLACED["conditions"], "ledgerSeq": 41, "attempt": 3}})
    )


def test_a_scheduler_patch_made_from_an_older_ledger_is_refused(server: ApiServer) -> None:
    path = placed(server, "older")
    refused(Person(server, "lattice:scheduler")("PATCH", path, {"status": {"ledgerSeq": 39}}), "ledgerSeq never goes back")


def test_what_is_never_taken_back_is_never_removed_either(server: ApiServer) -> None:
    """Also by the scheduler, about whom the policy is asked only then; in the schema such a rule would cost each write."""
    path, scheduler = placed(server, "removed"), Person(server, "lattice:scheduler")
    for change, sentence in (
        ({"ledgerSeq": None}, "status.ledgerSeq never goes back: this patch was made from an older ledger"),
        ({"number": None}, "status.number is given once"),
        ({"attempt": None}, "status.attempt never goes back"),
        (None, "the status of an allocation is never removed"),
    ):
        refused(scheduler("PATCH", path, {"status": change}), sentence)
        before = server.request("GET", path.partition("/status")[0]).body
        body = {**before, "status": {**before["status"], **(change or {})}}
        refused(scheduler("PUT", path, body if change else {key: value for key, value in before.items() if key != "status"}), sentence)
        if change:
            refused(reports(agent(server, "n1"), path, {"status": {**report()["status"], **change}}), sentence)
    passed(scheduler("PATCH", path, {"status": {"head": None, "ledgerSeq": 41}}))


@pytest.mark.parametrize("proof", [agent, bound_agent], ids=["certificate", "bound-token"])
def test_an_agent_reads_no_allocation_by_any_verb(server: ApiServer, proof: Any) -> None:
    """Also not by a patch: what it copies or compares, the API server would show or tell, whoever reports the work."""
    path, watch = placed(server, f"unread-{proof.__name__.replace('_', '-')}"), f"{ALLOCATIONS}?watch=true&timeoutSeconds=1"
    copy = [{"op": "copy", "from": "/spec/entrypoint", "path": "/status/conditions/0/status"}]
    for node_name in ("n1", "n2"):
        who = proof(server, node_name)
        for target in (ALLOCATIONS, watch, f"{GROUP}/allocations", path, path.removesuffix("/status")):
            assert who("GET", target).status == 403
        for content_type, body in ((JSON_PATCH, copy), (JSON_PATCH, []), (MERGE, report()), (MERGE, {})):
            for query in ("", "?dryRun=All"):
                answer = who("PATCH", path + query, body, content_type=content_type)
                assert answer.status == 403, answer.message
                assert "cannot patch" in answer.message
    stranger = proof(server, "n2")
    for query in ("", "?dryRun=All"):  # a replacement that changes nothing would answer with the whole object
        assert reports(stranger, path + query, {"status": {}}).status == 403


def test_agents_touch_only_the_status_of_allocations(server: ApiServer) -> None:
    passed(Person(server, "alice")("POST", ALLOCATIONS, allocation("spec-kept")))
    refused(agent(server, "n1")("PATCH", f"{ALLOCATIONS}/spec-kept", {"spec": {"hold": True}}))
    refused(agent(server, "n1")("DELETE", f"{ALLOCATIONS}/spec-kept"))
    strong = Person(server, "lattice:agent:n1", ("lattice:agents", "system:masters"))
    refused(strong("PATCH", f"{ALLOCATIONS}/spec-kept", {"spec": {"hold": True}}), "agents write only the status")
