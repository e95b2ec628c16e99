"""Keeps one node's requests for data of single ranks of other nodes (PMIx' direct modex), and theirs for those of its own.

It does no input or output: its messages go through the hub, which passes them on and keeps nothing. Each may be lost, doubled or come out
of order: `unsettled` are those to be sent again, and who is asked twice answers once, or twice the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lattice_agent.standalone.pmi.payloads import MalformedPayload, Payload, bytes_of, pack, text_of

TYPE_CHECKING = False  # as typing's, which nothing here loads
if TYPE_CHECKING:
    from typing import Any

MOST_REQUESTS = 4096
"""Of one node that are not answered yet."""
Found = tuple[int, int, bytes]
"""The answer to a request: its number, PMIx' state, the data."""


class RankDataRequests:
    """One node's open requests, by their numbers, and those of other nodes that its PMIx host is to answer."""

    def __init__(self, nodes: Sequence[Sequence[int]], node: int, part_bytes: int) -> None:
        self._ranks, self._everybody = frozenset(nodes[node]), frozenset(rank for ranks in nodes for rank in ranks)
        self._part_bytes = part_bytes
        self.asked: list[tuple[int, int]] = []
        """New requests for data of a rank here: the number to answer with, and the rank."""
        self._asked = 0
        self._askers: dict[int, tuple[int, int]] = {}
        """By that number: the node that asks, and its own number."""
        self._open: dict[int, Payload] = {}
        self._parts: dict[int, dict[int, bytes]] = {}

    def request(self, number: int, rank: int) -> Payload | None:
        """Returns the message that asks for the data of a rank; None: that is refused."""
        if rank not in self._everybody or number in self._open or len(self._open) >= MOST_REQUESTS:
            return None
        self._open[number] = pack({"fetch": rank, "request": number})
        return self._open[number]

    def answer(self, number: int, state: int, data: bytes) -> list[Payload]:
        """Returns the messages with the data of a rank here, for the node that has asked by this number; none where nobody has."""
        if (asker := self._askers.pop(number, None)) is None:
            return []
        node, request = asker
        starts = range(0, len(data) or 1, self._part_bytes)
        head = {"found": request, "to": node, "state": state, "parts": len(starts)}
        return [pack(head | {"part": index, "data": text_of(data[at : at + self._part_bytes])}) for index, at in enumerate(starts)]

    def take_request(self, message: Mapping[str, Any]) -> None:
        """Notes that another node asks for the data of a rank here; raises MalformedPayload, KeyError, TypeError or ValueError."""
        rank, asker = int(message["fetch"]), (int(message["from"]), int(message["request"]))
        if rank not in self._ranks:
            raise MalformedPayload(f"rank {rank} is none of this node")
        if asker not in self._askers.values():
            self._asked += 1
            self._askers[self._asked] = asker
            self.asked.append((self._asked, rank))

    def take_found(self, message: Mapping[str, Any]) -> Found | None:
        """Takes a part of the data that this node has asked for; returns the answer with the last one. Raises as `take_request`."""
        number = int(message["found"])
        if number not in self._open:
            return None
        parts = self._parts.setdefault(number, {})
        parts[int(message["part"])] = bytes_of(message["data"])
        if len(parts) < int(message["parts"]):
            return None
        del self._open[number], self._parts[number]
        return number, int(message["state"]), b"".join(parts[part] for part in sorted(parts))

    def unsettled(self) -> Iterable[Payload]:
        """Returns the requests that are not answered."""
        return self._open.values()
