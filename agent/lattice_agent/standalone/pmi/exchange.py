"""Keeps one node's part in the exchange of a launch: key-value pairs, fences, rings, node attributes, published names, failures.

It does no input or output: ranks call its methods and find `answers`, messages for the hub are in `outgoing`, and `receive` takes those of
the hub. Each message may be lost, doubled or come out of order; `again` of the hub makes the node send all that is not settled.
A fence (and a ring likewise) is numbered. A node sends its part once all of its ranks have entered, and keeps it until the next fence is
over, so that a hub that starts anew can be told again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from lattice_agent.standalone.pmi.payloads import PAIR_BYTES, PART_BYTES, MalformedPayload, Payload, bytes_of, pack, split, text_of, unpack
from lattice_agent.standalone.pmi.rank_data import RankDataRequests
from lattice_agent.standalone.records import Record

TYPE_CHECKING = False  # as typing's, which nothing here loads
if TYPE_CHECKING:
    from typing import Any

MAX_STORE_BYTES = 64 << 20
MAX_KEY_BYTES = 256
MAX_VALUE_BYTES = 16384
MAX_ATTRIBUTE_BYTES = 8 << 20
MAX_NAMES_BYTES = 1 << 20
"""Of all published names with their ports."""
FENCE, RING, PMIX = "fence", "ring", "PMIx fence"
KINDS = (FENCE, RING, PMIX)
FETCH = "fetch"
PIECE_BYTES = 256 << 10
"""The size of one item of a node's data in a fence of PMIx."""

Ring = tuple[int, bytes, bytes]
"""How many stand behind one value, the leftmost and the rightmost value."""


class LaunchFailure(Record):
    """The reason that a launch must end for, in a word: `Aborted`, `RankDied`, `NodeLost`, `FenceBroken`, `Garbage`, `StoreFull`,
    `SilentSingletons`."""

    rank: int
    node: str
    reason: str
    sentence: str
    code: int = 1

    def as_json(self) -> dict[str, Any]:
        """Returns the fields, as `parse` takes them."""
        return {"rank": self.rank, "node": self.node, "reason": self.reason, "sentence": self.sentence, "code": self.code}

    @staticmethod
    def parse(fields: Mapping[str, Any]) -> LaunchFailure:
        """Returns the failure that another node has sent; raises KeyError, TypeError or ValueError."""
        return LaunchFailure(int(fields["rank"]), str(fields["node"]), str(fields["reason"]), str(fields["sentence"]), int(fields["code"]))


class RankAnswer(Record):
    """The answer to a rank that waited: for a fence nothing, for a ring its values, for an attribute or a name the value found.

    The rank -1 is the node's PMIx host: for a fence of PMIx its data, for a fetch what was found.
    """

    rank: int
    subject: str
    value: Any = None


class NodeRound:
    """The fences, or the rings, of one node: which one is open, who has entered, what was sent and what has come."""

    def __init__(self) -> None:
        self.number = 0
        self.entered: dict[int, Any] = {}
        self.sent: dict[int, list[Payload]] = {}
        self._parts: dict[int, list[Any]] = {}

    def collect(self, part: int, parts: int, data: list[Any]) -> list[Any] | None:
        """Adds one part of the open round's result; returns the whole once no part is missing."""
        self._parts[part] = data
        if len(self._parts) < parts:
            return None
        return [item for index in sorted(self._parts) for item in self._parts[index]]

    def advance(self) -> dict[int, Any]:
        """Closes the open round; returns who had entered it. What was sent for it is kept, that of the one before is dropped."""
        entered, self.entered, self._parts = self.entered, {}, {}
        self.sent.pop(self.number - 1, None)
        self.number += 1
        return entered


