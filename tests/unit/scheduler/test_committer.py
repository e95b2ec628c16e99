"""The committer under faults: lost answers, conflicts, a second leader, refusals of the server."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import pytest

from lattice.daemon.clock import SystemClock
from lattice.errors import Denied, Rejected, Retry, Stale, UnknownOutcome
from lattice.kube.cluster import Cluster
from lattice.kube.fake import FakeCluster
from lattice.kube.resources import LEDGERS
from lattice.ledger.commit import Book
from lattice.ledger.proposals import Accepted, Limits, Pool, ProposalRefused, Release, Unknown, Verdict
from lattice.ledger.verify import verify
from lattice.views.ledger import Ledger, LedgerStatus
from lattice_controllers.scheduler.committer import Changes, Committer, Deposed, take_over
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from tests.build import claim, uid

NODES = 40
NAMES = {index: f"nid{index:03d}" for index in range(NODES)}


class QuickClock(SystemClock):
    """The machine's clock, whose sleeps only yield: waiting for a retry takes no time here."""

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


@dataclass
class Leader:
    """One committer at work, and the task it runs in."""

    committer: Committer
    task: asyncio.Task[None]
    changes: Changes


_ids = itertools.count()


async def no_evidence() -> str:
    return ""


async def a_plan() -> str:
    return "the plan group-0000 names 3 attempts"


@dataclass
class Heard:
    """All rows that commits have changed."""

    changes: Changes

    def rows_changed(self, changes: Changes) -> None:
        self.changes.extend(changes)


async def lead(cluster: FakeCluster) -> Leader:
    while True:
        try:
            book, version = await take_over(cluster, lambda: f"id-{next(_ids)}", evidence=no_evidence)
            break
        except (Stale, UnknownOutcome):
            await asyncio.sleep(0)  # as the program does: campaign again
    changes: Changes = []
    committer = Committer(
        cluster,
        QuickClock(),
        book,
        version,
        identity="me",
        new_id=lambda: f"id-{next(_ids)}",
        metrics=SchedulerMetrics(),
    )
    committer.observers.append(Heard(changes))
    return Leader(committer, asyncio.ensure_future(committer.run()), changes)


@asynccontextmanager
async def leading(cluster: FakeCluster) -> AsyncIterator[Leader]:
    leader = await lead(cluster)
    await asyncio.gather(leader.committer.propose(Limits("physics", None, None)), leader.committer.propose(Pool(NODES)))
    try:
        yield leader
    finally:
        leader.task.cancel()
        await asyncio.gather(leader.task, return_exceptions=True)


async def stored(cluster: FakeCluster) -> LedgerStatus:
    ledger = await cluster.get(LEDGERS, "lattice", type=Ledger)
    assert ledger.status is not None
    assert verify(ledger.status, NAMES) == []
    return ledger.status


async def test_proposals_that_wait_share_one_commit() -> None:
    cluster = FakeCluster(QuickClock())
    async with leading(cluster) as leader:
        before = len(cluster.writes(LEDGERS))
        verdicts = await asyncio.gather(*(leader.committer.propose(claim(number, (number,))) for number in range(20)))
        assert verdicts == [Accepted()] * 20
        assert len(cluster.writes(LEDGERS)) - before == 1
        leader.committer.book.validate()


async def test_a_lost_answer_is_looked_up_and_nothing_is_written_twice() -> None:
    cluster = FakeCluster(QuickClock())
    async with leading(cluster) as leader:
        cluster.lose_answer("replace", LEDGERS)
        before = (await stored(cluster)).seq
        assert await leader.committer.propose(claim(1, (0, 1))) == Accepted()
        assert (await stored(cluster)).seq == before + 1


