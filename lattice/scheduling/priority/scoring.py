"""Scores all pending work of a vcluster at once, from columns of which only waiting times, shares and capacities change.

The static part of a candidate's score is computed once and kept; a cycle reads each tenant, each user and each (need, nodes) once,
and each candidate costs one logarithm. Weights are read at the beginning of a call: a change counts from the next cycle.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import repeat
from math import log1p
from typing import Any, Final, NamedTuple, overload

from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.model.hardware import Need
from lattice.scheduling.model.outcomes import Score
from lattice.scheduling.model.policy import BALANCED, Policy, Weights
from lattice.scheduling.model.strategies import lenders_for
from lattice.scheduling.model.work import Candidate, NodeHolder
from lattice.scheduling.priority import cost
from lattice.scheduling.priority.capacities import Capacities, Capacity, Homes
from lattice.scheduling.priority.shares import Shares, Standing

Person = tuple[str, str, str]
"""Tenant, user and project: the key of the budgets that apply."""

EMPTIED: Final = 60.0
"""Seconds without a cycle after which a vcluster counts as empty in the backlog."""
_DATA: Final = cost.data_readiness()


class _Entry(NamedTuple):
    """The static part of one candidate's score; `person` and `shape` are places in the lists of `_ScoredQueue`."""

    candidate: Candidate
    static: float
    submitted: float
    person: int
    shape: int
    gpu_hours: float
    priority: float
    checkpoint: float


@dataclass
class _AskedSizes:
    """The needs and sizes that pending work of one vcluster asks for, numbered as they come, and f4 and f9 of each.

    `needs`: the place of each need. `shapes`: the number of each pair of a need's place and a number of nodes.
    """

    needs: dict[Need, int] = field(default_factory=dict)
    shapes: dict[tuple[int, int], int] = field(default_factory=dict)
    _fitness: list[tuple[float, float]] = field(default_factory=list)
    _capacities: list[Capacity] = field(default_factory=list)

    def number(self, need: Need, nodes: int) -> int:
        """Returns the number of a need and size, a new one at the first call."""
        place = self.needs.setdefault(need, len(self.needs))
        return self.shapes.setdefault((place, nodes), len(self.shapes))

    def fitness(self, capacities: list[Capacity]) -> Sequence[tuple[float, float]]:
        """Returns (f4, f9) of each need and size, given the capacity of each need; kept until a capacity changes."""
        needs = list(self.needs)
        if capacities != self._capacities or len(self._fitness) != len(self.shapes):
            self._capacities = capacities
            self._fitness = [capacities[need].terms(needs[need], nodes) for need, nodes in self.shapes]
        return self._fitness


@dataclass
class _ScoredQueue:
    """The candidates of one vcluster, with the persons (tenant, user, project), and the needs and sizes, that they share."""

    vcluster: str
    weights: Weights
    candidates: list[Candidate] = field(default_factory=list)
    entries: list[_Entry] = field(default_factory=list)
    """Of the candidates, once they are settled."""
    queued_gpu_hours: float = 0.0
    waiting: frozenset[tuple[str, str]] = frozenset()
    """The (tenant, user) of each candidate."""
    seen: float = 0.0
    """When the vcluster was last scored, seconds since the epoch; without pending work it is not scored again."""
    people: dict[Person, int] = field(default_factory=dict)
    sizes: _AskedSizes = field(default_factory=_AskedSizes)
    _known: dict[str, _Entry] = field(default_factory=dict)
    _settled: bool = True

    def replace(self, candidates: list[Candidate]) -> None:
        """Replaces the candidates; their entries are made later, by `settle`."""
        if self.candidates != candidates:
            self.candidates = candidates
            self._settled = False

    def settle(self) -> _ScoredQueue:
        """Makes the entries of the candidates, where they are not made yet, and keeps those of candidates that stay; returns itself."""
        if self._settled:
            return self
        self._settled = True
        known = self._known
        self.entries = [
            entry if (entry := known.get(candidate.uid)) is not None and entry.candidate is candidate else self._enter(candidate)
            for candidate in self.candidates
        ]
        self.queued_gpu_hours = sum(entry.gpu_hours for entry in self.entries)
        people = list(self.people)
        self.waiting = frozenset(people[person][:2] for person in {entry.person for entry in self.entries})
        return self

    @property
    def crowded(self) -> bool:
        """Tells whether most kept entries belong to candidates that are gone."""
        return len(self._known) > 2 * len(self.candidates) + 8

    def _enter(self, candidate: Candidate) -> _Entry:
        """Makes the entry of a candidate and keeps it by uid; gives numbers to its person, need and size if these are new."""
        weights = self.weights
        priority, checkpoint = cost.priority(candidate.preemption_class), checkpoint_term(candidate)
        entry = self._known[candidate.uid] = _Entry(
            candidate=candidate,
            static=weights.priority * priority + weights.data_readiness * _DATA + weights.checkpoint * checkpoint,
            submitted=candidate.submitted,
            person=self.people.setdefault((candidate.tenant, candidate.user, candidate.project), len(self.people)),
            shape=self.sizes.number(candidate.need, candidate.minimum),
            gpu_hours=cost.gpu_hours(candidate.minimum, candidate.need.gpus, candidate.walltime),
            priority=priority,
            checkpoint=checkpoint,
        )
        return entry


