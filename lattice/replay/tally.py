"""Counts what a reader left out of a trace or changed in it: how many by which rule, and the first case of each rule."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Tally:
    """Counts of jobs by rule, in the order in which the rules were first met; a rule is a phrase that follows a number."""

    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    """By rule: the field and the line where it was met first, as far as the format has them."""

    def note(self, rule: str, line: int = 0, where: str = "") -> None:
        """Counts one more job that a rule left out or changed; `line` counts from 1 (0: none); `where` is the field or column."""
        if rule not in self.counts:
            self.first[rule] = ", ".join(part for part in (where, f"first in line {line}" if line else "") if part)
        self.counts[rule] = self.counts.get(rule, 0) + 1

    @property
    def total(self) -> int:
        """Returns the number of jobs over all rules."""
        return sum(self.counts.values())

    def phrases(self) -> list[str]:
        """Returns each rule with its count and its first place: `8 without a run time (field 4, first in line 312)`."""
        return [f"{count} {rule}" + (f" ({self.first[rule]})" if self.first[rule] else "") for rule, count in self.counts.items()]

    def copy(self) -> Tally:
        """Returns an independent copy of the counts."""
        return Tally(dict(self.counts), dict(self.first))
