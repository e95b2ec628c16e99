"""Decides which running work would have to go so that a pending allocation fits, and at what cost.

The decision changes nothing. A victim must be of a class that the candidate may preempt (`protection` has every rule); at most K
victims free the missing nodes at the least cost, found exactly (`lattice.scheduling.preemption.cover`); and the cost must stay below
the candidate's value. Costs and values are GPU-hours; a node without GPUs counts as one GPU (`loss`, `worth`). The book's section
"Preemption Policy", its greedy choice replaced by an exact one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from lattice.scheduling.model.hardware import NodeFacts
from lattice.scheduling.model.policy import BIN_PACK, SENSITIVE_RESERVATION, Policy
from lattice.scheduling.model.work import REQUIRED, Candidate, NodeHolder
from lattice.scheduling.preemption.domains import PreemptionDomain, VictimSlot
from lattice.scheduling.priority.cost import checkpoint_minutes

HOUR: Final = 3600.0

PROTECTED: Final[dict[str, str]] = {
    "ClassTooHigh": "are of a class that this class may not preempt",
    "NonPreemptible": "may not be preempted by anything",
    "Releasing": "end already, or are being preempted",
    "HomeService": "are services on nodes of their own vcluster",
    "NearCompletion": "are about to reach their walltime",
    "MinimumRuntime": "have not run as long as their vcluster lets work run undisturbed",
    "PreemptedOften": "were preempted as often as their vcluster allows",
}
"""By rule that protects a holder from being a victim: the words of a sentence about several such holders."""


@dataclass(frozen=True, slots=True)
class PreemptionLimits:
    """The limits of preemption and the estimates behind its costs; durations in seconds.

    `most_victims`: most allocations ended for one candidate.
    """

    most_victims: int = 3
    near_completion: float = 300.0
    """Work whose walltime ends within this time is no victim."""
    span_premium: float = 1.5
    """A set on one group (and of one fingerprint, where that is preferred) may cost so many times the cheapest set."""
    shortest: float = HOUR
    longest: float = 24 * HOUR
    """The candidate's walltime counts in its value with at least `shortest` and at most this; unbounded work with this."""
    reclaim: bool = True
    """Whether borrowers of the candidate's home nodes may be victims whatever their class, below 10."""


@dataclass(frozen=True, slots=True)
class Loss:
    """The cost of preempting one allocation, in GPU-hours, by cause."""

    checkpoint: float
    """Lost while its nodes write a checkpoint and do nothing else."""
    recompute: float
    """Spent again on the work that no checkpoint holds."""
    invested: float
    """Lost because the run would have ended soon."""

    @property
    def seconds(self) -> int:
        """Returns the sum in whole GPU-seconds, rounded up, at least 1, so that sums are exact and no victim is free of charge."""
        return max(1, math.ceil(round((self.checkpoint + self.recompute + self.invested) * HOUR, 3)))


@dataclass(frozen=True, slots=True)
class Victim:
    """One allocation that would have to end so that the candidate fits."""

    holder: NodeHolder
    loss: Loss
    freed: int
    """How many of its nodes the candidate may use."""
    reclaimed: bool = False
    """Whether it is a victim because it borrows nodes of the candidate's vcluster, not because of its class."""


@dataclass(frozen=True, slots=True)
class Victims:
    """The allocations after whose end the candidate fits; cost and value in GPU-hours."""

    victims: tuple[Victim, ...]
    nodes: tuple[int, ...]
    """The candidate's nodes (indices, ascending): free ones and those of victims, in as few groups as these allow."""
    nodes_freed: int
    """How many nodes that the candidate may use their end frees."""
    cost: float
    value: float
    span: int
    """How many groups `nodes` lie in."""


@dataclass(frozen=True, slots=True)
class NoVictims:
    """The reason why nothing is preempted: a word of `lattice.models.reasons.PREEMPTION_REASONS` and a sentence with the numbers."""

    reason: str
    message: str


Preemption = Victims | NoVictims


@dataclass(frozen=True, slots=True)
class _Found:
    """The cheapest set of victims of one trial, before its cost is compared with the candidate's value."""

    victims: tuple[Victim, ...]
    nodes: tuple[int, ...]
    span: int
    cost: float
    value: float


