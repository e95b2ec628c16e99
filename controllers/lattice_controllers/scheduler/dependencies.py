"""The edges of pending work: binds references, finds answers, and says who is to be looked at again; the reconciler writes them.

A reference is bound when the informer shows the work that holds it, in the order of etcd: to the object that then bears the name, or to
the usage record of one that is gone. A predecessor that is being deleted keeps its finalizer until the status of each that waits for
it shows its answer; that all of them are known follows from the same order, once the informer itself has shown the deletion.

Members of a DAG are made in any order. Their edges are bound once all of them exist and are known, each to the member of the same DAG that
bears the name; a member that is deleted before keeps its finalizer until then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Final

import msgspec

from lattice.accounting.charges import Charge
from lattice.accounting.records import Records, Wanted
from lattice.errors import Rejected
from lattice.kube.clock import Clock
from lattice.kube.informer import Change
from lattice.ledger.format import Key
from lattice.lifecycle.settle import is_final
from lattice.units import parse_time
from lattice.views.allocation import Allocation, Edge
from lattice.workflow.edges import MET, Predecessor, answered, predecessor_of
from lattice.workflow.members import member_of
from lattice.workflow.mutexes import MUTEX, MutexLines, mutexes_of
from lattice.workflow.references import WorkReference, parse_reference
from lattice.workflow.release import WITHOUT_EDGES, EdgesAwaited, EdgesJudged, Released, is_released, judge_edges
from lattice_controllers.scheduler.dag_gates import WAITING_FOR_DAG, DagGates

CATCH_UP_SECONDS: Final = 1.0
"""How often a member asks whether all members of its DAG are known; bookmarks, which tell so on a quiet cluster, come every minute."""


class Dependencies:
    """The edges of all pending work; `objects` are the allocations by uid, `records` the usage of those that are gone.

    `mutexes`: the ledger's row that has each mutex, by digest. `gates`: the DAGs of their members, kept up to date by the caller.
    """

    def __init__(
        self, clock: Clock, objects: Mapping[str, Allocation], records: Records, mutexes: Mapping[str, Key], gates: DagGates
    ) -> None:
        self._clock = clock
        self._gates = gates
        self._objects = objects
        self._records = records
        self._mutexes = mutexes
        self._lines = MutexLines()
        self._synced = False
        self._numbers: dict[tuple[str, int], str] = {}
        """The uid of each allocation that exists, by tenant and number."""
        self._names: dict[str, str] = {}
        """The same by NAMESPACE/NAME."""
        self._bound: dict[str, tuple[Edge, ...]] = {}
        """By uid: edges that are bound, and that no status shows yet."""
        self._before: dict[str, frozenset[str]] = {}
        """By uid of work that waits: the predecessors that have not answered."""
        self._after: dict[str, set[str]] = {}
        """The same turned round: by uid of a predecessor, who waits for it."""
        self._deleting: set[str] = set()
        """The uids of allocations of which the informer has shown that they are being deleted."""
        self._read: dict[str, tuple[Allocation, Predecessor]] = {}
        """By uid: predecessors that somebody waits for, as they were read last; thousands may wait for each of a thousand."""

    def started(self) -> None:
        """Binds and follows all pending work, once the informers have listed everything."""
        self._synced = True
        for allocation in list(self._objects.values()):
            self._follow(allocation)

    def on_allocation(self, change: Change[Allocation]) -> set[str]:
        """Handles a change of the informer of Allocations, after the cache has it; returns the uids of allocations to look at again: those
        that wait for the changed one, and those that waited for its answers in order to go.
        """
        found: set[str] = set()
        old, new = change.old, change.new
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            found |= self._drop(old)
            old = None
        if new is None:
            return found
        found |= self._lines.leave_lines(new.metadata.uid) if is_final(new.status) else self._lines.enter_lines(new)
        uid = new.metadata.uid
        self._names[new.metadata.key] = uid
        if new.status.number:
            self._numbers[new.spec.tenant, new.status.number] = uid
        if new.metadata.deletion_timestamp:
            self._deleting.add(uid)
        if uid in self._after and (old is None or _progress(old) != _progress(new)):
            found |= self._after[uid]
        if self._synced and (new.spec.depends_on or uid in self._before):
            found |= self._deleting & self._before.get(uid, frozenset())
            self._follow(new)
        return found

    def on_whole(self, uids: Iterable[str]) -> None:
        """Binds the edges of these members (by uid), where all that exist of their DAG are known; others are passed over."""
        for uid in uids:
            allocation = self._objects.get(uid)
            if self._synced and allocation is not None and allocation.spec.depends_on:
                self._follow(allocation)

    def followers(self, uids: Iterable[str]) -> set[str]:
        """Returns the uids of the work that waits for an answer of these allocations."""
        return {follower for uid in uids for follower in self._after.get(uid, ())}

    def judge(self, allocation: Allocation) -> EdgesJudged:
        """Returns the edges of pending work with the answers that are known by now, and what becomes of it."""
        if not allocation.spec.depends_on:
            return WITHOUT_EDGES
        if not self._can_bind(allocation):
            return self._unbound(allocation)
        if not allocation.status.edges and allocation.metadata.uid not in self._bound:
            self._follow(allocation)  # that all members are known came with the change of another object
        asked, stands = allocation.spec.depends_on, self._edges(allocation)
        gone = {edge.uid for edge in stands if not edge.answer and edge.uid and edge.uid not in self._objects}
        recorded = self._recorded(allocation.spec.tenant, Wanted(uids=frozenset(gone))) if gone else {}
        edges, lost, urgent = [], [], False
        for edge in stands:
            if edge.answer or asked[edge.index].condition == MUTEX:
                edges.append(edge)
                continue
            known = self._objects.get(edge.uid)
            before = self._predecessor(known) if known is not None else recorded.get(edge.uid)
            if before is None:
                lost.append(edge.index)
            else:
                edge = answered(edge, asked[edge.index], before)
            urgent = urgent or bool(edge.answer and edge.uid in self._deleting)
            edges.append(edge)
        numbers = self._numbers_beside(allocation, edges)
        mutexes = mutexes_of(allocation)
        free = self._lines.is_first(allocation.metadata.uid) and self._mutexes.keys().isdisjoint(mutexes)
        verdict = judge_edges(allocation.spec, edges, self._clock.now(), lost=lost, numbers=numbers, has_mutexes=free)
        if mutexes and isinstance(verdict, Released):
            had = {index for index, one in enumerate(asked) if one.condition == MUTEX}
            edges = [Edge(edge.index, edge.uid, MET) if edge.index in had else edge for edge in edges]
        return EdgesJudged(tuple(edges), verdict, tuple(edges) != allocation.status.edges, urgent)

    def _numbers_beside(self, allocation: Allocation, edges: Iterable[Edge]) -> dict[str, int]:
        """Returns the numbers, by uid, that sentences give beside the names of predecessors: of those outside of the work's own DAG.

        Those inside get their numbers at the same time as the work, and the sentence would be written once more with them.
        """
        own = member_of(allocation.metadata)
        inside = "" if own is None else allocation.metadata.name[: -len(own[1])]
        known = (self._objects.get(edge.uid) for edge in edges)
        beside = (one for one in known if one is not None and not (inside and one.metadata.name.startswith(inside)))
        return {one.metadata.uid: one.status.number or 0 for one in beside}

    def _unbound(self, allocation: Allocation) -> EdgesJudged:
        """Returns what becomes of a member whose edges cannot be bound: its DAG keeps it, until some time after all members were made."""
        if not self._gates.is_catching_up(allocation):
            return EdgesJudged()  # released by no edge, and kept by its DAG
        sentence = "waits until all members of its DAG are known, which were made just now"
        return EdgesJudged(verdict=EdgesAwaited(WAITING_FOR_DAG, sentence, self._clock.now() + CATCH_UP_SECONDS))

    def next_of(self, mutexes: tuple[str, ...]) -> set[str]:
        """Returns the uids of the work that may have these mutexes next, once nobody has them."""
        return self._lines.first(mutexes)

    def _predecessor(self, known: Allocation) -> Predecessor:
        """Returns an allocation as edges see it."""
        read = self._read.get(known.metadata.uid)
        if read is None or read[0] is not known:
            read = self._read[known.metadata.uid] = known, predecessor_of(known)
        return read[1]

    def awaited(self, uid: str) -> bool:
        """Tells whether an allocation that is being deleted must stay: not all that wait for it show its answer in their status.

        True, too, until the informer has shown the deletion, and, of a member of a DAG, while others are to be made: who was submitted
        before, or with it, may not be known yet.
        """
        if uid not in self._deleting:
            return True
        allocation = self._objects.get(uid)
        if allocation is not None and self._gates.is_growing(allocation):
            return True
        return any(self._needs(follower, uid) for follower in self._after.get(uid, ()))

    def _needs(self, follower: str, uid: str) -> bool:
        """Tells whether work (by uid) still waits for the answer of a predecessor, as far as its status shows."""
        allocation = self._objects.get(follower)
        if allocation is None or not self._waits(allocation):
            return False
        shown = allocation.status.edges
        return not shown or any(edge.uid == uid and not edge.answer for edge in shown)

    def _waits(self, allocation: Allocation) -> bool:
        """Tells whether work depends on something, has not ended, and is not released by what its status shows."""
        if not allocation.spec.depends_on or is_final(allocation.status):
            return False
        return not is_released(allocation.spec, allocation.status.edges, self._clock.now())

    def _follow(self, allocation: Allocation) -> None:
        """Brings it up to date for which predecessors an allocation waits; none where it waits for none any more."""
        uid = allocation.metadata.uid
        waits = self._waits(allocation)
        before = frozenset(edge.uid for edge in self._edges(allocation) if not edge.answer and edge.uid) if waits else frozenset[str]()
        if not waits or allocation.status.edges:
            self._bound.pop(uid, None)
        for gone in self._before.pop(uid, frozenset()) - before:
            followers = self._after[gone]
            followers.discard(uid)
            if not followers:
                del self._after[gone]
                self._read.pop(gone, None)
        if before:
            self._before[uid] = before
            for one in before:
                self._after.setdefault(one, set()).add(uid)

    def _drop(self, allocation: Allocation) -> set[str]:
        """Drops an allocation whose object is gone; returns the uids of those to look at again."""
        meta = allocation.metadata
        found = self._lines.leave_lines(meta.uid) | self._after.get(meta.uid, set())
        found |= self._deleting & self._before.get(meta.uid, frozenset())
        self._deleting.discard(meta.uid)
        self._read.pop(meta.uid, None)
        if self._names.get(meta.key) == meta.uid:
            del self._names[meta.key]
        if allocation.status.number:
            self._numbers.pop((allocation.spec.tenant, allocation.status.number), None)
        self._follow(msgspec.structs.replace(allocation, spec=msgspec.structs.replace(allocation.spec, depends_on=())))
        return set(found)

    def _edges(self, allocation: Allocation) -> tuple[Edge, ...]:
        """Returns the edges of an allocation as its status has them, else as they are bound now, once; none while they cannot be bound."""
        if allocation.status.edges:
            return allocation.status.edges
        uid = allocation.metadata.uid
        edges = self._bound.get(uid)
        if edges is None and not self._can_bind(allocation):
            return ()
        if edges is None:
            edges = self._bound[uid] = self._bind(allocation)
        return edges

    def _can_bind(self, allocation: Allocation) -> bool:
        """Tells whether the edges of an allocation are bound, or can be: all that they may name exists, or existed."""
        return bool(allocation.status.edges) or self._gates.is_whole(allocation)

    def _bind(self, allocation: Allocation) -> tuple[Edge, ...]:
        """Returns the edges of an allocation, each with the uid that its reference names; those of work that is gone have their answer.

        Empty uids: nobody knows what the reference names. Work of another tenant, and what was made later, is nothing that it could name.
        """
        asked, tenant = allocation.spec.depends_on, allocation.spec.tenant
        home = allocation.metadata.namespace
        references = [_read(one.ref, home) if one.condition != MUTEX else None for one in asked]
        uids = [self._named(reference, allocation) if reference is not None else "" for reference in references]
        unknown = [reference for reference, uid in zip(references, uids, strict=True) if reference is not None and not uid]
        numbers = frozenset(reference.number for reference in unknown if reference.number)
        names = frozenset((reference.namespace, reference.name) for reference in unknown if not reference.number)
        recorded: dict[tuple[int, str, str], Predecessor] = {}
        if unknown:
            for charge in self._records.ended(tenant, Wanted(numbers=numbers, names=names)):
                recorded[charge.number, "", ""] = recorded[0, charge.namespace, charge.name] = _recorded(charge)
        edges = []
        for index, (reference, uid) in enumerate(zip(references, uids, strict=True)):
            edge = Edge(index=index, uid=uid)
            if not uid and reference is not None:
                before = recorded.get((reference.number, reference.namespace, reference.name))
                edge = answered(Edge(index=index, uid=before.uid), asked[index], before) if before is not None else edge
            edges.append(edge)
        return tuple(edges)

    def _named(self, reference: WorkReference, follower: Allocation) -> str:
        """Returns the uid of the allocation that a reference of `follower` names; empty: none that exists."""
        tenant = follower.spec.tenant
        key = f"{reference.namespace}/{reference.name}"
        uid = self._numbers.get((tenant, reference.number), "") if reference.number else self._names.get(key, "")
        found = self._objects.get(uid)
        if found is None or found.spec.tenant != tenant or uid == follower.metadata.uid:
            return ""
        dag = member_of(follower.metadata)
        if dag is not None and reference.name.startswith(f"{follower.metadata.name[: -len(dag[1])]}"):
            return uid if (member_of(found.metadata) or ("", ""))[0] == dag[0] else ""
        late = parse_time(found.metadata.creation_timestamp) > parse_time(follower.metadata.creation_timestamp)
        return "" if late else uid

    def _recorded(self, tenant: str, wanted: Wanted) -> dict[str, Predecessor]:
        """Returns those of the wanted allocations that the records hold, by uid."""
        return {charge.uid: _recorded(charge) for charge in self._records.ended(tenant, wanted)}


def _read(ref: str, namespace: str) -> WorkReference | None:
    """Returns what a reference names; None for a text that is none, which came in while the webhook was away."""
    with suppress(Rejected):
        return parse_reference(ref, namespace)
    return None


def _recorded(charge: Charge) -> Predecessor:
    """Returns work that is gone as edges see it, by its last charge."""
    return Predecessor(charge.uid, charge.state, float(charge.started), float(charge.ended or charge.submitted))


def _progress(allocation: Allocation) -> tuple[object, ...]:
    """Returns the parts of an allocation by which those that wait for it may go on."""
    status = allocation.status
    return is_final(status), status.start_time, status.number, bool(allocation.metadata.deletion_timestamp)
