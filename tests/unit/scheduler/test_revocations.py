"""What was lent is taken back: after the delay, least important first, never below min, and told to the owner before."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import pytest

from lattice.daemon.announcements import Announcer
from lattice.daemon.clock import ManualClock
from lattice.kube.fake import FakeCluster
from lattice.kube.resources import EVENTS
from lattice.ledger.commit import Book
from lattice.ledger.proposals import Claim, Limits, Pool, Proposal, Stop, Verdict
from lattice.ledger.stored import Stored
from lattice.quota.forest import Forest
from lattice.quota.layout import Layout, layout
from lattice.scheduling.model.outcomes import Waiting
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.units import format_time
from lattice.views import ElasticQuota, Metadata
from lattice.views.allocation import Allocation
from lattice.views.cluster import QuotaTreeOptions
from lattice.views.elastic_quota import ElasticQuotaSpec
from lattice.views.ledger import TenantAccount
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.pending_work import PendingWork
from lattice_controllers.scheduler.revocations import Revocations
from tests.build import allocation, node
from tests.unit.scheduling.moments import NOW, OWNERS, holding, pending

DELAY = 10.0


def group(name: str, least: int, parent: str = "dept") -> ElasticQuota:
    spec = ElasticQuotaSpec(parent=parent, is_parent=not parent, min={"nodes": least}, max={"nodes": 8})
    return ElasticQuota(metadata=Metadata(name=name), spec=spec)


class Declared:
    """The quota trees as they are declared."""

    def __init__(self, options: QuotaTreeOptions) -> None:
        self.published: dict[str, str] = {}
        """What the scheduler before this one wrote into status.overSince."""
        self.layout: Layout = layout([group("dept", 8, ""), group("a", 4), group("b", 4)], (), (), options)

    def over_since(self) -> dict[str, str]:
        """As it was published."""
        return self.published


class Objects(Mapping[str, Allocation]):
    """The allocations of all that holds nodes, by uid."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def __getitem__(self, uid: str) -> Allocation:
        holder = next(one for key, one in self._state.holders.items() if key.partition("/")[0] == uid)
        namespace, _, name = holder.key.partition("/")
        return replace_meta(allocation(), namespace=namespace, name=name, uid=uid)

    def __iter__(self) -> Iterator[str]:
        return iter({key.partition("/")[0] for key in self._state.holders})

    def __len__(self) -> int:
        return len(self._state.holders)


