"""Chunks become lines: nothing lost, nothing twice, whatever the cuts and reconnects."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from lattice.rpc.v1 import agent_pb2 as pb
from lattice_gateway.lines import LONGEST_LINE, OutputLines, Record


def chunk(data: bytes, time: float = 1.0, stream: pb.Stream.ValueType = pb.STDOUT, dropped: int = 0) -> pb.LogChunk:
    return pb.LogChunk(stream=stream, time=time, data=data, dropped_bytes=dropped)


def text_of(records: list[Record], stream: str = "stdout") -> str:
    """What a terminal would show: a line end after each record that is not a part."""
    return "".join(record["text"] + ("" if record.get("partial") else "\n") for record in records if record["stream"] == stream)


def cut(data: bytes, at: list[int]) -> list[bytes]:
    places = sorted({place % (len(data) + 1) for place in at} | {0, len(data)})
    return [data[low:high] for low, high in itertools.pairwise(places)]


@given(text=st.text(st.sampled_from("aé\n漢 \r"), max_size=60), at=st.lists(st.integers(0, 200), max_size=8), flush=st.booleans())
def test_the_text_is_the_same_however_it_was_cut(text: str, at: list[int], flush: bool) -> None:
    lines = OutputLines("n1")
    records: list[Record] = []
    for index, data in enumerate(cut(text.encode(), at)):
        records += lines.feed(chunk(data, time=1.0 + index))
        if flush:
            records += lines.flush()
    records += lines.finish()
    assert text_of(records) == text
    assert all("\n" not in record["text"] for record in records)


@given(
    times=st.lists(st.integers(1, 6), min_size=1, max_size=12).map(sorted),
    streams=st.lists(st.sampled_from([pb.STDOUT, pb.STDERR]), min_size=12, max_size=12),
    broken_after=st.integers(0, 12),
)
def test_a_reconnect_repeats_nothing_and_misses_nothing(times: list[int], streams: list[pb.Stream.ValueType], broken_after: int) -> None:
    sent = [chunk(b"line %d\n" % index, float(time), streams[index]) for index, time in enumerate(times)]
    lines = OutputLines("n1")
    records = [record for one in sent[:broken_after] for record in lines.feed(one)]
    lines.resume()
    again = [one for one in sent if one.time >= lines.position]
    records += [record for one in again for record in lines.feed(one)]
    assert sorted(record["text"] for record in records) == sorted(f"line {index}" for index in range(len(sent)))


def test_a_line_has_the_time_of_its_first_character() -> None:
    lines = OutputLines("n1")
    assert lines.feed(chunk(b"half", 1.0)) == []
    assert lines.unfinished
    assert lines.feed(chunk(b" full\nnext\n", 2.5)) == [
        {"node": "n1", "stream": "stdout", "time": "1970-01-01T00:00:01.000000Z", "text": "half full"},
        {"node": "n1", "stream": "stdout", "time": "1970-01-01T00:00:02.500000Z", "text": "next"},
    ]


def test_what_was_dropped_is_said_before_what_follows() -> None:
    lines = OutputLines("n1")
    lines.feed(chunk(b"cut off", 1.0))
    records = lines.feed(chunk(b"later\n", 2.0, dropped=4096))
    assert [record.get("dropped") or record["text"] for record in records] == ["cut off", 4096, "later"]
    assert records[0]["partial"] is True


def test_a_line_without_an_end_is_given_in_parts() -> None:
    lines = OutputLines("n1")
    (record,) = lines.feed(chunk(b"x" * LONGEST_LINE))
    assert record["partial"] is True
    assert not lines.unfinished


def test_bytes_that_are_no_text_do_not_stop_the_stream() -> None:
    lines = OutputLines("n1")
    (record,) = lines.feed(chunk(b"\xff\xfe\n"))
    assert record["text"] == "\ufffd\ufffd"
