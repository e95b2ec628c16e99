"""Feeds ranks' conversations with mutated recordings: python -m tests.unit.agent.pmi.fuzz MESSAGES SEED.

Each launch has two nodes; bytes are cut, doubled, swapped, changed and mixed between ranks and versions. Nothing may raise, and what a
conversation keeps stays bounded.
"""

from __future__ import annotations

import random
import resource
import sys
import time

from lattice_agent.standalone.pmi import wire
from lattice_agent.standalone.pmi.exchange import MAX_STORE_BYTES, MAX_VALUE_BYTES
from lattice_agent.standalone.pmi.session import CLOSED, UNREAD_BYTES
from tests.unit.agent.pmi.transcripts import Launch, all_transcripts, messages

INTERESTING = (
    b";",
    b";;",
    b"=",
    b"\0",
    b"\n",
    b" ",
    b"cmd=",
    b"999999",
    b"      ",
    b"-1",
    b"\xff",
    b"thrid=1;",
    b"mcmd=spawn\n",
    b"endcmd\n",
    b"wait=TRUE;",
)
RING = b"cmd=ring;ring-count=1;ring-left=a;ring-right=b;"
EXTRA = [
    b"cmd=publish_name service=s port=p\n", b"cmd=lookup_name service=s\n", b"cmd=unpublish_name service=s\n", b"cmd=spawn\n",
    b"%-6d" % len(RING) + RING, b"cmd=abort exitcode=1\n", b"mcmd=spawn\nnprocs=1\nendcmd\n",
]  # fmt: skip


def recorded() -> list[list[bytes]]:
    """The requests of every recorded rank."""
    ranks = (events for each in all_transcripts() for events in each.ranks.values())
    return [list(messages(b"".join(data for sent, data in events if sent))) for events in ranks]


def mutate(message: bytes, chance: random.Random) -> bytes:
    """The message as it is, mostly; else with something of it changed."""
    data = bytearray(message)
    for _ in range(chance.choice((0, 0, 0, 0, 1, 1, 2, 5))):
        place = chance.randrange(len(data) + 1)
        match chance.randrange(6):
            case 0:
                data[place:place] = chance.choice(INTERESTING)
            case 1:
                del data[place : place + chance.choice((1, 2, 20))]
            case 2 if place < len(data):
                data[place] = chance.randrange(256)
            case 3:
                data += data[place:]
            case 4:
                data[place:place] = bytes(chance.randrange(256) for _ in range(chance.choice((1, 6, 40))))
            case 5:
                data[place:place] = b"v" * chance.choice((1000, 20000))
    return bytes(data)


def one_launch(scripts: list[list[bytes]], chance: random.Random) -> int:
    """Plays one launch; returns how many messages its ranks have sent."""
    launch = Launch([[0, 1], [2]])
    calm = chance.choice((0.0, 0.5, 0.9, 0.99))
    sources = {rank: iter(chance.choice(scripts)) for rank in launch.sessions}
    sent = 0
    while sources and sent < 600:
        rank = chance.choice(list(sources))
        message = next(sources[rank], None) if chance.random() > 0.05 else chance.choice(chance.choice([*scripts, EXTRA]))
        if message is None:
            del sources[rank]
            continue
        if launch.sessions[rank].state == CLOSED:
            del sources[rank]
            continue
        data = message if chance.random() < calm else mutate(message, chance)
        cut = chance.randrange(len(data) + 1) if chance.random() < 0.2 else len(data)
        for piece in (data[:cut], data[cut:]):
            if piece and not launch.sessions[rank].busy:
                launch.feed(rank, piece)
        sent += 1
        session = launch.sessions[rank]
        assert len(session.out) <= UNREAD_BYTES + 2 * MAX_VALUE_BYTES + wire.MAX_FRAME_BYTES, len(session.out)
        if chance.random() < 0.9:
            session.out.clear()
            session.proceed()
            launch.carry()
    for each in launch.exchanges:
        assert each.store_bytes <= MAX_STORE_BYTES
    return sent


def play(count: int, seed: int) -> int:
    """Plays launches until so many messages were sent; returns how many launches that were."""
    scripts, chance, sent, launches = recorded(), random.Random(seed), 0, 0
    while sent < count:
        sent += one_launch(scripts, chance)
        launches += 1
    return launches


def main() -> None:
    count, seed = int(sys.argv[1]), int(sys.argv[2])
    start = time.monotonic()
    launches = play(count, seed)
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{count} messages in {launches} launches, seed {seed}: {time.monotonic() - start:.0f} s, at most {largest} MiB")


if __name__ == "__main__":
    main()
