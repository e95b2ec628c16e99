"""SWF as it is published, and what is refused or left out, with the line, the field and the count."""

from __future__ import annotations

import pytest

from lattice.errors import Rejected
from lattice.replay.swf import FIELDS, Trace, parse
from lattice.replay.workload import Left, Machine, Workload, select

GOOD = "1 0 5 100 4 -1 -1 4 200 -1 1 1 1 -1 -1 -1 -1 -1"


def line(**changes: object) -> str:
    """A line of one job; `f1`… are the fields by number from 1."""
    words: list[object] = list(GOOD.split())
    for name, value in changes.items():
        words[int(name[1:]) - 1] = value
    return " ".join(map(str, words))


def read(*lines: str) -> Trace:
    return parse([(text + "\n").encode() for text in lines])


def replayed(*lines: str, nodes: int = 10, procs_per_node: int = 1) -> tuple[Workload, Left]:
    return select(read(*lines), Machine(nodes, procs_per_node))


def test_the_columns_of_a_line_and_the_header_are_read() -> None:
    trace = read("; MaxProcs: 100", ";MaxNodes:  50", "; MaxProcs: some", "", "  " + GOOD + "  ")
    assert [list(column) for column in (trace.job, trace.submit, trace.run, trace.allocated, trace.requested, trace.estimate)] == [
        [1], [0], [100], [4], [4], [200],
    ]  # fmt: skip
    assert (trace.header, list(trace.line)) == ({"maxprocs": 100, "maxnodes": 50}, [5])


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        (GOOD + " 1 2 3", "line 2 has 21 fields, a line of SWF has 18: field 19 is '1'"),
        (GOOD[:-6], "line 2 has 16 fields, a line of SWF has 18: preceding job (field 17) is missing"),
        ("hello world", "line 2: job number (field 1): 'hello' is no number"),
        (line(f2="12:30"), "line 2: submit time (field 2): '12:30' is no number"),
        (line(f9="nan"), "line 2: requested time (field 9): 'nan' is no number"),
        (line(f4="1e5"), "line 2: run time (field 4): '1e5' is no number"),
        (line(f4="1_000"), "line 2: run time (field 4): '1_000' is no number"),
        (line(f4="--5"), "line 2: run time (field 4): '--5' is no number"),
        (line(f18="x" * 70000), f"line 2: think time (field 18): '{'x' * 40}…' is no number"),
        (line(f2=10**13), "line 2: submit time (field 2): '10000000000000' is above 10^12, which no log means"),
        (line(f2=-(10**40)), f"line 2: submit time (field 2): '-1{'0' * 38}…' is above 10^12, which no log means"),
        (line(f12="1.5"), "line 2: user (field 12): '1.5' is no whole number"),
        (line(f8="2.5"), "line 2: requested processors (field 8): '2.5' is no whole number"),
        (line(f1="1.5"), "line 2: job number (field 1): '1.5' is no whole number"),
        (GOOD, "line 2: job number 1 stands already in line 1"),
    ],
    ids=[
        "21 fields", "16 fields", "words", "a clock", "nan", "exponent", "underscore", "two signs", "endless word", "too large",
        "far below zero", "half a user", "half a processor", "half a number", "the same job twice",
    ],
)  # fmt: skip
def test_a_line_that_cannot_be_meant_is_refused_with_its_number_and_field(bad: str, sentence: str) -> None:
    with pytest.raises(Rejected) as refused:
        read(GOOD, bad)
    assert (refused.value.message, refused.value.reason) == (sentence, "BadTrace")


@pytest.mark.parametrize("written", ["1.16e+09", "2E5", "+7", ".5e3", "99999999999999999"])
def test_numbers_that_nobody_reads_may_be_rounded_as_awk_rounds_them(written: str) -> None:
    work, left = replayed(line(f6=written, f7=written, f10=written, f18=written))
    assert (list(work.job), left.changed.phrases()) == ([1], [])


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b" \t\r\n", b""])
def test_line_ends_tabs_and_blanks_of_any_kind_are_read(end: bytes) -> None:
    text = b"\t " + GOOD.replace(" ", "\t  ").encode()
    trace = parse([b" ; MaxProcs: 7 (was 8)" + end, "; Installation: Universität".encode("latin-1") + end, end, text + end])
    assert (list(trace.job), list(trace.line), trace.header) == ([1], [4], {"maxprocs": 7})


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(Rejected, match=r"line 1: job number \(field 1\): '\\x7fELF\\x02\\x01' is no number"):
        parse([b"\x7fELF\x02\x01 \x00\x00\n"])


def test_a_job_number_is_found_again_however_far_back_it_stands() -> None:
    with pytest.raises(Rejected, match="line 5: job number 7 stands already in line 2"):
        read(*(line(f1=number) for number in (3, 7, 5, 9, 7)))


