"""What a recovery enters: what really runs, and nothing that it displaced."""

from __future__ import annotations

import asyncio

import pytest

from lattice.daemon.clock import ManualClock, SystemClock
from lattice.kube.fake import FakeCluster
from lattice.kube.resources import LEDGERS
from lattice.ledger.commit import Book, apply_all
from lattice.ledger.proposals import Accepted, Limits, Pool, Proposal, Recover, Refused
from lattice.ledger.reports import NodeReport, ReportRow
from lattice.models.conditions import LEDGER_CONDITION
from lattice.views.ledger import Ledger
from lattice_controllers.scheduler.committer import Committer, Deposed, take_over
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.nodes import Nodes
from lattice_controllers.scheduler.recovery import Recovery, adoptions, displaced, lifted, outlived
from tests.build import allocation, claim, uid

INDICES = {"a": 0, "b": 1, "c": 2}


def report(*rows: tuple[int, str]) -> NodeReport:
    return NodeReport(1, 90, "boot", "inst", tuple(ReportRow(uid(number), 1, state) for number, state in rows))


def test_what_runs_is_adopted_and_what_it_displaced_is_released() -> None:
    book = Book.empty("t", "c")
    apply_all(book, [Limits("physics", None, None), Pool(3), claim(1, (0, 1)), claim(2, (2,))])
    reports = {"a": report((3, "r")), "b": report((3, "u")), "c": report((9, "r"), (2, "e0"))}
    known = {uid(number): allocation(number) for number in (1, 2, 3)}
    adopted = list(adoptions(reports, INDICES, known))
    assert [(entry.claim.uid, entry.claim.nodes, entry.state) for entry in adopted] == [(uid(3), (0, 1), "h")]
    released = displaced(book.holders, adopted)
    assert [entry.key for entry in released] == [(uid(1), 1)]
    verdicts, _ = apply_all(book, [Recover(1090, 50), *released, *adopted])
    assert verdicts == [Accepted()] * 3
    assert set(book.rows) == {(uid(2), 1), (uid(3), 1)}
    assert (book.head.seq, book.head.next_number, book.head.recoveries) == (1090, 50, 1)
    book.validate()


@pytest.mark.parametrize(
    ("seen", "stops"),
    [
        pytest.param(32, False, id="as loaded"),
        pytest.param(35, False, id="sent by this term"),
        pytest.param(36, True, id="above both, though not above what takeover has written since"),
    ],
)
def test_one_report_that_this_ledger_cannot_have_caused_stops_everything(seen: int, stops: bool) -> None:
    cluster, clock = FakeCluster(SystemClock()), SystemClock()
    book = Book.empty("t", "c")
    book.head.seq = 38
    measured = SchedulerMetrics()
    committer = Committer(cluster, clock, book, "1", identity="me", new_id=lambda: "x", metrics=measured, on_change=lambda _changes: None)
    nodes = Nodes(cluster, clock, touched=lambda _: None, woken=lambda: None, replan=lambda _: None, newer_seen=lambda _node, _seq: None)
    Recovery(cluster, clock, nodes, committer, measured, loaded=32, sent=lambda _node: 35).newer_seen("a", seen)
    assert bool(committer.paused) is stops


async def paused(seq: int) -> tuple[FakeCluster, Recovery, Committer]:
    """A leader that has taken the ledger, and then heard of a node that has seen this seq."""
    cluster, clock, measured = FakeCluster(SystemClock()), ManualClock(), SchedulerMetrics()
    book, version = await take_over(cluster, iter(("term-a", "commit-a")).__next__, evidence=nothing)
    committer = Committer(
        cluster, clock, book, version, identity="me", new_id=lambda: "x", metrics=measured, on_change=lambda _changes: None
    )
    nodes = Nodes(cluster, clock, touched=lambda _: None, woken=lambda: None, replan=lambda _: None, newer_seen=lambda _node, _seq: None)
    recovery = Recovery(cluster, clock, nodes, committer, measured, loaded=0, sent=lambda _node: 0)
    recovery.newer_seen("a", seq)
    return cluster, recovery, committer


