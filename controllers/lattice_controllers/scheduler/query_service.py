"""The query service: answers `why`, `plan`, `queue`, `status` and `quota` from the live state of one term, and changes nothing.

No answer holds the loop for long: `status`, `why`, `plan` and `queue` are computed in a thread, one of each kind at a time, from a snapshot
taken when the question arrived; a large quota tree is walked in slices.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Protocol, TypeVar

import msgspec

from lattice.accounting.answers import Unsettled
from lattice.daemon.clock import Clock
from lattice.errors import Denied, NotFound, Rejected
from lattice.kube.lasting import LastKnown
from lattice.quota.declared import Bindings
from lattice.quota.forest import Forest
from lattice.scheduling.conversion.policies import preemption_limits
from lattice.scheduling.model.outcomes import Outcome, Placed, Waiting
from lattice.scheduling.model.strategies import lenders_for
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.optimum.formulation import formulate, unknown_rules, value_of
from lattice.scheduling.optimum.solver import Effort, best_plan, upper_bound
from lattice.scheduling.queries import explanation
from lattice.scheduling.queries.answers import PLAN_SCHEMA, Bound, Plan, Queues, Why
from lattice.scheduling.queries.context import ABOUT_NODES, Expected, QueryContext
from lattice.scheduling.queries.gate_rows import explain_gates
from lattice.scheduling.queries.planner_queries import PlannerQueries, QuerySnapshot, queues
from lattice.scheduling.queries.quota_answers import QuotaExplanation, Quotas
from lattice.scheduling.queries.quota_view import Remarks, own_leaves, quotas, slices
from lattice.scheduling.queries.readers import Reader
from lattice.scheduling.queries.status_rows import Selection
from lattice.scheduling.queries.what_if import may_ever
from lattice.scheduling.recording.record import take_query_snapshot
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.software.answers import PlannedImages
from lattice.units import format_time
from lattice.views.allocation import Allocation, AllocationStatus
from lattice.views.cluster import Config, Tenant, VCluster
from lattice_controllers.scheduler.pending_work import CandidateSource, PendingWork
from lattice_controllers.scheduler.status_rows import StatusAnswer, StatusCache

T = TypeVar("T")
MOST_EXACT: Final = 100
EXACT_SECONDS: Final = 3.0
"""Up to `MOST_EXACT` jobs are solved exactly, within so many deterministic seconds of the solver; of more only a bound is computed."""
CATCH_UP_SECONDS: Final = 0.5
"""How long a question that names a version waits for the reconciler of allocations, once the cache shows that version."""


class ReconciledCandidates(CandidateSource, Protocol):
    """Makes candidates, and knows which changes are not in the queues yet; the reconciler `Allocations` is the implementation."""

    async def catch_up(self, seconds: float) -> None:
        """Waits until each change that has come in is in the queues, at most `seconds`; does not say whether it is."""
        ...


class NumberSource(Protocol):
    """Knows the numbers that people see; `AllocationCache` is the implementation."""

    def shown_number(self, uid: str) -> int | None:
        """Returns the number that an allocation's status shows; None where it shows none yet, or the uid is unknown. Thread-safe."""
        ...


class StartForecasts(Protocol):
    """Knows the last forecast, and makes one for work that is not submitted; `Forecasts` is the implementation."""

    @property
    def found(self) -> Mapping[str, Expected]:
        """Returns the expected starts of all pending work, by uid."""
        ...

    async def suppose(self, outcomes: Sequence[Waiting]) -> Mapping[str, Expected]:
        """Returns, by uid, when work that is not submitted would start, given the outcomes of a planned cycle for it."""
        ...


class UsageView(Protocol):
    """Knows what tenants use; `CacheUpdater` is the implementation."""

    def burst_of(self, tenant: str) -> int:
        """Returns how far a tenant exceeds its target share now: 0 not at all, 1 within its burst allowance, 2 beyond it."""
        ...

    def unsettled(self) -> Unsettled:
        """Returns all charges that no usage record holds yet, with the version of the usage records that this is true for."""
        ...