def test_lines_that_are_parts_of_a_job_above_them_are_left_out() -> None:
    work, left = replayed(line(f1=4), line(f1=4, f11=2), line(f1=4, f11=3), line(f1=5))
    assert (list(work.job), left.changed.phrases(), left.out.total) == (
        [4, 5],
        ["2 lines left out that are parts of a job above them (field 11, first in line 2)"],
        0,
    )


def test_parts_of_seconds_are_cut_and_half_a_second_is_one() -> None:
    work, left = replayed(line(f2="3.7", f4="0.5", f9="9.", f6="1.25"), line(f1=2, f6="99.5"), line(f1=3, f8="4.0"))
    assert ([list(work.submit)[2], list(work.run)[2], list(work.estimate)[2]], left.changed.phrases()[:1]) == (
        [3, 1, 9],
        ["1 lines with parts of seconds cut to whole ones (field 2, first in line 1)"],
    )


@pytest.mark.parametrize(
    ("other", "phrase"),
    [
        ({"f8": 11}, "1 of more than 10 processors (field 8, first in line 2)"),
        ({"f5": 11}, "1 of more than 10 processors (field 5, first in line 2)"),
        ({"f5": 0, "f8": -1}, "1 without processors (fields 5 and 8, first in line 2)"),
        ({"f4": 0}, "1 without a run time (field 4, first in line 2)"),
        ({"f4": -1}, "1 without a run time (field 4, first in line 2)"),
        ({"f9": -1}, "1 without a requested time (field 9, first in line 2)"),
        ({"f2": -1}, "1 without a submit time (field 2, first in line 2)"),
        ({"f2": -77}, "1 without a submit time (field 2, first in line 2)"),
    ],
)
def test_a_job_that_cannot_be_replayed_is_left_out_and_counted(other: dict[str, int], phrase: str) -> None:
    work, left = replayed(GOOD, line(f1=2, **other))
    assert (list(work.job), left.out.total, left.out.phrases()) == ([1], 1, [phrase])


def test_a_requested_time_that_is_missing_is_the_run_time_when_that_is_asked() -> None:
    trace = read(line(f9=-1), line(f1=2, f4=0, f9=-1), line(f1=3, f4=50, f9=60))
    work, left = select(trace, Machine(10), run_stands_in=True)
    assert (list(work.job), list(work.run), list(work.estimate)) == ([1, 3], [100, 50], [100, 60])
    assert left.out.phrases() == ["1 without a run time (field 4, first in line 2)"]
    assert left.changed.phrases() == ["1 requested times that are missing taken from the run (field 9, first in line 1)"]


@pytest.mark.parametrize(("allocated", "requested", "used"), [(4, -1, 4), (0, 4, 4), (3, 5, 5), (5, 3, 3)])
def test_one_of_allocated_and_requested_processors_replaces_the_other(allocated: int, requested: int, used: int) -> None:
    work, _ = replayed(line(f5=allocated, f8=requested))
    assert list(work.procs) == [used]


def test_a_run_is_cut_at_its_requested_time() -> None:
    work, left = replayed(line(f4=500, f9=200), line(f1=2))
    assert (list(work.run), left.changed.phrases()) == ([200, 100], ["1 runs cut at their requested time (field 4, first in line 1)"])


def test_lines_out_of_order_are_sorted_by_submit_time_equal_ones_by_line() -> None:
    work, left = replayed(line(f1=1, f2=9), line(f1=2, f2=4), line(f1=3, f2=9), line(f1=4, f2=4))
    assert (list(work.job), left.changed.phrases()) == (
        [2, 4, 1, 3],
        ["2 lines out of order sorted by submit time (field 2, first in line 2)"],
    )


def test_processors_are_rounded_up_to_whole_nodes() -> None:
    work, left = replayed(*(line(f1=count, f5=count, f8=count) for count in (1, 16, 17, 160, 161)), nodes=10, procs_per_node=16)
    assert (list(work.procs), list(work.nodes), left.out.total) == ([1, 16, 17, 160], [1, 1, 2, 10], 1)


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ([], "the trace has no line of a job"),
        (["; only a header"], "the trace has no line of a job"),
        (
            [line(f8=99), line(f1=2, f4=0)],
            "0 of 2 jobs are left: 1 of more than 10 processors (field 8, first in line 1), 1 without a run time (field 4, first in line 2)",
        ),
        (
            [line(f9=-1)],
            "1 without a requested time (field 9, first in line 1); --missing-estimates=run-time plans jobs that requested no time with",
        ),
    ],
    ids=["nothing", "a header", "none that fits", "no requested times"],
)
def test_a_log_without_a_job_to_replay_is_refused(lines: list[str], sentence: str) -> None:
    with pytest.raises(Rejected) as refused:
        replayed(*lines)
    assert refused.value.message.startswith("no job to replay: ")
    assert sentence in refused.value.message


def test_there_are_eighteen_fields() -> None:
    assert len(FIELDS) == len(GOOD.split()) == 18
