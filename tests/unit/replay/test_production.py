"""The production cycle over a virtual clock: what starts when, what ends why, and that equal input gives equal bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest

from lattice.errors import Rejected
from lattice.replay.jobs import TenantTerms
from lattice.replay.measures import Ran, measure
from lattice.replay.plain import alike
from lattice.replay.production import Setting, fit, replay
from lattice.replay.synthetic import KINDS
from lattice.replay.table import rows
from lattice.scheduling.model.hardware import Need
from lattice.scheduling.model.policy import Policy

from .worlds import generated, job, log, play, starts


def test_a_job_starts_when_it_is_submitted_or_when_nodes_come_free() -> None:
    assert starts(play(log(job("a", 0, 100, 4), job("b", 5, 100, 4), job("c", 6, 50, 4)), 8)) == {"a": 0, "b": 5, "c": 100}


def test_an_end_comes_before_a_submission_of_the_same_second() -> None:
    assert starts(play(log(job("a", 0, 100, 8), job("b", 100, 10, 8)), 8)) == {"a": 0, "b": 100}


def test_a_short_job_goes_ahead_of_one_that_holds_a_reservation_and_is_counted_as_backfilled() -> None:
    done = play(log(job("a", 0, 36000, 6), job("b", 1, 36000, 8), job("c", 2, 3600, 2)), 8)
    assert starts(done) == {"a": 0, "c": 2, "b": 36000}
    assert [each.job.id for each in done.ran if each.backfilled] == ["c"]


def test_a_job_that_would_delay_the_reservation_waits_behind_it() -> None:
    done = play(log(job("a", 0, 36000, 6), job("b", 1, 36000, 8), job("c", 2, 80000, 2)), 8)
    assert starts(done) == {"a": 0, "b": 36000, "c": 72000}


def test_without_depth_nothing_is_reserved_and_the_wide_job_waits_for_all() -> None:
    work = log(job("a", 0, 36000, 6), job("b", 1, 36000, 8), job("c", 2, 80000, 2))
    assert starts(play(work, 8, default=Policy("default", depth=0))) == {"a": 0, "c": 2, "b": 80002}


def test_a_run_ends_at_its_walltime_and_is_counted() -> None:
    done = play(log(job("a", 0, 500, 1, walltime=100)), 1)
    assert [(each.end, each.killed) for each in done.ran] == [(100, True)]


def test_an_early_end_gives_the_nodes_at_once() -> None:
    assert starts(play(log(job("a", 0, 10, 4, walltime=1000), job("b", 1, 10, 4)), 4)) == {"a": 0, "b": 10}


def test_what_is_cancelled_while_it_waits_never_runs_and_what_runs_ends_then() -> None:
    done = play(log(job("a", 0, 100, 4), job("b", 1, 100, 4, withdrawn=50.0), job("c", 2, 100, 4, withdrawn=150.0)), 4)
    assert [each.id for each in done.withdrawn] == ["b"]
    assert [(each.job.id, each.start, each.end, each.killed) for each in done.ran] == [("a", 0, 100, False), ("c", 100, 150, False)]


def test_a_hard_quota_of_the_trace_holds() -> None:
    work = log(job("a", 0, 100, 2, tenant="t"), job("b", 1, 100, 2, tenant="t"), job("c", 2, 100, 2, tenant="u"))
    work.tenants = {"t": TenantTerms(max_nodes=3)}
    assert starts(play(work, 8)) == {"a": 0, "c": 2, "b": 100}


def test_a_job_that_never_fits_its_vcluster_is_said_with_its_reason() -> None:
    facts = [replace(node, home="other") for node in alike(4)]
    done = replay(log(job("a", 0, 10)), Setting(facts, {"default": Policy("default")}))
    assert [(work.id, reason) for work, reason, _ in done.stuck] == [("a", "NeverFits")]


def test_jobs_that_the_machine_could_never_hold_are_left_out_and_counted() -> None:
    work = log(job("a", 0, 1, 9), job("b", 0, 1, 1, need=Need(gpus=1)), job("c", 0, 1, 1, only="n99"), job("d", 0, 1, 1, only="n[1-2]"))
    kept = fit(work, alike(8))
    assert [each.id for each in kept.jobs] == ["d"]
    assert kept.left.counts == {
        "of more nodes than the machine has for them": 1,
        "that ask for hardware which no node has: --nodes takes an inventory that says it": 1,
        "that name nodes which the machine does not have": 1,
    }


def test_a_log_of_nothing_but_too_large_jobs_is_refused() -> None:
    with pytest.raises(Rejected, match="no job to replay: 0 of 1 jobs are left: 1 of more nodes than the machine has for them"):
        fit(log(job("a", 0, 1, 9)), alike(8))


def test_a_job_with_a_node_list_runs_there() -> None:
    done = play(log(job("a", 0, 10, 2, only="n[3-4]"), job("b", 0, 10, 1, without="n[1-4]")), 8)
    assert {each.job.id: each.nodes for each in done.ran}["a"] == (2, 3)
    assert {each.job.id: each.nodes for each in done.ran}["b"][0] > 3


def overlaps(ran: Iterable[Ran]) -> list[str]:
    """Nodes that two jobs held at one time."""
    held: dict[int, list[tuple[float, float]]] = {}
    for each in ran:
        for node in each.nodes:
            held.setdefault(node, []).append((each.start, each.end))
    pairs = ((node, before, after) for node, times in held.items() for before, after in pairwise(sorted(times)))
    return [f"{node}: {before} {after}" for node, before, after in pairs if after[0] < before[1]]


@pytest.mark.parametrize("kind", KINDS)
def test_no_node_is_held_twice_nobody_starts_early_and_everything_runs_in_a_generated_trace(kind: str) -> None:
    work, setting = generated(kind, 11, 32, 3)
    done = replay(work, setting)
    assert overlaps(done.ran) == []
    assert all(each.start >= each.job.submit and len(each.nodes) == each.job.nodes for each in done.ran)
    assert len(done.ran) == len(work.jobs)


def test_sensitive_nodes_are_used_by_nobody_else() -> None:
    work, setting = generated("sensitive-claim", 4, 32, 6)
    homes = {node.index: node.home for node in setting.nodes}
    assert all(homes[node] == ("sensitive" if each.job.sensitive else "") for each in replay(work, setting).ran for node in each.nodes)


def test_the_same_input_gives_the_same_bytes() -> None:
    found = []
    for _ in range(2):
        work, setting = generated("steady-state", 2, 32, 6)
        done = replay(work, setting)
        found.append(("".join(rows(done)), measure("x", done, work.tenants).document()))
    assert found[0] == found[1]


def test_other_weights_give_another_order() -> None:
    """Two tenants wait without reservations; with fair share alone who has used nothing goes first, with waiting alone the older job."""
    work = log(
        job("long", 0, 1000, 4, tenant="rich"), job("rich", 1, 10, 4, tenant="rich"), job("poor", 2, 10, 4, tenant="poor")
    )  # fmt: skip
    fair = Policy(
        "default", depth=0, weights=replace(Policy("x").weights, priority=0, wait_time=0, fair_share=1, topology=0, conformance=0)
    )
    old = replace(fair, weights=replace(fair.weights, fair_share=0, wait_time=1))
    assert [each.job.id for each in play(work, 4, default=fair).ran] == ["long", "poor", "rich"]
    assert [each.job.id for each in play(work, 4, default=old).ran] == ["long", "rich", "poor"]


def test_progress_counts_submissions() -> None:
    seen: list[int] = []
    work = log(*(job(f"j{at}", at, 1) for at in range(2000)))
    replay(work, Setting(alike(4), {"default": Policy("default")}), seen.append)
    assert seen == sorted(seen)
    assert 3 < len(seen) < 20
