"""The members of DAGs: which Allocations exist of each, how each member stands, and the making of those that do not exist yet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from lattice.accounting.records import Records, Wanted
from lattice.admission import Facts, Requester
from lattice.admission.dags import judge_member, refused_graph
from lattice.admission.verdicts import Accepted, Object, Refused
from lattice.daemon.clock import Clock
from lattice.errors import AlreadyExists, Denied, NotFound, Rejected
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Change
from lattice.kube.resources import ALLOCATIONS, CONFIGS, TENANTS, VCLUSTERS
from lattice.lifecycle.conditions import condition
from lattice.lifecycle.settle import is_final
from lattice.models.conditions import CANCELLED, PENDING, READY
from lattice.units import format_time, parse_time
from lattice.views import Allocation, Config, Dag, Member, Tenant, VCluster
from lattice.views.dag import MemberState
from lattice.workflow.dags import FINAL
from lattice.workflow.members import DAG_LABEL, is_ours, member_of, object_name

log = logging.getLogger(__name__)

AT_ONCE: Final = 48
"""So many members are made, or cancelled, at a time."""
LATCHED: Final = 128
"""After so many new members the status says how far they were made."""
JUDGED_AT_ONCE: Final = 16
"""So many members are judged before the loop runs other tasks."""


@dataclass(frozen=True)
class NotMade:
    """Says why members of a DAG cannot be made: a reason of `DAG_REASONS` and a sentence."""

    reason: str
    message: str


class MemberIndex:
    """The Allocations of all DAGs as the informer shows them: by the uid of the DAG, and by the member's name in it."""

    def __init__(self) -> None:
        self._members: dict[str, dict[str, Allocation]] = {}

    def on_allocation(self, change: Change[Allocation]) -> str:
        """Handles a changed Allocation; returns the key of its DAG, empty where it is a member of none."""
        key = ""
        for one, there in ((change.old, False), (change.new, True)):
            found = member_of(one.metadata) if one is not None else None
            if one is None or found is None:
                continue
            uid, name = found
            key = f"{one.metadata.namespace}/{one.metadata.name[: -len(name) - 1]}"
            members = self._members.setdefault(uid, {})
            if there:
                members[name] = one
            else:
                members.pop(name, None)
            if not members:
                del self._members[uid]
        return key

    def members(self, uid: str) -> Mapping[str, Allocation]:
        """Returns the Allocations of a DAG, by the name of the member."""
        return self._members.get(uid, {})


