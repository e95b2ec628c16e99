"""Decides what a node may read of the work that the ledger gives it: by its plan row; the Allocation is read for it.

The rows of a plan are the ledger's, written by the scheduler alone. A row that only answers what the node itself has reported
(`Unnamed`) gives no right. An Allocation is read once for all nodes of an attempt, from the API server's watch cache where that is
new enough; nothing is watched for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from lattice.errors import Corrupt, Denied, NotFound, Retry
from lattice.kube.clock import Clock
from lattice.kube.cluster import Cluster
from lattice.kube.resources import ALLOCATIONS, PLANS
from lattice.ledger.format import UNNAMED
from lattice.ledger.plans import RUN, PlanRow, parse_plan, plan_name
from lattice.lifecycle.conditions import is_true
from lattice.models.conditions import FINISHED
from lattice.units import is_digits
from lattice.views import AllocationStatus, Node
from lattice.views.ledger import Plan
from lattice.views.work import Environment, ScriptFrom, VariablesFrom
from lattice_gateway.memory import Kept, Once

KEPT_SECONDS: Final = 60.0
KEPT_BYTES: Final = 32 << 20
LONGEST_VERSION: Final = 20
"""Digits of a resourceVersion at most: it has 64 bits."""
METADATA: Final = ("name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp")
"""The fields of an Allocation's metadata that agents are sent."""

Rows = Mapping[tuple[str, int], PlanRow]


@dataclass(frozen=True)
class WorkQuestion:
    """A node's question for the Allocation of an attempt, in the words of its plan row."""

    node: str
    uid: str
    attempt: int
    generation: int
    namespace: str
    name: str
    stale: str = ""
    """A resourceVersion that the node has and cannot use; then the Allocation is read again. Empty: any version will do."""


@dataclass(frozen=True)
class FoundWork:
    """An Allocation as it is sent to a node; `starts`: the node is ordered to run it, and gets the
    variables of the Secrets in `sources` and the script of `script`.
    """

    namespace: str
    generation: int
    body: bytes
    sources: tuple[VariablesFrom, ...] = ()
    starts: bool = False
    script: ScriptFrom | None = None
    on_every_node: bool = False
    """True: the script runs on every node of the attempt, not on its head alone."""


