"""A view that is shown again and again, until the person ends it."""

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
    """Prints the `lines` every few seconds, on a terminal in the place of those before; Ctrl-C ends it with success."""

    def show() -> None:
        shown = lines()
        clear(console)
        console.say(*shown)

    return repeat(console, show)


def repeat(console: Console, show: Callable[[], object]) -> int:
    """Calls `show` every few seconds until Ctrl-C; says that a server is away for a while, and asks it again."""
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
    """Empties the terminal, where there is one."""
    if console.outside.columns:
        console.outside.stdout.write("\x1b[H\x1b[2J")
