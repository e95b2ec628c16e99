"""Prints a list again every few seconds, as `--iterate` asks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from lattice.cli.slurm.options import Parsed
from lattice.errors import Rejected
from lattice.units import is_digits

if TYPE_CHECKING:
    from lattice.cli.console import Console


def iterate(console: Console, given: Parsed, show: Callable[[Console, Parsed], int]) -> int:
    """Calls `show` once, or with `--iterate` every so many seconds until it fails; returns its last exit code.

    Raises Rejected where the option holds no whole number of seconds above 0.
    """
    pause = given.last("iterate")
    if pause is None:
        return show(console, given)
    if not is_digits(pause) or int(pause) < 1:
        raise Rejected(f"invalid entry for iteration interval: {pause}", reason="BadInput")
    while True:
        code = show(console, given)
        console.outside.stdout.flush()
        if code:
            return code
        console.outside.sleep(int(pause))