class Site:
    """A department of two teams on eight nodes, a ledger, an API server, and the one that takes back."""

    def __init__(self, revocation: str = "On", most: int = 10) -> None:
        self.clock, self.metrics = ManualClock(NOW), SchedulerMetrics()
        self.cluster = FakeCluster(self.clock)
        self.book = Book.empty("term", "commit")
        self.book.apply(Pool(8))
        for _, tenant in OWNERS:
            self.book.apply(Limits(tenant, None, None))
        self.stored = Stored(self.book)
        self.state = ClusterState(accounts={tenant: TenantAccount() for _, tenant in OWNERS}, policies={"hpc": Policy("hpc")})
        for index in range(8):
            self.state.node_cache.put(node(index, f"g{index // 4}"))
        declared = Declared(QuotaTreeOptions(revocation=revocation, delay=f"{DELAY:g}s", max_per_round=most))
        forest = Forest(declared.layout.trees)
        forest.capacity("", {"nodes": 8})
        self.state.plant(forest)
        self.stops: list[Stop] = []

        self.declared, self.paused = declared, ""
        self.pending = PendingWork(self.clock, self.state, self.metrics, asyncio.Event())
        self.revocations = Revocations(
            self.clock, self.state, self.pending, declared, self, self.metrics, allocations=Objects(self.state),
            announcer=Announcer(self.cluster, self.clock, "test"),
        )  # fmt: skip

    def propose(self, proposal: Proposal) -> asyncio.Future[Verdict]:
        """Commit at once; what is stopped is releasing from then on."""
        self.book.changes.clear()
        verdict, _ = self.book.apply(proposal)
        self.stored.advance(self.book.changes, self.book.head, self.book.accounts, self.book.sensitive)
        if isinstance(proposal, Stop):
            self.stops.append(proposal)
            holder = self.state.holders[proposal.key[0]]
            self.state.drop_holder(holder.uid)
            self.state.put_holder(msgspec.structs.replace(holder, uid=f"{holder.uid}/1", releasing=True))
        answer: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        answer.set_result(verdict)
        return answer

    def run(self, number: int, nodes: tuple[int, ...], leaf: str, **fields: Any) -> str:
        holder = holding(number, nodes, quota=leaf, **fields)
        claim = Claim(holder.uid, 1, 1, holder.user, holder.tenant, holder.vcluster, "B", nodes[0], nodes)
        self.book.changes.clear()
        self.book.apply(claim)
        self.stored.advance(self.book.changes, self.book.head, self.book.accounts, self.book.sensitive)
        self.state.put_holder(holder)
        return holder.uid

    def ask(self, candidate: Candidate) -> None:
        assert self.state.quota_usage is not None
        self.state.quota_usage.ask([candidate], NOW)
        self.pending.enqueue(candidate)

    async def watch(self, seconds: float) -> list[str]:
        """Sample each second for so long; the uids of what was stopped."""
        assert self.state.quota_usage is not None
        for _ in range(round(seconds)):
            await self.clock.run_for(1.0)
            await self.revocations.sample(self.state.quota_usage)
        self.state.validate()
        return [stop.key[0] for stop in self.stops]

    async def events(self) -> list[tuple[str, str]]:
        return [(each["reason"], each["note"]) for each in (await self.cluster.list(EVENTS)).items]


def replace_meta(view: Allocation, **fields: Any) -> Allocation:

    return msgspec.structs.replace(view, metadata=msgspec.structs.replace(view.metadata, **fields))


def four_runs(site: Site, **fields: Any) -> list[str]:
    """The team `a` uses all eight nodes, four of which are lent."""
    return [site.run(10 + at, (2 * at, 2 * at + 1), "a", since=NOW - 600, started=NOW - 500 + 100 * at, **fields) for at in range(4)]


async def test_while_nobody_wants_it_back_nothing_is_taken() -> None:
    site = Site()
    four_runs(site)
    assert await site.watch(3 * DELAY) == []


async def test_the_owner_gets_his_share_after_the_delay_and_the_least_work_is_lost() -> None:
    site = Site()
    runs = four_runs(site)
    site.ask(pending(1, nodes=4, quota="b"))
    assert await site.watch(DELAY) == []
    assert set(await site.watch(3)) == {runs[2], runs[3]}
    assert {stop.cause for stop in site.stops} == {"q"}
    assert set(await site.watch(4 * DELAY)) == {runs[2], runs[3]}, "what ends already is enough"


async def test_nothing_is_taken_for_work_that_a_hard_quota_keeps_waiting_and_only_as_much_as_may_start() -> None:
    site = Site()
    runs = four_runs(site)
    site.ask(pending(1, 2, nodes=2, quota="b"))
    site.ask(pending(2, 2, nodes=2, quota="b"))
    everybody = dict(site.state.accounts)
    site.state.accounts = {**everybody, OWNERS[2][1]: TenantAccount(max_nodes=0)}
    assert await site.watch(3 * DELAY) == []
    assert (site.revocations.over, await site.events()) == ({}, [])
    site.state.accounts = {**everybody, OWNERS[2][1]: TenantAccount(max_nodes=2)}
    assert await site.watch(DELAY) == []
    assert site.revocations.over["a"].allowed == {"nodes": 6}, "a limit that is raised is seen at once"
    assert await site.watch(3 * DELAY) == [runs[3]]


