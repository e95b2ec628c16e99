"""The shared instance, made whole again before each test that uses it: a test that failed amid a disturbance does not fail its neighbours."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lattice import errors
from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import CONFIGS, NODES
from lattice_dev import processes, state
from lattice_dev.instance import Instance
from tests.e2e.people import person
from tests.e2e.waiting import Seen, until

log = logging.getLogger(__name__)
Spec = dict[str, Any]


class Plane:
    """An instance that tests share, with its programs, its nodes' groups and its configuration as they were when it came up."""

    def __init__(self, instance: Instance, admin: BlockingCluster) -> None:
        self._instance, self._admin = instance, admin
        self._programs = [component.name for component in instance.components()]
        self._groups = {item["metadata"]["name"]: item["spec"].get("group", "") for item in admin.list(NODES).items}
        self._begun = self.configured()

    def configured(self) -> Spec:
        """What the LatticeConfig says now, without empty parts."""
        return without_empty(self._admin.get(CONFIGS, "lattice").get("spec") or {})

    def reset(self) -> None:
        """Has the LatticeConfig say what it said at first: before the tests of a file, whose fixtures may change it."""
        self._configure(self._begun, "by the tests of a file before")

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Programs run and nodes are Ready at the beginning of the block; at its end the LatticeConfig says what it said then."""
        self._start_programs()
        self._ready_nodes()
        wanted = self.configured()
        yield
        with suppress(errors.LatticeError):  # the next test finds a dead API server, and starts it
            self._configure(wanted, "by a test")

    def _configure(self, wanted: Spec, by: str) -> None:
        change = merge_patch(self.configured(), wanted)
        if change:
            log.warning("the LatticeConfig was left changed %s; taken back: %s", by, change)
            self._admin.patch(CONFIGS, "lattice", {"spec": change})

    def _start_programs(self) -> None:
        """Starts those that do not run, and lets those go on that were stopped."""
        recorded = state.load(self._instance.where).processes
        dead = [name for name in self._programs if name not in recorded or not processes.alive(recorded[name].id)]
        stopped = [name for name in self._programs if name not in dead and is_stopped(recorded[name].pid)]
        for name in stopped:
            log.warning("%s was left stopped; it goes on", name)
            self._instance.kill(name, signal.SIGCONT)
        for name in dead:
            log.warning("%s was left dead; it is started", name)
            self._instance.start(name)

    def _ready_nodes(self) -> None:
        """Waits until all nodes are Ready; takes back what a test has done to one that is not."""
        seen = Seen(self._states, lambda states: all(states.get(node) == "Ready" for node in self._groups))
        if seen():
            return
        for node in self._groups:
            with suppress(errors.Rejected):  # agents are plain processes: no cable was cut
                self._instance.mend(node)
        until(
            Seen(self._mended, lambda states: all(states.get(node) == "Ready" for node in self._groups)), within=60, every=0.3, what="nodes"
        )

    def _states(self) -> dict[str, str]:
        return {item["metadata"]["name"]: (item.get("status") or {}).get("state", "") for item in self._admin.list(NODES).items}

    def _mended(self) -> dict[str, str]:
        """The states of the nodes; those that are held back are given back, and those that were forgotten are added."""
        found = {item["metadata"]["name"]: item for item in self._admin.list(NODES).items}
        for node, group in self._groups.items():
            spec = found.get(node, {}).get("spec", {})
            if node not in found:
                log.warning("%s was left forgotten; it is added", node)
                person(self._instance, "admin", "default").lattice("node", "add", node, f"--group={group}", ok=False)
            elif spec.get("disable") or spec.get("drain"):
                log.warning("%s was left held back: %s", node, spec)
                self._admin.patch(NODES, node, {"spec": {"disable": None, "drain": None}})
        return {node: (item.get("status") or {}).get("state", "") for node, item in found.items()}


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal."""
    with suppress(OSError):
        return ") T " in Path(f"/proc/{pid}/stat").read_text()
    return False


def without_empty(spec: Mapping[str, Any]) -> Spec:
    """A spec without fields that are null, and without maps that hold nothing."""
    parts = {key: without_empty(value) if isinstance(value, Mapping) else value for key, value in spec.items()}
    return {key: value for key, value in parts.items() if value is not None and value != {}}


def merge_patch(now: Mapping[str, Any], wanted: Mapping[str, Any]) -> Spec:
    """The merge patch that leads from one spec to another; empty: they are equal."""
    change: Spec = {}
    for key in now.keys() | wanted.keys():
        one, other = now.get(key), wanted.get(key)
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            if inner := merge_patch(one, other):
                change[key] = inner
        elif one != other:
            change[key] = other
    return change
