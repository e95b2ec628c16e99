"""Joins the nodes of one launch: collects their parts of each fence and ring, and sends all of them the whole; keeps published names.

It does no input or output, and need not be kept: a hub that starts anew sends every node `again`, and their answers bring it up to date.
The keeper of a launch on one node has its hub inside; for several nodes the head's agent has it.
"""

from __future__ import annotations

from collections.abc import Sequence

from lattice_agent.standalone.pmi.exchange import FENCE, KINDS, MAX_NAMES_BYTES, MAX_STORE_BYTES, PMIX, LaunchFailure, broken_fence
from lattice_agent.standalone.pmi.payloads import PAIR_BYTES, PART_BYTES, MalformedPayload, Payload, pack, split, unpack, weight

TYPE_CHECKING = False  # as typing's, which nothing here loads
if TYPE_CHECKING:
    from typing import Any

ROUNDS_KEPT = 3
"""Parts of the open round, of the one before, and of a next one whose nodes were told earlier than others."""

MAX_ANSWERS_BYTES = 64 << 20
"""Most bytes of the answers about names that are kept for one node: one to each of its ranks that asks."""

Outgoing = list[tuple[int, Payload]]


class HubRound:
    """One fence or ring: the parts of every node that has sent any, and the whole once all have."""

    def __init__(self) -> None:
        self.parts: dict[int, dict[int, list[Any]]] = {}
        self.expected: dict[int, int] = {}
        self.settled: set[int] = set()
        self.held = self.bytes = 0
        self.result: list[Payload] | None = None

    def collect_part(self, node: int, part: int, parts: int, data: list[Any], held: int) -> None:
        """Takes one of a node's parts, which may come again; `held` are the bytes of all pairs before this round."""
        mine = self.parts.setdefault(node, {})
        if part not in mine:
            self.bytes += sum(map(weight, data))
            mine[part] = data
        self.expected[node], self.held = parts, max(self.held, held)

    def whole_nodes(self) -> frozenset[int]:
        """Returns the nodes of whose part nothing is missing."""
        return frozenset(node for node, parts in self.parts.items() if len(parts) == self.expected[node])

    def items(self) -> list[Any]:
        """Returns what all nodes have sent, in order of nodes."""
        return [item for node in sorted(self.parts) for index in sorted(self.parts[node]) for item in self.parts[node][index]]


