"""Feeds both ends of launches' frames with mutated ones: python -m tests.unit.agent.launches.fuzz MESSAGES SEED.

A keeper hears an agent, a launch of the head hears its keepers' nodes and its client, and requests are read to what they ask for. Bytes are
cut, split, joined, doubled and changed. Nothing may raise what it does not say, and what is kept stays bounded.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import resource
import select
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lattice.daemon.clock import SystemClock
from lattice.errors import LatticeError
from lattice_agent.launches import description
from lattice_agent.launches.client_side import ClientSide
from lattice_agent.launches.launch_run import KEPT_BYTES, KEPT_BYTES_OF_RANK, LaunchRun
from lattice_agent.launches.links import Receive
from lattice_agent.launches.record import STARTED, LaunchRecord, NodePlaces, RecordStore
from lattice_agent.standalone import frames
from lattice_agent.standalone.frames import Decoder, Frame, FrameError, LaunchRequest
from lattice_agent.standalone.keeper_link import AgentLink, KeptFrames
from lattice_agent.standalone.pmi.hub import Hub
from lattice_agent.standalone.rank_streams import RankInput
from tests.unit.agent.launches.test_head import KEY, work

AT_ONCE = 64
"""Messages that a keeper is sent in one piece."""
WORDS = (
    b"-n", b"2", b"-N", b"1-4", b"-c", b"3", b"--cpu-bind=map_cpu:0,1", b"--mpi=pmix", b"-l", b"-o", b"%t-%N-%n", b"--multi-prog", b"-m",
    b"plane=3", b"--gpus=2", b"-t", b"1-00:00:00", b"-W", b"9", b"-x", b"n[1-3]", b"-w", b"./file", b"--export=ALL,A=1", b"--jobid=12",
    b"-i", b"none", b"--het-group=1", b"--", b"app", b"\xff", b"",
)  # fmt: skip
VARIABLES = (
    b"PATH=/bin",
    b"SLURM_NTASKS=4",
    b"SLURM_DISTRIBUTION=plane=2",
    b"SLURM_CPU_BIND=quiet",
    b"=",
    b"A",
    b"SLURM_TIMELIMIT=x",
    b"\xff=\xff",
)
HAD_OF_A_KEEPER = [
    (frames.HAD, frames.encode_had(0, 1)), (frames.INPUT, frames.encode_input(0, b"abc")), (frames.INPUT, frames.encode_input(3, b"")),
    (frames.SIGNAL, frames.encode_signal(10)), (frames.GO, b""), (frames.END, b""), (frames.END, b"\1"), (frames.EXCHANGED, b"{}"),
]  # fmt: skip
OF_A_NODE = [
    (frames.STATE, b'{"room": 65536, "first": 1}'), (frames.STARTED, b""), (frames.STARTED, b"no such file"),
    (frames.OUTPUT, frames.encode_output(frames.Output(0, 1, 1, 0, b"line\n"))), (frames.ROOM, frames.encode_room(70000)),
    (frames.ENDED, frames.encode_ended(frames.RankEnded(0, 2, 0, 0, 0))), (frames.KEEPER_SAY, b"srun: a line"),
    (frames.EXCHANGE, frames.encode_numbered(3, b'{"part_of":"fence","round":0,"held":0,"part":0,"parts":1,"data":[]}')),
    (frames.EXCHANGE, frames.encode_numbered(4, b'{"gone":0,"rounds":{"fence":0,"ring":0},"why":"x"}')),
    (frames.DONE, frames.encode_numbered(5, json.dumps({"failure": "", "ranks": [[0, 0, 0, 0, 0, 0, 0, 0]]}).encode())),
    (frames.CLOSED, b'{"heard": true, "noted": null}'), (frames.REFUSED, frames.encode_refused(1, "no")),
]  # fmt: skip
OF_A_CLIENT = [
    (frames.INPUT, frames.encode_input(0, b"abc")), (frames.SIGNAL, frames.encode_signal(2)), (frames.HAD, frames.encode_had(0, 1)),
    (frames.OPENED, bytes((1, 0))), (frames.CONTENT, b"\0text"), (frames.HANGUP, b""),
]  # fmt: skip


def mutate(data: bytes, chance: random.Random) -> bytes:
    """The bytes, with something of them changed."""
    changed = bytearray(data)
    for _ in range(chance.choice((0, 1, 1, 2, 4))):
        place = chance.randrange(len(changed) + 1)
        match chance.randrange(5):
            case 0:
                changed[place:place] = bytes(chance.randrange(256) for _ in range(chance.choice((1, 4, 30))))
            case 1:
                del changed[place : place + chance.choice((1, 2, 9))]
            case 2 if place < len(changed):
                changed[place] = chance.choice((0, 1, 9, 48, 57, 91, 123, 127, 128, 255, chance.randrange(256)))
            case 3:
                changed += changed[place:]
            case _:
                changed[place:place] = chance.choice(
                    (b"-1", b"1e999", b"null", b"[" * 50, b'"\\ud800"', b"9" * 30, b"\0\0\0\0", b"\xff" * 8)
                )
    return bytes(changed)


def drawn(samples: list[tuple[int, bytes]], chance: random.Random) -> tuple[int, bytes]:
    """A frame's type and payload, changed mostly."""
    kind, payload = chance.choice(samples)
    return chance.choice((kind, kind, kind, kind, chance.randrange(256))), payload if chance.random() < 0.3 else mutate(payload, chance)