@dataclass(frozen=True, slots=True)
class _Terms:
    """The values of one scoring call that candidates share, from which the terms of one score are computed when somebody asks.

    `shapes`: (f4, f9) of each need and size.
    """

    now: float
    reference: float
    span: float
    """ln(1 + 7 d ÷ reference): the logarithm of the wait at which f2 reaches 1."""
    standings: Mapping[str, Standing]
    usages: Sequence[float]
    """For each person: his share of all decayed node-hours."""
    with_work: Mapping[str, Collection[str]]
    """By tenant: the users who hold nodes, or held some in the last seven days."""
    fair_shares: Sequence[float]
    """f3 of each person."""
    multipliers: Sequence[float]
    """The budget multiplier of each person."""
    shapes: Sequence[tuple[float, float]]
    backlog: float
    energy: float

    def terms_of(self, entry: _Entry) -> tuple[tuple[float, ...], float]:
        """Returns the terms f1 to f9 and the budget multiplier of one candidate."""
        _, _, submitted, person, shape, _, priority, checkpoint = entry
        topology, conformance = self.shapes[shape]
        waited = self.now - submitted
        waiting = log1p(waited / self.reference) / self.span if waited > 0.0 else 0.0
        if waiting > 1.0:
            waiting = 1.0
        terms = (priority, waiting, self.fair_shares[person], topology, _DATA, self.backlog, self.energy, checkpoint, conformance)
        return terms, self.multipliers[person]


class Backlog(NamedTuple):
    """The GPU-hours that wait in one vcluster as of its last scoring (`seen`, seconds since the epoch); the queued part of f6."""

    vcluster: str
    gpu_hours: float
    seen: float
    waiting: frozenset[tuple[str, str]] = frozenset()
    """The (tenant, user) of the waiting work."""


class SharesRead(NamedTuple):
    """The answers of `Shares` that one scoring call used, kept for the recording of the cycle.

    `standings` by tenant; `usages`: for each of `people`, his share of all decayed node-hours.
    """

    standings: Mapping[str, Standing]
    people: Sequence[Person]
    usages: Sequence[float]
    with_work: Mapping[str, Collection[str]]
    """By tenant: the users who hold nodes, or held some in the last seven days."""
    multipliers: Mapping[Person, float]
    """The budget multiplier of each person for whom it differs from that of his tenant."""


NOTHING_READ: Final = SharesRead({}, (), (), {}, {})


class _Totals(NamedTuple):
    """The totals of the candidates, what they are made of, and their entries."""

    totals: list[float]
    terms: _Terms
    entries: Sequence[_Entry]


class Scores(Sequence[Score]):
    """The scores of one cycle's candidates in the given order, computed when the first is read.

    The first reading asks shares, backlog and capacities, so it must come before any of them changes.
    """

    def __init__(self, size: int, find: Callable[[], _Totals]) -> None:
        self._size = size
        self._find = find
        self._found: _Totals | None = None

    @property
    def totals(self) -> list[float]:
        """Returns the total score of each candidate, in the order in which they were given; the first reading of a total or a score
        computes them all.
        """
        return self._all().totals

    def _all(self) -> _Totals:
        """Returns all totals and what they are made of; the first call computes them."""
        if self._found is None:
            self._found = self._find()
        return self._found

    def __len__(self) -> int:
        return self._size

    def __iter__(self) -> Iterator[Score]:
        return self.ordered(range(self._size))

    def ordered(self, order: Sequence[int]) -> Iterator[Score]:
        """Yields the scores of the candidates at these places of the given order; computes all totals at once if none was read before."""
        totals, terms, entries = self._all()
        return map(Score, map(totals.__getitem__, order), repeat(()), repeat(1.0), repeat(terms), map(entries.__getitem__, order))

    @overload
    def __getitem__(self, at: int) -> Score: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Score]: ...
    def __getitem__(self, at: int | slice) -> Score | Sequence[Score]:
        if isinstance(at, slice):
            return [self[each] for each in range(*at.indices(len(self)))]
        totals, terms, entries = self._all()
        return Score(totals[at], (), 1.0, terms, entries[at])


