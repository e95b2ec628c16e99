"""Answers which launches an attempt had, and ends one of them: checks the right, and asks the agent of the node that heads the attempt."""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from typing import Final

import msgspec
from aiohttp import web

from lattice.daemon.logs import event
from lattice.errors import LatticeError, NotFound, Rejected, Retry, Stale
from lattice.kube.clock import Clock
from lattice.kube.cluster import Cluster
from lattice.kube.resources import ALLOCATIONS
from lattice.launches.answers import FAILED, RESULTS, RUNNING, LaunchOrderAnswer, LaunchReport, LaunchRow, StepsOfAttempt
from lattice.rpc.v1 import agent_pb2 as pb
from lattice.units import format_time, whole_number
from lattice.views import Allocation
from lattice.views.allocation import FailedLaunch, LaunchTotals
from lattice_gateway.agents import Agents
from lattice_gateway.attempts import Target, named, newest
from lattice_gateway.bodies import read_order
from lattice_gateway.identity import Identity
from lattice_gateway.rights import Rights

log = logging.getLogger(__name__)

LAUNCHES: Final = "/launches/{namespace}/{name}"
USUAL_ROWS: Final = 100
MOST_ROWS: Final = 10_000
ANSWER_SECONDS: Final = 10.0
LARGEST_ORDER: Final = 4096
LONGEST_REASON: Final = 128


class CancelOrder(msgspec.Struct, frozen=True):
    """The body of an order to end a launch; `attempt` 0: the present one."""

    number: int
    attempt: int = 0
    reason: str = ""


class LaunchDesk:
    """Asks the head's agent for the launches of attempts; who may read the output of the work may see them."""

    def __init__(self, cluster: Cluster, rights: Rights, agents: Agents, clock: Clock) -> None:
        self._cluster, self._rights, self._agents, self._clock = cluster, rights, agents, clock

    async def list_launches(self, request: web.Request, identity: Identity) -> web.Response:
        """Answers with the newest launches of an attempt (`attempt`, else the newest; `limit` of them; `number`: this one alone).

        Raises Denied where the caller may not read its output, NotFound where there is no such attempt, Rejected for a bad parameter.
        """
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        await self._rights.may_read_logs(identity, namespace, name)
        one = await self._cluster.get(ALLOCATIONS, name, namespace, type=Allocation)
        await self._rights.may_see_work_of(identity, one)
        attempt, limit = _parameter(request, "attempt", 0), _parameter(request, "limit", USUAL_ROWS)
        number = _parameter(request, "number", 0) if "number" in request.query else None
        rows, steps = await self._steps(one, _target(one, attempt), min(max(limit, 1), MOST_ROWS), number)
        report = LaunchReport(schema="lattice.dev/steps/v1", at=format_time(self._clock.now()), rows=rows, attempts=[steps])
        return _answer(msgspec.json.encode(report))

    async def cancel(self, request: web.Request, identity: Identity) -> web.Response:
        """Ends one launch of an attempt: TERM, grace, KILL; one that is over stays as it is, and the answer tells how it ended.

        Raises Denied where the caller may not cancel the allocation, NotFound where there is no such launch, Stale where nothing runs,
        Rejected for a bad order.
        """
        namespace, name = request.match_info["namespace"], request.match_info["name"]
        await self._rights.may_cancel(identity, namespace, name)
        one = await self._cluster.get(ALLOCATIONS, name, namespace, type=Allocation)
        await self._rights.may_end_launches_of(identity, one)
        order = await _order(request)
        target = _target(one, order.attempt)
        if target is None or one.status.hollow:
            raise Stale(f"{one.metadata.key} has not started: it has no launches", reason="NotStarted")
        why = f"cancelled by {identity.user}" + (f": {order.reason[:LONGEST_REASON]}" if order.reason else "")
        event(log, "LaunchCancelled", allocation=one.metadata.key, launch=order.number, attempt=target.attempt, user=identity.user)
        asked = pb.EndLaunchRequest(uid=one.metadata.uid, attempt=target.attempt, number=order.number, why=_printable(why))
        try:
            async with asyncio.timeout(ANSWER_SECONDS), aclosing(self._agents.end_launch(_head(one, target), asked)) as reports:
                async for found in reports:
                    row = _row(one, target.attempt, found.launch) if found.HasField("launch") else None
                    return _answer(msgspec.json.encode(LaunchOrderAnswer(ending=found.ending, grace_seconds=found.grace_seconds, row=row)))
        except TimeoutError:
            pass  # said below
        raise Retry(f"the agent of node {_head(one, target)} has not answered within {ANSWER_SECONDS:g} s", reason="AgentSilent")

    async def _steps(
        self, one: Allocation, target: Target | None, limit: int, number: int | None
    ) -> tuple[list[LaunchRow], StepsOfAttempt]:
        """Returns the launches of an attempt as its head tells them; where it does not, none, with why, and the totals of the status."""
        key, status = one.metadata.key, one.status
        if target is None or status.hollow:
            why = "it ran on hollow nodes, which launch nothing" if status.hollow else ""
            return [], StepsOfAttempt(allocation=key, number=status.number or 0, incomplete=why)
        known = status.launches if target.attempt == status.attempt and status.launches is not None else LaunchTotals()
        base = StepsOfAttempt(allocation=key, number=status.number or 0, attempt=target.attempt, launches=known)
        request = pb.ReadLaunchesRequest(uid=one.metadata.uid, attempt=target.attempt, limit=limit, number=number)
        rows, last, head = list[LaunchRow](), pb.LaunchesReport(), _head(one, target)
        try:
            async with asyncio.timeout(ANSWER_SECONDS), aclosing(self._agents.read_launches(head, request)) as pages:
                async for last in pages:
                    rows += (_row(one, target.attempt, row) for row in last.launches)
        except LatticeError as error:
            return rows, msgspec.structs.replace(base, incomplete=error.message)
        except TimeoutError:
            silent = f"the agent of node {head} has not answered within {ANSWER_SECONDS:g} s"
            return rows, msgspec.structs.replace(base, incomplete=silent)
        deleted = f"the rows were deleted on node {head}, whose disk was full" if last.deleted else ""
        totals = _totals(last.totals) if last.HasField("totals") and last.totals.total else known
        return rows, msgspec.structs.replace(
            base, launches=totals, dropped=last.dropped, left_out=last.left_out, incomplete=deleted
        )  # fmt: skip


