"""Reconciles the LatticeConfig: refuses options that contradict each other, and keeps the last good ones in force."""

from __future__ import annotations

import logging
from typing import Protocol

from lattice.admission.configs import LEAST_START_SECONDS
from lattice.daemon.announcements import Announcer
from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.daemon.queue import KeyedQueue
from lattice.errors import NotFound, Rejected
from lattice.kube.cluster import Cluster
from lattice.kube.resources import CONFIGS
from lattice.lifecycle.node import Timing, timing_of
from lattice.units import format_time, parse_duration
from lattice.views import Condition, Config, Metadata
from lattice.views.cluster import ConfigSpec
from lattice_controllers.operator import statuses

log = logging.getLogger(__name__)

NAME = "lattice"
GONE = "somebody has deleted it: what it said last stays in force until it is made again, or until a daemon is started anew"


def refusals(spec: ConfigSpec) -> list[str]:
    """Returns a sentence for each option that is out of range or contradicts another; empty: the options are good.

    Where a duration does not parse, the only sentence says that.
    """
    try:
        interval, timing = parse_duration(spec.nodes.heartbeat_interval), timing_of(spec.nodes)
        cycle, start = parse_duration(spec.scheduling.cycle_interval), parse_duration(spec.work.start_timeout)
        resolve, pull = parse_duration(spec.software.resolve_timeout), parse_duration(spec.software.pull_timeout)
        fence = parse_duration(spec.mpi.fence_timeout)
    except Rejected as error:
        return [error.message]
    found = []
    if interval < 1:
        found.append(f"nodes.heartbeatInterval is {spec.nodes.heartbeat_interval}: at least 1s")
    if timing.timeout < 2 * interval:
        limits = f"nodes.heartbeatTimeout is {spec.nodes.heartbeat_timeout}, nodes.heartbeatInterval {spec.nodes.heartbeat_interval}"
        found.append(f"{limits}: the timeout must be at least twice the interval, or one late heartbeat degrades a node")
    if timing.grace <= 0 or timing.boot_timeout <= 0:
        found.append("nodes.gracePeriod and nodes.bootTimeout must be longer than nothing")
    if cycle <= 0:
        found.append("scheduling.cycleInterval must be longer than nothing")
    if start < LEAST_START_SECONDS:
        found.append(f"work.startTimeout is {spec.work.start_timeout}: at least {LEAST_START_SECONDS}s")
    if resolve < 1:
        found.append(f"software.resolveTimeout is {spec.software.resolve_timeout}: at least 1s")
    if pull < 1:
        found.append(f"software.pullTimeout is {spec.software.pull_timeout}: at least 1s")
    if fence < 1:
        found.append(f"mpi.fenceTimeout is {spec.mpi.fence_timeout}: at least 1s")
    return found


class Timed(Protocol):
    """Judges nodes by timeouts that the LatticeConfig may change; `NodeStates` is the implementation."""

    def retime(self, timing: Timing) -> None:
        """Sets the timeouts by which nodes are judged from now on."""
        ...


class ConditionSource(Protocol):
    """Knows a condition of the cluster that the status of the LatticeConfig shows; `FailOpen` is the implementation."""

    def stated(self, conditions: tuple[Condition, ...], generation: int, now: str) -> tuple[Condition, ...]:
        """Returns the conditions with this part's own one added or replaced, unchanged while it has nothing to tell yet; `now`: RFC
        3339.
        """
        ...


class Configs:
    """Reconciles the one LatticeConfig: passes the node timeouts in force to `nodes`, and shows the conditions of `sources`."""

    def __init__(self, cluster: Cluster, clock: Clock, nodes: Timed, announcer: Announcer) -> None:
        self.sources: list[ConditionSource] = []
        self.in_force = ConfigSpec()
        """The options in force: the last good ones, the defaults before any were read."""
        self.queue = KeyedQueue(self.reconcile, clock, workers=1, name="configs")
        self.known: set[str] = set()
        """Names of the LatticeConfigs that exist; the API server admits only `NAME`."""
        self._cluster = cluster
        self._clock = clock
        self._announcer = announcer
        self._nodes = nodes

    async def reconcile(self, name: str) -> float | None:
        """Puts the options of the LatticeConfig in force and tells the judge of nodes, or refuses them, which leaves the last good ones,
        and writes its conditions.

        Returns the seconds until the next check; None: the object is gone (an Event says so), or is not called `lattice`.
        """
        if name != NAME:
            return None
        try:
            config = await self._cluster.get(CONFIGS, name, type=Config)
        except NotFound:
            self.known.discard(name)
            event(log, "ConfigGone", logging.WARNING, message=GONE)
            await self._announcer.announce(CONFIGS, Metadata(name=name), "ConfigGone", GONE, action="Keep", warning=True)
            return None
        self.known.add(name)
        metadata, now = config.metadata, format_time(self._clock.now())
        found = refusals(config.spec)
        if found:
            message = "; ".join(found) + "; the last good options stay in force"
            conditions = statuses.stalled(config.status.conditions, "OptionsRefused", message, metadata.generation, now)
        else:
            self.in_force = config.spec
            self._nodes.retime(timing_of(config.spec.nodes))
            conditions = statuses.ready(config.status.conditions, metadata.generation, now)
        for source in self.sources:
            conditions = source.stated(conditions, metadata.generation, now)
        former = {"observedGeneration": config.status.observed_generation}
        changed = statuses.changes(config.status.conditions, conditions, former, {"observedGeneration": metadata.generation})
        if await statuses.write(self._cluster, CONFIGS, metadata, changed):
            event(log, "ConfigRead", generation=metadata.generation, refused=len(found))
        return statuses.RESYNC_SECONDS
