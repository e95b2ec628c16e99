"""The terms of the cost function, f1 to f9, and the budget multiplier (book, "Scheduling Algorithm").

Every term is in [0, 1], and larger values start sooner. Score = m(u) · Σ wᵢ · fᵢ, with the weights of the vcluster's `Policy`. Where
the book leaves a formula open, the rows of `docs/decisions` hold; `docs/explanation/scoring.md` shows them with numbers.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from functools import cache
from itertools import accumulate
from math import cos, exp2, log1p, pi, sqrt
from typing import Final

TERMS: Final = (
    "priority", "wait time", "fair share", "topology", "data readiness", "backlog", "energy", "checkpoint", "conformance",
)  # fmt: skip
"""The names of f1 to f9, in the order of `policy.Weights`."""

REFERENCE_WAIT: Final = 3600.0
SATURATION: Final = 7 * 86400.0
"""Seconds of waiting after which f2 is 1."""
UNKNOWN: Final = 0.5
"""The value of a term without data: it favours nobody."""
UNBOUNDED_HOURS: Final = 24.0
"""Hours that work without a walltime counts in GPU-hours."""
CHECKPOINT_MINUTES: Final = 5.0
"""Minutes to a checkpoint of work whose memory is unknown: half of the checkpoint timeout."""
MOST_CHECKPOINT_MINUTES: Final = 10.0
"""The checkpoint timeout (book, "Preemption Policy")."""
CHECKPOINT_BYTES_PER_MINUTE: Final = 60 * 2.0**30
"""The rate at which one node writes a checkpoint until one was measured: 1 GiB/s."""
PENALTY_FROM, PENALTY_TO, LEAST_MULTIPLIER = 0.8, 1.2, 0.05


def clamp(value: float) -> float:
    """Returns `value`, or the nearer end of [0, 1] where it lies outside."""
    return 0.0 if value < 0.0 else min(value, 1.0)


def priority(preemption_class: int) -> float:
    """Returns f1: class ÷ 10 (book, "f₁: priority_class")."""
    return clamp(preemption_class / 10)


def wait_time(waited: float, reference: float = REFERENCE_WAIT) -> float:
    """Returns f2 of a wait in seconds: ln(1 + w/ref) ÷ ln(1 + 7 d/ref), 1 from seven days on, 0 for a negative wait; ref is `reference` in
    seconds (book, "f₂: wait_time_factor").
    """
    return clamp(log1p(max(0.0, waited) / reference) / log1p(SATURATION / reference))


def fair_share(target: float, usage: float) -> float:
    """Returns F, a factor of f3: 2^(−usage ÷ target), both as shares of all usage; 1 without usage, 0 for any usage at a target of 0."""
    if usage <= 0:
        return 1.0
    return exp2(-usage / target) if target > 0 else 0.0


def fair_share_of_both(of_tenant: float, of_user: float) -> float:
    """Returns f3: √(F of the tenant · F of the user) (decision "f3"; book, "f₃: fair_share_deficit")."""
    return sqrt(of_tenant * of_user)


def relative(value: float, best: float) -> float:
    """Returns a term's value divided by the best value that it could have, at most 1; 1 where the best value is 0."""
    return min(1.0, value / best) if best > 0 else 1.0


def topology(inter: float, intra: float, nodes: int) -> float:
    """Returns f4: α·inter + (1−α)·intra with α = 0.7, for a single node with α = 0 (book, "GPU Topology", "Integration with Cost
    Function").
    """
    alpha = 0.7 if nodes > 1 else 0.0
    return clamp(alpha * inter + (1 - alpha) * intra)


def inter_node(groups_needed: int, groups_available: int) -> float:
    """Returns the part of f4 between nodes: 1 − groups needed ÷ available ones; 0 without any (book, "f₄: topology_fitness")."""
    return clamp(1 - groups_needed / groups_available) if groups_available > 0 else 0.0


