"""What a term does before it decides anything."""

from __future__ import annotations

import asyncio

import pytest

from lattice.daemon.clock import ManualClock
from lattice.errors import NotFound, Stale
from lattice.kube.fake import FakeCluster
from lattice.kube.resources import CONFIGS, LEDGERS
from lattice_controllers.scheduler.metrics import SchedulerMetrics
from lattice_controllers.scheduler.recovery import node_options
from lattice_controllers.scheduler.term import CONFIG, Memory, Outside, Term


async def led(cluster: FakeCluster, clock: ManualClock, memory: Memory, seconds: float = 2.0) -> Term:
    """A term that has worked for so long."""
    term = Term(Outside(cluster, clock), SchedulerMetrics(), "me", memory)
    running = asyncio.ensure_future(term.run())
    await clock.run_for(seconds)
    running.cancel()
    with pytest.raises((asyncio.CancelledError, Stale)):
        await running
    return term


async def test_the_options_of_a_new_cluster_are_made_and_those_of_an_old_one_are_never_replaced_by_defaults() -> None:
    clock, memory = ManualClock(), Memory()
    cluster = FakeCluster(clock)
    await led(cluster, clock, memory)
    await cluster.patch(CONFIGS, CONFIG, {"spec": {"nodes": {"heartbeatTimeout": "77s"}}})
    await led(cluster, clock, memory)
    ledger = await cluster.get(LEDGERS, "lattice")
    await cluster.patch(LEDGERS, "lattice", {"status": {**ledger["status"], "nextNumber": 65}}, subresource="status")
    await cluster.delete(CONFIGS, CONFIG)
    await led(cluster, clock, memory)
    assert node_options(memory.options).heartbeat_timeout == "77s", "another term of this process knows them still"
    with pytest.raises(NotFound):
        await cluster.get(CONFIGS, CONFIG)
