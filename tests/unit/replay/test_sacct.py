"""What sacct -P prints, and what of it is refused or left out, with the line, the column and the count."""

from __future__ import annotations

from zoneinfo import ZoneInfo

import pytest

from lattice.errors import Rejected
from lattice.replay.sacct import Translation, read
from lattice.scheduling.model.hardware import Need
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


@pytest.mark.parametrize(("written", "nodes"), [("1K", 1024), ("1.50K", 1536), ("12", 12), ("0.50K", 512)])
def test_numbers_of_nodes_are_read_as_sacct_shortens_them(written: str, nodes: int) -> None:
    assert read(table({"NNodes": written, "AllocTRES": "gres/gpu=2K", "ReqTRES": ""})).jobs[0].nodes == nodes


def test_a_name_that_is_no_utf_8_and_line_ends_of_another_system_stop_nothing() -> None:
    header, row = table({"JobName": "NAME"})
    (job,) = read([header.strip() + b"|\r\n", row.strip().replace(b"NAME", "été".encode("latin-1")) + b"|\r\n"]).jobs
    assert (job.name, job.nodes) == ("\\xe9t\\xe9", 2)


def test_several_outputs_in_one_file_are_one_trace() -> None:
    log = read([*table({}), *table({"JobID": "124"})])
    assert ([job.id for job in log.jobs], [job.line for job in log.jobs], log.total) == (["123", "124"], [2, 4], 2)


def test_what_the_site_left_without_a_limit_is_counted_because_nobody_can_count_on_its_end() -> None:
    log = read(table({}, {"JobID": "2", "Timelimit": "UNLIMITED"}, {"JobID": "3", "Timelimit": "Partition_Limit"}))
    assert [job.walltime for job in log.jobs] == [26 * 3600.0, None, None]
    assert log.changed.phrases() == ["2 jobs without a time limit, on whose end no reservation counts (Timelimit, first in line 3)"]


@pytest.mark.parametrize("state", ["REQUEUE_HOLD", "SPECIAL_EXIT", "STOPPED", "RESV_DEL_HOLD", "RUNNING+"])
def test_what_has_not_ended_is_known_by_every_name_that_sacct_has_for_it(state: str) -> None:
    log = read(table({}, {"JobID": "2", "State": state}))
    assert log.left.phrases() == ["1 that had not ended (State, first in line 3)"]


def test_every_part_of_a_heterogeneous_job_is_a_job() -> None:
    log = read(table({"JobID": "110+0"}, {"JobID": "110+1"}, {"JobID": "110+0.batch"}, {"JobID": "110+1.extern"}))
    assert [job.id for job in log.jobs] == ["110+0", "110+1"]


@pytest.mark.parametrize(
    ("gres", "need"),
    [
        ("gpu:a100:4", Need(gpus=4, gpu_type="a100")),
        ("gpu:4(IDX:0-3)", Need(gpus=4)),
        ("gpu", Need(gpus=1)),
        ("gpu:a100", Need(gpus=1, gpu_type="a100")),
        ("craynetwork:1,gres/gpu:2", Need(gpus=2)),
    ],
)
def test_gpus_of_each_node_are_read_from_generic_resources(gres: str, need: Need) -> None:
    header, row = table({"AllocTRES": "", "ReqTRES": ""})
    (job,) = read([header.replace(b"AllocTRES", b"AllocGRES"), row.strip() + gres.encode() + b"\n"]).jobs
    assert job.need == need


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
    assert log.left.counts == {
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
        ({"JobID": "123"}, "line 3: JobID: '123' stands already in line 2: leave -D out, which prints every attempt"),
        ({"JobID": "2", "Submit": "yesterday"}, "line 3: Submit: 'yesterday' is no time such as 2026-03-01T08:00:00"),
        ({"JobID": "2", "Submit": "1960-01-01T00:00:00"}, "line 3: Submit: '1960-01-01T00:00:00' is before 1970 or after 2999"),
        ({"JobID": "2", "Elapsed": "an hour"}, "line 3: Elapsed: 'an hour' is no length of time"),
        ({"JobID": "2", "Elapsed": "-01:00:00"}, "line 3: Elapsed: '-01:00:00' is no length of time"),
        ({"JobID": "2", "Elapsed": "", "End": "2026-03-01T08:00:00"}, "line 3: End: '2026-03-01T08:00:00' is before Start"),
        ({"JobID": "2", "NNodes": "-2"}, "line 3: NNodes: '-2' is no number from 0 to 1000000"),
        ({"JobID": "2", "State": "EXPLODED"}, "line 3: State: 'EXPLODED' is no state of sacct"),
        ({"JobID": "2", "NNodes": "²"}, "line 3: NNodes: '²' is no number from 0 to 1000000"),
        ({"JobID": "2", "NNodes": "1T"}, "line 3: NNodes: '1T' is no number from 0 to 1000000"),
        ({"JobID": "2", "AllocTRES": "gres/gpu=²"}, "line 3: AllocTRES: 'gres/gpu=²' has no number of GPUs in 'gres/gpu=²'"),
        ({"JobID": "2", "Submit": "9999-12-31T23:59:59-08:00"}, "is before 1970 or after 2999"),
        ({"JobID": "2", "AllocTRES": "cpu"}, "line 3: AllocTRES: 'cpu' has no '=' in 'cpu'"),
        ({"JobID": "2", "JobName": "a|b"}, "line 3 has 16 fields, the header names 15: a field with | or a line end in it (leave"),
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
        (b"JobID           JobName  Partition", "line 1: no | stands between the columns: print them with sacct -P"),
        (b"", "the trace is empty"),
    ],
)
def test_a_header_that_lacks_what_is_needed_is_refused(header: bytes, sentence: str) -> None:
    with pytest.raises(Rejected) as refused:
        read([header])
    assert sentence in refused.value.message
