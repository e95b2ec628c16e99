"""The binary frames of launches: whole whatever the cuts, and garbage is an error, never a crash or a heap of memory."""

from __future__ import annotations

import os
import random
import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice_agent.standalone import frames
from lattice_agent.standalone.frames import Decoder, Frame, FrameError, LaunchRequest

words = st.binary(max_size=40).map(lambda text: text.replace(b"\0", b""))
requests = st.builds(
    LaunchRequest,
    request_id=st.binary(min_size=16, max_size=16),
    argv=st.lists(words, min_size=1, max_size=5).map(tuple),
    variables=st.lists(words, max_size=5).map(tuple),
    directory=words,
    umask=st.integers(0, 0o777),
    limits=st.lists(words, max_size=3).map(tuple),
    has_input=st.booleans(),
    resumed=st.lists(st.tuples(st.integers(0, 65535), st.integers(0, 2**64 - 1)), max_size=3).map(tuple),
    step=st.none() | st.integers(0, 2**32 - 1),
)
STREAMS = int(os.environ.get("LATTICE_FUZZ_STREAMS", "2000"))
"""How many damaged streams are read; `make fuzz` and `make test-all` read 100,000."""
READERS = (
    frames.decode_launch, frames.decode_input, frames.decode_signal, frames.decode_had, frames.decode_accepted, frames.decode_output,
    frames.decode_ended, frames.decode_open, frames.decode_opened, frames.decode_room, frames.decode_refused, frames.decode_numbered,
)  # fmt: skip


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=300)), max_size=8), st.data())
def test_frames_come_out_as_they_went_in_whatever_the_cuts(sent: list[tuple[int, bytes]], data: st.DataObject) -> None:
    stream = b"".join(frames.encode(kind, payload) for kind, payload in sent)
    decoder, found = Decoder(), list[Frame]()
    while stream:
        cut = data.draw(st.integers(1, len(stream)))
        found += decoder.feed(stream[:cut])
        stream = stream[cut:]
    assert found == [Frame(kind, payload) for kind, payload in sent]
    assert decoder.rest() == b""


@given(requests)
def test_a_request_reads_as_it_was_written(request: LaunchRequest) -> None:
    assert frames.decode_launch(frames.encode_launch(request)) == request


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
@given(st.binary(max_size=200))
def test_garbage_is_read_or_refused_and_nothing_else(read, payload: bytes) -> None:  # type: ignore[no-untyped-def]
    with suppress(FrameError):
        read(payload)


def test_a_frame_above_the_limit_is_refused_by_its_head_alone() -> None:
    with pytest.raises(FrameError, match="above the limit"):
        Decoder().feed(struct.pack(">IB", frames.MAX_PAYLOAD + 1, 1))
    with pytest.raises(FrameError, match="above the limit"):
        Decoder(most=10).feed(frames.encode(1, b"x" * 11))
    with pytest.raises(FrameError):
        frames.encode(1, bytes(frames.MAX_PAYLOAD + 1))


def test_a_request_of_more_fields_than_a_program_takes_is_refused() -> None:
    request = LaunchRequest(bytes(16), (b"srun",) + (b"",) * frames.MOST_FIELDS)
    with pytest.raises(frames.FrameError, match="more than 262144 arguments and variables, which is the limit: put them into a file"):
        frames.decode_launch(frames.encode_launch(request))


def test_damaged_streams_crash_nothing() -> None:
    chance = random.Random(12)
    request = LaunchRequest(b"r" * 16, (b"srun", b"hostname"), (b"A=1",), b"/tmp", 0o22, (b"NOFILE=1024",), True, ((0, 3),), 7)
    whole = frames.encode(frames.LAUNCH, frames.encode_launch(request)) + frames.encode(frames.HAD, frames.encode_had(0, 1))
    read = refused = 0
    for _ in range(STREAMS):
        damaged = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            for frame in Decoder().feed(bytes(damaged)):
                if frame.kind == frames.LAUNCH:
                    frames.decode_launch(frame.payload)
                elif frame.kind == frames.HAD:
                    frames.decode_had(frame.payload)
            read += 1
        except FrameError:
            refused += 1
    assert read
    assert refused


@pytest.mark.parametrize(
    ("payload", "why"),
    [
        (b"", "request id"),
        (frames.encode_launch(LaunchRequest(b"r" * 16, ())), "no arguments"),
        (frames.encode_launch(LaunchRequest(b"short", (b"srun",))), "request id"),
        (frames.encode_launch(LaunchRequest(b"r" * 16, (b"a\0b",))), "NUL"),
        (frames.encode_launch(LaunchRequest(b"r" * 16, (b"srun",)))[:-1], "cut off"),
        (frames.encode_launch(LaunchRequest(b"r" * 16, (b"srun",))) * 2, "twice"),
    ],
    ids=["empty", "no argv", "short id", "NUL", "cut", "twice"],
)
def test_a_malformed_request_is_refused_with_its_flaw(payload: bytes, why: str) -> None:
    with pytest.raises(FrameError, match=why):
        frames.decode_launch(payload)