class Hub:
    """Joins the nodes of one launch, given by their ranks and names in the launch's order."""

    def __init__(self, nodes: Sequence[Sequence[int]], node_names: Sequence[str], part_bytes: int = PART_BYTES) -> None:
        self._nodes_ranks, self._nodes, self._part_bytes = list(nodes), len(nodes), part_bytes
        self._names = list(node_names)
        self._rounds: dict[tuple[str, int], HubRound] = {}
        self._concluded: dict[str, int] = {}
        self._gone: dict[int, tuple[int, dict[str, int], str]] = {}
        self._published: dict[str, str] = {}
        self._answered: dict[int, dict[int, Payload]] = {index: {} for index in range(self._nodes)}
        self.failure: LaunchFailure | None = None
        self.fences = 0

    @property
    def is_waiting(self) -> bool:
        """Tells whether a fence has parts of some node, and is not concluded."""
        return any(kind in (FENCE, PMIX) and state.result is None and state.parts for (kind, _), state in self._rounds.items())

    @property
    def owed(self) -> dict[tuple[str, int], frozenset[int]]:
        """Returns the nodes whose part is missing of each open fence and ring, given by kind and number, in which others wait for it."""
        return {
            round_: frozenset(range(self._nodes)) - whole
            for round_, state in self._rounds.items()
            if state.result is None and (whole := state.whole_nodes()) - state.settled
        }

    def ask_for_late(self, kind: str, number: int, seconds: float) -> Payload:
        """Returns the message that has a node name its ranks for which others have waited so long in this fence or ring."""
        return pack({"late": kind, "round": number, "seconds": seconds})

    def again(self) -> Payload:
        """Returns the message that makes a node send all that is not settled; for each connection that begins."""
        return pack({"again": True})

    def receive(self, node: int, payload: Payload) -> Outgoing:
        """Takes a message of a node; returns the messages to send, each with the index of its node. What is no message ends the launch."""
        try:
            message = unpack(payload)
            if "failed" in message:
                self._fail(LaunchFailure.parse(message["failed"]))
            elif "gone" in message:
                self._gone[node] = (int(message["gone"]), dict(message["rounds"]), str(message["why"]))
                self._look_for_broken()
            elif "ask" in message:
                return self._answer(node, message)
            elif "fetch" in message or "found" in message:
                return self._pass_on(node, message)
            else:
                return self._take_part(node, message)
        except (MalformedPayload, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            name = self._names[node]
            self._fail(LaunchFailure(-1, name, "Garbage", f"{name} sent what is no PMI exchange: {type(error).__name__}: {error}"))
        return []

    def lose(self, node: int) -> None:
        """Notes that a node's ranks were killed with their keeper; the launch ends, at once where they had met others before."""
        name = self._names[node]
        rounds: dict[str, int] = dict.fromkeys(KINDS, 0)
        self._gone[node] = (min(self._nodes_ranks[node], default=-1), rounds, "was killed with its keeper")
        if self._concluded or any(number for _, number in self._rounds):
            sentence = f"the ranks on {name} were killed with their keeper, after they had met the others"
            self._fail(LaunchFailure(-1, name, "NodeLost", sentence))
        self._look_for_broken()

    def _take_part(self, node: int, message: dict[str, Any]) -> Outgoing:
        """Takes a part of a node's share in a round; returns the round's result where it is whole."""
        kind, number, part = message["part_of"], int(message["round"]), int(message["part"])
        most = 2 * MAX_STORE_BYTES // self._part_bytes + 2  # two parts together are above the size of one
        if kind not in KINDS or not 0 <= part < int(message["parts"]) <= most:
            raise MalformedPayload(f"part {part} of {kind!r}, of {message['parts']}; the limit is {most}")
        if number < self._concluded.get(kind, 0):
            return []  # every node had its result before it sent its part of the concluded one
        state = self._rounds.setdefault((kind, number), HubRound())
        if message.get("settled"):
            state.settled.add(node)
        if state.result is not None:
            return [] if node in state.settled else [(node, payload) for payload in state.result]
        state.collect_part(node, part, int(message["parts"]), message["data"], int(message["held"]))
        self._look_for_excess(state)
        self._look_for_broken()
        if self.failure or len(state.whole_nodes()) < self._nodes:
            return []
        result = self._conclude(kind, number, state)
        return [(index, each) for index in range(self._nodes) if index not in state.settled for each in result]

    def _conclude(self, kind: str, number: int, state: HubRound) -> list[Payload]:
        """Makes and returns the result of a round of which no part is missing, and drops older rounds, whose results all nodes had."""
        groups = list(split(state.items(), self._part_bytes))
        state.result = [
            pack({"result": kind, "round": number, "part": index, "parts": len(groups), "data": group})
            for index, group in enumerate(groups)
        ]
        state.parts, state.expected = {}, {}
        self._concluded[kind] = number
        self.fences += kind in (FENCE, PMIX)
        for of, other in list(self._rounds):
            if of == kind and other < number:
                del self._rounds[of, other]
        return state.result

    def _pass_on(self, node: int, message: dict[str, Any]) -> Outgoing:
        """Passes a request for the data of a rank on to its node, and the data to the node that asked for it."""
        if "fetch" in message:
            rank, request = int(message["fetch"]), int(message["request"])
            owner = next((index for index, ranks in enumerate(self._nodes_ranks) if rank in ranks), None)
            if owner is None:
                raise MalformedPayload(f"rank {rank} is none of the launch")
            return [(owner, pack({"fetch": rank, "from": node, "request": request}))]
        to = int(message["to"])
        if not 0 <= to < self._nodes:
            raise MalformedPayload(f"node {to} is none of the launch")
        return [(to, pack(message))]

    def _answer(self, node: int, message: dict[str, Any]) -> Outgoing:
        """Publishes, looks up or withdraws a name; the same request is answered the same again."""
        number, low, verb, name = int(message["ask"]), int(message["low"]), message["verb"], str(message["name"])
        answered = self._answered[node]
        if number not in answered or not number:
            done, port = self._act_on_name(verb, name, str(message["port"]))
            answered[number] = pack({"answer": number, "done": done, "port": port})
        payload = answered[number]
        for old in [old for old in answered if old < low]:
            del answered[old]
        if sum(len(kept) + PAIR_BYTES for kept in answered.values()) > MAX_ANSWERS_BYTES:
            raise MalformedPayload(f"it asks about names without end, and takes no answer: {len(answered)} wait for it")
        return [(node, payload)] if number else []

    def _act_on_name(self, verb: str, name: str, port: str) -> tuple[bool, str]:
        """Returns whether that was possible, and the port of the name."""
        match verb:
            case "publish":
                used = sum(len(each) + len(at) + PAIR_BYTES for each, at in self._published.items())
                if self._published.get(name, port) != port or used + len(name) + len(port) + PAIR_BYTES > MAX_NAMES_BYTES:
                    return False, ""
                self._published[name] = port
                return True, port
            case "lookup":
                return name in self._published, self._published.get(name, "")
            case "unpublish":
                return self._published.pop(name, None) is not None, ""
        raise MalformedPayload(f"names know no verb {verb!r}")

    def _look_for_excess(self, state: HubRound) -> None:
        """Ends the launch where its pairs are above the limit, or where a node opens one round after another."""
        if (used := state.held + state.bytes) > MAX_STORE_BYTES:
            sentence = f"the PMI pairs of this launch have {used} bytes, and the limit is {MAX_STORE_BYTES}"
            self._fail(LaunchFailure(-1, "", "StoreFull", sentence))
        elif len(self._rounds) > 2 * ROUNDS_KEPT:
            raise MalformedPayload(f"{len(self._rounds)} rounds are open")

    def _look_for_broken(self) -> None:
        """Ends the launch where some node waits for one with a rank that has ended."""
        for node, (rank, first, why) in self._gone.items():
            for (kind, number), state in self._rounds.items():
                others = state.whole_nodes() - {node}
                if state.result is None and others and number >= first.get(kind, 0) and node not in state.parts:
                    self._fail(broken_fence(kind, rank, self._names[node], why, f"node {self._names[min(others)]}"))
                    return

    def _fail(self, failure: LaunchFailure) -> None:
        """Notes why the launch ends; the first reason counts."""
        self.failure = self.failure or failure
