"""Oracles on the exact model: the fewest groups that a job fits in, and the cheapest joint preemption."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lattice.scheduling.optimum.solver import Bucket, Effort, Job, PlacementModel


@dataclass(frozen=True, slots=True)
class Evictable:
    """Running work that could go: its cost (an integer above 0) and what it frees, by place of the bucket."""

    cost: int
    frees: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Clearing:
    """The running work to end (places, ascending), its cost, and the nodes by bucket for each job."""

    chosen: tuple[int, ...]
    cost: int
    counts: tuple[Mapping[int, int], ...]
    proven: bool


def least_span(job: Job, buckets: Sequence[Bucket]) -> int | None:
    """The fewest groups in which the job fits; None if it does not fit."""
    model = PlacementModel([job], buckets)
    model.supply([bucket.free for bucket in buckets])
    model.cp.add(model.placed[0] == 1)
    model.cp.minimize(sum(model.groups[0].values()))
    answer = model.solve(Effort())
    if answer is None or not model.proven:
        _assert_proven(model)
        return None
    return round(float(answer.objective_value))


def cheapest_clearing(jobs: Sequence[Job], buckets: Sequence[Bucket], running: Sequence[Evictable], most: int) -> Clearing | None:
    """The cheapest set of at most `most` of the running work after which all jobs fit together, of equal ones the smallest;
    None if there is none."""
    could: Counter[int] = Counter({number: bucket.free for number, bucket in enumerate(buckets)})
    for each in running:
        could.update(each.frees)
    model = PlacementModel(jobs, [Bucket(bucket.fingerprint, bucket.group, could[number]) for number, bucket in enumerate(buckets)])
    gone = [model.cp.new_bool_var("") for _ in running]
    freed = [sum(each.frees.get(number, 0) * out for each, out in zip(running, gone, strict=True)) for number in range(len(buckets))]
    model.supply([bucket.free + more for bucket, more in zip(buckets, freed, strict=True)])
    for placed in model.placed:
        model.cp.add(placed == 1)
    model.cp.add(sum(gone) <= most)
    weight = len(running) + 1
    model.cp.minimize(sum((each.cost * weight + 1) * out for each, out in zip(running, gone, strict=True)))
    answer = model.solve(Effort())
    if answer is None:
        _assert_proven(model)
        return None
    chosen = tuple(number for number, out in enumerate(gone) if answer.value(out))
    counts = tuple(count or {} for count in model.counts(answer))
    return Clearing(chosen, sum(running[number].cost for number in chosen), counts, model.proven)


def _assert_proven(model: PlacementModel) -> None:
    """Asserts that the solver came to an end: there is no answer, and not only none found."""
    assert model.proven, "the solver came to no end within its effort"