class NodeExchange:
    """One node's part: its ranks enter, put and ask, and the hub's messages let them go on."""

    def __init__(self, nodes: Sequence[Sequence[int]], node: int, name: str, part_bytes: int = PART_BYTES) -> None:
        self.ranks = frozenset(nodes[node])
        self.name, self._part_bytes = name, part_bytes
        self.answers: list[RankAnswer] = []
        self.outgoing: list[Payload] = []
        self.failure: LaunchFailure | None = None
        self._told: list[Payload] = []
        """What is said again to every hub: failures, and ranks that will never enter a fence."""
        self._store: dict[bytes, bytes] = {}
        self._pending: list[tuple[bytes, bytes]] = []
        self._stored_bytes = self._pending_bytes = self._sent_bytes = 0
        self._attributes: dict[bytes, bytes] = {}
        self._attribute_bytes = 0
        self._awaited: dict[bytes, list[int]] = {}
        self._rounds = {kind: NodeRound() for kind in KINDS}
        self._data = b""
        self._gone: dict[int, str] = {}
        self._asked: dict[int, tuple[int, Payload]] = {}
        self._published: dict[bytes, bytes] = {}
        """The ports of names that this node's ranks have published, for a hub that starts anew."""
        self._publishing: dict[int, tuple[bytes, bytes]] = {}
        """By request: the name and port of which the hub has not said yet whether it publishes them."""
        self._requests = 0
        self.late: list[tuple[str, float]] = []
        """The fences and rings, with seconds, for which the hub asks who is late."""
        self.rank_data = RankDataRequests(nodes, node, part_bytes)

    def put(self, key: bytes, value: bytes) -> str:
        """Keeps a pair, which all ranks see after the next fence; returns why it is refused (empty: it is kept)."""
        if len(key) > MAX_KEY_BYTES:
            return f"the key has {len(key)} bytes and the limit is {MAX_KEY_BYTES}"
        if len(value) > MAX_VALUE_BYTES:
            return f"the value has {len(value)} bytes and the limit is {MAX_VALUE_BYTES}"
        size = len(key) + len(value) + PAIR_BYTES
        if self.store_bytes + size > MAX_STORE_BYTES:
            return f"the pairs of this launch have {self.store_bytes} bytes and the limit is {MAX_STORE_BYTES}"
        self._pending_bytes += size
        self._pending.append((key, value))
        return ""

    def get(self, key: bytes) -> bytes | None:
        """Returns the value that a rank had put before the last fence."""
        return self._store.get(key)

    @property
    def store_bytes(self) -> int:
        """Returns the bytes that all pairs count which this node knows of."""
        return self._stored_bytes + self._pending_bytes + self._sent_bytes

    def put_attribute(self, key: bytes, value: bytes) -> str:
        """Keeps an attribute of the node and answers those who wait for it; returns why it is refused (empty: it is kept)."""
        size = len(key) + len(value) + PAIR_BYTES
        if len(key) > MAX_KEY_BYTES or len(value) > MAX_VALUE_BYTES or self._attribute_bytes + size > MAX_ATTRIBUTE_BYTES:
            return f"an attribute of {size} bytes; a node's may have {MAX_ATTRIBUTE_BYTES} together, a value {MAX_VALUE_BYTES}"
        self._attribute_bytes += size
        self._attributes[key] = value
        self.answers += [RankAnswer(rank, "attribute", value) for rank in self._awaited.pop(key, ())]
        return ""

    def attribute(self, key: bytes) -> bytes | None:
        """Returns an attribute of the node."""
        return self._attributes.get(key)

    def await_attribute(self, rank: int, key: bytes) -> None:
        """Answers the rank once somebody of this node puts the attribute."""
        self._awaited.setdefault(key, []).append(rank)

    def join_round(self, kind: str, rank: int, value: Ring | None = None) -> bool:
        """Lets a rank enter the open fence or ring; returns False where it stands in it already."""
        stage = self._rounds[kind]
        if rank in stage.entered:
            return False
        stage.entered[rank] = value
        if len(stage.entered) == len(self.ranks):
            self._send_part(kind, stage)
        else:
            self._look_for_gone()
        return True

    def join_pmix(self, data: bytes) -> bool:
        """Lets all ranks of the node enter the open fence of PMIx with their data; returns False where they stand in it already."""
        stage = self._rounds[PMIX]
        if stage.entered:
            return False
        stage.entered, self._data = dict.fromkeys(self.ranks), data
        self._send_part(PMIX, stage)
        self._data = b""
        return True

    def fetch(self, number: int, rank: int) -> bool:
        """Asks for the data of a rank of another node, which comes as an answer to rank -1; returns False where that is refused."""
        asked = self.rank_data.request(number, rank)
        self.outgoing += [asked] if asked is not None else []
        return asked is not None

    def answer_fetch(self, number: int, state: int, data: bytes) -> None:
        """Sends the data of a rank here to the node that has asked for it by this number (`rank_data.asked`)."""
        self.outgoing += self.rank_data.answer(number, state, data)

    def late_ranks(self, kind: str) -> frozenset[int]:
        """Returns the node's ranks that have not entered the open fence or ring."""
        return self.ranks - self._rounds[kind].entered.keys()

    def round_number(self, kind: str) -> int:
        """Returns the number of the open fence or ring."""
        return self._rounds[kind].number

    def is_waited_for(self, kind: str) -> bool:
        """Returns whether some of the node's ranks wait in the open fence or ring for others of it."""
        return 0 < len(self._rounds[kind].entered) < len(self.ranks)

    @property
    def waited_for(self) -> bool:
        """Returns whether some of the node's ranks wait in a fence or ring for others of it."""
        return any(map(self.is_waited_for, self._rounds))

    def note_end(self, rank: int, why: str) -> None:
        """Notes that a rank has ended and enters nothing any more; `why` ends the sentence "rank N …"."""
        self._gone[rank] = why
        self._look_for_gone()
        if len(self._gone) == 1:
            rounds = {kind: stage.number + (len(stage.entered) == len(self.ranks)) for kind, stage in self._rounds.items()}
            self._tell({"gone": rank, "rounds": rounds, "why": why})

    def fail(self, failure: LaunchFailure) -> None:
        """Ends the launch, here and by the hub on all nodes; the first failure counts."""
        if self.failure is None:
            self.failure = failure
            self._tell({"failed": failure.as_json()})

    def request_name(self, rank: int, verb: str, name: bytes, port: bytes = b"") -> None:
        """Asks the hub to `publish`, `lookup` or `unpublish` a name; the rank is answered with `(done, port)`.

        A name beyond 1 MiB of them is refused at once.
        """
        if verb == "publish" and self._names_bytes() + len(name) + len(port) + PAIR_BYTES > MAX_NAMES_BYTES:
            self.answers.append(RankAnswer(rank, "name", (False, b"")))
            return
        self._requests += 1
        low = min([*self._asked, self._requests])
        self._asked[self._requests] = (rank, _name_request(self._requests, verb, name, port, low))
        if verb == "publish":
            self._publishing[self._requests] = (name, port)
        elif verb == "unpublish":
            self._published.pop(name, None)
            self._publishing = {request: asked for request, asked in self._publishing.items() if asked[0] != name}
        self.outgoing.append(self._asked[self._requests][1])

    def _names_bytes(self) -> int:
        """Returns the bytes that the names count which this node keeps."""
        return sum(len(name) + len(port) + PAIR_BYTES for name, port in (*self._published.items(), *self._publishing.values()))

    def _take_answer(self, request: int, done: bool, port: bytes) -> None:
        """Passes the hub's answer about a name on, and keeps a name that it has published."""
        asked, (rank, _) = self._publishing.pop(request, None), self._asked.pop(request, (None, b""))
        if asked is not None and done:
            self._published[asked[0]] = asked[1]
        if rank is not None:
            self.answers.append(RankAnswer(rank, "name", (done, port)))

    def receive(self, payload: Payload) -> None:
        """Takes a message of the hub; raises MalformedPayload for what is none."""
        message = unpack(payload)
        try:
            if "again" in message:
                self.outgoing += self._unsettled()
            elif "fetch" in message:
                self.rank_data.take_request(message)
            elif "found" in message:
                if (found := self.rank_data.take_found(message)) is not None:
                    self.answers.append(RankAnswer(-1, FETCH, found))
            elif "answer" in message:
                self._take_answer(int(message["answer"]), bool(message["done"]), bytes_of(message["port"]))
            elif "late" in message:
                kind, seconds = message["late"], float(message["seconds"])
                if self._rounds[kind].number == message["round"] and self.late_ranks(kind):
                    self.late.append((kind, seconds))
            else:
                self._take_result(message["result"], message["round"], message["part"], message["parts"], message["data"])
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            raise MalformedPayload(f"{type(error).__name__}: {error}") from error

    def _send_part(self, kind: str, stage: NodeRound) -> None:
        """Sends this node's part of the open round, in one message or several."""
        if kind == PMIX:
            size = min(PIECE_BYTES, self._part_bytes)
            items: list[Any] = [(at, "", text_of(self._data[at : at + size])) for at in range(0, len(self._data), size)]
        elif kind == FENCE:
            items = [(text_of(key), text_of(value)) for key, value in self._pending]
            self._pending, self._sent_bytes, self._pending_bytes = [], self._pending_bytes, 0
        else:
            items = [(rank, count, text_of(left), text_of(right)) for rank, (count, left, right) in sorted(stage.entered.items())]
        groups = list(split(items, self._part_bytes))
        head = {"part_of": kind, "round": stage.number, "held": self._stored_bytes}
        stage.sent[stage.number] = [pack(head | {"part": index, "parts": len(groups), "data": group}) for index, group in enumerate(groups)]
        self.outgoing += stage.sent[stage.number]

    def _take_result(self, kind: str, number: int, part: int, parts: int, data: list[Any]) -> None:
        """Takes a part of the result of a round; with the last one its ranks go on. A round that is not open is passed over."""
        stage = self._rounds[kind]
        if number != stage.number or number not in stage.sent:
            return
        whole = stage.collect(part, parts, data)
        if whole is None:
            return
        values: dict[int, Any] = {}
        if kind == PMIX:
            stage.advance()
            self.answers.append(RankAnswer(-1, PMIX, b"".join(bytes_of(item[-1]) for item in whole)))
            return
        if kind == FENCE:
            self._sent_bytes = 0
            for key, value in whole:
                self._keep(bytes_of(key), bytes_of(value))
        else:
            values = join_ring(whole)
        self.answers += [RankAnswer(rank, kind, values.get(rank)) for rank in stage.advance()]

    def _keep(self, key: bytes, value: bytes) -> None:
        """Makes a pair visible; an older value of its key is gone."""
        if (old := self._store.get(key)) is not None:
            self._stored_bytes -= len(key) + len(old) + PAIR_BYTES
        self._store[key] = value
        self._stored_bytes += len(key) + len(value) + PAIR_BYTES

    def _look_for_gone(self) -> None:
        """Ends the launch where a rank stands in a fence or ring that a rank of this node, which has ended, will never enter."""
        for kind, stage in self._rounds.items():
            for rank, why in self._gone.items():
                if stage.entered and rank not in stage.entered:
                    self.fail(broken_fence(kind, rank, self.name, why, f"rank {min(stage.entered)}"))
                    return

    def _tell(self, message: Mapping[str, Any]) -> None:
        """Sends a message that every hub is told again."""
        self._told.append(pack(message))
        self.outgoing.append(self._told[-1])

    def _unsettled(self) -> Iterator[Payload]:
        """Yields all that a new hub needs: this node's parts of the open rounds, and those of the rounds before, marked as settled."""
        yield from self._told
        yield from (_name_request(0, "publish", name, port, 0) for name, port in self._published.items())
        yield from (payload for _, payload in self._asked.values())
        yield from self.rank_data.unsettled()
        for stage in self._rounds.values():
            for number, payloads in sorted(stage.sent.items()):
                for payload in payloads:
                    yield payload if number == stage.number else pack(unpack(payload) | {"settled": True})


def join_ring(items: Iterable[Sequence[Any]]) -> dict[int, Ring]:
    """Returns for each rank how many stand before it, the right value of its left and the left value of its right neighbour.

    The ring is in order of ranks, and closed.
    """
    order = sorted((int(rank), int(count), bytes_of(left), bytes_of(right)) for rank, count, left, right in items)
    values: dict[int, Ring] = {}
    before = 0
    for index, (rank, count, _, _) in enumerate(order):
        values[rank] = (before, order[index - 1][3], order[(index + 1) % len(order)][2])
        before += count
    return values


def broken_fence(kind: str, rank: int, node: str, why: str, waiting: str) -> LaunchFailure:
    """Returns the failure of a fence or ring that a rank will never enter, while others wait in it."""
    place = kind if kind == PMIX else f"PMI {kind}"
    return LaunchFailure(rank, node, "FenceBroken", f"{waiting} waits in a {place} for rank {rank} on {node}, which {why}")


def _name_request(request: int, verb: str, name: bytes, port: bytes, low: int) -> Payload:
    """Returns the message that asks the hub about a name; request 0 is not answered, and none below `low` is asked again."""
    return pack({"ask": request, "verb": verb, "name": text_of(name), "port": text_of(port), "low": low})
