"""Measures how far the production decisions are from the optimum, on instances made from seeds and so reproducible.

One figure is the part of the LP bound's value that a greedy cycle places. Others are how long the exact choice of victims takes, and in how
many of the cases that it solves the book's greedy choice finds a legal set at all.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import median
from typing import Any, Final

import msgspec

from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.model.hardware import Need, NodeFacts
from lattice.scheduling.model.outcomes import Score
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.work import ANY, IGNORED, PREFERRED, REQUIRED, SPREAD, TIGHT, Candidate, NodeHolder
from lattice.scheduling.optimum.formulation import formulate, value_of
from lattice.scheduling.optimum.solver import upper_bound
from lattice.scheduling.preemption.domains import PreemptionDomain
from lattice.scheduling.preemption.victims import Preemption, PreemptionLimits, Victims, loss, preemption, protection
from lattice.scheduling.state.cluster_state import ClusterState, QueueScores, ScoreList
from lattice.views.ledger import TenantAccount
from lattice_dev.bench.figures import Aim, Figure, percentile

NOW: Final = 1_800_000_000.0
HOUR: Final = 3600.0
LEAST_SHARE: Final = Aim(0.90, at_least=True)
LONGEST_CHOICE: Final = Aim(50.0)
GIB = 1 << 30
HARDWARE: Final[tuple[dict[str, Any], ...]] = (
    {"cpus": 128, "memory": 512 * GIB, "gpus": 0, "gpu_type": "", "gpu_memory": 0},
    {"cpus": 288, "memory": 864 * GIB, "gpus": 4, "gpu_type": "GH200", "gpu_memory": 96 * GIB},
    {"cpus": 64, "memory": 512 * GIB, "gpus": 4, "gpu_type": "A100", "gpu_memory": 80 * GIB},
)
NEEDS: Final = (Need(), Need(), Need(gpus=1), Need(gpus=4), Need(gpus=4, gpu_type="GH200"), Need(gpus=4, gpu_type="A100"), Need(cpus=100))

Clock = Callable[[], float]
Say = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class OptimumProblem:
    """Nodes of which some are free, and candidates with their scores."""

    nodes: tuple[NodeFacts, ...]
    free: frozenset[int]
    candidates: tuple[Candidate, ...]
    scores: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Question:
    """A candidate that waits on a full machine, with the holders that might be preempted for it."""

    candidate: Candidate
    holders: tuple[NodeHolder, ...]
    nodes: dict[int, NodeFacts]

    @property
    def free(self) -> set[int]:
        """Returns the nodes that nobody holds."""
        return set(self.nodes) - {index for holder in self.holders for index in holder.nodes}


def machine_of(chance: random.Random, count: int) -> tuple[NodeFacts, ...]:
    """Returns nodes in groups of 64 to 128, each group of one hardware and at most two software versions."""
    nodes: list[NodeFacts] = []
    group = 0
    while len(nodes) < count:
        hardware, mixed = chance.choices(HARDWARE, (5, 3, 2))[0], chance.random() < 0.3
        for _ in range(min(count - len(nodes), chance.choice((64, 96, 128)))):
            index = len(nodes)
            version = f"{hardware['gpu_type'] or 'cpu'}-{chance.choice('ab') if mixed else 'a'}"
            place = NodeFacts(index, f"nid{index:05d}", f"g{group:03d}", 128, 512 * GIB, 0, frozenset(), False, True, "Ready")
            nodes.append(replace(place, fingerprint=version, **hardware))
        group += 1
    return tuple(nodes)


def instance(seed: int, pending: int, count: int) -> OptimumProblem:
    """Returns the problem of a seed: part of the machine is free, and up to four times as much is asked for by jobs of up to half of it."""
    chance = random.Random(seed)  # noqa: S311 (instances, not secrets)
    nodes = machine_of(chance, count)
    share = chance.uniform(0.2, 0.9)
    free = frozenset(facts.index for facts in nodes if chance.random() < share)
    spread = chance.uniform(0.8, 2.0)
    unit = chance.uniform(1.0, 4.0) * len(free) / pending / math.exp(spread**2 / 2)
    candidates, scores = [], []
    for number in range(pending):
        size = max(1, min(count // 2, round(unit * chance.lognormvariate(0.0, spread))))
        candidates.append(
            candidate(number, size, chance.choice(NEEDS), conformance=chance.choices((PREFERRED, REQUIRED, IGNORED), (6, 3, 1))[0])
        )
        scores.append(round(chance.betavariate(4, 4), 6))
    return OptimumProblem(nodes, free, tuple(candidates), tuple(scores))


def candidate(number: int, nodes: int, need: Need, **fields: Any) -> Candidate:
    """Returns a candidate that asks for so many nodes."""
    made = Candidate(f"bench/job-{number:05d}", f"job-{number:05d}", "bench", "batch", 9, NOW - 1.0, nodes, nodes, need, walltime=24 * HOUR)
    return replace(made, **fields)


class GivenScores:
    """A cost function that returns the problem's own scores."""

    def __init__(self, scores: dict[str, float]) -> None:
        self._scores = scores

    def score(self, candidates: Sequence[Candidate], node_cache: NodeCache, now: float) -> QueueScores:
        """Returns the scores given, by uid."""
        return ScoreList([Score(self._scores[each.uid]) for each in candidates])


def scene_of(asked: OptimumProblem) -> ClusterState:
    """Returns the problem as a cluster state, with a policy that makes no backfill reservations."""
    state = ClusterState(accounts={"bench": TenantAccount()}, policies={"batch": Policy("batch", depth=0)})
    state.scorings["batch"] = GivenScores({each.uid: score for each, score in zip(asked.candidates, asked.scores, strict=True)})
    for facts in asked.nodes:
        state.node_cache.put(facts if facts.index in asked.free else replace(facts, usable=False, state="Drained"))
    return state


