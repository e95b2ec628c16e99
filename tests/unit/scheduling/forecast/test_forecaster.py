"""Expected starts from a scene: p50 before p90 before the bound, exact where nothing is uncertain, a reason where there is none."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.forecast.forecaster import EXACT_JOBS, UNBOUNDED_WORK, Expected, Forecaster, features_of, foresee
from lattice.scheduling.model.hardware import Need
from lattice.scheduling.model.outcomes import Placed, Waiting
from lattice.scheduling.model.policy import INTERACTIVE_FIFO, Borrowing, Limits, Policy
from lattice.scheduling.model.windows import ReservationWindow
from lattice.scheduling.model.work import REQUIRED, TIGHT, Candidate, NodeHolder
from lattice.scheduling.state.cluster_state import START_ALLOWANCE, ClusterState, PowerBudget
from lattice.views.ledger import TenantAccount
from lattice_dev.bench.plan import crowd, naive_forecast, plain_node
from tests import build
from tests.build import uid

NOW = 1_000_000.0
job = partial(build.job, walltime=600.0)


def state(nodes: int = 4, **facts: Any) -> ClusterState:
    made = ClusterState(accounts={"physics": TenantAccount()}, start_allowance=0.0)
    for index in range(nodes):
        made.node_cache.put(replace(plain_node(index), **facts))
    return made


def running(made: ClusterState, number: int, nodes: tuple[int, ...], left: float | None, **fields: Any) -> None:
    """Work on these nodes that began a hundred seconds ago and ends, by its walltime, `left` seconds from now."""
    base: dict[str, Any] = {
        "uid": f"r{number}", "key": f"physics/r{number}", "tenant": "physics", "user": "alice", "vcluster": "hpc", "preemption_class": 5,
        "since": NOW - 100, "started": NOW - 100, "end": None if left is None else NOW + left, "walltime": None if left is None else left + 100,
    }  # fmt: skip
    made.put_holder(NodeHolder(nodes=nodes, **{**base, **fields}))


def ask(
    made: ClusterState, *jobs: Candidate, forecaster: Forecaster | None = None, waiting: tuple[Waiting, ...] = ()
) -> dict[str, Expected]:
    queues: dict[str, list[Candidate]] = {}
    for one in jobs:
        queues.setdefault(one.vcluster, []).append(one)
    return (forecaster or Forecaster()).forecast(made, queues, NOW, waiting)


def test_without_anything_learnt_the_walltimes_give_the_start() -> None:
    made = state()
    running(made, 0, (0, 1, 2), 500.0)
    found = ask(made, job(1, 4), job(2, 2))
    assert (found[uid(1)].p50, found[uid(2)].p50) == (NOW + 500, NOW + 1100)


def test_learnt_run_times_bring_the_start_nearer() -> None:
    made, forecaster = state(), Forecaster()
    running(made, 0, (0, 1, 2, 3), 900.0)
    for _ in range(8):
        forecaster.learn(features_of(made.holders["r0"], 4, 1000.0), 300.0)
    found = ask(made, job(1, 4), forecaster=forecaster)
    assert found[uid(1)].p50 == pytest.approx(NOW + 200)


def test_work_that_was_placed_and_has_not_started_runs_from_its_first_process() -> None:
    made = state()
    made.start_allowance = START_ALLOWANCE
    running(made, 0, (0, 1, 2, 3), 1000.0, started=None, since=NOW, walltime=600.0)
    assert ask(made, job(1, 4))[uid(1)].p50 == NOW + START_ALLOWANCE + 600


def test_work_whose_like_starts_early_is_not_foreseen_before_it_may_start() -> None:
    made, forecaster = state(), Forecaster()
    running(made, 0, (0, 1), 500.0)
    for number in range(300):
        forecaster.calibration.predicted(str(number), forecaster.calibration.calibrated(NOW, NOW + 5000, NOW + 6000))
        forecaster.calibration.started(str(number), NOW + 1000)
    found = ask(made, job(1, not_before=NOW + 5000), job(2, 4, walltime=4000.0), forecaster=forecaster)
    expected = found[uid(1)]
    assert expected.p50 == NOW + 5000
    assert expected.p90 is not None
    assert expected.p90 > NOW + 5000


def test_wide_and_narrow_work_learn_apart() -> None:
    made, forecaster = state(12), Forecaster()
    running(made, 0, tuple(range(12)), 5000.0)
    for number in range(300):
        late = 3000 * (number % 2)
        forecaster.calibration.predicted(str(number), forecaster.calibration.calibrated(NOW, NOW + 5000, NOW + 5100, width=number % 2))
        forecaster.calibration.started(str(number), NOW + 5000 + late)
    found = ask(made, job(1, 12), forecaster=forecaster)[uid(1)], ask(made, job(1, 1), forecaster=forecaster)[uid(1)]
    wide, narrow = (one.p90 - NOW for one in found if one.p90 is not None)
    assert wide > 7000
    assert narrow < 6500


def test_overdue_work_is_given_a_little_longer() -> None:
    made = state()
    running(made, 0, (0, 1, 2, 3), -50.0, walltime=10.0, releasing=True)
    assert ask(made, job(1, 4))[uid(1)].p50 == NOW + made.overrun_seconds


@pytest.mark.parametrize(
    ("candidate", "reason"),
    [
        (job(1, 5), "NeverFits"),
        (job(1, need=Need(gpus=1)), "NeverFits"),
        (job(1, held=True), "Held"),
        (job(1, blocked=("WaitingForDependency", "waits")), "WaitingForDependency"),
        (job(1, vcluster_open=False), "VClusterClosed"),
        (job(1, reservation="over"), "ReservedNodes"),
        (job(1, 4), UNBOUNDED_WORK),
    ],
    ids=["too many", "no such node", "held", "dependency", "closed", "no reservation", "unbounded"],
)
def test_where_no_start_can_be_foreseen_the_reason_says_so_and_nobody_else_waits_for_it(candidate: Candidate, reason: str) -> None:
    made = state()
    running(made, 0, (0,), None)
    found = ask(made, candidate, job(2, 3))
    assert found[uid(1)] == Expected(reason=reason)
    assert found[uid(2)].p50 == NOW


def test_nodes_that_cannot_be_used_say_so() -> None:
    assert ask(state(usable=False, state="Drained"), job(1))[uid(1)] == Expected(reason="NodesUnavailable")


def cycled(made: ClusterState, *jobs: Candidate) -> dict[str, Expected]:
    """What is foreseen of work that a cycle left waiting."""
    queue = list(jobs)
    waiting = tuple(one for one in decide(made, "hpc", queue, NOW) if isinstance(one, Waiting))
    assert {one.candidate.uid for one in waiting} == {one.uid for one in queue}
    return ask(made, *queue, waiting=waiting)


def test_what_was_tried_and_did_not_fit_is_foreseen_after_the_next_end_although_enough_nodes_are_free() -> None:
    made = state(0)
    for index in range(8):
        made.node_cache.put(replace(plain_node(index), group=f"g{index // 4}", watts=500, fingerprint="ab"[index % 2]))
    running(made, 0, (0,), 500.0)
    running(made, 1, (4,), 900.0)
    assert cycled(made, job(1, 4, topology=TIGHT))[uid(1)].p50 == NOW + 500
    assert cycled(made, job(2, 4, conformance=REQUIRED, need=Need(only=0b11110111)))[uid(2)].p50 == NOW + 500
    made.power = PowerBudget(3000)
    assert cycled(made, job(4, 7))[uid(4)] == Expected(reason="PowerBudget"), "more than the whole budget"
    found = cycled(made, job(3, 5))[uid(3)]
    assert found.p50 == NOW + 500
    assert found.p90 is not None
    assert found.p90 >= NOW + 500


def test_no_start_is_foreseen_where_too_few_nodes_are_equal_until_some_more_are() -> None:
    made = state(0)
    for index in range(6):
        made.node_cache.put(replace(plain_node(index), fingerprint="ab"[index % 2]))
    running(made, 0, (0,), 500.0)
    forecaster = Forecaster()
    assert ask(made, job(4, 4, conformance=REQUIRED), forecaster=forecaster)[uid(4)] == Expected(reason="InsufficientConformance")
    assert ask(made, job(3, 3, conformance=REQUIRED), forecaster=forecaster)[uid(3)].p50 is not None
    made.node_cache.put(replace(plain_node(0), fingerprint="b"))
    asked = job(4, 4, conformance=REQUIRED)
    assert ask(made, asked, forecaster=forecaster)[uid(4)].p50 is not None, "node 0 was brought up to date"
    made.node_cache.put(replace(plain_node(0), fingerprint=""))
    assert ask(made, asked, forecaster=forecaster)[uid(4)] == Expected(reason="InsufficientConformance")


def test_without_any_end_the_reason_is_what_keeps_it() -> None:
    made = state(4, watts=500)
    made.power = PowerBudget(1500)
    assert cycled(made, job(1, 4))[uid(1)] == Expected(reason="PowerBudget")
    running(made, 0, (0, 1), None)
    assert cycled(made, job(2, 2))[uid(2)] == Expected(reason="PowerBudget")


def test_not_before_is_kept() -> None:
    assert ask(state(), job(1, not_before=NOW + 77))[uid(1)].p50 == NOW + 77


def test_hard_quota_is_foreseen_to_come_free() -> None:
    made = state()
    made.accounts = {"physics": TenantAccount(max_nodes=2, used_nodes=2)}
    running(made, 0, (0, 1), 300.0)
    assert ask(made, job(1, 1))[uid(1)].p50 == NOW + 300


def test_the_hard_quota_of_a_user_is_foreseen_to_come_free_in_whatever_vcluster() -> None:
    made = state()
    made.accounts = {"physics": TenantAccount(user_max_nodes=2)}
    running(made, 0, (0, 1), 300.0)
    found = ask(made, job(1, 1, vcluster="other"), job(2, user="bob"))
    assert (found[uid(1)].p50, found[uid(2)].p50) == (NOW + 300, NOW)


def test_more_than_the_quota_allows_is_never_foreseen() -> None:
    made = state()
    made.accounts = {"physics": TenantAccount(max_nodes=2, used_nodes=2)}
    running(made, 0, (0, 1), 300.0)
    assert ask(made, job(1, 3))[uid(1)] == Expected(reason="WaitingForQuotaHeadroom")


def test_work_that_starts_while_a_forecast_is_made_is_not_promised_anything_afterwards() -> None:
    made, forecaster = state(), Forecaster()
    running(made, 0, (0, 1, 2, 3), 500.0)
    snapshot = forecaster.take_snapshot(made, {"hpc": [job(1), job(2)]}, NOW)
    foreseen = foresee(snapshot, forecaster.run_times)
    forecaster.started(uid(1), NOW + 1)
    assert list(forecaster.conclude(snapshot, foreseen)) == [uid(2)]
    assert forecaster.started(uid(1), NOW + 2) is None


def test_work_that_goes_while_a_forecast_is_made_keeps_no_reason_why_it_waits_either() -> None:
    made, forecaster = state(), Forecaster()
    running(made, 0, (0, 1, 2, 3), None)
    snapshot = forecaster.take_snapshot(made, {"hpc": [job(1), job(2), job(3)]}, NOW)
    foreseen = foresee(snapshot, forecaster.run_times)
    assert set(foreseen.silent) == {uid(1), uid(2), uid(3)}
    forecaster.started(uid(1), NOW + 1)
    forecaster.drop_allocation(uid(2))
    assert list(forecaster.conclude(snapshot, foreseen)) == [uid(3)]


def test_what_is_supposed_is_not_remembered() -> None:
    made, forecaster = state(), Forecaster()
    running(made, 0, (0, 1, 2, 3), 500.0)
    snapshot = forecaster.take_snapshot(made, {"hpc": [job(1), job(2, 9)]}, NOW)
    found = forecaster.suppose(snapshot, foresee(snapshot, forecaster.run_times), [uid(1), uid(2)])
    assert (found[uid(1)].p50, found[uid(2)].reason) == (NOW + 500, "NeverFits")
    assert forecaster.started(uid(1), NOW + 500) is None


def test_a_users_limit_in_a_vcluster_is_foreseen_to_come_free() -> None:
    made = state()
    made.policies = {"hpc": Policy("hpc", limits=Limits(max_running_per_user=1))}
    running(made, 0, (0,), 300.0)
    found = ask(made, job(1), job(2, user="bob"))
    assert (found[uid(1)].p50, found[uid(2)].p50) == (NOW + 300, NOW)


def test_each_vcluster_waits_for_its_own_nodes_and_for_those_it_may_borrow() -> None:
    made = ClusterState(accounts={"physics": TenantAccount()})
    for index in range(4):
        made.node_cache.put(replace(plain_node(index), home="hpc" if index < 2 else "ml"))
    lend, borrow = Borrowing(lend=True), Borrowing(borrow=True)
    made.policies = {"hpc": Policy("hpc", home=True), "ml": Policy("ml", home=True, borrowing=lend), "dev": Policy("dev", borrowing=borrow)}
    running(made, 0, (0, 1), 400.0)
    running(made, 1, (2, 3), 200.0, vcluster="ml")
    found = ask(made, job(1, 2), job(2, 2, vcluster="dev"), job(3, 3), job(4, 2, vcluster="dev", preemptible=False))
    assert (found[uid(1)].p50, found[uid(2)].p50) == (NOW + 400, NOW + 200)
    assert found[uid(3)].reason == found[uid(4)].reason == "NeverFits"


@pytest.mark.parametrize(
    ("lender", "borrower", "walltime", "may"),
    [
        (Borrowing(lend=True), Borrowing(borrow=True), 600.0, True),
        (Borrowing(lend=True, max_duration=500.0), Borrowing(borrow=True), 600.0, False),
        (Borrowing(lend=True), Borrowing(borrow=True, max_duration=600.0), 600.0, True),
        (Borrowing(lend=True), Borrowing(borrow=True, max_duration=600.0), None, False),
        (Borrowing(lend=True), Borrowing(borrow=True, max_borrowed=0), 600.0, False),
        (Borrowing(), Borrowing(borrow=True), 600.0, False),
    ],
    ids=["lends", "too long for the lender", "just short enough", "unbounded", "nothing allowed", "does not lend"],
)
def test_nodes_of_others_are_foreseen_only_where_they_may_be_borrowed(
    lender: Borrowing, borrower: Borrowing, walltime: float | None, may: bool
) -> None:
    made = state(2, home="ml")
    made.policies = {"ml": Policy("ml", home=True, borrowing=lender), "hpc": Policy("hpc", borrowing=borrower)}
    assert (ask(made, job(1, 2, walltime=walltime))[uid(1)].p50 == NOW) == may


def test_the_interactive_queue_keeps_its_order() -> None:
    made = state(home="hpc")
    made.policies = {"hpc": Policy("hpc", INTERACTIVE_FIFO, home=True)}
    running(made, 0, (0, 1), 300.0)
    found = ask(made, job(1, 3), job(2, 1, walltime=10.0))
    assert found[uid(2)].p50 == NOW + 300


def test_a_maintenance_is_waited_for() -> None:
    made = state()
    made.set_windows([ReservationWindow("maint", NOW + 100, NOW + 1000, 0b1111, maintenance=True)])
    found = ask(made, job(1, 1), job(2, 1, walltime=50.0))
    assert (found[uid(1)].p50, found[uid(2)].p50) == (NOW + 1000, NOW)


def test_work_of_a_reservation_starts_in_its_first_window_with_room_for_it_and_on_its_nodes() -> None:
    made = state()
    windows = [(100.0, 500.0), (1100.0, 2100.0), (3100.0, 4100.0)]
    made.set_windows([ReservationWindow("daily", NOW + start, NOW + end, 0b0011) for start, end in windows])
    asked = [job(1, 2, reservation="daily", walltime=300.0), job(2, 2, reservation="daily"), job(3, 3, reservation="daily")]
    found = ask(made, *asked, job(4, 1, reservation="daily", walltime=5000.0), job(5, 4, walltime=90.0))
    assert [found[uid(number)].p50 for number in (1, 2, 5)] == [NOW + 100, NOW + 1100, NOW]
    assert [found[uid(number)].reason for number in (3, 4)] == ["NeverFits", "ReservedNodes"]


def test_nothing_is_foreseen_after_the_latest_start_that_a_reservation_gives() -> None:
    made = state()
    running(made, 0, (0, 1, 2, 3), 500.0)
    found = ask(made, job(1, 4), waiting=(Waiting(job(1, 4), "WaitingForNodes", "", latest=NOW + 510),))[uid(1)]
    assert (found.p50, found.p90) == (NOW + 500, NOW + 510)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 500), st.booleans()), min_size=1, max_size=12), st.data())
def test_p50_is_never_after_p90_nor_before_now(asked: list[tuple[int, int, bool]], data: st.DataObject) -> None:
    made, forecaster = state(), Forecaster()
    running(made, 0, (0, 1), float(data.draw(st.integers(1, 900))))
    for _ in range(data.draw(st.integers(0, 12))):
        forecaster.learn(features_of(made.holders["r0"], 2, 900.0), float(data.draw(st.integers(1, 900))))
    jobs = [job(number, nodes, walltime=float(walltime), held=held) for number, (nodes, walltime, held) in enumerate(asked)]
    for expected in ask(made, *jobs, forecaster=forecaster).values():
        assert (expected.p50 is None) == (expected.p90 is None) == (expected.reason != "")
        if expected.p50 is not None and expected.p90 is not None:
            assert NOW <= expected.p50 <= expected.p90


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 50)), min_size=1, max_size=10))
def test_when_runs_last_their_walltimes_each_start_is_the_one_foreseen_at_submission(asked: list[tuple[int, int]]) -> None:
    """In order, since a queue that is played strictly has one plan only; the real cycle decides the starts."""
    made, forecaster = state(home="hpc"), Forecaster()
    made.policies = {"hpc": Policy("hpc", INTERACTIVE_FIFO, home=True)}
    jobs = [job(number, nodes, walltime=float(10 * walltime)) for number, (nodes, walltime) in enumerate(asked)]
    waiting = {one.uid: one for one in jobs}
    foreseen = forecaster.forecast(made, {"hpc": list(waiting.values())}, NOW)
    ends: dict[str, float] = {}
    now = NOW
    while waiting:
        for outcome in list(decide(made, "hpc", list(waiting.values()), now)):
            if isinstance(outcome, Placed):
                uid, walltime = outcome.candidate.uid, outcome.candidate.walltime or 0.0
                assert foreseen[uid].p50 == now
                kept = forecaster.started(uid, now)
                assert kept is not None
                assert kept.first_error == 0.0
                ends[uid] = now + walltime
                del waiting[uid]
        now = min(ends.values(), default=now)
        for uid in [uid for uid, end in ends.items() if end == now]:
            made.drop_holder(uid)
            del ends[uid]
    made.validate()


def test_a_crowded_machine_is_foreseen_as_the_naive_plan_has_it() -> None:
    forecaster, made, queue = crowd(nodes=200, pending=min(120, EXACT_JOBS), seed=3)
    snapshot = forecaster.take_snapshot(made, {"hpc": queue}, NOW)
    found, slowly = foresee(snapshot, forecaster.run_times), naive_forecast(snapshot, forecaster)
    assert {uid: median for uid, (median, _late) in found.starts.items()} == {
        uid: median for uid, (median, _late) in slowly.starts.items() if uid in found.starts
    }
    assert len(found.starts) > 90


def test_many_pending_jobs_share_slots_and_start_no_sooner_than_exactly() -> None:
    forecaster, made, queue = crowd(nodes=200, pending=EXACT_JOBS + 100, seed=4)
    snapshot = forecaster.take_snapshot(made, {"hpc": queue}, NOW)
    slotted, exact = foresee(snapshot, forecaster.run_times).starts, naive_forecast(snapshot, forecaster).starts
    late = sorted(slotted[uid][0] - exact[uid][0] for uid in slotted)
    assert late[len(late) // 2] >= 0
    assert late[len(late) // 2] < 0.02 * max(median for median, _late in exact.values())


def test_nodes_that_come_and_go_are_seen_by_the_next_forecast() -> None:
    made, forecaster = state(), Forecaster()
    assert ask(made, job(1, 5), forecaster=forecaster)[uid(1)].reason == "NeverFits"
    made.node_cache.put(plain_node(4))
    assert ask(made, job(1, 5), forecaster=forecaster)[uid(1)].p50 == NOW
    made.node_cache.drop(4)
    made.node_cache.put(replace(plain_node(3), usable=False, state="Down"))
    assert ask(made, job(1, 5), forecaster=forecaster)[uid(1)].reason == "NeverFits"
    assert ask(made, job(1, 4), forecaster=forecaster)[uid(1)].reason == "NodesUnavailable"
