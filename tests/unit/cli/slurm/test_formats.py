"""Slurm's programs print, byte for byte, what Slurm 22.05 printed of the same jobs (`recorded/`)."""

from __future__ import annotations

from pathlib import Path

import pytest

from lattice.cli.slurm import squeue
from lattice.cli.slurm.clock import long_span, midnight, processor_time, read_moment, short_span
from lattice.cli.slurm.columns import lines, read_codes, read_names, table
from lattice.cli.slurm.jobs import (
    CA,
    CD,
    PD,
    PENDING_WORDS,
    F,
    JobId,
    R,
    SlurmJob,
    State,
    parse_job,
    parse_step,
    reason_of,
    state_of,
    wanted_states,
)  # fmt: skip
from lattice.cli.slurm.options import grammar, parse
from lattice.cli.slurm.sacct import DEFAULT, FIELDS, AccountingLine
from lattice.errors import Rejected
from lattice.models.reasons import PENDING_REASONS

RECORDED = Path(__file__).parent / "recorded"


def recorded(name: str) -> tuple[str, list[str]]:
    """The command line, and the lines on standard output, of a recorded call of real Slurm."""
    text = (RECORDED / f"{name}.txt").read_text()
    head, _, rest = text.partition("--out--\n")
    return head.splitlines()[0].removeprefix("$ "), rest.partition("--err--\n")[0].splitlines()


def job(number: int, name: str, state: State, *, reason: str = "None", nodes: int = 1, nodelist: str = "", ran: float = 0) -> SlurmJob:
    """A job of root in the partition `all`, as real Slurm had them; it was submitted in order of the numbers."""
    start = None if state is PD else 1000.0
    return SlurmJob(
        id=JobId(number), name=name, user="root", account="", partition="all", state=state, reason=reason, nodes=nodes, nodelist=nodelist,
        submitted=number, start=start, end=1000 + ran, now=1000 + ran, priority=0 if reason == "JobHeldUser" else 6,
    )  # fmt: skip


SLEEPER = job(1, "sleeper", R, nodes=2, nodelist="n[0-1]", ran=1)
HELD = job(3, "wrap", PD, reason="JobHeldUser")
DEPENDENT = job(4, "wrap", PD, reason="Dependency")


@pytest.mark.parametrize(
    ("name", "spec", "shown"),
    [
        pytest.param("squeue", squeue.DEFAULT, [DEPENDENT, HELD, SLEEPER], id="as it is"),
        pytest.param("squeue_nf", "%i %t", [job(5, "sbatch", CD), job(2, "fails", F), DEPENDENT, HELD, SLEEPER], id="Nextflow's format"),
        pytest.param("squeue_w", "%.5i|%-8j|%.3j|%8j", [DEPENDENT, HELD, SLEEPER], id="widths, and a code that is none"),
    ],
)
def test_squeue_prints_what_slurm_printed(name: str, spec: str, shown: list[SlurmJob]) -> None:
    lead, columns, wrong = read_codes(spec, squeue.CODES, "job")
    assert lines(columns, shown, lead=lead, header="noheader" not in recorded(name)[0]) == recorded(name)[1]
    assert wrong == (["Invalid job format specification: -"] if "%-8j" in spec else [])


def test_squeue_after_the_end_of_jobs_has_reasons_for_failures_and_nodes_for_the_rest() -> None:
    shown = [
        job(1, "sleeper", CA, nodes=2, nodelist="n[0-1]", ran=2), job(5, "sbatch", CD, nodelist="n1", ran=1),
        job(3, "wrap", CD, nodelist="n0"), job(2, "fails", F, reason="NonZeroExitCode", nodelist="n0"),
        job(4, "wrap", PD, reason="DependencyNeverSatisfied"),
    ]  # fmt: skip
    _, columns, _ = read_codes(squeue.DEFAULT, squeue.CODES, "job")
    assert lines(columns, shown) == recorded("squeue_after")[1]


