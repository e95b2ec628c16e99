"""Decides in a fence of several nodes which ones have been silent for too long, and which ones are to name their late ranks; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from lattice_agent.launches.node_part import NodePart

Owed = Mapping[tuple[str, int], frozenset[int]]
"""By fence, given as kind and number: the places of the nodes whose part is missing."""
NOTHING_OWED: Final[Owed] = {}


class FenceWatch:
    """Follows the open fences of one launch: when each was seen first, and which nodes have been asked who is late."""

    def __init__(self) -> None:
        self._begun: dict[tuple[str, int], float] = {}
        self._asked: set[tuple[str, int, int]] = set()

    def note_fences(self, owed: Owed, now: float) -> None:
        """Notes the fences in which somebody waits now; `now` in seconds of the monotonic clock."""
        self._begun = {fence: self._begun.get(fence, now) for fence in owed}
        self._asked = {asked for asked in self._asked if asked[:2] in owed}

    def silent_parts(self, parts: Sequence[NodePart], owed: Owed, now: float, seconds: float) -> list[NodePart]:
        """Returns the nodes that owe their part of a fence and have been silent so long in it, in the launch's order."""
        since = dict[int, float]()
        for fence, places in owed.items():
            for place in places:
                since[place] = min(since.get(place, now), self._begun[fence])
        return [
            part for part in parts if part.place in since and is_silent(part) and now - max(since[part.place], part.silent_since) >= seconds
        ]

    def late_parts(self, parts: Sequence[NodePart], owed: Owed, now: float, seconds: float) -> list[tuple[NodePart, str, int]]:
        """Returns the nodes that are heard and that others have waited for so long in a fence, with its kind and number, each once."""
        found = [
            (parts[place], kind, number)
            for (kind, number), places in sorted(owed.items())
            if now - self._begun[kind, number] >= seconds
            for place in sorted(places)
            if parts[place].up and (kind, number, place) not in self._asked
        ]
        self._asked |= {(kind, number, part.place) for part, kind, number in found}
        return found


def is_silent(part: NodePart) -> bool:
    """Tells whether a node with ranks that may live is not heard."""
    return not part.up and not part.over


def silence_sentence(parts: Sequence[NodePart], seconds: float) -> str:
    """Returns why a launch ends whose fence these nodes have kept waiting."""
    names = ", ".join(part.ranks.name for part in parts)
    nodes, have, them = ("nodes", "have", "them") if len(parts) > 1 else ("node", "has", "it")
    return (
        f"{nodes} {names} {have} not been heard for {seconds:g} s, and the others wait in a PMI fence for {them} (option mpi.fenceTimeout)"
    )