async def nothing() -> str:
    return ""


async def told(cluster: FakeCluster) -> str:
    ledger = await cluster.get(LEDGERS, "lattice", type=Ledger)
    return ledger.metadata.annotations.get(LEDGER_CONDITION, "")


async def looked(recovery: Recovery) -> BaseException | None:
    """What ends the recovery within two looks, if anything does."""
    clock = recovery._clock
    assert isinstance(clock, ManualClock)
    running = asyncio.ensure_future(recovery.run(list))
    await clock.run_for(2.1)
    if running.done():
        return running.exception()
    running.cancel()
    return None


async def test_a_robbed_leader_that_hears_of_its_successors_plans_ends_and_says_nothing_of_the_ledger() -> None:
    cluster, recovery, committer = await paused(99)
    await take_over(cluster, iter(("term-b", "commit-b")).__next__, evidence=nothing)
    assert isinstance(await looked(recovery), Deposed)
    assert await told(cluster) == ""
    assert committer.paused, "it commits nothing until it ends"


async def test_a_leader_whose_own_ledger_is_older_than_what_nodes_have_seen_says_so() -> None:
    cluster, recovery, committer = await paused(99)
    assert await looked(recovery) is None
    assert (await told(cluster)).startswith("LedgerWentBack: nodes have seen seq 99")
    assert committer.paused


def test_an_older_attempt_that_still_runs_is_adopted_as_releasing() -> None:
    known = {uid(1): allocation(1, status_attempt=2)}
    assert [entry.state for entry in adoptions({"a": report((1, "r"))}, INDICES, known)] == ["l"]


def test_the_newest_attempt_that_runs_is_adopted_as_held_and_older_ones_as_releasing() -> None:
    reports = {"a": report((1, "r")), "b": NodeReport(1, 90, "boot", "inst", (ReportRow(uid(1), 2, "r"),))}
    adopted = list(adoptions(reports, INDICES, {uid(1): allocation(1)}))
    assert [(entry.claim.attempt, entry.state) for entry in adopted] == [(1, "l"), (2, "h")]


def test_what_runs_is_adopted_whatever_limits_and_older_attempts_the_restored_ledger_has() -> None:
    book = Book.empty("t", "c")
    apply_all(book, [Limits("physics", 2, 1, 2, 1), Pool(3), claim(1, (0, 1))])
    reports = {"c": NodeReport(1, 90, "boot", "inst", (ReportRow(uid(1), 2, "r"),))}
    adopted = list(adoptions(reports, INDICES, {uid(1): allocation(1)}))
    proposals: list[Proposal] = [*lifted(adopted), Recover(1090, 50), *outlived(book.rows.values(), adopted), *adopted]
    verdicts, _ = apply_all(book, proposals)
    assert verdicts == [Accepted()] * 4
    assert {key: row.state for key, row in book.rows.items()} == {(uid(1), 1): "l", (uid(1), 2): "h"}
    assert (book.accounts["physics"].used_nodes, book.accounts["physics"].max_nodes) == (3, None)
    assert isinstance(book.apply(Limits("physics", 2, 1, 2, 1))[0], Accepted)
    assert isinstance(book.apply(claim(2, (2,)))[0], Refused)
    book.validate()


async def test_a_recovery_is_a_commit_of_its_own_before_what_has_waited() -> None:
    cluster, _, committer = await paused(99)
    before = committer.propose(Limits("physics", 1, None))
    running = asyncio.ensure_future(committer.run())
    answers = committer.resume([Limits("physics", None, None), Pool(2)])
    assert [await answer for answer in answers] == [Accepted(), Accepted()]
    assert await before == Accepted()
    ledger = await cluster.get(LEDGERS, "lattice", type=Ledger)
    assert ledger.status is not None
    assert (ledger.status.seq, ledger.status.tenants["physics"].max_nodes) == (3, 1), "one commit, and after it another one"
    running.cancel()
