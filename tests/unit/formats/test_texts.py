"""Golden texts of each format number: what was once written is read for ever, or refused by number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace as replace_struct

from lattice.accounting.charges import Charge
from lattice.accounting.records import read_rows, rows_text
from lattice.errors import Corrupt
from lattice.ledger.format import Row, decode_shard, encode_shard
from lattice.ledger.plans import PlanRow, format_plan, parse_plan
from lattice.ledger.reports import NodeReport, ReportRow, format_report, parse_report
from lattice.scheduling.cluster.backfill_table import BackfillReservation
from lattice.scheduling.model.hardware import Hardware, Key, Need, NodeFacts
from lattice.scheduling.model.outcomes import Outcome, Placed, Reclaim, Score, Waiting
from lattice.scheduling.model.policy import Borrowing, Limits, Policy
from lattice.scheduling.model.windows import ReservationWindow
from lattice.scheduling.model.work import Candidate, NodeHolder
from lattice.scheduling.priority.scoring import Backlog
from lattice.scheduling.priority.shares import Standing
from lattice.scheduling.recording.codec import RULES, CycleDecoder, CycleEncoder, encoded
from lattice.scheduling.recording.cycle_log import WHOLE, payload, scan
from lattice.scheduling.recording.record import Scored, Snapshot
from lattice.views.ledger import TenantAccount
from tests.build import row, uid

HERE = Path(__file__).parent

ROWS = [row(1, (0, 1, 2, 3, 7)), row(2, (9,), attempt=2, state="c", tenant="ml & co, gmbh")]
LIMITED = [
    replace_struct(ROWS[0], walltime=3600), ROWS[1], replace_struct(row(3, (11,)), sensitive=True, walltime=60),
    replace_struct(row(4, (12,)), sensitive=True),
]  # fmt: skip
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


CHARGES = [
    Charge(uid(1), 1, 1, 4711, "physics", "physics", "train", "run 42", "alice", "lhc", "hpc-batch", 4, 16, 1_795_000_000, 1_795_000_060,
           1_795_000_065, 1_795_003_660, "Requeued", "NodeLost", None, 14_400, 57_600, 5),
    Charge(uid(1), 4, 2, 4711, "physics", "physics", "train", "run 42", "alice", "lhc", "hpc-batch", 0, 0, 1_795_000_000, 0, 0,
           1_795_010_000, "Requeued", "Requeued", None, 9000, 36_000, 5),
    Charge(uid(2), 0, 0, 4712, "physics", "physics", "sweep", "", "oidc:bob", "", "hpc-batch", 0, 0, 1_795_000_000, 0, 0, 1_795_000_100,
           "Cancelled", "Cancelled", 143, 0, 0, 10),
]  # fmt: skip


ALL_NODES = {
    index: NodeFacts(
        index=index, name=f"nid{index:03d}", group="g1", cpus=72, memory=512 << 30, gpus=4, features=frozenset({"nvme", "gpu"}),
        hollow=False, usable=index != 3, state="Down" if index == 3 else "Ready", switch="s1", cxl_memory=1 << 40, gpu_type="GH200",
        gpu_memory=96 << 30, unified=True, fingerprint="f1", watts=2500, home="hpc",
    )
    for index in range(4)
}  # fmt: skip
NEED = Need(
    cpus=8, memory=1 << 30, gpus=1, features=frozenset({"gpu"}), groups=frozenset({"g1", "g2"}), only=0b1111, without=1 << 100,
    gpu_type="gh200", gpu_memory=1 << 30, unified=True, allow_cxl=True,
)  # fmt: skip
STARTS, WAITS = (
    Candidate(
        key=f"physics/{name}", uid=f"uid-{name}", tenant="physics", vcluster="hpc", preemption_class=5, submitted=1_799_999_000.5,
        minimum=nodes, maximum=nodes, need=NEED, user="alice", walltime=3600.0, topology="Tight", conformance="Required",
        name="run", blocked=None if name == "starts" else ("Unserved", "a sentence"),
    )
    for name, nodes in (("starts", 1), ("waits", 2))
)  # fmt: skip
HELD = NodeHolder(
    uid="uid-runs", key="physics/runs", tenant="physics", user="alice", vcluster="ml", preemption_class=3, nodes=(0, 1), since=1.25,
    started=2.5, end=1_800_000_600.125, walltime=600.0, borrowed=(1,), preemptions=1, name="run", checkpointed=3.0,
)  # fmt: skip
BUCKET = Key(Hardware(72, 512 << 30, 4, frozenset({"gpu"}), hollow=False, gpu_type="GH200"), "g1", "s1", "f1", "hpc", frozenset({0b1111}))
CYCLE = Snapshot(
    cycle=4711, vcluster="hpc", now=1_800_000_000.0625, candidates=(STARTS, WAITS), nodes=ALL_NODES,
    taken={0: 1_800_000_600.125, 3: float("inf")}, holders={"uid-runs": HELD}, claims=frozenset({"uid-runs"}),
    accounts={"physics": TenantAccount(max_nodes=8, used_nodes=2)},
    policies={"hpc": Policy("hpc", home=True, borrowing=Borrowing(lend=True, max_borrowed=3), limits=Limits(max_nodes=9))},
    windows=(ReservationWindow("maint", 1_800_100_000.0, 1_800_103_600.0, 0b11, frozenset({"olga"}), maintenance=True),),
    lists={"hpc": frozenset({0b1111, 1 << 100})},
    backfill_reservations={"hpc": {"uid-waits": BackfillReservation("uid-waits", "hpc", 1_800_000_608.0, 1_800_004_320.0, ((BUCKET, 2),))}},
    power=50_000,
    scored=Scored(
        ("hpc",), 1800.0, 0.25, 12.5, (Backlog("hpc", 7.1, 1_799_999_999.0),),
        {"physics": Standing(0.3, 0.1 + 0.2, 0.7, 0.85, 0.99)}, {("physics", "alice"): 1 / 3},
    ),
)  # fmt: skip
SCORES = [Score(0.1 + 0.2, tuple(number / 7 for number in range(9)), 0.99), Score(0.25, (0.5,) * 9)]
DECISION: list[Outcome] = [
    Placed(STARTS, (2,), SCORES[0], backfilled=True),
    Waiting(
        WAITS, "Unserved", "a sentence", 1_800_000_001.0, SCORES[1], 1_800_000_608.0, (Reclaim("uid-runs", "ml", (1,), 30.0),)
    ),
]  # fmt: skip
LATER = replace(CYCLE, cycle=4712, now=1_800_000_001.0, candidates=(WAITS,), holders={}, claims=frozenset(), taken={3: float("inf")})
"""What has changed a second later."""


def cycle_payloads() -> list[bytes]:
    """Two cycles as they are written: a whole moment, and what changed."""
    chronicler = CycleEncoder("0.1.0")
    return [chronicler.payload(CYCLE, DECISION, whole=True), chronicler.payload(LATER, DECISION[1:], whole=False)]


def golden(name: str) -> str:
    return (HERE / name).read_text(encoding="utf-8").rstrip("\n")


def test_a_ledger_shard_of_format_1_is_written_and_read_as_it_always_was() -> None:
    assert encode_shard(ROWS, 1) == golden("ledger-shard-1")
    assert decode_shard(golden("ledger-shard-1")) == ROWS


def test_a_ledger_shard_of_format_2_is_written_and_read_as_it_always_was() -> None:
    assert encode_shard(LIMITED) == golden("ledger-shard-2")
    assert decode_shard(golden("ledger-shard-2")) == LIMITED


def test_a_ledger_shard_of_format_1_keeps_the_walltime_in_columns_that_an_older_reader_ignores() -> None:
    text, without = encode_shard(LIMITED, 1), encode_shard([replace_struct(one, walltime=None) for one in LIMITED], 1)
    assert decode_shard(text) == LIMITED
    assert [line.split(" ")[:10] for line in text.split(";")] == [line.split(" ")[:10] for line in without.split(";")]


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("limited", LIMITED, ids=lambda one: f"walltime {one.walltime}, sensitive {one.sensitive}")
def test_mutexes_are_a_trailing_column_of_either_format(number: int, limited: Row) -> None:
    had = replace_struct(limited, mutex="AAAAAAAAAAA+b-_4567890c")
    text = encode_shard([had], number)
    assert decode_shard(text) == [had]
    older = text.rpartition(" ")[0]  # what a reader sees that ignores the column
    assert decode_shard(older) == [limited]


def test_a_plan_of_format_1_is_written_and_read_as_it_always_was() -> None:
    assert format_plan([replace_struct(row, walltime=3600) for row in PLAN], 1) == golden("plan-1")
    assert parse_plan(golden("plan-1")) == PLAN


def test_a_plan_of_format_2_is_written_and_read_as_it_always_was() -> None:
    rows = [replace_struct(PLAN[0], walltime=3600), *PLAN[1:]]
    assert format_plan(rows) == golden("plan-2")
    assert parse_plan(golden("plan-2")) == rows


@pytest.mark.parametrize("read", [decode_shard, lambda text: parse_plan(text.replace("|", "\n"))], ids=["shard", "plan"])
def test_a_later_format_is_refused_and_the_numbers_are_named(read: Callable[[str], object]) -> None:
    with pytest.raises(Corrupt, match="of format '3': this program reads formats 1 and 2"):
        read("3||")


def test_a_report_that_tells_epoch_and_term_says_the_rest_as_format_1_does() -> None:
    told = replace_struct(REPORT, epoch=7, term="Ab-3_x")
    assert format_report(told) == golden("report-1") + " epoch=7 term=Ab-3_x"
    assert (parse_report(format_report(told)).epoch, parse_report(format_report(told)).term) == (7, "Ab-3_x")


def test_usage_rows_of_format_1_are_written_and_read_as_they_always_were() -> None:
    assert rows_text(CHARGES).rstrip("\n") == golden("usage-rows-1")
    assert list(read_rows(golden("usage-rows-1") + "\n", "physics")) == CHARGES


def test_a_report_of_format_1_is_written_and_read_as_it_always_was() -> None:
    assert format_report(REPORT) == golden("report-1")
    assert set(parse_report(golden("report-1")).rows) == set(REPORT.rows)


def test_a_cycle_log_of_format_1_is_written_and_read_as_it_always_was() -> None:
    data = (HERE / "cycle-log-1").read_bytes()
    frames = scan(data).frames
    written = [msgspec.msgpack.decode(one) for one in cycle_payloads()]
    assert [one.pop("rules", None) for one in written] == [RULES, None], "what a reader of that time ignores"
    assert [payload(data, one) for one in frames] == [msgspec.msgpack.encode(one) for one in written]
    reader = CycleDecoder()
    turns = [reader.turn(payload(data, one), whole=one.kind == WHOLE) for one in frames]
    assert [turn.moment for turn in turns] == [CYCLE, LATER]
    assert [encoded(turn.outcomes) for turn in turns] == [encoded(DECISION), encoded(DECISION[1:])]
    assert (turns[0].program, turns[0].rules) == ("0.1.0", 1)