def test_squeue_in_long_has_its_heading_and_widths() -> None:
    _, columns, _ = read_codes(squeue.LONG, squeue.CODES, "job")
    ran = job(1, "sleeper", R, nodes=2, nodelist="n[0-1]", ran=2)
    assert lines(columns, [DEPENDENT, HELD, ran]) == recorded("squeue_l")[1][1:]


def test_squeue_with_names_of_fields_pads_and_cuts_them() -> None:
    columns, wrong = read_names("JobID,Name:5,State:.10,UserName", squeue.FIELDS, "job")
    assert lines(columns, [DEPENDENT, HELD, SLEEPER]) == recorded("squeue_O")[1]
    assert not wrong


def test_sacct_cuts_with_a_plus_and_puts_dashes_below_its_heading() -> None:
    columns = [FIELDS[name] for name in DEFAULT.split(",")]
    one = AccountingLine(job(12, "a-very-long-name", R, nodelist="n0"), cpus=2)
    batch = one._replace(step="batch", name="batch")
    assert table(columns, [one, batch], header=True) == [
        "JobID           JobName  Partition    Account  AllocCPUS      State ExitCode ",
        "------------ ---------- ---------- ---------- ---------- ---------- -------- ",
        "12           a-very-lo+        all                     2    RUNNING      0:0 ",
        "12.batch          batch                                2    RUNNING      0:0 ",
    ]
    pair = [FIELDS["jobid"], FIELDS["state"]]
    assert table(pair, [one], header=True, separator="|") == ["JobID|State", "12|RUNNING"]
    assert table(pair, [one], header=True, separator="|", ends=True) == ["JobID|State|", "12|RUNNING|"]


def test_every_reason_to_wait_has_a_word_of_slurm() -> None:
    assert set(PENDING_WORDS) == {reason.word for reason in PENDING_REASONS}


@pytest.mark.parametrize(
    ("phase", "reason", "leaving", "letters", "word"),
    [
        ("Pending", "Held", "", "PD", "JobHeldUser"),
        ("Pending", "WaitingForNodes", "", "PD", "Resources"),
        ("Staging", "", "", "CF", "None"),
        ("Running", "", "", "R", "None"),
        ("Running", "", "Ending", "CG", "None"),
        ("Completed", "Completed", "", "CD", "None"),
        ("Failed", "TaskFailed", "", "F", "NonZeroExitCode"),
        ("Failed", "WalltimeExceeded", "", "TO", "TimeLimit"),
        ("Failed", "NodeLost", "", "NF", "NodeDown"),
        ("Failed", "OutOfMemory", "", "OOM", "OutOfMemory"),
        ("Cancelled", "Cancelled", "", "CA", "None"),
        ("Cancelled", "DeadlineMissed", "", "DL", "DeadLine"),
    ],
)
def test_phases_become_states_of_slurm_and_no_others(phase: str, reason: str, leaving: str, letters: str, word: str) -> None:
    state = state_of(phase, reason, leaving)
    assert (state.letters, reason_of(state, reason)) == (letters, word)


@pytest.mark.parametrize(
    ("state", "code", "signal", "shown"),
    [(CD, 0, 0, "0:0"), (F, 3, 0, "3:0"), (F, 137, 9, "0:9"), (CA, 143, 15, "0:0"), (R, 0, 0, "0:0")],
    ids=["completed", "a code", "a signal", "cancelled", "running"],
)
def test_exit_codes_have_a_code_or_a_signal(state: State, code: int, signal: int, shown: str) -> None:
    ended = SlurmJob(
        id=JobId(1), name="", user="", account="", partition="", state=state, reason="", nodes=1, code=code, signal=signal
    )  # fmt: skip
    assert ended.exit_code == shown


