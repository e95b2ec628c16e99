"""A quota group: its limits, its weight, its demand; and the options of a tree. Amounts are whole units.

cpu counts in millicores, memory in bytes, every other resource in its own unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

ROOT: Final = "koordinator-root-quota"
"""The parent of the first level; an absent or empty parent means it."""
BUILT_IN: Final = frozenset({ROOT, "koordinator-system-quota", "koordinator-default-quota"})
"""Names that no group of a tree may have: the use of system and default is subtracted from the total once."""

Resources = Mapping[str, int]
"""Amounts by resource; an absent one is zero."""


@dataclass(frozen=True, slots=True)
class Group:
    """One group as it is configured, with the demand of the work that is bound to it directly."""

    name: str
    parent: str = ROOT
    is_parent: bool = False
    """Whether it may have children; it then normally has no work of its own."""
    min: Resources = field(default_factory=dict)
    """The guarantee."""
    max: Resources = field(default_factory=dict)
    """The ceiling; its keys are the resources that the group manages."""
    shared_weight: Resources = field(default_factory=dict)
    """The weight in the division of idle resources; absent, or zero throughout: `max`."""
    lends: bool = True
    """Whether others may use the idle part of `min`."""
    lend_limit: Resources = field(default_factory=dict)
    """The most of `min` that it lends; absent resources are lent in full."""
    scales: bool | None = None
    """Whether `min` is scaled down when the siblings' sum is above what there is; None: as the tree's options say."""
    guarantees: bool | None = None
    """Whether its use is a floor, so that its idle min is not lent; None: as the tree's options say."""
    request: Resources = field(default_factory=dict)
    """Of all of its own work, pending and running."""
    used: Resources = field(default_factory=dict)
    """Of its own work that holds nodes."""
    non_preemptible_used: Resources = field(default_factory=dict)
    """The part of `used` whose work may not be stopped for others."""
    floor: Resources = field(default_factory=dict)
    """The amount that is never taken back, whatever `min` says."""
    keeps_unmanaged: bool = False
    """Whether demand stays booked for resources that are not in `max`."""

    def booked(self, amounts: Resources) -> dict[str, int]:
        """Returns the amounts of the resources that the group manages."""
        return {key: amount for key, amount in amounts.items() if amount and (self.keeps_unmanaged or key in self.max)}

    def kept(self, resource: str) -> int:
        """Returns the part of `min` that the group does not lend; it asks for at least so much, whatever its work asks for."""
        least = self.min.get(resource, 0)
        return max(0, least - self.lend_limit.get(resource, least)) if self.lends else least

    def weight(self, *, literal: bool) -> dict[str, int]:
        """Returns the weight of each resource of `max`; `literal` takes zeros throughout as zeros."""
        given = self.shared_weight
        if not given or not (literal or any(given.values())):
            return dict(self.max)
        return {key: given.get(key, most) for key, most in self.max.items()}


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a tree's division."""

    scale_min: bool = False
    """Whether mins shrink in proportion where their sum is above what there is."""
    guarantee_used: bool = False
    """Whether allocated amounts are a floor; implies that idle mins are not lent."""
    raw_weight: bool = False
    """Whether weights of zero throughout are taken literally."""
    system_used: Resources = field(default_factory=dict)
    default_used: Resources = field(default_factory=dict)
