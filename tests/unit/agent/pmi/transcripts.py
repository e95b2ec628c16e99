"""What real MPI libraries and real servers said to each other, recorded (tests/data/pmi/README.txt), and a launch to which ranks say it again."""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from lattice_agent.standalone.pmi.exchange import NodeExchange
from lattice_agent.standalone.pmi.hub import Hub
from lattice_agent.standalone.pmi.mapping import process_mapping
from lattice_agent.standalone.pmi.session import PmiJob, RankSession
from lattice_agent.standalone.pmi.wire import HEADER_BYTES

FOLDER = Path(__file__).parents[3] / "data" / "pmi"
PROTOTYPE = re.compile(r"^\s*[\d.]+ms r(\d+|None) (->|<-) ('.*'|\".*\")$")
SERVER = re.compile(r'^(->|<-) (".*")$')
RANK = re.compile(r"^# rank (\d+)")


@dataclass
class Transcript:
    """Each rank's bytes in order; `sent` tells a rank's from the server's."""

    name: str
    ranks: dict[int, list[tuple[bool, bytes]]] = field(default_factory=dict)
    mapping: bytes = b""

    @property
    def per_node(self) -> int:
        """How many ranks a node had."""
        return 2 if "ppn2" in self.name or "-ns" in self.name or "libpmi2" in self.name else 1

    @property
    def identity(self) -> bytes:
        """The name of the launch that its server gave."""
        everything = b"".join(data for events in self.ranks.values() for sent, data in events if not sent)
        found = re.search(rb"kvsname=([^\s]+)|jobid=([^;]+)", everything)
        assert found
        return found.group(1) or found.group(2)

    @property
    def largest_value(self) -> int:
        found = re.search(rb"vallen_max=(\d+)", b"".join(data for _, data in self.ranks[0]))
        return int(found.group(1)) if found else 1024

    def nodes(self) -> list[list[int]]:
        ranks = sorted(self.ranks)
        return [ranks[start : start + self.per_node] for start in range(0, len(ranks), self.per_node)]


def read(path: Path) -> Transcript:
    """One file, whichever of the two forms it has."""
    found, rank = Transcript(path.stem), -1
    for line in path.read_text().splitlines():
        if line.startswith("# process mapping"):
            found.mapping = line.removeprefix("# process mapping").strip().encode()
        elif header := RANK.match(line):
            rank = int(header.group(1))
        elif event := PROTOTYPE.match(line):
            data = ast.literal_eval("b" + event.group(3))
            named = re.match(rb"cmd=initack pmiid=(\d+)", data)
            number = int(named.group(1)) if named else int(event.group(1))
            found.ranks.setdefault(number, []).append((event.group(2) == "->", data))
        elif event := SERVER.match(line):
            found.ranks.setdefault(rank, []).append((event.group(1) == "->", ast.literal_eval("b" + event.group(2))))
    return found


@cache
def all_transcripts() -> list[Transcript]:
    return [read(path) for path in sorted(FOLDER.glob("*.txt")) if path.name != "README.txt"]


def messages(stream: bytes) -> Iterator[bytes]:
    """The raw messages of one direction: lines, and frames after the line of version 2. A message that is cut off is left out."""
    framed = False
    while stream:
        if not framed:
            line, end, stream = stream.partition(b"\n")
            if not end:
                return
            framed = b"init" in line and b"pmi_version=2" in line
            yield line + end
            continue
        length = HEADER_BYTES + int(stream[:HEADER_BYTES])
        if len(stream) < length:
            return
        yield stream[:length]
        stream = stream[length:]


class Launch:
    """All nodes of a launch and their hub in one process; messages between them come at once and in order."""

    def __init__(self, nodes: Sequence[Sequence[int]], identity: bytes = b"lattice-test", largest_value: int = 16384) -> None:
        names = [f"n{index}" for index in range(len(nodes))]
        self.hub = Hub(nodes, names)
        self.exchanges = [NodeExchange(nodes, index, name) for index, name in enumerate(names)]
        job = PmiJob(identity, sum(map(len, nodes)), process_mapping(nodes), largest_value)
        self.sessions = {rank: RankSession(rank, job, self.exchanges[index]) for index, ranks in enumerate(nodes) for rank in ranks}

    def feed(self, rank: int, data: bytes) -> None:
        """A rank says something, and all that follows from it happens."""
        self.sessions[rank].take_bytes(data)
        self.carry()

    def carry(self) -> None:
        """Carries messages and answers until nothing is left."""
        moved = True
        while moved:
            moved = False
            for index, exchange in enumerate(self.exchanges):
                payloads, exchange.outgoing = exchange.outgoing, []
                for payload in payloads:
                    for node, reply in self.hub.receive(index, payload):
                        self.exchanges[node].receive(reply)
                answers, exchange.answers = exchange.answers, []
                for answer in answers:
                    self.sessions[answer.rank].answer_waiting(answer)
                moved = moved or bool(payloads or answers)


def replay(transcript: Transcript, launch: Launch) -> dict[int, list[tuple[bytes, bytes]]]:
    """Lets every rank say what it said, each once the replies before it have come; returns pairs (recorded reply, our reply) by rank."""
    scripts: dict[int, deque[tuple[int, bytes]]] = {}
    expected: dict[int, list[bytes]] = {}
    for rank, events in transcript.ranks.items():
        told, script = b"", deque[tuple[int, bytes]]()
        for sent, data in events:
            if sent:
                script.append((len(list(messages(told))), data))
            else:
                told += data
        scripts[rank], expected[rank] = script, list(messages(told))

    def replies(rank: int) -> list[bytes]:
        return list(messages(bytes(launch.sessions[rank].out)))

    moved = True
    while moved:
        moved = False
        for rank, script in scripts.items():
            while script and len(replies(rank)) >= script[0][0]:
                launch.feed(rank, script.popleft()[1])
                moved = True
    assert not any(scripts.values()), f"ranks of {transcript.name} wait: {[rank for rank, script in scripts.items() if script]}"
    return {rank: list(zip(recorded, replies(rank), strict=False)) for rank, recorded in expected.items()}