def preemption(
    candidate: Candidate,
    holders: Iterable[NodeHolder],
    nodes: Mapping[int, NodeFacts],
    eligible: Collection[int],
    free: Collection[int],
    policies: Mapping[str, Policy],
    now: float,
    *,
    score: float = 1.0,
    limits: PreemptionLimits | None = None,
) -> Preemption:
    """Returns the victims that make room for `candidate.minimum` nodes, or the reason why there are none; ends nothing.

    `nodes` has every node that a holder holds; `eligible`: the usable ones that the candidate may have, free or held; `free`: those of them
    that are free now; `score`: the candidate's; `limits` None: the defaults. Burst users go first, those beyond their allowance before
    those within: if a set of them alone suffices and costs less than the candidate's value, it is taken; then they with borrowers of its
    vcluster, the lowest borrowing priority first; then all.
    """
    limits = limits or PreemptionLimits()
    domain = PreemptionDomain(candidate, nodes, eligible, free)
    short = _too_few(candidate, domain)
    if short is not None:
        return short
    pool, kept = _pool(candidate, holders, nodes, domain, policies, now, limits)
    tries = [_cheapest(candidate, group, domain, nodes, score, limits) for group in _in_order_of_going(candidate, pool, nodes, policies)]
    found = [each for each in tries if each is not None]
    for each in found:
        if each.cost < each.value:
            freed = sum(victim.freed for victim in each.victims)
            return Victims(each.victims, each.nodes, freed, each.cost, each.value, each.span)
    if found:
        return _too_dear(found[-1])
    return _no_set(candidate, pool, kept, domain, limits)


def own_nodes(candidate: Candidate, policy: Policy, nodes: Mapping[int, NodeFacts]) -> set[int]:
    """Returns the nodes that a preemption may clear for the candidate: usable, fitting, at home in its vcluster.

    In a vcluster without home nodes, those at home nowhere. Nodes of other vclusters may be borrowed while they are idle, never
    cleared; the caller adds idle ones, and leaves out reserved ones.
    """
    home = policy.name if policy.home else ""
    return {index for index, facts in nodes.items() if facts.usable and facts.home == home and candidate.need.admits_node(facts)}


def may_preempt(pending: int, running: int) -> bool:
    """Tells whether work of class `pending` may preempt work of class `running` (book, "Preemption Classes": down only, and by bands).

    Class 0 is preempted by any class above it, 1 to 3 by 4 and above, 4 to 6 by 7 and above, 7 to 9 by 10, and 10 by none.
    """
    if running <= 0:
        return pending > running
    if running <= 3:
        return pending >= 4
    if running <= 6:
        return pending >= 7
    return running <= 9 and pending >= 10


def protection(
    candidate: Candidate,
    holder: NodeHolder,
    nodes: Mapping[int, NodeFacts],
    policies: Mapping[str, Policy],
    now: float,
    limits: PreemptionLimits,
) -> str | None:
    """Returns the rule (a word of `PROTECTED`) that keeps the holder from being a victim of the candidate, the first that does; None: it
    may be one.

    With `limits.reclaim` the class of a borrower of nodes of the candidate's vcluster does not protect it, unless it is 10.
    """
    if holder.releasing or holder.checkpointing:
        return "Releasing"
    policy = policies.get(holder.vcluster, Policy(holder.vcluster))
    if holder.non_preemptible or holder.preemption_class >= 10 or policy.kind == SENSITIVE_RESERVATION:
        return "NonPreemptible"
    lower = may_preempt(candidate.preemption_class, holder.preemption_class)
    if not lower and not (limits.reclaim and on_loan(candidate, holder, nodes)):
        return "ClassTooHigh"
    if policy.kind == BIN_PACK and set(holder.nodes) - set(holder.borrowed):
        return "HomeService"
    return _timing(holder, policy, now, limits)


def on_loan(candidate: Candidate, holder: NodeHolder, nodes: Mapping[int, NodeFacts]) -> bool:
    """Tells whether the holder borrows nodes that are at home in the candidate's vcluster."""
    return holder.vcluster != candidate.vcluster and any(
        index in nodes and nodes[index].home == candidate.vcluster for index in holder.borrowed
    )


