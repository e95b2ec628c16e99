"""Mutated recordings raise nothing, hang nothing and keep little: a share of what `python -m tests.unit.agent.pmi.fuzz 1000000 1` plays."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lattice_agent.standalone.pmi.hub import Hub
from lattice_agent.standalone.pmi.wire import MessageDecoder
from tests.unit.agent.pmi.fuzz import play
from tests.unit.agent.pmi.transcripts import Launch


def test_mutated_recordings_raise_nothing() -> None:
    assert play(10_000, seed=12) > 20


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=200)), max_size=20),
    st.sampled_from([b"", b"cmd=init pmi_version=1\n", b"cmd=init pmi_version=2\n"]),
)
def test_any_bytes_raise_nothing(pieces: list[tuple[int, bytes]], start: bytes) -> None:
    launch, decoder = Launch([[0, 1], [2]]), MessageDecoder()
    for rank, data in pieces:
        launch.feed(rank, start + data)
        decoder.feed(data)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=60), max_size=5))
def test_any_payload_raises_nothing_in_the_hub(payloads: list[bytes]) -> None:
    hub = Hub([[0], [1]], ["n0", "n1"])
    for payload in payloads:
        hub.receive(0, payload)