async def test_a_write_that_never_arrived_is_repeated() -> None:
    cluster = FakeCluster(QuickClock())
    async with leading(cluster) as leader:
        cluster.fail(UnknownOutcome("no answer"), verb="replace", resource=LEDGERS, times=3)
        cluster.fail(Retry("busy"), verb="replace", resource=LEDGERS, times=2)
        assert await leader.committer.propose(claim(1, (0,))) == Accepted()


async def test_what_is_not_committed_yet_is_not_there_to_be_projected() -> None:
    cluster = FakeCluster(QuickClock())
    async with leading(cluster) as leader:
        committer = leader.committer
        await committer.propose(claim(1, (0,)))
        before = committer.stored.head.seq
        cluster.fail(Retry("busy"), verb="replace", resource=LEDGERS, times=50)
        answers = [committer.propose(Release((uid(1), 1))), committer.propose(claim(2, (1,)))]
        for _ in range(20):
            await asyncio.sleep(0)
        assert set(committer.book.rows) == {(uid(2), 1)}
        assert [row.uid for row in committer.stored.rows_of(uid(1))] == [uid(1)]
        assert (set(committer.stored.rows), committer.stored.head.seq) == ({(uid(1), 1)}, before)
        await asyncio.gather(*answers)
        assert (set(committer.stored.rows), committer.stored.head.seq) == ({(uid(2), 1)}, before + 1)
        assert list(committer.stored.rows_of(uid(1))) == []


async def test_an_api_server_that_denies_everything_while_it_starts_is_waited_for() -> None:
    cluster = FakeCluster(QuickClock())
    async with leading(cluster) as leader:
        cluster.fail(Denied("it has not read its roles yet"), verb="replace", resource=LEDGERS, times=3)
        assert await leader.committer.propose(claim(1, (0,))) == Accepted()


async def test_somebody_touching_the_metadata_does_not_depose() -> None:
    cluster = FakeCluster(QuickClock())
    async with leading(cluster) as leader:
        await cluster.patch(LEDGERS, "lattice", {"metadata": {"annotations": {"x": "y"}}})
        assert await leader.committer.propose(claim(1, (0,))) == Accepted()


async def test_a_new_leader_deposes_the_old_one_which_answers_unknown() -> None:
    cluster = FakeCluster(QuickClock())
    async with leading(cluster) as old:
        await old.committer.propose(claim(1, (0,)))
        async with leading(cluster) as new:
            answer = old.committer.propose(claim(2, (1,)))
            with pytest.raises(Deposed):
                await old.task
            assert not answer.done() or answer.result() == Unknown()
            assert await new.committer.propose(claim(3, (1,))) == Accepted()
            assert uid(2) not in {found.uid for found in Book.load(await stored(cluster)).rows.values()}


async def test_what_the_server_refuses_is_refused_alone_and_leaves_no_trace() -> None:
    cluster = FakeCluster(QuickClock())
    async with leading(cluster) as leader:
        for _ in range(3):  # the batch, its half, and the culprit alone
            cluster.fail(Rejected("usedNodes would exceed maxNodes", reason="Invalid"), verb="replace", resource=LEDGERS, times=1)
        verdicts = await asyncio.gather(*(leader.committer.propose(claim(number, (number,))) for number in range(4)))
        assert [isinstance(verdict, ProposalRefused) for verdict in verdicts] == [True, False, False, False]
        leader.committer.book.validate()
        assert len((await stored(cluster)).tenants) == 1
        assert leader.committer.book.held(uid(0)) is None


async def test_a_ledger_that_goes_back_under_its_leader_deposes_it() -> None:
    cluster = FakeCluster(QuickClock())
    async with leading(cluster) as leader:
        older = (await cluster.get(LEDGERS, "lattice"))["status"]
        assert await leader.committer.propose(claim(1, (0,))) == Accepted()
        await cluster.patch(LEDGERS, "lattice", {"status": older}, subresource="status")
        cluster.fail(Rejected("seq grows by one", reason="Invalid"), verb="replace", resource=LEDGERS)
        answer = leader.committer.propose(claim(2, (1,)))
        with pytest.raises(Deposed) as raised:
            await leader.task
        assert raised.value.reason == "LedgerWentBack"
        assert not answer.done() or answer.result() == Unknown()


