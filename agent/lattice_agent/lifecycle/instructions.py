"""The instructions that the state machine gives: each is carried out once, in order, and most are answered by an event."""

from __future__ import annotations

from dataclasses import dataclass

from lattice_agent.attempts import EarlySignal, Key, Ordered, Seen


@dataclass(frozen=True, slots=True)
class Read:
    """Orders to read the Allocation; TermsRead or Refused answers."""

    key: Key


@dataclass(frozen=True, slots=True)
class Prepare:
    """Orders the host to prepare the attempt; Prepared, Refused, Recalled or Vanished answers."""

    key: Key


@dataclass(frozen=True, slots=True)
class Start:
    """Orders the host to start the attempt; Started or Refused answers."""

    key: Key


@dataclass(frozen=True, slots=True)
class Terminate:
    """Interrupts preparation or start, and sends TERM; Missed follows where there is nothing to end, Exited where TERM helps."""

    key: Key
    order: Ordered


@dataclass(frozen=True, slots=True)
class Signal:
    """Orders the signal before the end, which is sent once at most, whatever agent follows this one."""

    key: Key
    signal: EarlySignal


@dataclass(frozen=True, slots=True)
class Kill:
    """Orders KILL until no process is left; Exited follows."""

    key: Key


@dataclass(frozen=True, slots=True)
class Clear:
    """Has the host undo, in reverse, what was prepared for an attempt of which no process is left; Cleared answers."""

    key: Key


@dataclass(frozen=True, slots=True)
class Forget:
    """Orders the host to drop an attempt, settled by the plan of this seq (0: unknown)."""

    key: Key
    seq: int = 0


@dataclass(frozen=True, slots=True)
class Remember:
    """Orders the newest plan's seq to be kept durably."""

    seen: Seen


Instruction = Read | Prepare | Start | Terminate | Signal | Kill | Clear | Forget | Remember
