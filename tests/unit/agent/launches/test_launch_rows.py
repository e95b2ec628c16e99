"""The row of a launch in the step log: its result in sacct's words, its exit, and why it ended."""

from __future__ import annotations

from typing import Any

import pytest

from lattice_agent.launches.launch_end import exit_code
from lattice_agent.launches.launch_rows import row_of
from lattice_agent.launches.record import OVER, STARTED, LaunchRecord, NodePlaces

NODES = (NodePlaces("n1", 0, (0, 1), ((0,), (1,)), (0, 1)), NodePlaces("n2", 1, (2,), ((0,),), (0,)))


def record(done: dict[int, Any], code: int, **fields: Any) -> LaunchRecord:
    """A launch on two nodes that is over."""
    common: dict[str, Any] = {"state": OVER, "begun": 100.0, "ended": 103.5}
    return LaunchRecord(3, "ab", "app", "app -x", NODES, done=done, code=code, **(common | fields))


def ends(*rows: tuple[int, int, int]) -> dict[str, Any]:
    """What a keeper reports."""
    return {"ranks": [list(row) for row in rows], "cpu_seconds": 1.5, "peak_memory": 1 << 20}


GOOD = {0: ends((0, 0, 0), (1, 0, 0)), 1: ends((2, 0, 0))}
BAD = {0: ends((0, 0, 0), (1, 7, 0)), 1: ends((2, 137, 9))}


@pytest.mark.parametrize(
    ("done", "code", "fields", "state", "node", "reason"),
    [
        pytest.param(GOOD, 0, {}, "Completed", "", "", id="all tasks ended with 0"),
        pytest.param(BAD, 137, {}, "Failed", "n2", "task 2 was ended by signal 9", id="a task was killed"),
        pytest.param(BAD, 137, {"result": "Cancelled", "why": "cancelled by bob"}, "Cancelled", "", "cancelled by bob", id="cancelled"),
        pytest.param(GOOD, 0, {"result": "Cancelled", "why": "cancelled by bob"}, "Completed", "", "", id="cancelled too late"),
        pytest.param(BAD, 137, {"result": "Timeout", "why": "-t"}, "Timeout", "n2", "-t", id="its time was over"),
        pytest.param({0: GOOD[0], 1: None}, 137, {}, "NodeFail", "n2", None, id="a node lost"),
        pytest.param({}, 1, {"refusal": "node n2: no such file"}, "Failed", "", "node n2: no such file", id="it did not start"),
        pytest.param({}, 0, {"result": "Cancelled", "why": "cancelled"}, "Cancelled", "", "cancelled", id="cancelled before it began"),
    ],
)
def test_the_result_of_a_launch_is_a_word_of_sacct_with_a_reason(
    done: dict[int, Any], code: int, fields: dict[str, Any], state: str, node: str, reason: str | None
) -> None:
    found = row_of(record(done, code, **fields), 200.0)
    assert (found.state, found.node) == (state, node)
    assert reason is None or found.reason == reason
    assert (found.seconds, found.tasks, found.cpus, found.node_count) == (3.5, 3, 3, 2)


def test_use_is_summed_over_nodes_and_what_no_node_can_have_used_counts_nothing() -> None:
    assert (row_of(record(GOOD, 0), 0).cpu_seconds, row_of(record(GOOD, 0), 0).peak_memory) == (3.0, 1 << 20)
    lied = {0: GOOD[0] | {"cpu_seconds": -1, "peak_memory": 1e300}, 1: GOOD[1]}
    assert (row_of(record(lied, 0), 0).cpu_seconds, row_of(record(lied, 0), 0).peak_memory) == (1.5, 1 << 20)


def test_a_launch_that_runs_is_shown_as_running() -> None:
    found = row_of(record({}, 0, state=STARTED, ended=0.0), 160.0)
    assert (found.state, found.seconds, found.ended) == ("Running", 60.0, "")


def test_a_row_is_bounded_whatever_the_work_is_called() -> None:
    said = "\udcff" * 5000
    found = row_of(record({}, 1, refusal=said), 0)
    assert len(found.reason) == 256
    found.reason.encode()


@pytest.mark.parametrize(
    ("done", "code"),
    [
        pytest.param(GOOD, 0, id="all tasks ended with 0"),
        pytest.param({0: ends((0, 256, 0), (1, 0, 0)), 1: ends((2, 0, 0))}, 255, id="a code that no process has, and whose last byte is 0"),
        pytest.param({0: ends((0, -256, 0), (1, 0, 0)), 1: ends((2, 0, 0))}, 0, id="a negative one"),
        pytest.param({0: ends((0, 0, 0), (1, 1e300, 0)), 1: ends((2, 0, 0))}, 255, id="a vast one"),  # type: ignore[arg-type]
        pytest.param({0: ends((0, 0, 0)), 1: ends((2, 0, 0))}, 137, id="a node leaves a task out"),
        pytest.param({0: ends((0, 200, 0)), 1: ends((2, 0, 0))}, 200, id="it leaves one out beside a higher code"),
    ],
)
def test_a_node_invents_no_exit_code_of_0_by_numbers_that_no_process_ends_with(done: dict[int, Any], code: int) -> None:
    assert exit_code(record(done, 0)) == code
