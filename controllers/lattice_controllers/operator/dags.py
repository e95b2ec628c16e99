"""Reconciles DAGs: makes all members once, cancels and deletes them with their DAG, and shows how it stands.

A latch in the status says how many members were made: none of those is made again, and no member starts before it says that all exist
(the scheduler's part). A member that cannot be made cancels all others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from lattice.daemon.clock import Clock
from lattice.daemon.logs import event
from lattice.daemon.queue import KeyedQueue
from lattice.errors import NotFound, Rejected, Stale
from lattice.kube.cluster import Cluster
from lattice.kube.informer import Change
from lattice.kube.resources import DAGS
from lattice.lifecycle.conditions import FALSE, TRUE, condition, with_condition, without_conditions
from lattice.models.conditions import CANCELLED, COMPLETED, DERIVED, FAILED, FINISHED, READY, RECONCILING, RUNNING, STALLED
from lattice.units import format_time, parse_duration, parse_time
from lattice.views import Allocation, Condition, Dag, VCluster
from lattice.views.dag import Counts, MemberState
from lattice.workflow.critical_path import MemberTimes, foresee
from lattice.workflow.dags import FINAL, count_members, dag_phase, uncaught
from lattice.workflow.members import part
from lattice_controllers.operator import statuses
from lattice_controllers.operator.dag_members import LATCHED, MemberIndex, MemberMaker, NotMade
from lattice_controllers.operator.metrics import OperatorMetrics
from lattice_controllers.operator.usage import is_tracked

log = logging.getLogger(__name__)

FINALIZER: Final = "lattice.dev/members"
"""The finalizer that keeps a deleted DAG until its members are gone; the webhook sets it, too."""
MADE: Final = "Made"
"""The condition that all members exist, or existed; False: why they cannot be made."""
REFUSED: Final = frozenset({"MemberRefused", "NameTaken", "DagInvalid"})
LOOK_SECONDS: Final = 0.2
"""How long changes of members are gathered into one write, and a millisecond more for each member."""
AGAIN_SECONDS: Final = 5.0
MOVED_SECONDS: Final = 60.0
"""How far an expected end moves before it is written again."""
DEFAULT_RETENTION: Final = "7d"


class Dags:
    """Reconciles one DAG at a time, by NAMESPACE/NAME; `known` holds the keys of those that exist.

    `vclusters` are those that exist, by name; `retention_of` gives a tenant's `finishedRetention`.
    """

    def __init__(
        self, cluster: Cluster, clock: Clock, index: MemberIndex, maker: MemberMaker, vclusters: Mapping[str, VCluster],
        retention_of: Callable[[str], str], measured: OperatorMetrics,
    ) -> None:  # fmt: skip
        self.known: set[str] = set()
        self.queue = KeyedQueue(self.reconcile, clock, workers=4, name="dags")
        self._cluster = cluster
        self._clock = clock
        self._index = index
        self._maker = maker
        self._vclusters = vclusters
        self._retention_of = retention_of
        self._measured = measured

    def on_allocation(self, change: Change[Allocation]) -> None:
        """Enqueues the DAG of a changed member, a moment later, so that many changes cost one write."""
        key = self._index.on_allocation(change)
        if key:
            one = change.new or change.old
            owner = next((entry.uid for entry in one.metadata.owner_references), "") if one is not None else ""
            self.queue.add(key, LOOK_SECONDS + len(self._index.members(owner)) / 1000)

    async def reconcile(self, key: str) -> float | None:
        """Takes one DAG a step on: makes its members, or ends them, and writes its status; a deleted one goes once its members are gone.

        Returns the seconds until the next look; None: it is gone.
        """
        namespace, _, name = key.partition("/")
        try:
            dag = await self._cluster.get(DAGS, name, namespace, type=Dag)
        except NotFound:
            self.known.discard(key)
            self._measured.dags.set(len(self.known))
            return None
        self.known.add(key)
        self._measured.dags.set(len(self.known))
        if dag.metadata.deletion_timestamp:
            return await self._leave(dag)
        if FINALIZER not in dag.metadata.finalizers:
            await statuses.set_finalizers(self._cluster, DAGS, dag.metadata, (*dag.metadata.finalizers, FINALIZER))
            dag = await self._cluster.get(DAGS, name, namespace, type=Dag)
        if dag.status.phase in FINAL:
            return await self._keep(dag)
        if _refusal(dag) is None and dag.spec.cancel is None and not dag.status.complete:
            dag = await self._make(dag)
        return await self._publish(dag)

    # -- members ------------------------------------------------------------------------------------

    async def _make(self, dag: Dag) -> Dag:
        """Makes the members that were not made yet, and returns the DAG with what its status says of it then: how far they were made, that
        all exist, or why they cannot be made.
        """
        objects = await self._maker.prepare(dag)
        if isinstance(objects, NotMade):
            return await self._refuse(dag, objects)
        for start in range(dag.status.made, len(objects), LATCHED):
            batch = objects[start : start + LATCHED]
            problem = await self._maker.make_members(dag, batch)
            if problem is not None:
                return await self._refuse(dag, problem)
            self._measured.members_made.inc(len(batch))
            if start + len(batch) < len(objects):
                dag = await self._write(dag, {"made": start + len(batch)})
        conditions = self._condition(dag, MADE, TRUE, "MembersMade", f"all {len(dag.spec.members)} members were made")
        event(log, "MembersMade", dag=dag.metadata.key, members=len(dag.spec.members))
        return await self._write(dag, {"made": len(dag.spec.members), "complete": True}, conditions)

    async def _refuse(self, dag: Dag, problem: NotMade) -> Dag:
        """Writes why the members cannot be made, before any is cancelled for it, and returns the DAG with that."""
        event(log, "MembersNotMade", logging.WARNING, dag=dag.metadata.key, reason=problem.reason, message=problem.message)
        return await self._write(dag, {}, self._condition(dag, MADE, FALSE, problem.reason, problem.message))

    def _condition(self, dag: Dag, kind: str, status: str, reason: str, message: str) -> tuple[Condition, ...]:
        """Returns a DAG's conditions with one set."""
        now, generation = format_time(self._clock.now()), dag.metadata.generation
        return with_condition(dag.status.conditions, kind, status, reason, message, generation=generation, now=now)

    async def _write(self, dag: Dag, latter: dict[str, Any], conditions: tuple[Condition, ...] | None = None) -> Dag:
        """Writes fields and conditions of a DAG's status, as far as they changed, and returns the DAG as it is then.

        Raises Stale where the DAG has changed since it was read.
        """
        before = msgspec.to_builtins(dag.status) | {"counts": _numbers(dag.status.counts)}
        before |= {name: list(before.get(name, ())) for name in ("members", "criticalPath")}
        changed = statuses.changes(dag.status.conditions, conditions or dag.status.conditions, before, latter)
        if not changed:
            return dag
        patch = {"metadata": {"resourceVersion": dag.metadata.resource_version}, "status": changed}
        meta = dag.metadata
        return await self._cluster.patch(DAGS, meta.name, patch, meta.namespace, subresource="status", type=Dag)

    async def _leave(self, dag: Dag) -> float | None:
        """Deletes the members of a deleted DAG, and removes the finalizer once the server has none of them any more."""
        if FINALIZER not in dag.metadata.finalizers:
            return None
        members = list(self._index.members(dag.metadata.uid).values()) or await self._maker.listed(dag)
        if members:
            await self._maker.delete(members)
            message = f"{len(members)} members are still there"
            await self._write(
                dag, {}, _going(self._condition(dag, READY, FALSE, "Deleting", message), dag, "Deleting", message, self._now())
            )
            return AGAIN_SECONDS
        kept = tuple(entry for entry in dag.metadata.finalizers if entry != FINALIZER)
        await statuses.set_finalizers(self._cluster, DAGS, dag.metadata, kept)
        event(log, "DagGone", dag=dag.metadata.key)
        return None

    async def _keep(self, dag: Dag) -> float | None:
        """Deletes a DAG that has ended once its tenant's `finishedRetention` has passed, unless a GitOps tool tracks it; shows that a later
        change of its spec was seen.

        Returns the seconds until then.
        """
        if dag.status.observed_generation < dag.metadata.generation:
            dag = await self._write(dag, {"observedGeneration": dag.metadata.generation})
        if is_tracked(dag.metadata) or not dag.status.end_time:
            return statuses.RESYNC_SECONDS
        try:
            kept = parse_duration(self._retention_of(dag.spec.tenant) or DEFAULT_RETENTION)
        except Rejected:
            kept = parse_duration(DEFAULT_RETENTION)
        left = parse_time(dag.status.end_time) + kept - self._clock.now()
        if left > 0:
            return min(left, statuses.RESYNC_SECONDS)
        meta = dag.metadata
        try:
            await self._cluster.delete(DAGS, meta.name, meta.namespace, uid=meta.uid, resource_version=meta.resource_version)
        except (NotFound, Stale):
            return AGAIN_SECONDS  # gone already, or changed: looked at again
        event(log, "DagExpired", dag=meta.key)
        return AGAIN_SECONDS

    # -- what its status says -------------------------------------------------------------------------

    async def _publish(self, dag: Dag) -> float | None:
        """Ends the members of a DAG that is to end, and writes its status; returns the seconds until the next look.

        A DAG whose members were not all made is final only once the server itself has none of them that goes on.
        """
        if _refusal(dag) == "DagInvalid":
            await self._write(dag, *self._invalid(dag))
            return AGAIN_SECONDS
        stopping = _stopping(dag)
        states = await self._maker.states(dag, stopped=bool(stopping))
        phase = dag_phase(dag.spec.members, states, cancelled=dag.spec.cancel is not None)
        phase = FAILED if phase in FINAL and _refusal(dag) else phase
        if stopping:
            members = list(self._index.members(dag.metadata.uid).values())
            if phase in FINAL and not dag.status.complete:
                members = await self._maker.listed(dag)
            if await self._maker.cancel(members, stopping):
                phase = RUNNING
        await self._write(dag, *self._shown(dag, states, phase))
        return statuses.RESYNC_SECONDS if dag.status.complete or phase in FINAL else AGAIN_SECONDS

    def _now(self) -> str:
        """Returns the present time as RFC 3339."""
        return format_time(self._clock.now())

    def _invalid(self, dag: Dag) -> tuple[dict[str, Any], tuple[Condition, ...]]:
        """Returns what the status says of a DAG that is no graph, and of which nothing was made."""
        made = condition(dag.status.conditions, MADE)
        message = made.message if made is not None else ""
        counts = Counts(total=len(dag.spec.members), cancelled=len(dag.spec.members))
        fields = {"observedGeneration": dag.metadata.generation, "phase": FAILED, "counts": _numbers(counts), "endTime": self._now()}
        return fields, _ended(dag, FAILED, "DagInvalid", message, self._now())

    def _shown(self, dag: Dag, states: Mapping[str, MemberState], phase: str) -> tuple[dict[str, Any], tuple[Condition, ...]]:
        """Returns the fields and the conditions of the status of a DAG whose members stand so."""
        ordered = [states[member.name] for member in dag.spec.members]
        counts = count_members(ordered)
        outlook = foresee(dag.spec.members, states, self._timing(dag), self._clock.now())
        fields: dict[str, Any] = {
            "observedGeneration": dag.metadata.generation,
            "phase": phase,
            "counts": _numbers(counts),
            "members": [msgspec.to_builtins(state) for state in ordered],
            "criticalPath": list(outlook.path),
        }
        if phase in FINAL:
            fields |= {"endTime": max((state.end_time or "" for state in ordered), default="") or self._now(), "expectedEnd": None}
            return fields, _ended(dag, phase, *_end_sentence(dag, states, phase, counts), self._now())
        fields["expectedEnd"] = _moved(dag.status.expected_end, outlook.end if not dag.spec.hold else None)
        reason, message = _progress(dag, counts)
        return fields, _going(dag.status.conditions, dag, reason, message, self._now())

    def _timing(self, dag: Dag) -> MemberTimes:
        """Returns the walltimes of a DAG's members, and the expected starts of those that have one."""
        live = self._index.members(dag.metadata.uid)
        seconds: dict[str, float | None] = {}
        starts: dict[str, float] = {}
        for member in dag.spec.members:
            one = live.get(member.name)
            lifecycle = one.spec.lifecycle if one is not None else None
            text = lifecycle.walltime if lifecycle is not None else self._walltime(dag, member.spec)
            bounded = lifecycle is None or lifecycle.type == "Bounded"
            try:
                seconds[member.name] = parse_duration(text) if text and bounded else None
            except Rejected:
                seconds[member.name] = None
            expected = one.status.expected_start if one is not None else None
            if expected is not None and expected.p50:
                starts[member.name] = parse_time(expected.p50)
        return MemberTimes(seconds, starts)

    def _walltime(self, dag: Dag, spec: Mapping[str, Any]) -> str:
        """Returns the walltime of a member that has no Allocation: its own, the defaults', its vcluster's; empty: none."""
        for one in (spec, dag.spec.defaults):
            text = part(one, "lifecycle").get("walltime")
            if isinstance(text, str):
                return text
        vcluster = self._vclusters.get(str(spec.get("vcluster") or dag.spec.defaults.get("vcluster") or ""))
        return (vcluster.spec.defaults.walltime or "") if vcluster is not None else ""


