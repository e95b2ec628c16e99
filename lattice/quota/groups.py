"""One group of a quota tree as the division sees it: limits, weight, demand; and the options of a tree. Amounts are whole units.

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
    """One group of a tree as it is configured, with the demand of the work that is bound to it directly."""

    name: str
    parent: str = ROOT
    is_parent: bool = False
    """Whether it may have children; it then has no work of its own as a rule."""
    min: Resources = field(default_factory=dict)
    """The guaranteed amounts."""
    max: Resources = field(default_factory=dict)
    """The most that it may use; its keys are the resources that the group manages."""
    shared_weight: Resources = field(default_factory=dict)
    """The weights in the division of idle resources; absent, or zero throughout: `max` is the weight."""
    lends: bool = True
    """Whether others may use the idle part of `min`."""
    lend_limit: Resources = field(default_factory=dict)
    """The most of `min` that it lends; absent resources are lent in full."""
    scales: bool | None = None
    """Whether `min` shrinks where the siblings' mins exceed what there is; None: as the tree's options say."""
    guarantees: bool | None = None
    """Whether its use is a floor, so that its idle min is not lent; None: as the tree's options say."""
    request: Resources = field(default_factory=dict)
    """Asked for by its own work, pending and running."""
    used: Resources = field(default_factory=dict)
    """Held by its own work."""
    non_preemptible_used: Resources = field(default_factory=dict)
    """The part of `used` that is held by non-preemptible work."""
    floor: Resources = field(default_factory=dict)
    """Amounts that are never taken back, whatever `min` says."""
    keeps_unmanaged: bool = False
    """Whether demand for resources that are not in `max` is booked too, so that it counts in the groups above."""

    def booked(self, amounts: Resources) -> dict[str, int]:
        """Returns the part of these amounts that counts at the group: that of the resources that it manages."""
        return {key: amount for key, amount in amounts.items() if amount and (self.keeps_unmanaged or key in self.max)}

    def kept(self, resource: str) -> int:
        """Returns the part of `min` that the group does not lend, which it always requests, whatever its work asks for."""
        least = self.min.get(resource, 0)
        return max(0, least - self.lend_limit.get(resource, least)) if self.lends else least

    def weight(self, *, literal: bool) -> dict[str, int]:
        """Returns the weight of each resource of `max`; `literal`: zeros throughout are zeros, not "use max"."""
        given = self.shared_weight
        if not given or not (literal or any(given.values())):
            return dict(self.max)
        return {key: given.get(key, most) for key, most in self.max.items()}


@dataclass(frozen=True, slots=True)
class Options:
    """The options by which one tree divides."""

    scale_min: bool = False
    """Mins shrink in proportion where their sum exceeds what there is."""
    guarantee_used: bool = False
    """The amounts in use are a floor; idle mins are then not lent."""
    raw_weight: bool = False
    """Weights of zero throughout are taken literally."""
    system_used: Resources = field(default_factory=dict)
    default_used: Resources = field(default_factory=dict)
