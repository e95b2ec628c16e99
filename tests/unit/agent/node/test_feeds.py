"""What the nodes of a process hear of the cluster."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from lattice.daemon.clock import ManualClock
from lattice.errors import Corrupt
from lattice.kube.fake import FakeCluster
from lattice.kube.resources import CONFIGS
from lattice.ledger.plans import format_plan
from lattice.views.ledger import Plan
from lattice_agent.lifecycle.events import PlanRead
from lattice_agent.node.feeds import CONFIG_NAME, Configuration, read_as, rows_by_node
from tests.unit.agent.rows import run, stop

NODES = ("n1", "n2", "n3")


def made(text: str, seq: int = 5) -> Plan:
    return msgspec.convert({"metadata": {"name": "group-0000"}, "spec": {"seq": seq, "text": text}}, Plan)


def read(plan: Plan, node: str) -> PlanRead:
    """The plan as the node's state machine takes it."""
    return read_as(plan, rows_by_node(plan).get(node, ()))


def test_a_node_takes_the_rows_that_name_it() -> None:
    rows = (run(1, nodes=NODES), stop(2, nodes=("n2",)), run(3, nodes=("n3",)))
    text = made(format_plan(rows))
    assert {row.key for row in read(text, "n1").rows} == {rows[0].key}
    assert {row.key for row in read(text, "n2").rows} == {rows[0].key, rows[1].key}
    assert read(text, "n2").seq == 5
    assert set(rows_by_node(text)) == set(NODES)


def test_an_empty_plan_names_nobody() -> None:
    assert read(made(""), "n1").rows == ()
    assert rows_by_node(made("")) == {}


@pytest.mark.parametrize("text", ["3\n", "1\nrun torn", "nonsense"])
def test_a_plan_that_cannot_be_read_is_acted_on_by_nobody(text: str) -> None:
    with pytest.raises(Corrupt):
        read(made(text), "n1")


async def test_another_heartbeat_interval_is_heard_at_once_and_other_changes_are_not() -> None:
    clock = ManualClock()
    cluster = FakeCluster(clock)
    heard: list[float] = []
    configuration = Configuration(cluster, clock, retimed=lambda: heard.append(configuration.heartbeat()))
    task = asyncio.ensure_future(configuration.run())
    await cluster.create(CONFIGS, {"apiVersion": CONFIGS.api_version, "kind": CONFIGS.kind, "metadata": {"name": CONFIG_NAME}, "spec": {}})
    await clock.run_for(1)
    await cluster.patch(CONFIGS, CONFIG_NAME, {"spec": {"nodes": {"heartbeatInterval": "2s"}}})
    await clock.run_for(1)
    await cluster.patch(CONFIGS, CONFIG_NAME, {"spec": {"nodes": {"bootTimeout": "2m"}}})
    await clock.run_for(1)
    await cluster.delete(CONFIGS, CONFIG_NAME)
    await clock.run_for(1)
    assert configuration.spec().nodes.boot_timeout == "2m", "who deletes the options changes nothing"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert heard == [2.0]