async def test_without_a_ledger_beside_known_work_none_is_made() -> None:
    cluster = FakeCluster(QuickClock())
    with pytest.raises(Stale) as raised:
        await take_over(cluster, lambda: "x", evidence=a_plan)
    assert raised.value.reason == "LedgerWentBack"
    assert cluster.writes(LEDGERS) == []


class Meanwhile:
    """The cluster as somebody sees it whose readings are always old: after each of them others do something."""

    def __init__(self, cluster: FakeCluster, happens: Callable[[], Awaitable[object]]) -> None:
        self._cluster, self._happens = cluster, happens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster, name)

    async def get(self, *args: Any, **options: Any) -> Any:
        found = await self._cluster.get(*args, **options)
        await self._happens()
        return found


async def take(cluster: object) -> tuple[Book, str]:
    return await take_over(cast("Cluster", cluster), lambda: f"id-{next(_ids)}", evidence=no_evidence)


async def test_a_robbed_leader_that_goes_on_committing_does_not_keep_the_next_one_from_taking_over() -> None:
    cluster, limits = FakeCluster(QuickClock()), iter((3, 2, 1))
    async with leading(cluster) as leader:
        before = (await stored(cluster)).epoch

        async def commit() -> None:
            if (limit := next(limits, None)) is not None:
                assert await leader.committer.propose(Limits("physics", limit, None)) == Accepted()

        book, _ = await take(Meanwhile(cluster, commit))
        assert (book.head.epoch, book.accounts["physics"].max_nodes) == (before + 1, 1)
        assert (await stored(cluster)).term == book.head.term
        leader.committer.propose(Limits("physics", 9, None))
        with pytest.raises(Deposed):
            await leader.task


async def test_a_takeover_whose_answer_was_lost_is_found_to_stand() -> None:
    cluster = FakeCluster(QuickClock())
    async with leading(cluster):
        before = (await stored(cluster)).epoch
        cluster.lose_answer("replace", LEDGERS)
        book, version = await take(cluster)
    status = await stored(cluster)
    assert (book.head.epoch, status.epoch, status.term) == (before + 1, before + 1, book.head.term)
    assert version == (await cluster.get(LEDGERS, "lattice"))["metadata"]["resourceVersion"]


async def test_who_finds_that_another_one_took_the_ledger_meanwhile_leaves_it_alone() -> None:
    cluster, others = FakeCluster(QuickClock()), list[Book]()
    async with leading(cluster):

        async def take_it() -> None:
            if not others:
                others.append((await take(cluster))[0])

        with pytest.raises(Stale, match="another scheduler has taken the ledger meanwhile"):
            await take(Meanwhile(cluster, take_it))
        assert (await stored(cluster)).term == others[0].head.term


async def test_in_one_commit_limits_come_before_claims_so_that_every_version_is_within_the_limits_it_shows() -> None:
    cluster = FakeCluster(QuickClock())
    leader = await lead(cluster)
    await asyncio.gather(leader.committer.propose(Limits("physics", None, None)), leader.committer.propose(Pool(NODES)))
    claimed = leader.committer.propose(claim(1, (0, 1)))
    lowered = leader.committer.propose(Limits("physics", None, None, 1))
    assert await lowered == Accepted()
    sentence = 'user "alice" of tenant "physics" would exceed max_nodes quota (current: 0, requested: 2, limit: 1)'
    assert await claimed == ProposalRefused("WaitingForQuotaHeadroom", sentence)
    assert await leader.committer.propose(claim(2, (0,))) == Accepted()
    assert (await stored(cluster)).tenants["physics"].user_max_nodes == 1
    leader.task.cancel()
    await asyncio.gather(leader.task, return_exceptions=True)


