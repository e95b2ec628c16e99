"""Plans and reports are read as they were written, and what is not ours is refused by number."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.errors import Corrupt
from lattice.ledger.plans import PlanRow, format_plan, parse_plan
from lattice.ledger.reports import LIMIT, STATES, NodeReport, ReportRow, format_report, parse_report
from lattice.units import encode_uid
from tests.build import uid

names = st.integers(0, 999).map(lambda number: f"nid{number:03d}")
rows = st.builds(
    PlanRow,
    order=st.just("run"),
    cause=st.just(""),
    uid=st.integers(0, 99).map(uid),
    attempt=st.integers(1, 9),
    generation=st.integers(1, 9),
    number=st.integers(0, 10**9),
    reporter=names,
    address=st.just("10.0.0.1:50052"),
    namespace=st.sampled_from(("", "physics")),
    name=st.sampled_from(("", "train-7")),
    head=names,
    nodes=st.lists(names, min_size=1, max_size=8, unique=True).map(tuple),
)


@given(st.lists(rows, max_size=6, unique_by=lambda row: row.key))
def test_a_plan_is_read_as_it_was_written(written: list[PlanRow]) -> None:
    assert parse_plan(format_plan(written)) == sorted(written, key=lambda row: row.key)


def test_a_stop_row_carries_its_cause() -> None:
    stop = PlanRow("stop", "c", uid(1), 1, 1, 7, "a", "a:1", "ns", "x", "a", ("a",))
    assert parse_plan(format_plan([stop])) == [stop]


def test_a_plan_of_another_format_names_both_numbers() -> None:
    with pytest.raises(Corrupt, match=r"format '9'.*reads formats 1 and 2"):
        parse_plan("9\nrun")


def test_trailing_columns_of_a_plan_row_are_ignored() -> None:
    text = format_plan([PlanRow("run", "", uid(1), 1, 1, 7, "a", "a:1", "ns", "x", "a", ("a",))])
    assert parse_plan(text + " later columns") == parse_plan(text)


report_rows = st.builds(
    ReportRow, st.integers(0, 99).map(uid), st.integers(1, 9), st.sampled_from(sorted(STATES)), st.just(""), at_walltime=st.booleans()
)


@given(st.lists(report_rows, max_size=60))
def test_a_report_never_exceeds_its_limit_and_says_what_it_left_out(reported: list[ReportRow]) -> None:
    text = format_report(NodeReport(3, 17, "boot", "inst", tuple(reported)))
    assert len(text) <= LIMIT
    read = parse_report(text)
    assert (read.hb, read.seq, read.boot, read.inst) == (3, 17, "boot", "inst")
    assert read.more == (len(read.rows) < len(reported))
    assert set(read.rows) <= set(reported)


def test_what_the_scheduler_waits_for_is_kept_first() -> None:
    running = [ReportRow(uid(number), 1, "r") for number in range(60)]
    gone = ReportRow(uid(99), 1, "u")
    assert gone in parse_report(format_report(NodeReport(1, 1, "b", "i", (*running, gone)))).rows


@pytest.mark.parametrize(
    "lie",
    [
        "seq=9223372036854775808", "seq=-1", "seq=" + "9" * 5000, "hb=١", "epoch=99999999999999999999", "rows={row}:0:r", "rows={row}:2147483648:r",
        "rows={row}:1:e256", "rows={row}:1:e-1", "rows={row}:1:eabc", "rows={row}:1:fnot a word", "rows={row}:1:f" + "A" * 65, "rows={row}:1:",
        "rows=" + ",".join("{row}:1:u" for _ in range(200)), "away=n[1-999999]", "walltime=0", "walltime=-1", "walltime=x",
    ],
)  # fmt: skip
def test_a_report_holds_nothing_that_no_object_could_hold_whoever_has_the_nodes_key(lie: str) -> None:
    name, _, value = lie.replace("{row}", encode_uid(uid(1))).partition("=")
    fields = {"hb": "1", "seq": "1", "boot": "b", "inst": "i", "rows": ""}

    def text(**changed: str) -> str:
        return " ".join(["1", *(f"{key}={given}" for key, given in (fields | changed).items())])

    assert parse_report(text()).seq == 1
    with pytest.raises(Corrupt):
        parse_report(text(**{name: value}))
