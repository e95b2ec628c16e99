"""Repeats a view every few seconds, until the person ends it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from lattice.cli import exits
from lattice.cli.failures import explain
from lattice.errors import Retry

if TYPE_CHECKING:
    from lattice.cli.console import Console

WATCH_SECONDS: Final = 5.0


def again_and_again(console: Console, lines: Callable[[], list[str]]) -> int:
    """Prints the `lines` every five seconds, replacing the former ones on a terminal; Ctrl-C ends this, with DONE; other errors than Retry
    are raised.
    """

    def show() -> None:
        """Clears the screen and prints the view as it is now."""
        shown = lines()
        clear(console)
        console.say(*shown)

    return repeat(console, show)


def repeat(console: Console, show: Callable[[], object]) -> int:
    """Calls `show` every five seconds until Ctrl-C, then returns DONE; after a Retry it prints the error, and tries again; other errors are
    raised.
    """
    try:
        while True:
            try:
                show()
            except Retry as error:
                console.complain(*explain(error))
            console.outside.stdout.flush()
            console.outside.sleep(WATCH_SECONDS)
    except KeyboardInterrupt:
        return exits.DONE


def clear(console: Console) -> None:
    """Clears the screen, where standard output is a terminal."""
    if console.outside.columns:
        console.outside.stdout.write("\x1b[H\x1b[2J")
