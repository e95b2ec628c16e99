"""The facts about the cluster that admission judges by; None: not known, and checks that need the fact are left to the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lattice.quota.declared import Bindings, Declared, bindings_of
from lattice.quota.groups import Resources
from lattice.quota.selection import Traits
from lattice.views import KoordinatorProfile, Reservation, Tenant, VCluster
from lattice.workflow.references import WorkReference

RUN_AS = "runas"
"""The verb on a tenant that allows its holder to submit work for other users."""
EXTEND = "extend"
"""The verb on a tenant that allows its holder to lengthen a walltime."""
MANAGE = "manage"
"""The verb on a tenant that its admins have."""


@dataclass(frozen=True)
class Requester:
    """The person or program that sends a request, by user name and groups as the API server knows them."""

    user: str
    groups: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Occupied:
    """The nodes that one allocation (NAMESPACE/NAME) holds, and its latest end (seconds since the epoch; None: unknown)."""

    allocation: str
    nodes: frozenset[str]
    end: float | None


@dataclass(frozen=True)
class Own:
    """The holdings of one user in a tenant: nodes and allocations that hold nodes, and allocations that wait."""

    nodes: int = 0
    running: int = 0
    pending: int = 0


@dataclass(frozen=True)
class Waits:
    """Counts of the allocations that wait in a vcluster: of the user, of his tenant, of all; None: the vcluster does not limit them."""

    user: int | None = None
    tenant: int | None = None
    everybody: int | None = None


@dataclass(frozen=True)
class Pending:
    """Counts of the allocations that wait in a tenant, of the user and of all, as last counted; `most_of_…`: the limits of both."""

    user: int
    tenant: int
    most_of_user: int
    most_of_tenant: int


@dataclass(frozen=True)
class QuotaFacts:
    """The facts about the quota trees; None: not known.

    `declared` are the groups of all objects that parse; `groups` those that take part, by name; `used` and `requested` the figures
    that the scheduler published of them; `work` counts by leaf the allocations that have not ended; `capacity` is that of all
    nodes; `charge` is the least request of the Allocation at hand; `may_use`: whether the requester holds the verb `use` on the
    leaf that it names.
    """

    declared: tuple[Declared, ...] = ()
    groups: Mapping[str, Declared] = field(default_factory=dict)
    bindings: Bindings = field(default_factory=lambda: bindings_of(()))
    profiles: tuple[KoordinatorProfile, ...] = ()
    used: Mapping[str, Resources] | None = None
    requested: Mapping[str, Resources] | None = None
    work: Mapping[str, int] | None = None
    capacity: Resources | None = None
    nodes: tuple[Traits, ...] | None = None
    charge: Resources | None = None
    may_use: bool | None = None


@dataclass(frozen=True)
class Facts:
    """The facts about the cluster that the webhook or the command line gathered for one request; checks ask for nothing themselves.

    `namespace_tenant` is the tenant of the request's namespace, "" when it belongs to none; `namespaces` maps each namespace to its
    tenant in the same way; `nodes` counts the LatticeNodes; `rights` are the verbs of `chain.wanted_rights` that the requester
    holds on the tenant; `holders` counts the allocations that have not ended and name the object that is to be deleted; `now` is
    seconds since the epoch; `node_names` are the LatticeNodes that exist, `occupied` the work that holds nodes now; `waits` counts
    the allocations that wait in the vcluster, where it limits them; `own` is what the user has in the tenant, where it limits its
    users; `pending` is what waits there, counted every few seconds; `groups` counts the nodes of each topology group, for a
    VCluster; `predecessors` is the work of the tenant that a new Allocation depends on, as far as it is known, by reference:
    Bounded or Unbounded, empty for what is gone; `max_dag_size` is the most members of a DAG.
    """

    requester: Requester
    now: float | None = None
    namespace_tenant: str | None = None
    namespaces: Mapping[str, str] | None = None
    tenants: Mapping[str, Tenant] | None = None
    vclusters: Mapping[str, VCluster] | None = None
    nodes: int | None = None
    rights: frozenset[str] | None = None
    holders: int | None = None
    reservations: Mapping[str, Reservation] | None = None
    node_names: frozenset[str] | None = None
    occupied: tuple[Occupied, ...] | None = None
    waits: Waits | None = None
    own: Own | None = None
    pending: Pending | None = None
    quotas: QuotaFacts | None = None
    groups: Mapping[str, int] | None = None
    predecessors: Mapping[WorkReference, str] | None = None
    max_dag_size: int | None = None
