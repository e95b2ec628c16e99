"""The pages that nodes write in a recovery: every row back as it was, no page beyond its size."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.errors import Corrupt
from lattice.ledger.history import HistoryRow, pages_of, parse_page
from lattice.ledger.reports import STATES
from tests.build import uid

seconds = st.integers(0, 2_000_000_000_000).map(lambda milliseconds: milliseconds / 1000)
rows = st.builds(
    HistoryRow, st.integers(0, 99).map(uid), st.integers(1, 9), st.sampled_from(sorted(STATES)), st.integers(0, 99999),
    st.sampled_from(("", "physics")), st.sampled_from(("", "run-1")), st.sampled_from(((), ("nid001",), ("b2", "a1", "a3"))),
    seconds, seconds, seconds, code=st.none() | st.integers(0, 255), reason=st.sampled_from(("", "StartFailed")),
)  # fmt: skip


@given(st.lists(rows, max_size=40), st.integers(100, 400))
def test_every_row_stands_in_one_page_and_is_read_as_it_was_written(written: list[HistoryRow], largest: int) -> None:
    pages = pages_of(written, largest)
    assert [row for page in pages for row in parse_page(page)] == written
    assert all(len(page) <= largest or page.count("\n") == 2 for page in pages)


def test_a_node_that_keeps_nothing_has_one_empty_page() -> None:
    assert pages_of([]) == ["1\n"]
    assert parse_page("1\n") == []


@pytest.mark.parametrize("text", ["2\n", "1\nshort row", "1\nAAAAAAAAAAcAAAAAAAAAAQ 1 ? 1 a/b n 0 0 0 - -"])
def test_a_page_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(Corrupt):
        parse_page(text)


LINE = "AAAAAAAAAAAAAAAAAAAAAQ {attempt} e {number} physics/train nid001 1.0 {start} 3.0 {ended} {reason}"


@pytest.mark.parametrize(
    "lie",
    [
        {"attempt": "0"}, {"attempt": str(1 << 31)}, {"attempt": "-1"}, {"number": str(1 << 63)}, {"number": "9" * 5000},
        {"start": "nan"}, {"start": "inf"}, {"start": "1e300"}, {"start": "-1"}, {"ended": "256:0:0"}, {"ended": "1:129:0"},
        {"ended": "1:0:-1"}, {"ended": "1:0"}, {"reason": "no\x1bword"}, {"reason": "x" * 65},
    ],
)  # fmt: skip
def test_what_no_object_could_hold_is_no_row_whoever_has_the_nodes_key(lie: dict[str, str]) -> None:
    honest = {"attempt": "1", "number": "7", "start": "2.0", "ended": "0:0:0", "reason": "-"}
    assert parse_page("1\n" + LINE.format(**honest))[0].number == 7
    with pytest.raises(Corrupt):
        parse_page("1\n" + LINE.format(**honest | lie))