class HearingKeeper:
    """The half of a keeper that an agent speaks with: its link, its kept frames and its ranks' input, without ranks."""

    def __init__(self, directory: Path) -> None:
        self.kept, self.poll, self.heard = KeptFrames(), select.poll(), 0
        self.input = RankInput(())
        self.link = AgentLink(self.kept, self.poll, lambda: {"number": 0}, self._hear)
        self.link.listen(str(directory), 0)

    def _hear(self, frame: Frame) -> None:
        """As a keeper does, of each type what it decodes."""
        self.heard += 1
        match frame.kind:
            case frames.HAD:
                self.kept.acknowledge(frames.decode_had(frame.payload)[1])
            case frames.INPUT:
                self.input.accept(*frames.decode_input(frame.payload))
            case frames.SIGNAL:
                frames.decode_signal(frame.payload)

    def serve(self) -> None:
        """Serves all that is ready."""
        while ready := self.poll.poll(0):
            for fd, events in ready:
                if self.link.owns(fd):
                    self.link.serve(fd, events & ~select.POLLOUT or events)
            if all(events == select.POLLOUT for _, events in ready):
                return


def fuzz_keeper(count: int, chance: random.Random) -> None:
    """Sends a keeper so many frames of an agent that breaks every rule."""
    with _directory() as directory:
        keeper, agent, sent = HearingKeeper(directory), _connected(directory), 0
        while sent < count:
            data = b"".join(frames.encode(*drawn(HAD_OF_A_KEEPER, chance)) for _ in range(AT_ONCE))
            data = mutate(data, chance) if chance.random() < 0.1 else data
            sent += AT_ONCE
            keeper.kept.keep_frame(lambda number: frames.encode(frames.KEEPER_SAY, b"%d" % number))
            try:
                for piece in _pieces(data, chance):
                    agent.send(piece, socket.MSG_DONTWAIT)
                    keeper.serve()
            except OSError:  # it has dropped us, or waits for the rest of a frame that is large
                agent.close()
                agent = _connected(directory)
            with suppress(OSError):
                agent.recv(1 << 20, socket.MSG_DONTWAIT)
            assert keeper.kept.unheard_bytes <= 64 * (count + 1)
            keeper.serve()
        agent.close()
        keeper.serve()
        assert keeper.heard
        keeper.link.close()


class DeafLink:
    """A way to a node that takes everything (links.NodeLink)."""

    async def carry(self, start: Mapping[str, Any] | None, receive: Receive) -> None:
        """Carries nothing."""

    def send(self, frame: Frame) -> None:
        """Drops the frame."""


class SilentStream:
    """A client's connection that says nothing and reads nothing (peers.interface.ByteStream)."""

    async def read_bytes(self) -> bytes:
        """Nothing ever comes."""
        await asyncio.Event().wait()
        return b""

    async def write_bytes(self, data: bytes) -> None:
        """Drops it."""


