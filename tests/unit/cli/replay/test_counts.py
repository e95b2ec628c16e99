"""`lattice replay`: what is printed, what is written, and that nothing is when the trace is bad."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import pytest

from lattice.cli.replay.progress import Progress
from lattice.cli.replay.trace import trace_lines
from tests.unit.cli.conftest import Bench

LOG = """; MaxProcs: 10
1 0 0 10 6 -1 -1 6 10 -1 1 1 1 -1 -1 -1 -1 -1
2 1 0 10 10 -1 -1 10 10 -1 1 1 1 -1 -1 -1 -1 -1
3 2 0 8 4 -1 -1 4 8 -1 1 1 1 -1 -1 -1 -1 -1
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "small.swf"
    path.write_text(LOG)
    return path


def test_json_has_exactly_these_numbers(bench: Bench, log: Path) -> None:
    result = bench.run("replay", str(log), "--nodes", "10", "--policy", "easy", "--estimates", "exact", "-o", "json")
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out) == {
        "jobs": 3,
        "avg_wait": 3.0,
        "avg_flow": pytest.approx(37 / 3),
        "avg_bounded_slowdown": pytest.approx((1 + 1.9 + 1) / 3),
        "max_bounded_slowdown": 1.9,
        "rms_bounded_slowdown": pytest.approx(((1 + 1.9**2 + 1) / 3) ** 0.5),
        "utilisation": 0.96,
        "makespan": 20,
    }


def test_the_table_shows_the_same_for_people_and_the_waits(bench: Bench, log: Path) -> None:
    result = bench.run("replay", str(log), "--nodes=10", "--policy=fcfs")
    assert result.code == 0
    assert result.out.splitlines() == [
        "Replay:            3 jobs on 10 nodes, fcfs",
        "Wait:              average 9.00 s (9s)",
        "Wait p50/p95/p99:  9 / 18 / 18 s (9s / 18s / 18s)",
        "Flow time:         average 18.333 s (18s)",
        "Bounded slowdown:  average 1.8333, maximum 2.6, RMS 1.947",
        "Utilisation:       0.6857",
        "Makespan:          28 s (28s)",
    ]


@pytest.mark.parametrize("packed", [False, True], ids=["plain named .gz", "gzip named .swf"])
def test_gzip_is_told_by_content_not_by_name(bench: Bench, tmp_path: Path, packed: bool) -> None:
    path = tmp_path / ("trace.swf" if packed else "trace.swf.gz")
    path.write_bytes(gzip.compress(LOG.encode()) if packed else LOG.encode())
    assert json.loads(bench.run("replay", str(path), "--nodes=10", "-o", "json").out)["jobs"] == 3


def test_a_trace_may_come_from_standard_input(bench: Bench) -> None:
    assert json.loads(bench.run("replay", "-", "--nodes=10", "-o", "json", stdin=LOG).out)["jobs"] == 3


def test_the_schedule_has_a_line_for_each_job_and_every_run_gives_the_same_bytes(bench: Bench, log: Path) -> None:
    runs = []
    for name in ("one.csv", "two.csv"):
        path = log.with_name(name)
        result = bench.run("replay", str(log), "--nodes=10", "--schedule", str(path), "-o", "json")
        runs.append((result.out, path.read_bytes()))
    assert runs[0] == runs[1]
    assert runs[0][1] == b"job,submit,start,end,procs\n1,0,0,10,6\n2,1,10,20,10\n3,2,2,10,4\n"
    assert sorted(path.name for path in log.parent.iterdir()) == ["one.csv", "small.swf", "two.csv"]


def test_what_the_filter_left_out_or_changed_is_said_with_counts(bench: Bench, log: Path) -> None:
    log.write_text(LOG + "5 9 0 20 1 -1 -1 1 10 -1 1 1 1 -1 -1 -1 -1 -1\n4 8 0 0 1 -1 -1 1 10 -1 1 1 1 -1 -1 -1 -1 -1\n")
    result = bench.run("replay", str(log), "--nodes=6", "-o", "json")
    assert json.loads(result.out)["jobs"] == 3
    assert result.err.splitlines() == [
        "Warning: 2 of 5 jobs left out: 1 of more than 6 processors (field 8, first in line 3), 1 without a run time (field 4, first in line 6)",
        "Note: 1 runs cut at their requested time (field 4, first in line 5)",
        "Note: the log is of a machine with 10 processors, this replay is on 6",
    ]


