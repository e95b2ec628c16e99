"""Replays a trace through the production cycle over a virtual clock: what Lattice itself would have done with it.

Every decision is `lattice.scheduling.cycle.cycle.decide` on a `ClusterState`, as in the scheduler; only the world is played: jobs
are submitted when the trace says so, start at the instant of their placement, end after their recorded run or at their walltime,
and jobs that their user cancelled leave the queue. At each instant all ends come first, then cancellations, then submissions, then
a cycle of each vcluster that has pending work, in order of their names, and where there are several a second one of each, which
sees what the others left. No cycle is left out, also where nothing is free: reservations live from cycle to cycle, and the start of
one is an instant of its own. Nothing takes time to start or to end here, so the cycle plans with none for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from typing import Final

from lattice.errors import Rejected
from lattice.replay.jobs import Log, TraceJob
from lattice.replay.measures import Ran, Replayed
from lattice.scheduling.cluster.eligibility import census_of
from lattice.scheduling.cluster.node_cache import NEVER, NodeCache
from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.cycle.ranges import asks_for_more, extended
from lattice.scheduling.model.hardware import Need, NodeFacts
from lattice.scheduling.model.outcomes import Placed, Waiting
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.priority.cost import gpu_hours
from lattice.scheduling.priority.scoring import Scoring
from lattice.scheduling.priority.shares import Run, Shares, Terms
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.units import expand_nodes
from lattice.views.ledger import TenantAccount

STEP: Final = 256
"""How many submissions lie between two reports of progress."""
_END, _CANCEL, _SUBMIT, _WAKE = range(4)
_NO_TERMS: Final = Terms()


@dataclass(frozen=True)
class Setting:
    """The site of a replay: its nodes, and the policy of each vcluster."""

    nodes: Sequence[NodeFacts]
    policies: Mapping[str, Policy]


@dataclass(slots=True)
class _SubmittedJob:
    """One job that was submitted; `nodes`: the indices that it holds or held, empty while it waits."""

    job: TraceJob
    candidate: Candidate
    nodes: tuple[int, ...] = ()
    ended: bool = False


@dataclass
class Timing:
    """The durations of the cycles of a replay in seconds, by the caller's clock; no part of a report, which must be equal byte for byte."""

    clock: Callable[[], float]
    seconds: list[float] = field(default_factory=list)


def fit(log: Log, nodes: Iterable[NodeFacts]) -> Log:
    """Returns the log without the jobs that the machine could never hold, which are counted by rule; the given one stays as it is.

    Raises Rejected (`BadTrace`) when none is left.
    """
    node_cache = machine_of(nodes)
    kept = Log(
        log.format, total=log.total, left=log.left.copy(), changed=log.changed.copy(), inventory=log.inventory, tenants=log.tenants,
        vclusters=log.vclusters, missing=log.missing,
    )  # fmt: skip
    needs: dict[Need, int] = {}
    for job in log.jobs:
        need = need_of(job, node_cache)
        if need is None:
            kept.left.note("that name nodes which the machine does not have", job.line)
            continue
        if need not in needs:
            needs[need] = census_of(node_cache, need).eligible
        if not needs[need]:
            kept.left.note("that ask for hardware which no node has: --nodes takes an inventory that says it", job.line)
            continue
        if job.nodes > needs[need]:
            kept.left.note("of more nodes than the machine has for them", job.line)
            continue
        kept.jobs.append(job)
    return kept.settle()


def machine_of(nodes: Iterable[NodeFacts]) -> NodeCache:
    """Returns a node cache of these nodes, all free."""
    node_cache = NodeCache()
    for facts in nodes:
        node_cache.put(facts)
    return node_cache


def need_of(job: TraceJob, node_cache: NodeCache) -> Need | None:
    """Returns what each node of a job must offer, with node lists as bit sets; None where `only` names a node that the machine lacks.

    Unknown names in `without` are ignored.
    """
    if not job.only and not job.without:
        return job.need
    masks: list[int] = []
    for text in (job.only, job.without):
        mask = 0
        for name in expand_nodes(text):
            index = node_cache.by_name.get(name)
            if index is None and text is job.only:
                return None
            mask |= 0 if index is None else 1 << index
        masks.append(mask)
    return replace(job.need, only=masks[0] if job.only else None, without=masks[1])