def loss(holder: NodeHolder, nodes: Mapping[int, NodeFacts], now: float) -> Loss:
    """Returns the cost of preempting a holder (book, "Preemption Decision Algorithm", step 2), with w = the GPUs of its nodes:

    - checkpoint: w · time to write the GPU memory of its largest node (`cost.checkpoint_minutes`); 0 for work that takes none;
    - recompute: w · time since its last checkpoint, for work that takes none now; else 0: preemption makes it write one;
    - invested: w · time run · g(u), u = time run ÷ walltime: g = 0 up to 0.1, (u − 0.1) ÷ 0.8 up to 0.9, 10 above. Without
      walltime 0: unbounded work comes no nearer to its end.
    """
    facts = [nodes.get(index) for index in holder.nodes]
    gpus = sum(map(weight, facts))
    ran = 0.0 if holder.started is None else max(0.0, now - holder.started)
    share = ran / holder.walltime if holder.walltime else 0.0
    factor = 10.0 if share > 0.9 else max(0.0, (share - 0.1) / 0.8)
    checkpoint, again = 0.0, 0.0
    if holder.checkpointable:
        state = max((each.gpus * each.gpu_memory for each in facts if each is not None), default=0)
        checkpoint = 60.0 * checkpoint_minutes(state)
    else:
        again = ran if holder.checkpointed is None else min(ran, max(0.0, now - holder.checkpointed))
    return Loss(gpus * checkpoint / HOUR, gpus * again / HOUR, gpus * ran * factor / HOUR)


def worth(candidate: Candidate, used: Iterable[int], nodes: Mapping[int, NodeFacts], score: float, limits: PreemptionLimits) -> float:
    """Returns the candidate's value in GPU-hours: score · GPUs of the nodes `used` · walltime, the walltime held within the limits.

    A node without GPUs, or not in `nodes`, counts as one GPU; work without a walltime counts the longest. Infinite for sensitive work,
    which is placed at once or refused.
    """
    if candidate.sensitive:
        return math.inf
    asked = limits.longest if candidate.walltime is None else candidate.walltime
    return score * sum(weight(nodes.get(index)) for index in used) * min(limits.longest, max(limits.shortest, asked)) / HOUR


def weight(facts: NodeFacts | None) -> int:
    """Returns the GPUs of a node; 1 for a node without GPUs or without known facts."""
    return 1 if facts is None else max(1, facts.gpus)


def _timing(holder: NodeHolder, policy: Policy, now: float, limits: PreemptionLimits) -> str | None:
    """Returns the rule on time or number of preemptions that protects a holder: near its end, too short a run (0 s before its start),
    preempted too often; None: none does.
    """
    ran = 0.0 if holder.started is None else now - holder.started
    if holder.started is not None and holder.walltime is not None and holder.started + holder.walltime - now <= limits.near_completion:
        return "NearCompletion"
    if ran < policy.min_runtime_before_preemption:
        return "MinimumRuntime"
    if policy.max_preemptions is not None and holder.preemptions >= policy.max_preemptions:
        return "PreemptedOften"
    return None


def _pool(
    candidate: Candidate,
    holders: Iterable[NodeHolder],
    nodes: Mapping[int, NodeFacts],
    domain: PreemptionDomain,
    policies: Mapping[str, Policy],
    now: float,
    limits: PreemptionLimits,
) -> tuple[list[Victim], Counter[str]]:
    """Returns the possible victims in order of uid, and how many other holders each rule protects.

    Holders whose nodes the candidate cannot use count nowhere.
    """
    pool: list[Victim] = []
    kept: Counter[str] = Counter()
    for holder in sorted(holders, key=lambda holder: holder.uid):
        freed = domain.count(holder.nodes)
        if not freed or holder.uid == candidate.uid:
            continue
        word = protection(candidate, holder, nodes, policies, now, limits)
        if word is None:
            lower = may_preempt(candidate.preemption_class, holder.preemption_class)
            pool.append(Victim(holder, loss(holder, nodes, now), freed, reclaimed=not lower))
        else:
            kept[word] += 1
    return pool, kept