class QuotaView(Protocol):
    """Knows the quota trees as objects declare them; `Quotas` is the implementation."""

    @property
    def bindings(self) -> Bindings:
        """Returns the rules that give each allocation its leaf of the quota trees."""
        ...

    def remarks(self) -> Remarks:
        """Returns the faults of the objects that declare groups: by name of the group, and of objects that were left out."""
        ...


class OveruseView(Protocol):
    """Knows which groups of the quota trees use more than they may; `Revocations` is the implementation."""

    def over_since(self) -> Mapping[str, str]:
        """Returns, by name of each group that uses more than it may, since when it does (RFC 3339)."""
        ...


class QueryService:
    """Answers the questions of readers while this process leads, from the pending work, the cluster state, and the caches beside them.

    The answer server asks it on behalf of the gateway; what the reader may see is decided here by his `Reader`, except for `status`.
    """

    def __init__(
        self, clock: Clock, state: ClusterState, pending: PendingWork, *, candidates: ReconciledCandidates, numbers: NumberSource,
        starts: StartForecasts, vclusters: Mapping[str, VCluster], tenants: Mapping[str, Tenant], config: LastKnown[Config],
        usage: UsageView, quotas: QuotaView, overuse: OveruseView, rows: StatusCache,
    ) -> None:  # fmt: skip
        self._clock = clock
        self._state = state
        self._pending = pending
        self._candidates = candidates
        self._numbers = numbers
        self._starts = starts
        self._vclusters = vclusters
        self._tenants = tenants
        self._config = config
        self._usage = usage
        self._quotas = quotas
        self._overuse = overuse
        self._rows = rows
        self._turn, self._reading, self._listing = asyncio.Lock(), asyncio.Lock(), asyncio.Lock()
        """One question to the planner, one to a queue, and one for rows at a time: every thread more takes its part of the loop's time."""

    async def why(self, uid: str, reader: Reader, *, version: str = "") -> Why:
        """Returns why a pending allocation waits, by a cache no older than `version` (a resourceVersion; empty: any age).

        Raises NotFound when it is not pending, Retry where the cache cannot tell how old it is.
        """
        await self._reach(version)
        async with self._turn:
            if uid not in self._pending.candidates:
                raise explanation.not_pending()
            snapshot = self._snapshot()
            return await _aside(lambda: PlannerQueries(snapshot, reader).why(uid))

    async def plan(
        self, allocations: Sequence[dict[str, Any]], reader: Reader, *, optimal: bool, images: Sequence[PlannedImages] = ()
    ) -> Plan:
        """Returns where and when each of these allocations, none of them submitted, would start, in the order given.

        `images`: what registries say of the images of each, where they were asked. `optimal` adds the solver's bound on the
        value of the planned cycle. Raises Rejected for a document that does not read, and for `optimal` over several vclusters; Denied
        where a document's namespace is not its tenant's.
        """
        found = [*images, *[PlannedImages()] * (len(allocations) - len(images))]
        asked = [self._asked(document, one, number) for number, (document, one) in enumerate(zip(allocations, found, strict=False), 1)]
        async with self._turn:
            snapshot = self._snapshot(asked)
            planner = await _aside(lambda: PlannerQueries(snapshot, reader))
            outcomes = await _aside(lambda: planner.planned_outcomes(asked))
        bound = await _aside(lambda: _bound(planner.context, outcomes)) if optimal else None
        mine = {candidate.uid for candidate in asked}
        waiting = [one for one in outcomes if one.candidate.uid in mine and isinstance(one, Waiting) and may_ever(one)]
        supposed = await self._starts.suppose(waiting) if waiting else {}
        async with self._turn:
            plans = await _aside(lambda: planner.plans_for(asked, outcomes, supposed))
        return Plan(schema=PLAN_SCHEMA, at=format_time(snapshot.moment.now), allocations=plans, optimal=bound)

    async def queue(self, vcluster: str, reader: Reader, limit: int, *, version: str = "") -> Queues:
        """Returns the queue of a vcluster as the reader may see it, at most `limit` entries, by a cache no older than `version`.

        An empty name asks for the queues of all vclusters. Raises NotFound for an unknown one, Retry where the cache's age is unknown.
        """
        await self._reach(version)
        async with self._reading:
            snapshot, known = self._snapshot(), list(self._vclusters)
            return await _aside(lambda: queues(snapshot, known, reader, limit, vcluster))

    async def status(self, selection: Selection, *, version: str, wide: bool) -> StatusAnswer:
        """Returns the rows of `lattice status` for a selection, from a cache no older than `version` (a resourceVersion; empty: any age).

        Rows are not filtered by anybody's rights: the gateway has checked them. `wide` adds the details. Raises Retry where the age of the
        cache cannot be told, Rejected for more than 50,000 rows.
        """
        reached = await self._rows.reach(version)
        async with self._listing:
            known = self._rows.known_answer(selection, version=reached, wide=wide)
            return known if known is not None else await _aside(self._rows.answer_later(selection, wide=wide))

    async def _reach(self, version: str) -> None:
        """Waits until the cache is no older than a version, and half a second at most for its changes to be in the queues.

        Returns at once for an empty version; raises Retry where the cache's age cannot be told.
        """
        if version:
            await self._rows.reach(version)
            await self._candidates.catch_up(CATCH_UP_SECONDS)

    async def quota(self, reader: Reader) -> Quotas:
        """Returns the quota trees, with the groups that the reader may see; no trees where no group is declared."""
        context = self._situation()
        quota_usage = context.state.quota_usage
        if quota_usage is None:
            return quotas(Forest(), frozenset(), reader, format_time(context.now), remarks=self._quotas.remarks())
        mine = own_leaves(context, reader) | self._leaves_for(reader)
        for answer in slices(
            quota_usage.forest, mine, reader, format_time(context.now), self._overuse.over_since(), self._quotas.remarks()
        ):
            if answer is not None:
                return answer
            await asyncio.sleep(0)
        raise NotFound("no quota tree was found", reason="QuotaUnknown")

    async def explain_quota(self, uid: str, reader: Reader) -> QuotaExplanation:
        """Returns the result of every gate for an allocation, by uid; raises NotFound when it neither waits nor holds nodes."""
        return explain_gates(self._situation(), uid, reader)

    def _leaves_for(self, reader: Reader) -> frozenset[str]:
        """Returns the leaves that the reader's own submissions would belong to, in the namespaces that he asks about."""
        bindings, found = self._quotas.bindings, set[str]()
        for name, tenant in self._tenants.items():
            for namespace in reader.namespaces.intersection(tenant.spec.namespaces or (name,)):
                found.update(bindings.leaf("", "", name, vcluster, namespace) for vcluster in self._open_to(name))
        return frozenset(found)

    async def unsettled(self, tenants: frozenset[str], user: str) -> Unsettled:
        """Returns the charges that no usage record holds yet: those of any of these tenants or of this user; both empty: of everybody."""
        found = self._usage.unsettled()
        everybody = not tenants and not user
        return Unsettled(found.version, [one for one in found.charges if everybody or one.tenant in tenants or one.user == user])

    def _snapshot(self, asked: Sequence[Candidate] = ()) -> QuerySnapshot:
        """Copies what the scheduler knows at this moment, so that a thread can answer from it; `asked` are candidates that are not
        submitted.
        """
        waiting = list(self._pending.candidates.values())
        moment = take_query_snapshot(self._state, waiting, self._clock.now(), asked)
        tenants = {holder.tenant for holder in moment.holders.values()}
        return QuerySnapshot(
            moment=moment,
            waiting=dict(self._pending.reasons),
            expected=self._starts.found,
            open_to={tenant: self._open_to(tenant) for tenant in {one.tenant for one in (*waiting, *asked)}},
            bursting={tenant: rank for tenant in tenants if (rank := self._usage.burst_of(tenant))},
            limits=preemption_limits(self._config.object),
            moves=dict(self._pending.moves),
            number=self._numbers.shown_number,
        )

    def _situation(self) -> QueryContext:
        """Returns the context of answers over the live state of the scheduler; valid only until the loop goes on."""
        return QueryContext(
            now=self._clock.now(),
            state=self._state,
            candidates=self._pending.candidates,
            waiting=self._pending.reasons,
            holders=self._state.holders,
            expected=self._starts.found,
            number=self._numbers.shown_number,
        )

    def _open_to(self, tenant: str) -> set[str]:
        """Returns the names of the open vclusters that admit work of a tenant."""
        return {
            name
            for name, vcluster in self._vclusters.items()
            if vcluster.spec.state == "Open" and not {"*", tenant}.isdisjoint(vcluster.spec.tenants)
        }

    def _asked(self, document: dict[str, Any], images: PlannedImages, number: int) -> Candidate:
        """Makes the candidate that a document would be if it were submitted now and had these images; what keeps or refuses them blocks it.
        `number` is its place in the question.

        Raises Rejected where it cannot be read, Denied where its namespace is not the tenant's.
        """
        try:
            given = msgspec.convert({**document, "status": {}}, Allocation)
        except msgspec.ValidationError as error:
            raise Rejected(f"allocation {number} of the plan cannot be read: {error}", reason="PlanInvalid") from error
        spec, meta = given.spec, given.metadata
        tenant = self._tenants.get(spec.tenant)
        if tenant is None or meta.namespace not in (tenant.spec.namespaces or (spec.tenant,)):
            sentence = f'namespace "{meta.namespace}" is not one of the tenant that allocation {number} of the plan names'
            raise Denied(sentence, reason="TenantMismatch")
        meta = msgspec.structs.replace(meta, uid=f"plan-{number}", creation_timestamp=format_time(self._clock.now(), micro=True))
        allocation = msgspec.structs.replace(given, metadata=meta, status=AllocationStatus(software=images.images))
        candidate = self._candidates.candidate(allocation)
        said = (images.reason, images.message) if images.reason else None
        return replace(candidate, blocked=candidate.blocked or said) if said is not None else candidate


