"""The heartbeats of nodes that the operator does not judge, as the scheduler hears them: who is silent, and for whom that means Down.

A node whose LatticeNode was deleted under its work has nobody else who says that it is Down. The times are the operator's.
"""

from __future__ import annotations

from collections.abc import Iterable

from lattice.lifecycle.heartbeats import Heartbeats
from lattice.lifecycle.node import Timing


class Silence:
    """`silent`: nodes without a heartbeat for the timeout; `lost`: those of them for whom it has lasted so long that they are Down."""

    def __init__(self) -> None:
        self.silent: frozenset[str] = frozenset()
        self.lost: frozenset[str] = frozenset()
        self._beats = Heartbeats()

    def note_heartbeat(self, name: str, version: str, now: float) -> bool:
        """Notes a heartbeat; returns whether it ends a silence."""
        fresh = self._beats.hear(name, version, 0, now)
        if not fresh or name not in self.silent:
            return False
        self.silent -= {name}
        self.lost -= {name}
        return True

    def unfollow(self, name: str) -> None:
        """Follows the node no more."""
        self._beats.forget(name)

    def sweep(self, unjudged: Iterable[str], now: float, since: float, timing: Timing, nodes: int) -> frozenset[str]:
        """Returns those of the nodes whose standing has changed with time alone; `nodes`: how many there are in all."""
        followed = frozenset(unjudged)
        for name in followed:
            self._beats.expect(name, now)
        silent = frozenset(self._beats.sweep(now, since, timing, nodes, followed.__contains__)) if followed else frozenset[str]()
        lost = frozenset(name for name in silent if self._is_down(name, now, since, timing))
        changed = (silent ^ self.silent) | (lost ^ self.lost)
        self.silent, self.lost = silent, lost
        return changed

    def _is_down(self, name: str, now: float, since: float, timing: Timing) -> bool:
        pulse = self._beats.pulse(name, now, since)
        return pulse.silence >= (timing.down_after if pulse.mass is None else timing.down_after_mass_silence)
