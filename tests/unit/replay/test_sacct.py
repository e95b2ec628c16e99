"""What sacct -P prints, and what of it is refused or left out, with the line, the column and the count."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest

from lattice.errors import Rejected
from lattice.replay.sacct import Translation, read
from lattice.scheduling.machine import Need
from lattice.units import parse_time

COLUMNS = {
    "JobID": "123",
    "JobName": "wrf",
    "User": "alice",
    "Account": "climate",
    "Partition": "normal",
    "QOS": "urgent",
    "Submit": "2026-03-01T08:00:00",
    "Start": "2026-03-01T08:10:00",
    "End": "2026-03-01T09:10:00",
    "Elapsed": "01:00:00",
    "Timelimit": "1-02:00:00",
    "NNodes": "2",
    "State": "COMPLETED",
    "ReqTRES": "billing=8,cpu=8,gres/gpu=8,node=2",
    "AllocTRES": "billing=8,cpu=8,gres/gpu:a100=8,gres/gpu=8,mem=16G,node=2",
}


def table(*changes: dict[str, str]) -> list[bytes]:
    rows = ["|".join(COLUMNS)] + ["|".join({**COLUMNS, **change}.values()) for change in changes]
    return [f"{row}\n".encode() for row in rows]


def test_a_line_of_sacct_is_a_job() -> None:
    (job,) = read(table({}), Translation(classes={"urgent": 8})).jobs
    assert (job.id, job.nodes, job.run, job.walltime) == ("123", 2, 3600.0, 26 * 3600.0)
    assert (job.tenant, job.user, job.vcluster, job.name, job.preemption_class) == ("climate", "alice", "normal", "wrf", 8)
    assert job.need == Need(gpus=4, gpu_type="a100")
    assert job.submit == parse_time("2026-03-01T08:00:00Z")
    assert job.line == 2


def test_local_times_are_read_in_the_zone_that_is_given_across_a_change_of_daylight_saving() -> None:
    zurich = Translation(ZoneInfo("Europe/Zurich"))
    jobs = read(table({"Submit": "2026-03-29T01:30:00"}, {"JobID": "124", "Submit": "2026-03-29T03:30:00"}), zurich).jobs
    assert [job.submit for job in jobs] == [parse_time("2026-03-29T00:30:00Z"), parse_time("2026-03-29T01:30:00Z")]


def test_steps_are_parts_of_a_job_and_tasks_of_arrays_are_jobs() -> None:
    log = read(table({}, {"JobID": "123.batch"}, {"JobID": "123.0"}, {"JobID": "124_4"}, {"JobID": "124_4.extern"}, {"JobID": "7+1"}))
    assert [job.id for job in log.jobs] == ["123", "124_4", "7+1"]
    assert log.total == 3


def test_columns_may_stand_in_any_order_and_number_and_strange_ones_are_passed_over() -> None:
    lines = [b"ElapsedRaw|Comment|jobid|SUBMIT|AllocNodes|TimelimitRaw\n", b"90|x|5|1772352000|3|10\n"]
    (job,) = read(lines).jobs
    assert (job.nodes, job.run, job.walltime, job.submit) == (3, 90.0, 600.0, 1772352000.0)


def test_a_job_cancelled_in_the_queue_leaves_it_then() -> None:
    cancelled = {"State": "CANCELLED by 1000", "Start": "Unknown", "End": "2026-03-01T09:00:00", "Elapsed": "00:00:00"}
    (job,) = read(table(cancelled)).jobs
    assert (job.withdrawn, job.run) == (parse_time("2026-03-01T09:00:00Z"), 26 * 3600.0)


def test_an_unlimited_job_has_no_walltime() -> None:
    assert read(table({"Timelimit": "UNLIMITED"})).jobs[0].walltime is None


def test_what_cannot_be_replayed_is_left_out_and_counted() -> None:
    log = read(
        table(
            {},
            {"JobID": "2", "State": "RUNNING"},
            {"JobID": "3", "State": "PENDING", "Start": "Unknown", "End": "Unknown"},
            {"JobID": "4_[1-9]", "State": "PENDING"},
            {"JobID": "5", "Elapsed": "00:00:00", "State": "FAILED"},
            {"JobID": "6", "NNodes": "0"},
            {"JobID": "7", "Submit": "Unknown"},
        )
    )
    assert [job.id for job in log.jobs] == ["123"]
    assert log.total == 7
    assert log.left == {
        "that had not ended": 2,
        "that are arrays not yet split into tasks": 1,
        "without a run time": 1,
        "without nodes": 1,
        "without a submit time": 1,
    }


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"JobID": "job-3"}, "line 3: JobID: 'job-3' is no job id such as 123"),
        ({"JobID": "123"}, "line 3: JobID: '123' stands already in line 2; sacct -D prints every attempt"),
        ({"JobID": "2", "Submit": "yesterday"}, "line 3: Submit: 'yesterday' is no time such as 2026-03-01T08:00:00"),
        ({"JobID": "2", "Submit": "1960-01-01T00:00:00"}, "line 3: Submit: '1960-01-01T00:00:00' is before 1970"),
        ({"JobID": "2", "Elapsed": "an hour"}, "line 3: Elapsed: 'an hour' is no length of time"),
        ({"JobID": "2", "Elapsed": "-01:00:00"}, "line 3: Elapsed: '-01:00:00' is no length of time"),
        ({"JobID": "2", "Elapsed": "", "End": "2026-03-01T08:00:00"}, "line 3: End: '2026-03-01T08:00:00' is before Start"),
        ({"JobID": "2", "NNodes": "-2"}, "line 3: NNodes: '-2' is no number from 0 to 1000000"),
        ({"JobID": "2", "State": "EXPLODED"}, "line 3: State: 'EXPLODED' is no state of sacct"),
        ({"JobID": "2", "AllocTRES": "cpu"}, "line 3: AllocTRES: 'cpu' has no '=' in 'cpu'"),
        ({"JobID": "2", "JobName": "a|b"}, "line 3 has 16 fields, the header names 15: a field with | in it, or a cut line"),
    ],
    ids=lambda value: " ".join(value.values()) if isinstance(value, dict) else "",
)
def test_a_line_that_cannot_be_meant_is_refused_with_its_place(change: dict[str, str], sentence: str) -> None:
    with pytest.raises(Rejected) as refused:
        read(table({}, change))
    assert sentence in refused.value.message


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        (b"JobID|NNodes|Elapsed", "line 1: no column Submit; ask for sacct -a -P -X -o JobID,"),
        (b"JobID|Submit|Elapsed", "line 1: no column NNodes or AllocNodes or ReqNodes"),
        (b"JobID|JobID|Submit|NNodes|Elapsed", "line 1: the column JobID stands there twice"),
        (b"", "the trace is empty"),
    ],
)
def test_a_header_that_lacks_what_is_needed_is_refused(header: bytes, sentence: str) -> None:
    with pytest.raises(Rejected) as refused:
        read([header])
    assert sentence in refused.value.message