@pytest.mark.parametrize("seed", range(25))
async def test_two_schedulers_under_faults_never_give_a_node_twice(seed: int) -> None:
    chance = random.Random(seed)
    cluster = FakeCluster(QuickClock())
    leaders = [await lead(cluster)]
    await asyncio.gather(leaders[0].committer.propose(Limits("physics", 30, None)), leaders[0].committer.propose(Pool(NODES)))
    answers: list[asyncio.Future[Verdict]] = []
    for number in range(60):
        leader = chance.choice(leaders[-2:])
        if not leader.task.done():
            nodes = tuple(sorted(chance.sample(range(NODES), chance.randint(1, 4))))
            answers.append(leader.committer.propose(claim(number, nodes)))
            if number > 5 and chance.random() < 0.4:
                answers.append(leader.committer.propose(Release((uid(chance.randrange(number)), 1))))
        match chance.randrange(6):
            case 0:
                cluster.lose_answer("replace", LEDGERS)
            case 1:
                cluster.fail(UnknownOutcome("?"), verb="replace", resource=LEDGERS)
            case 2 if chance.random() < 0.3:
                leaders.append(await lead(cluster))
            case _:
                await asyncio.sleep(0)
        await stored(cluster)
    for leader in leaders[:-1]:
        leader.task.cancel()
    await asyncio.wait_for(leaders[-1].committer.propose(Limits("other", 1, 1)), 60)
    status = await stored(cluster)
    assert status.tenants["physics"].used_nodes <= 30
    leaders[-1].committer.book.validate()
    assert leaders[-1].committer.stored.rows == leaders[-1].committer.book.rows
    for leader in leaders:
        leader.task.cancel()
    await asyncio.gather(*(leader.task for leader in leaders), return_exceptions=True)


async def test_a_leader_with_nothing_to_commit_sees_that_its_ledger_went_back() -> None:
    cluster = FakeCluster(QuickClock())
    async with leading(cluster) as leader:
        older = (await cluster.get(LEDGERS, "lattice"))["status"]
        assert await leader.committer.propose(claim(1, (0,))) == Accepted()
        await leader.committer.check_stored()
        await cluster.patch(LEDGERS, "lattice", {"status": older}, subresource="status")
        with pytest.raises(Deposed, match="stands at seq") as raised:
            await leader.committer.check_stored()
        assert raised.value.reason == "LedgerWentBack"


async def test_a_leader_with_nothing_to_commit_sees_that_its_ledger_was_taken_or_is_gone() -> None:
    cluster = FakeCluster(QuickClock())
    async with leading(cluster) as old, leading(cluster) as new:
        with pytest.raises(Deposed) as raised:
            await old.committer.check_stored()
        assert raised.value.reason == "Deposed"
        await cluster.delete(LEDGERS, "lattice")
        with pytest.raises(Deposed) as raised:
            await new.committer.check_stored()
        assert raised.value.reason == "LedgerGone"


async def test_a_look_reads_the_whole_ledger_only_where_its_version_is_another() -> None:
    cluster = FakeCluster(QuickClock())
    async with leading(cluster) as leader:
        await cluster.patch(LEDGERS, "lattice", {"metadata": {"annotations": {"x": "y"}}})
        before = len(cluster.sent)
        for _ in range(3):
            await leader.committer.check_stored()
        assert [one.verb for one in cluster.sent[before:]] == ["get"] * 4
        assert await leader.committer.propose(claim(1, (0,))) == Accepted()


async def test_a_look_beside_a_commit_that_is_under_way_says_nothing_of_it() -> None:
    cluster = FakeCluster(QuickClock())
    async with leading(cluster) as leader:
        answers = [leader.committer.propose(claim(number, (number,))) for number in range(10)]
        for _ in range(50):
            await leader.committer.check_stored()
            await asyncio.sleep(0)
        assert await asyncio.gather(*answers) == [Accepted()] * 10
