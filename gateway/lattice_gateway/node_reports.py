"""Asks agents what they are doing, for people: the nodes and their attempts, of which each reader sees those that he may get.

The plan's rows, which the scheduler alone writes, say whose an attempt is; a node's own word decides nothing about who sees what.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Final

import msgspec
from aiohttp import web

from lattice.errors import Corrupt, Denied, LatticeError, NotFound
from lattice.kube.cluster import Cluster
from lattice.kube.resources import ALLOCATIONS, NODES
from lattice.ledger.plans import PlanRow, parse_plan, plan_name
from lattice.lifecycle.node_report import AttemptRow, CacheNumbers, Diagnosis, MountRow, NodeReport, OutputEnd
from lattice.lifecycle.preparation import BEGUN, DONE, UNDOING, UNDONE, StepRow
from lattice.rpc.v1 import agent_pb2 as pb
from lattice.views import Allocation, Node
from lattice.views.ledger import Plan
from lattice_gateway.agents import Agents
from lattice_gateway.attempts import newest
from lattice_gateway.identity import Identity
from lattice_gateway.rights import Action, Rights

NODE: Final = "/node/{name}"
DIAGNOSIS: Final = "/diagnosis/{namespace}/{name}"
ANSWER_SECONDS: Final = 3.0
"""Within which all agents that one question asks must have answered."""
MOST_NODES: Final = 64
MOST_OUTPUTS: Final = 4
"""Nodes whose last lines are read: the head, and those that failed first."""
LAST_LINES: Final = 20
LONGEST_LINE: Final = 1000
_STATES: Final = {pb.STEP_BEGUN: BEGUN, pb.STEP_DONE: DONE, pb.STEP_UNDOING: UNDOING, pb.STEP_UNDONE: UNDONE}


class NodeReports:
    """Answers questions about nodes and about the attempt of an allocation; `nodes` and `plans` are live views by name."""

    def __init__(self, cluster: Cluster, rights: Rights, agents: Agents, nodes: Mapping[str, Node], plans: Mapping[str, Plan]) -> None:
        self._cluster, self._rights, self._agents = cluster, rights, agents
        self._nodes, self._plans = nodes, plans

    async def node(self, request: web.Request, identity: Identity) -> web.Response:
        """Answers with what one node is doing, to a reader who may get the node; work that he may not get is only counted.

        Raises Denied where he may not, NotFound for a node that is not registered.
        """
        name = request.match_info["name"]
        if not await self._rights.may(identity, Action("get", NODES.plural, name)):
            raise Denied(f'"{identity.user}" may not get node {name}', reason="NodeForbidden")
        node = self._nodes.get(name)
        if node is None:
            raise NotFound(f"there is no node {name}. Hint: `lattice nodes` lists them", reason="NodeUnknown")
        found = await self._ask(name, pb.ReadNodeRequest())
        return _answer(await self._shown(found, identity, self._rows(node)))

    async def diagnosis(self, request: web.Request, identity: Identity) -> web.Response:
        """Answers with what the nodes of an allocation's newest attempt know of it, and the last lines of its standard error.

        To a reader who may get the allocation; the lines only to one who may read its output. Raises Denied where he may not get it,
        NotFound where it is gone.
        """
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        if not await self._rights.may(identity, Action("get", ALLOCATIONS.plural, name, namespace)):
            raise Denied(f'"{identity.user}" may not get allocations in namespace "{namespace}"', reason="AllocationForbidden")
        one = await self._cluster.get(ALLOCATIONS, name, namespace, type=Allocation)
        refusal = await self._output_refusal(identity, one)
        return _answer(await self._diagnosis(one, refusal))

    async def _diagnosis(self, one: Allocation, refusal: str) -> Diagnosis:
        """Returns what the nodes of an allocation's newest attempt tell, and the last lines of the first ones; without an attempt and for a
        hollow one, nothing.

        `refusal`: why its output may not be read; empty: it may.
        """
        target = newest(one.status)
        if target is None or one.status.hollow:
            return Diagnosis(one.status.attempt, [], output_message=refusal)
        nodes = sorted(target.nodes, key=lambda node: _rank(one, node))
        request = pb.ReadNodeRequest(uid=one.metadata.uid, attempt=target.attempt)
        asked, outputs = nodes[:MOST_NODES], [] if refusal else nodes[:MOST_OUTPUTS]
        found, output = await asyncio.gather(
            asyncio.gather(*(self._ask(node, request) for node in asked)),
            asyncio.gather(*(self._last_lines(node, one, target.attempt) for node in outputs)),
        )
        shown = [_of_allocation(report, one, target.attempt) for report in found]
        return Diagnosis(target.attempt, shown, len(nodes) - len(asked), output, refusal)

    async def _output_refusal(self, identity: Identity, one: Allocation) -> str:
        """Returns why the reader may not see the output of the work; empty: he may."""
        try:
            await self._rights.may_read_logs(identity, one.metadata.namespace, one.metadata.name)
            await self._rights.may_see_work_of(identity, one)
        except Denied as error:
            return error.message
        return ""

    async def _ask(self, node: str, request: pb.ReadNodeRequest) -> NodeReport:
        """Returns what a node's agent reports within three seconds; of one that does not, and of a hollow node, which nobody can ask, why
        not.
        """
        known = self._nodes.get(node)
        state = known.status.state if known is not None else ""
        if known is not None and known.status.hollow:
            return NodeReport(node, state, "it is hollow: nothing runs here, and nobody can be asked")
        try:
            async with asyncio.timeout(ANSWER_SECONDS), aclosing(self._agents.read_node(node, request)) as reports:
                async for report in reports:
                    return _report(node, state, report)
        except LatticeError as error:
            return NodeReport(node, state, error.message)
        except TimeoutError:
            return NodeReport(node, state, f"the agent of node {node} has not answered within {ANSWER_SECONDS:g} s")
        return NodeReport(node, state, f"the agent of node {node} gave no answer")

    async def _last_lines(self, node: str, one: Allocation, attempt: int) -> OutputEnd:
        """Returns the last 20 lines of standard error on a node, as far as they come within three seconds, and a sentence on what kept the
        rest away.
        """
        request = pb.ReadLogsRequest(uid=one.metadata.uid, attempt=attempt, stream=pb.STDERR, tail_lines=LAST_LINES)
        text, message = "", ""
        try:
            async with asyncio.timeout(ANSWER_SECONDS), aclosing(self._agents.read_logs(node, request)) as chunks:
                async for chunk in chunks:
                    text += chunk.data.decode(errors="replace")
                    if chunk.end:
                        break
        except LatticeError as error:
            message = error.message
        except TimeoutError:
            message = f"the agent of node {node} has not sent its output within {ANSWER_SECONDS:g} s"
        return OutputEnd(node, [line[:LONGEST_LINE] for line in text.splitlines()[-LAST_LINES:]], message)

    def _rows(self, node: Node) -> dict[tuple[str, int], PlanRow]:
        """Returns the rows of the node's plan that name it, by attempt; empty where there is no plan, or it does not read."""
        plan = self._plans.get(plan_name(node.status.index)) if node.status.index is not None else None
        try:
            rows = parse_plan(plan.spec.text) if plan is not None and plan.spec.text else []
        except Corrupt:
            return {}
        return {row.key: row for row in rows if node.metadata.name in row.nodes}

    async def _shown(self, found: NodeReport, identity: Identity, rows: Mapping[tuple[str, int], PlanRow]) -> NodeReport:
        """Returns the report with the attempts that the reader may see, named by the plan; the others are counted.

        An attempt that the plan does not name is shown only to one who may get all Allocations.
        """
        seen: list[AttemptRow] = []
        everything = await self._rights.may(identity, Action("get", ALLOCATIONS.plural, ""))
        for attempt in found.attempts:
            row = rows.get((attempt.uid, attempt.attempt))
            if row is not None and (everything or await self._may_see(identity, row)):
                seen.append(msgspec.structs.replace(attempt, namespace=row.namespace, name=row.name, number=row.number))
            elif row is None and everything:
                seen.append(attempt)
        return msgspec.structs.replace(found, attempts=seen, hidden=len(found.attempts) - len(seen))

    async def _may_see(self, identity: Identity, row: PlanRow) -> bool:
        """Tells whether a caller may read the allocation of a plan's row; False for a row without one."""
        return bool(row.namespace) and await self._rights.may(identity, Action("get", ALLOCATIONS.plural, row.name, row.namespace))