@dataclass
class Scoring:
    """The cost function of all vclusters; the scheduling loop owns one and sets its fields before a cycle."""

    shares: Shares = field(default_factory=Shares)
    policies: Mapping[str, Policy] = field(default_factory=dict)
    reference_wait: float = cost.REFERENCE_WAIT
    """The reference of f2, seconds."""
    energy_price: float | None = None
    """The present price of electricity, scaled to [0, 1]; None: unknown."""
    running_gpu_hours: float = 0.0
    """GPU-hours of all holders of nodes as of the last call of `running`."""
    shares_read: SharesRead = NOTHING_READ
    """The answers of `shares` that the scores of the last call of `score` were made of, for the recording; none before one is read."""
    timed: Callable[[str], AbstractContextManager[object]] = nullcontext
    """Makes the context in which the totals of a vcluster are computed: the daemon measures the time there, since pure code asks no
    clock.
    """
    _columns: dict[str, _ScoredQueue] = field(default_factory=dict)
    _capacities: Capacities = field(default_factory=Capacities)

    def score(self, candidates: Sequence[Candidate], node_cache: NodeCache, now: float) -> Scores:
        """Returns the scores of the candidates, all of one vcluster, in the given order; counts them as its backlog, and drops from that
        the vclusters not scored for two of their intervals (60 s at least).

        They are computed when the first is read, which must be before nodes, shares or backlog change. `now`: seconds since the epoch.
        """
        vcluster = candidates[0].vcluster if candidates else ""
        policy = self.policies.get(vcluster)
        weights = policy.weights if policy is not None else BALANCED
        columns = self._current(vcluster, candidates, weights)
        columns.seen, self.shares_read = now, NOTHING_READ
        self._forget_emptied(now)
        return Scores(len(columns.candidates), lambda: self._found(columns, node_cache, now))

    def running(self, holders: Sequence[NodeHolder], node_cache: NodeCache) -> None:
        """Sets `running_gpu_hours`, for f6, to the sum over all holders: walltime × nodes × GPUs of its first node (0 or unknown counts as
        1, unbounded work as 24 h).
        """
        hours = 0.0
        for holder in holders:
            first = node_cache.nodes.get(holder.nodes[0]) if holder.nodes else None
            hours += cost.gpu_hours(len(holder.nodes), first.gpus if first is not None else 0, holder.walltime)
        self.running_gpu_hours = hours

    def backlog(self) -> tuple[Backlog, ...]:
        """Returns the GPU-hours that wait in each vcluster, as of its last scoring or of `resume`; vclusters that `score` or
        `drop_vcluster` dropped as empty are left out.
        """
        return tuple(Backlog(name, one.queued_gpu_hours, one.seen, one.waiting) for name, one in self._settled().items())

    def resume(self, backlog: Sequence[Backlog]) -> None:
        """Sets the backlog of the vclusters named to what a recording, or an earlier scheduler, has noted; others keep theirs."""
        for vcluster, gpu_hours, seen, waiting in backlog:
            self._columns[vcluster] = _ScoredQueue(vcluster, BALANCED, queued_gpu_hours=gpu_hours, seen=seen, waiting=waiting)

    def validate(self, node_cache: NodeCache) -> None:
        """Counts the capacities and the running nodes of the shares again; raises Corrupt on a difference."""
        self._capacities.validate(node_cache)
        self.shares.validate()

    def drop_vcluster(self, vcluster: str) -> None:
        """Drops a vcluster from the backlog because no work waits in it any more."""
        self._columns.pop(vcluster, None)

    def _current(self, vcluster: str, candidates: Sequence[Candidate], weights: Weights) -> _ScoredQueue:
        """Returns the columns of a vcluster with these candidates in place of the former ones; new columns where the weights changed, or
        where most entries are of candidates that are gone.
        """
        columns = self._columns.get(vcluster)
        if columns is None or columns.weights != weights or columns.crowded:
            columns = self._columns[vcluster] = _ScoredQueue(vcluster, weights)
        columns.replace(list(candidates))
        return columns

    def _terms(self, columns: _ScoredQueue, node_cache: NodeCache, now: float) -> _Terms:
        """Gathers the values that the candidates of one vcluster share at `now`: standings, fair shares, multipliers, f4 and f9, backlog,
        energy.
        """
        homes = self._homes(columns.vcluster)
        capacities = [self._capacities.capacity(node_cache, need, homes) for need in columns.sizes.needs]
        queued = sum(each.queued_gpu_hours for each in self._settled().values())
        people = tuple(columns.people)
        tenants = {tenant for tenant, _, _ in people}
        standings = {tenant: self.shares.standing(tenant, now) for tenant in tenants}
        usages = [self.shares.usage_of_user(tenant, user, now) for tenant, user, _ in people]
        with_work = {tenant: frozenset(self.shares.with_work(tenant, now)) for tenant in tenants}
        users = self._users(with_work)
        return _Terms(
            now=now,
            reference=self.reference_wait,
            span=log1p(cost.SATURATION / self.reference_wait),
            standings=standings,
            usages=usages,
            with_work=with_work,
            fair_shares=[standings[one[0]].fair_share_of(usage, users[one[0]]) for one, usage in zip(people, usages, strict=True)],
            multipliers=[self.shares.multiplier_of(*person, now) for person in people],
            shapes=columns.sizes.fitness(capacities),
            backlog=cost.backlog(queued, self.running_gpu_hours),
            energy=cost.energy(self.energy_price),
        )

    def _users(self, with_work: Mapping[str, Collection[str]]) -> dict[str, int]:
        """Returns for each tenant how many users have work: those of `with_work`, and those whose work waits in any vcluster."""
        waiting = {pair for columns in self._settled().values() for pair in columns.waiting if pair[0] in with_work}
        counts = {tenant: len(users) for tenant, users in with_work.items()}
        for tenant, user in waiting:
            counts[tenant] += user not in with_work[tenant]
        return counts

    def _settled(self) -> dict[str, _ScoredQueue]:
        """Returns the columns of every vcluster, their entries made."""
        for columns in self._columns.values():
            columns.settle()
        return self._columns

    def _found(self, columns: _ScoredQueue, node_cache: NodeCache, now: float) -> _Totals:
        """Computes the totals of a vcluster's candidates at `now`, within the context that `timed` gives."""
        with self.timed(columns.vcluster) if columns.candidates else nullcontext():
            columns.settle()
            self._capacities.follow(node_cache)
            terms = self._terms(columns, node_cache, now)
            return _Totals(self._totals(columns, terms), terms, columns.entries)

    def _forget_emptied(self, now: float) -> None:
        """Drops vclusters that were not scored for two of their intervals, at least a minute: no work waits there."""
        for name, columns in list(self._columns.items()):
            policy = self.policies.get(name)
            if now - columns.seen > max(EMPTIED, 2 * policy.interval if policy is not None else 0.0):
                self.drop_vcluster(name)

    def _homes(self, vcluster: str) -> Homes:
        """Returns the vclusters on whose home nodes work of a vcluster may run: its own ("" for nodes without a home) and its lenders,
        whatever walltime these allow.
        """
        policy = self.policies.get(vcluster) or Policy(vcluster)
        return frozenset([vcluster if policy.home else "", *lenders_for(self.policies, vcluster, 0.0)])

    def _totals(self, columns: _ScoredQueue, terms: _Terms) -> list[float]:
        """Returns the total of each candidate: weighted terms times the budget multiplier; keeps the answers of the shares for the
        recording.
        """
        weights, now, reference = columns.weights, terms.now, terms.reference
        shapes = [weights.topology * topology + weights.conformance * conformance for topology, conformance in terms.shapes]
        factors, offsets = self._people(columns, terms)
        most = weights.wait_time
        per_log = most / terms.span
        totals = []
        for _, static, submitted, person, shape, _, _, _ in columns.entries:
            waited = now - submitted
            waiting = per_log * log1p(waited / reference) if waited > 0.0 else 0.0
            if waiting > most:
                waiting = most
            totals.append(factors[person] * (static + waiting + offsets[person] + shapes[shape]))
        return totals

    def _people(self, columns: _ScoredQueue, terms: _Terms) -> tuple[list[float], list[float]]:
        """Returns for each person the factor and the summand of his scores, and keeps the answers of the shares for the recording."""
        weights = columns.weights
        common = weights.backlog * terms.backlog + weights.energy * terms.energy
        people = tuple(columns.people)
        by_person = zip(people, terms.multipliers, strict=True)
        others = {one: by for one, by in by_person if by != terms.standings[one[0]].multiplier}
        self.shares_read = SharesRead(terms.standings, people, terms.usages, terms.with_work, others)
        return list(terms.multipliers), [weights.fair_share * fair + common for fair in terms.fair_shares]


def checkpoint_term(candidate: Candidate) -> float:
    """Returns f8 of a candidate, by the memory that it asks for on a node: that of its GPUs, else main memory, unknown where it names
    neither. 0 for work that is not preemptible or takes no checkpoint.
    """
    if not candidate.checkpointable or candidate.non_preemptible:
        return cost.checkpoint(None)
    need = candidate.need
    return cost.checkpoint(cost.checkpoint_minutes(need.gpus * need.gpu_memory or need.memory))


def shown(score: Score) -> dict[str, Any]:
    """Returns a score in the form of `status.score`: texts with three decimals."""
    return {"total": f"{score.total:.3f}", "terms": {f"f{number}": f"{value:.3f}" for number, value in enumerate(score.terms, start=1)}}
