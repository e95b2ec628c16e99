"""Expands names of output files as Slurm expands them; pure.

A number between `%` and the letter pads with zeros (`%4j`); a backslash anywhere switches expansion off; an unknown letter stays as it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

NO_ARRAY = 4294967294
"""The number that Slurm writes for `%a` outside of an array."""

_SYMBOL = re.compile(r"%(?:(%)|([0-9]{0,2})([A-Za-z]))")
_PER_NODE = frozenset("nN")


@dataclass(frozen=True)
class PatternValues:
    """The values of the pattern letters for one work on one node."""

    number: int
    job_name: str
    user: str
    node: str
    rank_of_node: int

    def value(self, letter: str) -> str | int | None:
        """Returns the value of `%letter` as Slurm has it; None where Slurm has no such letter."""
        match letter:
            case "j" | "A" | "J":
                return self.number
            case "x":
                return self.job_name.replace("/", "_")
            case "u":
                return self.user
            case "a":
                return NO_ARRAY
            case "n":
                return self.rank_of_node
            case "N":
                return self.node.partition(".")[0]
            case "t":
                return 0
            case "s":
                return "batch"
            case _:
                return None


def expand(pattern: str, names: PatternValues) -> str:
    """Returns the file name that a pattern means for this work on this node: `%j` as Slurm has it, `%4j` padded with zeros, `%%` a `%`.

    An unknown letter stays as it is; a backslash anywhere switches expansion off, and is removed.
    """
    if "\\" in pattern:
        return pattern.replace("\\", "")

    def symbol(match: re.Match[str]) -> str:
        """Returns the text for one `%` symbol; an unknown letter stays as it is."""
        if match[1]:
            return "%"
        value = names.value(match[3])
        if value is None:
            return match[0]
        width = min(int(match[2] or 0), 10)
        return f"{value:0{width}d}" if isinstance(value, int) else value

    return _SYMBOL.sub(symbol, pattern)


def is_per_node(pattern: str) -> bool:
    """Tells whether a pattern gives each node a file of its own, by `%n` or `%N`; otherwise only rank 0 may truncate the file."""
    return "\\" not in pattern and any(match[3] in _PER_NODE for match in _SYMBOL.finditer(pattern) if match[3])
