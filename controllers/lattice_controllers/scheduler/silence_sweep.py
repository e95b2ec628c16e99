"""Sweeps, every second, the heartbeats of the nodes that hold work and that the operator does not judge."""

from __future__ import annotations

import contextlib

from lattice.daemon.clock import Clock
from lattice.errors import Rejected
from lattice.kube.informer import Informer
from lattice.kube.lasting import LastKnown
from lattice.lifecycle.node import Timing, timing_of
from lattice.views import Config, Lease
from lattice_controllers.scheduler.nodes import Nodes

SWEEP_SECONDS = 1.0
STALL_SECONDS = 5.0
"""A sweep that comes later than this after the last one means that this process stood still: silence then counts from zero."""


async def sweep_silence(clock: Clock, nodes: Nodes, leases: Informer[Lease], config: LastKnown[Config]) -> None:
    """Has `nodes` find its silent ones (`Nodes.sweep`) every second until cancelled, by the node times of the LatticeConfig.

    Silence does not count while the watch of Leases is lost, or after this process has stood still.
    """
    timing, swept, resumed = Timing(), clock.monotonic(), float("-inf")
    while True:
        options, now = config.object, clock.monotonic()
        if options is not None:
            with contextlib.suppress(Rejected):  # the operator refuses such options: the last good ones stay
                timing = timing_of(options.spec.nodes)
        resumed = now if now - swept > STALL_SECONDS or leases.lost else resumed
        swept = now
        nodes.sweep(max(leases.continuous_since, resumed), timing)
        await clock.sleep(SWEEP_SECONDS)
