"""Random quota trees that keep the rules, from a seed; and the claims of one sibling set."""

from __future__ import annotations

import random
from dataclasses import replace

from lattice.quota.division import Claim
from lattice.quota.groups import ROOT, Group, Options

TreeParts = tuple[dict[str, int], Options, list[Group]]


def random_tree(rng: random.Random, *, keys: tuple[str, ...] = ("cpu", "gpu")) -> TreeParts:
    """One to three levels, one to six siblings; mins of children within the parent's, demand from nothing to too much."""
    scale = rng.choice((1, 1, 10, 1000))
    total = {key: rng.randint(1, 120) * scale + rng.randint(0, scale - 1) for key in keys}
    options = Options(scale_min=rng.random() < 0.7, guarantee_used=rng.random() < 0.15)
    groups: list[Group] = []
    over = rng.choice((0.5, 1.0, 1.0, 1.6))
    _siblings(rng, groups, ROOT, {key: int(amount * over) for key, amount in total.items()}, total, depth=rng.randint(1, 3))
    rng.shuffle(groups)
    return total, options, groups


def _siblings(rng: random.Random, groups: list[Group], parent: str, mins: dict[str, int], total: dict[str, int], *, depth: int) -> None:
    count = rng.randint(1, 6)
    parts = {key: _parts(rng, amount, count) for key, amount in mins.items()}
    equal = rng.random() < 0.3
    for at in range(count):
        name = f"{parent}/{rng.choice('abcdxyz')}{at}" if parent != ROOT else f"g{at}"
        least = {key: mins[key] // count if equal else parts[key][at] for key in mins}
        most = {key: least[key] + rng.randint(0, amount) for key, amount in total.items()}
        is_parent = depth > 1 and rng.random() < 0.6
        group = Group(
            name=name,
            parent=parent,
            is_parent=is_parent,
            min=least,
            max=most,
            shared_weight=_weight(rng, most, equal=equal),
            lends=rng.random() < 0.8,
            request={} if is_parent else {key: rng.choice((0, rng.randint(0, most[key] * 2), total[key] * 2)) for key in total},
        )
        if not is_parent:
            group = replace(group, used={key: rng.randint(0, amount) for key, amount in group.request.items()})
        groups.append(group)
        if is_parent:
            _siblings(rng, groups, name, least, total, depth=depth - 1)


def _weight(rng: random.Random, most: dict[str, int], *, equal: bool) -> dict[str, int]:
    if equal:
        return dict.fromkeys(most, 1)
    kind = rng.randint(0, 3)
    if kind == 0:
        return {}
    return {key: rng.choice((0, 1, 1, 2, 3, 7)) if kind == 1 else rng.randint(1, 100) for key in most}


def _parts(rng: random.Random, amount: int, count: int) -> list[int]:
    """A random division of at most the amount."""
    cuts = sorted(rng.randint(0, amount) for _ in range(count))
    return [high - low for low, high in zip([0, *cuts], cuts, strict=False)]


def random_claims(rng: random.Random, *, most: int = 8) -> tuple[int, list[Claim]]:
    """A total and the claims of some siblings."""
    total = rng.randint(0, rng.choice((10, 100, 100_000)))
    claims = []
    for at in range(rng.randint(1, most)):
        floor = rng.choice((0, rng.randint(0, max(1, total // most))))
        request = rng.choice((0, floor, rng.randint(0, total + 1), total * 2))
        claims.append(Claim(f"{rng.choice('abz')}{at}", floor, request, rng.choice((0, 1, 1, 3, rng.randint(1, 1000))), rng.random() < 0.8))
    return total, claims
