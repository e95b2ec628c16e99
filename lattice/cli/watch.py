"""A view that is shown again and again, until the person ends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from lattice.cli import exits

if TYPE_CHECKING:
    from lattice.cli.console import Console

WATCH_SECONDS: Final = 5.0


def again_and_again(console: Console, lines: Callable[[], list[str]]) -> int:
    """Print what `lines` gives every few seconds, on a terminal in the place of what was there; Ctrl-C ends it, done."""
    try:
        while True:
            shown = lines()
            if console.outside.columns:
                console.outside.stdout.write("\x1b[H\x1b[2J")
            console.say(*shown)
            console.outside.stdout.flush()
            console.outside.sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        return exits.DONE
