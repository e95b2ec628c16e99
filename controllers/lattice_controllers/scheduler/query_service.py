"""Answers from the live state of one term: gathers the moment, asks the pure builders, and leaves everything as it was.

Nothing holds the loop for long: `why`, `plan` and `queue` are answered in a thread, one at a time, by a scene of the moment
at which they were asked; a large quota tree is looked at in slices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from lattice.accounting.answers import Unsettled
from lattice.daemon.clock import Clock
from lattice.errors import Denied, NotFound, Rejected
from lattice.quota.declared import Bindings, bindings_of
from lattice.quota.forest import Forest
from lattice.scheduling.model.outcomes import Outcome, Placed, Waiting
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.optimum.formulation import formulate, lenders_to, unknown_rules, value_of
from lattice.scheduling.optimum.solver import Effort, best_plan, upper_bound
from lattice.scheduling.preemption.victims import PreemptionLimits
from lattice.scheduling.queries import explanation
from lattice.scheduling.queries.answers import PLAN_SCHEMA, Bound, Plan, Queues, Why
from lattice.scheduling.queries.gate_rows import explain_gates
from lattice.scheduling.queries.inquiry import Glimpse, Inquiry, queues
from lattice.scheduling.queries.prospect import may_ever
from lattice.scheduling.queries.quota_answers import QuotaExplanation, Quotas
from lattice.scheduling.queries.quota_view import Remarks, own_leaves, quotas, slices
from lattice.scheduling.queries.readers import Reader
from lattice.scheduling.queries.situation import ABOUT_NODES, Expected, Situation
from lattice.scheduling.recording.record import glance
from lattice.units import format_time
from lattice.views.allocation import Allocation, AllocationStatus
from lattice.views.cluster import Tenant, VCluster
from lattice_controllers.scheduler.loop import Loop

T = TypeVar("T")
NO_BINDINGS: Final = bindings_of(())
MOST_EXACT: Final = 100
EXACT_SECONDS: Final = 3.0
"""So many jobs are solved exactly, in at most so many deterministic seconds of the solver; more are only bounded."""


class QueryService:
    """The query service of a leader: reads the loop, its scene, and the caches beside it; `number` may be asked from any thread."""

    def __init__(
        self, clock: Clock, loop: Loop, *, candidate: Callable[[Allocation], Candidate],
        expected: Callable[[], Mapping[str, Expected]], suppose: Callable[[Sequence[Waiting]], Awaitable[Mapping[str, Expected]]],
        number: Callable[[str], int | None], vclusters: Callable[[], Mapping[str, VCluster]], tenants: Callable[[], Mapping[str, Tenant]],
        bursts: Callable[[str], bool], limits: Callable[[], PreemptionLimits],
        bindings: Callable[[], Bindings] = lambda: NO_BINDINGS, over_since: Callable[[], Mapping[str, str]] = dict,
        remarks: Callable[[], Remarks] = Remarks,
        unsettled: Callable[[], Unsettled] = lambda: Unsettled("0", []),
    ) -> None:  # fmt: skip
        self._clock = clock
        self._loop = loop
        self._candidate = candidate
        self._expected = expected
        self._suppose = suppose
        self._number = number
        self._vclusters = vclusters
        self._tenants = tenants
        self._bursts = bursts
        self._limits = limits
        self._bindings = bindings
        self._over_since = over_since
        self._remarks = remarks
        self._unsettled = unsettled
        self._turn, self._reading = asyncio.Lock(), asyncio.Lock()
        """One question to the planner, and one to a queue, at a time: every thread more takes its part of the loop's time."""

    async def why(self, uid: str, reader: Reader) -> Why:
        """Why it waits; NotFound when it is not pending."""
        async with self._turn:
            if uid not in self._loop.candidates:
                raise explanation.not_pending()
            glimpse = self._glimpse()
            return await _aside(lambda: Inquiry(glimpse, reader).why(uid))

    async def plan(self, allocations: Sequence[dict[str, Any]], reader: Reader, *, optimal: bool) -> Plan:
        """What would become of these, in this order."""
        asked = [self._asked(document, number) for number, document in enumerate(allocations, 1)]
        async with self._turn:
            glimpse = self._glimpse(asked)
            inquiry = await _aside(lambda: Inquiry(glimpse, reader))
            outcomes = await _aside(lambda: inquiry.rehearsed(asked))
        bound = await _aside(lambda: _bound(inquiry.situation, outcomes)) if optimal else None
        mine = {candidate.uid for candidate in asked}
        waiting = [one for one in outcomes if one.candidate.uid in mine and isinstance(one, Waiting) and may_ever(one)]
        supposed = await self._suppose(waiting) if waiting else {}
        async with self._turn:
            plans = await _aside(lambda: inquiry.prospects(asked, outcomes, supposed))
        return Plan(schema=PLAN_SCHEMA, at=format_time(glimpse.moment.now), allocations=plans, optimal=bound)

    async def queue(self, vcluster: str, reader: Reader, limit: int) -> Queues:
        """The queue of a vcluster; empty: of all."""
        async with self._reading:
            glimpse, known = self._glimpse(), list(self._vclusters())
            return await _aside(lambda: queues(glimpse, known, reader, limit, vcluster))

    async def quota(self, reader: Reader) -> Quotas:
        """The quota trees, as the reader may see them."""
        situation = self._situation()
        elastic = situation.scene.elastic
        if elastic is None:
            return quotas(Forest(), frozenset(), reader, format_time(situation.now), remarks=self._remarks())
        mine = own_leaves(situation, reader) | self._leaves_for(reader)
        for answer in slices(elastic.forest, mine, reader, format_time(situation.now), self._over_since(), self._remarks()):
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

    def _glimpse(self, asked: Sequence[Candidate] = ()) -> Glimpse:
        """What the loop is at this moment; `asked` is asked about beside what waits."""
        loop, pending = self._loop, list(self._loop.candidates.values())
        moment = glance(loop.scene, pending, self._clock.now(), asked)
        return Glimpse(
            moment=moment,
            waiting=dict(loop.reasons),
            expected=self._expected(),
            open_to={tenant: self._open_to(tenant) for tenant in {one.tenant for one in (*pending, *asked)}},
            bursting=frozenset(filter(self._bursts, {holder.tenant for holder in moment.holders.values()})),
            limits=self._limits(),
            moves=dict(loop.moves),
            number=self._number,
        )

    def _situation(self) -> Situation:
        return Situation(
            now=self._clock.now(),
            scene=self._loop.scene,
            candidates=self._loop.candidates,
            waiting=self._loop.reasons,
            holders=self._loop.scene.holders,
            expected=self._expected(),
            number=self._number,
        )

    def _open_to(self, tenant: str) -> set[str]:
        """The vclusters that start work of a tenant."""
        return {
            name
            for name, vcluster in self._vclusters().items()
            if vcluster.spec.state == "Open" and not {"*", tenant}.isdisjoint(vcluster.spec.tenants)
        }

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