def _in_order_of_going(
    candidate: Candidate, pool: list[Victim], nodes: Mapping[int, NodeFacts], policies: Mapping[str, Policy]
) -> list[list[Victim]]:
    """Returns growing sets of victims to try in turn: who is beyond his burst allowance; with them who is within his; with them borrowers
    by borrowing priority; with them everybody.
    """

    def rank(victim: Victim) -> tuple[int, int]:
        """Returns the turn of a victim: burst users first (the further above their share the sooner), then borrowers by borrowing
        priority, then all others.
        """
        holder = victim.holder
        if holder.burst:
            return (0, -holder.burst)
        if on_loan(candidate, holder, nodes):
            return (1, policies.get(holder.vcluster, Policy(holder.vcluster)).borrowing.priority)
        return (2, 0)

    ranks = [rank(victim) for victim in pool]
    return [[victim for victim, each in zip(pool, ranks, strict=True) if each <= top] for top in sorted(set(ranks))]


def _cheapest(
    candidate: Candidate,
    pool: list[Victim],
    domain: PreemptionDomain,
    nodes: Mapping[int, NodeFacts],
    score: float,
    limits: PreemptionLimits,
) -> _Found | None:
    """Returns the cheapest set among these victims, `limits.most_victims` at most, and the nodes that it clears, whatever the candidate is
    worth; None: no set suffices.
    """
    slots = [VictimSlot(victim.holder.nodes, victim.loss.seconds, len(victim.holder.nodes)) for victim in pool]
    room = domain.cheapest(slots, limits.most_victims, limits.span_premium)
    if room is None:
        return None
    victims = tuple(pool[number] for number in room.chosen)
    value = worth(candidate, room.nodes, nodes, score, limits)
    return _Found(victims, room.nodes, room.span, room.cost / HOUR, value)


def _too_few(candidate: Candidate, domain: PreemptionDomain) -> NoVictims | None:
    """Returns why a search for victims is pointless: the candidate fits already, or never could; None: the search makes sense."""
    wanted = _count(candidate.minimum, "node")
    if domain.fits():
        return NoVictims("FitsWithout", f"needs {wanted}, {domain.free} are free: it fits without preemption")
    if domain.capacity < candidate.minimum:
        alike = " with one fingerprint" if candidate.conformance == REQUIRED else ""
        message = f"needs {wanted}{alike}, and it could have {domain.capacity} if all work were gone; ask for fewer nodes"
        return NoVictims("TooFewNodes", message)
    return None


def _too_dear(found: _Found) -> NoVictims:
    """Returns the answer where the cheapest set of victims costs no less than the candidate is worth, with both numbers."""
    count = _count(len(found.victims), "allocation")
    message = (
        f"the cheapest set to preempt is {count} and costs {found.cost:.1f} GPU-hours, not below the {found.value:.1f} that this allocation"
        " is worth (score × GPUs × walltime); wait, or ask for more class or walltime"
    )
    return NoVictims("CostAboveValue", message)


def _no_set(candidate: Candidate, pool: list[Victim], kept: Counter[str], domain: PreemptionDomain, limits: PreemptionLimits) -> NoVictims:
    """Returns the answer where no set of victims suffices: how many there are, and which rules protect other holders."""
    protected = "; ".join(f"{kept[word]} {PROTECTED[word]}" for word in PROTECTED if kept[word])
    asked = f"needs {_count(candidate.minimum, 'node')}, {domain.free} free"
    if not pool:
        message = f"{asked}; no allocation on nodes that fit may be preempted by class {candidate.preemption_class}"
        return NoVictims("NoneToPreempt", message + (f": {protected}" if protected else ""))
    largest = sum(sorted((victim.freed for victim in pool), reverse=True)[: limits.most_victims])
    message = (
        f"{asked}; {_count(len(pool), 'allocation')} may be preempted, at most {limits.most_victims} at a time, which free at most"
        f" {_count(largest, 'node')}{_form(candidate, domain)}" + (f"; of the others {protected}" if protected else "")
    )
    return NoVictims("TooFewFreed", message + "; wait, or ask for fewer nodes")


def _form(candidate: Candidate, domain: PreemptionDomain) -> str:
    """Returns the words for how the nodes must lie together (groups, fingerprint), for the end of a sentence; empty: as they like."""
    asked = [f"in at most {_count(domain.most_groups, 'group')}"] if domain.most_groups is not None else []
    if candidate.conformance == REQUIRED and candidate.minimum > 1:
        asked.append("with one fingerprint")
    return f", and all must be {' and '.join(asked)}" if asked else ""


def _count(number: int, word: str) -> str:
    """Returns a number with a word, which gets an "s" unless the number is 1."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
