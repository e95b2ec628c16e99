"""Bytes of PMI-1 and PMI-2: what real clients send is read however it is cut, and what is no PMI is told once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice_agent.standalone.pmi import wire
from lattice_agent.standalone.pmi.wire import MAX_FRAME_BYTES, MAX_LINE_BYTES, MAX_SPAWN_BYTES, Message, MessageDecoder
from tests.unit.agent.pmi.transcripts import Transcript, all_transcripts, messages

INIT_2 = b"cmd=init pmi_version=2 pmi_subversion=0\n"
KEYS = st.text("abcdefghijklmnopqrstuvwxyz-_0123456789", min_size=1, max_size=12).filter(lambda key: key != "cmd").map(str.encode)


def frame(body: bytes) -> bytes:
    return b"%-6d" % len(body) + body


Told = tuple[bytes, dict[bytes, bytes], bool]


def told(messages_read: list[Message]) -> list[Told]:
    return [(each.command, each.fields, each.framed) for each in messages_read]


def decoded(data: bytes) -> list[Told]:
    decoder = MessageDecoder()
    found = decoder.feed(data)
    assert decoder.malformed is None, decoder.malformed
    return told(found)


@pytest.mark.parametrize("transcript", all_transcripts(), ids=lambda each: each.name)
def test_every_recorded_request_is_read_whole(transcript: Transcript) -> None:
    for events in transcript.ranks.values():
        stream = b"".join(data for sent, data in events if sent)
        assert len(decoded(stream)) == len(list(messages(stream)))
        assert all(command for command, _, _ in decoded(stream))


@pytest.mark.parametrize("transcript", all_transcripts(), ids=lambda each: each.name)
def test_every_recorded_reply_is_written_again_byte_for_byte(transcript: Transcript) -> None:
    doubtful = transcript.name.startswith("slurm2205")  # pads its headers on the other side
    for events in transcript.ranks.values():
        for raw in messages(b"".join(data for sent, data in events if not sent)):
            message = wire.parse_line(raw[:-1]) if raw.endswith(b"\n") else wire.parse_frame(raw[6:])
            ours = wire.encode(message)
            assert (ours[6:], int(ours[:6])) == (raw[6:], int(raw[:6])) if doubtful and message.framed else ours == raw


@pytest.mark.parametrize(
    ("data", "command", "fields"),
    [
        (b"cmd=put kvsname=k key=a value=1 2=3\n", b"put", {b"kvsname": b"k", b"key": b"a", b"value": b"1 2=3"}),
        (b"cmd=put kvsname=k key=a value=\n", b"put", {b"kvsname": b"k", b"key": b"a", b"value": b""}),
        (b"cmd=abort exitcode=13 message=out of memory\n", b"abort", {b"exitcode": b"13", b"message": b"out of memory"}),
        (b"cmd=abort exitcode=13\n", b"abort", {b"exitcode": b"13"}),
        (b"cmd=barrier_in\n", b"barrier_in", {}),
        (b"cmd=get  key=a key=b stray\n", b"get", {b"key": b"a"}),
        (b"mcmd=spawn\nnprocs=2\nexecname=./a\nendcmd\n", b"spawn", {b"nprocs": b"2", b"execname": b"./a"}),
    ],
)  # fmt: skip
def test_a_line_is_read(data: bytes, command: bytes, fields: dict[bytes, bytes]) -> None:
    assert decoded(data) == [(command, fields, False)]


@pytest.mark.parametrize(
    "body",
    [
        b"cmd=kvs-put;key=a;value=x;;y;",
        b"cmd=kvs-put;key=a;value=x;;y;\0\0\0\0\0\0",
        b"cmd=kvs-put;key=a;value=x;;y;\0;valu",
        b"cmd=kvs-put;key=a;value=x;;y;\0\0)l\xf4\xbe",
        b"cmd=kvs-put;key=a;value=x;;y;junk",
        b"cmd=kvs-put;stray;key=a;value=x;;y;key=b;",
        b"key=a;cmd=kvs-put;value=x;;y;",
    ],
)
@pytest.mark.parametrize("pad", [b"%-6d", b"%6d"], ids=["right", "left"])
def test_a_frame_is_read_with_junk_and_either_padding(body: bytes, pad: bytes) -> None:
    assert decoded(INIT_2 + pad % len(body) + body)[1:] == [(b"kvs-put", {b"key": b"a", b"value": b"x;y"}, True)]


@given(st.lists(st.tuples(KEYS, st.binary(max_size=40).filter(lambda value: b"\0" not in value)), max_size=6))
def test_a_frame_comes_back_as_it_was_written(pairs: list[tuple[bytes, bytes]]) -> None:
    fields = dict(pairs)
    assert decoded(INIT_2 + wire.encode_frame(b"x", fields.items()))[1:] == [(b"x", fields, True)]


@given(st.data())
def test_however_bytes_are_cut_the_messages_are_the_same(data: st.DataObject) -> None:
    transcript = data.draw(st.sampled_from([each for each in all_transcripts() if "pmi2" in each.name]))
    stream = b"".join(each for sent, each in transcript.ranks[0] if sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=30)))
    decoder, found = MessageDecoder(), list[Message]()
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += decoder.feed(stream[start:end])
    assert told(found) == decoded(stream)
    assert not decoder.partial


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"GET / HTTP/1.1\r\n", "'GET / HTTP/1.1\\r' is no PMI message"),
        (b"\n", "'' is no PMI message"),
        (b"cmd=\n", "'cmd=' is no PMI message"),
        (b"x" * MAX_LINE_BYTES, f"a PMI line of {MAX_LINE_BYTES} bytes or more; the limit is {MAX_LINE_BYTES - 1}"),
        (b"mcmd=spawn\n" + b"a=b\n" * (MAX_SPAWN_BYTES // 4), f"the limit is {MAX_SPAWN_BYTES}"),
        (INIT_2 + b"12 4  cmd=x;", "a PMI frame begins with '12 4  ', where its length should be"),
        (INIT_2 + b"-1    ", "a PMI frame begins with '-1    ', where its length should be"),
        (INIT_2 + b"      ", "where its length should be"),
        (INIT_2 + b"999999", f"a PMI frame of 999999 bytes; the limit is {MAX_FRAME_BYTES}"),
        (INIT_2 + frame(b"key=value;"), "'key=value;' is no PMI message"),
        (INIT_2 + frame(b""), "'' is no PMI message"),
        (INIT_2 + frame(b"cmd=x"), "'' is no PMI message"),
    ],
)
def test_what_is_no_pmi_is_told_and_ends_the_reading(data: bytes, said: str) -> None:
    decoder = MessageDecoder()
    decoder.feed(data)
    assert decoder.malformed is not None
    assert said in str(decoder.malformed)
    assert decoder.feed(b"cmd=barrier_in\n") == []


def test_messages_before_what_is_none_are_read() -> None:
    decoder = MessageDecoder()
    assert [each.command for each in decoder.feed(b"cmd=barrier_in\nnonsense\ncmd=finalize\n")] == [b"barrier_in"]
    assert decoder.malformed is not None


def test_a_line_end_never_gets_into_a_line() -> None:
    with pytest.raises(ValueError, match="a line end"):
        wire.encode_line(b"get_result", [(b"value", b"a\ncmd=finalize")])
