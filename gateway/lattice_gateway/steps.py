"""Answers how far the steps of an allocation are on its nodes: the gateway checks the reader's right and asks the agents."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Final

import msgspec
from aiohttp import web

from lattice.errors import Denied, LatticeError
from lattice.kube.cluster import Cluster
from lattice.kube.resources import ALLOCATIONS
from lattice.lifecycle.preparation import BEGUN, DONE, UNDOING, NodeSteps, Preparation, StepRow
from lattice.rpc.v1 import agent_pb2 as pb
from lattice.units import expand_nodes
from lattice.views import Allocation
from lattice_gateway.agents import Agents
from lattice_gateway.identity import Identity
from lattice_gateway.rights import Action, Rights

STEPS: Final = "/steps/{namespace}/{name}"
MOST_NODES: Final = 256
"""Nodes that one question asks: the first ones, the head among them."""
AT_ONCE: Final = 64
ANSWER_SECONDS: Final = 3.0
"""Within which the nodes must have answered that are asked together, those that wait for a turn too."""
_STATES: Final = {pb.STEP_BEGUN: BEGUN, pb.STEP_DONE: DONE, pb.STEP_UNDOING: UNDOING}


class StepsDesk:
    """Asks the agents of an allocation's present attempt for its steps; whoever may get the allocation may know them."""

    def __init__(self, cluster: Cluster, rights: Rights, agents: Agents) -> None:
        self._cluster, self._rights, self._agents = cluster, rights, agents

    async def answer(self, request: web.Request, identity: Identity) -> web.Response:
        """Answers with the steps of the present attempt on each of its nodes, at most 256, to a reader who may get the allocation.

        Of work that runs the head alone is asked, unless its steps are being undone. A node that does not answer has a sentence instead of
        steps. Raises Denied where the reader may not, NotFound where the allocation is gone.
        """
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        if not await self._rights.may(identity, Action("get", ALLOCATIONS.plural, name, namespace)):
            raise Denied(f'"{identity.user}" may not get allocations in namespace "{namespace}"', reason="AllocationForbidden")
        one = await self._cluster.get(ALLOCATIONS, name, namespace, type=Allocation)
        body = msgspec.json.encode(await self._preparation(one))
        return web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-store"})

    async def _preparation(self, one: Allocation) -> Preparation:
        """Returns the steps of an attempt's nodes: of the head only while work runs and nothing is undone there, else of the first 256; and
        how many nodes were not asked.

        A hollow allocation, and one without nodes, has none.
        """
        status = one.status
        nodes = sorted(expand_nodes(status.nodes), key=lambda node: node != status.head) if status.nodes and not status.hollow else []
        turn = asyncio.Semaphore(AT_ONCE)
        asked = [await self._of_node(one, node, turn) for node in nodes[:1]]
        working = status.start_time and not any(step.state == UNDOING for found in asked for step in found.steps)
        if not working:
            asked += await asyncio.gather(*(self._of_node(one, node, turn) for node in nodes[1:MOST_NODES]))
        return Preparation(status.attempt, asked, max(0, len(nodes) - len(asked)))

    async def _of_node(self, one: Allocation, node: str, turn: asyncio.Semaphore) -> NodeSteps:
        """Returns a node's steps; none, with a sentence why, where its agent does not answer in time."""
        request = pb.ReadStepsRequest(uid=one.metadata.uid, attempt=one.status.attempt)
        try:
            async with asyncio.timeout(ANSWER_SECONDS), turn, aclosing(self._agents.read_steps(node, request)) as reports:
                async for report in reports:
                    return NodeSteps(node, [_row(step) for step in report.steps])
        except LatticeError as error:
            return NodeSteps(node, [], error.message)
        except TimeoutError:
            return NodeSteps(node, [], f"the agent of node {node} has not answered within {ANSWER_SECONDS:g} s")
        return NodeSteps(node, [], f"the agent of node {node} gave no answer")


def _row(step: pb.StepProgress) -> StepRow:
    """Returns one step as a row of the answer."""
    return StepRow(
        step.name, _STATES.get(step.state, BEGUN), step.since, step.bytes, step.size, step.begun, step.done, step.waits, step.waits_since
    )  # fmt: skip
