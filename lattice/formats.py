"""Numbers of the texts that outlive a process (docs/explanation/formats.md): a reader takes its own and the one before."""

from __future__ import annotations

from lattice.errors import Corrupt


def check_format(what: str, found: str, newest: int) -> int:
    """Returns the format number of a text: `found`, which stands in front of the text, if it is `newest` or the number before.

    `newest` is the format that this program writes, `what` names the text. Raises Corrupt, naming both numbers, for every other one.
    """
    taken = [number for number in (newest - 1, newest) if number > 0]
    if found in map(str, taken):
        return int(found)
    reads = f"formats {taken[0]} and {taken[1]}" if len(taken) > 1 else f"format {newest}"
    raise Corrupt(f"{what} of format {found[:12]!r}: this program reads {reads}", reason="FormatUnknown")
