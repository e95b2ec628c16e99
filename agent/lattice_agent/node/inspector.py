"""Gathers the facts of a node for people: the agent and its last heartbeat, reserves, cgroups, cache, hooks, and its attempts.

A disk or a kernel that does not answer costs two seconds once, and the rest is told all the same.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, ParamSpec, Protocol, TypeVar

from lattice import __version__
from lattice.errors import LatticeError
from lattice.kube.clock import Clock
from lattice.units import format_ranges, quantity_bytes
from lattice_agent.attempts import AttemptFacts, Key
from lattice_agent.host.containers import Containers
from lattice_agent.host.controllers import Reserves
from lattice_agent.host.hooks import HookFailure, Hooks
from lattice_agent.host.images import Images
from lattice_agent.host.inspection import Inspection
from lattice_agent.host.interface import MachineFacts
from lattice_agent.host.scopes import CgroupScopes, Scopes
from lattice_agent.host.scratch import Scratch
from lattice_agent.host.threads import Threads
from lattice_agent.node.agent import Agent
from lattice_agent.peers.interface import CacheUse, NodeFacts, ReportedAttempt
from lattice_agent.state.journal import Journal

ANSWER_SECONDS: Final = 2.0
"""How long disk and kernel may take for a look: the gateway waits three seconds for the node."""
MOST_ATTEMPTS: Final = 64
SHARED_SECONDS: Final = 0.5
LOOKS: Final = 4
"""Threads for looks; those that a silent disk keeps are not replaced."""

_GIBIBYTE: Final = 1 << 30
_P = ParamSpec("_P")
_T = TypeVar("_T")


class InspectedHost(Protocol):
    """The parts of a real machine's host that are looked at; `LinuxHost` has them."""

    journal: Journal
    scopes: Scopes
    hooks: Hooks | None
    images: Images | None
    reserves: Reserves
    scratch: Scratch
    containers: Containers

    def facts(self) -> MachineFacts:
        """Returns the facts of the machine."""
        ...

    async def flaw(self) -> str:
        """Returns why this node should be given no work now; empty: nothing is wrong."""
        ...


@dataclass(frozen=True, slots=True)
class _Look:
    """The result of one look, or the sentence why there is none."""

    found: AttemptFacts
    message: str = ""