async def _aside(ask: Callable[[], T]) -> T:
    """The answer of a question that is asked in a thread; where nobody waits for it any more, it still comes to its end first."""
    answer = asyncio.get_running_loop().run_in_executor(None, ask)
    try:
        return await asyncio.shield(answer)
    except asyncio.CancelledError:
        await asyncio.wait([answer])
        raise


def _bound(situation: Situation, outcomes: Sequence[Outcome]) -> Bound:
    """What the solver proves of the cycle that gave these outcomes; Rejected where they are of several vclusters."""
    vclusters = {one.candidate.vcluster for one in outcomes}
    if len(vclusters) != 1:
        raise Rejected(f"--optimal is for one vcluster, and these are {len(vclusters)}: {', '.join(sorted(vclusters))}", reason="BadInput")
    meant = [one for one in outcomes if isinstance(one, Placed) or one.reason in ABOUT_NODES]
    candidates, scores = [one.candidate for one in meant], [one.score.total if one.score is not None else 0.0 for one in meant]
    vcluster, scene = vclusters.pop(), situation.scene
    home = vcluster if scene.policy(vcluster).home else ""
    question = formulate(scene.machine, candidates, scores, home=home, lenders=lenders_to(scene.policies, vcluster))
    value, bound = value_of(meant), upper_bound(question.jobs, question.buckets)
    unknown = unknown_rules(scene, vcluster, candidates, situation.now)
    if len(candidates) > MOST_EXACT or any(one.maximum > one.minimum for one in candidates):
        bound = max(value, bound)
        return Bound(value=round(value, 4), bound=round(bound, 4), status="bound by linear relaxation", unknown=unknown)
    best = best_plan(question.jobs, question.buckets, Effort(seconds=EXACT_SECONDS))
    status = "proven" if best.proven else f"not proven in {EXACT_SECONDS:g} s of the solver"
    bound, optimal = max(value, min(bound, best.bound)), max(value, best.value)
    return Bound(value=round(value, 4), bound=round(bound, 4), optimal=round(optimal, 4), status=status, unknown=unknown)
