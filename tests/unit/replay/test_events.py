"""JSON lines: the book's events in, jobs out; what is refused with the line and the field; written and read again."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from lattice.errors import Rejected
from lattice.replay.events import lines_of, read
from lattice.replay.jobs import TraceJob
from lattice.replay.synthetic import KINDS, generate
from lattice.scheduling.model.hardware import Need
from lattice.units import parse_time

ASKED = {"nodes": 64, "gpu_type": "GH200", "walltime": "72h", "tenant": "physics", "priority": 4}
SUBMIT = {"ts": "2026-03-01T00:00:01Z", "type": "submit", "alloc_id": "abc-123", "alloc": ASKED}
START: dict[str, Any] = {"ts": "2026-03-01T02:00:00Z", "type": "start", "alloc_id": "abc-123"}
COMPLETE: dict[str, Any] = {"ts": "2026-03-04T00:00:05Z", "type": "complete", "alloc_id": "abc-123", "duration": "68h", "exit": 0}
CANCEL: dict[str, Any] = {"ts": "2026-03-01T09:00:00Z", "type": "cancel", "alloc_id": "abc-123"}


def text(*events: dict[str, Any]) -> list[bytes]:
    return [json.dumps(event).encode() + b"\n" for event in events]


def asking(**fields: Any) -> dict[str, Any]:
    return {**SUBMIT, "alloc": {**ASKED, **fields}}


def one(*events: dict[str, Any]) -> TraceJob:
    (job,) = read(text(*events)).jobs
    return job


def test_the_books_own_lines_are_one_job() -> None:
    job = one(SUBMIT, COMPLETE)
    assert job == TraceJob(
        id="abc-123", submit=parse_time("2026-03-01T00:00:01Z"), nodes=64, most=64, run=68 * 3600.0, walltime=72 * 3600.0,
        tenant="physics", preemption_class=4, need=Need(gpu_type="GH200"), exit=0, line=1,
    )  # fmt: skip


def test_without_a_duration_a_run_lasts_from_its_start_to_its_end() -> None:
    timed = {key: value for key, value in COMPLETE.items() if key != "duration"}
    job = one(SUBMIT, START, timed)
    assert (job.run, job.started) == (parse_time(COMPLETE["ts"]) - parse_time(START["ts"]), parse_time(START["ts"]))


def test_lines_may_stand_in_any_order_and_jobs_are_sorted() -> None:
    later = {**SUBMIT, "alloc_id": "b", "ts": "2026-03-02T00:00:00Z"}
    log = read(text({**COMPLETE, "alloc_id": "b"}, COMPLETE, later, SUBMIT))
    assert [job.id for job in log.jobs] == ["abc-123", "b"]
    assert log.changed.counts == {"jobs out of order sorted by submit time": 1}


def test_a_cancelled_job_that_never_started_leaves_the_queue_then() -> None:
    job = one(SUBMIT, CANCEL)
    assert (job.withdrawn, job.run) == (parse_time(CANCEL["ts"]), 72 * 3600.0)


def test_a_cancelled_job_that_ran_ran_until_then() -> None:
    job = one(SUBMIT, START, CANCEL)
    assert (job.withdrawn, job.run) == (None, 7 * 3600.0)


@pytest.mark.parametrize("nodes", ["32-128", {"min": 32, "max": 128}], ids=["text", "min and max"])
def test_a_range_of_nodes_is_read_in_both_spellings(nodes: Any) -> None:
    job = one(asking(nodes=nodes), COMPLETE)
    assert (job.nodes, job.most) == (32, 128)


def test_what_did_not_end_is_left_out_and_counted() -> None:
    open_end = {**SUBMIT, "alloc_id": "open"}
    log = read(text(SUBMIT, open_end, COMPLETE))
    assert (len(log.jobs), log.total, log.left.counts) == (1, 2, {"that did not end in the trace": 1})


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        ([{**SUBMIT, "type": "submitt"}], "line 1: type: Invalid value 'submitt': types are submit, start, complete, cancel"),
        ([{"ts": SUBMIT["ts"], "alloc": ASKED}], "line 1: type: Object missing required field `type`: types are submit, start,"),
        (
            [{key: value for key, value in SUBMIT.items() if key != "alloc_id"}, COMPLETE],
            "line 2: alloc_id: complete of 'abc-123', which no line submits (line 1 submits without an \"alloc_id\")",
        ),
        ([{**COMPLETE, "code": 3}], "line 1: code: Object contains unknown field `code`"),
        ([COMPLETE], "line 1: alloc_id: complete of 'abc-123', which no line submits"),
        ([SUBMIT, {key: value for key, value in COMPLETE.items() if key != "duration"}], "line 2: duration: 'abc-123' completes without a"),
        ([SUBMIT, SUBMIT], "line 2: alloc_id: 'abc-123' was submitted already in line 1"),
        ([SUBMIT, COMPLETE, COMPLETE], "line 3: alloc_id: 'abc-123' completed already in line 2"),
        ([SUBMIT, {**COMPLETE, "ts": "2026-02-01T00:00:00Z"}], "line 2: ts: 'abc-123' has its complete before its submit in line 1"),
        ([asking(gpu_typ="A100")], "line 1: alloc: Object contains unknown field `gpu_typ`: its fields are nodes, id, walltime,"),
        ([asking(nodes=0), COMPLETE], "line 1: alloc.nodes: '0' is not a number of nodes"),
        ([asking(nodes=2.5), COMPLETE], "line 1: alloc.nodes: Expected"),
        ([asking(nodes={"min": 3}), COMPLETE], 'line 1: alloc.nodes: a range is {"min": 32, "max": 128}'),
        ([asking(walltime="3 days"), COMPLETE], "line 1: alloc.walltime: '3 days' is not a duration"),
        ([asking(walltime=-5), COMPLETE], "line 1: alloc.walltime: -5 is no length of time"),
        ([asking(walltime=0), COMPLETE], "line 1: alloc.walltime: 0 is no time to run"),
        ([asking(priority=11), COMPLETE], "line 1: alloc.priority: 11 is no preemption class from 0 to 10"),
        ([asking(topology="near"), COMPLETE], "line 1: alloc.topology: 'near' is none of any, tight, spread"),
        ([asking(memory="lots"), COMPLETE], "line 1: alloc.memory: 'lots' is not a quantity"),
        ([asking(gpus=-1), COMPLETE], "line 1: alloc.gpus: -1 is negative"),
        ([asking(node_list="n[3-1]"), COMPLETE], "line 1: alloc.node_list: 'n[3-1]' is not a node set"),
        ([{**SUBMIT, "ts": "yesterday"}, COMPLETE], "line 1: ts: 'yesterday' is not a time with a zone"),
        ([{**SUBMIT, "ts": "1969-12-31T23:00:00Z"}, COMPLETE], "line 1: ts: '1969-12-31T23:00:00Z' is before 1970"),
        ([{**COMPLETE, "duration": "-4h"}, SUBMIT], "line 1: duration: '-4h' is not a duration"),
        ([{"type": "tenant", "name": "a", "share": 1.5}], "line 1: share: 1.5 is no share between 0 and 1"),
        ([{"type": "trace", "format": 2}], "line 1: format: format 2 of traces is not known, this program reads format 1"),
        ([SUBMIT], "no job to replay: 0 of 1 jobs are left: 1 that did not end in the trace"),
    ],
    ids=lambda value: "" if isinstance(value, list) else value[:48],
)
def test_a_line_that_cannot_be_meant_is_refused_with_its_place(events: list[dict[str, Any]], sentence: str) -> None:
    with pytest.raises(Rejected) as refused:
        read(text(*events))
    assert sentence in refused.value.message
    assert refused.value.reason == "BadTrace"


@pytest.mark.parametrize("line", [b'{"ts": "2026', b"submit 64 nodes", b"\xff\xfe{}"], ids=["cut", "no JSON", "no UTF-8"])
def test_garbage_is_refused_with_its_line(line: bytes) -> None:
    with pytest.raises(Rejected, match="line 2 is no JSON object"):
        read([*text(SUBMIT), line])


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_read_again_as_the_same_jobs(kind: str) -> None:
    log = generate(kind, 7, nodes=64, hours=6)
    again = read(line.encode() for line in lines_of(log))
    assert [replace(job, line=0) for job in again.jobs] == log.jobs
    assert (again.inventory, again.tenants, again.vclusters) == (log.inventory, log.tenants, log.vclusters)


def test_every_field_of_a_job_survives_being_written() -> None:
    job = TraceJob(
        id="x", submit=1000.5, nodes=2, most=4, run=61.25, walltime=120.0, tenant="t", user="u", vcluster="v", name="n", preemption_class=9,
        need=Need(cpus=3, memory=1 << 30, gpus=2, features=frozenset({"a", "b"}), gpu_type="A100", gpu_memory=1 << 31, unified=True, allow_cxl=True),
        only="n[1-4]", without="n2", grace=5.0, topology="Tight", conformance="Required", checkpointable=False, preemptible=False,
        sensitive=True, started=1010.0, exit=137,
    )  # fmt: skip
    log = generate("empty-to-full", 1, nodes=32, hours=1)
    log.jobs = [job]
    assert replace(read(line.encode() for line in lines_of(log)).jobs[0], line=0) == job