async def fuzz_launch(count: int, chance: random.Random) -> None:
    """Gives launches of a head so many frames of nodes and clients that break every rule."""
    from lattice_agent.launches.client_side import ClientProcess

    with _directory() as directory:
        done = 0
        while done < count:
            places = (NodePlaces("n1", 0, (0,)), NodePlaces("n2", 1, (1,)))
            record = LaunchRecord(0, "00" * 16, "app", "app", places, input="all", pmi=True, state=STARTED)
            run = LaunchRun(
                KEY, record, [DeafLink(), DeafLink()], store=_Unwritten(directory), clock=SystemClock(), attempt_over=lambda: False,
                on_over=lambda _: None, exchange=Hub([[0], [1]], ["n1", "n2"]),
            )  # fmt: skip
            client = ClientSide(SilentStream(), ClientProcess("n1"), lambda: False)
            run._client = client  # as `attend` does, without its loop
            for _ in range(200):
                part = chance.choice(run.parts)
                with suppress(LatticeError):
                    run._receive(part, Frame(*drawn(OF_A_NODE, chance)))
                with suppress(FrameError):
                    run._hear(Frame(*drawn(OF_A_CLIENT, chance)))
                assert part.kept_bytes <= KEPT_BYTES + 2 * KEPT_BYTES_OF_RANK + frames.OUTPUT_BYTES * 2
                assert sum(len(data) for _, data in run._input) <= 2 * frames.INPUT_WINDOW
                done += 2


def fuzz_requests(count: int, chance: random.Random) -> None:
    """Reads so many requests of clients to what they ask for."""
    here = work(nodes=("n1", "n2"))
    for _ in range(count):
        words = tuple(mutate(word, chance) if chance.random() < 0.2 else word for word in chance.sample(WORDS, chance.randrange(1, 8)))
        variables = tuple(mutate(text, chance) if chance.random() < 0.2 else text for text in chance.sample(VARIABLES, 3))
        payload = _without_nul(bytes(16), (b"srun", *words), variables)
        payload = payload if chance.random() < 0.7 else mutate(payload, chance)
        with suppress(FrameError, LatticeError):
            description.plan_of(here, frames.decode_launch(payload))


def fuzz_decoder(count: int, chance: random.Random) -> None:
    """Feeds decoders of requests with so many frames, split, joined and with heads that lie."""
    decoder, most = Decoder(1 << 16), 1 << 16
    for _ in range(count):
        data = frames.encode(*drawn(OF_A_NODE, chance))
        try:
            for piece in _pieces(mutate(data, chance) if chance.random() < 0.3 else data, chance):
                decoder.feed(piece)
        except FrameError:
            decoder = Decoder(most)
        assert len(decoder._buffer) <= most + frames.HEAD.size


class _Unwritten(RecordStore):
    """Keeps no record: the disk is not what is tried."""

    def keep_record(self, record: LaunchRecord) -> None:
        """Keeps nothing."""


def _without_nul(request_id: bytes, argv: tuple[bytes, ...], variables: tuple[bytes, ...]) -> bytes:
    """The payload of a request."""
    words, texts = (tuple(text.replace(b"\0", b"") for text in given) for given in (argv, variables))
    return frames.encode_launch(LaunchRequest(request_id, words, texts))


def _pieces(data: bytes, chance: random.Random) -> Iterator[bytes]:
    """The data, whole or in two pieces."""
    cut = chance.randrange(len(data) + 1) if chance.random() < 0.2 else len(data)
    yield from (piece for piece in (data[:cut], data[cut:]) if piece)


def _connected(directory: Path) -> socket.socket:
    """A connection to the keeper in a directory."""
    made = socket.socket(socket.AF_UNIX)
    made.connect(str(directory / "keep-0"))
    return made


@contextmanager
def _directory() -> Iterator[Path]:
    """A directory for a while."""
    made = Path(tempfile.mkdtemp())
    try:
        yield made
    finally:
        shutil.rmtree(made)


def play(count: int, seed: int) -> None:
    """Plays a quarter of so many messages against each of keeper, launch, requests and decoder."""
    chance, share = random.Random(seed), max(1, count // 4)
    parts: tuple[Callable[[int, random.Random], object], ...] = (
        fuzz_keeper, lambda few, drawing: asyncio.run(fuzz_launch(few, drawing)), fuzz_requests, fuzz_decoder,
    )  # fmt: skip
    for part in parts:
        part(share, chance)


def main() -> None:
    count, seed = int(sys.argv[1]), int(sys.argv[2])
    logging.disable(logging.WARNING)  # each launch says once that it was sent garbage
    start = time.monotonic()
    play(count, seed)
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{count} frames, seed {seed}: {time.monotonic() - start:.0f} s, at most {largest} MiB")
    assert largest < 512, "it keeps what it is sent"


if __name__ == "__main__":
    main()
