"""The fields of each kind that daemons cache: msgspec structs, decoded straight from the server's bytes.

What belongs here: fields that a daemon reads, with the defaults that an absent field means. What does
not: validation (the server did it), decisions. A test finds every field of a view in `lattice.models`.
Structs are `gc=False`: they hold no cycles, and the collector must not walk fifty thousand of them.
"""

from lattice.views.allocation import Allocation, AllocationSpec, AllocationStatus, Attempt, Condition, Exit, Lifecycle, Requeue
from lattice.views.cluster import Config, Lease, LeaseSpec, Node, NodeSpec, NodeStatus, Tenant, VCluster
from lattice.views.dag import Dag, DagGate, DagSpec, DagStatus, Member, MemberState
from lattice.views.elastic_quota import ElasticQuota
from lattice.views.koordinator import KoordinatorProfile, KoordinatorQuota
from lattice.views.ledger import Ledger, LedgerStatus, NodeIndex, Plan, PlanSpec, TenantAccount
from lattice.views.meta import Metadata, Owner, View, Written
from lattice.views.reservation import Recurrence, Reservation, ReservationSpec, ReservationStatus

__all__ = [
    "Allocation",
    "AllocationSpec",
    "AllocationStatus",
    "Attempt",
    "Condition",
    "Config",
    "Dag",
    "DagGate",
    "DagSpec",
    "DagStatus",
    "ElasticQuota",
    "Exit",
    "KoordinatorProfile",
    "KoordinatorQuota",
    "Lease",
    "LeaseSpec",
    "Ledger",
    "LedgerStatus",
    "Lifecycle",
    "Member",
    "MemberState",
    "Metadata",
    "Node",
    "NodeIndex",
    "NodeSpec",
    "NodeStatus",
    "Owner",
    "Plan",
    "PlanSpec",
    "Recurrence",
    "Requeue",
    "Reservation",
    "ReservationSpec",
    "ReservationStatus",
    "Tenant",
    "TenantAccount",
    "VCluster",
    "View",
    "Written",
]