def _rank(one: Allocation, node: str) -> tuple[bool, bool]:
    """Returns the key by which nodes are sorted: first those that failed, then the head, then the others."""
    failed = {attempt.node for attempt in one.status.attempts[-1:]} | {one.status.exit.node if one.status.exit is not None else ""}
    return node not in failed, node != one.status.head


def _of_allocation(found: NodeReport, one: Allocation, attempt: int) -> NodeReport:
    """Returns the report with nothing but this attempt, named as the Allocation is."""
    metadata, number = one.metadata, one.status.number or 0
    rows = [
        msgspec.structs.replace(row, namespace=metadata.namespace, name=metadata.name, number=number)
        for row in found.attempts
        if (row.uid, row.attempt) == (metadata.uid, attempt)
    ]
    return msgspec.structs.replace(found, attempts=rows)


def _report(node: str, state: str, report: pb.NodeReport) -> NodeReport:
    """Returns a node's report as the answer."""
    cache = report.cache
    return NodeReport(
        node, state,
        version=report.version, since=report.since, heartbeat=report.heartbeat, seq=report.seq, flaw=report.flaw, cgroups=report.cgroups,
        unlimited=list(report.unlimited), reserved_cpus=report.reserved_cpus, reserved_memory=report.reserved_memory,
        cache=CacheNumbers(
            cache.directory, cache.images, cache.bytes, cache.total_bytes, cache.free_bytes, cache.pulls, cache.message
        ),
        prologue_hooks=list(report.prologue_hooks), epilogue_hooks=list(report.epilogue_hooks), hooks_message=report.hooks_message,
        scratch=report.scratch, containers=report.containers,
        attempts=[_attempt(one) for one in report.attempts], left_out=report.attempts_left_out,
    )  # fmt: skip


