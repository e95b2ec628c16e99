"""Answers from the live state of one term: gathers the moment, asks the pure builders, and leaves everything as it was.

Nothing holds the loop for long: the planner is asked once for each question, and each further step is a slice of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from lattice.daemon.clock import Clock
from lattice.errors import Denied, Rejected
from lattice.scheduling import explanation, queueing
from lattice.scheduling.answers import PLAN_SCHEMA, Plan, Queues, Why
from lattice.scheduling.prospect import prospects
from lattice.scheduling.readers import Reader
from lattice.scheduling.situation import Expected, Situation
from lattice.scheduling.work import Candidate, Holder
from lattice.units import format_time
from lattice.views.allocation import Allocation, AllocationStatus
from lattice.views.cluster import Tenant
from lattice_controllers.scheduler.loop import Loop


class LoopDesk:
    """The desk of a leader: reads the loop, its scene, and the caches beside it."""

    def __init__(
        self, clock: Clock, loop: Loop, *, candidate: Callable[[Allocation], Candidate], holders: Callable[[], Mapping[str, Holder]],
        expected: Callable[[], Mapping[str, Expected]], number: Callable[[str], int | None],
        vclusters: Callable[[], Iterable[str]], tenants: Callable[[], Mapping[str, Tenant]],
    ) -> None:  # fmt: skip
        self._clock = clock
        self._loop = loop
        self._candidate = candidate
        self._holders = holders
        self._expected = expected
        self._number = number
        self._vclusters = vclusters
        self._tenants = tenants

    async def why(self, uid: str, reader: Reader) -> Why:
        """Why it waits; NotFound when it is not pending."""
        return explanation.why(self._situation(), uid, reader)

    async def plan(self, allocations: Sequence[dict[str, Any]], reader: Reader, *, optimal: bool) -> Plan:
        """What would become of these, in this order."""
        del optimal
        asked = [self._asked(document, number) for number, document in enumerate(allocations, 1)]
        situation = self._situation()
        plans = []
        for planned in prospects(situation, asked, reader):
            plans.append(planned)
            await asyncio.sleep(0)
        return Plan(schema=PLAN_SCHEMA, at=format_time(situation.now), allocations=plans)

    async def queue(self, vcluster: str, reader: Reader, limit: int) -> Queues:
        """The queue of a vcluster; empty: of all."""
        return queueing.queues(self._situation(), list(self._vclusters()), reader, limit, only=vcluster)

    def _situation(self) -> Situation:
        return Situation(
            now=self._clock.now(),
            scene=self._loop.scene,
            candidates=self._loop.candidates,
            waiting=self._loop.reasons,
            holders=self._holders(),
            expected=self._expected(),
            number=self._number,
        )

    def _asked(self, document: dict[str, Any], number: int) -> Candidate:
        """The candidate that it would be if it were submitted now."""
        try:
            given = msgspec.convert({**document, "status": {}}, Allocation)
        except msgspec.ValidationError as error:
            raise Rejected(f"allocation {number} of the plan cannot be read: {error}", reason="PlanInvalid") from error
        spec, meta = given.spec, given.metadata
        tenant = self._tenants().get(spec.tenant)
        if tenant is None or meta.namespace not in (tenant.spec.namespaces or (spec.tenant,)):
            sentence = f'namespace "{meta.namespace}" is not one of the tenant that allocation {number} of the plan names'
            raise Denied(sentence, reason="TenantMismatch")
        meta = msgspec.structs.replace(meta, uid=f"plan-{number}", creation_timestamp=format_time(self._clock.now(), micro=True))
        allocation = msgspec.structs.replace(given, metadata=meta, status=AllocationStatus())
        return self._candidate(allocation)
