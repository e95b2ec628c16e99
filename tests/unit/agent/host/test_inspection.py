"""What a node shows people of an attempt: steps with times, mounts, limits and use, of real work; and what is counted of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from lattice.errors import Rejected
from lattice_agent.attempts import Key
from lattice_agent.host.controllers import Reserves
from lattice_agent.host.hooks import HookDirectories
from lattice_agent.host.inspection import Inspection
from lattice_agent.metrics import AgentMetrics
from tests.unit.agent.machine import STOPPED, UID, cleared, has_cgroups, machine, needs_root, open_directory, until, work

pytestmark = [pytest.mark.root, needs_root()]
KEY = Key(UID, 1)


@pytest.fixture
async def place() -> AsyncIterator[Path]:
    with open_directory() as path:
        yield path


async def test_running_work_is_shown_with_its_steps_its_mounts_its_limits_and_its_use(place: Path) -> None:
    reserves = Reserves(memory_bytes=1 << 20)
    async with machine(place, reserves=reserves) as (host, ends):
        looked = Inspection(host.journal, host.scopes)
        ours = work(entrypoint="sh -c 'sleep 300; true'", private_tmp=True, max_processes=100, reserved_memory=1 << 20)
        await host.prepare(ours)
        await host.start(ours)
        await until(lambda: len(looked.look(KEY).mounts) >= 2)
        found = looked.look(KEY)
        assert [(step.name, step.state) for step in found.steps] == [("probe", "done"), ("scope", "done")]
        assert all(0 < step.begun <= step.done for step in found.steps)
        assert {mount.target for mount in found.mounts} >= {"/tmp", "/dev/shm"}
        assert (found.processes >= 1, found.started > 0, found.ended) == (True, True, False)
        if has_cgroups():
            assert (found.limits["pids"], int(found.limits["memory"]) > 0) == ("100", True)
        await host.terminate(KEY, STOPPED)
        await ends.record()
        await cleared(host, KEY)
        after = looked.look(KEY)
        assert {step.state for step in after.steps} == {"undone"}
        assert all(step.done for step in after.steps), "how long they took is still known"
        assert (after.ended, after.processes, after.mounts) == (True, 0, ())


async def test_an_attempt_that_the_node_never_had_shows_nothing(place: Path) -> None:
    async with machine(place) as (host, _):
        found = Inspection(host.journal, host.scopes).look(Key("unknown", 3))
        assert (found.steps, found.mounts, dict(found.limits), found.started) == ((), (), {}, 0.0)


async def test_the_names_of_hooks_are_told(place: Path) -> None:
    if not has_cgroups():
        pytest.skip("hooks need cgroups")
    (place / "before").mkdir()
    hook = place / "before" / "10-licence"
    hook.write_text("#!/bin/sh\nexit 4\n")
    hook.chmod(0o755)
    async with machine(place, hooks=HookDirectories(place / "before", None)) as (host, _):
        metrics = AgentMetrics("n1")
        host.measure(metrics)
        assert host.hooks is not None
        assert host.hooks.names() == (("10-licence",), ())
        with pytest.raises(Rejected):
            await host.prepare(work())
        await cleared(host, KEY)
        assert steps(metrics, "hooks", "refused") == 1
        assert steps(metrics, "scope", "done") == 1
        assert steps(metrics, "scope", "undone") == 1
        assert metrics.registry.get_sample_value("lattice_agent_prologue_seconds_count", {"node_id": "n1"}) == 0


async def test_steps_are_counted_by_result_and_timed_when_done(place: Path) -> None:
    async with machine(place) as (host, ends):
        metrics = AgentMetrics("n1")
        host.measure(metrics)
        ours = work(entrypoint="true")
        await host.prepare(ours)
        await host.start(ours)
        await ends.record()
        labels = {"node_id": "n1", "step": "scope"}
        assert metrics.registry.get_sample_value("lattice_agent_prologue_step_seconds_count", labels) == 1
        assert metrics.registry.get_sample_value("lattice_agent_prologue_seconds_count", {"node_id": "n1"}) == 1


def steps(metrics: AgentMetrics, step: str, result: str) -> float | None:
    return metrics.registry.get_sample_value("lattice_agent_steps_total", {"node_id": "n1", "step": step, "result": result})
