"""Solves the placement exactly by OR-Tools: the best plan, and an upper bound by a linear program.

Cycles do not depend on it: `lattice plan --optimal` compares with it, the metric "distance from the bound" asks it off the hot path,
and tests build their oracles on its model. OR-Tools (extra `solver`) is loaded at the first question, takes about half a second and 90
MB, and is imported by this module alone. One worker, a fixed seed and a limit of deterministic time: equal questions have equal answers
on every machine.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

from lattice.errors import Corrupt, Rejected

SCALE: Final = 1_000_000
"""The model counts values in whole millionths."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Interchangeable free nodes: of one fingerprint (empty: unknown, equal to no other) in one topology group."""

    fingerprint: str
    group: str
    free: int


@dataclass(frozen=True, slots=True)
class Job:
    """One pending job in a placement problem; `eligible`: places of the buckets that it may use."""

    value: float
    """What a plan gains by placing it, at least 0."""
    nodes: int
    eligible: frozenset[int]
    groups: int | None = None
    """The most groups that its nodes may take; None: any number."""
    alike: bool = False
    """Whether all of its nodes must have one fingerprint."""


@dataclass(frozen=True, slots=True)
class Effort:
    """The limit of one question in the solver's deterministic seconds (close to those of a clock), and its seed."""

    seconds: float = 10.0
    seed: int = 1


@dataclass(frozen=True, slots=True)
class OptimalPlan:
    """The best plan found: for each job the nodes that it takes of each bucket, None for a job that is not placed."""

    counts: tuple[Mapping[int, int] | None, ...]
    value: float
    bound: float
    """An upper bound on the value of every plan; equals `value`, up to the scale, where `proven`."""
    proven: bool


def best_plan(jobs: Sequence[Job], buckets: Sequence[Bucket], effort: Effort | None = None) -> OptimalPlan:
    """Returns the plan of the highest value found within the effort; of equal ones that with the fewest groups, summed over the jobs.

    Where none was found, the plan places nothing and is not `proven`. `effort` None: the default. Raises Rejected without OR-Tools.
    """
    model = PlacementModel(jobs, buckets)
    model.supply([bucket.free for bucket in buckets])
    spans = [chosen for each in model.groups for chosen in each.values()]
    weight = len(spans) + 1
    values = [round(job.value * SCALE) for job in jobs]
    gain = sum(value * placed for value, placed in zip(values, model.placed, strict=True))
    model.cp.maximize(weight * gain - sum(spans))
    answer = model.solve(effort or Effort())
    if answer is None:
        return OptimalPlan((None,) * len(jobs), 0.0, sum(values) / SCALE, proven=False)
    counts = model.counts(answer)
    value = sum(job.value for job, count in zip(jobs, counts, strict=True) if count is not None)
    return OptimalPlan(counts, value, max(value, float(answer.best_objective_bound) / weight / SCALE), model.proven)


def installed() -> bool:
    """Tells whether OR-Tools is installed; loads nothing."""
    return find_spec("ortools") is not None


def upper_bound(jobs: Sequence[Job], buckets: Sequence[Bucket], effort: Effort | None = None) -> float:
    """Returns a value that no plan exceeds: the linear relaxation, buckets joined over groups, without jobs that fit nowhere alone.

    `effort` None: no limit; its seed has no part. Raises Rejected when a given effort was too small, or without OR-Tools, Corrupt where no
    effort was given and no solution found. Jobs that may use the same buckets share their nodes, so the size grows with the kinds of jobs,
    not with their number.
    """
    lp = _linear_solver()
    wanted = [(job, homes) for job in jobs if (homes := _homes(job, buckets))]
    sets = {eligible: number for number, eligible in enumerate(sorted({job.eligible for job, _ in wanted}, key=sorted))}
    cells: Counter[tuple[str, tuple[int, ...]]] = Counter()
    for number, bucket in enumerate(buckets):
        cells[bucket.fingerprint, tuple(place for eligible, place in sets.items() if number in eligible)] += bucket.free
    demand: defaultdict[tuple[int, str | None], list[Any]] = defaultdict(list)
    objective = lp.Objective()
    for job, homes in wanted:
        shares = [lp.NumVar(0.0, 1.0, "") for _ in homes]
        for home, share in zip(homes, shares, strict=True):
            objective.SetCoefficient(share, float(job.value))
            demand[sets[job.eligible], home].append(share * job.nodes)
        if len(shares) > 1:
            lp.Add(lp.Sum(shares) <= 1.0)
    _relaxed_flows(lp, demand, cells)
    objective.SetMaximization()
    if effort is not None:
        lp.SetSolverSpecificParametersAsString(f"max_deterministic_time: {effort.seconds}")
    if lp.Solve() != lp.OPTIMAL:
        if effort is not None:
            raise Rejected("the linear program came to no end within its effort; give it more deterministic time", reason="EffortSpent")
        raise Corrupt("the linear program of the upper bound was not solved", reason="NoBound")
    return float(objective.Value())


