"""One node of a launch as the head's agent follows it: what its keeper has said, and what of that the client has had."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from lattice_agent.launches.links import NodeLink
from lattice_agent.launches.record import NodePlaces
from lattice_agent.standalone.frames import Frame

MOST_SIGNALS = 8
"""Signals that wait for the way to a node; of more, the last count."""


@dataclass(eq=False)
class NodePart:
    """One node of a launch: its ranks, the way to its keeper, and what of the keeper's frames the client has not had."""

    place: int
    ranks: NodePlaces
    link: NodeLink
    seen: int = 0
    acknowledged: int = 0
    owed_bytes: int = 0
    """Bytes of its exchange that are taken, and not acknowledged yet."""
    kept: deque[tuple[int, Frame]] = field(default_factory=deque)
    """Frames for the client that it has not acknowledged, with their numbers."""
    kept_bytes: int = 0
    unsent: deque[tuple[int, Frame]] = field(default_factory=deque)
    """The last ones of `kept`, which the client has not been sent."""
    had: int = 0
    ended: set[int] = field(default_factory=set)
    room: int | None = None
    stands: bool = False
    """Whether its keeper has ever been heard."""
    up: bool = False
    """Whether its keeper is heard now."""
    silent_since: float = 0.0
    """When it was last heard, by the monotonic clock, where it is not heard now."""
    lost: bool = False
    """Whether it was given up, so that the end of its ranks is unknown; they are ended once it is heard again."""
    signals: deque[int] = field(default_factory=lambda: deque(maxlen=MOST_SIGNALS))
    """Signals that came while it was not heard."""
    done: int = 0
    """The number of its last frame; 0: its ranks have not all ended."""
    closed: bool = False
    malformed: bool = False
    """Whether a malformed frame of its keeper was logged."""

    @property
    def sent(self) -> int:
        """Returns the number of the last frame that the client has been sent, or had before."""
        return self.unsent[0][0] - 1 if self.unsent else max(self.seen, self.had)

    def drop_kept(self) -> None:
        """Drops what the client has not had."""
        self.kept.clear()
        self.unsent.clear()
        self.kept_bytes = 0

    @property
    def over(self) -> bool:
        """Tells whether none of its ranks is left."""
        return self.done > 0 or self.closed or self.lost
