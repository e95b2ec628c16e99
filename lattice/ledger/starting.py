"""Decides from the nodes' reports why a placed attempt has not started, and when it has waited too long.

The wait counts from the last node that was prepared: an attempt that no node can prepare, since no gateway serves it, waits on. The
wait is over only once every node that has not started has reported so again since: a late report, or a reporter that could not
write, ends nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from lattice.ledger.reports import BEGUN, ENDED, GONE, IDLE, NO_PROCESS_LEFT, PREPARING, PULLING, READY, UNKNOWN_EXIT
from lattice.units import fold_nodes, format_duration, format_time

START_TIMEOUT: Final = "StartTimeout"
PARTLY_STARTED: Final = "PartlyStarted"
WAITS: Final = "WaitsForNodes"
UNREACHABLE: Final = "PeersUnreachable"
NO_GATEWAY: Final = "NoGateway"
TIMED_OUT: Final = frozenset({START_TIMEOUT, PARTLY_STARTED})
START_SECONDS: Final = 120.0
START_TRIES: Final = 3
"""After so many attempts in a row that did not start, none follows."""
SHOWN_AFTER_SECONDS: Final = 10.0
"""Seconds after which a wait is shown in the status; attempts that start sooner cost no write."""
LOOK_SECONDS: Final = 10.0
MOST_PAIRS, MOST_CHARACTERS = 4, 160


@dataclass(frozen=True, slots=True)
class AttemptNodeState:
    """The state of one attempt on one of its nodes, by the node's Lease report and the operator's judgement; None: not reported.

    `state` and `detail`: of its report row. `down`: confirmed Down, or disabled, for the heartbeat that was last seen.
    `vouched_seconds`: for how long the node has reported that no process of the attempt is left; `prepared_seconds`: that it is
    prepared. `unserved_since`: since when no gateway gives it its work, seconds since the epoch. `age`: seconds since its newest
    report. `away`: nodes that it cannot reach.
    """

    name: str
    down: bool = False
    disabled: bool = False
    fenced: bool = False
    silent: bool = False
    state: str = ""
    detail: str = ""
    at_walltime: bool = False
    vouched_seconds: float = 0.0
    prepared_seconds: float = 0.0
    unserved_since: float | None = None
    age: float = 0.0
    away: frozenset[str] = field(default_factory=frozenset)

    @property
    def empty(self) -> bool:
        """Tells whether no process of the attempt can run on the node any more."""
        return self.fenced or self.state in NO_PROCESS_LEFT

    @property
    def waits(self) -> bool:
        """Tells whether the node has not started the attempt yet."""
        return self.state in ("", PREPARING)

    @property
    def begun(self) -> bool:
        """Tells whether the node guarantees that the attempt started there and is over; the status may not show the start yet."""
        return self.state in (ENDED, UNKNOWN_EXIT) or (self.state == GONE and self.detail == BEGUN)

    @property
    def prepared(self) -> bool:
        """Tells whether the node has prepared the attempt and waits only for the other nodes."""
        return self.state == PREPARING and self.detail == READY

    @property
    def pulls(self) -> bool:
        """Tells whether images of the attempt are on their way to the node, which bounds that itself (software.pullTimeout)."""
        return self.state == PREPARING and self.detail == PULLING

    @property
    def idle(self) -> bool:
        """Tells whether the node has no task of the attempt, so that it ends with the others."""
        return not self.empty and self.detail == IDLE


@dataclass(frozen=True, slots=True)
class Wait:
    """The wait of a placed attempt that has not started: reason and message for its condition (empty: not worth showing yet).

    `over`: it has waited too long. `seconds`: when to judge it again.
    """

    reason: str
    message: str
    over: bool
    seconds: float


def judge(standings: Sequence[AttemptNodeState], placed_seconds: float, timeout: float) -> Wait | None:
    """Returns the wait of an attempt that was placed `placed_seconds` ago and has not started on every node; None: it has.

    In the first 10 s there is nothing to show yet. `timeout`: the longest wait in seconds after the last node was prepared. While images
    are on their way to a node the wait is not over.
    """
    waiting = [one for one in standings if one.waits]
    if not waiting:
        return None
    waited = min([placed_seconds, *(one.prepared_seconds for one in standings if one.prepared)])
    if placed_seconds < SHOWN_AFTER_SECONDS:
        return Wait("", "", False, SHOWN_AFTER_SECONDS - placed_seconds)
    pairs, message = cut_pairs(standings), _sentence(standings, waiting)
    begun = any(one.prepared or not one.waits for one in standings)
    late = begun and waited >= timeout and not any(one.pulls for one in waiting)
    if late and all(one.age <= waited - timeout for one in waiting):
        reason = START_TIMEOUT if len(waiting) == len(standings) else PARTLY_STARTED
        return Wait(reason, f"had not started {format_duration(timeout)} after the last node was prepared: {message}", True, 0.0)
    reason = UNREACHABLE if pairs else NO_GATEWAY if any(one.unserved_since is not None for one in waiting) else WAITS
    return Wait(reason, message, False, min(LOOK_SECONDS, max(1.0, timeout - waited)))


def cut_pairs(standings: Sequence[AttemptNodeState]) -> list[tuple[str, list[str]]]:
    """Returns (node, other nodes of the attempt that it cannot reach) for each node that reports such nodes; empty: all are reachable."""
    cut = [one for one in standings if one.away]
    if not cut:
        return []
    names = [one.name for one in standings]
    found = [(one.name, [name for name in names if name in one.away]) for one in cut]
    return [(name, others) for name, others in found if others]


def _sentence(standings: Sequence[AttemptNodeState], waiting: Sequence[AttemptNodeState]) -> str:
    """Returns the sentence of a wait: nodes that are not prepared or not served, how many have started, which cannot reach others."""
    prepared = [one.name for one in waiting if one.prepared]
    missing = [one.name for one in waiting if not one.prepared]
    started = len(standings) - len(waiting)
    said = [f"{len(prepared)} of {len(standings)} nodes are prepared" if missing or started else "every node is prepared"]
    if started:
        said.append(f"{started} have started")
    if missing:
        said.append(f"{_fold(missing)} {'is' if len(missing) == 1 else 'are'} not prepared")
    if pulls := [one.name for one in waiting if one.pulls]:
        said.append(f"images are on their way to {_fold(pulls)}")
    unserved = {one.name: one.unserved_since for one in waiting if one.unserved_since is not None}
    if unserved:
        said.append(f"no gateway gives {_fold(unserved)} the work, since {format_time(min(unserved.values()))}")
    pairs = cut_pairs(standings)
    said += [f"{name} cannot reach {_fold(others)}" for name, others in pairs[:MOST_PAIRS]]
    if len(pairs) > MOST_PAIRS:
        said.append(f"{len(pairs) - MOST_PAIRS} more nodes cannot reach others")
    return "; ".join(said)


def _fold(names: Iterable[str]) -> str:
    """Returns node names in node set notation, cut to 160 characters with … at the end."""
    text = fold_nodes(list(names))
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 1]}…"
