"""The exchange of a launch over several nodes: under loss, repetition and any order of messages no rank leaves a fence before all have entered,
and each reads all that was put; whoever can never come ends the launch.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice_agent.standalone.pmi import exchange as exchanges
from lattice_agent.standalone.pmi.exchange import FENCE, MAX_NAMES_BYTES, MAX_STORE_BYTES, MAX_VALUE_BYTES, RING, NodeExchange
from lattice_agent.standalone.pmi.hub import Hub
from lattice_agent.standalone.pmi.mapping import process_mapping
from lattice_agent.standalone.pmi.payloads import PAIR_BYTES, PART_BYTES, MalformedPayload, pack, unpack

LAYOUTS = ([[0], [1]], [[0, 1], [2, 3]], [[0, 3], [1], [2, 4]], [[0, 2], [1, 3]], [[0], [1], [2], [3]])


@dataclass
class Wire:
    """Ranks on nodes, a hub that may be made anew, and messages between them that are lost, doubled and delivered in any order."""

    nodes: list[list[int]]
    chance: random.Random
    rounds: int
    part_bytes: int = PART_BYTES
    entered: list[set[int]] = field(default_factory=list)
    left: dict[int, int] = field(default_factory=dict)
    flying: list[tuple[int, bytes, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.names = [f"n{index}" for index in range(len(self.nodes))]
        self.hub = Hub(self.nodes, self.names, self.part_bytes)
        self.exchanges = [NodeExchange(self.nodes, index, name, self.part_bytes) for index, name in enumerate(self.names)]
        self.place = {rank: index for index, ranks in enumerate(self.nodes) for rank in ranks}
        self.entered = [set() for _ in range(self.rounds)]
        self.left = dict.fromkeys(self.place, 0)
        self.inside: set[int] = set()

    def act(self) -> None:
        """One thing happens."""
        match self.chance.choice(("enter", "enter", "deliver", "deliver", "deliver", "lose", "double", "restart", "connect")):
            case "enter":
                self.enter(self.chance.choice(list(self.place)))
            case "deliver" if self.flying:
                self.deliver(self.flying.pop(self.chance.randrange(len(self.flying))))
            case "lose" if self.flying:
                self.flying.pop(self.chance.randrange(len(self.flying)))
            case "double" if self.flying:
                self.flying.append(self.chance.choice(self.flying))
            case "restart":
                self.hub = Hub(self.nodes, self.names, self.part_bytes)
            case "connect":
                self.flying.append((self.chance.randrange(len(self.nodes)), self.hub.again(), False))

    def enter(self, rank: int) -> None:
        """A rank puts what nobody else puts, and enters the next fence, with every other one a ring."""
        number = self.left[rank]
        if rank in self.inside or number >= self.rounds:
            return
        mine = self.exchanges[self.place[rank]]
        assert mine.put(b"%d-%d" % (rank, number), b"\xff;%d" % rank) == ""
        assert mine.put(b"last", b"%d" % number) == ""
        self.inside.add(rank)
        self.entered[number].add(rank)
        if number % 2:
            assert mine.join_round(RING, rank, (1, b"l%d" % rank, b"r%d" % rank))
        else:
            assert mine.join_round(FENCE, rank)
        self.watch()

    def deliver(self, message: tuple[int, bytes, bool]) -> None:
        node, payload, to_hub = message
        if to_hub:
            self.flying += [(index, reply, False) for index, reply in self.hub.receive(node, payload)]
        else:
            self.exchanges[node].receive(payload)
        self.watch()

    def watch(self) -> None:
        """Sends what nodes have to send, and judges every rank that goes on."""
        for index, each in enumerate(self.exchanges):
            self.flying += [(index, payload, True) for payload in each.outgoing]
            each.outgoing = []
            for answer in each.answers:
                number = self.left[answer.rank]
                assert self.entered[number] == set(self.place), (
                    f"rank {answer.rank} left round {number} before {self.entered[number]} were all"
                )
                self.inside.remove(answer.rank)
                self.left[answer.rank] += 1
                if number % 2:
                    before = sorted(self.place).index(answer.rank)
                    order = sorted(self.place)
                    assert answer.value == (before, b"r%d" % order[before - 1], b"l%d" % order[(before + 1) % len(order)])
                else:
                    for rank in self.place:
                        assert each.get(b"%d-%d" % (rank, number)) == b"\xff;%d" % rank
                    assert each.get(b"last") == b"%d" % number
            each.answers = []

    def mend(self) -> None:
        """Every node is connected again, and nothing is lost any more, until all have done all."""
        for _ in range(4 * self.rounds * len(self.place)):
            for rank in self.place:
                self.enter(rank)
            self.flying += [(index, self.hub.again(), False) for index in range(len(self.nodes))]
            while self.flying:
                self.deliver(self.flying.pop(self.chance.randrange(len(self.flying))))
            if min(self.left.values()) == self.rounds:
                return
        raise AssertionError(f"rounds left by rank: {self.left}")


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(LAYOUTS), st.integers(0, 2**32), st.integers(0, 400))
def test_under_loss_repetition_any_order_and_new_hubs_nobody_leaves_early_and_all_read_all(
    nodes: list[list[int]], seed: int, steps: int
) -> None:
    wire = Wire(nodes, random.Random(seed), rounds=5)
    for _ in range(steps):
        wire.act()
    wire.mend()
    assert wire.hub.failure is None


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(LAYOUTS), st.integers(0, 2**32))
def test_a_fence_of_many_parts_is_whole_in_any_order(nodes: list[list[int]], seed: int) -> None:
    wire = Wire(nodes, random.Random(seed), rounds=3, part_bytes=300)  # pairs of some 140 bytes
    for _ in range(200):
        wire.act()
    wire.mend()


def carry(nodes: list[NodeExchange], hub: Hub) -> None:
    """Delivers all messages in order."""
    while any(each.outgoing for each in nodes):
        for index, each in enumerate(nodes):
            payloads, each.outgoing = each.outgoing, []
            for payload in payloads:
                for node, reply in hub.receive(index, payload):
                    nodes[node].receive(reply)


def two() -> tuple[list[NodeExchange], Hub]:
    layout = [[0, 1], [2]]
    return [NodeExchange(layout, index, f"n{index}") for index in (0, 1)], Hub(layout, ["n0", "n1"])


def test_a_rank_that_has_ended_breaks_a_fence_of_its_own_node() -> None:
    nodes, hub = two()
    nodes[0].join_round(FENCE, 0)
    nodes[0].note_end(1, "ended with exit code 0 without PMI")
    carry(nodes, hub)
    assert hub.failure is not None
    assert hub.failure.sentence == "rank 0 waits in a PMI fence for rank 1 on n0, which ended with exit code 0 without PMI"
    assert nodes[0].failure is not None
    assert nodes[0].failure.as_json() == hub.failure.as_json()


@pytest.mark.parametrize("again", [False, True], ids=["told", "told again to a new hub"])
def test_a_rank_that_has_ended_breaks_a_fence_of_another_node(again: bool) -> None:
    nodes, hub = two()
    nodes[0].note_end(1, "ended with exit code 0 after finalize")
    carry(nodes, hub)
    assert hub.failure is None
    nodes[1].join_round(FENCE, 2)
    if again:
        hub = Hub([[0, 1], [2]], ["n0", "n1"])
        for each in nodes:
            each.outgoing = []
            each.receive(hub.again())
    carry(nodes, hub)
    assert hub.failure is not None
    assert hub.failure.sentence == "node n1 waits in a PMI fence for rank 1 on n0, which ended with exit code 0 after finalize"


def test_ranks_that_end_after_the_last_fence_break_nothing() -> None:
    nodes, hub = two()
    for node, rank in ((0, 0), (0, 1), (1, 2)):
        nodes[node].join_round(FENCE, rank)
    nodes[0].note_end(0, "ended")  # its part was sent
    carry(nodes, hub)
    nodes[0].note_end(1, "ended")
    nodes[1].note_end(2, "ended")
    carry(nodes, hub)
    assert hub.failure is None


@pytest.mark.parametrize("met", [False, True], ids=["before they met", "after they met"])
def test_a_node_that_is_lost_ends_those_who_meet_it(met: bool) -> None:
    nodes, hub = two()
    if met:
        for node, rank in ((0, 0), (0, 1), (1, 2)):
            nodes[node].join_round(FENCE, rank)
        carry(nodes, hub)
    hub.lose(1)
    assert bool(hub.failure) == met
    nodes[0].join_round(FENCE, 0)
    nodes[0].join_round(FENCE, 1)
    carry(nodes, hub)
    assert hub.failure is not None
    assert "killed with" in hub.failure.sentence


def test_a_new_hub_is_owed_nothing_of_a_fence_that_all_who_are_heard_have_left() -> None:
    wire = Wire([[0], [1], [2]], random.Random(1), 2)
    for rank in range(3):
        wire.enter(rank)
    while wire.flying:
        wire.deliver(wire.flying.pop(0))
    wire.hub = Hub(wire.nodes, wire.names)
    for node in (0, 1):
        wire.exchanges[node].receive(wire.hub.again())
    wire.watch()
    for node, payload, to_hub in wire.flying:
        assert to_hub
        wire.hub.receive(node, payload)
    assert wire.hub.owed == {}
    wire.flying.clear()
    wire.enter(0)
    for node, payload, _ in wire.flying:
        wire.hub.receive(node, payload)
    assert wire.hub.owed == {(RING, 0): frozenset({1, 2})}


def test_a_failure_is_told_to_a_new_hub() -> None:
    nodes, hub = two()
    failure = exchanges.LaunchFailure(2, "n1", "Aborted", "rank 2 called abort", 7)
    nodes[1].fail(failure)
    nodes[1].fail(exchanges.LaunchFailure(2, "n1", "RankDied", "later"))
    nodes[1].outgoing = []
    nodes[1].receive(hub.again())
    carry(nodes, hub)
    assert [each.failure.as_json() for each in (nodes[1], hub) if each.failure] == [failure.as_json()] * 2


def test_pairs_above_the_limit_of_a_node_are_refused() -> None:
    (node, _), _ = two()
    value = b"v" * MAX_VALUE_BYTES
    most = MAX_STORE_BYTES // (MAX_VALUE_BYTES + 7 + PAIR_BYTES)
    assert not any(node.put(b"%07d" % number, value) for number in range(most))
    assert "and the limit is 67108864" in node.put(b"%07d" % most, value)
    assert node.put(b"k" * 257, b"") == "the key has 257 bytes and the limit is 256"
    assert node.put(b"k", value + b"v") == "the value has 16385 bytes and the limit is 16384"


def test_pairs_above_the_limit_of_the_launch_end_it() -> None:
    nodes, hub = two()
    value = b"v" * MAX_VALUE_BYTES
    for node in nodes:
        for number in range(MAX_STORE_BYTES // (MAX_VALUE_BYTES + 7 + PAIR_BYTES) * 2 // 3):
            assert node.put(b"%07d" % number, value) == ""
    for index, rank in ((0, 0), (0, 1), (1, 2)):
        nodes[index].join_round(FENCE, rank)
    carry(nodes, hub)
    assert hub.failure is not None
    assert hub.failure.reason == "StoreFull"


def test_a_pair_of_any_bytes_takes_at_most_twice_its_bytes_on_the_way() -> None:
    nodes, value = [[0], [1]], bytes(range(256)) * 32
    hub, both = Hub(nodes, ["n0", "n1"]), [NodeExchange(nodes, index, f"n{index}") for index in (0, 1)]
    assert both[0].put(bytes(200), bytes(8192)) == both[0].put(b"all", value) == ""
    for rank in (0, 1):
        assert both[rank].join_round(FENCE, rank)
    assert sum(map(len, both[0].outgoing)) < 2 * (200 + 8192 + 3 + len(value)) + 200
    for to, reply in [one for index in (0, 1) for payload in both[index].outgoing for one in hub.receive(index, payload)]:
        both[to].receive(reply)
    assert (both[1].get(bytes(200)), both[1].get(b"all")) == (bytes(8192), value)


def test_a_key_that_is_put_again_counts_once() -> None:
    node, hub = NodeExchange([[0]], 0, "n0"), Hub([[0]], ["n0"])
    for number in range(100):
        assert node.put(b"k", b"v" * (number + 1)) == ""
        node.join_round(FENCE, 0)
        carry([node], hub)
    assert node.get(b"k") == b"v" * 100
    assert node.store_bytes == 101 + PAIR_BYTES


@pytest.mark.parametrize(
    "payload",
    [b"", b"\xff", b"[]", b"1", b"{}", b"[" * 100_000, pack({"part_of": "fence"}), pack({"part_of": "dance", "round": 0, "part": 0, "parts": 1}),
     b'{"part_of":"fence","round":0,"part":0,"parts":1e999,"held":0,"data":[]}',
     pack({"part_of": "fence", "round": 0, "part": 5, "parts": 1, "held": 0, "data": []}), pack({"failed": 3}), pack({"gone": "x"}),
     pack({"part_of": "fence", "round": 0, "part": 0, "parts": 1, "held": 0, "data": [3]}), pack({"ask": 1, "low": 0, "verb": "dance", "name": "", "port": ""})],
)  # fmt: skip
def test_what_is_no_exchange_is_told_by_the_node_that_sent_it(payload: bytes) -> None:
    hub = Hub([[0], [1]], ["n0", "n1"])
    assert hub.receive(1, payload) == []
    assert hub.failure is not None
    assert hub.failure.sentence.startswith("n1 sent what is no PMI exchange: ")


@pytest.mark.parametrize(
    "payload",
    [b"", b"{}", pack({"answer": {}}), b'{"answer":1e999}', pack({"result": "dance", "round": 0, "part": 0, "parts": 1, "data": []})],
)
def test_a_node_refuses_what_is_no_message_of_the_hub(payload: bytes) -> None:
    nodes, _ = two()
    with pytest.raises(MalformedPayload):
        nodes[0].receive(payload)


def test_a_hub_keeps_few_rounds_whatever_a_node_sends() -> None:
    hub = Hub([[0], [1]], ["n0", "n1"])
    for number in range(50):
        hub.receive(1, pack({"part_of": "fence", "round": number, "part": 0, "parts": 1, "held": 0, "data": []}))
    assert hub.failure is not None


def test_a_hub_keeps_few_parts_of_nothing_whatever_a_node_sends() -> None:
    hub = Hub([[0], [1]], ["n0", "n1"])
    for part in range(2000):
        hub.receive(1, pack({"part_of": "fence", "round": 0, "part": part, "parts": 1 << 40, "held": 0, "data": []}))
    assert hub.failure is not None
    assert hub.failure.reason == "Garbage"
    assert not hub.is_waiting


def test_a_hub_keeps_few_answers_for_a_node_that_asks_about_names_without_end() -> None:
    hub = Hub([[0], [1]], ["n0", "n1"])
    hub.receive(1, pack({"ask": 1, "verb": "publish", "name": "s", "port": "p" * 900_000, "low": 0}))
    for number in range(2, 200):
        hub.receive(1, pack({"ask": number, "verb": "lookup", "name": "s", "port": "", "low": 0}))
    assert hub.failure is not None
    assert "without end" in hub.failure.sentence


def test_the_same_question_about_a_name_is_answered_the_same_again() -> None:
    hub = Hub([[0], [1]], ["n0", "n1"])
    asked = pack({"ask": 1, "verb": "unpublish", "name": "s", "port": "", "low": 1})
    hub.receive(0, pack({"ask": 1, "verb": "publish", "name": "s", "port": "p", "low": 1}))
    first, second = hub.receive(1, asked), hub.receive(1, asked)
    assert first == second
    assert unpack(first[0][1])["done"] is True


def published(mine: NodeExchange, hub: Hub, name: bytes, port: bytes, node: int = 0) -> bool:
    """Whether a rank may publish a name, by what it is answered at last."""
    mine.request_name(node, "publish", name, port)
    for payload in mine.outgoing:
        for _, reply in hub.receive(node, payload):
            mine.receive(reply)
    mine.outgoing = []
    (answer,), mine.answers = mine.answers, []
    return bool(answer.value[0])


def kept_names(mine: NodeExchange, hub: Hub) -> dict[str, str]:
    """What a node tells a hub that starts anew about names."""
    mine.receive(hub.again())
    told, mine.outgoing = [unpack(payload) for payload in mine.outgoing], []
    return {message["name"]: message["port"] for message in told if message.get("verb") == "publish"}


def test_a_node_keeps_only_names_that_the_hub_has_published() -> None:
    nodes, names = [[0], [1]], ["n0", "n1"]
    hub, mine, other = Hub(nodes, names), NodeExchange(nodes, 0, "n0"), NodeExchange(nodes, 1, "n1")
    assert published(other, hub, b"taken", b"theirs", node=1)
    assert not published(mine, hub, b"taken", b"mine")
    assert published(mine, hub, b"free", b"first")
    assert not published(mine, hub, b"free", b"second")
    assert kept_names(mine, hub) == {"free": "first"}


def test_names_without_end_are_refused_and_not_kept_also_while_no_hub_answers() -> None:
    mine, port = NodeExchange([[0], [1]], 0, "n0"), b"p" * MAX_VALUE_BYTES
    for number in range(400):
        mine.request_name(0, "publish", b"%d" % number, port)
    most = MAX_NAMES_BYTES // len(port)
    assert sum(answer.value == (False, b"") for answer in mine.answers) >= 400 - most
    assert sum(map(len, mine.outgoing)) <= 2 * MAX_NAMES_BYTES
    hub, answered = Hub([[0], [1]], ["n0", "n1"]), NodeExchange([[0], [1]], 0, "n0")
    assert sum(not published(answered, hub, b"%d" % number, port) for number in range(400)) >= 400 - most
    assert sum(map(len, kept_names(answered, hub).values())) <= MAX_NAMES_BYTES


def test_a_name_that_is_withdrawn_before_the_hub_has_answered_is_not_kept() -> None:
    nodes, names = [[0, 1], [2]], ["n0", "n2"]
    hub, mine = Hub(nodes, names), NodeExchange(nodes, 0, "n0")
    mine.request_name(0, "publish", b"s", b"p")
    mine.request_name(1, "unpublish", b"s")
    replies = [reply for payload in mine.outgoing for _, reply in hub.receive(0, payload)]
    mine.outgoing = []
    for reply in reversed(replies):
        mine.receive(reply)
    assert [answer.value[0] for answer in mine.answers] == [True, True]
    assert kept_names(mine, hub) == {}


@pytest.mark.parametrize(
    ("nodes", "mapping"),
    [
        ([[0]], b"(vector,(0,1,1))"),
        ([[0, 1], [2, 3]], b"(vector,(0,2,2))"),
        ([[0], [1], [2], [3]], b"(vector,(0,4,1))"),
        ([[0, 1, 2], [3]], b"(vector,(0,1,3),(1,1,1))"),
        ([[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]], b"(vector,(0,1,4),(1,2,3))"),
        ([[0, 2], [1, 3]], b"(vector,(0,2,1),(0,2,1))"),
        ([[0, 2, 4], [1, 3]], b"(vector,(0,2,1),(0,2,1),(0,1,1))"),
        ([[2, 3], [0, 1]], b"(vector,(1,1,2),(0,1,2))"),
        ([list(range(0, 1000, 2)), list(range(1, 1000, 2))], b"(vector,(0,2,1))"),
        ([[0, 1, *range(4, 2000, 2)], [2, 3, *range(5, 2000, 2)]], None),
    ],
)  # fmt: skip
def test_the_mapping_tells_every_layout(nodes: list[list[int]], mapping: bytes | None) -> None:
    assert process_mapping(nodes) == mapping


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40))
def test_the_mapping_read_as_mpich_does_gives_the_layout_back(owners: list[int]) -> None:
    present = sorted(set(owners))
    nodes = [[rank for rank, owner in enumerate(owners) if owner == node] for node in present]
    mapping = process_mapping(nodes)
    assert mapping is not None
    blocks = [tuple(map(int, block.split(b","))) for block in mapping.removeprefix(b"(vector,(").removesuffix(b"))").split(b"),(")]
    read = [node for first, count, ranks in blocks for node in range(first, first + count) for _ in range(ranks)]
    assert read == [present.index(owner) for owner in owners]