def test_ids_have_one_form_for_jobs_elements_and_steps() -> None:
    assert (parse_job("12"), parse_job("12_7"), parse_job("12_7")) == (JobId(12), JobId(12, 7), JobId(12, 7))
    assert [parse_job(text) for text in ("", "x", "12_", "_7", "-1", "12_x", "²")] == [None] * 7
    assert (JobId(12).text, JobId(12, 7).text) == ("12", "12_7")
    found = parse_step("12.batch")
    assert found is not None
    assert (found.job, found.step) == (JobId(12), "batch")
    assert parse_step("12.x") is None


def test_states_are_named_by_letters_or_words_and_unknown_ones_are_refused_with_a_list() -> None:
    assert wanted_states(["pd", "RUNNING"]) == frozenset({PD, R})
    assert wanted_states(["all"]) is None
    assert wanted_states(["STOPPED"]) == frozenset()
    with pytest.raises(Rejected, match=r"Invalid job state specified: NOPE\nValid job states include: PENDING,RUNNING"):
        wanted_states(["NOPE"])


@pytest.mark.parametrize(
    ("seconds", "short", "long"),
    [(0, "0:00", "00:00:00"), (62, "1:02", "00:01:02"), (3600, "1:00:00", "01:00:00"), (172800, "2-00:00:00", "2-00:00:00"),
     (None, "UNLIMITED", "UNLIMITED")],
)  # fmt: skip
def test_durations_are_short_in_squeue_and_long_in_sacct(seconds: float | None, short: str, long: str) -> None:
    assert (short_span(seconds), long_span(seconds)) == (short, long)


def test_times_that_clients_give_are_read_and_others_refused() -> None:
    now = 1_800_000_000.0
    assert read_moment("now-2days", now) == now - 172800
    assert read_moment("now", now) == now
    assert read_moment("today", now) == midnight(now)
    assert read_moment("2026-11-25T11:00", now) + 3600 == read_moment("2026-11-25T12:00:00", now)
    assert processor_time(1.25) == "00:01.250"
    for text in ("", "soon", "now-2fortnights", "99:99"):
        with pytest.raises(Rejected, match="Invalid time specification"):
            read_moment(text, now)


GRAMMAR = grammar("prog", switches="noheader alpha", values="format jobs-of", optional="jobs", short="h=noheader o=format j=jobs")


@pytest.mark.parametrize(
    ("words", "options", "rest"),
    [
        (["-ho", "%i", "x"], [("noheader", None), ("format", "%i")], ["x"]),
        (["-o%i"], [("format", "%i")], []),
        (["--form=%i", "--", "-h"], [("format", "%i")], ["-h"]),
        (["--jobs=1,2", "-j3", "-j", "4"], [("jobs", "1,2"), ("jobs", "3"), ("jobs", None)], ["4"]),
        (["x", "--noh", "y"], [("noheader", None)], ["x", "y"]),
    ],
    ids=["letters in one", "glued", "abbreviated", "optional", "words between"],
)
def test_options_are_read_as_getopt_reads_them(words: list[str], options: list[tuple[str, str | None]], rest: list[str]) -> None:
    found = parse(GRAMMAR, words)
    assert (list(found.options), list(found.words)) == (options, rest)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--foo"], "prog: unrecognized option '--foo'"),
        (["-z"], "prog: invalid option -- 'z'"),
        (["-o"], "prog: option requires an argument -- 'o'"),
        (["--format"], "prog: option '--format' requires an argument"),
        (["--noheader=1"], "prog: option '--noheader' doesn't allow an argument"),
        (["--job"], "prog: option '--job' is ambiguous; possibilities: '--jobs-of' '--jobs'"),
    ],
)
def test_options_that_do_not_read_are_refused_in_the_words_of_getopt(words: list[str], sentence: str) -> None:
    with pytest.raises(Rejected) as refused:
        parse(GRAMMAR, words)
    assert refused.value.message == f'{sentence}\nTry "prog --help" for more information'