def test_a_mark_before_the_first_line_and_members_of_gzip_one_after_another_are_read(bench: Bench, log: Path) -> None:
    first, second, *rest = LOG.encode().splitlines(keepends=True)
    members = [b"\xef\xbb\xbf" + first + second[:9], second[9:], b"".join(rest)]
    log.write_bytes(b"".join(gzip.compress(member) for member in members))
    result = bench.run("replay", str(log), "--nodes=10", "-o", "json")
    assert (json.loads(result.out)["jobs"], result.err) == (3, "")


@pytest.mark.parametrize(
    ("header", "hint"),
    [
        ("; MaxProcs: 100", "; the log's header says MaxProcs: 100, which is --nodes=100\n"),
        ("; MaxNodes: 1024 (of 32 processors)", "; the log's header says MaxNodes: 1024, which is --nodes=1024\n"),
        (
            "; MaxNodes: 1152\n; MaxProcs: 9216",
            "MaxNodes: 1152, MaxProcs: 9216, which is --nodes=9216 or --nodes=1152 --procs-per-node=8 where jobs hold whole nodes\n",
        ),
        ("; Computer: Cray", "how many nodes the machine has\n"),
    ],
    ids=["processors", "nodes", "both", "neither"],
)
def test_without_nodes_the_header_says_what_could_be_meant(bench: Bench, log: Path, header: str, hint: str) -> None:
    log.write_text(LOG.replace("; MaxProcs: 10", header))
    result = bench.run("replay", str(log), "--policy=easy")
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("Error: --nodes is missing: how many nodes the machine has")
    assert hint in result.err


def test_a_log_of_another_machine_says_how_many_processors_a_node_would_have(bench: Bench, log: Path) -> None:
    assert bench.run("replay", str(log), "--nodes=5", "--procs-per-node=2").err == ""
    assert "(--procs-per-node=2 makes them equal)" in bench.run("replay", str(log), "--nodes=5").err


def test_a_log_without_requested_times_is_planned_with_its_runs_when_that_is_asked(bench: Bench, log: Path) -> None:
    log.write_text(LOG.replace(" 10 -1 1 1 1 ", " -1 -1 1 1 1 ").replace(" 8 -1 1 1 1 ", " -1 -1 1 1 1 "))
    refused = bench.run("replay", str(log), "--nodes=10")
    assert (refused.code, refused.out) == (2, "")
    assert "3 without a requested time (field 9, first in line 2); --missing-estimates=run-time plans" in refused.err
    done = bench.run("replay", str(log), "--nodes=10", "--missing-estimates=run-time", "-o", "json")
    assert json.loads(done.out)["makespan"] == 20
    assert done.err == "Note: 3 requested times that are missing taken from the run (field 9, first in line 2)\n"


def test_a_line_as_long_as_a_great_machine_needs_is_read_whole() -> None:
    long = b'{"type":"nodes",' + b"x" * 1_000_000 + b"}\n"
    progress = Progress(io.StringIO(), lambda: 0.0, quiet=True)
    assert list(trace_lines("-", io.BytesIO(long + b"{}"), progress)) == [long, b"{}"]


def truncated() -> bytes:
    return gzip.compress(LOG.encode())[:-12]


