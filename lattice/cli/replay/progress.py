"""Shows a progress bar on standard error where that is a terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TextIO

_WIDTH: Final = 30
_EVERY_SECONDS: Final = 0.2


class Progress:
    """A progress bar that rewrites one line; `close` erases it."""

    def __init__(self, stream: TextIO, now: Callable[[], float], *, quiet: bool) -> None:
        self._stream = stream
        self._now = now
        self._shown = not quiet and stream.isatty()
        self._last = self._now()
        self._drawn = False

    def show(self, what: str, share: float) -> None:
        """Draws the bar for a share (cut to 0 to 1), at most five times a second; nothing in the first fifth of a second, where it is
        quiet, or without a terminal.
        """
        if not self._shown or self._now() - self._last < _EVERY_SECONDS:
            return
        self._last = self._now()
        share = min(max(share, 0.0), 1.0)
        full = round(share * _WIDTH)
        self._stream.write(f"\r{what:<12}[{'#' * full}{'.' * (_WIDTH - full)}] {share:4.0%}")
        self._stream.flush()
        self._drawn = True

    def close(self) -> None:
        """Erases the bar, where one is drawn."""
        if self._drawn:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._drawn = False