class MemberMaker:
    """Makes the members of DAGs, reads how they stand, and cancels or deletes them; it keeps nothing of its own."""

    def __init__(self, cluster: Cluster, clock: Clock, index: MemberIndex, records: Records) -> None:
        self._cluster = cluster
        self._clock = clock
        self._index = index
        self._records = records

    async def prepare(self, dag: Dag) -> list[Object] | NotMade:
        """Returns the Allocations of all members with every default filled in, in the order of the members, to be made in any order; or why
        they cannot be made: no graph, or a member that admission refuses.
        """
        try:
            most = (await self._cluster.get(CONFIGS, "lattice", type=Config)).spec.scheduling.max_dag_size
        except NotFound:
            most = None
        refused = refused_graph(dag, most)
        if refused is not None:
            return NotMade("DagInvalid", refused.message)
        facts = await self._facts(dag)
        made: list[Object] = []
        for index, member in enumerate(dag.spec.members):
            verdict = judge_member(dag, member, facts)
            if isinstance(verdict, Refused):
                return NotMade("MemberRefused", f'member "{member.name}": {verdict.message}')
            made.append(verdict.obj if isinstance(verdict, Accepted) else {})
            if index % JUDGED_AT_ONCE == 0:
                await asyncio.sleep(0)
        return made

    async def _facts(self, dag: Dag) -> Facts:
        """Returns the facts by which members are filled in and judged, as the server has them now; the requester is the DAG's user."""
        name = dag.spec.tenant
        try:
            tenants = {name: await self._cluster.get(TENANTS, name, type=Tenant)}
        except NotFound:
            tenants = {}
        vclusters = {one.metadata.name: one for one in (await self._cluster.list(VCLUSTERS, type=VCluster)).items}
        return Facts(
            requester=Requester(dag.spec.user), now=self._clock.now(), namespace_tenant=name, namespaces={dag.metadata.namespace: name},
            tenants=tenants, vclusters=vclusters,
        )  # fmt: skip

    async def make_members(self, dag: Dag, objects: Sequence[Object]) -> NotMade | None:
        """Makes these members at once; those that stand there already, of this DAG and made from the same, count as made.

        Returns why one cannot be made; None: all exist. Raises the first other error of the API server once all have been tried.
        """
        places = asyncio.Semaphore(AT_ONCE)

        async def one(obj: Object) -> None:
            """Makes one member."""
            async with places:
                await self._make(dag, obj)

        found = await asyncio.gather(*map(one, objects), return_exceptions=True)
        errors = [error for error in found if isinstance(error, BaseException)]
        for error in errors:
            if isinstance(error, AlreadyExists):
                return NotMade("NameTaken", error.message)
            if isinstance(error, Rejected | Denied):
                return NotMade("MemberRefused", error.message)
        if errors:
            raise errors[0]
        return None

    async def _make(self, dag: Dag, obj: Object) -> None:
        """Makes one member; raises AlreadyExists where something else has its name, Rejected or Denied where the server refuses it."""
        name, namespace = obj["metadata"]["name"], dag.metadata.namespace
        member = name.partition(".")[2]
        try:
            await self._cluster.create(ALLOCATIONS, obj, namespace, type=Allocation, strict=True)
        except AlreadyExists:
            standing = await self._cluster.get(ALLOCATIONS, name, namespace, type=Allocation)
            if not is_ours(standing.metadata, obj):
                sentence = f'member "{member}" cannot be made: an allocation "{name}" exists, and is not of this DAG'
                raise AlreadyExists(sentence, reason="NameTaken") from None
        except (Rejected, Denied) as error:
            raise type(error)(f'member "{member}" was refused: {error.message}', reason=error.reason) from error

    async def states(self, dag: Dag, *, stopped: bool) -> dict[str, MemberState]:
        """Returns how each member stands, by name: by its Allocation, else as it was last seen to end, else by its usage record; one that
        was made and of which nothing is left counts as cancelled, and so does one that was never made of a DAG that is `stopped`.
        """
        live, before = self._index.members(dag.metadata.uid), {one.name: one for one in dag.status.members}
        made = {member.name for member in dag.spec.members[: dag.status.made]}
        states: dict[str, MemberState] = {}
        for member in dag.spec.members:
            name, known = member.name, before.get(member.name)
            if name in live:
                states[name] = state_of(name, live[name])
            elif known is not None and known.phase in FINAL:
                states[name] = known
            elif name in made:
                states[name] = await self._gone(dag, member)
            elif stopped:
                states[name] = MemberState(name=name, phase=CANCELLED, reason="Cancelled", end_time=format_time(self._clock.now()))
            else:
                states[name] = MemberState(name=name)
        return states

    async def _gone(self, dag: Dag, member: Member) -> MemberState:
        """Returns how a member stands that was made and that the informer does not show: not yet, or no more."""
        meta, name = dag.metadata, object_name(dag.metadata.name, member.name)
        try:
            found = await self._cluster.get(ALLOCATIONS, name, meta.namespace, type=Allocation)
        except NotFound:
            pass  # it is gone: its usage record tells how it ended
        else:
            if member_of(found.metadata) == (meta.uid, member.name):
                return state_of(member.name, found)
        wanted = Wanted(names=frozenset({(meta.namespace, name)}))
        for charge in reversed(list(self._records.ended(dag.spec.tenant, wanted))):
            if charge.submitted + 1 >= _seconds(meta.creation_timestamp):
                times = {"start_time": charge.started, "end_time": charge.ended or charge.submitted}
                texts = {field: format_time(float(at)) if at else None for field, at in times.items()}
                return MemberState(name=member.name, number=charge.number, phase=charge.state, reason=charge.reason, **texts)
        return MemberState(name=member.name, phase=CANCELLED, reason="Deleted", end_time=format_time(self._clock.now()))

    async def listed(self, dag: Dag) -> list[Allocation]:
        """Returns the members of a DAG that exist, as the server has them now."""
        meta = dag.metadata
        found = await self._cluster.list(ALLOCATIONS, meta.namespace, type=Allocation, labels=f"{DAG_LABEL}={meta.name}")
        return [one for one in found.items if (member_of(one.metadata) or ("", ""))[0] == meta.uid]

    async def cancel(self, members: Iterable[Allocation], reason: str) -> int:
        """Cancels those of these members that have not ended and are not cancelled yet; returns how many.

        Raises the first error of the API server once all have been tried.
        """
        wish = {"spec": {"cancel": {"reason": reason}}}
        ending = [one for one in members if one.spec.cancel is None and not is_final(one.status) and not one.metadata.deletion_timestamp]

        async def one(member: Allocation) -> None:
            """Cancels one member; one that is gone is none any more."""
            with suppress(NotFound):
                await self._cluster.patch(ALLOCATIONS, member.metadata.name, wish, member.metadata.namespace, type=Allocation)

        await _all(map(one, ending))
        return len(ending)

    async def delete(self, members: Iterable[Allocation]) -> None:
        """Deletes those of these members that are not being deleted yet; raises the first error once all have been tried."""

        async def one(member: Allocation) -> None:
            """Deletes one member; one that is gone is deleted."""
            meta = member.metadata
            with suppress(NotFound):
                await self._cluster.delete(ALLOCATIONS, meta.name, meta.namespace, uid=meta.uid)

        await _all(one(member) for member in members if not member.metadata.deletion_timestamp)


async def _all(works: Iterable[Awaitable[None]]) -> None:
    """Awaits these, `AT_ONCE` at a time, and raises the first error once all have ended."""
    places = asyncio.Semaphore(AT_ONCE)

    async def within(work: Awaitable[None]) -> None:
        """Awaits one when its turn has come."""
        async with places:
            await work

    found = await asyncio.gather(*map(within, works), return_exceptions=True)
    for error in found:
        if isinstance(error, BaseException):
            raise error


def state_of(name: str, allocation: Allocation) -> MemberState:
    """Returns how a member stands by its Allocation."""
    status, ready = allocation.status, condition(allocation.status.conditions, READY)
    phase = status.phase or PENDING
    if phase in FINAL and not is_final(status):
        phase = "Running"  # an attempt has ended, and whether another follows is not decided
    return MemberState(
        name=name, number=status.number, phase=phase, reason=ready.reason if ready is not None else "",
        start_time=status.start_time, end_time=status.end_time if phase in FINAL else None,
    )  # fmt: skip


def _seconds(text: str) -> float:
    """Returns a time of the server as seconds since the epoch; 0 for none."""
    return parse_time(text) if text else 0.0
