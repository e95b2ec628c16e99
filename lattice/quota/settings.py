"""The settings of one quota tree for division and revocation: its own first, then those of the LatticeConfig."""

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
    """The settings in force in one tree."""

    options: Options
    """The options of the division; weights are literal, since a declared group has one for each of its resources."""
    revocation: str
    """Off, Notify (tell the owners only) or On."""
    delay_seconds: float
    max_per_round: int
    on_shrink: bool


def rules_of(config: QuotaTreeOptions, tree: TreeSettings | None) -> TreeRules:
    """Returns the settings in force in a tree; `tree` None: the default tree, whose settings are the LatticeConfig's.

    Raises Rejected where the LatticeConfig's delay does not parse.
    """
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
    """Returns the group of work that belongs to no other, with the max that the LatticeConfig sets (empty: no limit).

    Raises Rejected naming the field where that max does not parse.
    """
    return Group(DEFAULT, max=amounts_of(config.default_max or {}, field="spec.quotaTree.defaultMax"))
