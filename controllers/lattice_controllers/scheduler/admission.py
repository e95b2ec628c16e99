"""Keeps pending work from nodes that admission would refuse today: judges it once for each generation and each change of limits."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from math import ceil
from typing import Final, NamedTuple, Protocol

from lattice.admission.allocations import judge_placement
from lattice.admission.facts import Facts, QuotaFacts, Requester
from lattice.admission.submission import cached_submission
from lattice.admission.tenants import homes
from lattice.daemon.logs import event
from lattice.errors import Rejected
from lattice.kube.lasting import LastKnown
from lattice.quota.layout import Layout
from lattice.scheduling.conversion.candidates import walltime_of
from lattice.scheduling.state.backlog import Backlog, Place, Scope, scopes_of, sentence
from lattice.units import parse_duration
from lattice.views import Allocation, Tenant, VCluster
from lattice.views.cluster import Config, SubmissionOptions, TenantSpec, VClusterSpec

log = logging.getLogger(__name__)

NOBODY: Final = Requester("")
MALFORMED: Final = frozenset({"NodesInvalid", "DurationInvalid"})
"""Refusals of what does not read: such work never fits."""
_DEFAULTS: Final = SubmissionOptions()


class _Judged(NamedTuple):
    """A verdict on one allocation, and the generation and specs that it was made from: while these are the same, it is not judged again.

    `verdict` is the reason and the sentence of a refusal; None: it is admitted.
    """

    generation: int
    tenant: TenantSpec | None
    vcluster: VClusterSpec | None
    layout: Layout
    verdict: tuple[str, str] | None


class TreeLayout(Protocol):
    """Knows the quota trees that the ElasticQuota objects declare; `Quotas` is the implementation."""

    @property
    def layout(self) -> Layout:
        """Returns the quota trees as ElasticQuotas and Koordinator's quotas declare them now; the very same object until they change."""
        ...


