"""The gates that a request passes before nodes are searched for it, whatever is free; `GATES` is their order.

A gate is a pure function: it returns a reason and a sentence with the numbers, the share it leaves to the request, or None. The
first gate that blocks gives the reason. The cycle (`GateChain`) and the answers to `quota explain` (`queries.gate_rows`) run the
same gates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from lattice.ledger.commit import Excess, beyond
from lattice.models.reasons import BEYOND_LIMIT
from lattice.quota.gates import Blocked
from lattice.scheduling.model.hardware import Hardware
from lattice.scheduling.model.outcomes import Waiting
from lattice.scheduling.model.policy import Limits, Policy
from lattice.scheduling.model.work import Candidate, NodeHolder
from lattice.scheduling.state.budget_gate import budget
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.scheduling.state.headroom import NO_ACCOUNT, NO_LIMIT, Headroom, hard_caps, least_headroom, vcluster_caps
from lattice.scheduling.state.pending_queue import PendingQueue
from lattice.scheduling.state.quota_shares import Share
from lattice.scheduling.state.uses import NOTHING
from lattice.units import format_duration

UNLIMITED: Final = Headroom(NO_LIMIT, NO_LIMIT)


class Admission(NamedTuple):
    """The answer of the gates that let a candidate pass: at most so many nodes, of these classes of hardware (None: of every class)."""

    nodes: int
    classes: frozenset[Hardware] | None = None


UNRESTRICTED: Final = Admission(NO_LIMIT)


def boundless(state: ClusterState, tenant: str) -> bool:
    """Tells whether a tenant has an account in the ledger and no hard limit on itself or its users."""
    account = state.accounts.get(tenant)
    return account is not None and (
        account.max_nodes is account.max_allocations is account.user_max_nodes is account.user_max_allocations is None
    )


def headroom(state: ClusterState, policy: Policy, tenant: str, user: str) -> Headroom:
    """Returns the nodes and starts that hard limits and the vcluster's limits leave to a user, the least of all; `NO_LIMIT` without any.

    −1 of both for a tenant without an account.
    """
    account = state.accounts.get(tenant)
    if account is None:
        return NO_ACCOUNT
    uses = state.uses
    return least_headroom((*hard_caps(account, uses, tenant, user), *vcluster_caps(policy.limits, uses, policy.name, tenant, user)))


def own_wishes(state: ClusterState, candidate: Candidate, now: float) -> Waiting | None:
    """Returns Waiting where the candidate's own fields keep it from starting at `now` (epoch seconds), with the first reason; else None.

    In this order: `blocked`, hold, not-before, back-off, a deleted or closed vcluster.
    """
    if candidate.blocked is not None:
        return Waiting(candidate, *candidate.blocked)
    if candidate.held:
        return Waiting(candidate, "Held", "spec.hold is set; `lattice release` lets it go")
    if candidate.not_before > now:
        return Waiting(candidate, "NotBefore", f"starts {_in(candidate.not_before - now)} from now at the earliest", candidate.not_before)
    if candidate.back_off_until > now:
        seconds = candidate.back_off_until - now
        return Waiting(candidate, "RetryBackOff", f"the next attempt follows in {_in(seconds)}", candidate.back_off_until)
    if not candidate.vcluster_known:
        return Waiting(candidate, "VClusterClosed", f'vCluster "{candidate.vcluster}" does not exist any more')
    if not candidate.vcluster_open:
        return Waiting(candidate, "VClusterClosed", f'vCluster "{candidate.vcluster}" is Closed: it accepts work and starts none')
    return None


def hard_quota(state: ClusterState, candidate: Candidate, now: float) -> Waiting | None:
    """Returns Waiting where a candidate would exceed a hard limit of its tenant or user on nodes or running allocations; else None.

    Compares as the ledger does, unconfirmed claims included. A tenant without an account waits too, with `NotYetEvaluated`.
    """
    if candidate.tenant not in state.accounts:
        return Waiting(candidate, "NotYetEvaluated", f'tenant "{candidate.tenant}" has no account in the ledger yet')
    excess = _excess(state, candidate)
    if excess is None:
        return None
    return Waiting(candidate, "WaitingForQuotaHeadroom", f"waiting for quota headroom: {excess.sentence}{_outlook(excess)}")


def counted(state: ClusterState, candidate: Candidate) -> Callable[[NodeHolder], bool]:
    """Returns a function that tells whether a node holder counts against the first limit (hard, or the vcluster's) that blocks a candidate.

    Where none blocks it, the function tells whether the holder is of the candidate's tenant.
    """
    tenant, user, vcluster = candidate.tenant, candidate.user, candidate.vcluster
    excess, row = _excess(state, candidate), _exceeding(state, candidate)
    if excess is not None or row is None:
        alone = excess is not None and excess.who.startswith("user")
        return lambda holder: holder.tenant == tenant and (not alone or holder.user == user)
    whose = row[0]
    return lambda holder: (
        holder.vcluster == vcluster
        and (not whose or (whose == "tenant" and holder.tenant == tenant) or (whose == "user" and holder.user == user))
    )


def _excess(state: ClusterState, candidate: Candidate) -> Excess | None:
    """Returns the first hard limit of its tenant or user that a candidate would exceed; None: it exceeds none, or its tenant has no
    account.
    """
    tenant, user = candidate.tenant, candidate.user
    account = state.accounts.get(tenant)
    if account is None:
        return None
    claimed, alone = state.uses.claimed.get(tenant, NOTHING), state.uses.people.get((tenant, user), NOTHING)
    so_far = msgspec.structs.replace(
        account, used_nodes=account.used_nodes + claimed.nodes, used_allocations=account.used_allocations + claimed.running
    )
    return beyond(so_far, (alone.nodes, alone.running), tenant, user, candidate.minimum)


def beyond_share(candidate: Candidate, blocked: Blocked) -> Waiting:
    """Returns the outcome of a candidate that waits for its quota share; the sentence names no group but its own and those above it."""
    return Waiting(candidate, blocked.reason, f"waiting for quota share: {blocked.message}")


def vcluster_limits(state: ClusterState, candidate: Candidate, now: float) -> Waiting | None:
    """Returns Waiting where a candidate would exceed a limit of its vcluster: on its user, on its tenant, on all work; else None."""
    row = _exceeding(state, candidate)
    return None if row is None else _over(candidate, *row[1:])


def _exceeding(state: ClusterState, candidate: Candidate) -> tuple[str, str, str, str, int, int, int] | None:
    """Returns the first limit of its vcluster that a candidate would exceed; None: it exceeds none.

    In order: to whom the limit applies (user, tenant, empty: all); and for the sentence who, the field, the thing counted, held,
    requested, limit.
    """
    limits, vcluster, tenant, user = state.policy(candidate.vcluster).limits, candidate.vcluster, candidate.tenant, candidate.user
    whom = (("user", f'user "{user}"'), ("tenant", f'tenant "{tenant}"'), ("", "all its work"))
    caps = vcluster_caps(limits, state.uses, vcluster, tenant, user)
    for (whose, who), (most_nodes, most_running, held, running) in zip(whom, caps, strict=True):
        field = f"Per{whose.capitalize()}" if whose else ""
        if most_nodes is not None and held + candidate.minimum > most_nodes:
            return whose, who, f"limits.maxNodes{field}", "nodes", held, candidate.minimum, most_nodes
        if most_running is not None and running + 1 > most_running:
            return whose, who, f"limits.maxRunning{field}", "allocations", running, 1, most_running
    return None


def admission(state: ClusterState, candidate: Candidate, now: float) -> Waiting | None:
    """Returns Waiting where the Reservation that a candidate names has no window left or does not admit it; None: it may, or names none."""
    name = candidate.reservation
    if not name:
        return None
    windows = [window for window in state.windows if window.name == name and window.end > now]
    if not windows:
        return Waiting(
            candidate,
            "ReservedNodes",
            f'reservation "{name}" holds no nodes: it is impossible, over, or gone; `lattice reservation show {name}` says which',
        )
    if any(window.admits(candidate) for window in windows):
        return None
    who = f'user "{candidate.user}" of tenant "{candidate.tenant}" in vCluster "{candidate.vcluster}"'
    return Waiting(candidate, "ReservedNodes", f'reservation "{name}" does not admit {who}; submit without it, or use another one')


def _spent_budget(state: ClusterState, candidate: Candidate, now: float) -> Waiting | None:
    """Returns Waiting where a used-up budget of the candidate's tenant, project or user makes work wait; None: none does."""
    del now
    return budget(state.exhausted, candidate) if state.exhausted else None


def _quota_share(state: ClusterState, candidate: Candidate, now: float) -> Waiting | Share | None:
    """Returns the nodes and classes that the quota tree leaves to a candidate, Waiting where it blocks it; None without a tree."""
    del now
    share = state.quota_usage.shares.share(candidate) if state.quota_usage is not None else None
    return beyond_share(candidate, share) if isinstance(share, Blocked) else share


class AdmissionGate(NamedTuple):
    """One gate of the chain: its name, as `quota explain` prints it, and its check."""

    name: Literal["Itself", "HardQuota", "Budget", "QuotaTree", "VCluster", "Reservation"]
    check: Callable[[ClusterState, Candidate, float], Waiting | Share | None]
    of_headroom: bool = False
    """Whether the gate is passed unchecked where the user's headroom suffices for the candidate."""


GATES: Final = (
    AdmissionGate("Itself", own_wishes),
    AdmissionGate("HardQuota", hard_quota, of_headroom=True),
    AdmissionGate("Budget", _spent_budget),
    AdmissionGate("QuotaTree", _quota_share),
    AdmissionGate("VCluster", vcluster_limits, of_headroom=True),
    AdmissionGate("Reservation", admission),
)
"""Every gate before nodes, in its order: the only place that states it."""


def _unlimited(state: ClusterState, limitless: bool, queue: PendingQueue) -> dict[int, bool]:
    """Returns for each person of a queue, by number, whether no gate limits him; `limitless`: the vcluster sets no limit.

    False for everybody where it does, with a quota tree, and while any budget is used up.
    """
    people = set(queue.people)
    if not limitless or state.quota_usage is not None or state.exhausted:
        return dict.fromkeys(people, False)
    tenants = {tenant: boundless(state, tenant) for tenant in {queue.persons[person][0] for person in people}}
    return {person: tenants[queue.persons[person][0]] for person in people}


class GateChain:
    """The gates of one cycle of one vcluster; keeps the headroom of each person (tenant and user) until work is placed."""

    __slots__ = ("_headrooms", "_limited", "_limitless", "_now", "_persons", "_policy", "_state", "unlimited")

    def __init__(self, state: ClusterState, policy: Policy, queue: PendingQueue, now: float) -> None:
        self._state, self._policy, self._now = state, policy, now
        self._persons = queue.persons
        self._limitless = policy.limits == _NO_LIMITS
        self._headrooms: dict[int, Headroom] = {}
        self._limited: list[int] = []
        """Persons with finite headroom, whose headroom is computed again after a placement."""
        self.unlimited: Mapping[int, bool] = _unlimited(state, self._limitless, queue)
        """By number of the person: whether only a candidate's own wishes (hold, not-before, a closed vcluster) can keep it waiting."""

    def evaluate(self, candidate: Candidate, person: int, opens: float) -> Admission | Waiting:
        """Runs the gates in their order; returns Waiting of the first that blocks, else how many nodes (`NO_LIMIT`: any number), of which
        classes, they leave.

        `person`: the number of the candidate's person in the pending queue. `opens`: when the candidate's own wishes no longer keep it
        waiting, seconds since the epoch.
        """
        if opens <= self._now and self.unlimited[person]:
            return UNRESTRICTED
        share, headroom, ample = _ALL, UNLIMITED, False
        for gate in GATES:
            if gate.of_headroom:
                headroom = self._headroom(person)
                ample = headroom.nodes >= candidate.minimum and headroom.starts >= 1
                if ample:
                    continue
            found = gate.check(self._state, candidate, self._now)
            if isinstance(found, Waiting):
                return found
            share = share if found is None else found
        return Admission(min(headroom.nodes, share.nodes), share.classes)

    def forget_limited(self) -> None:
        """Drops the known headroom of the persons who have limits, so that it is computed again; called when work was placed."""
        for person in self._limited:
            del self._headrooms[person]
        self._limited.clear()

    def _headroom(self, person: int) -> Headroom:
        """Returns the headroom of a person (number in the pending queue) under hard limits and the vcluster's; keeps it until work is
        placed.
        """
        left = self._headrooms.get(person)
        if left is None:
            tenant, user = self._persons[person]
            if self._limitless and boundless(self._state, tenant):
                left = UNLIMITED
            else:
                left = headroom(self._state, self._policy, tenant, user)
                self._limited.append(person)
            self._headrooms[person] = left
        return left


def _outlook(excess: Excess) -> str:
    """Returns the end of the sentence: what must happen before the candidate starts; empty where it is enough that running work ends."""
    if excess.limit == 0:
        return "; it is paused: nothing starts until the limit is raised"
    if excess.requested > excess.limit:
        return f"; {BEYOND_LIMIT}: it starts only when the limit is raised"
    if excess.current > excess.limit:
        return "; the limit was lowered below what is held: what runs goes on, and nothing starts until enough of it has ended"
    return ""


def _over(candidate: Candidate, who: str, field: str, what: str, used: int, asked: int, limit: int) -> Waiting:
    """Returns Waiting with a sentence on the limit of its vcluster that a candidate would exceed; one that asks for more than the limit
    never starts.

    `who`: to whom the limit applies, in words; `what`: the word for the thing counted.
    """
    numbers = f"({what} held: {used}, requested: {asked}, limit: {limit})"
    message = f'waiting for quota headroom: {who} would exceed {field} of vCluster "{candidate.vcluster}" {numbers}'
    if asked > limit:
        return Waiting(
            candidate, "WaitingForQuotaHeadroom", f"{message}; {BEYOND_LIMIT}: it never starts; ask for less, or use another vcluster"
        )
    return Waiting(candidate, "WaitingForQuotaHeadroom", f"{message}; it waits for own work there to end")


def _in(seconds: float) -> str:
    """Returns a duration in words: whole seconds, rounded up, at least 1 s."""
    return format_duration(max(1, math.ceil(seconds)))


_ALL: Final = Share()
_NO_LIMITS: Final = Limits()
