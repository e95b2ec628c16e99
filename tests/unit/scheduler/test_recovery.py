"""When a leader stops for another ledger, and how it says so; what it then makes of the nodes' histories is `lattice.ledger.restoration`."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import msgspec
import pytest

from lattice.daemon.clock import ManualClock, SystemClock
from lattice.errors import Stale
from lattice.kube.fake import FakeCluster
from lattice.kube.resources import LEDGERS, NODES
from lattice.ledger.commit import Book
from lattice.ledger.proposals import Accepted, Limits, Pool
from lattice.ledger.reports import NodeReport
from lattice.models.conditions import LEDGER_CONDITION, LEDGER_RECOVERY
from lattice.views.allocation import Allocation
from lattice.views.cluster import Node
from lattice.views.ledger import Ledger, LedgerTerm
from lattice_controllers.scheduler.committer import Committer, Deposed, take_over
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.nodes import Nodes
from lattice_controllers.scheduler.recovery import Recovery
from tests.unit.scheduler.doubles import known


@pytest.mark.parametrize(
    ("seen", "epoch", "term", "stops"),
    [
        pytest.param(32, 0, "", False, id="as loaded, by an agent that knows no epoch"),
        pytest.param(35, 0, "", False, id="sent by this term, by an agent that knows no epoch"),
        pytest.param(36, 0, "", True, id="above both, though not above what this term has written since"),
        pytest.param(32, 6, "t-6", False, id="the last of the epoch before"),
        pytest.param(33, 6, "t-6", True, id="of the epoch before, and at the seq with which this term took the ledger"),
        pytest.param(35, 6, "t-6", True, id="of the epoch before, and already outrun by this term"),
        pytest.param(37, 7, "t", False, id="of this term, in another plan"),
        pytest.param(33, 7, "u", True, id="of another term of this epoch"),
        pytest.param(20, 8, "u", True, id="of a later epoch, however low the seq"),
    ],
)
def test_one_report_that_this_ledger_cannot_have_caused_stops_everything(seen: int, epoch: int, term: str, stops: bool) -> None:
    cluster, clock = FakeCluster(SystemClock()), SystemClock()
    book = Book.empty("t", "c")
    book.head.epoch, book.head.seq = 7, 33
    book.terms = (LedgerTerm(epoch=6, term="t-6", since=20), LedgerTerm(epoch=7, term="t", since=33))
    measured = SchedulerMetrics()
    committer = Committer(cluster, clock, book, "1", identity="me", new_id=lambda: "x", metrics=measured)
    nodes = Nodes(cluster, clock, committer.book, asyncio.Event())
    recovery = Recovery(cluster, clock, nodes, committer, measured, sent={"group-0000": 35}, config=known(None))
    nodes.indices["a"] = 0
    book.head = replace(book.head, seq=38)  # it has committed since
    recovery.heard("a", NodeReport(1, seen, "boot", "inst", epoch=epoch, term=term))
    assert bool(committer.paused) is stops


async def paused(seq: int) -> tuple[FakeCluster, Recovery, Committer]:
    """A leader that has taken the ledger, and then heard of a node that has seen this seq."""
    cluster, clock, measured = FakeCluster(SystemClock()), ManualClock(), SchedulerMetrics()
    book, version = await take_over(cluster, iter(("term-a", "commit-a")).__next__, evidence=nothing)
    committer = Committer(cluster, clock, book, version, identity="me", new_id=lambda: "x", metrics=measured)
    nodes = Nodes(cluster, clock, committer.book, asyncio.Event())
    recovery = Recovery(cluster, clock, nodes, committer, measured, sent={}, config=known(None))
    recovery.heard("a", NodeReport(1, seq, "boot", "inst"))
    return cluster, recovery, committer


async def nothing() -> str:
    return ""


async def told(cluster: FakeCluster) -> str:
    ledger = await cluster.get(LEDGERS, "lattice", type=Ledger)
    return ledger.metadata.annotations.get(LEDGER_CONDITION, "")


class NoWork:
    """No allocation exists."""

    def __init__(self) -> None:
        self.objects: dict[str, Allocation] = {}

    def requeue_pending(self) -> None:
        """Nothing waits."""


async def looked(recovery: Recovery) -> BaseException | None:
    """What ends the recovery within two looks, if anything does."""
    clock = recovery._clock
    assert isinstance(clock, ManualClock)
    running = asyncio.ensure_future(recovery.run(NoWork()))
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


async def test_a_recovery_is_a_commit_of_its_own_and_what_has_waited_goes_on_waiting() -> None:
    cluster, _, committer = await paused(99)
    before = committer.propose(Limits("physics", 1, None))
    running = asyncio.ensure_future(committer.run())
    answers = committer.commit_paused([Limits("physics", None, None), Pool(2)])
    assert [await answer for answer in answers] == [Accepted(), Accepted()]
    assert not before.done(), "what has waited goes on waiting"
    ledger = await cluster.get(LEDGERS, "lattice", type=Ledger)
    assert ledger.status is not None
    assert (ledger.status.seq, ledger.status.tenants["physics"].max_nodes) == (2, None)
    running.cancel()


async def test_one_node_alone_does_not_stop_a_cluster_for_good_since_operators_can_fence_it() -> None:
    cluster, recovery, committer = await paused(99)
    await cluster.create(NODES, {"metadata": {"name": "a"}, "spec": {"disable": {"reason": "stolen key", "fenced": True}}})
    assert await looked(recovery) is None
    assert "nodes have seen seq 99 (a);" in await told(cluster), "operators read whose word it is"
    recovery._nodes.nodes["a"] = await cluster.get(NODES, "a", type=Node)
    ended = await looked(recovery)
    assert isinstance(ended, Stale)
    assert ended.reason == "Recovered"
    assert await told(cluster) == ""

    following = Recovery(
        cluster, recovery._clock, Nodes(cluster, recovery._clock, committer.book, asyncio.Event()),
        committer, SchedulerMetrics(), sent={}, config=known(None),
    )  # fmt: skip
    committer.paused = ""
    await following.resume()
    following.heard("a", NodeReport(1, 99, "boot", "inst"))
    assert not committer.paused, "the next term does not believe it, though it has not read of the node yet"
    following.heard("b", NodeReport(1, 99, "boot", "inst"))
    assert committer.paused


def quiet(_: object) -> None:
    """Nobody listens."""


@pytest.mark.parametrize("report", [NodeReport(1, (1 << 63) - 1, "b", "i"), NodeReport(1, 1, "b", "i", epoch=(1 << 63) - 1, term="x")])
async def test_a_report_that_would_leave_no_numbers_is_not_believed(report: NodeReport) -> None:
    _, recovery, committer = await paused(0)
    recovery.heard("liar", report)
    assert (bool(committer.paused), recovery.highest, recovery.epoch) == (False, 0, 0)


async def test_a_leader_goes_on_waiting_for_the_recovery_that_the_one_before_it_has_found_necessary() -> None:
    cluster, recovery, _ = await paused(99)
    await looked(recovery)
    committer, after = await follower(cluster)
    await after.resume()
    assert committer.paused == "LedgerWentBack", "before any node has reported to it"
    begun = {"id": "r", "recoveries": 0, "before": 1.0}
    note = {LEDGER_RECOVERY: msgspec.json.encode(begun).decode()}
    status = (await cluster.get(LEDGERS, "lattice"))["status"]
    await cluster.patch(LEDGERS, "lattice", {"metadata": {"annotations": note}})
    await cluster.patch(LEDGERS, "lattice", {"status": {**status, "recoveries": 1}}, subresource="status")
    committer, after = await follower(cluster)
    await after.resume()
    assert committer.paused == "", "that recovery is done"


async def test_what_this_process_has_written_before_counts_though_the_nodes_that_saw_it_are_away() -> None:
    cluster, _, _ = await paused(1)
    committer, recovery = await follower(cluster)
    head = committer.book.head
    recovery.recall(None)
    recovery.recall(NodeReport(0, head.seq - 1, "", "", epoch=1, term="term-a"))
    assert committer.paused == ""
    recovery.recall(NodeReport(0, head.seq, "", "", epoch=1, term="term-a"))
    assert committer.paused == "LedgerWentBack"


async def follower(cluster: FakeCluster) -> tuple[Committer, Recovery]:
    """The next leader, before it has heard any node."""
    clock, measured = ManualClock(), SchedulerMetrics()
    book, version = await take_over(cluster, iter(("term-b", "commit-b")).__next__, evidence=nothing)
    committer = Committer(cluster, clock, book, version, identity="me", new_id=lambda: "x", metrics=measured)
    nodes = Nodes(cluster, clock, committer.book, asyncio.Event())
    return committer, Recovery(cluster, clock, nodes, committer, measured, sent={}, config=known(None))
