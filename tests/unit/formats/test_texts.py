"""Golden texts of each format number: what was once written is read for ever, or refused by number."""

from __future__ import annotations

from pathlib import Path

from lattice.ledger.format import decode_shard, encode_shard
from lattice.ledger.plans import PlanRow, format_plan, parse_plan
from lattice.ledger.reports import NodeReport, ReportRow, format_report, parse_report
from tests.build import row, uid

HERE = Path(__file__).parent

ROWS = [row(1, (0, 1, 2, 3, 7)), row(2, (9,), attempt=2, state="c", tenant="ml & co, gmbh")]
PLAN = [
    PlanRow(
        "run", "", uid(1), 1, 3, 4711, "nid001", "10.0.0.1:50052", "physics", "train", "nid001", ("nid001", "nid002", "nid003", "gpu7")
    ),
    PlanRow("stop", "c", uid(2), 2, 1, 4712, "nid009", "10.0.0.9:50052", "physics", "sweep", "nid009", ("nid009",)),
    PlanRow("stop", "n", uid(3), 1, 0, 0, "", "", "", "", "", ("nid004",)),
]
REPORT = NodeReport(
    17,
    4711,
    "5057a29f",
    "6de69d82",
    (ReportRow(uid(1), 1, "r"), ReportRow(uid(2), 2, "e", "143"), ReportRow(uid(3), 1, "f", "UserUnknown")),
)


def golden(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8").rstrip("\n")


def test_a_ledger_shard_of_format_1_is_written_and_read_as_it_always_was() -> None:
    assert encode_shard(ROWS) == golden("ledger-shard-1")
    assert decode_shard(golden("ledger-shard-1")) == ROWS


def test_a_plan_of_format_1_is_written_and_read_as_it_always_was() -> None:
    assert format_plan(PLAN) == golden("plan-1")
    assert parse_plan(golden("plan-1")) == PLAN


def test_a_report_of_format_1_is_written_and_read_as_it_always_was() -> None:
    assert format_report(REPORT) == golden("report-1")
    assert set(parse_report(golden("report-1")).rows) == set(REPORT.rows)
