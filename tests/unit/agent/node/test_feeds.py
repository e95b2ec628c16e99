"""What the nodes of a process hear of the cluster."""

from __future__ import annotations

import asyncio

from lattice.daemon.clock import ManualClock
from lattice.kube.fake import FakeCluster
from lattice.kube.resources import CONFIGS
from lattice_agent.node.feeds import CONFIG_NAME, Configuration


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