def _numbers(counts: Counts) -> dict[str, int]:
    """Returns counts with those that are 0, which a merge patch would else leave as they were."""
    return msgspec.structs.asdict(counts)


def _refusal(dag: Dag) -> str | None:
    """Returns the reason why members of a DAG could not be made; None: none was refused."""
    made = condition(dag.status.conditions, MADE)
    return made.reason if made is not None and made.status == FALSE and made.reason in REFUSED else None


def _stopping(dag: Dag) -> str:
    """Returns the reason with which the members of a DAG are cancelled; empty: they are not."""
    refused = condition(dag.status.conditions, MADE)
    if _refusal(dag) is not None and refused is not None:
        return f"{refused.reason}: {refused.message}"[:500]
    if dag.spec.cancel is not None:
        return dag.spec.cancel.reason or f'DAG "{dag.metadata.name}" was cancelled'
    return ""


def _progress(dag: Dag, counts: Counts) -> tuple[str, str]:
    """Returns the reason and the sentence of a DAG that goes on."""
    total = counts.total
    ended = counts.completed + counts.failed + counts.cancelled + counts.skipped
    numbers = f"{ended} of {total} members have ended, {counts.running} run, {counts.pending} wait"
    if _stopping(dag):
        return "Cancelling", numbers
    if not dag.status.complete:
        return "Making", f"{dag.status.made} of {total} members are made; none starts before all are"
    return ("Held", f"spec.hold is set: no member starts; {numbers}") if dag.spec.hold else ("MembersRunning", numbers)