def _target(one: Allocation, attempt: int) -> Target | None:
    """Returns the attempt of this number (0: the newest) with its nodes; None: none had any yet. Raises NotFound for an unknown one."""
    found = named(one.status, attempt) if attempt else newest(one.status)
    if attempt and found is None:
        raise NotFound(
            f"{one.metadata.key} has no record of attempt {attempt}; the newest is {one.status.attempt}", reason="AttemptUnknown"
        )
    return found


def _head(one: Allocation, target: Target) -> str:
    """Returns the node that heads an attempt."""
    return one.status.head if target.attempt == one.status.attempt and one.status.head in target.nodes else target.nodes[0]


def _row(one: Allocation, attempt: int, row: pb.LaunchRow) -> LaunchRow:
    """Returns a row of an agent's answer, as the document has it; a state of a newer agent counts as failed."""
    return LaunchRow(
        number=row.number, state=row.state if row.state in (RUNNING, *RESULTS) else FAILED,  # type: ignore[arg-type]  # one of these words
        command=row.command, name=row.name, nodes=row.nodes, node_count=row.node_count, tasks=row.tasks, cpus=row.cpus,
        started=row.started, ended=row.ended, seconds=row.seconds, code=row.code, signal=row.signal, cpu_seconds=row.cpu_seconds,
        peak_memory=row.peak_memory, node=row.node, reason=row.reason, step=f"{one.status.number or one.metadata.name}.{row.number}",
        attempt=attempt,
    )  # fmt: skip


def _totals(found: pb.LaunchTotals) -> LaunchTotals:
    """Returns the totals of an agent's answer."""
    failures = tuple(FailedLaunch(step=one.step, result=one.result, code=one.code, signal=one.signal, node=one.node, reason=one.reason)
                     for one in found.failures)  # fmt: skip
    return LaunchTotals(
        total=found.total, completed=found.completed, failed=found.failed, cancelled=found.cancelled, timeout=found.timeout,
        node_fail=found.node_fail, failures=failures,
    )  # fmt: skip


def _parameter(request: web.Request, name: str, usual: int) -> int:
    """Returns a number of the query; raises Rejected where it is none."""
    text = request.query.get(name, "")
    found = whole_number(text) if text else usual
    if found is None or found >= 1 << 31:
        raise Rejected(f"{name}={text[:32]}: a whole number is wanted", reason="ParameterInvalid", fields=(name,))
    return found


async def _order(request: web.Request) -> CancelOrder:
    """Returns the order in a request's body; raises Rejected where it does not read."""
    found = await read_order(request, CancelOrder, "order to end a launch", most_bytes=LARGEST_ORDER)
    if not (0 <= found.number < 1 << 31 and 0 <= found.attempt < 1 << 31):
        raise Rejected("launches and attempts are numbered from 0 to 2147483647", reason="ParameterInvalid")
    return found


def _printable(text: str) -> str:
    """Returns a text without characters that a terminal obeys."""
    return "".join(character if character.isprintable() else " " for character in text)


def _answer(body: bytes) -> web.Response:
    """Returns the answer with this body of JSON, which nobody may keep."""
    return web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-store"})
