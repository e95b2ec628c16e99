"""The verdict of the quota tree on more use at one leaf: a comparison for each level and resource, with its numbers.

A gate is passed while used + asked stays within its limit. Only resources that are asked for are compared, and only where a level
manages them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal

from lattice.quota.amounts import quantity

RUNTIME: Final = "Runtime"
MAX: Final = "Max"
MIN: Final = "Min"
Limited = Literal["Runtime", "Max", "Min"]
"""The kind of limit that a gate compares with: the group's runtime, its max, or (for non-preemptible work) its min."""

WAITING: Final = "WaitingForQuotaShare"
"""The reason of work that a gate of the quota tree keeps waiting."""


@dataclass(frozen=True, slots=True)
class Borrower:
    """A group that uses more of a resource than its effective min, and by how much."""

    quota: str
    amount: int
    """The use above the guarantee."""


@dataclass(frozen=True, slots=True)
class Level:
    """The loans of one resource among the groups directly below one parent."""

    borrowers: tuple[Borrower, ...] = ()
    """Those with the largest loans first."""
    amount: int = 0
    """The sum of all loans."""


NOBODY: Final = Level()


@dataclass(frozen=True, slots=True)
class Gate:
    """One comparison: used + asked with the limit of one resource at one level of the tree."""

    quota: str
    resource: str
    by: Limited
    asked: int
    used: int
    """The use that is compared: all of the group's, or only that of non-preemptible work where `by` is Min."""
    limit: int
    request: int
    """The group's request, pending and running, before it is cut at its max."""
    runtime: int
    min: int
    effective_min: int
    max: int

    @property
    def passes(self) -> bool:
        """Tells whether used + asked is within the limit."""
        return self.used + self.asked <= self.limit

    @property
    def room(self) -> int:
        """Returns how much more use would fit now; at least 0."""
        return max(0, self.limit - self.used)

    def times(self, count: int) -> Gate:
        """Returns the comparison for `count` times the asked amount."""
        return Gate(
            self.quota, self.resource, self.by, self.asked * count, self.used, self.limit, self.request, self.runtime, self.min,
            self.effective_min, self.max,
        )  # fmt: skip

    @property
    def ceiling(self) -> int:
        """Returns the limit that no waiting raises: the min for non-preemptible work, else the max."""
        return self.min if self.by == MIN else self.max

    def sentence(self) -> str:
        """Returns the sentence that says why the amount does not fit, with the numbers and the next step; it names no other group."""
        asked, used, limit, ceiling, least = (
            quantity(self.resource, amount) for amount in (self.asked, self.used, self.limit, self.ceiling, self.min)
        )
        start = f'quota "{self.quota}": {self.resource}: {asked} asked for'
        word = "min" if self.by == MIN else "max"
        fixed = " by work that may not be preempted" if self.by == MIN else ""
        if self.asked > self.ceiling:
            return (
                f"{start}{fixed} is above its {word}, which is {ceiling}: it cannot start here however long it waits; "
                f"ask for at most {ceiling}, or for a larger {word}"
            )
        start += f" and {used} used{fixed} are above its"
        if self.by == MIN:
            instead = "let this be preempted (preemptible: ByClass), or ask for a larger min"
            return f"{start} min, which is {limit}: wait for such work to end, {instead}"
        if self.by == MAX:
            return f"{start} max, which is {limit}: wait for work of the group to end, or ask for a larger max"
        return f"{start} runtime, which is {limit} now (min {least}, max {ceiling}): wait for work of the tree to end"


@dataclass(frozen=True)
class Blocked:
    """The verdict that an amount does not fit: the first gate that does not pass, and the loans at its level."""

    gate: Gate
    beside: Level = NOBODY
    """The loans among the groups of that level, the gate's own group included."""

    @property
    def reason(self) -> str:
        """Returns the reason for the allocation's condition."""
        return WAITING

    @cached_property
    def borrowers(self) -> tuple[Borrower, ...]:
        """Returns the other groups of that level that use more than their effective min, most first; only for readers who may know them."""
        return tuple(one for one in self.beside.borrowers if one.quota != self.gate.quota)

    @cached_property
    def message(self) -> str:
        """Returns the sentence for every reader, without names of other groups."""
        own = max(0, self.gate.used - self.gate.effective_min) if self.beside.amount else 0
        borrowed = self.beside.amount - own
        if not borrowed:
            return self.gate.sentence()
        return f"{self.gate.sentence()}; other groups borrow {quantity(self.gate.resource, borrowed)}"

    def message_with_names(self, most: int = 5) -> str:
        """Returns the sentence with the names of at most `most` borrowing groups, for readers who may list them."""
        if not self.borrowers:
            return self.gate.sentence()
        named = [f"{borrower.quota} {quantity(self.gate.resource, borrower.amount)}" for borrower in self.borrowers[:most]]
        more = f" and {len(self.borrowers) - most} more" if len(self.borrowers) > most else ""
        return f"{self.gate.sentence()}; borrowed by {', '.join(named)}{more}"
