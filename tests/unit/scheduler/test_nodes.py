"""Nodes that the operator does not judge: their silence makes them Down all the same, and nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from lattice.daemon.clock import ManualClock
from lattice.errors import Retry
from lattice.kube.fake import FakeCluster
from lattice.kube.informer import Change
from lattice.kube.resources import CONFIG_MAPS, LEASES, NODE_INDEXES, NODES
from lattice.ledger.commit import Book
from lattice.ledger.reports import ANNOTATION, RUNNING, NodeReport, ReportRow, format_report
from lattice.ledger.starting import AttemptNodeState
from lattice.lifecycle.node import Timing
from lattice.views import Lease, Node
from lattice.views.cluster import Disable, NodeSpec, NodeStatus
from lattice.views.meta import Metadata
from lattice_controllers.scheduler.nodes import FORGET, FORGOTTEN, SYSTEM_NAMESPACE, Nodes
from tests.build import row, uid
from tests.unit.scheduler.doubles import FakeLedger

TIMING = Timing(timeout=30, grace=60, mass_silence_delay=600)
ROW = row(1, (0,))
NO_WISH = NodeSpec()
RUNS = ReportRow(uid(1), 1, RUNNING)


class Watched:
    """Nodes with names n0, n1, … that all hold work, and their heartbeats by hand."""

    def __init__(self, count: int = 1) -> None:
        self.clock, self.touched, self.beats = ManualClock(), list[str](), 0
        self.cluster = FakeCluster(self.clock)
        book = Book.empty("term", "commit")
        book.holders = dict.fromkeys(range(count), (uid(1), 1))
        self.nodes = Nodes(self.cluster, self.clock, book, asyncio.Event())
        self.nodes.observers.append(self)
        self.nodes.names = {index: f"n{index}" for index in range(count)}
        self.nodes.indices = {name: index for index, name in self.nodes.names.items()}
        for index in range(count):
            self.put(index, "Ready")
            self.beat(index)

    def holders_touched(self, uids: Iterable[str]) -> None:
        self.touched.extend(uids)

    def plans_touched(self, groups: Iterable[str]) -> None:
        """No test asks for the plans."""

    def caches_changed(self) -> None:
        """Counts nothing."""

    def report_heard(self, node: str, report: NodeReport) -> None:
        """No test asks for what a recovery hears."""

    def put(self, index: int, state: str, spec: NodeSpec = NO_WISH) -> None:
        """The node's object, in this state."""
        name, old = f"n{index}", self.nodes.nodes.get(f"n{index}")
        self.nodes.on_node(
            Change(name, old, Node(metadata=Metadata(name=name), spec=spec, status=NodeStatus(state=state, heartbeat=self.beats)))
        )

    def delete(self, index: int) -> None:
        """The node's object is gone."""
        name = f"n{index}"
        self.nodes.on_node(Change(name, self.nodes.nodes.get(name), None))

    def beat(self, index: int, said: ReportRow = RUNS, away: tuple[str, ...] = ()) -> None:
        """The node renews its Lease, and says this of the attempt."""
        self.beats += 1
        text = format_report(NodeReport(self.beats, 1, "boot", "inst", (said,), away=away))
        lease: Any = Lease(metadata=Metadata(name=f"n{index}", resource_version=str(self.beats), annotations={ANNOTATION: text}))
        self.nodes.on_lease(Change(f"lattice-node-lease/n{index}", None, lease))

    def after(self, seconds: float) -> AttemptNodeState:
        """How the first node stands once so much time has passed, looked at each second."""
        begun = self.clock.monotonic()
        while self.clock.monotonic() < begun + seconds:
            self.clock.advance(1.0)
            self.nodes.sweep(0.0, TIMING)
        return self.nodes.standing(ROW, 0)


