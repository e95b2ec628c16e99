"""Follows the heartbeats of nodes that the operator does not judge: which of them are silent, and which so long that they are Down.

Nobody else says of a node whose LatticeNode was deleted under its work that it is Down. The times are those that the operator uses.
"""

from __future__ import annotations

from collections.abc import Iterable

from lattice.lifecycle.heartbeats import Heartbeats
from lattice.lifecycle.node import Timing


class Silence:
    """The silent nodes among those that the operator does not judge; `Nodes` keeps it.

    `silent`: names without a heartbeat for the timeout; `lost`: those of them that have been silent so long that they are Down.
    """

    def __init__(self) -> None:
        self.silent: frozenset[str] = frozenset()
        self.lost: frozenset[str] = frozenset()
        self._beats = Heartbeats()

    def note_heartbeat(self, name: str, version: str, now: float) -> bool:
        """Notes a heartbeat, by the Lease's resourceVersion, at `now` (monotonic); returns True where that ends the node's silence.

        A version that was noted before is no heartbeat.
        """
        fresh = self._beats.hear(name, version, 0, now)
        if not fresh or name not in self.silent:
            return False
        self.silent -= {name}
        self.lost -= {name}
        return True

    def unfollow(self, name: str) -> None:
        """Stops following the heartbeats of a node, by name, that was forgotten."""
        self._beats.remove_node(name)

    def sweep(self, unjudged: Iterable[str], now: float, since: float, timing: Timing, nodes: int) -> frozenset[str]:
        """Finds the silent and lost nodes again among those that the operator does not judge; returns those that became or ceased to be so.

        `nodes` is the number of all nodes: when many fall silent at once, longer times apply. `since`: silence counts from then at the
        earliest; `now` and `since` are monotonic.
        """
        followed = frozenset(unjudged)
        for name in followed:
            self._beats.expect(name, now)
        silent = frozenset(self._beats.sweep(now, since, timing, nodes, followed.__contains__)) if followed else frozenset[str]()
        lost = frozenset(name for name in silent if self._is_down(name, now, since, timing))
        changed = (silent ^ self.silent) | (lost ^ self.lost)
        self.silent, self.lost = silent, lost
        return changed

    def _is_down(self, name: str, now: float, since: float, timing: Timing) -> bool:
        """Tells whether a silent node has been silent so long that it is Down; longer times apply while many are silent at once."""
        pulse = self._beats.pulse(name, now, since)
        return pulse.silence >= (timing.down_after if pulse.mass is None else timing.down_after_mass_silence)
