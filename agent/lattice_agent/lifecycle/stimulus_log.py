"""Keeps the last events of a node with the instructions that they led to, for inspection and replay (after dask's stimulus log).

The log is a ring of two segments. Each begins with a checkpoint, the whole state of the machine before its first event, so that the rest
can still be replayed after the oldest events are dropped. Keeping an event costs one object and one append; only checkpoints copy attempts,
once a segment.
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
    """One event as the machine received it, with the instructions that followed."""

    boottime: float
    """The event's time on CLOCK_BOOTTIME, in seconds."""
    event: Event
    instructions: Sequence[Instruction] | None = None
    """The instructions that followed, in order; None: its handling has not ended."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The whole state of a machine between two events; attempts are in the machine's order."""

    node: str
    seen: Seen
    fresh: bool
    ignored_plans: int
    attempts: tuple[Attempt, ...]
    finished: tuple[Attempt, ...]


@dataclass(slots=True)
class Segment:
    """A checkpoint, and the events that followed it."""

    first: int
    """How many events were logged before this segment."""
    checkpoint: Checkpoint
    stimuli: list[Stimulus] = field(default_factory=list)


class StimulusLog:
    """The last events of one machine: at most `limit`, and at least half as many once so many have come."""

    def __init__(self, limit: int) -> None:
        self._size = max(1, limit // 2)
        self._segments: deque[Segment] = deque(maxlen=2)

    def append(self, event: Event, boottime: float, checkpoint: Callable[[], Checkpoint]) -> Stimulus:
        """Appends an event that is about to be handled and returns its entry, to which the caller adds the instructions that follow.

        `checkpoint` returns the machine's state; it is called at the beginning of each segment of the log.
        """
        segment = self._segments[-1] if self._segments else None
        if segment is None or len(segment.stimuli) >= self._size:
            segment = Segment(0 if segment is None else segment.first + len(segment.stimuli), checkpoint())
            self._segments.append(segment)
        stimulus = Stimulus(boottime, event)
        segment.stimuli.append(stimulus)
        return stimulus

    def segments(self) -> list[Segment]:
        """Returns copies of the segments, oldest first, which later events do not change."""
        return [Segment(segment.first, segment.checkpoint, list(segment.stimuli)) for segment in self._segments]


def copies(attempts: Sequence[Attempt]) -> tuple[Attempt, ...]:
    """Returns copies of the attempts as they are now; their parts are immutable."""
    return tuple(copy(attempt) for attempt in attempts)
