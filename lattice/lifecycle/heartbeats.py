"""Knows when each node's heartbeat was last seen to change: silence as one observer knows it (decision "heartbeat").

Time is the observer's own monotonic clock. `since` is the moment from which its watch has been without a gap: earlier changes may
have been seen late, so silence counts from there at the earliest, and only a change after it is a fresh heartbeat. The table is
kept in the order of the last change, so that the silent nodes are its beginning.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lattice.lifecycle.node import Pulse, Timing

MASS_AT_LEAST = 10


@dataclass(slots=True)
class _Beat:
    """The last seen change of one node's heartbeat: time, version and number.

    `mass`: how many nodes were silent and how many expected when most fell silent together; None: they did not.
    """

    at: float
    version: str = ""
    number: int = 0
    mass: tuple[int, int] | None = None


class Heartbeats:
    """The heartbeats of all nodes that one observer (the operator, or the scheduler) follows.

    It has one owner and is changed by `expect`, `hear` and `remove_node`; `validate` checks its order against the times.
    """

    def __init__(self) -> None:
        self._beats: OrderedDict[str, _Beat] = OrderedDict()

    def __len__(self) -> int:
        """Returns how many nodes are followed."""
        return len(self._beats)

    def __contains__(self, name: str) -> bool:
        """Tells whether a node is followed."""
        return name in self._beats

    def expect(self, name: str, now: float) -> None:
        """Begins to follow a node at `now`, before any heartbeat of it is seen; a followed node is unchanged."""
        if name not in self._beats:
            self._beats[name] = _Beat(now)

    def hear(self, name: str, version: str, number: int, now: float) -> bool:
        """Notes the version and number of a node's heartbeat at `now`, follows the node from then on, and removes its mark of a mass
        silence.

        Returns False, and changes nothing, where the version is the last one seen. `now` must not be before that of an earlier call.
        """
        beat = self._beats.get(name)
        if beat is not None and beat.version == version:
            return False
        self._beats[name] = _Beat(now, version, number)
        self._beats.move_to_end(name)
        return True

    def remove_node(self, name: str) -> None:
        """Stops following a node."""
        self._beats.pop(name, None)

    def pulse(self, name: str, now: float, since: float) -> Pulse:
        """Returns a node's silence in seconds and its last heartbeat, as this observer knows them; an empty pulse for an unknown node.

        `since`: the moment from which its watch has been without a gap; silence counts from there at the earliest.
        """
        beat = self._beats.get(name)
        if beat is None:
            return Pulse()
        heard = bool(beat.version) and beat.at > since
        return Pulse(max(0.0, now - max(beat.at, since)), heard, beat.number, beat.mass)

    def silent(self, now: float, since: float, timeout: float) -> Iterator[str]:
        """Yields the nodes whose heartbeat has not changed for `timeout` seconds, whatever their state, the longest silence first.

        Yields none where the watch (without a gap from `since` on) is shorter than that.
        """
        if now - since < timeout:
            return
        for name, beat in self._beats.items():
            if now - beat.at < timeout:
                return
            yield name

    def unheard(self, since: float, is_expected: Callable[[str], bool]) -> int:
        """Returns how many of the followed nodes that are expected to report have shown no change of their heartbeat after `since`."""
        return sum(not (beat.version and beat.at > since) and is_expected(name) for name, beat in self._beats.items())

    def sweep(self, now: float, since: float, timing: Timing, expected: int, is_expected: Callable[[str], bool]) -> list[str]:
        """Returns the silent nodes that are expected to report; marks them where they are more than half of `expected` and at least ten.

        The mark (`Pulse.mass`) stays until the node is heard again: a network that comes back node by node shortens no node's wait.
        """
        names = [name for name in self.silent(now, since, timing.timeout) if is_expected(name)]
        if len(names) >= MASS_AT_LEAST and 2 * len(names) > expected:
            for name in names:
                beat = self._beats[name]
                beat.mass = beat.mass or (len(names), expected)
        return names

    def validate(self) -> None:
        """Raises AssertionError where the order of the table is not the order of the times."""
        times = [beat.at for beat in self._beats.values()]
        assert times == sorted(times), "the table is out of order"  # noqa: S101 - an invariant
