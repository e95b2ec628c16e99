"""The documents that answer `quota tree` and `quota explain`, as types; `lattice.scheduling.queries.answers` has the others.

Amounts are whole numbers in the unit of their resource: nodes, GPUs, cpu in millicores, memory in bytes.
"""

from __future__ import annotations

from typing import Final, Literal

from msgspec import field

from lattice.scheduling.queries.answers import Part, Silence, Work

QUOTA_SCHEMA: Final = "lattice.dev/quota/v1"
GATES_SCHEMA: Final = "lattice.dev/quota-explanation/v1"

YOURS: Final = "yours"
ABOVE_YOURS: Final = "above yours"
OTHERS: Final = "others"
Belonging = Literal["yours", "above yours", "others"]

PASSES: Final = "Passes"
BLOCKS: Final = "Blocks"
UNLIMITED: Final = "Unlimited"
NOT_ASKED: Final = "NotAsked"
GateVerdict = Literal["Passes", "Blocks", "Unlimited", "NotAsked"]
GateName = Literal["Itself", "HardQuota", "Budget", "QuotaTree", "VCluster", "Reservation", "Nodes"]


class Share(Part, frozen=True):
    """One resource of one group of the quota tree, or of several groups in sums."""

    resource: str
    used: int
    """Held by the work of the group and of all below it."""
    request: int
    """Asked for by pending and running work of the group; of each group below at most its max."""
    min: int
    """The guarantee that is declared."""
    effective_min: int
    """The part of the guarantee that is in effect now: less than `min` where the mins of siblings are more than there is."""
    runtime: int | None = None
    """What may be used now; absent: not bounded."""
    max: int | None = None
    """The ceiling; absent: none, or several groups."""
    borrowed: int = 0
    """Used above the guarantee."""


class Startable(Part, frozen=True):
    """The amount of one resource that could start at once at a leaf by the quota tree alone, whatever hard limits and free nodes allow."""

    resource: str
    amount: int
    """For preemptible work."""
    within_min: int
    """For work that is not preemptible, which the guarantee of the leaf bounds."""
    level: str
    """The group whose limit is reached first: the leaf or one above it."""


class QuotaGroup(Part, frozen=True):
    """One group of the quota tree that the reader may name, or several others in sums."""

    whose: Belonging
    depth: int
    """How many groups stand above it; 0 on the first level."""
    name: str = ""
    """Empty: several groups in sums."""
    parent: str = ""
    """Empty on the first level."""
    count: int = 1
    """How many groups are summed up here."""
    leaf: bool = False
    """Work is bound to it directly."""
    lends: bool = True
    """Others may use the idle part of its guarantee."""
    over_since: str | None = None
    """Since when it uses more than its runtime (what it may use now)."""
    reason: str = ""
    """The word for what is wrong with its declaration; empty: nothing."""
    message: str = ""
    """The sentence for the same, only for readers who may know every group."""
    shares: list[Share] = field(default_factory=list)
    startable: list[Startable] = field(default_factory=list)
    """What could start at once, for the reader's own leaves only."""


class Total(Part, frozen=True):
    """The capacity and the use of one resource in a whole tree."""

    resource: str
    divisible: int
    """The capacity that the groups divide: without the nodes held by work that is bound to no group."""
    used: int
    request: int


class QuotaTreeShown(Part, frozen=True):
    """One quota tree as the reader may see it: its groups depth first, parents before children."""

    name: str
    """Empty: the default tree."""
    totals: list[Total]
    groups: list[QuotaGroup]
    hidden: int = 0
    """Groups that are shown in sums only."""


class LeftOut(Part, frozen=True):
    """An object that declares a group of a quota tree but does not take part, and why."""

    object: str
    """Kind, name and API group."""
    reason: str
    message: str


class Quotas(Part, frozen=True):
    """The document that answers `quota tree`."""

    schema: Literal["lattice.dev/quota/v1"]
    at: str
    trees: list[QuotaTreeShown]
    message: str = ""
    """Why no tree is shown."""
    left_out: list[LeftOut] = field(default_factory=list)
    """Only for readers who may know every group."""


class Limit(Part, frozen=True):
    """One limit with which a gate compares what is used and requested."""

    of: str
    """The owner of the limit: a tenant, a user, a vcluster, a group of the tree."""
    name: str
    """The field that sets it, or `runtime`, which the tree computes."""
    resource: str
    used: int
    requested: int
    limit: int
    blocks: bool = False
    depth: int | None = None
    """For a group: how many stand above it."""
    request: int | None = None
    """For a group: all that its work asks for, pending work included."""
    min: int | None = None
    max: int | None = None


class Borrower(Part, frozen=True):
    """A group that uses more than its guarantee while the allocation's own group may not."""

    borrowed: int
    resource: str
    count: int = 1
    name: str = ""
    """Empty: groups that the reader may not name, in sums."""


class Gate(Part, frozen=True):
    """One gate between an allocation and its nodes: whether it passes, and the limits that it compares."""

    gate: GateName
    verdict: GateVerdict
    """Unlimited: no limit is set. NotAsked: it is checked only once the gates before it pass."""
    first: bool = False
    """It is the first that blocks; its reason is the allocation's."""
    reason: str = ""
    message: str = ""
    limits: list[Limit] = field(default_factory=list)
    borrowers: list[Borrower] = field(default_factory=list)


class QuotaExplanation(Part, frozen=True):
    """The document that answers `quota explain`: every gate in order for one allocation that waits or holds nodes."""

    schema: Literal["lattice.dev/quota-explanation/v1"]
    at: str
    allocation: Work
    tenant: str
    vcluster: str
    nodes: int
    """The least number of nodes that it asks for; where it holds nodes, how many."""
    holds: bool
    """It holds nodes: it has passed every gate, and the figures include it."""
    preemptible: bool
    leaf: str = ""
    """Its group of the quota tree; empty: there is no tree, or no group of it is bound to such work."""
    tree: str = ""
    gates: list[Gate] = field(default_factory=list)
    scheduler: Silence | None = None


QUOTA_ANSWERS: Final[dict[str, type[Part]]] = {QUOTA_SCHEMA: Quotas, GATES_SCHEMA: QuotaExplanation}
"""The documents by their schema."""