def _relaxed_flows(
    lp: Any, demand: Mapping[tuple[int, str | None], Sequence[Any]], cells: Mapping[tuple[str, tuple[int, ...]], int]
) -> None:
    """Adds the constraints that the nodes asked of each set of buckets (of one fingerprint, or of any) come out of the cells in
    that set.
    """
    out: defaultdict[tuple[str, tuple[int, ...]], list[Any]] = defaultdict(list)
    for (place, home), asked in demand.items():
        flows = []
        for cell in cells:
            if place in cell[1] and home in (None, cell[0]):
                flows.append(lp.NumVar(0.0, lp.infinity(), ""))
                out[cell].append(flows[-1])
        lp.Add(lp.Sum(flows) == lp.Sum(asked))
    for cell, taken in out.items():
        lp.Add(lp.Sum(taken) <= cells[cell])


def _homes(job: Job, buckets: Sequence[Bucket]) -> list[str | None]:
    """Returns the fingerprints in which a job fits alone, [None] where any mix will do; empty where it fits nowhere."""
    found: defaultdict[str | None, Counter[str]] = defaultdict(Counter)
    for number in job.eligible:
        bucket = buckets[number]
        if not job.alike or job.nodes == 1:
            found[None][bucket.group] += bucket.free
        elif bucket.fingerprint:
            found[bucket.fingerprint][bucket.group] += bucket.free
    fits = [home for home, groups in found.items() if sum(sorted(groups.values(), reverse=True)[: job.groups]) >= job.nodes]
    return sorted(fits, key=lambda home: home or "")


class PlacementModel:
    """The constraint model of a placement problem: which jobs are placed, and how many nodes each takes of each bucket."""

    def __init__(self, jobs: Sequence[Job], buckets: Sequence[Bucket]) -> None:
        self._cp_model = _cp_model()
        self.cp = self._cp_model.CpModel()
        self.proven = False
        self.placed: list[Any] = []
        self.groups: list[Mapping[str, Any]] = []
        self._taken: list[dict[int, Any]] = []
        for job in jobs:
            self._add(job, buckets)

    def _add(self, job: Job, buckets: Sequence[Bucket]) -> None:
        """Adds a job to the model: whether it is placed, its nodes of each bucket, and its limits on groups and fingerprints."""
        placed = self.cp.new_bool_var("")
        alike = job.alike and job.nodes > 1
        groups: defaultdict[str, Any] = defaultdict(lambda: self.cp.new_bool_var(""))
        prints: defaultdict[str, Any] = defaultdict(lambda: self.cp.new_bool_var(""))
        taken: dict[int, Any] = {}
        for number in sorted(job.eligible):
            bucket = buckets[number]
            most = min(bucket.free, job.nodes)
            if most <= 0 or (alike and not bucket.fingerprint):
                continue
            taken[number] = self.cp.new_int_var(0, most, "")
            self.cp.add(taken[number] <= most * groups[bucket.group])
            if alike:
                self.cp.add(taken[number] <= most * prints[bucket.fingerprint])
        self.cp.add(sum(taken.values()) == job.nodes * placed)
        if job.groups is not None:
            self.cp.add(sum(groups.values()) <= job.groups)
        if alike:
            self.cp.add(sum(prints.values()) <= 1)
        self.placed.append(placed)
        self.groups.append(groups)
        self._taken.append(taken)

    def supply(self, free: Sequence[Any]) -> None:
        """Adds the constraint that all jobs together take at most the free nodes of each bucket."""
        for number, most in enumerate(free):
            users = [taken[number] for taken in self._taken if number in taken]
            if users:
                self.cp.add(sum(users) <= most)

    def solve(self, effort: Effort) -> Any | None:
        """Solves the model and sets `proven`: no better plan exists, or none at all; returns the solver with its values, None where it
        found no plan within the effort.
        """
        solver = self._cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = effort.seed
        solver.parameters.max_deterministic_time = effort.seconds
        status = solver.solve(self.cp)
        self.proven = status in (self._cp_model.OPTIMAL, self._cp_model.INFEASIBLE)
        return solver if status in (self._cp_model.OPTIMAL, self._cp_model.FEASIBLE) else None

    def counts(self, answer: Any) -> tuple[Mapping[int, int] | None, ...]:
        """Returns for each job the nodes that it takes of each bucket; None for a job that is not placed."""
        return tuple(
            {number: int(answer.value(count)) for number, count in taken.items() if answer.value(count)} if answer.value(placed) else None
            for placed, taken in zip(self.placed, self._taken, strict=True)
        )


def _cp_model() -> Any:
    """Imports the constraint solver of OR-Tools; raises Rejected where it is not installed."""
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise _missing() from error
    return cp_model


def _linear_solver() -> Any:
    """Makes a solver for linear programs (GLOP); raises Rejected where OR-Tools is not installed."""
    try:
        from ortools.linear_solver import pywraplp
    except ImportError as error:
        raise _missing() from error
    return pywraplp.Solver.CreateSolver("GLOP")


def _missing() -> Rejected:
    """Makes the error that says how OR-Tools is installed."""
    return Rejected("this needs OR-Tools, which is not installed; `pip install 'lattice-hpc[solver]'` brings it", reason="SolverMissing")
