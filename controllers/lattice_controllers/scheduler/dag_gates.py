"""The DAGs of pending work: no member starts before all members exist, while its DAG is held, or once that is to end.

DAGs and Allocations come over two watches, either of which may be ahead. That all members were made says nothing yet of what is known of
them: they are known once as many are there as were made, or once the informer of Allocations has reported all changes up to the version
of the DAG that said so (versions number the writes of all kinds in their order).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from lattice.kube.informer import Change
from lattice.views.allocation import Allocation
from lattice.views.dag import DagGate
from lattice.workflow.members import member_of
from lattice.workflow.release import EdgesAwaited, EdgesJudged, Released

WAITING_FOR_DAG: Final = "WaitingForDag"


class DagGates:
    """The DAGs that exist, and the members of each, by uid; the reconciler of allocations asks it of each that is pending.

    `reported`: up to which version all changes of Allocations have been reported; empty: none were.
    """

    def __init__(self, reported: Callable[[], str]) -> None:
        self._reported = reported
        self._gates: dict[str, DagGate] = {}
        self._members: dict[str, set[str]] = {}
        """By uid of a DAG: the uids of its members that exist."""
        self._made_by: dict[str, int] = {}
        """By uid of a DAG: a version by which all its members had been made; left out: not all are made. 0: all of them are known."""

    def on_allocation(self, change: Change[Allocation]) -> set[str]:
        """Handles a change of the informer of Allocations: keeps which are members of which DAG.

        Returns the uids of the members whose edges can be bound now, as the last one of their DAG is known.
        """
        for one, there in ((change.old, False), (change.new, True)):
            found = member_of(one.metadata) if one is not None else None
            if one is None or found is None:
                continue
            members = self._members.setdefault(found[0], set())
            if there:
                members.add(one.metadata.uid)
            else:
                members.discard(one.metadata.uid)
            if not members:
                del self._members[found[0]]
            if there and self._made_by.get(found[0]) and self._are_known(found[0]):
                return set(members)
        return set()

    def on_dag(self, change: Change[DagGate]) -> set[str]:
        """Handles a change of the informer of DAGs; returns the uids of the members that may start now, or may not any more, and
        of those whose edges can be bound now, or never.
        """
        old, new = change.old, change.new
        found = set[str]()
        if old is not None and (new is None or new.metadata.uid != old.metadata.uid):
            self._gates.pop(old.metadata.uid, None)
            self._made_by.pop(old.metadata.uid, None)
            found |= self._members.get(old.metadata.uid, set())
        if new is not None:
            before = self._gates.get(new.metadata.uid)
            self._gates[new.metadata.uid] = new
            if new.status.complete:
                version = int(new.metadata.resource_version)
                self._made_by[new.metadata.uid] = min(version, self._made_by.get(new.metadata.uid, version))
            else:
                self._made_by.pop(new.metadata.uid, None)  # etcd was restored to before
            if before is None or (_closed(before), _grows(before)) != (_closed(new), _grows(new)):
                found |= self._members.get(new.metadata.uid, set())
        return found

    def is_whole(self, allocation: Allocation) -> bool:
        """Tells whether the edges of an allocation can be bound: it is a member of no DAG, or all members of its DAG that exist are known,
        and no more will be made.
        """
        member = member_of(allocation.metadata)
        return member is None or self._are_known(member[0])

    def is_catching_up(self, allocation: Allocation) -> bool:
        """Tells whether all members of an allocation's DAG were made, and not all of them are known yet: nothing tells when they are."""
        member = member_of(allocation.metadata)
        return member is not None and member[0] in self._made_by and not self._are_known(member[0])

    def _are_known(self, dag: str) -> bool:
        """Tells whether all members of a DAG (by uid) that exist are known, and no more will be made; once so, it stays so."""
        made_by = self._made_by.get(dag)
        if made_by and (len(self._members.get(dag, ())) >= self._gates[dag].status.made or int(self._reported() or "0") >= made_by):
            made_by = self._made_by[dag] = 0
        return made_by == 0

    def is_growing(self, allocation: Allocation) -> bool:
        """Tells whether an allocation is a member of a DAG of which more members may come, or become known, whose edges may name it."""
        member = member_of(allocation.metadata)
        gate = self._gates.get(member[0]) if member is not None else None
        return gate is not None and not _ends(gate) and not self._are_known(gate.metadata.uid)

    def judged(self, allocation: Allocation, edges: EdgesJudged) -> EdgesJudged:
        """Returns what becomes of pending work: as its edges say, but for one that may start by them and whose DAG keeps it."""
        member = member_of(allocation.metadata)
        if member is None or not isinstance(edges.verdict, Released):
            return edges
        gate = self._gates.get(member[0])
        name = allocation.metadata.name.partition(".")[0]
        closed = ("WaitingForDag", "is gone, or not known yet: no member starts without it") if gate is None else _closed(gate)
        return edges if closed is None else replace(edges, verdict=EdgesAwaited(closed[0], f'DAG "{name}" {closed[1]}'))


def _grows(gate: DagGate) -> bool:
    """Tells whether more members of a DAG are to be made."""
    return not (gate.status.complete or _ends(gate))


def _ends(gate: DagGate) -> bool:
    """Tells whether a DAG has ended, or is to end."""
    return bool(gate.status.end_time or gate.spec.cancel is not None or gate.metadata.deletion_timestamp)


def _closed(gate: DagGate) -> tuple[str, str] | None:
    """Returns the reason and the words with which a DAG keeps its members from starting; None: they may start."""
    if gate.spec.cancel is not None or gate.metadata.deletion_timestamp:
        return WAITING_FOR_DAG, "is cancelled or deleted: no member starts any more"
    if not gate.status.complete:
        return WAITING_FOR_DAG, "is not whole yet: no member starts before all of them exist"
    return ("Held", "is held: `lattice dag release` lets it go on") if gate.spec.hold else None