class Admission:
    """Judges pending work by the limits in force, for the reconciler of allocations: checks of submission again, and the pending limits."""

    def __init__(
        self, *, tenants: Mapping[str, Tenant], vclusters: Mapping[str, VCluster], config: LastKnown[Config], quotas: TreeLayout,
    ) -> None:  # fmt: skip
        self.backlog = Backlog(self._limit)
        self.judgements = 0
        """How many times an allocation was judged anew; answers that were remembered are not counted."""
        self._tenants = tenants
        self._vclusters = vclusters
        self._config = config
        self._trees = quotas
        self._judged: dict[str, _Judged] = {}
        self._quotas = Layout(), QuotaFacts()

    def enter(self, allocation: Allocation) -> Iterable[str]:
        """Counts an allocation as waiting for nodes; returns the uids of waiting allocations that it pushes beyond a limit on pending work.

        Their `blocked` may answer otherwise now. For an allocation that is counted already nothing changes, and none are returned.
        """
        spec, meta = allocation.spec, allocation.metadata
        scopes = scopes_of(spec.tenant, spec.user, spec.vcluster)
        return self.backlog.enter(Place(meta.creation_timestamp, meta.key, meta.uid), scopes)

    def leave(self, uid: str) -> Iterable[str]:
        """Counts an allocation as waiting no more, and drops its judgement; returns the uids of waiting allocations that come within a
        limit by that.

        Their `blocked` may answer otherwise now. An unknown uid changes nothing.
        """
        self._judged.pop(uid, None)
        return self.backlog.leave(uid)

    def blocked(self, allocation: Allocation) -> tuple[str, str] | None:
        """Returns the reason and the sentence that keep a pending allocation from nodes; None: a cycle may look for nodes for it.

        `NeverFits`: its nodes or walltime do not read. `NotAdmitted`: submission would refuse it today. `WaitingForQuotaHeadroom`: as many
        allocations as its user, tenant or vcluster may have pending came before it (only work passed to `enter` is counted and asked).
        """
        verdict = self._verdict(allocation)
        if verdict is not None:
            return verdict
        beyond = self.backlog.beyond(allocation.metadata.uid)
        return None if beyond is None else ("WaitingForQuotaHeadroom", sentence(*beyond))

    def renewed(self, allocation: Allocation, stands: int | None) -> int | None:
        """Returns the walltime, in seconds, that work on nodes gets by its newest generation; None: the walltime in the ledger stays.

        `stands` is the walltime in the ledger (None: without end). A shorter one is always taken; a longer one, for which the API server
        has checked a right, only up to the vcluster's maximum, if it has one; a refusal is logged. None also where the object asks for
        no walltime, or one that does not read.
        """
        vcluster = self._vclusters.get(allocation.spec.vcluster)
        try:
            wanted = walltime_of(allocation.spec, vcluster)
            most = parse_duration(vcluster.spec.limits.max_walltime) if vcluster and vcluster.spec.limits.max_walltime else None
        except Rejected:
            return None
        if wanted is None or wanted <= 0:
            return None
        if stands is None or wanted <= stands or most is None or wanted <= most:
            return ceil(wanted)
        event(log, "A longer walltime is not admitted", allocation=allocation.metadata.key, stands=stands, requested=wanted, limit=most)
        return None

    def _verdict(self, allocation: Allocation) -> tuple[str, str] | None:
        """Returns the reason and sentence of a refusal, None for an admitted allocation; judged anew only after a change of generation,
        tenant, vcluster or quota trees.

        Work of a vcluster that is gone is not refused here.
        """
        spec, meta = allocation.spec, allocation.metadata
        tenant, vcluster, layout = self._tenants.get(spec.tenant), self._vclusters.get(spec.vcluster), self._trees.layout
        terms = tenant.spec if tenant is not None else None, vcluster.spec if vcluster is not None else None, layout
        known = self._judged.get(meta.uid)
        if known is not None and known.generation == meta.generation and known.layout is layout and known[1:3] == terms[:2]:
            return known.verdict
        verdict = self._judge(allocation, vcluster) if vcluster is not None else None  # a vcluster that is gone has its own reason
        self._judged[meta.uid] = _Judged(meta.generation, *terms, verdict)
        return verdict

    def _judge(self, allocation: Allocation, vcluster: VCluster) -> tuple[str, str] | None:
        """Judges an allocation by the checks of submission, and counts the judgement; returns reason and sentence of a refusal, None: it is
        admitted.
        """
        self.judgements += 1
        home = self._tenant_of(allocation.metadata.namespace, allocation.spec.tenant)
        facts = Facts(NOBODY, namespace_tenant=home, tenants=self._tenants, vclusters=self._vclusters, quotas=self._quota_facts())
        refused = judge_placement(cached_submission(allocation, vcluster), facts)
        if refused is None:
            return None
        return "NeverFits" if refused.reason in MALFORMED else "NotAdmitted", refused.message

    def _tenant_of(self, namespace: str, named: str) -> str | None:
        """Returns the tenant that lists the namespace, `named` first; None: no tenant lists it, and the namespace's label decides."""
        mine = self._tenants.get(named)
        if mine is not None and namespace in homes(mine):
            return named
        return next((name for name, tenant in self._tenants.items() if namespace in homes(tenant)), None)

    def _quota_facts(self) -> QuotaFacts:
        """Returns the groups and bindings of the quota trees as admission reads them; one object until the trees change."""
        layout = self._trees.layout
        if self._quotas[0] is not layout:
            self._quotas = layout, QuotaFacts(groups=layout.groups, bindings=layout.bindings)
        return self._quotas[1]

    def _limit(self, scope: Scope) -> int | None:
        """Returns how many allocations of a scope (user, tenant or vcluster) may be candidates at once; None: no such limit, or an unknown
        tenant or vcluster.
        """
        if scope.vcluster:
            vcluster = self._vclusters.get(scope.vcluster)
            if vcluster is None:
                return None
            limits = vcluster.spec.limits
            return limits.max_pending_per_user if scope.user else limits.max_pending_per_tenant if scope.tenant else limits.max_pending
        tenant, config = self._tenants.get(scope.tenant), self._config.object
        options = config.spec.submission if config is not None else _DEFAULTS
        if tenant is None:
            return None
        return options.pending_of_user(tenant.spec.quota) if scope.user else options.pending_of_tenant(tenant.spec.quota)
