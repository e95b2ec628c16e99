"""Lists every gate between an allocation and its nodes, in the cycle's order and with numbers, for `quota explain`.

The order, the verdict, the reason and the sentence of each gate are those of the cycle's own chain (`cycle.gates.GATES`); the limits
beside them are the numbers that the gate compares. A gate behind one that blocks is evaluated too, so that a person sees all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from lattice.errors import NotFound
from lattice.quota.declared import DEFAULT
from lattice.quota.gates import Blocked
from lattice.scheduling.cycle.gates import GATES
from lattice.scheduling.model.outcomes import Waiting
from lattice.scheduling.model.work import Candidate, NodeHolder
from lattice.scheduling.queries.context import QueryContext, census, subject, time_text
from lattice.scheduling.queries.quota_answers import (
    BLOCKS,
    GATES_SCHEMA,
    NOT_ASKED,
    PASSES,
    UNLIMITED,
    Gate,
    GateName,
    Limit,
    QuotaExplanation,
)
from lattice.scheduling.queries.quota_levels import Place, holding_at, waiting_at
from lattice.scheduling.queries.readers import Reader
from lattice.scheduling.state.headroom import Cap, hard_caps, vcluster_caps

ALLOCATIONS: Final = "allocations"
NODES: Final = "nodes"
EARLIER_GATES: Final = frozenset(
    {
        "WaitingForQuotaHeadroom",
        "WaitingForQuotaShare",
        "BudgetExhausted",
        "Held",
        "NotBefore",
        "RetryBackOff",
        "VClusterClosed",
        "NotAdmitted",
    }
)
"""Reasons of the gates that come before the search for nodes."""


@dataclass(frozen=True, slots=True)
class Subject:
    """The allocation that `quota explain` asks about, pending or holding nodes.

    `asked`: the nodes that it still asks for; 0 where it holds nodes.
    """

    work: Candidate | NodeHolder
    asked: int
    starts: int
    """1 while it is pending, since it would be one more running allocation; else 0."""
    place: Place | None
    """Its place in the quota tree; None: no tree is declared."""

    @property
    def candidate(self) -> Candidate | None:
        """Returns the candidate while the allocation is pending; None where it holds nodes."""
        return self.work if isinstance(self.work, Candidate) else None


def explain_gates(context: QueryContext, uid: str, reader: Reader) -> QuotaExplanation:
    """Returns the document of `quota explain`: every gate in order for the allocation `uid`, which waits or holds nodes.

    Raises NotFound for any other. The caller has checked that the reader may read the allocation.
    """
    found = _subject(context, uid)
    gates = [*_chain(context, found, reader), _nodes(context, found)]
    first = next((at for at, gate in enumerate(gates) if gate.verdict == BLOCKS), None)
    if first is not None:
        gates[first] = msgspec.structs.replace(gates[first], first=True)
    work = found.work
    return QuotaExplanation(
        schema=GATES_SCHEMA,
        at=time_text(context.now) or "",
        allocation=subject(context, work),
        tenant=work.tenant,
        vcluster=work.vcluster,
        nodes=found.asked or (len(work.nodes) if isinstance(work, NodeHolder) else 0),
        holds=isinstance(work, NodeHolder),
        preemptible=not work.non_preemptible,
        leaf=found.place.leaf if found.place is not None else "",
        tree=found.place.forest.tree_of(found.place.leaf) if found.place is not None else "",
        gates=gates,
    )


def _subject(context: QueryContext, uid: str) -> Subject:
    """Returns the pending or node-holding allocation `uid` with its place in the quota tree; raises NotFound where it is neither."""
    candidate = context.candidates.get(uid)
    if candidate is not None:
        return Subject(candidate, candidate.minimum, 1, _waiting_place(context, candidate))
    holder = context.holders.get(uid)
    if holder is not None:
        quota_usage = context.state.quota_usage
        place = Place(quota_usage.forest, holder.quota or DEFAULT, quota_usage.holding(uid)) if quota_usage is not None else None
        return Subject(holder, 0, 0, place)
    raise NotFound("the scheduler neither has it in a queue nor on nodes: it has ended, or was submitted this moment", reason="NotPending")


def _waiting_place(context: QueryContext, candidate: Candidate) -> Place | None:
    """Returns the place of waiting work in the quota tree with the first level that blocks it; None without a tree."""
    quota_usage = context.state.quota_usage
    if quota_usage is None:
        return None
    share = quota_usage.shares.share(candidate)
    return Place(
        quota_usage.forest, candidate.quota or DEFAULT, quota_usage.asked(candidate), share if isinstance(share, Blocked) else None
    )


def _chain(context: QueryContext, found: Subject, reader: Reader) -> Iterator[Gate]:
    """Yields a row for each gate of the cycle's chain, in order, also for those behind a gate that blocks; for work that holds nodes no
    gate is checked, and every row says Passes or Unlimited.
    """
    for gate in GATES:
        checked = gate.check(context.state, found.candidate, context.now) if found.candidate is not None else None
        yield _ROWS[gate.name](context, found, reader, checked if isinstance(checked, Waiting) else None)


def _gate(name: GateName, blocked: Waiting | None, limits: list[Limit], passes: str = "") -> Gate:
    """Returns the row of a gate: Blocks with the reason of `blocked` (None: it does not block), else Passes with the words `passes`, or
    Unlimited where it has neither limits nor words.
    """
    if blocked is not None:
        return Gate(gate=name, verdict=BLOCKS, reason=blocked.reason, message=blocked.message, limits=limits)
    return Gate(gate=name, verdict=PASSES if limits or passes else UNLIMITED, message=passes, limits=limits)


def _itself(context: QueryContext, found: Subject, reader: Reader, blocked: Waiting | None) -> Gate:
    """Returns the row of the gate of own wishes: hold, not-before, back-off, a closed vcluster."""
    del context, found, reader
    return _gate("Itself", blocked, [], "" if blocked is not None else "not held, and its vcluster is open")


def _hard_quota(context: QueryContext, found: Subject, reader: Reader, blocked: Waiting | None) -> Gate:
    """Returns the row of the hard limits of the allocation's tenant and user, as far as they are set, with the use that the ledger compares
    at commit; Unlimited where none is set.

    Waiting work of a tenant without an account is blocked.
    """
    del reader
    state, work = context.state, found.work
    account = state.accounts.get(work.tenant)
    if account is None:
        return _gate("HardQuota", blocked, [])
    of_tenant, of_user = hard_caps(account, state.uses, work.tenant, work.user)
    limits = [
        *_pair(found, f"tenant {work.tenant}", "quota.maxNodes", "quota.maxConcurrentAllocations", of_tenant),
        *_pair(found, f"user {work.user}", "quota.perUser.maxNodes", "quota.perUser.maxRunning", of_user),
    ]
    return _gate("HardQuota", blocked, limits)


def _budget(context: QueryContext, found: Subject, reader: Reader, blocked: Waiting | None) -> Gate:
    """Returns the row of the budgets of the allocation's tenant, project and user that make work wait; it passes unchecked where it holds
    nodes.
    """
    del context, reader
    if found.candidate is None:
        return Gate(gate="Budget", verdict=PASSES, message="work that holds nodes goes on")
    return _gate("Budget", blocked, [], "" if blocked is not None else "no budget at whose end work waits is used up")


def _quota_tree(context: QueryContext, found: Subject, reader: Reader, blocked: Waiting | None) -> Gate:
    """Returns the row of the quota tree: every level from the allocation's leaf up; Unlimited without a tree.

    No level blocks work that holds nodes.
    """
    del context, blocked  # `place` has the level that blocks
    place = found.place
    if place is None:
        return Gate(gate="QuotaTree", verdict=UNLIMITED, message="no ElasticQuota is declared")
    if found.candidate is None:
        return holding_at(place)
    return waiting_at(place, reader, non_preemptible=found.work.non_preemptible)


def _vcluster(context: QueryContext, found: Subject, reader: Reader, blocked: Waiting | None) -> Gate:
    """Returns the row of the limits that are set by the allocation's vcluster, and, where that is limited, of how many nodes it
    may borrow.
    """
    del reader
    state, work = context.state, found.work
    policy, uses, name = state.policy(work.vcluster), state.uses, work.vcluster
    borrowing = policy.borrowing
    of_user, of_tenant, of_all = vcluster_caps(policy.limits, uses, name, work.tenant, work.user)
    shown = [
        *_pair(found, f"user {work.user}", "limits.maxNodesPerUser", "limits.maxRunningPerUser", of_user),
        *_pair(found, f"tenant {work.tenant}", "limits.maxNodesPerTenant", "limits.maxRunningPerTenant", of_tenant),
        *_pair(found, f"vcluster {name}", "limits.maxNodes", "limits.maxRunning", of_all),
    ]
    if borrowing.borrow and borrowing.max_borrowed is not None:
        borrowed = uses.borrowed.get(name, 0)
        shown.append(Limit(f"vcluster {name}", "borrowing.maxBorrowed", NODES, borrowed, 0, borrowing.max_borrowed))
    home = "its home nodes" if policy.home else "the nodes that are at home nowhere"
    others = f"; it may borrow idle nodes of others, {uses.borrowed.get(name, 0)} are borrowed" if borrowing.borrow else ""
    return _gate("VCluster", blocked, shown, "" if blocked is not None else f"it runs on {home}{others}")


def _reservation(context: QueryContext, found: Subject, reader: Reader, blocked: Waiting | None) -> Gate:
    """Returns the row of the Reservation that the allocation names; unlimited where it names none, or holds its nodes already."""
    del context, reader
    candidate = found.candidate
    if candidate is None or not candidate.reservation:
        return Gate(gate="Reservation", verdict=UNLIMITED, message="it names none")
    return _gate("Reservation", blocked, [], "" if blocked is not None else f'reservation "{candidate.reservation}" admits it')


def _nodes(context: QueryContext, found: Subject) -> Gate:
    """Returns the row of the search for nodes; NotAsked where an earlier gate keeps the allocation from it, or no cycle has evaluated it,
    and Passes where it holds nodes.
    """
    candidate = found.candidate
    if candidate is None:
        return Gate(gate="Nodes", verdict=PASSES, message="it holds its nodes")
    waiting, fits = context.waiting.get(candidate.uid), census(context, candidate)
    limits = [
        Limit("nodes that fit", "free", NODES, fits.usable - fits.free, candidate.minimum, fits.usable, fits.free < candidate.minimum)
    ]
    if waiting is None or waiting.reason in EARLIER_GATES:
        message = "a cycle looks for nodes once every gate before is open"
        return Gate(gate="Nodes", verdict=NOT_ASKED, message=message, limits=limits)
    return _gate("Nodes", waiting, limits)


def _pair(found: Subject, of: str, nodes_field: str, running_field: str, cap: Cap) -> Iterator[Limit]:
    """Yields the limits on nodes and on running allocations of one owner (`of`), as far as they are set."""
    nodes, running, held, started = cap
    if nodes is not None:
        yield Limit(of, nodes_field, NODES, held, found.asked, nodes, bool(found.starts) and held + found.asked > nodes)
    if running is not None:
        blocks = bool(found.starts) and started + found.starts > running
        yield Limit(of, running_field, ALLOCATIONS, started, found.starts, running, blocks)


_ROWS: Final[Mapping[str, Callable[[QueryContext, Subject, Reader, Waiting | None], Gate]]] = {
    "Itself": _itself,
    "HardQuota": _hard_quota,
    "Budget": _budget,
    "QuotaTree": _quota_tree,
    "VCluster": _vcluster,
    "Reservation": _reservation,
}
"""By name of a gate: the function that makes its row."""