def _end_sentence(dag: Dag, states: Mapping[str, MemberState], phase: str, counts: Counts) -> tuple[str, str]:
    """Returns the reason and the sentence of a DAG that has ended."""
    numbers = f"{counts.completed} completed, {counts.failed} failed, {counts.cancelled} cancelled, {counts.skipped} skipped"
    refused = condition(dag.status.conditions, MADE)
    if _refusal(dag) is not None and refused is not None:
        return refused.reason, refused.message
    if phase == FAILED:
        names = uncaught(dag.spec.members, states)
        named = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        return "MemberFailed", f"{named} failed, and nothing caught that: {numbers}"
    return (COMPLETED, numbers) if phase == COMPLETED else (CANCELLED, numbers)


def _going(conditions: tuple[Condition, ...], dag: Dag, reason: str, message: str, now: str) -> tuple[Condition, ...]:
    """Returns the conditions of a DAG that goes on: Reconciling, and not Ready."""
    generation = dag.metadata.generation
    kept = without_conditions(conditions, [STALLED])
    kept = with_condition(kept, READY, FALSE, reason, message, generation=generation, now=now)
    return with_condition(kept, RECONCILING, TRUE, reason, message, generation=generation, now=now)


def _ended(dag: Dag, phase: str, reason: str, message: str, now: str) -> tuple[Condition, ...]:
    """Returns the conditions of a DAG that has ended: Ready where it completed, else Stalled."""
    generation = dag.metadata.generation
    base = without_conditions(dag.status.conditions, DERIVED - {READY})
    base = with_condition(base, FINISHED, TRUE, reason, message, generation=generation, now=now)
    ready = TRUE if phase == COMPLETED else FALSE
    base = with_condition(base, READY, ready, reason, message, generation=generation, now=now)
    return base if phase == COMPLETED else with_condition(base, STALLED, TRUE, reason, message, generation=generation, now=now)


def _moved(shown: str | None, end: float | None) -> str | None:
    """Returns the expected end to show: the one that stands while it is less than a minute off."""
    if end is None:
        return None
    if shown and abs(parse_time(shown) - end) < MOVED_SECONDS:
        return shown
    return format_time(end)
