"""Lists the events that a node's state machine is given."""

from __future__ import annotations

from dataclasses import dataclass

from lattice.ledger.plans import PlanRow
from lattice_agent.attempts import ExitRecord, Key, Known, Running, Seen
from lattice_agent.members import Direction

GRACE_SECONDS = 30.0
"""From TERM to KILL for work whose terms nobody knows."""


@dataclass(frozen=True, slots=True)
class WorkTerms:
    """Holds what the Allocation says about time, at one generation of its spec."""

    generation: int
    grace_seconds: float = GRACE_SECONDS
    walltime_seconds: float | None = None
    tasks: int = 1
    """On this node; without tasks the walltime is the head's affair."""


@dataclass(frozen=True, slots=True)
class PlanRead:
    """Tells that the plan was read, with the rows that name this node; epoch, term and `since` are those of `PlanSpec`."""

    seq: int
    rows: tuple[PlanRow, ...]
    epoch: int = 0
    term: str = ""
    since: int = 0

    @property
    def seen(self) -> Seen:
        """Gives what the node remembers of the plan."""
        return Seen(self.seq, self.epoch, self.term)


@dataclass(frozen=True, slots=True)
class PlanAbsent:
    """Tells that the cluster was asked and has no plan for this node, which says nothing about what the cluster knows."""


@dataclass(frozen=True, slots=True)
class TermsRead:
    """Tells that the Allocation was read."""

    key: Key
    terms: WorkTerms


@dataclass(frozen=True, slots=True)
class Prepared:
    """Tells that the host has prepared the attempt."""

    key: Key


@dataclass(frozen=True, slots=True)
class Refused:
    """Tells that the attempt cannot be read, prepared or started, with a reason of END_REASONS."""

    key: Key
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Vanished:
    """Tells that the attempt was started here before, and that nothing of it is left."""

    key: Key
    message: str


@dataclass(frozen=True, slots=True)
class Started:
    """Tells that the host has started the attempt."""

    key: Key
    running: Running


@dataclass(frozen=True, slots=True)
class Exited:
    """Tells that no process is left; a record of None: the exit record is gone with the process that keeps it."""

    key: Key
    record: ExitRecord | None


@dataclass(frozen=True, slots=True)
class Missed:
    """Tells that TERM found no process of the work: it had ended before."""

    key: Key


@dataclass(frozen=True, slots=True)
class Survived:
    """Tells that KILL has not ended every process; `message` names who is left."""

    key: Key
    message: str


@dataclass(frozen=True, slots=True)
class Directed:
    """Tells what the reporter wants of this node."""

    key: Key
    direction: Direction


@dataclass(frozen=True, slots=True)
class Tick:
    """Tells that time has passed."""


@dataclass(frozen=True, slots=True)
class Recalled:
    """Tells that the attempt was started here before, and what the disk keeps of it."""

    known: Known

    @property
    def key(self) -> Key:
        """Names the attempt."""
        return self.known.key


Answer = TermsRead | Prepared | Refused | Vanished | Started | Exited | Missed | Survived | Directed
"""What befalls one attempt that the node knows."""
Event = PlanRead | PlanAbsent | Tick | Recalled | Answer
