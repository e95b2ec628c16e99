"""What each node is to start, as a request asks for it."""

from __future__ import annotations

import time
from typing import Any

from lattice.launches.binding import NodeCpus
from lattice.launches.layout import LaunchLayout, lay_out
from lattice_agent.launches import description
from lattice_agent.launches.client_side import ClientProcess
from lattice_agent.launches.description import LaunchPlan
from lattice_agent.standalone.frames import LaunchRequest
from tests.unit.agent.launches.test_head import work


def started(*words: str, **fields: Any) -> list[Any]:
    """What the node of a launch is to start."""
    nodes, here = [NodeCpus("n1", ((0,), (1,)))], work()
    plan = description.plan_of(here, LaunchRequest(bytes(16), (b"srun", *map(str.encode, words)), **fields))
    assert isinstance(plan, LaunchPlan)
    layout = lay_out(plan.options, nodes)
    assert isinstance(layout, LaunchLayout)
    record = description.record_of(plan, layout, 1, "00", ClientProcess("n1", 1, 1), 0.0)
    streams = description.plan_streams(here, plan, layout, 1)
    return description.starts_of(here, plan, layout, record, streams, nodes)


def test_soft_limits_that_no_kernel_takes_are_none() -> None:
    limits = (b"NOFILE=18446744073709551615", b"CORE=-7", b"DATA=99999999999999999999", b"AS=9223372036854775807", b"STACK=x")
    (start,) = started("prog", limits=limits)
    assert start["soft_limits"] == {"NOFILE": -1, "CORE": -1, "DATA": -1, "AS": (1 << 63) - 1}


def test_many_tasks_are_described_in_time_by_their_number() -> None:
    begun = time.thread_time()
    (start,) = started("-O", "-n4096", "prog")
    assert [(rank["rank"], rank["environment"]["SLURM_LOCALID"]) for rank in start["ranks"]] == [(rank, str(rank)) for rank in range(4096)]
    assert time.thread_time() - begun < 0.5