def shares(seeds: Iterable[int], pending: int, count: int) -> Iterator[float]:
    """Yields the part of the LP bound that a cycle reaches, for each seed."""
    for seed in seeds:
        asked = instance(seed, pending, count)
        state = scene_of(asked)
        best = formulate(state.node_cache, asked.candidates, asked.scores)
        yield value_of(decide(state, "batch", asked.candidates, NOW)) / upper_bound(best.jobs, best.buckets)


def question(seed: int, count: int, running: int) -> Question:
    """Returns the published case of a seed: `running` allocations hold nearly all of `count` nodes, and one of class 9 waits."""
    chance = random.Random(seed)  # noqa: S311 (instances, not secrets)
    nodes = machine_of(chance, count)
    weights = [chance.lognormvariate(0.0, 1.2) for _ in range(running)]
    spare, holders, at = count - count // 200 - running, list[NodeHolder](), 0
    for number, reached in enumerate(accumulate(weights)):
        taken = tuple(range(at, number + 1 + round(spare * reached / sum(weights))))
        at += len(taken)
        started = NOW - chance.uniform(0, 24) * HOUR
        holders.append(
            msgspec.structs.replace(
                NodeHolder(f"run-{number:05d}", f"bench/run-{number:05d}", "bench", "bench", "batch", 0, taken, started),
                preemption_class=chance.choice((0, 1, 2, 3, 4, 5, 6, 8)),
                started=started,
                walltime=24 * HOUR,
                checkpointable=chance.random() < 0.7,
            )
        )
    wanted = candidate(
        seed,
        chance.choice((2, 4, 8, 16, 24, 32, 48)),
        chance.choice(NEEDS),
        topology=chance.choice((ANY, TIGHT, SPREAD)),
        conformance=chance.choice((PREFERRED, REQUIRED, IGNORED)),
    )
    return Question(wanted, tuple(holders), {facts.index: facts for facts in nodes})


def answer(asked: Question, clock: Clock) -> tuple[Preemption, float]:
    """Returns the production decision with hardly a limit of value, and the seconds by `clock` that it took."""
    free = asked.free
    eligible = {index for index, facts in asked.nodes.items() if asked.candidate.need.admits_node(facts)}
    limits = PreemptionLimits(shortest=1e6 * HOUR, longest=1e6 * HOUR)
    began = clock()
    found = preemption(asked.candidate, asked.holders, asked.nodes, eligible, free, {}, NOW, limits=limits)
    return found, clock() - began


def greedy_choice(asked: Question) -> list[NodeHolder] | None:
    """Returns the book's choice, the cheapest victims first until the candidate fits, at most three; None: it does not fit then."""
    limits = PreemptionLimits()
    eligible = {index for index, facts in asked.nodes.items() if asked.candidate.need.admits_node(facts)}
    legal = [
        each
        for each in asked.holders
        if eligible.intersection(each.nodes) and protection(asked.candidate, each, asked.nodes, {}, NOW, limits) is None
    ]
    chosen: list[NodeHolder] = []
    for each in sorted(legal, key=lambda each: (loss(each, asked.nodes, NOW).seconds, each.uid))[: limits.most_victims]:
        chosen.append(each)
        have = asked.free.union(*(gone.nodes for gone in chosen))
        if PreemptionDomain(asked.candidate, asked.nodes, eligible, have).fits():
            return chosen
    return None


def measure(*, quick: bool, say: Say = lambda _share: None, clock: Clock = time.process_time) -> list[Figure]:
    """Returns all figures; `quick` uses fewer seeds and smaller machines. Times are of the processor."""
    sizes = ((8, 100, 1000),) if quick else ((40, 100, 1000), (20, 1000, 10_000))
    found = []
    for done, (seeds, pending, count) in enumerate(sizes):
        found += _by_bound(range(seeds), pending, count, clock)
        say((done + 1) / (len(sizes) + 1))
    return [*found, *_preemption(range(20 if quick else 200), clock)]


def _by_bound(seeds: range, pending: int, count: int, clock: Clock) -> list[Figure]:
    """Returns the part of the LP bound that cycles place, and how long the LP takes."""
    size = f"{pending} pending × {count} nodes"
    reached = sorted(shares(seeds, pending, count))
    asked = instance(0, pending, count)
    best = formulate(scene_of(asked).node_cache, asked.candidates, asked.scores)
    began = clock()
    upper_bound(best.jobs, best.buckets)
    bound = (clock() - began) * 1000
    detail = f"{len(seeds)} seeds, the worst {reached[0]:.3f}"
    return [
        Figure(f"greedy by the LP bound, {size}, median", median(reached), "", LEAST_SHARE, detail=detail),
        Figure(f"LP bound, {size}", bound, "ms"),
    ]


def _preemption(seeds: range, clock: Clock) -> list[Figure]:
    """Returns the time of the decision at 2,000 nodes and 700 victims, and how often the book's greedy choice finds a set."""
    took, solved, greedy = list[float](), 0, 0
    for seed in seeds:
        asked = question(seed, 2000, 700)
        found, seconds = answer(asked, clock)
        took.append(seconds * 1000)
        if isinstance(found, Victims):
            solved += 1
            greedy += greedy_choice(asked) is not None
    detail = f"{len(seeds)} seeds, 2,000 nodes held by 700 allocations"
    parts = {"p50": percentile(took, 0.5), "slowest": max(took)}
    return [
        Figure("preemption decision, p99", percentile(took, 0.99), "ms", LONGEST_CHOICE, detail=detail, parts=parts),
        Figure("preemption: the book's greedy choice finds a set in", 100 * greedy / max(1, solved), "%", detail=f"of {solved} solvable"),
    ]