def flipped() -> bytes:
    packed = bytearray(gzip.compress(LOG.encode()))
    packed[-6] ^= 0xFF
    return bytes(packed)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (truncated(), "is truncated: its gzip data end in the middle, after line"),
        (flipped(), "is damaged after line"),
        (b"BZh91AY&SY", "is packed with bzip2; gzip and plain text are read: unpack it first: bzip2 -dc FILE | lattice replay - …"),
        (b"", "no job to replay: the trace has no line of a job"),
        (LOG.encode() + b"4 9 0 10", "line 5 has 4 fields, a line of SWF has 18"),
        (LOG.encode() + b"\xff\xfe", r"line 5: job number (field 1): '\xff\xfe' is no number"),
        (LOG.encode() + b"9" * 200_000, "line 5: job number (field 1)"),
        (LOG.encode() + LOG.encode(), "line 6: job number 1 stands already in line 2"),
    ],
    ids=["truncated gzip", "damaged gzip", "bzip2", "empty", "cut line", "no text", "no line ends", "twice the same"],
)
def test_a_bad_trace_says_where_and_prints_and_writes_nothing(bench: Bench, log: Path, content: bytes, sentence: str) -> None:
    log.write_bytes(content)
    result = bench.run("replay", str(log), "--nodes=10", "-o", "json", "--schedule", str(log.with_name("out.csv")))
    assert (result.code, result.out) == (2, "")
    assert sentence in result.err
    assert [path.name for path in log.parent.iterdir()] == ["small.swf"]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (["--nodes=0"], "'0' is no whole number from 1 to 1000000000"),
        (["--nodes=1e3"], "'1e3' is no whole number from 1"),
        (["--nodes=-4"], "'-4' is no whole number from 1"),
        ([], "--nodes is missing: how many nodes the machine has"),
        (["--nodes=10", "--policy=sjf"], "invalid choice: 'sjf'"),
        (["--nodes=10", "--procs-per-node=0"], "'0' is no whole number from 1"),
        (["--nodes=10", "-o", "name"], "a replay has no names to print"),
        (["--nodes=10", "--time-zone=Europe/Zurich"], "--time-zone is for traces of sacct, this is a trace in SWF: leave it out"),
        (["--nodes=10", "--class-of=urgent=8"], "--class-of is for traces of sacct, this is a trace in SWF"),
        (["--nodes=10", "--since=7d"], "--since is for capture, this is a trace in SWF"),
        (["--nodes=10", "-o", "out.json"], "-o out.json looks like a file, and a replay writes a folder: leave .json out"),
        (["--nodes=10", "--seed=4"], "--seed is for generate and suite, this is a trace in SWF"),
        (["--nodes=10", "--schedule=/nowhere/out.csv"], "--schedule: /nowhere/out.csv cannot be written: there is no folder /nowhere"),
        (["--nodes=10", "--schedule=-"], "--schedule=- names no file: --schedule=/dev/stdout prints it"),
        (["--nodes=10", "--schedule=."], "cannot be written: Is a directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_flag_that_cannot_be_meant_is_refused(
    bench: Bench, log: Path, flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = bench.run("replay", str(log), *flags)
    assert (result.code, result.out) == (2, "")
    assert sentence in result.err + capsys.readouterr().err


def test_a_missing_trace_and_a_directory_are_refused(bench: Bench, tmp_path: Path) -> None:
    missing = bench.run("replay", str(tmp_path / "none.swf"), "--nodes=1")
    folder = bench.run("replay", str(tmp_path), "--nodes=1")
    assert (missing.code, folder.code) == (2, 2)
    assert "none.swf cannot be read: No such file or directory" in missing.err
    assert "cannot be read: Is a directory" in folder.err


def test_the_trace_is_never_overwritten_by_its_schedule(bench: Bench, log: Path) -> None:
    result = bench.run("replay", str(log), "--nodes=10", "--schedule", str(log))
    assert (result.code, log.read_text()) == (2, LOG)


def test_a_schedule_may_go_to_a_device(bench: Bench, log: Path) -> None:
    assert bench.run("replay", str(log), "--nodes=10", "--schedule=/dev/null").code == 0
    assert Path("/dev/null").is_char_device()


class Terminal(io.StringIO):
    """A standard error that somebody looks at."""

    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_for_what_takes_long_and_taken_away() -> None:
    seconds = iter([0.0, 0.1, 0.3, 0.35, 9.0])
    stream = Terminal()
    progress = Progress(stream, lambda: next(seconds), quiet=False)
    progress.show("reading", 0.1)  # too soon
    progress.show("reading", 0.5)
    progress.close()
    assert stream.getvalue() == "\rreading     [###############...............]  50%\r\x1b[K"


@pytest.mark.parametrize(("stream", "quiet"), [(io.StringIO(), False), (Terminal(), True)], ids=["no terminal", "quiet"])
def test_progress_is_shown_nowhere_else(stream: io.StringIO, quiet: bool) -> None:
    seconds = iter(range(0, 100, 10))
    progress = Progress(stream, lambda: next(seconds), quiet=quiet)
    progress.show("reading", 0.5)
    progress.close()
    assert stream.getvalue() == ""