async def _aside(ask: Callable[[], T]) -> T:
    """Runs a function in a thread and returns its result; when cancelled, waits until the thread is done before it ends."""
    answer = asyncio.get_running_loop().run_in_executor(None, ask)
    try:
        return await asyncio.shield(answer)
    except asyncio.CancelledError:
        await asyncio.wait([answer])
        raise


def _bound(context: QueryContext, outcomes: Sequence[Outcome]) -> Bound:
    """Returns the solver's bound on the value of a planned cycle; raises Rejected where the outcomes are of several vclusters.

    Up to 100 candidates, none of them a range, are solved exactly, too, within 3 s of the solver.
    """
    vclusters = {one.candidate.vcluster for one in outcomes}
    if len(vclusters) != 1:
        raise Rejected(f"--optimal is for one vcluster, and these are {len(vclusters)}: {', '.join(sorted(vclusters))}", reason="BadInput")
    meant = [one for one in outcomes if isinstance(one, Placed) or one.reason in ABOUT_NODES]
    candidates, scores = [one.candidate for one in meant], [one.score.total if one.score is not None else 0.0 for one in meant]
    vcluster, state = vclusters.pop(), context.state
    home = vcluster if state.policy(vcluster).home else ""
    question = formulate(state.node_cache, candidates, scores, home=home, lenders=frozenset(lenders_for(state.policies, vcluster, 0.0)))
    value, bound = value_of(meant), upper_bound(question.jobs, question.buckets)
    unknown = unknown_rules(state, vcluster, candidates, context.now)
    if len(candidates) > MOST_EXACT or any(one.maximum > one.minimum for one in candidates):
        bound = max(value, bound)
        return Bound(value=round(value, 4), bound=round(bound, 4), status="bound by linear relaxation", unknown=unknown)
    best = best_plan(question.jobs, question.buckets, Effort(seconds=EXACT_SECONDS))
    status = "proven" if best.proven else f"not proven in {EXACT_SECONDS:g} s of the solver"
    bound, optimal = max(value, min(bound, best.bound)), max(value, best.value)
    return Bound(value=round(value, 4), bound=round(bound, 4), optimal=round(optimal, 4), status=status, unknown=unknown)
