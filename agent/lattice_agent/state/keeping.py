"""What this node keeps of the output of attempts: where it is, by the state directory's layout (formats.md)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lattice_agent.attempts import Key

MAX_UID = 64
"""No uid is longer; what a caller makes up is no file name."""


class Kept:
    """The output below one state directory (peers.interface.Logs)."""

    def __init__(self, state_dir: Path, ended: Callable[[Key], bool]) -> None:
        self._attempts = state_dir / "attempts"
        self._ended = ended

    def newest(self, uid: str) -> int:
        """The newest attempt of the Allocation that this node has; 0: none."""
        try:
            names = [path.name for path in self._attempts.iterdir() if path.name.startswith(f"{uid}-")]
        except FileNotFoundError:
            return 0
        return max((int(number) for name in names if (number := name.rpartition("-")[2]).isdigit()), default=0)

    def directory(self, key: Key) -> Path | None:
        """Where its segments are; None: this node has nothing of it."""
        if "/" in key.uid or key.uid.startswith(".") or len(key.uid) > MAX_UID:
            return None
        path = self._attempts / f"{key.uid}-{key.attempt}"
        return path if path.is_dir() else None

    def ended(self, key: Key) -> bool:
        """Whether nothing more will be printed."""
        return self._ended(key)