class NodeInspector:
    """Answers what the node is doing; `agent` is its state machine's shell, `host` its machine."""

    def __init__(self, agent: Agent, host: InspectedHost, clock: Clock) -> None:
        self._agent, self._host = agent, host
        self._since = clock.now()
        self._inspection = Inspection(host.journal, host.scopes)
        self._threads = Threads("the node's disk", count=LOOKS, within=ANSWER_SECONDS)
        self._shared = Threads("what containers show of the node", count=1, within=SHARED_SECONDS)  # of file servers that may be silent

    async def look(self, key: Key | None) -> NodeFacts:
        """Returns the facts of the node with those of one attempt, also where that is settled; None: with all that are not settled, 64 at
        most, the rest counted.

        Facts that cannot be read become a message.
        """
        known = self._agent.machine.attempts
        keys = [key] if key is not None else sorted(known, key=lambda one: (known[one].started or float("inf"), one))
        (hooks, cache, flaw), looks = await asyncio.gather(
            asyncio.gather(self._hooks(), self._cache(), self._host.flaw()),
            asyncio.gather(*(self._look(one) for one in keys[:MOST_ATTEMPTS])),
        )
        memory = self._host.facts().memory_bytes
        scopes, reserves = self._host.scopes, self._host.reserves
        return NodeFacts(
            version=__version__,
            since=self._since,
            heartbeat=self._agent.heartbeat.acknowledged_at,
            seq=self._agent.machine.seen.seq,
            flaw=flaw,
            cgroups=scopes.kind,
            unlimited=tuple(sorted(scopes.controllers.missing)) if isinstance(scopes, CgroupScopes) else (),
            reserved_cpus=format_ranges(sorted(reserves.cpus)),
            reserved_memory=reserves.kept_memory(quantity_bytes(self._agent.options().work.reserved_memory), memory),
            cache=cache,
            prologue_hooks=hooks[0],
            epilogue_hooks=hooks[1],
            hooks_message=hooks[2],
            attempts=tuple(self._attempt(one, look) for one, look in zip(keys, looks, strict=False)),
            left_out=max(0, len(keys) - MOST_ATTEMPTS),
            scratch=await self._scratch(),
            containers=await self._containers(),
        )

    def _attempt(self, key: Key, look: _Look) -> ReportedAttempt:
        """Returns what is told of an attempt: its stage, message and facts; one that the agent no longer knows is Ended, or Unknown."""
        known, facts = self._agent.machine.attempts.get(key), look.found
        if known is None:
            stage = "Ended" if facts.ended else "Unknown"
            return ReportedAttempt(key, stage, look.message or facts.failure, facts)
        message = ": ".join(filter(None, (known.reason or known.ended_by, known.message)))
        waits = self._host.images.progress(key).waits if self._host.images is not None else ""
        message = "; ".join(filter(None, (message, waits and f"waits for its images: {waits}")))
        return ReportedAttempt(key, known.stage.name.capitalize(), look.message or message, facts)

    async def _look(self, key: Key) -> _Look:
        """Returns the facts of an attempt; none, with the error's message, where they cannot be read."""
        try:
            return _Look(await self._call(self._inspection.look, key))
        except LatticeError as error:
            return _Look(AttemptFacts(), error.message)

    async def _call(self, function: Callable[_P, _T], *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Returns what a function returns, called in a thread."""
        return await self._threads.call(function, *args, **kwargs)

    async def _hooks(self) -> tuple[tuple[str, ...], tuple[str, ...], str]:
        """Returns the names of the node's hooks before and after work, and why they cannot be read, empty where they can; none where it has
        no hooks.
        """
        hooks = self._host.hooks
        if hooks is None:
            return (), (), ""
        try:
            prologue, epilogue = await self._call(hooks.names)
        except (LatticeError, HookFailure) as error:
            return (), (), str(error)
        return prologue, epilogue, ""

    async def _scratch(self) -> str:
        """Returns where scratch space of work stands, how much is free, and whether work is held to what it asked for; `in memory` where it
        has no directory, the error's sentence where that cannot be read.
        """
        place = self._host.scratch.directory
        if place is None:
            return "in memory"
        try:
            free, total = await self._call(lambda: (place.free_bytes, place.total_bytes))
        except LatticeError as error:
            return error.message
        held = "work is held to its size" if place.limited else "no quota holds work to its size"
        return f"{free / _GIBIBYTE:.1f}Gi of {total / _GIBIBYTE:.1f}Gi free, {held}\nin {place.directory}"

    async def _containers(self) -> str:
        """Returns by what work in OCI images runs here, or why it does not, and which directories of software.containerMounts are missing;
        the error's sentence where the machine does not answer.
        """
        listed = self._agent.options().software.container_mounts
        try:
            program, flaw = await self._call(lambda: (self._host.containers.program(), self._host.containers.flaw()))
            absent = await self._shared.call(lambda: [path for path in listed if not Path(path).is_dir()])
        except LatticeError as error:
            return error.message
        said = f"work in images does not run here: {flaw}" if flaw else program
        return f"{said}\nsoftware.containerMounts: there is no {', '.join(absent)} here" if absent else said

    async def _cache(self) -> CacheUse:
        """Returns how full the node's image cache is; only a message where the node keeps no images or it cannot be read."""
        images = self._host.images
        if images is None:
            return CacheUse(message="this node keeps no images")
        directory, pulls = str(images.cache.directory), len(images.pulling)
        try:
            found, room = await self._call(lambda: (images.cache.listed(), images.cache.room()))
        except LatticeError as error:
            return CacheUse(directory, pulls=pulls, message=error.message)
        return CacheUse(directory, len(found), sum(image.record.size for image in found), room.total, room.free, pulls)
