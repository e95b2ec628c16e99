"""The events that a node's state machine receives."""

from __future__ import annotations

from dataclasses import dataclass

from lattice.ledger.plans import PlanRow
from lattice_agent.attempts import EarlySignal, ExitRecord, Key, Known, Running, Seen
from lattice_agent.members import Direction

GRACE_SECONDS = 30.0
"""Time from TERM to KILL for work whose terms are unknown."""
EPILOGUE_SECONDS = 300.0
"""From the last process to the report of the end, at the latest, for work whose terms nobody knows."""


@dataclass(frozen=True, slots=True)
class WorkTerms:
    """The times that an Allocation sets, at one generation of its spec; `walltime_seconds` None: no limit."""

    generation: int
    grace_seconds: float = GRACE_SECONDS
    walltime_seconds: float | None = None
    tasks: int = 1
    """Tasks on this node; without any, the walltime is enforced on the head."""
    epilogue_seconds: float = EPILOGUE_SECONDS
    """How long the epilogue may hold the report of the end up."""
    signal: EarlySignal | None = None
    """What it gets before its walltime is over; None: nothing."""


@dataclass(frozen=True, slots=True)
class PlanRead:
    """The plan was read: `rows` are those that name this node; epoch, term and `since` are those of `PlanSpec`."""

    seq: int
    rows: tuple[PlanRow, ...]
    epoch: int = 0
    term: str = ""
    since: int = 0

    @property
    def seen(self) -> Seen:
        """Returns the seq, epoch and term of this plan, which the node remembers to recognise an older or another ledger."""
        return Seen(self.seq, self.epoch, self.term)


@dataclass(frozen=True, slots=True)
class PlanAbsent:
    """The cluster has no plan for this node, which says nothing about attempts that run here."""


@dataclass(frozen=True, slots=True)
class TermsRead:
    """The Allocation's terms were read."""

    key: Key
    terms: WorkTerms


@dataclass(frozen=True, slots=True)
class Prepared:
    """The host has prepared the attempt."""

    key: Key


@dataclass(frozen=True, slots=True)
class Refused:
    """The attempt cannot be read, prepared or started; `reason` is one of END_REASONS."""

    key: Key
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Vanished:
    """The attempt was started here before, and neither files nor processes of it are left."""

    key: Key
    message: str


@dataclass(frozen=True, slots=True)
class Started:
    """The host has started the attempt."""

    key: Key
    running: Running


@dataclass(frozen=True, slots=True)
class Exited:
    """The last process of the attempt has ended; `record` None: its shim was killed before it wrote one."""

    key: Key
    record: ExitRecord | None


@dataclass(frozen=True, slots=True)
class Missed:
    """TERM found no process of the work: it had ended before."""

    key: Key


@dataclass(frozen=True, slots=True)
class Cleared:
    """Tells that everything that was prepared for the attempt is undone."""

    key: Key


@dataclass(frozen=True, slots=True)
class Survived:
    """KILL has not ended every process; `message` names those that are left."""

    key: Key
    message: str


@dataclass(frozen=True, slots=True)
class Directed:
    """The reporter's newest direction has arrived."""

    key: Key
    direction: Direction


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed: a walltime or a grace period may be over."""


@dataclass(frozen=True, slots=True)
class Recalled:
    """The attempt was started here before; `known` is what the disk keeps of it."""

    known: Known

    @property
    def key(self) -> Key:
        """Returns the key of the attempt."""
        return self.known.key


Answer = TermsRead | Prepared | Refused | Vanished | Started | Exited | Missed | Survived | Cleared | Directed
"""The events that concern one attempt and answer an instruction."""
Event = PlanRead | PlanAbsent | Tick | Recalled | Answer