class Works:
    """Answers nodes' questions for their work; `nodes` and `plans` are live views by name."""

    def __init__(self, cluster: Cluster, clock: Clock, nodes: Mapping[str, Node], plans: Mapping[str, Plan]) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._plans = plans
        self._rows: dict[str, tuple[str, Rows]] = {}
        self._kept: Kept[str, FoundWork] = Kept(clock, KEPT_SECONDS, KEPT_BYTES, lambda found: len(found.body))
        self._once: Once[tuple[str, str], Any] = Once()

    async def find(self, asked: WorkQuestion) -> FoundWork:
        """Returns the Allocation that a node asks for; raises NotFound (gone, or the attempt is over), Denied (NotYourWork).

        Raises Retry where the plan does not read, or the generation asked for is not there yet.
        """
        row = await self._row(asked)
        if row is None:
            return await self._as_reporter(asked)
        found = await self._allocation(asked, row)
        runs_script = found.on_every_node or asked.node == row.head
        return replace(found, starts=row.order == RUN and asked.node in row.nodes, script=found.script if runs_script else None)

    # ── the row ─────────────────────────────────────────────────────────────────────────────────────────────────

    async def _row(self, asked: WorkQuestion) -> PlanRow | None:
        """Returns the row of the node's plan that gives it the right; None: none does, or the node is unknown or without an index.

        A plan without such a row is read again once.
        """
        node = self._nodes.get(asked.node)
        if node is None or node.status.index is None:
            return None
        name = plan_name(node.status.index)
        row = _naming(self._parsed(self._plans.get(name)), asked)
        if row is not None:
            return row
        return _naming(self._parsed(await self._once.run(("plan", name), lambda: self._read_plan(name))), asked)

    async def _read_plan(self, name: str) -> Plan | None:
        """Returns a plan as the server has it; None where there is none."""
        try:
            return await self._cluster.get(PLANS, name, type=Plan)
        except NotFound:
            return None

    def _parsed(self, plan: Plan | None) -> Rows:
        """Returns a plan's rows by attempt, parsed once a version of the plan; empty where there is no plan (None).

        Raises Retry where its text does not read.
        """
        if plan is None or not plan.spec.text:
            return {}
        name, version = plan.metadata.name, plan.metadata.resource_version
        known = self._rows.get(name)
        if known is None or known[0] != version:
            try:
                known = self._rows[name] = version, {row.key: row for row in parse_plan(plan.spec.text)}
            except Corrupt as error:
                raise Retry(f"plan {name} cannot be read by this gateway: {error.message}", reason=error.reason) from error
        return known[1]

    # ── the object ──────────────────────────────────────────────────────────────────────────────────────────────

    async def _allocation(self, asked: WorkQuestion, row: PlanRow) -> FoundWork:
        """Returns the Allocation at the generation asked for or newer; one reading serves all who ask meanwhile.

        Raises Retry where the API server has no such generation yet, NotFound where the Allocation is gone.
        """
        kept = self._kept.get(row.uid)
        if kept is not None and not asked.stale and kept.generation >= asked.generation:
            return kept
        read = await self._once.run(("cached", row.uid), lambda: self._read_cached(row.namespace, row.name))
        if read is None or not _serves(read, row.uid, asked):
            read = await self._once.run(("work", row.uid), lambda: self._read(row.namespace, row.name))
        found = _found(read, row.uid)
        if found.generation < asked.generation:
            raise Retry(f"generation {asked.generation} of {row.namespace}/{row.name} is not there yet", reason="GenerationBehind")
        return self._kept.keep(row.uid, found)

    async def _as_reporter(self, asked: WorkQuestion) -> FoundWork:
        """Returns the Allocation to a node that no row names but that its status names as reporter.

        Raises NotFound where the attempt is over, Denied where the node is not its reporter.
        """
        read = await self._read(asked.namespace, asked.name)
        found = _found(read, asked.uid)
        status = msgspec.convert(read.get("status") or {}, AllocationStatus)
        if status.attempt > asked.attempt or (status.attempt == asked.attempt and is_true(status.conditions, FINISHED)):
            raise NotFound(f"attempt {asked.attempt} of {asked.namespace}/{asked.name} is over", reason="AttemptOver")
        if status.attempt != asked.attempt or status.reporter != asked.node:
            raise Denied(
                f"no row of its plan names node {asked.node} for attempt {asked.attempt} of {asked.namespace}/{asked.name}",
                reason="NotYourWork",
            )
        return found

    async def _read_cached(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Returns an Allocation from the API server's watch cache, which may be behind; None where it is not there, from which nothing
        follows.
        """
        try:
            return await self._cluster.get(ALLOCATIONS, name, namespace, cached=True)
        except NotFound:
            return None

    async def _read(self, namespace: str, name: str) -> dict[str, Any]:
        """Returns an Allocation as the server has it. Raises NotFound where there is none."""
        return await self._cluster.get(ALLOCATIONS, name, namespace)


def _naming(rows: Rows, asked: WorkQuestion) -> PlanRow | None:
    """Returns the row of the attempt if it is the ledger's own and names the node, or has the node report; None: there is none such."""
    row = rows.get((asked.uid, asked.attempt))
    if row is None or not row.name or row.cause == UNNAMED:
        return None
    return row if asked.node in row.nodes or asked.node == row.reporter else None


def _serves(read: Mapping[str, Any], uid: str, asked: WorkQuestion) -> bool:
    """Tells whether an object of any age is the one that is asked for, as new as is asked for, and newer than what will not do."""
    metadata = read["metadata"]
    return (
        metadata["uid"] == uid
        and metadata.get("generation", 0) >= asked.generation
        and (not asked.stale or _is_newer(metadata["resourceVersion"], asked.stale))
    )


def _is_newer(version: str, stale: str) -> bool:
    """Tells whether a resourceVersion is above `stale`, the one that a node has sent; False where `stale` is no resourceVersion."""
    return is_digits(stale, LONGEST_VERSION) and int(version) > int(stale)


def _found(read: Mapping[str, Any], uid: str) -> FoundWork:
    """Returns an Allocation as read in the form that is sent to nodes; raises NotFound when it has another uid than `uid`."""
    metadata = read["metadata"]
    if metadata["uid"] != uid:
        raise NotFound(f"allocation {metadata['namespace']}/{metadata['name']} is another object now", reason="NotFound")
    sent = {
        "metadata": {key: metadata[key] for key in METADATA if key in metadata},
        "spec": read["spec"],
        "status": read.get("status") or {},
    }
    spec = read["spec"]
    environment = msgspec.convert(spec.get("environment") or {}, Environment)
    script = msgspec.convert(spec["scriptFrom"], ScriptFrom) if spec.get("scriptFrom") else None
    on_every_node = (spec.get("tasks") or {}).get("on") == "EveryNode"
    return FoundWork(
        metadata["namespace"], metadata.get("generation", 0), msgspec.json.encode(sent), environment.variables_from,
        script=script, on_every_node=on_every_node,
    )  # fmt: skip
