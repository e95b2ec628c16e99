"""Reads Slurm's `--signal`: which signal the work gets how long before its walltime is over."""

from __future__ import annotations

import re
from typing import Final

from lattice.scripts.asked import Given
from lattice.units import format_duration

NUMBERS: Final = {
    "HUP": 1, "INT": 2, "QUIT": 3, "ABRT": 6, "KILL": 9, "USR1": 10, "USR2": 12, "ALRM": 14, "TERM": 15, "CONT": 18, "STOP": 19, "TSTP": 20,
    "URG": 23, "XCPU": 24,
}  # fmt: skip
"""The signals that work may get early, and their numbers on Linux, by which Slurm names them, too."""
DEFAULT_SECONDS: Final = 60
MOST_SECONDS: Final = 65535
_FORM: Final = re.compile(r"(?:([BbRr]+):)?([A-Za-z0-9]+)(?:@([0-9]{1,6}))?")


def read_early_signal(given: Given) -> dict[str, str]:
    """Returns `spec.lifecycle.signal` of `[B:]SIGNAL[@SECONDS]`: its name, how long before the end, and to whom.

    Raises Rejected for what does not read, for an unknown signal, and for `R:`, which has no meaning here.
    """
    text = (given.value or "").strip()
    found = _FORM.fullmatch(text)
    if found is None:
        raise given.rejected(f"{text!r} is no signal: write for example USR1@90, or B:USR1@90")
    flags, word, seconds = (found[1] or "").upper(), found[2].upper().removeprefix("SIG"), int(found[3] or DEFAULT_SECONDS)
    if "R" in flags:
        raise given.rejected("R: is about overlapping reservations, which Lattice does not have: take it out", "NotServed")
    name = next((name for name, number in NUMBERS.items() if word in (name, str(number))), None)
    if name is None:
        raise given.rejected(f"{found[2]!r} is none of {', '.join(NUMBERS)}, nor the number of one")
    if seconds > MOST_SECONDS:
        raise given.rejected(f"{seconds} seconds before the end are too many (limit: {MOST_SECONDS})")
    return {"name": name, "before": format_duration(float(seconds)), "to": "Script" if flags else "Tasks"}
