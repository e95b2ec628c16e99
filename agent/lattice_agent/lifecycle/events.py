"""What befalls a node: everything that its state machine hears of."""

from __future__ import annotations

from dataclasses import dataclass

from lattice.ledger.plans import PlanRow
from lattice_agent.attempts import ExitRecord, Key, Known, Running, Seen
from lattice_agent.members import Direction

GRACE_SECONDS = 30.0
"""From TERM to KILL for work whose terms nobody knows."""


@dataclass(frozen=True, slots=True)
class Terms:
    """What the Allocation says about time, at one generation of its spec."""

    generation: int
    grace_seconds: float = GRACE_SECONDS
    walltime_seconds: float | None = None
    tasks: int = 1
    """On this node; without tasks the walltime is the head's affair."""


@dataclass(frozen=True, slots=True)
class PlanRead:
    """The plan, with the rows that name this node; epoch, term and `since` as in `PlanSpec`."""

    seq: int
    rows: tuple[PlanRow, ...]
    epoch: int = 0
    term: str = ""
    since: int = 0

    @property
    def seen(self) -> Seen:
        """What is remembered of it."""
        return Seen(self.seq, self.epoch, self.term)


@dataclass(frozen=True, slots=True)
class PlanAbsent:
    """The cluster was asked and has no plan for this node: that says nothing about what it knows."""


@dataclass(frozen=True, slots=True)
class TermsRead:
    """The Allocation was read."""

    key: Key
    terms: Terms


@dataclass(frozen=True, slots=True)
class Prepared:
    """The host has prepared it."""

    key: Key


@dataclass(frozen=True, slots=True)
class Refused:
    """It cannot be read, prepared or started, with a reason of END_REASONS."""

    key: Key
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Vanished:
    """The host says that it was started here before, and nothing of it is left."""

    key: Key
    message: str


@dataclass(frozen=True, slots=True)
class Started:
    """The host has started it."""

    key: Key
    running: Running


@dataclass(frozen=True, slots=True)
class Exited:
    """No process is left; None: the exit record is gone with the process that keeps it."""

    key: Key
    record: ExitRecord | None


@dataclass(frozen=True, slots=True)
class Missed:
    """TERM found no process of the work: it had ended before."""

    key: Key


@dataclass(frozen=True, slots=True)
class Survived:
    """KILL has not ended all of it: `message` names who is left."""

    key: Key
    message: str


@dataclass(frozen=True, slots=True)
class Directed:
    """The reporter's word."""

    key: Key
    direction: Direction


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Recalled:
    """The host says that it was started here before, and what the disk keeps of it."""

    known: Known

    @property
    def key(self) -> Key:
        """The attempt."""
        return self.known.key


Answer = TermsRead | Prepared | Refused | Vanished | Started | Exited | Missed | Survived | Directed
"""What befalls one attempt that the node knows."""
Event = PlanRead | PlanAbsent | Tick | Recalled | Answer
