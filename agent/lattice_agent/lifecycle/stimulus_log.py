"""Keeps the last events of a node with what they led to, so that its story can be told and replayed (dask's stimulus log).

The log is a ring of two segments. Each begins with a checkpoint, the whole state of the machine before its first event, so that what is
left after the oldest events have gone can still be replayed. Keeping an event costs one object and one append: nothing is copied or
encoded but the attempts of a checkpoint, once a segment.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field

from lattice_agent.attempts import Seen
from lattice_agent.lifecycle.attempt import Attempt
from lattice_agent.lifecycle.events import Event
from lattice_agent.lifecycle.instructions import Instruction


@dataclass(slots=True)
class Stimulus:
    """Holds one event as the machine was given it."""

    boottime: float
    """CLOCK_BOOTTIME in seconds."""
    event: Event
    instructions: Sequence[Instruction] | None = None
    """What it led to, in order; None: its handling has not ended."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Holds the whole state of a machine between two events; attempts are in the machine's order."""

    node: str
    seen: Seen
    fresh: bool
    ignored_plans: int
    attempts: tuple[Attempt, ...]
    finished: tuple[Attempt, ...]


@dataclass(slots=True)
class Segment:
    """Holds a checkpoint and the events that followed it."""

    first: int
    """How many events were logged before this segment."""
    checkpoint: Checkpoint
    stimuli: list[Stimulus] = field(default_factory=list)


class StimulusLog:
    """Keeps the last events of one machine: at most `limit`, at least half as many once so many have come."""

    def __init__(self, limit: int) -> None:
        self._size = max(1, limit // 2)
        self._segments: deque[Segment] = deque(maxlen=2)

    def append(self, event: Event, boottime: float, checkpoint: Callable[[], Checkpoint]) -> Stimulus:
        """Adds an event before it is handled; the caller fills its instructions in. `checkpoint` is called once a segment."""
        segment = self._segments[-1] if self._segments else None
        if segment is None or len(segment.stimuli) >= self._size:
            segment = Segment(0 if segment is None else segment.first + len(segment.stimuli), checkpoint())
            self._segments.append(segment)
        stimulus = Stimulus(boottime, event)
        segment.stimuli.append(stimulus)
        return stimulus

    def segments(self) -> list[Segment]:
        """Copies of the segments, oldest first, which later events do not change."""
        return [Segment(segment.first, segment.checkpoint, list(segment.stimuli)) for segment in self._segments]


def copies(attempts: Sequence[Attempt]) -> tuple[Attempt, ...]:
    """Copies the attempts as they stand now; their parts are immutable, so that one level is enough."""
    return tuple(copy(attempt) for attempt in attempts)
