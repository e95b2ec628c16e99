"""The rules again, written for the eye and not for speed: what the room's answers are compared with.

`exact` is the water level by fractions; `rounds` is Koordinator's division (largest remainders in every round), in
integers. `solve` walks a whole tree from scratch with either of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from lattice.quota.division import Claim
from lattice.quota.groups import ROOT, Group, Options

Division = Callable[[int, Sequence[Claim]], list[int]]
Answers = dict[str, dict[str, int]]


def base(claim: Claim) -> int:
    if claim.request > claim.floor:
        return claim.floor
    return claim.request if claim.lends else claim.floor


def largest_remainders(pool: int, weights: dict[int, int], names: Sequence[str]) -> dict[int, int]:
    """The pool by weight in whole units; what rounding down leaves goes to the largest remainders, ties by name."""
    total = sum(weights.values())
    rounded = {at: pool * weight // total for at, weight in weights.items()}
    order = sorted(weights, key=lambda at: (-(pool * weights[at] % total), names[at]))
    for at in order[: pool - sum(rounded.values())]:
        rounded[at] += 1
    return rounded


def rounds(total: int, claims: Sequence[Claim]) -> list[int]:
    """Koordinator's rounds: share the pool by weight, round, cut at the request, share what was cut."""
    runtime = [base(claim) for claim in claims]
    hungry = [at for at, claim in enumerate(claims) if claim.request > claim.floor]
    pool = total - sum(runtime)
    names = [claim.name for claim in claims]
    while pool > 0 and any(claims[at].weight for at in hungry):
        given = largest_remainders(pool, {at: claims[at].weight for at in hungry}, names)
        pool = 0
        for at in hungry:
            runtime[at] += given[at]
            if runtime[at] >= claims[at].request:
                pool += runtime[at] - claims[at].request
                runtime[at] = claims[at].request
        hungry = [at for at in hungry if runtime[at] < claims[at].request]
    return runtime


def exact(total: int, claims: Sequence[Claim]) -> list[int]:
    """The exact level: the one fraction at which the shares, each cut at its need, are the pool; rounded once."""
    runtime = [base(claim) for claim in claims]
    needs = {at: claim.request - claim.floor for at, claim in enumerate(claims) if claim.request > claim.floor and claim.weight}
    pool = total - sum(runtime)
    if pool <= 0 or not needs:
        return runtime
    full = dict(needs)
    for level in sorted({Fraction(need, claims[at].weight) for at, need in needs.items()}):
        if sum(min(Fraction(need), level * claims[at].weight) for at, need in needs.items()) > pool:
            full = {at: need for at, need in needs.items() if Fraction(need, claims[at].weight) < level}
            break
    rest = {at: claims[at].weight for at in needs if at not in full}
    for at, need in full.items():
        runtime[at] += need
    if rest:
        for at, share in largest_remainders(pool - sum(full.values()), rest, [claim.name for claim in claims]).items():
            runtime[at] += share
    return runtime


def limits(options: Options, groups: Sequence[Group]) -> tuple[Answers, Answers]:
    """Request cut at max, and what is guaranteed, of every group; managed resources only."""
    limit: Answers = {}
    guaranteed: Answers = {}

    def visit(group: Group) -> None:
        children = [child for child in groups if child.parent == group.name]
        for child in children:
            visit(child)
        limit[group.name], guaranteed[group.name] = {}, {}
        for key in group.max:
            asked = group.request.get(key, 0) + sum(limit[child.name].get(key, 0) for child in children)
            if options.guarantee_used or not group.lends:
                asked = max(asked, group.min.get(key, 0))
            limit[group.name][key] = min(asked, group.max[key])
            if options.guarantee_used:
                allocated = group.used.get(key, 0) + sum(guaranteed[child.name].get(key, 0) for child in children)
                guaranteed[group.name][key] = max(allocated, group.min.get(key, 0))

    for group in groups:
        if group.parent == ROOT:
            visit(group)
    return limit, guaranteed


def solve(total: dict[str, int], options: Options, groups: Sequence[Group], division: Division) -> Answers:
    """What each group may use, of trees whose groups manage the same resources."""
    limit, guaranteed = limits(options, groups)
    runtime: Answers = {}

    def below(name: str, available: dict[str, int]) -> None:
        children = [group for group in groups if group.parent == name]
        runtime.update({child.name: {} for child in children})
        for key, amount in available.items():
            mins = [child.min.get(key, 0) for child in children]
            if options.scale_min and sum(mins) > amount:
                mins = [amount * least // sum(mins) for least in mins]
            claims = [
                Claim(
                    child.name,
                    max(least, guaranteed[child.name].get(key, 0)),
                    limit[child.name].get(key, 0),
                    child.weight(literal=options.raw_weight).get(key, 0),
                    child.lends,
                )
                for child, least in zip(children, mins, strict=True)
            ]
            for child, share in zip(children, division(amount, claims), strict=True):
                runtime[child.name][key] = share
        for child in children:
            below(child.name, runtime[child.name])

    below(ROOT, total)
    return runtime
