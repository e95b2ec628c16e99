"""The counts-only engine against the naive simulation, its own invariants, and the published rows of KTH-SP2."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.errors import Corrupt
from lattice.replay.engine import Backfill, Estimates, Policy, simulate
from lattice.replay.report import report
from lattice.replay.swf import parse
from lattice.replay.workload import Machine, Workload, select

from .logs import EVERY, Job, Naive, random_log, workload

LOGS = 1000
EACH = pytest.mark.parametrize(("policy", "estimates"), EVERY, ids=[f"{policy}-{estimates}" for policy, estimates in EVERY])


@EACH
def test_the_engine_starts_every_job_when_the_naive_simulation_does(policy: Policy, estimates: Estimates) -> None:
    for seed in range(LOGS):
        jobs, nodes = random_log(seed)
        wanted = Naive(jobs, nodes, policy, estimates).simulate()
        assert simulate(workload(jobs), nodes, policy, estimates) == wanted, f"seed {seed}"


@EACH
def test_a_long_queue_is_asked_as_the_naive_simulation_asks_it(policy: Policy, estimates: Estimates) -> None:
    for seed in range(2):
        jobs, nodes = random_log(seed, most=1)
        while len(jobs) < 260:
            jobs += random_log(seed + len(jobs))[0]
        jobs = sorted((Job(job.submit, job.run, job.estimate, min(job.nodes, nodes + 3)) for job in jobs), key=lambda job: job.submit)
        assert simulate(workload(jobs), nodes + 3, policy, estimates) == Naive(jobs, nodes + 3, policy, estimates).simulate()


@pytest.mark.parametrize(("policy", "estimates"), EVERY[1:], ids=[f"{policy}-{estimates}" for policy, estimates in EVERY[1:]])
@pytest.mark.parametrize("seed", range(8))
def test_what_is_kept_from_event_to_event_is_what_is_found_anew(policy: Policy, estimates: Estimates, seed: int) -> None:
    jobs, nodes = random_log(seed, most=60)
    backfill = Backfill(workload(jobs), nodes, policy, estimates)
    backfill.validate()
    while backfill.advance():
        backfill.validate()


def test_a_summary_that_is_wrong_is_found() -> None:
    backfill = Backfill(workload([Job(0, 5, 9, 2)]), 3, Policy.EASY, Estimates.USER)
    backfill.advance()
    backfill.start[0] = 1
    with pytest.raises(Corrupt, match="differ from the 1 running jobs"):
        backfill.validate()


@st.composite
def logs(draw: st.DrawFn) -> tuple[list[Job], int]:
    nodes = draw(st.integers(1, 8))
    times = st.integers(1, 9)
    jobs = draw(
        st.lists(st.builds(lambda s, r, e, n: Job(s, r, r + e, n), st.integers(0, 20), times, times, st.integers(1, nodes)), max_size=12)
    )
    return sorted(jobs, key=lambda job: job.submit), nodes


@EACH
@settings(max_examples=60, deadline=None)
@given(log=logs())
def test_nobody_starts_before_submission_and_no_node_is_given_twice(
    policy: Policy, estimates: Estimates, log: tuple[list[Job], int]
) -> None:
    jobs, nodes = log
    starts = simulate(workload(jobs), nodes, policy, estimates)
    assert all(start >= job.submit for job, start in zip(jobs, starts, strict=True))
    for now in starts:
        assert sum(job.nodes for job, start in zip(jobs, starts, strict=True) if start <= now < start + job.run) <= nodes


@settings(max_examples=60, deadline=None)
@given(log=logs())
def test_fcfs_starts_nobody_before_an_earlier_job(log: tuple[list[Job], int]) -> None:
    starts = simulate(workload(log[0]), log[1], Policy.FCFS, Estimates.USER)
    assert starts == sorted(starts)


# What the policies mean, in the smallest logs that tell them apart

BLOCKED = [Job(0, 10, 10, 6), Job(1, 10, 10, 10)]
"""Ten nodes: 4 are free until 10, when the head takes all of them."""


@pytest.mark.parametrize(
    ("later", "start"),
    [
        (Job(2, 8, 8, 4), 2),
        (Job(2, 9, 9, 4), 20),
        (Job(2, 8, 8, 5), 20),
    ],
    ids=["ends exactly at the shadow", "would end after it", "does not fit"],
)
def test_a_later_job_starts_ahead_only_if_it_does_not_delay_the_head(later: Job, start: int) -> None:
    assert simulate(workload([*BLOCKED, later]), 10, Policy.EASY, Estimates.USER) == [0, 10, start]


def test_extra_nodes_may_be_held_beyond_the_shadow_until_they_are_used_up() -> None:
    jobs = [Job(0, 10, 10, 6), Job(1, 10, 10, 7), Job(2, 50, 50, 2), Job(3, 50, 50, 2), Job(4, 50, 50, 1)]
    assert simulate(workload(jobs), 10, Policy.EASY, Estimates.USER) == [0, 10, 2, 20, 4]


def test_an_early_end_brings_the_head_nearer_and_those_behind_it_are_asked_again() -> None:
    jobs = [Job(0, 3, 30, 5), Job(0, 9, 9, 4), Job(1, 5, 5, 8), Job(2, 7, 7, 3)]
    assert simulate(workload(jobs), 10, Policy.EASY, Estimates.USER) == [0, 0, 9, 14]
    assert simulate(workload([*jobs[:3], Job(2, 6, 6, 3)]), 10, Policy.EASY, Estimates.USER) == [0, 0, 9, 3]


def test_the_shortest_estimate_is_asked_first_and_equal_ones_by_submission() -> None:
    jobs = [*BLOCKED, Job(2, 6, 6, 3), Job(2, 5, 5, 3), Job(2, 5, 5, 3)]
    assert simulate(workload(jobs), 10, Policy.EASY, Estimates.USER) == [0, 10, 2, 20, 20]
    assert simulate(workload(jobs), 10, Policy.EASY_SJBF, Estimates.USER) == [0, 10, 20, 2, 20]


def test_ends_come_before_submissions_and_both_before_the_pass() -> None:
    jobs = [Job(0, 5, 5, 10), Job(5, 5, 5, 4), Job(5, 2, 2, 6)]
    for policy, estimates in EVERY:
        assert simulate(workload(jobs), 10, policy, estimates) == [0, 5, 5]


def test_progress_counts_submissions_and_never_goes_back() -> None:
    seen: list[int] = []
    many = workload([Job(at, 1, 1, 1) for at in range(20_000)])
    for policy in Policy:
        seen.clear()
        simulate(many, 1, policy, Estimates.USER, seen.append)
        assert seen == sorted(seen)
        assert 1 < len(seen) < 100


# The published rows

DATA = Path(os.environ.get("LATTICE_DATA", Path(__file__).resolve().parents[4] / "shared" / "data"))
ROWS = {
    ("easy", "exact"): {"flow": "15187.608", "slowdown": "71.7224", "maximum": "10017.2", "rms": "368.667"},
    ("easy", "user"): {"flow": "15694.513", "slowdown": "92.6877", "maximum": "14805.2", "rms": "476.409"},
    ("easy-sjbf", "exact"): {"flow": "14295.740", "slowdown": "49.8472", "maximum": "9941.7", "rms": "326.210"},
    ("fcfs", "user"): {"wait": "353776.41", "utilisation": "0.6852", "makespan": "29379608"},
}


@pytest.fixture(scope="module")
def kth() -> Workload:
    path = DATA / "KTH-SP2.swf.gz"
    if not path.is_file():
        pytest.fail(f"{path} is not there: set LATTICE_DATA to the folder with KTH-SP2.swf.gz")
    with gzip.open(path) as lines:
        jobs, left = select(parse(lines), Machine(100))
    assert (len(jobs), left.out.total) == (28481, 0)
    return jobs


@pytest.mark.parametrize(("policy", "estimates"), ROWS, ids="-".join)
def test_the_published_row_of_kth_sp2_is_met_to_every_digit(kth: Workload, policy: str, estimates: str) -> None:
    found = report(kth, simulate(kth, 100, Policy(policy), Estimates(estimates)), 100)
    printed = {
        "wait": f"{found.avg_wait:.2f}",
        "flow": f"{found.avg_flow:.3f}",
        "slowdown": f"{found.avg_bounded_slowdown:.4f}",
        "maximum": f"{found.max_bounded_slowdown:.1f}",
        "rms": f"{found.rms_bounded_slowdown:.3f}",
        "utilisation": f"{found.utilisation:.4f}",
        "makespan": str(found.makespan),
    }
    wanted = ROWS[policy, estimates]
    assert {name: printed[name] for name in wanted} == wanted
