"""What a recovery makes of histories: nothing twice, no end invented, every end told, whatever is asked again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import pytest

from lattice.ledger.commit import Book, apply_all
from lattice.ledger.history import HistoryRow
from lattice.ledger.plans import PlanRow
from lattice.ledger.proposals import Accepted, Limits, Pool, Recover
from lattice.ledger.reports import NodeReport
from lattice.ledger.restoration import Answers, Present, Restored, rebuilt_index, restore, restored_at, seen_elsewhere
from lattice.lifecycle.settle import is_final
from lattice.views.allocation import Allocation, AllocationStatus
from lattice.views.ledger import LedgerTerm
from tests.build import allocation, claim, condition, row, uid

NOW, WRITTEN = 1_800_000_000.0, 1_799_990_000.0
INDICES = {"a": 0, "b": 1, "c": 2, "d": 3}
TERMS = (LedgerTerm(epoch=5, term="five", since=40, left=1), LedgerTerm(epoch=6, term="six", since=101, left=2))


def told(
    number: int, state: str, *, attempt: int = 1, nodes: tuple[str, ...] = ("a",), code: int | None = None, **fields: Any
) -> HistoryRow:
    given: dict[str, Any] = {"number": 40 + number, "prepared": NOW - 100, "start": NOW - 90, "end": 0.0 if code is None else NOW - 50}
    return HistoryRow(uid(number), attempt, state, namespace="physics", name=f"job-{number}", nodes=nodes, code=code, **given | fields)


def recovered(
    rows: Mapping[str, Iterable[HistoryRow]], *known: Allocation, book: Book | None = None, away: Iterable[str] = (), made: float = 0.0,
    orders: Iterable[PlanRow] = (),
) -> tuple[Restored, Book, dict[str, AllocationStatus]]:  # fmt: skip
    """What follows, the ledger with it, and the statuses with the patches."""
    book = book or ledger()
    answers = Answers(
        {node: tuple(found) for node, found in rows.items()}, dict.fromkeys(rows, made), frozenset(away), frozenset(INDICES), WRITTEN, NOW
    )
    objects = {one.metadata.uid: one for one in known}
    present = Present(objects, list(book.rows.values()), INDICES, 2000, lambda nodes: 4 * len(list(nodes)), tuple(orders))
    found = restore(answers, present)
    verdicts, _ = apply_all(book, [Recover(1999, 5000, 50), Pool(4), *found.proposals])
    assert all(isinstance(verdict, Accepted) for verdict in verdicts), verdicts
    book.validate()
    statuses = {key: one.status for key, one in objects.items()}
    for one, patch in found.patches:
        before = msgspec.to_builtins(one.status)
        statuses[one.metadata.uid] = msgspec.convert({**before, **patch["status"]}, AllocationStatus)
    return found, book, statuses


def ledger(*claims: Any) -> Book:
    book = Book.empty("t", "c")
    apply_all(book, [Limits("physics", None, None), Pool(4), *claims])
    return book


def reasons(status: AllocationStatus) -> dict[str, str]:
    return {one.type: one.reason for one in status.conditions if one.status == "True"}


def everywhere(**rows: Iterable[HistoryRow]) -> dict[str, Iterable[HistoryRow]]:
    return {node: rows.get(node, ()) for node in INDICES}


RUNNING = (condition("Scheduled", reason="Placed"), condition("Started"))


def test_work_that_ran_at_the_snapshot_and_has_ended_since_gets_its_end_and_frees_its_nodes() -> None:
    was = allocation(
        1, *RUNNING, status_attempt=1, status_nodes="a", status_node_count=1, status_head="a", status_scheduled_time="2027-01-01T00:00:00Z"
    )
    _, book, statuses = recovered(everywhere(a=[told(1, "e", code=7)]), was, book=ledger(claim(1, (0,))))
    status = statuses[uid(1)]
    assert is_final(status)
    assert reasons(status)["Finished"] == "TaskFailed"
    assert status.exit is not None
    assert (status.exit.code, status.exit.node, status.attempt, status.scheduled_time) == (7, "a", 1, "2027-01-01T00:00:00Z")
    assert book.rows == {}


def test_work_that_waited_at_the_snapshot_and_has_ended_since_is_never_placed_again() -> None:
    _, book, statuses = recovered(everywhere(b=[told(1, "e", nodes=("b",), code=0)]), allocation(1))
    status = statuses[uid(1)]
    assert is_final(status)
    assert (status.attempt, status.nodes, status.head, status.node_count, status.gpus, status.number) == (1, "b", "b", 1, 4, 41)
    assert (status.scheduled_time, status.start_time, status.end_time) == (
        "2027-01-15T07:58:20Z",
        "2027-01-15T07:58:30Z",
        "2027-01-15T07:59:10Z",
    )
    assert book.rows == {}


def test_what_runs_is_entered_as_it_runs_with_the_number_of_its_attempt() -> None:
    rows = everywhere(
        a=[told(1, "l", end=NOW - 70)],
        b=[told(1, "r", attempt=2, nodes=("b", "c"))],
        c=[told(1, "u", attempt=2, nodes=("b", "c"))],
    )
    _, book, statuses = recovered(rows, allocation(1, status_attempt=1))
    assert {key: (one.state, one.nodes) for key, one in book.rows.items()} == {(uid(1), 2): ("h", (1, 2))}
    status = statuses[uid(1)]
    assert (status.attempt, [(one.attempt, one.reason) for one in status.attempts]) == (2, [(1, "NodeLost")])
    assert not is_final(status)


def test_a_node_that_works_for_somebody_else_is_not_held_for_what_was_there_at_the_snapshot() -> None:
    was = allocation(1, *RUNNING, status_attempt=1)
    rows = everywhere(a=[told(1, "e", code=0), told(2, "r")])
    _, book, statuses = recovered(rows, was, allocation(2), book=ledger(claim(1, (0,))))
    assert {key: one.state for key, one in book.rows.items()} == {(uid(2), 1): "h"}
    assert reasons(statuses[uid(1)])["Finished"] == "Completed"


def test_an_end_that_policy_requeues_is_the_next_attempt_and_the_older_end_is_kept() -> None:
    was = allocation(1, *RUNNING, status_attempt=1, status_nodes="a", status_node_count=1)
    _, book, statuses = recovered(everywhere(a=[told(1, "l")]), was, book=ledger(claim(1, (0,))))
    status = statuses[uid(1)]
    assert (status.attempt, status.phase, [(one.attempt, one.reason) for one in status.attempts]) == (2, "Pending", [(1, "NodeLost")])
    assert book.rows == {}


def test_older_attempts_that_still_run_are_ending_beside_the_newest() -> None:
    rows = everywhere(a=[told(1, "r")], b=[told(1, "r", attempt=2, nodes=("b",))])
    _, book, _ = recovered(rows, allocation(1))
    assert {key: one.state for key, one in book.rows.items()} == {(uid(1), 1): "l", (uid(1), 2): "h"}


def test_an_end_is_open_while_a_node_of_it_is_away_and_its_row_waits_for_that_node() -> None:
    rows: dict[str, list[HistoryRow]] = {node: [] for node in "acd"} | {"a": [told(1, "e", nodes=("a", "b"), code=0)]}
    found, book, statuses = recovered(rows, allocation(1), away="b")
    assert {key: (one.state, one.nodes) for key, one in book.rows.items()} == {(uid(1), 1): ("h", (0, 1))}
    assert not is_final(statuses[uid(1)])
    assert statuses[uid(1)].attempt == 1
    assert found.number == 41


def test_a_failure_is_an_end_though_a_node_of_it_is_away_whose_row_stays() -> None:
    rows: dict[str, list[HistoryRow]] = {node: [] for node in "acd"} | {"a": [told(1, "e", nodes=("a", "b"), code=9)]}
    was = allocation(1, *RUNNING, status_attempt=1)
    _, book, statuses = recovered(rows, was, book=ledger(claim(1, (0, 1))), away="b")
    assert is_final(statuses[uid(1)])
    assert {key: (one.state, one.nodes) for key, one in book.rows.items()} == {(uid(1), 1): ("l", (1,))}


def test_a_row_that_no_node_knows_begins_where_all_remember_and_is_lost_where_one_has_forgotten() -> None:
    was = allocation(1, condition("Scheduled", reason="Placed"), status_attempt=1, status_nodes="a")
    found, book, _ = recovered(everywhere(), was, book=ledger(claim(1, (0,))))
    assert (found.patches, {one.state for one in book.rows.values()}) == ([], {"h"})
    _, book, statuses = recovered(everywhere(), was, book=ledger(claim(1, (0,))), made=WRITTEN + 1)
    assert (book.rows, statuses[uid(1)].attempt, statuses[uid(1)].phase) == ({}, 2, "Pending")


def test_what_is_final_stays_as_it_is() -> None:
    was = allocation(1, condition("Finished", reason="Completed"), condition("Ready"), status_attempt=1)
    found, _, _ = recovered(everywhere(a=[told(1, "e", code=7), told(1, "e", attempt=2, code=7)]), was)
    assert found.patches == []


def test_asked_again_after_the_ends_were_written_nothing_more_is_written() -> None:
    rows = everywhere(a=[told(1, "e", code=7), told(2, "l")], b=[told(3, "r", nodes=("b",))])
    known = [allocation(number) for number in (1, 2, 3)]
    _, _, statuses = recovered(rows, *known)
    again = [msgspec.structs.replace(one, status=statuses[one.metadata.uid]) for one in known]
    found, book, _ = recovered(rows, *again)
    assert found.patches == []
    assert set(book.rows) == {(uid(3), 1)}


def test_what_plans_say_is_entered_where_the_ledger_is_gone() -> None:
    orders = [
        PlanRow("run", "", uid(1), 1, 1, 41, "a", "a:1", "physics", "job-1", "a", ("a",)),
        PlanRow("stop", "c", uid(2), 1, 1, 42, "d", "d:1", "physics", "job-2", "d", ("d",)),
        PlanRow("run", "", uid(3), 1, 1, 43, "b", "b:1", "physics", "job-3", "b", ("b",)),
    ]
    shown = [allocation(number, *RUNNING, status_attempt=1) for number in (1, 2, 3)]
    rows = {"a": [told(1, "r")], "b": [told(3, "e", nodes=("b",), code=0)], "c": []}
    _, book, statuses = recovered(rows, *shown, away="d", orders=orders)
    assert {key: one.state for key, one in book.rows.items()} == {(uid(1), 1): "h", (uid(2), 1): "c"}
    assert is_final(statuses[uid(3)])


@pytest.mark.parametrize(
    ("reports", "found"),
    [
        pytest.param([NodeReport(1, 130, "", "", (), False, 5, "five")], (100, 2), id="of a term that both know"),
        pytest.param(
            [NodeReport(1, 130, "", "", (), False, 6, "lost")], (39, 2), id="of a term that this ledger never had: a term too early"
        ),
        pytest.param([NodeReport(1, 130, "", "", (), False, 9, "lost")], (39, 2), id="of a later epoch"),
        pytest.param([NodeReport(1, 130, "", "", (), False, 3, "old")], (0, 1), id="of an epoch that nobody remembers"),
    ],
)
def test_a_recovery_asks_for_what_was_settled_since_the_snapshot_and_rather_for_more(
    reports: list[NodeReport], found: tuple[int, int]
) -> None:
    assert all(seen_elsewhere(report, TERMS, 0) for report in reports)
    assert restored_at(TERMS, reports) == found


def test_the_node_index_is_made_from_what_nodes_and_plans_say() -> None:
    orders = [PlanRow("run", "", uid(1), 1, 1, 41, "a", "a:1", "physics", "job-1", "gone", ("gone", "a"))]
    assert rebuilt_index({"a": 7, "b": 2, "c": None}, [row(1, (3, 7))], orders) == {7: "a", 2: "b", 3: "gone"}


def test_a_node_that_tells_of_an_attempt_that_was_never_its_own_neither_ends_it_nor_gets_it() -> None:
    was = allocation(1, *RUNNING, status_attempt=1, status_nodes="a", status_node_count=1)
    lie = msgspec.structs.replace(told(1, "e", nodes=("d",), code=0), number=2**40)
    for honest in ([told(1, "r")], []):
        found, book, statuses = recovered(everywhere(a=honest, d=[lie]), was, book=ledger(claim(1, (0,))))
        assert [(one.node, one.uid, one.attempt) for one in found.foreign] == [("d", uid(1), 1)]
        assert ({key: (one.state, one.nodes) for key, one in book.rows.items()}, found.patches) == ({(uid(1), 1): ("h", (0,))}, [])
        assert not is_final(statuses[uid(1)])
        assert found.number == (41 if honest else 0), "nor does its number count"
    greedy = everywhere(a=[told(1, "r")], d=[told(1, "r", nodes=("a", "b", "c", "d"))])
    _, book, _ = recovered(greedy, allocation(1))
    assert book.rows[uid(1), 1].nodes == (0,)


def test_of_ended_work_that_two_nodes_claim_for_themselves_nobody_knows_the_end_and_it_does_not_run_again() -> None:
    rows = everywhere(a=[told(1, "e", code=7)], d=[told(1, "e", nodes=("d",), code=0)])
    found, book, statuses = recovered(rows, allocation(1))
    status = statuses[uid(1)]
    assert (reasons(status)["Finished"], status.exit, book.rows) == ("ExitUnknown", None, {})
    assert [one.attempt for one in found.contested] == [1]
