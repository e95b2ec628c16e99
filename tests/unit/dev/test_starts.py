"""Timelines of starts from the lines of several daemons."""

import pytest

from lattice.daemon.starts import STEPS
from lattice.errors import NotFound
from lattice_dev.bench import starts
from lattice_dev.bench.auditlog import Moment
from lattice_dev.bench.starts import StepLine, TracedStart

START = TracedStart("u-1", "physics/a", 100.0, 100.1)


def step(name: str, milliseconds: float, node: str = "", allocation: str = "u-1", offset: float = 50.0) -> StepLine:
    return StepLine(allocation, name, 100.0 + milliseconds / 1000, offset, node)


def found(*steps: StepLine) -> dict[str, float]:
    return {name: round(at * 1000, 3) for name, at in starts.ends(START, steps).items()}


def test_every_step_is_covered_in_its_order() -> None:
    assert tuple(starts.COVERS) == STEPS


def test_until_all_are_ready_the_last_node_counts_and_after_it_the_first() -> None:
    when = found(
        step("watch", 40, "n1"), step("watch", 42, "n2"), step("prepare", 60, "n1"), step("prepare", 55, "n2"), step("gather", 61, "n1"),
        step("ready", 70, "n2"), step("ready", 62, "n1"), step("fork", 80, "n1"), step("fork", 79, "n2"),
    )  # fmt: skip
    assert when == {"watch": 42, "prepare": 60, "gather": 61, "ready": 62, "fork": 79, "exec": 100}


def test_the_webhook_is_done_with_its_last_answer_and_was_asked_with_the_first_question() -> None:
    keys = [step("post", 3, allocation="physics/a"), step("webhook", 5, allocation="physics/a")]
    again = [step("post", 8, allocation="physics/a"), step("webhook", 9, allocation="physics/a")]
    assert found(*keys, *again) == {"post": 3, "webhook": 9, "exec": 100}


def test_what_a_node_asks_again_later_is_no_step() -> None:
    assert found(step("ask", 45, "n1"), step("read", 50, "n1"), step("ask", 150, "n1")) == {"ask": 45, "read": 50, "exec": 100}


def test_an_answer_that_comes_after_its_watch_event_ends_with_that() -> None:
    when = found(step("commit", 30), step("plan", 44), step("watch", 41, "n1"))
    assert when == {"commit": 30, "plan": 41, "watch": 41, "exec": 100}
    assert [round(took * 1000) for took in starts.took(starts.ends(START, [step("commit", 30), step("plan", 44)])).values()] == [30, 14, 56]


def test_lines_of_other_starts_are_not_read() -> None:
    with pytest.raises(NotFound, match="--trace-starts"):
        starts.ends(START, [step("cycle", 3, allocation="u-2"), step("post", -900, allocation="physics/a")])


def test_a_clock_that_was_set_is_noticed() -> None:
    assert not starts.clock_was_set([])
    assert not starts.clock_was_set([step("cycle", 3), step("commit", 5, offset=50.001)])
    assert starts.clock_was_set([step("cycle", 3), step("commit", 5, offset=50.1)])


def test_the_table_shows_medians_tails_and_shares() -> None:
    lines = starts.table([{"cycle": 0.010, "exec": 0.100}, {"cycle": 0.030, "exec": 0.100}])
    assert [line.split()[:4] for line in lines] == [
        ["STEP", "P50", "P99", "SHARE"], ["cycle", "10.0", "30.0", "20.0%"], ["exec", "70.0", "90.0", "80.0%"],
        ["all", "100", "100", "100.0%"],
    ]  # fmt: skip


def test_a_timeline_has_a_bar_a_step_and_a_bar_a_write_within_a_terminal() -> None:
    when = starts.ends(START, [step("post", 1, allocation="physics/a"), step("commit", 50)])
    writes = [
        Moment("update ledgers/status", 100.030, 100.049),
        Moment("update allocations/status", 100.090, 100.120),
        Moment("create allocations", 99.0, 99.1),
    ]
    lines = starts.timeline(START, when, writes)
    assert lines[0] == "physics/a: 100.0 ms from its POST to its first process"
    assert [line.split()[:3] for line in lines[1:4]] == [["post", "0.0", "1.0"], ["commit", "1.0", "49.0"], ["exec", "50.0", "50.0"]]
    assert [line.split()[:4] for line in lines[5:]] == [
        ["update", "ledgers/status", "30.0", "19.0"], ["update", "allocations/status", "90.0", "10.0"],
    ]  # fmt: skip
    assert all(len(line) <= 100 and "█" in line for line in lines[1:4] + lines[5:])


def test_logs_alone_tell_of_the_starts_that_are_whole_in_them() -> None:
    def line(name: str, at: float, allocation: str = "u-1", more: str = "") -> str:
        said = f"allocation={allocation} step={name} boottime={at - 50:.6f} epoch={at:.6f}{more}"
        return f"2026-11-22T10:00:00.000Z INFO lattice.starts StartStep {said}"

    lines = [
        line("post", 100.0, "physics/a"), line("informer", 100.02, more=" key=physics/a"), line("watch", 100.04, more=" node=n1"),
        line("exec", 100.06, more=" node=n1"), line("exec", 100.07, more=" node=n2"), line("informer", 100.1, "u-2", " key=physics/b"), "else",
    ]  # fmt: skip
    found = starts.report(lines)
    shown = found.index("physics/a: 60.0 ms from its POST to its first process")
    assert found[0] == "1 starts"
    assert [line.split()[0] for line in found[shown + 1 :]] == ["post", "informer", "watch", "exec"]
    with pytest.raises(NotFound, match="--trace-starts"):
        starts.report(lines[1:3])