def replay(log: Log, setting: Setting, progress: Callable[[int], None] = lambda _submitted: None, timing: Timing | None = None) -> Replayed:
    """Replays the whole trace and returns what happened; `progress` is called now and then with the number of jobs submitted.

    Raises Rejected for a log without jobs; `timing` gets each cycle's seconds.
    """
    world = World(log, setting, timing)
    at = 0
    while world.advance():
        if world.submitted - at >= STEP:
            at = world.submitted
            progress(at)
    return world.finish()


class World:
    """The machine and its queues during a replay; `advance` plays one instant after the other.

    `state`: the cluster state that cycles read. `done`: the result so far. `submitted`: how many jobs have been submitted.
    """

    def __init__(self, log: Log, setting: Setting, timing: Timing | None = None) -> None:
        if not log.jobs:
            raise Rejected("no job to replay", reason="BadTrace")
        self._jobs = log.jobs
        self._timing = timing
        self._events: list[tuple[float, int, int]] = []
        """A heap of (time, kind, number of the job)."""
        self._work: dict[str, _SubmittedJob] = {}
        self._pending: dict[str, dict[str, Candidate]] = {}
        """The waiting candidates by vcluster and id, in order of submission."""
        self._wakes: set[float] = set()
        self._placed: list[Placed] = []
        """The placements of this instant, in order."""
        self._reserved: dict[str, float] = {}
        """By job: the latest start that its reservation promises."""
        self._starts: dict[str, float] = {}
        """By vcluster: the next start of a reservation."""
        self._place: dict[str, int] = {}
        """By job that started: its place in `done.ran`."""
        self._needs: dict[Need, Need] = {}
        self._gpus = {facts.index: facts.gpus for facts in setting.nodes}
        self._running_gpu_hours = 0.0
        self.submitted = 0
        self.done = Replayed(setting.nodes)
        self._shares = Shares()
        self._shares.agree(_terms(log))
        self._accounts = {name: _account(log, name) for name in sorted({job.tenant for job in log.jobs})}
        self._scoring = Scoring(shares=self._shares, policies=setting.policies)
        self.state = ClusterState(
            node_cache=machine_of(setting.nodes),
            accounts=self._accounts,
            policies=dict(setting.policies),
            scorings=dict.fromkeys(setting.policies, self._scoring),
            overrun_seconds=0.0,
            start_allowance=0.0,
        )

    def advance(self) -> bool:
        """Plays the next instant with an event: ends, cancellations, submissions, then cycles, at which placed jobs start; returns False,
        and plays nothing, when no event is left.
        """
        now = min(self._instants(), default=None)
        if now is None:
            return False
        while self._events and self._events[0][0] <= now:
            _, kind, number = heappop(self._events)
            if kind == _END:
                self._end(self._work[self._jobs[number].id], now)
            elif kind == _CANCEL:
                self._cancel(self._work[self._jobs[number].id], now)
            else:
                self._wakes.discard(now)
        while self.submitted < len(self._jobs) and self._jobs[self.submitted].submit == now:
            self._submit(self.submitted, now)
            self.submitted += 1
        seen: dict[str, tuple[int, int]] = {}
        self._placed.clear()
        for _ in range(2 if len(self._pending) > 1 else 1):
            for vcluster in sorted(self._pending):
                if seen.get(vcluster) != self.state.given_away():
                    self._cycle(vcluster, now)
                    seen[vcluster] = self.state.given_away()
        self._launch(now)
        return True

    def _instants(self) -> Iterator[float]:
        """Yields the time of the next event of each kind."""
        if self._events:
            yield self._events[0][0]
        if self.submitted < len(self._jobs):
            yield self._jobs[self.submitted].submit
        yield from self._starts.values()

    def finish(self) -> Replayed:
        """Returns the result, jobs in order of their starts; a job that still waits never starts, and gets the reason of a last cycle.

        Call it once, at the end.
        """
        for vcluster in sorted(self._pending):
            now = max((each.end for each in self.done.ran), default=self._jobs[-1].submit)
            for outcome in list(decide(self.state, vcluster, list(self._pending[vcluster].values()), now)):
                if isinstance(outcome, Waiting):
                    self.done.stuck.append((self._work[outcome.candidate.uid].job, outcome.reason, outcome.message))
        self.done.ran.sort(key=lambda each: (each.start, each.job.submit, each.job.line, each.job.id))
        return self.done

    # Events

    def _submit(self, number: int, now: float) -> None:
        """Adds a job to the pending work of its vcluster, with an event for its withdrawal where it has one."""
        job = self._jobs[number]
        need = need_of(job, self.state.node_cache) or job.need
        candidate = Candidate(
            key=f"{number:09d}", uid=job.id, tenant=job.tenant, vcluster=job.vcluster, preemption_class=job.preemption_class,
            submitted=job.submit, minimum=job.nodes, maximum=max(job.nodes, job.most), need=self._needs.setdefault(need, need),
            user=job.user, walltime=job.walltime, grace=job.grace, topology=job.topology, conformance=job.conformance,
            checkpointable=job.checkpointable, preemptible=job.preemptible, sensitive=job.sensitive, name=job.name,
        )  # fmt: skip
        self._work[job.id] = _SubmittedJob(job, candidate)
        self._pending.setdefault(job.vcluster, {})[job.id] = candidate
        if job.withdrawn is not None:
            heappush(self._events, (max(now, job.withdrawn), _CANCEL, number))

    def _cancel(self, work: _SubmittedJob, now: float) -> None:
        """Cancels a job for its user: one that runs ends now, one that waits counts as withdrawn; nothing happens where it has ended."""
        if work.ended:
            return
        if work.nodes:
            self._end(work, now)
            return
        self._leave_queue(work.candidate)
        work.ended = True
        self.done.withdrawn.append(work.job)

    def _end(self, work: _SubmittedJob, now: float) -> None:
        """Ends a job that holds nodes, frees these and counts its usage; a job that has ended is ignored.

        Where the end is not the one foreseen, it is corrected in the result, not as killed.
        """
        if work.ended:
            return
        work.ended = True
        job = work.job
        self.state.drop_holder(job.id)
        self._count(work, -1)
        self._shares.end(job.id, now)
        ran = self.done.ran[self._place[job.id]]
        if ran.end != now:
            self.done.ran[self._place[job.id]] = replace(ran, end=now, killed=False)

    # Cycles

    def _cycle(self, vcluster: str, now: float) -> None:
        """Runs one cycle of a vcluster on its pending work and notes what was placed and when others are to be looked at again; nothing
        where nothing is pending.
        """
        pending = self._pending.get(vcluster)
        if not pending:
            return
        self._scoring.running_gpu_hours = self._running_gpu_hours
        began = self._timing.clock() if self._timing is not None else 0.0
        outcomes = list(decide(self.state, vcluster, list(pending.values()), now, explain=False))
        if self._timing is not None:
            self._timing.seconds.append(self._timing.clock() - began)
        self.done.cycles += 1
        self.done.decided += len(outcomes)
        self._follow(vcluster, now)
        for outcome in outcomes:
            if isinstance(outcome, Placed):
                self._placed.append(outcome)
                self._leave_queue(outcome.candidate)
            elif outcome.wake is not None and outcome.wake > now and outcome.wake not in self._wakes:
                self._wakes.add(outcome.wake)
                heappush(self._events, (outcome.wake, _WAKE, -1))

    def _follow(self, vcluster: str, now: float) -> None:
        """Counts the given, moved and lost reservations of a vcluster's cycle, and notes when the next one starts."""
        tally, reservations = self.done.reservations, self.state.backfill_reservations.get(vcluster, {})
        for move in self.state.moves.get(vcluster, ()):
            tally.moved[move.cause] = tally.moved.get(move.cause, 0) + 1
            if move.after is None:
                tally.lost += 1
                self._reserved.pop(move.uid, None)
        for uid, reservation in reservations.items():
            tally.given += uid not in self._reserved
            self._reserved[uid] = reservation.start
        self._starts[vcluster] = min([reservation.start for reservation in reservations.values() if reservation.start > now], default=NEVER)
        if self._starts[vcluster] == NEVER:
            del self._starts[vcluster]

    def _launch(self, now: float) -> None:
        """Gives more nodes to placed ranges where no other work could use them, then starts the jobs placed at this instant."""
        ranges = [placed.candidate for placed in self._placed if asks_for_more(placed)]
        self.state.set_waiting(self._pending)
        more = {one.candidate.uid: one.nodes for one in extended(self.state, ranges, now)} if ranges else {}
        for placed in self._placed:
            placed.nodes = more.get(placed.candidate.uid, placed.nodes)
            self._start(placed, now)
        self._placed.clear()

    def _start(self, placed: Placed, now: float) -> None:
        """Starts a placed job: confirms its claim in the cluster state, as the ledger would, counts it, and schedules its end from the
        trace, at its walltime at the latest.
        """
        candidate = placed.candidate
        work = self._work[candidate.uid]
        job = work.job
        work.nodes = placed.nodes
        self.done.reservations.late += now > self._reserved.pop(candidate.uid, now)
        self.state.put_holder(self.state.holders[candidate.uid])
        self._count(work, 1)
        self._shares.see(self._run(work, now))
        killed = job.walltime is not None and job.run > job.walltime
        end = now + (job.walltime if killed and job.walltime is not None else job.run)
        self._place[job.id] = len(self.done.ran)
        self.done.ran.append(Ran(job, now, end, placed.nodes, placed.backfilled, killed))
        heappush(self._events, (end, _END, int(candidate.key)))

    def _leave_queue(self, candidate: Candidate) -> None:
        """Removes a candidate from its vcluster's pending work, and what is kept for the vcluster with its last one."""
        pending = self._pending[candidate.vcluster]
        del pending[candidate.uid]
        if not pending:
            del self._pending[candidate.vcluster]
            self._starts.pop(candidate.vcluster, None)
            self._scoring.drop_vcluster(candidate.vcluster)

    # Counters

    def _run(self, work: _SubmittedJob, start: float) -> Run:
        """Returns a job's run with the GPUs of its nodes, from this start on."""
        gpus = sum(self._gpus[node] for node in work.nodes)
        return Run(work.job.id, work.job.tenant, work.job.user, len(work.nodes), gpus, start)

    def _count(self, work: _SubmittedJob, sign: int) -> None:
        """Adds a job that starts (`sign` +1) to the account of its tenant and to the running GPU-hours, or subtracts one that ends (−1)."""
        job, count = work.job, len(work.nodes)
        account = self._accounts[job.tenant]
        self._accounts[job.tenant] = TenantAccount(
            account.max_nodes, account.used_nodes + sign * count, account.max_allocations, account.used_allocations + sign
        )
        hours = gpu_hours(count, self._gpus[work.nodes[0]], job.walltime)
        self._running_gpu_hours = max(0.0, self._running_gpu_hours + sign * hours)

    def validate(self) -> None:
        """Checks that the cluster state and the shares equal what is computed from scratch; raises Corrupt on a difference."""
        self.state.validate()
        self._shares.validate()


def _terms(log: Log) -> dict[str, Terms]:
    """Returns the terms of all tenants with jobs; those that the log does not name have none."""
    tenants = sorted({job.tenant for job in log.jobs})
    return {name: Terms(target=log.tenants[name].share) if name in log.tenants else _NO_TERMS for name in tenants}


def _account(log: Log, tenant: str) -> TenantAccount:
    """Returns a tenant's account without use; unlimited where the log does not name the tenant."""
    terms = log.tenants.get(tenant)
    return TenantAccount() if terms is None else TenantAccount(terms.max_nodes, 0, terms.max_allocations, 0)