def test_what_a_node_reports_of_an_attempt_stands_with_since_when_and_how_fresh_it_is() -> None:
    watched = Watched()
    watched.put(1, "Ready")
    watched.clock.advance(5)
    watched.beat(0, ReportRow(uid(1), 1, "p", "r"), away=("n1",))
    watched.clock.advance(3)
    standing = watched.nodes.standing(ROW, 0)
    assert (standing.prepared, standing.prepared_seconds, standing.age, standing.away) == (True, 3.0, 3.0, frozenset({"n1"}))
    watched.beat(0, ReportRow(uid(1), 1, "p", "g"))
    since = watched.clock.now()
    watched.clock.advance(4)
    watched.beat(0, ReportRow(uid(1), 1, "p", "g"))
    assert watched.nodes.standing(ROW, 0).unserved_since == since
    watched.beat(0, ReportRow(uid(1), 1, "e", "7"))
    watched.clock.advance(2)
    standing = watched.nodes.standing(ROW, 0)
    assert standing.unserved_since is None
    assert (standing.prepared_seconds, standing.vouched_seconds, standing.away) == (0.0, 2.0, frozenset())


def test_a_deleted_node_is_down_after_the_ordinary_silence_and_not_before() -> None:
    watched = Watched()
    watched.delete(0)
    assert not watched.after(29).silent
    assert watched.after(2) == AttemptNodeState("n0", silent=True, state=RUNNING, age=31.0)
    assert not watched.after(57).down
    watched.touched.clear()
    assert watched.after(3).down
    assert watched.touched == [uid(1)], "its work is looked at"


def test_a_deleted_node_that_still_reports_is_not_down() -> None:
    watched = Watched()
    watched.delete(0)
    for _ in range(20):
        assert not watched.after(10).silent
        watched.beat(0)
    assert watched.after(95).down
    watched.beat(0)
    standing = watched.nodes.standing(ROW, 0)
    assert not standing.down
    assert not standing.silent


def test_an_object_that_was_made_anew_and_never_heard_does_not_hide_the_silence() -> None:
    watched = Watched()
    watched.delete(0)
    watched.put(0, "Unknown")
    assert watched.after(95).down


def test_a_deleted_node_without_any_report_is_not_down_at_once() -> None:
    watched = Watched()
    watched.delete(0)
    watched.nodes.reports.clear()
    assert not watched.after(20).down
    assert watched.after(75).down


def test_many_that_fall_silent_at_once_are_given_more_time() -> None:
    watched = Watched(12)
    for index in range(12):
        watched.delete(index)
    assert not watched.after(400).down
    assert watched.after(240).down


def test_silence_does_not_count_from_before_a_gap_in_the_watch() -> None:
    watched = Watched()
    watched.delete(0)
    watched.clock.advance(300)
    watched.nodes.sweep(watched.clock.monotonic(), TIMING)
    assert not watched.nodes.standing(ROW, 0).down


def test_a_wish_on_a_node_made_anew_fences_it() -> None:
    watched = Watched()
    watched.delete(0)
    watched.put(0, "", NodeSpec(disable=Disable(reason="burnt", fenced=True)))
    standing = watched.nodes.standing(ROW, 0)
    assert standing.down
    assert standing.empty


async def test_a_forgotten_name_is_remembered_two_seconds_before_its_object_is_deleted() -> None:
    watched = Watched()
    cluster, clock = watched.cluster, watched.clock
    await cluster.create(NODE_INDEXES, {"metadata": {"name": "lattice"}, "spec": {"names": {"0": "n0"}}})
    await cluster.create(NODES, {"metadata": {"name": "n0", "annotations": {FORGET: "true"}}})
    watched.nodes.nodes["n0"] = await cluster.get(NODES, "n0", type=Node)

    with pytest.raises(Retry, match="lattice-forgotten-nodes is gone"):
        await watched.nodes.settle_indices(FakeLedger())
    assert "n0" in cluster.snapshot(NODES)
    await cluster.create(CONFIG_MAPS, {"metadata": {"name": FORGOTTEN}}, SYSTEM_NAMESPACE)
    await cluster.create(LEASES, {"metadata": {"name": "n0"}}, "lattice-node-lease")
    settling = asyncio.ensure_future(watched.nodes.settle_indices(FakeLedger()))
    await clock.run_for(1.9)
    assert list(cluster.snapshot(CONFIG_MAPS)[f"{SYSTEM_NAMESPACE}/{FORGOTTEN}"]["data"]) == ["n0"]
    assert "n0" in cluster.snapshot(NODES)
    await clock.run_for(0.2)
    await settling
    assert (cluster.snapshot(NODES), cluster.snapshot(LEASES)) == ({}, {})
