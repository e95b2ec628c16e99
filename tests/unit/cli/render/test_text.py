"""lattice.cli.render and the rows: tables as people see them, character by character."""

from __future__ import annotations

import pytest

from lattice.cli.render.allocations import allocation_details
from lattice.cli.render.nodes import node_details, node_table
from lattice.cli.render.status_table import status_table
from lattice.cli.render.text import Column, age, fields, memory, span, table
from lattice.scheduling.queries.node_rows import node_row
from lattice.scheduling.queries.status_rows import status_row
from lattice.units import format_time, parse_time
from lattice.views import Allocation, AllocationSpec, AllocationStatus, Condition, Exit, Lifecycle, Metadata, Node, NodeSpec, NodeStatus
from lattice.views.allocation import Resources
from lattice.views.cluster import Capabilities, Wish

NOW = parse_time("2026-09-21T14:13:20Z")


def ago(seconds: float) -> str:
    return format_time(NOW - seconds)


def allocation(name: str, number: int | None, status: AllocationStatus, nodes: int | str = 1) -> Allocation:
    return Allocation(
        metadata=Metadata(name=name, namespace="physics", uid=f"uid-{name}", creation_timestamp=ago(600)),
        spec=AllocationSpec(
            tenant="physics", user="alice", vcluster="hpc-batch", resources=Resources(nodes=nodes), lifecycle=Lifecycle(walltime="72h")
        ),
        status=AllocationStatus(number=number, **{name: getattr(status, name) for name in status.__struct_fields__ if name != "number"}),
    )


FLEET = [
    allocation(
        "training-run", 12345, AllocationStatus(phase="Running", start_time=ago(51781), nodes="nid[001-064]", node_count=64), nodes=64
    ),
    allocation(
        "eval-job",
        12346,
        AllocationStatus(
            phase="Pending",
            conditions=(Condition(type="Scheduled", status="False", reason="WaitingForNodes", last_transition_time=ago(184)),),
        ),
        nodes="4-8",
    ),
    allocation(
        "broken",
        12347,
        AllocationStatus(
            phase="Failed",
            start_time=ago(400),
            end_time=ago(300),
            exit=Exit(code=3),
            conditions=(Condition(type="Finished", status="True", reason="TaskFailed", last_transition_time=ago(300)),),
        ),
    ),
    allocation("new", None, AllocationStatus()),
]


ROWS = [status_row(one) for one in FLEET]


def test_one_line_says_what_where_since_when_and_why() -> None:
    lines = status_table(ROWS, [], now=NOW, users=False, namespaces=False, width=0, color=False)
    assert lines == [
        "   ID  NAME          STATE    NODES  WALLTIME   ELAPSED  VCLUSTER    SINCE  NODELIST(REASON)",
        "12345  training-run  Running     64  72:00:00  14:23:01  hpc-batch  14h23m  nid[001-064]",
        "12346  eval-job      Pending    4-8  72:00:00         —  hpc-batch    3m4s  (WaitingForNodes)",
        "12347  broken        Failed       1  72:00:00  00:01:40  hpc-batch      5m  (TaskFailed, exit 3)",
        "    —  new           Pending      1  72:00:00         —  hpc-batch     10m  (NotYetEvaluated)",
    ]


def test_a_column_without_any_value_vanishes() -> None:
    assert table([Column("A"), Column("B"), Column("C")], [["1", "", "x"], ["2", "—", "y"]]) == ["A  C", "1  x", "2  y"]


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_table_fits_the_terminal(width: int) -> None:
    lines = status_table(ROWS, [], now=NOW, users=False, namespaces=False, width=width, color=False)
    assert max(map(len, lines)) <= width
    assert all(line.split()[0] for line in lines)


def test_colours_are_only_in_state_words_and_do_not_move_columns() -> None:
    plain = status_table(ROWS, [], now=NOW, users=False, namespaces=False, width=0, color=False)
    colored = status_table(ROWS, [], now=NOW, users=False, namespaces=False, width=0, color=True)
    assert any("\x1b[32mRunning\x1b[0m" in line for line in colored)
    import re

    assert [re.sub("\x1b\\[[0-9]*m", "", line) for line in colored] == plain


def test_wide_characters_keep_the_columns_straight() -> None:
    assert table([Column("N"), Column("X")], [["日本", "1"], ["ab", "2"]]) == ["N     X", "日本  1", "ab    2"]


def test_the_details_of_one_say_everything_that_is_known() -> None:
    text = "\n".join(allocation_details(FLEET[2], NOW))
    assert "State:       Failed since 2026-09-21T14:08:20Z (5m)" in text
    assert "Reason:      TaskFailed" in text
    assert "Exit:        3" in text
    assert "Next:        lattice logs 12347" in text


def test_the_lines_of_fields_without_a_value_vanish() -> None:
    assert fields([("A", "1"), ("Long", "x\ny"), ("B", "")]) == ["A:     1", "Long:  x", "       y"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59, "59s"), (60, "1m"), (61, "1m1s"), (3600, "1h"), (90061, "1d1h"), (86460, "1d"), (3659, "1h"), (-5, "0s")],
)
def test_ages_have_two_units(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_an_age_without_a_time_is_empty() -> None:
    assert age(None, NOW) == ""


@pytest.mark.parametrize(("quantity", "text"), [("128Gi", "128Gi"), ("540091318272", "503.0Gi"), (0, ""), ("1000k", "976.6Ki")])
def test_memory_is_short(quantity: int | str, text: str) -> None:
    assert memory(quantity) == text


NODES = [
    Node(
        metadata=Metadata(name="nid001"),
        spec=NodeSpec(group="g0"),
        status=NodeStatus(index=0, state="Ready", since=ago(7200), capabilities=Capabilities(cpus=8, memory="16Gi")),
    ),
    Node(
        metadata=Metadata(name="nid002"),
        spec=NodeSpec(group="g0", drain=Wish(reason="new firmware", by="bob", since=ago(60))),
        status=NodeStatus(index=1, state="Draining", since=ago(60), capabilities=Capabilities(cpus=8, memory="16Gi")),
    ),
]


def test_a_node_that_is_not_ready_says_why_and_since_when() -> None:
    assert node_table([node_row(one) for one in NODES], {"g0": "hpc-batch"}, now=NOW, wide=False, width=0, color=False) == [
        "NODE    STATE     SINCE  REASON              CPUS  MEMORY  VCLUSTER   GROUP",
        "nid001  Ready        2h  —                      8    16Gi  hpc-batch  g0",
        "nid002  Draining     1m  new firmware (bob)     8    16Gi  hpc-batch  g0",
    ]


def test_the_details_of_a_node_name_the_operator() -> None:
    assert "Drain:   new firmware (by bob, 2026-09-21T14:12:20Z)" in node_details(NODES[1], {}, NOW)
