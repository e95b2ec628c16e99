"""Answers from the live state of one term: gathers the moment, asks the pure builders, and leaves everything as it was.

Nothing holds the loop for long: each question to the planner is a slice of its own, and what takes longer runs in a thread
on what was read before.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import msgspec

from lattice.accounting.answers import Unsettled
from lattice.daemon.clock import Clock
from lattice.errors import Denied, NotFound, Rejected
from lattice.quota.declared import Bindings, bindings_of
from lattice.quota.forest import Forest
from lattice.scheduling import explanation, queueing
from lattice.scheduling.answers import PLAN_SCHEMA, Bound, Change, Plan, Preemption, Queues, Why
from lattice.scheduling.changes import search
from lattice.scheduling.formulation import formulate, lenders_to, value_of
from lattice.scheduling.gate_rows import explain_gates
from lattice.scheduling.outcomes import Outcome, Placed, Score, Waiting
from lattice.scheduling.preemption import NoVictims, PreemptionLimits, Victims, preemption
from lattice.scheduling.prospect import may_ever, prospects, rehearsed
from lattice.scheduling.quota_answers import QuotaExplanation, Quotas
from lattice.scheduling.quota_view import own_leaves, quotas, slices
from lattice.scheduling.reach import reach
from lattice.scheduling.readers import Reader
from lattice.scheduling.situation import ABOUT_NODES, Expected, Situation
from lattice.scheduling.solver import Effort, best_plan, upper_bound
from lattice.scheduling.work import Candidate, Holder
from lattice.units import format_time
from lattice.views.allocation import Allocation, AllocationStatus
from lattice.views.cluster import Tenant, VCluster
from lattice_controllers.scheduler.loop import Loop

MOST_CHANGED: Final = 4
"""Allocations of one plan for which changes and victims are sought."""

NO_BINDINGS: Final = bindings_of(())
MOST_EXACT: Final = 100
EXACT_SECONDS: Final = 3.0
"""So many jobs are solved exactly, in at most so many deterministic seconds of the solver; more are only bounded."""


class LoopDesk:
    """The desk of a leader: reads the loop, its scene, and the caches beside it."""

    def __init__(
        self, clock: Clock, loop: Loop, *, candidate: Callable[[Allocation], Candidate], holders: Callable[[], Mapping[str, Holder]],
        expected: Callable[[], Mapping[str, Expected]], suppose: Callable[[Sequence[Waiting]], Awaitable[Mapping[str, Expected]]],
        number: Callable[[str], int | None], vclusters: Callable[[], Mapping[str, VCluster]], tenants: Callable[[], Mapping[str, Tenant]],
        bursts: Callable[[str], bool], limits: Callable[[], PreemptionLimits],
        bindings: Callable[[], Bindings] = lambda: NO_BINDINGS, over_since: Callable[[], Mapping[str, str]] = dict,
        unsettled: Callable[[], Unsettled] = lambda: Unsettled("0", []),
    ) -> None:  # fmt: skip
        self._clock = clock
        self._loop = loop
        self._candidate = candidate
        self._holders = holders
        self._expected = expected
        self._suppose = suppose
        self._number = number
        self._vclusters = vclusters
        self._tenants = tenants
        self._bursts = bursts
        self._limits = limits
        self._bindings = bindings
        self._over_since = over_since
        self._unsettled = unsettled

    async def why(self, uid: str, reader: Reader) -> Why:
        """Why it waits; NotFound when it is not pending."""
        candidate, waiting = self._loop.candidates.get(uid), self._loop.reasons.get(uid)
        found: list[Change] = []
        victims = None
        if candidate is not None and waiting is not None:
            found = await self._changes(candidate)
            victims = await self._victims(waiting, reader)
        return explanation.why(self._situation(), uid, reader, changes=found, preemption=victims)

    async def plan(self, allocations: Sequence[dict[str, Any]], reader: Reader, *, optimal: bool) -> Plan:
        """What would become of these, in this order."""
        asked = [self._asked(document, number) for number, document in enumerate(allocations, 1)]
        situation = self._situation()
        everything = rehearsed(situation, asked)
        mine = {candidate.uid for candidate in asked}
        outcomes = {one.candidate.uid: one for one in everything if one.candidate.uid in mine}
        bound = await self._bound(everything) if optimal else None
        waiting = [one for one in outcomes.values() if isinstance(one, Waiting) and may_ever(one)]
        if waiting:
            supposed = await self._suppose(waiting)
            situation = replace(situation, expected={**situation.expected, **supposed})
        hopeless = [one for one in outcomes.values() if isinstance(one, Waiting) and not may_ever(one)]
        changes = {one.candidate.uid: await self._changes(one.candidate) for one in [*waiting, *hopeless][:MOST_CHANGED]}
        victims = {one.candidate.uid: await self._victims(one, reader) for one in waiting[:MOST_CHANGED]}
        chosen = {uid: found for uid, found in victims.items() if found is not None}
        plans = prospects(situation, asked, outcomes, reader, changes=changes, preemptions=chosen)
        return Plan(schema=PLAN_SCHEMA, at=format_time(situation.now), allocations=plans, optimal=bound)

    async def queue(self, vcluster: str, reader: Reader, limit: int) -> Queues:
        """The queue of a vcluster; empty: of all."""
        for answer in queueing.slices(self._situation(), list(self._vclusters()), reader, limit, only=vcluster):
            if answer is not None:
                return answer
            await asyncio.sleep(0)
        raise NotFound("no queue was found", reason="VClusterUnknown")

    async def quota(self, reader: Reader) -> Quotas:
        """The quota trees, as the reader may see them."""
        situation = self._situation()
        elastic = situation.scene.elastic
        if elastic is None:
            return quotas(Forest(), frozenset(), reader, format_time(situation.now))
        mine = own_leaves(situation, reader) | self._leaves_for(reader)
        for answer in slices(elastic.forest, mine, reader, format_time(situation.now), self._over_since()):
            if answer is not None:
                return answer
            await asyncio.sleep(0)
        raise NotFound("no quota tree was found", reason="QuotaUnknown")

    async def explain_quota(self, uid: str, reader: Reader) -> QuotaExplanation:
        """Every gate before an allocation; NotFound when it neither waits nor holds nodes."""
        return explain_gates(self._situation(), uid, reader)

    def _leaves_for(self, reader: Reader) -> frozenset[str]:
        """The groups of what the reader could submit in the namespaces that he looks at."""
        bindings, found = self._bindings(), set[str]()
        for name, tenant in self._tenants().items():
            for namespace in reader.namespaces.intersection(tenant.spec.namespaces or (name,)):
                found.update(bindings.leaf("", "", name, vcluster, namespace) for vcluster in self._open_to(name))
        return frozenset(found)

    async def unsettled(self, tenants: frozenset[str], user: str) -> Unsettled:
        """What these tenants (none: all, where no user is named) and this user are charged that no usage record holds."""
        found = self._unsettled()
        everybody = not tenants and not user
        return Unsettled(found.version, [one for one in found.charges if everybody or one.tenant in tenants or one.user == user])

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

    async def _changes(self, candidate: Candidate) -> list[Change]:
        """The smallest changes that would start it now; the loop goes on between two questions to the planner."""
        scene, found = self._loop.scene, []
        types = {facts.gpu_type for facts in scene.machine.nodes.values() if facts.gpu_type}
        queues = {name: list(self._loop.queue(name)) for name in self._loop.vclusters()}
        for change in search(scene, candidate, self._clock.now(), types, self._open_to(candidate.tenant), queues):
            if change is not None:
                found.append(change)
            await asyncio.sleep(0)
        return found

    def _open_to(self, tenant: str) -> set[str]:
        """The vclusters that start work of a tenant."""
        return {
            name
            for name, vcluster in self._vclusters().items()
            if vcluster.spec.state == "Open" and not {"*", tenant}.isdisjoint(vcluster.spec.tenants)
        }

    async def _victims(self, waiting: Waiting, reader: Reader) -> Preemption | None:
        """What would be preempted to start it; nothing is asked where it does not wait for nodes."""
        if waiting.reason not in ABOUT_NODES:
            return None
        candidate, now = waiting.candidate, self._clock.now()
        within = reach(self._loop.scene, candidate, now)
        holders = [replace(holder, burst=self._bursts(holder.tenant)) for holder in self._holders().values()]
        policies, score, limits = dict(self._loop.scene.policies), waiting.score or Score(candidate.preemption_class / 10), self._limits()

        def decided() -> Victims | NoVictims:
            eligible = within.eligible()
            free = within.free(eligible)
            return preemption(candidate, holders, within.nodes, eligible, free, policies, now, score=score.total, limits=limits)

        return explanation.sacrifice(self._situation(), await asyncio.to_thread(decided), reader)

    async def _bound(self, outcomes: Sequence[Outcome]) -> Bound:
        """What the solver proves of the cycle that gave these outcomes; Rejected where they are of several vclusters."""
        vclusters = {one.candidate.vcluster for one in outcomes}
        if len(vclusters) != 1:
            raise Rejected(
                f"--optimal is for one vcluster, and these are {len(vclusters)}: {', '.join(sorted(vclusters))}", reason="BadInput"
            )
        meant = [one for one in outcomes if isinstance(one, Placed) or one.reason in ABOUT_NODES]
        candidates, scores = [one.candidate for one in meant], [one.score.total if one.score is not None else 0.0 for one in meant]
        vcluster, scene = vclusters.pop(), self._loop.scene
        home = vcluster if scene.policy(vcluster).home else ""
        question = formulate(scene.machine, candidates, scores, home=home, lenders=lenders_to(scene.policies, vcluster))
        value, bound = value_of(meant), await asyncio.to_thread(upper_bound, question.jobs, question.buckets)
        if len(candidates) > MOST_EXACT or any(one.maximum > one.minimum for one in candidates):
            return Bound(value=round(value, 4), bound=round(max(value, bound), 4), status="bound by linear relaxation")
        best = await asyncio.to_thread(best_plan, question.jobs, question.buckets, Effort(seconds=EXACT_SECONDS))
        status = "proven" if best.proven else f"not proven in {EXACT_SECONDS:g} s of the solver"
        bound = max(value, min(bound, best.bound))
        return Bound(value=round(value, 4), bound=round(bound, 4), optimal=round(max(value, best.value), 4), status=status)

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
