"""What the state machine orders: each is carried out once, in order, and most are answered by an event."""

from __future__ import annotations

from dataclasses import dataclass

from lattice_agent.attempts import Key, Ordered, Seen


@dataclass(frozen=True, slots=True)
class Read:
    """GET the Allocation; answered by TermsRead or Refused."""

    key: Key


@dataclass(frozen=True, slots=True)
class Prepare:
    """Answered by Prepared, Refused, Recalled or Vanished."""

    key: Key


@dataclass(frozen=True, slots=True)
class Start:
    """Answered by Started or Refused."""

    key: Key


@dataclass(frozen=True, slots=True)
class Terminate:
    """TERM; Missed follows where there is nothing to end, Exited when it helps."""

    key: Key
    order: Ordered


@dataclass(frozen=True, slots=True)
class Kill:
    """KILL until nothing is left; Exited follows."""

    key: Key


@dataclass(frozen=True, slots=True)
class Forget:
    """Settled by the plan of this seq: the host may drop it."""

    key: Key
    seq: int = 0


@dataclass(frozen=True, slots=True)
class Remember:
    """Keep the newest plan's seq durably."""

    seen: Seen


Instruction = Read | Prepare | Start | Terminate | Kill | Forget | Remember
