"""The pure rooms of the trace: reading a log, and the check that nobody was passed over."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.errors import Corrupt, Rejected
from lattice_dev.state import Layout
from lattice_dev.trace.order import Commit, PassedOver, Queued, passed_over
from lattice_dev.trace.run import refuse_existing
from lattice_dev.trace.swf import SwfJob, first_jobs
from lattice_dev.trace.verdict import Ended, faults, order_faults, table, witness_faults


def row(job: int, *, submit: int = 0, run: int = 10, allocated: int = 1, requested: int = 1, time: int = 20) -> str:
    return f"{job} {submit} -1 {run} {allocated} -1 -1 {requested} {time} -1 1 1 1 1 1 1 -1 -1"


# The instance


def test_a_trace_takes_no_instance_that_stands_already(tmp_path: Path) -> None:
    refuse_existing(Layout(tmp_path, "mine"))
    (tmp_path / "mine").mkdir()
    with pytest.raises(Rejected, match="the instance mine exists"):
        refuse_existing(Layout(tmp_path, "mine"))


# The log


def test_comments_and_blank_lines_are_no_jobs() -> None:
    assert first_jobs(["; Version: 2", "", row(7, submit=3)], 1, 10) == [SwfJob(7, 3, 10, 1, 20)]


@pytest.mark.parametrize(
    ("dropped", "why"),
    [
        (row(1, allocated=11, requested=11), "larger than the machine"),
        (row(1, allocated=-1, requested=-1), "no processors"),
        (row(1, run=0), "did not run"),
        (row(1, run=-1), "unknown run time"),
        (row(1, time=-1), "no requested time"),
    ],
)
def test_the_filter_drops(dropped: str, why: str) -> None:
    assert [job.id for job in first_jobs([dropped, row(2)], 1, 10)] == [2], why


def test_requested_processors_stand_in_for_allocated_ones() -> None:
    assert first_jobs([row(1, allocated=-1, requested=8)], 1, 10)[0].nodes == 8


def test_a_run_is_cut_at_the_requested_time() -> None:
    assert first_jobs([row(1, run=30, time=20)], 1, 10)[0].run == 20


@pytest.mark.parametrize(("compression", "walltime"), [(1, 20), (10, 2), (7, 3), (1000, 1)])
def test_the_walltime_is_rounded_up_and_at_least_a_second(compression: float, walltime: int) -> None:
    assert SwfJob(1, 0, 10, 1, 20).walltime(compression) == walltime


@pytest.mark.parametrize("line", ["1 2 3", row(1).replace("10", "ten"), "1 2 3 4 5 nan 7 8 9 10 11 12 13 14 15 16 17 inf"])
def test_a_line_that_is_no_job_is_named(line: str) -> None:
    with pytest.raises(Rejected, match="line 2"):
        first_jobs([row(1), line], 2, 10)


def test_too_few_jobs_are_said_with_their_number() -> None:
    with pytest.raises(Rejected, match="the log has 1 jobs that fit on 10 nodes; 2 were asked for"):
        first_jobs([row(1)], 2, 10)


# The order


def queued(name: str, nodes: int, *, order: float, job_class: int = 2, seen: float = 0.0, takes: float = 0.0) -> Queued:
    return Queued(name, nodes, job_class, (order, name), seen, takes, started=6.0)


def judge(jobs: list[Queued], history: list[Commit], capacity: int = 10, depth: int = 0) -> list[PassedOver]:
    return passed_over(jobs, history, capacity=capacity, grace_seconds=1.0, depth=depth)


def test_an_earlier_job_that_fitted_and_was_passed_over_is_found() -> None:
    jobs = [queued("first", 4, order=1), queued("second", 2, order=2)]
    found = judge(jobs, [Commit(1, 5.0), Commit(2, 5.1, claimed=("second",))])
    assert found == [PassedOver("first", "second", 2, 4, 10)]
    assert str(found[0]) == "first needs 4 nodes, 10 were free for it, and second was placed first in seq 2"


def test_a_later_smaller_job_may_go_first_where_the_earlier_does_not_fit() -> None:
    jobs = [queued("holder", 8, order=0), queued("large", 4, order=1), queued("small", 2, order=2)]
    assert judge(jobs, [Commit(1, 5.0, claimed=("holder",)), Commit(2, 5.1, claimed=("small",))]) == []


@pytest.mark.parametrize(
    ("takes", "depth", "found"),
    [
        pytest.param(60.0, 1, [], id="it would hold what the wide one is promised at 200"),
        pytest.param(60.0, 0, ["long"], id="nobody is promised anything"),
        pytest.param(30.0, 1, ["long"], id="it would be gone by then"),
        pytest.param(47.0, 1, [], id="whether it would be gone in time hangs on the tolerance"),
    ],
)
def test_a_job_that_fits_beside_a_promise_is_passed_over_only_if_it_would_be_gone_in_time(
    takes: float, depth: int, found: list[str]
) -> None:
    jobs = [
        queued("holder", 6, order=0, takes=195.0), queued("wide", 8, order=1, takes=50.0), queued("long", 3, order=2, takes=takes),
        queued("short", 1, order=3, takes=10.0),
    ]  # fmt: skip
    history = [Commit(1, 5.0, claimed=("holder",)), Commit(2, 94.0, claimed=("short",))]
    assert [one.job for one in judge(jobs, history, depth=depth)] == found


def test_of_jobs_that_were_submitted_together_either_may_go_first_and_of_others_the_earlier() -> None:
    history = [Commit(1, 5.0), Commit(2, 5.1, claimed=("second",))]
    for apart, found in ((0.2, []), (0.3, ["first"])):
        jobs = [queued("first", 4, order=1), queued("second", 8, order=2, seen=apart)]
        judged = passed_over(jobs, history, capacity=10, grace_seconds=1.0, together_seconds=0.25)
        assert [one.job for one in judged] == found


def test_another_class_may_go_first() -> None:
    jobs = [queued("first", 4, order=1), queued("urgent", 2, order=2, job_class=8)]
    assert judge(jobs, [Commit(1, 5.0), Commit(2, 5.1, claimed=("urgent",))]) == []


def test_a_job_that_was_not_seen_long_enough_ago_does_not_count_as_waiting() -> None:
    jobs = [queued("first", 4, order=1, seen=4.5), queued("second", 2, order=2)]
    assert judge(jobs, [Commit(1, 5.0), Commit(2, 5.1, claimed=("second",))]) == []


def test_what_the_commit_before_gave_back_may_not_have_been_known() -> None:
    jobs = [queued("holder", 8, order=0), queued("large", 8, order=1), queued("small", 2, order=2)]
    history = [Commit(1, 5.0, claimed=("holder",)), Commit(2, 5.1, released=("holder",)), Commit(3, 5.2, claimed=("small",))]
    assert judge(jobs, history) == []


def test_what_was_given_back_before_that_was_known() -> None:
    jobs = [queued("holder", 8, order=0), queued("large", 8, order=1), queued("small", 2, order=2)]
    history = [
        Commit(1, 5.0, claimed=("holder",)),
        Commit(2, 5.1, released=("holder",)),
        Commit(3, 5.2),
        Commit(4, 5.3, claimed=("small",)),
    ]
    assert [found.job for found in judge(jobs, history)] == ["large"]


@pytest.mark.parametrize(
    ("history", "reason"),
    [
        ([Commit(1, 0.0), Commit(3, 0.0)], "HistoryHole"),
        ([Commit(1, 0.0, claimed=("a",)), Commit(2, 0.0, released=("a",)), Commit(3, 0.0, claimed=("a",))], "ClaimedTwice"),
        ([Commit(1, 0.0, released=("a",))], "ReleasedTwice"),
        ([Commit(1, 0.0, claimed=("a", "b"))], "TooManyHeld"),
    ],
)
def test_a_history_that_cannot_be_is_refused(history: list[Commit], reason: str) -> None:
    jobs = [queued("a", 6, order=1), queued("b", 6, order=2)]
    with pytest.raises(Corrupt) as caught:
        judge(jobs, history)
    assert caught.value.reason == reason
    assert order_faults(jobs, history, capacity=10, grace_seconds=1.0) == [caught.value.message]


@given(st.integers(0, 2**32), st.integers(4, 12), st.integers(2, 25))
def test_a_strict_first_fit_passes_over_nobody_and_each_finding_is_an_earlier_job_that_fitted(seed: int, capacity: int, count: int) -> None:
    """The rule itself, played by a naive scheduler, is accepted; a scheduler that takes the last first is caught where it mattered."""
    fair, unfair = _play(seed, capacity, count, fair=True), _play(seed, capacity, count, fair=False)
    assert judge(*fair, capacity=capacity) == []
    jobs, history = unfair
    sizes = {job.name: job for job in jobs}
    for finding in judge(jobs, history, capacity=capacity):
        assert sizes[finding.job].order < sizes[finding.by].order
        assert sizes[finding.job].nodes <= finding.free


def _play(seed: int, capacity: int, count: int, *, fair: bool) -> tuple[list[Queued], list[Commit]]:
    chance = random.Random(seed)
    jobs = [queued(f"j{number:02d}", chance.randint(1, capacity), order=number, seen=float(number)) for number in range(count)]
    held: dict[str, int] = {}
    waiting, history, now = list(jobs), [Commit(0, 0.0)], 0.0
    while waiting or held:
        now += 1.5
        ended = sorted(name for name in held if chance.random() < 0.5)
        history.append(Commit(len(history), now, released=tuple(ended)))
        for name in ended:
            del held[name]
        claimed, order = [], [job for job in waiting if job.seen <= now]
        for job in order if fair else reversed(order):
            if sum(held.values()) + job.nodes <= capacity:
                held[job.name] = job.nodes
                claimed.append(job.name)
        history.append(Commit(len(history), now + 0.1, claimed=tuple(claimed)))
        waiting = [job for job in waiting if job.name not in claimed]
    return jobs, history


# The verdict


def ended(name: str, *, phase: str = "Completed", attempt: int = 1, at: float | None = 3.0) -> Ended:
    return Ended(name, 2, 0.0, 1.0, at, phase, phase, attempt, ("WaitingForNodes",))


def test_every_way_in_which_a_job_has_not_ended_once_is_a_sentence() -> None:
    ends = {
        "right": ended("right"),
        "open": ended("open", phase="Running", at=None),
        "wrong": ended("wrong", phase="Cancelled"),
        "twice": ended("twice", attempt=2),
    }
    assert list(faults(["right", "open", "wrong", "twice", "lost"], ends, frozenset({"Completed"}))) == [
        "open has not ended: Running",
        "wrong ended Cancelled (Cancelled), not Completed",
        "twice ended in attempt 2: it was started more than once",
        "lost is not there",
    ]


def test_the_works_own_witness_knows_each_rank_once() -> None:
    assert list(witness_faults(["a 1 0", "a 1 1"], {"a": 2})) == []
    assert list(witness_faults(["a 1 0", "a 1 0", "b 2 0"], {"a": 2})) == [
        "rank 0 of a ran 2 times",
        "rank 1 of a ran 0 times",
        "work ran that nobody asked for: b 2 0",
    ]


def test_each_wait_is_printed_with_the_reason_that_it_showed() -> None:
    assert table([ended("kth-0001")])[1].split() == ["kth-0001", "2", "1.00", "2.00", "Completed", "WaitingForNodes"]
