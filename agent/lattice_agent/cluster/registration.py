"""Keeps the node's own LatticeNode: creates it, keeps its facts current, and defends its name against a second agent."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from lattice import __version__
from lattice.daemon.logs import event
from lattice.errors import AlreadyExists, LatticeError, NotFound, Rejected, Stale
from lattice.kube.clock import Clock
from lattice.kube.cluster import Cluster
from lattice.kube.resources import LEASES, NODE_LEASE_NAMESPACE, NODES
from lattice.ledger import plans, reports
from lattice.lifecycle.conditions import FALSE, TRUE, condition, encode, is_true, with_condition
from lattice.models.conditions import CACHE_FULL, CERTIFICATE_EXPIRING, HEALTHY, LIMITS_MISSING, NAME_CONFLICT
from lattice.units import format_bytes, format_time
from lattice.views.allocation import Condition
from lattice.views.cluster import Lease, Node
from lattice_agent.cluster.capabilities import StaticCapabilities, fingerprint
from lattice_agent.host.interface import MachineFacts
from lattice_agent.state import journal

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
NOTHING = StaticCapabilities()


class Flaw(NamedTuple):
    """The reason why the node should be given no new work; an empty message: there is none."""

    reason: str
    message: str


_MEBIBYTE = 1 << 20
"""Memory is reported in whole MiB, with the unit, since `kubectl get latticenodes` prints it as it is."""


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """Everything that an agent says of its node: name, machine, instance (id of its state directory), address, group and capabilities."""

    node: str
    facts: MachineFacts
    instance: str
    address: str
    group: str = ""
    features: tuple[str, ...] = ()
    hollow: bool = False
    switch: str = ""
    declared: StaticCapabilities = NOTHING
    scratch_bytes: int = 0
    """Scratch space that one allocation may ask for."""

    def status(self, *, healthy: bool = True) -> dict[str, Any]:
        """Returns the fields of `LatticeNode.status` that the agent writes, conditions and cached images apart."""
        features = ("hollow", *self.features) if self.hollow and "hollow" not in self.features else self.features
        return {
            "capabilities": {
                "cpus": self.facts.cpus,
                "memory": format_bytes(self.facts.memory_bytes // _MEBIBYTE * _MEBIBYTE),
                "architecture": self.facts.architecture,
                "features": list(features),
                "scratch": format_bytes(self.scratch_bytes),
                **self.declared.capabilities(),
            },
            "health": "Healthy" if healthy else "Unhealthy",
            "fingerprint": fingerprint(self.facts.kernel, __version__, self.declared.components),
            "components": dict(self.declared.components),
            "kernel": self.facts.kernel[:128],
            "agentVersion": __version__,
            "address": self.address,
            "bootId": self.facts.boot_id[:64],
            "instance": self.instance[:64],
            "hollow": self.hollow,
            "formats": {"plan": plans.FORMAT, "report": reports.FORMAT, "exit": journal.NEWEST, "state": journal.NEWEST},
        }


class Registration:
    """Creates one LatticeNode and keeps its facts current; `flaw` and `expiring` are what its conditions show."""

    def __init__(self, cluster: Cluster, clock: Clock, me: NodeDescription, *, heartbeat_seconds: float) -> None:
        self._cluster = cluster
        self._clock = clock
        self._me = me
        self._heartbeat_seconds = heartbeat_seconds
        self.flaw = Flaw("", "")
        self.expiring = Flaw("", "")
        self.full = Flaw("", "")
        self.unlimited = Flaw("", "")
        self.cached_images: tuple[str, ...] = ()
        """The images of the node while its cache is `full`."""

    async def register(self) -> Node:
        """Creates the node's object, or takes it over, and writes the facts into it; returns it. Passes on errors of the API server.

        Where the object names another instance, the node's Lease is first watched for longer than a heartbeat; raises Rejected (NameTaken)
        where somebody renews it.
        """
        found = await self._found()
        if found.status.instance not in ("", self._me.instance) and await self._other_reports():
            await self._show_conflict(found)
            message = (
                f"node {self._me.node}: another agent (instance {found.status.instance}, address {found.status.address or 'unknown'}) "
                f"already reports under this name; stop one of the two"
            )
            raise Rejected(message, reason="NameTaken")
        return await self._write(found)

    async def keep_true(self) -> float | None:
        """Writes the facts into the node's object, made anew where somebody deleted it, unless it shows them already.

        Returns the seconds until another try after an error, which is logged; None: it is written, or belongs to another agent.
        """
        try:
            found = await self._found()
            if found.status.instance not in ("", self._me.instance):
                return None  # the other agent is refused at its start; the Lease shows who reports
            await self._write(found)
        except LatticeError as error:
            event(log, "RegistrationFailed", logging.WARNING, node=self._me.node, reason=error.reason, message=error.message)
            return 2.0
        return None

    async def _found(self) -> Node:
        """Returns the node's object, which is made, with group and switch, where there is none; raises errors of the API server."""
        me = self._me
        try:
            return await self._cluster.get(NODES, me.node, type=Node)
        except NotFound:
            pass  # this agent makes it
        spec = {name: word for name, word in (("group", me.group), ("switch", me.switch)) if word}
        body = {"apiVersion": NODES.api_version, "kind": NODES.kind, "metadata": {"name": me.node}, "spec": spec}
        try:
            made = await self._cluster.create(NODES, body, type=Node)
        except AlreadyExists:
            return await self._cluster.get(NODES, me.node, type=Node)
        event(log, "NodeCreated", node=me.node)
        return made

    async def _write(self, found: Node) -> Node:
        """Patches the object's status unless it shows this agent's facts, health and conditions already; returns the object."""
        status = self._me.status(healthy=not self.flaw.message)
        status["cachedImages"] = list(self.cached_images) if self.full.message else None
        body: dict[str, Any] = {"status": status}
        conditions = self._conditions_now(found)
        if conditions != found.status.conditions:
            status["conditions"] = encode(conditions)
            body["metadata"] = {"resourceVersion": found.metadata.resource_version}
        elif _says(found, status):
            return found
        status["components"] |= dict.fromkeys(set(found.status.components) - set(status["components"]))  # null: it is gone
        try:
            return await self._cluster.patch(NODES, self._me.node, body, subresource="status", type=Node)
        except Stale:
            return await self._write(await self._found())

    async def _other_reports(self) -> bool:
        """Tells whether somebody else renews the node's Lease, by watching it for longer than any agent leaves it unrenewed."""
        before = await self._lease_version()
        if not before:
            return False
        event(log, "NameInUse", logging.WARNING, node=self._me.node, message="another instance held this name; its Lease is watched first")
        until = self._clock.monotonic() + 1.5 * self._heartbeat_seconds + 1.0
        while self._clock.monotonic() < until:
            await self._clock.sleep(min(LOOK_SECONDS, self._heartbeat_seconds))
            if await self._lease_version() not in ("", before):
                return True
        return False

    async def _lease_version(self) -> str:
        """Returns the resourceVersion of the node's Lease; empty where there is none."""
        try:
            return (await self._cluster.get(LEASES, self._me.node, NODE_LEASE_NAMESPACE, type=Lease)).metadata.resource_version
        except NotFound:
            return ""

    async def _show_conflict(self, found: Node) -> None:
        """Writes into the object that a second agent was refused under its name; a failure is logged."""
        message = f"a second agent (instance {self._me.instance}, address {self._me.address or 'unknown'}) wants this name and was refused"
        body = {
            "metadata": {"resourceVersion": found.metadata.resource_version},
            "status": {"conditions": encode(self._with(found.status.conditions, found, NAME_CONFLICT, TRUE, "NameTaken", message))},
        }
        try:
            await self._cluster.patch(NODES, self._me.node, body, subresource="status", type=Node)
        except LatticeError as error:
            event(log, "ConflictNotShown", logging.WARNING, node=self._me.node, reason=error.reason, message=error.message)

    def _conditions_now(self, found: Node) -> tuple[Condition, ...]:
        """Returns the node's conditions as this agent sees them; a condition that was never needed is absent, and one that shows the same
        reason already keeps its message.
        """
        conditions = found.status.conditions
        if is_true(conditions, NAME_CONFLICT):
            conditions = self._with(conditions, found, NAME_CONFLICT, FALSE, "Resolved", f"instance {self._me.instance} reports")
        for kind, wrong, right, flaw, over in (
            (HEALTHY, FALSE, TRUE, self.flaw, "nothing is wrong with it any more"),
            (CERTIFICATE_EXPIRING, TRUE, FALSE, self.expiring, "its certificates are renewed"),
            (CACHE_FULL, TRUE, FALSE, self.full, "there is room in its image cache"),
            (LIMITS_MISSING, TRUE, FALSE, self.unlimited, "every limit of work holds"),
        ):
            shown = condition(conditions, kind)
            if flaw.message and (shown is None or shown.status == right or shown.reason != flaw.reason):
                conditions = self._with(conditions, found, kind, wrong, *flaw)
            elif not flaw.message and shown is not None and shown.status == wrong:
                conditions = self._with(conditions, found, kind, right, "Resolved", over)
        return conditions

    def _with(
        self, conditions: tuple[Condition, ...], found: Node, kind: str, status: str, reason: str, message: str
    ) -> tuple[Condition, ...]:
        """Returns the conditions with this one added or replaced, as of now and the object's generation."""
        now, generation = format_time(self._clock.now()), found.metadata.generation
        return with_condition(conditions, kind, status, reason, message, generation=generation, now=now)


def _says(found: Node, status: dict[str, Any]) -> bool:
    """Tells whether the object already shows this status, its conditions apart."""
    shown = found.status
    capabilities = status["capabilities"]
    return (
        shown.instance == status["instance"]
        and shown.boot_id == status["bootId"]
        and shown.address == status["address"]
        and shown.fingerprint == status["fingerprint"]
        and shown.components == status["components"]
        and shown.health == status["health"]
        and shown.hollow == status["hollow"]
        and shown.formats == status["formats"]
        and shown.cached_images == (None if status["cachedImages"] is None else tuple(status["cachedImages"]))
        and all(_same(msgspec.to_builtins(shown.capabilities).get(name), value) for name, value in capabilities.items())
    )


def _same(shown: object, value: object) -> bool:
    """Tells whether a capability is shown already; absent and empty are the same, and a quantity may be a number or text."""
    if not value or value == "0":
        return not shown or shown == "0"
    return list(shown) == value if isinstance(shown, list | tuple) else str(shown) == str(value)
