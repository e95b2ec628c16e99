"""What a scenario does and looks at: work with a known end, nodes by their state, witnesses."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

from lattice.kube.resources import ALLOCATIONS, NODES
from lattice.lifecycle.conditions import condition
from lattice.lifecycle.settle import is_final
from lattice.models.conditions import FINISHED
from lattice.units import expand_nodes
from lattice.views import Allocation, Node
from lattice_dev import processes
from tests.e2e.people import Person, person
from tests.e2e.waiting import Seen, until
from tests.faults import witness
from tests.faults.kills import shims_below
from tests.faults.load import Wish
from tests.faults.site import TENANT, Site

LONG = int(os.environ.get("LATTICE_FAULTS_KILLS", "22")) >= 100
QUICK_HEARTBEATS = {"heartbeatInterval": "1s", "heartbeatTimeout": "6s", "gracePeriod": "300s"}
"""Silence is seen within seconds; that a busy machine takes its time to start an agent makes no node Down."""
RESTORED_HEARTBEATS = {"heartbeatInterval": "1s", "heartbeatTimeout": "6s", "gracePeriod": "8s"}
"""Down after 14 s: so long a recovery gives nodes that nobody knows to register."""
QUICK_DOWN = {"gracePeriod": "6s"}
DOWN_SECONDS = 12.0
HELD_SECONDS = 290.0
"""Below the walltime of a witness: work that nobody tells to end fails its scene by how it ends."""
_numbers = itertools.count(1)


class Scene:
    """One scenario on an instance."""

    def __init__(self, here: Site) -> None:
        self.here = here
        self.instance = here.instance

    # -- work ------------------------------------------------------------------------------------------------

    def submit(
        self, *, nodes: int = 1, seconds: float | None = 1.0, code: int = 0, walltime: int = 0, on: str = "", stubborn: bool = False
    ) -> str:
        """Submits work as alice and answers its name; `on` names the nodes that it may have, `seconds` None runs until `finish`."""
        held = seconds is None
        wish = Wish(f"s{next(_numbers):04d}", nodes, HELD_SECONDS if seconds is None else seconds, code, stubborn, 1, walltime, held=held)
        body = wish.body(TENANT, self.here.script, self.here.directory)
        if on:
            body["spec"]["resources"]["constraints"] = {"nodeList": on}
        with self.here.alice() as cluster:
            cluster.create(ALLOCATIONS, body, TENANT)
        return wish.name

    def finish(self, *names: str) -> None:
        """Lets work that was submitted without seconds end, wherever it runs or will run."""
        for name in names:
            witness.told(self.here.directory, name).touch()

    def get(self, name: str) -> Allocation:
        """The allocation as it stands."""
        with self.here.admin() as cluster:
            return cluster.get(ALLOCATIONS, name, TENANT, type=Allocation)

    def running(self, name: str, *, attempt: int = 1, within: float = 40) -> Allocation:
        """It, once it shows that this attempt runs and each of its tasks has said so."""

        def runs(found: Allocation) -> bool:
            told = {one.task[2] for one in self.told(found) if one.task[1] == attempt and one.word == "start"}
            return (found.status.phase, found.status.attempt) == ("Running", attempt) and told >= set(expand_nodes(found.status.nodes))

        seen = Seen(lambda: self.get(name), runs)
        found: Allocation = until(seen, within=within, what=f"{name} running as attempt {attempt}")
        return found

    def ended(self, name: str, *, within: float = 60) -> Allocation:
        """It, once it is final."""
        seen = Seen(lambda: self.get(name), lambda found: is_final(found.status))
        found: Allocation = until(seen, within=within, every=0.2, what=f"the end of {name}")
        return found

    def ends(self, names: Sequence[str], *, within: float = 90) -> list[tuple[str, int | None, int]]:
        """Reason of the end, exit code and attempt of each."""
        return [end_of(self.ended(name, within=within)) for name in names]

    def told(self, allocation: Allocation) -> list[witness.Testimony]:
        """What its tasks said."""
        return [one for one in witness.read(self.here.directory) if one.task[0] == allocation.metadata.uid]

    def alive(self, allocation: Allocation, node: str) -> list[int]:
        """Attempts of it whose shim lives on the node."""
        root = self.instance.where.scope_root()
        assert root is not None
        return [attempt for (uid, attempt), shim in shims_below(root / node) if uid == allocation.metadata.uid and processes.alive(shim)]

    # -- nodes ------------------------------------------------------------------------------------------------

    def state(self, node: str) -> str:
        """The node's state, as the operator wrote it."""
        with self.here.admin() as cluster:
            return cluster.get(NODES, node, type=Node).status.state

    def becomes(self, node: str, *states: str, within: float = 60) -> None:
        """Waits until the node is in one of these states."""
        until(Seen(lambda: self.state(node), lambda state: state in states), within=within, every=0.2, what=f"{node} {' or '.join(states)}")

    def change_node(self, node: str, spec: dict[str, Any]) -> None:
        """What an operator wishes of it."""
        with self.here.admin() as cluster:
            cluster.patch(NODES, node, {"spec": spec})

    @contextlib.contextmanager
    def quick_down(self) -> Iterator[None]:
        """Meanwhile a node is Down after DOWN_SECONDS of silence."""
        self.here.configure({"nodes": QUICK_DOWN})
        try:
            yield
        finally:
            self.here.configure({"nodes": QUICK_HEARTBEATS})

    def whole(self) -> None:
        """Every program runs, every node is Ready and can be placed on."""
        self.instance.wait_ready()
        for node in self.instance.site().nodes:
            self.becomes(node, "Ready", within=60)


def administrator(scene: Scene) -> Person:
    """Who has all rights."""
    return person(scene.instance, "admin", TENANT)


def end_of(allocation: Allocation) -> tuple[str, int | None, int]:
    """Reason of the end, exit code and attempt."""
    finished = condition(allocation.status.conditions, FINISHED)
    return finished.reason if finished else "", allocation.status.exit.code if allocation.status.exit else None, allocation.status.attempt
