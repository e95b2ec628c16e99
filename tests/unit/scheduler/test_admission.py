"""What came in without the webhook is judged by the limits of now, once for each generation and each change of them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lattice.quota.layout import Layout, layout
from lattice.views import Allocation, ElasticQuota, Tenant, VCluster
from lattice.views.cluster import Config, QuotaTreeOptions
from lattice_controllers.scheduler.admission import Admission
from tests.unit.scheduler.doubles import known


def allocation(number: int = 1, generation: int = 1, **spec: Any) -> Allocation:
    metadata = {
        "name": f"job{number}", "namespace": "physics", "uid": f"u{number}", "generation": generation,
        "creationTimestamp": f"2027-01-15T08:00:{number:02d}Z",
    }  # fmt: skip
    body = {"tenant": "physics", "user": "alice", "vcluster": "hpc", "lifecycle": {"walltime": "1h"}, **spec}
    return msgspec.convert({"metadata": metadata, "spec": body}, Allocation)


class Site:
    """A tenant and a vcluster with limits, and who was to be looked at again."""

    def __init__(self, *, tenant: dict[str, Any] | None = None, **limits: Any) -> None:
        self.tenants: dict[str, Tenant] = {}
        self.vclusters: dict[str, VCluster] = {}
        self.set_tenant(**(tenant or {}))
        self.set_vcluster(limits=limits)
        self.layout = Layout()
        self.told: list[str] = []
        self.config = known(None)
        self.admission = Admission(tenants=self.tenants, vclusters=self.vclusters, config=self.config, quotas=self)

    def enter(self, subject: Allocation) -> None:
        """It waits."""
        self.told.extend(self.admission.enter(subject))

    def leave(self, uid: str) -> None:
        """It waits no more."""
        self.told.extend(self.admission.leave(uid))

    def set_tenant(self, **quota: Any) -> None:
        """Another contract."""
        self.tenants["physics"] = msgspec.convert({"metadata": {"name": "physics"}, "spec": {"quota": quota}}, Tenant)

    def set_vcluster(self, **spec: Any) -> None:
        """Another policy."""
        self.vclusters["hpc"] = msgspec.convert({"metadata": {"name": "hpc"}, "spec": spec}, VCluster)

    def blocked(self, **spec: Any) -> tuple[str, str] | None:
        """The answer for an allocation with this spec."""
        self.leave("u1")
        return self.admission.blocked(allocation(**spec))


@pytest.mark.parametrize(
    ("site", "spec", "sentence"),
    [
        pytest.param(
            Site(maxWalltime="1h"), {"lifecycle": {"walltime": "30d"}},
            'walltime 30d exceeds maxWalltime of vCluster "hpc" (current: none, requested: 30d, limit: 1h)', id="walltime",
        ),
        pytest.param(Site(), {"lifecycle": {}}, "spec.lifecycle.walltime is not set", id="no walltime"),
        pytest.param(
            Site(tenant={"maxPreemptionClass": 5}), {"lifecycle": {"walltime": "1m", "preemptionClass": 10}},
            'preemption class 10 is above the highest of tenant "physics" (requested: 10, limit: 5)', id="class of the tenant",
        ),
        pytest.param(
            Site(maxPreemptionClass=4), {"lifecycle": {"walltime": "1m"}}, 'above the highest of vCluster "hpc"', id="class of the vcluster"
        ),
        pytest.param(Site(maxNodesPerAllocation=2), {"resources": {"nodes": "1-3"}}, "3 nodes exceed maxNodesPerAllocation", id="nodes"),
        pytest.param(Site(), {"tasks": {"total": 16777216}}, "spec.tasks.total is 16777216", id="tasks"),
        pytest.param(Site(), {"tenant": "chem"}, 'spec.tenant is "chem", but namespace "physics" belongs to tenant "physics"', id="tenant"),
        pytest.param(Site(), {"quota": "nowhere"}, 'quota "nowhere" does not exist', id="leaf"),
    ],
)  # fmt: skip
def test_what_admission_refuses_waits_with_its_sentence(site: Site, spec: dict[str, Any], sentence: str) -> None:
    found = site.blocked(**spec)
    assert found is not None
    assert (found[0], sentence in found[1]) == ("NotAdmitted", True), found


@pytest.mark.parametrize("spec", [{}, {"lifecycle": {"type": "Unbounded"}}, {"tasks": {"perNode": 4, "on": "EveryNode", "total": 4}}])
def test_what_keeps_the_limits_may_start(spec: dict[str, Any]) -> None:
    assert Site(maxWalltime="1h", maxPreemptionClass=5, maxNodesPerAllocation=1).blocked(**spec) is None


def test_the_default_walltime_counts_as_its_own() -> None:
    site = Site()
    site.set_vcluster(defaults={"walltime": "1h"}, limits={"maxWalltime": "2h"})
    assert site.blocked(lifecycle={}) is None


def test_a_vcluster_that_does_not_take_its_tenant_starts_none_of_its_work() -> None:
    site = Site()
    site.set_vcluster(tenants=["chem"])
    found = site.blocked()
    assert found is not None
    assert found == ("NotAdmitted", 'tenant "physics" may not use vCluster "hpc". Available: none')
    site.set_vcluster(tenants=["chem", "physics"])
    assert site.admission.blocked(allocation()) is None


def test_what_does_not_read_never_fits_and_a_vcluster_that_is_gone_has_its_own_reason() -> None:
    site = Site()
    found = site.blocked(lifecycle={"walltime": "soon"})
    assert found is not None
    assert found[0] == "NeverFits"
    del site.vclusters["hpc"]
    assert site.blocked(lifecycle={"walltime": "30d"}) is None


def test_a_tenant_that_is_gone_starts_nothing() -> None:
    site = Site()
    waits = allocation()
    assert site.admission.blocked(waits) is None
    del site.tenants["physics"]
    assert site.admission.blocked(waits) == ("NotAdmitted", 'tenant "physics" not found. Hint: ask the operators to make it')


def test_a_leaf_that_is_declared_may_be_named_and_a_parent_may_not() -> None:
    site = Site()
    quotas = [
        msgspec.convert(
            {"metadata": {"name": name}, "spec": {"isParent": name == "lab", "parent": parent, "max": {"nodes": 4}}}, ElasticQuota
        )
        for name, parent in (("lab", ""), ("optics", "lab"))
    ]
    site.layout = layout(quotas, [], [], QuotaTreeOptions())
    assert site.blocked(quota="lab/optics") is None
    found = site.blocked(quota="lab")
    assert found is not None
    assert 'quota "lab" is a parent' in found[1]


def test_lifting_a_limit_lets_it_go_and_lowering_one_stops_what_still_waits() -> None:
    site = Site(maxWalltime="1h")
    long = allocation(lifecycle={"walltime": "2h"})
    assert site.admission.blocked(long) is not None
    site.set_vcluster(limits={"maxWalltime": "3h"})
    assert site.admission.blocked(long) is None
    site.set_tenant(maxPreemptionClass=3)
    assert site.admission.blocked(long) is not None


def test_it_is_judged_once_for_each_generation_and_each_change_of_limits() -> None:
    site = Site(maxWalltime="1h")
    for _ in range(100):
        site.admission.blocked(allocation())
        site.set_tenant()  # the operator mirrors its use: the same contract in another object
    assert site.admission.judgements == 1
    site.admission.blocked(allocation(generation=2))
    site.set_vcluster(limits={"maxWalltime": "2h"})
    site.admission.blocked(allocation(generation=2))
    assert site.admission.judgements == 3


def test_beyond_what_may_wait_only_the_oldest_may_start() -> None:
    site = Site(tenant={"perUser": {"maxPending": 2}})
    for number in (3, 1, 2):
        site.enter(allocation(number))
    assert site.told == ["u3"]  # the two that are older came later
    assert [site.admission.blocked(allocation(number)) is None for number in (1, 2, 3)] == [True, True, False]
    found = site.admission.blocked(allocation(3))
    assert found is not None
    assert (found[0], "quota.perUser.maxPending allows (limit: 2)" in found[1]) == ("WaitingForQuotaHeadroom", True)
    site.leave("u1")
    assert (site.told[-1], site.admission.blocked(allocation(3))) == ("u3", None)


def test_without_a_quota_the_options_limit_what_waits() -> None:
    site = Site()
    site.config.object = msgspec.convert(
        {"metadata": {"name": "lattice"}, "spec": {"submission": {"maxPendingPerUser": 1, "maxPendingPerTenant": 2}}}, Config
    )
    for number in (1, 2):
        site.enter(allocation(number))
    site.enter(allocation(3, user="bob"))
    found = [site.admission.blocked(allocation(number)) for number in (1, 2)]
    assert (found[0], "submission" in str(found[1]) or "perUser.maxPending" in str(found[1])) == (None, True)
    other = site.admission.blocked(allocation(3, user="bob"))
    assert other is not None
    assert 'tenant "physics" has more allocations waiting than quota.maxPending allows (limit: 2)' in other[1]


@pytest.mark.parametrize(
    ("stands", "asked", "admitted"),
    [
        pytest.param(3600, "30m", 1800, id="shorter"),
        pytest.param(3600, "2h", 7200, id="longer within the limit"),
        pytest.param(3600, "30d", None, id="longer than the limit"),
        pytest.param(36000, "9h", 32400, id="shorter, by a limit that was lowered since"),
        pytest.param(None, "30d", 2592000, id="what stood without a limit gets one"),
        pytest.param(3600, "soon", None, id="unreadable"),
        pytest.param(3600, None, 1200, id="the default"),
    ],
)
def test_a_walltime_on_nodes_changes_within_the_limit_of_now(stands: int | None, asked: str | None, admitted: int | None) -> None:
    site = Site()
    site.set_vcluster(limits={"maxWalltime": "2h"}, defaults={"walltime": "20m"})
    assert site.admission.renewed(allocation(lifecycle={"walltime": asked} if asked else {}), stands) == admitted
