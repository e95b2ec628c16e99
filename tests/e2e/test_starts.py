"""Every step of a start is on the logs of the daemons that take it, in its order."""

from __future__ import annotations

import pytest

from lattice.daemon.starts import STEPS
from lattice_dev.bench import starts
from lattice_dev.bench.starts import StepLine, TracedStart
from lattice_dev.instance import Instance
from tests.e2e.conftest import Room
from tests.e2e.people import person
from tests.e2e.waiting import Seen, until


def logged(instance: Instance, uid: str, key: str) -> list[StepLine]:
    """The steps of one start, in the order of their times."""
    lines = (line for file in instance.log_files() for line in file.read_text(encoding="utf-8").splitlines())
    return sorted((step for step in starts.read_steps(lines) if step.allocation in (uid, key)), key=lambda step: step.at)


def on(steps: list[StepLine], name: str) -> set[str]:
    """The nodes on which a step was done."""
    return {step.node for step in steps if step.step == name}


@pytest.mark.parametrize("nodes", [1, 2])
def test_every_step_of_a_start_is_logged_in_its_order(control_plane: Instance, tenant: Room, nodes: int) -> None:
    me, key = person(control_plane, "alice", tenant.namespace), f"{tenant.namespace}/traced"
    me.apply("traced", nodes=nodes, entrypoint="true")
    me.ended("traced")
    uid = me.get("traced")["metadata"]["uid"]
    seen = Seen(lambda: logged(control_plane, uid, key), lambda steps: len(on(steps, "exec")) == nodes)
    found = until(seen, within=10, what="the last step on every node")
    assert {step.step for step in found} == set(STEPS)
    assert not starts.clock_was_set(found)
    first = {name: min(step.at for step in found if step.step == name) for name in STEPS}
    orders = [name for name in STEPS if name not in ("plan", "exec")]  # whose answers may come after what they lead to
    assert orders == sorted(orders, key=first.__getitem__)
    assert first["commit"] < first["plan"]
    assert first["ready"] < first["exec"]
    for name in ("watch", "ask", "read", "probe", "prepare", "ready", "fork", "exec"):
        assert len(on(found, name)) == nodes, name
    when = starts.ends(TracedStart(uid, key, found[0].at, first["exec"]), found)
    assert tuple(when) == STEPS
    assert sum(starts.took(when).values()) == pytest.approx(first["exec"] - found[0].at)
