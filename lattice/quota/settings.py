"""The rules of one tree for division and revocation: its own settings first, then those of the LatticeConfig."""

from __future__ import annotations

from dataclasses import dataclass

from lattice.quota.amounts import amounts_of
from lattice.quota.declared import DEFAULT, TreeSettings
from lattice.quota.groups import Group, Options
from lattice.units import parse_duration
from lattice.views.cluster import QuotaTreeOptions

OFF = "Off"
ON = "On"


@dataclass(frozen=True, slots=True)
class TreeRules:
    """The rules in force in one tree."""

    options: Options
    """For the division; weights are literal, since a declared group has one for each of its resources."""
    revocation: str
    """Off, Notify or On."""
    delay_seconds: float
    max_per_round: int
    on_shrink: bool


def rules_of(config: QuotaTreeOptions, tree: TreeSettings | None) -> TreeRules:
    """Returns the rules of a tree (None: the default tree)."""
    delay = parse_duration(config.delay)
    if tree is None:
        options = Options(scale_min=config.scale_min, guarantee_used=config.guarantee_used, raw_weight=True)
        return TreeRules(options, config.revocation, delay, config.max_per_round, config.on_shrink)
    scale_min = config.scale_min if tree.scale_min is None else tree.scale_min
    guarantee_used = config.guarantee_used if tree.guarantee_used is None else tree.guarantee_used
    return TreeRules(
        Options(scale_min=scale_min, guarantee_used=guarantee_used, raw_weight=True),
        tree.revocation or config.revocation,
        delay if tree.delay_seconds is None else tree.delay_seconds,
        tree.max_per_round or config.max_per_round,
        config.on_shrink if tree.on_shrink is None else tree.on_shrink,
    )


def default_group(config: QuotaTreeOptions) -> Group:
    """Returns the group of work that belongs to no other, with its ceiling (empty: no bound)."""
    return Group(DEFAULT, max=amounts_of(config.default_max or {}, field="spec.quotaTree.defaultMax"))