def _attempt(one: pb.AttemptReport) -> AttemptRow:
    """Returns an attempt of a node's report as a row of the answer."""
    return AttemptRow(
        one.uid, one.attempt, one.stage,
        message=one.message, started=one.started, steps=_steps(one.steps),
        mounts=[MountRow(mount.target, mount.type, mount.source) for mount in one.mounts], mounts_left_out=one.mounts_left_out,
        limits={limit.controller: limit.limit for limit in one.limits}, processes=one.processes, cpu_seconds=one.use.cpu_seconds,
        peak_memory=one.use.peak_memory, memory_limit=one.use.memory_limit, oom_kills=one.use.oom_kills,
    )  # fmt: skip


def _steps(steps: Sequence[pb.StepProgress]) -> list[StepRow]:
    """Returns the steps of an attempt as rows of the answer; a state that is not known counts as begun."""
    return [
        StepRow(
            step.name, _STATES.get(step.state, BEGUN), step.since, step.bytes, step.size, step.begun, step.done, step.waits,
            step.waits_since,
        )
        for step in steps
    ]  # fmt: skip


def _answer(found: NodeReport | Diagnosis) -> web.Response:
    """Returns the answer with this report as JSON, which nobody may keep."""
    return web.Response(body=msgspec.json.encode(found), content_type="application/json", headers={"Cache-Control": "no-store"})