async def test_a_new_leader_goes_on_with_the_delay_that_another_began() -> None:
    site = Site()
    runs = four_runs(site)
    site.declared.published = {"a": format_time(NOW - 6), "b": format_time(NOW - 6)}
    site.revocations.resume()
    await site.watch(2)
    assert site.revocations.over_since() == site.declared.published, "nobody is over yet: what was published stays for a moment"
    site.ask(pending(1, nodes=4, quota="b"))
    assert await site.watch(2) == []
    assert site.revocations.over_since()["a"] == format_time(NOW - 6)
    assert set(await site.watch(1)) == {runs[2], runs[3]}
    await site.watch(DELAY)
    assert "b" not in site.revocations.over_since()


async def test_a_new_leader_gives_the_whole_delay_again_where_it_was_over_already() -> None:
    site = Site()
    four_runs(site)
    site.ask(pending(1, nodes=4, quota="b"))
    site.declared.published = {"a": format_time(NOW - DELAY - 1)}
    site.revocations.resume()
    assert await site.watch(DELAY) == []
    assert site.revocations.over_since() == {"a": format_time(NOW + 1)}
    assert len(await site.watch(3)) == 2


async def test_the_owners_are_told_when_the_delay_begins_and_when_it_is_over() -> None:
    site = Site()
    four_runs(site)
    site.ask(pending(1, nodes=4, quota="b"))
    await site.watch(2)
    told = await site.events()
    assert [reason for reason, _ in told] == ["QuotaReclaimPending"] * 2
    assert 'quota "a": nodes: 8 used, 4 allowed now; if it stays so, this allocation is stopped in 10s' in told[0][1]
    await site.watch(2 * DELAY)
    assert sorted(reason for reason, _ in await site.events()) == ["QuotaReclaimPending"] * 2 + ["QuotaReclaimed"] * 2
    assert site.metrics.registry.get_sample_value("lattice_quota_revocations_total", {"tree": "default", "kind": "revoked"}) == 2


@pytest.mark.parametrize(("mode", "events"), [("Notify", 2), ("Off", 0)])
async def test_without_revocation_nothing_is_stopped(mode: str, events: int) -> None:
    site = Site(mode)
    four_runs(site)
    site.ask(pending(1, nodes=4, quota="b"))
    assert await site.watch(4 * DELAY) == []
    assert len(await site.events()) == events
    assert site.revocations.over["a"].used == {"nodes": 8}


async def test_a_round_stops_no_more_than_it_may() -> None:
    site = Site(most=1)
    four_runs(site)
    site.ask(pending(1, nodes=4, quota="b"))
    assert len(await site.watch(DELAY + 2)) == 1
    assert len(await site.watch(DELAY + 2)) == 2


async def test_work_that_may_not_be_preempted_stays() -> None:
    site = Site()
    four_runs(site, preemptible=False)
    site.ask(pending(1, nodes=4, quota="b"))
    assert await site.watch(4 * DELAY) == []


async def test_a_need_that_passes_before_the_delay_is_over_takes_nothing() -> None:
    site = Site()
    four_runs(site)
    wish = pending(1, nodes=4, quota="b")
    site.ask(wish)
    await site.watch(DELAY - 2)
    site.pending.withdraw(wish.uid)
    assert await site.watch(3 * DELAY) == []


async def test_nodes_that_go_take_nothing_by_themselves() -> None:
    site = Site()
    site.run(10, (0, 1, 2, 3), "a")
    site.run(11, (4, 5), "b")
    assert site.state.quota_usage is not None
    site.ask(pending(1, nodes=2, quota="b"))
    site.state.quota_usage.forest.capacity("", {"nodes": 6})
    assert await site.watch(4 * DELAY) == []


async def test_in_a_group_work_of_a_higher_class_takes_the_share_of_a_lower_one() -> None:
    site = Site()
    low = [site.run(10 + at, (2 * at, 2 * at + 1), "a", preemption_class=1) for at in range(2)]
    other = site.run(14, (4, 5, 6, 7), "b", preemption_class=1)
    high = pending(1, nodes=2, quota="a", preemption_class=8)
    site.ask(high)

    site.pending.reasons[high.uid] = Waiting(high, "WaitingForQuotaShare", "")
    assert await site.watch(DELAY) == []
    [stopped] = await site.watch(2)
    assert stopped in low
    assert other not in await site.watch(1)