@cache
def intra_node(gpus: int, *, unified: bool) -> float:
    """Returns the part of f4 within a node: β·links + (1−β)·locality, with β = 0.7 for work with GPUs, else 0.3.

    `gpus`: asked for on each node; up to one has no links to lose. `unified`: CPU and GPU memory are one domain. Links and NUMA domains
    that no agent reports count as `UNKNOWN` (book, "Memory Topology", "Extending f₄").
    """
    beta = 0.7 if gpus else 0.3
    links = 1.0 if gpus <= 1 else UNKNOWN
    locality = 1.0 if unified else UNKNOWN
    return beta * links + (1 - beta) * locality


def data_readiness(on_hot_tier: float | None = None) -> float:
    """Returns f5: the share of the input that is on the hot tier, `UNKNOWN` where none is known (book, "f₅: data_readiness")."""
    return UNKNOWN if on_hot_tier is None else clamp(on_hot_tier)


def backlog(queued_gpu_hours: float, running_gpu_hours: float) -> float:
    """Returns f6: queued ÷ running GPU-hours of the whole system, at most 1; 0 when nothing runs (book, "f₆: backlog_pressure")."""
    return clamp(queued_gpu_hours / running_gpu_hours) if running_gpu_hours > 0 else 0.0


def gpu_hours(nodes: int, gpus: int, walltime: float | None) -> float:
    """Returns the GPU-hours of work; `gpus` of each node, where 0 counts as 1; `walltime` in seconds, None: unbounded, counts as 24 h."""
    return nodes * max(1, gpus) * (UNBOUNDED_HOURS if walltime is None else walltime / 3600)


def energy(price: float | None = None) -> float:
    """Returns f7: 1 − the price of electricity now, scaled to [0, 1]; `UNKNOWN` without a price (book, "f₇: energy_cost")."""
    return UNKNOWN if price is None else clamp(1 - price)


def checkpoint(minutes: float | None) -> float:
    """Returns f8: 1 ÷ (1 + minutes to a checkpoint); 0 for None, work that takes none (book, "f₈: checkpoint_efficiency")."""
    return 0.0 if minutes is None else clamp(1 / (1 + max(0.0, minutes)))


def checkpoint_minutes(bytes_of_a_node: float) -> float:
    """Returns the estimated minutes to a checkpoint: memory ÷ `CHECKPOINT_BYTES_PER_MINUTE`, at most 10.

    0 bytes mean unknown memory and give `CHECKPOINT_MINUTES` (book, "Checkpoint Broker", "Cost Components").
    """
    if bytes_of_a_node <= 0:
        return CHECKPOINT_MINUTES
    return min(MOST_CHECKPOINT_MINUTES, bytes_of_a_node / CHECKPOINT_BYTES_PER_MINUTE)


def conformance(largest_equal_set: int, nodes: int) -> float:
    """Returns f9: the largest set of candidate nodes with one fingerprint ÷ nodes asked for (book, "f₉: conformance_fitness")."""
    return clamp(largest_equal_set / nodes) if nodes > 0 else 0.0


def multiplier(utilisation: float) -> float:
    """Returns the budget multiplier of a score, m(u): 1 up to 0.8 of the budget, then half a cosine down to 0.05 at 1.2 and above.

    u (`utilisation`) is usage ÷ budget (book, "Quota Enforcement", "GPU-Hours Budget").
    """
    if utilisation <= PENALTY_FROM:
        return 1.0
    if utilisation >= PENALTY_TO:
        return LEAST_MULTIPLIER
    fall = (1 + cos(pi * (utilisation - PENALTY_FROM) / (PENALTY_TO - PENALTY_FROM))) / 2
    return LEAST_MULTIPLIER + (1 - LEAST_MULTIPLIER) * fall


def reach(capacities: Iterable[int]) -> list[int]:
    """Returns a list of how many nodes the largest group, the 2 largest, the 3 largest … have together; `capacities`: nodes by group."""
    return list(accumulate(sorted(capacities, reverse=True)))


def groups_needed(reached: list[int], nodes: int) -> int | None:
    """Returns the fewest groups that hold `nodes`; `reached`: the answer of `reach`. None: all groups together hold fewer."""
    at = bisect_left(reached, nodes)
    return at + 1 if at < len(reached) else None
