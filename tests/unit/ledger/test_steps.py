"""What an allocation asks for next: the scheduler's side of its life, as a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lattice.ledger.format import Row
from lattice.ledger.proposals import Appoint, Release, Renew, Stop
from lattice.ledger.steps import (
    AddFinalizer,
    End,
    Facts,
    Observe,
    Project,
    Propose,
    Queue,
    RemoveFinalizer,
    Rest,
    Retry,
    Standing,
    Step,
    next_step,
)
from lattice.views.allocation import Allocation, Cancel, Exit, Report
from tests.build import allocation, condition, row, uid

NAMES = {0: "a", 1: "b"}
SCHEDULED = condition("Scheduled")
STARTED = condition("Started")
READY = condition("Ready", "False")
KEY = (uid(1), 1)


def running(*more: Any, **fields: Any) -> Allocation:
    base: dict[str, Any] = {
        "status_attempt": 1,
        "status_reporter": "a",
        "status_head": "a",
        "status_nodes": "a,b",
        "status_observed_generation": 1,
    }
    kinds = {entry.type for entry in more}
    given = [entry for entry in (SCHEDULED, STARTED, READY) if entry.type not in kinds]
    return allocation(1, *given, *more, **{**base, **fields})


def facts(subject: Allocation | None, *rows: Row, **standings: Standing) -> Facts:
    known = {(1, index): standings.get(name, Standing(name, state="r")) for index, name in NAMES.items()}
    return Facts(subject, rows, 1.8e9, known, NAMES)


HELD = row(1, (0, 1))
RELEASING = row(1, (0, 1), state="c")
LOST = row(1, (0, 1), state="l")
RECLAIMED = row(1, (0, 1), state="q")
BY_A = Report(attempt=1, by="a")
DOWN = Standing("b", down=True, silent=True, state="r")
GONE = Standing("a", state="g", vouched_seconds=1)


def finished(reason: str) -> Any:
    return condition("Finished", "True", reason)


CASES: list[tuple[str, Facts, Step]] = [
    ("a new one waits for nodes", facts(allocation()), Queue()),
    ("without its finalizer it is not claimed", facts(allocation(finalizers=[])), AddFinalizer()),
    ("cancelled before it started it ends", facts(allocation(spec={"cancel": {"reason": "wrong"}})), End("Cancelled", "cancelled: wrong")),
    ("past its deadline it ends", facts(allocation(spec={"lifecycle": {"deadline": "2026-01-02T00:00:00Z"}})),
     End("DeadlineMissed", "had not started by its deadline 2026-01-02T00:00:00Z")),
    ("a claimed one is shown", facts(allocation(), HELD), Project(HELD)),
    ("a running one rests", facts(running(), HELD), Rest()),
    ("a changed spec reaches the agents", facts(running(generation=2), HELD), Propose(Renew(KEY, 2))),
    ("cancelled while it runs it is stopped first", facts(running(spec={"cancel": {}}), HELD), Propose(Stop(KEY, "c"))),
    ("deleted while it runs it is stopped first", facts(running(deletionTimestamp="2026-01-01T00:00:00Z"), HELD), Propose(Stop(KEY, "d"))),
    ("while its nodes end it, it rests", facts(running(spec={"cancel": {}}), RELEASING), Rest()),
    ("stopped by its reporter it is cancelled", facts(running(finished("Stopped"), spec={"cancel": {}}, status_report=BY_A), RELEASING),
     End("Cancelled", "cancelled")),
    ("completed it frees its nodes", facts(running(finished("Completed"), condition("Ready"), status_report=BY_A), HELD), Propose(Release(KEY))),
    ("final and without rows it rests", facts(running(finished("Completed"), condition("Ready"), status_report=BY_A)), Rest()),
    ("final and changed it is observed",
     facts(running(finished("Completed"), condition("Ready"), status_report=BY_A, generation=2)), Observe()),
    ("final, deleted and without rows it may go",
     facts(running(finished("Completed"), condition("Ready"), status_report=BY_A, deletionTimestamp="2026-01-01T00:00:00Z")), RemoveFinalizer()),
    ("final, deleted and not yet settled it stays", replace(
        facts(running(finished("Completed"), condition("Ready"), status_report=BY_A, deletionTimestamp="2026-01-01T00:00:00Z")), settled=False
    ), Rest()),
    ("a lost node stops it", facts(running(), HELD, b=DOWN), Propose(Stop(KEY, "l"))),
    ("the nodes that are left end it first", facts(running(), LOST, b=DOWN), Rest()),
    ("what the quota tree takes back rests while its nodes end it", facts(running(), RECLAIMED), Rest()),
    ("then it waits again, whatever its policy of requeue, and spends nothing of it",
     facts(running(finished("Stopped"), status_report=BY_A, spec={"lifecycle": {"requeue": {"policy": "Never"}}}), RECLAIMED),
     Retry("QuotaReclaimed", "the quota tree took back what was lent to it; ", None, counted=False)),
    ("what it took back and a lost node held waits again, too", facts(running(), RECLAIMED, a=GONE, b=DOWN),
     Retry("QuotaReclaimed", "the quota tree took back what was lent to it; 1 of 2 nodes were lost: b", None, counted=False)),
    ("what completes before it is ended stays completed",
     facts(running(finished("Completed"), condition("Ready"), status_report=BY_A), RECLAIMED), Propose(Release(KEY))),
    ("what fails by itself before it is ended is decided by its policy",
     facts(running(finished("TaskFailed"), status_report=BY_A), RECLAIMED), End("TaskFailed", "")),
    ("what its owner cancels while it is ended is cancelled",
     facts(running(finished("Stopped"), spec={"cancel": {}}, status_report=BY_A), RECLAIMED), End("Cancelled", "cancelled")),
    ("then it is requeued without waiting for the lost node", facts(running(), LOST, a=GONE, b=DOWN),
     Retry("NodeLost", "1 of 2 nodes were lost: b", None, counted=True)),
    ("a lost node fails it where no requeue is left",
     facts(running(spec={"lifecycle": {"requeue": {"max": 0}}}), LOST, a=GONE, b=DOWN),
     End("NodeLost", "1 of 2 nodes were lost: b (requeue OnNodeFailure, 0 of 0 used)")),
    ("the old row is freed node by node", facts(allocation(status_attempt=2), LOST, a=GONE, b=DOWN), Propose(Release(KEY, (0,)))),
    ("a fenced node is freed", facts(allocation(status_attempt=2), row(1, (1,), state="l"), b=replace(DOWN, fenced=True)),
     Propose(Release(KEY, (1,)))),
    ("a silent node alone keeps its row", facts(allocation(status_attempt=2), row(1, (1,), state="l"), b=DOWN), Queue()),
    ("a failed task fails it", facts(running(finished("TaskFailed"), condition("Stalled"), status_report=BY_A), HELD), Propose(Release(KEY))),
    ("an end that may be requeued frees the nodes first", facts(running(finished("Lost"), status_report=BY_A), HELD), Propose(Release(KEY))),
    ("and then the next attempt follows", facts(running(finished("Lost"), status_report=BY_A)), Retry("Lost", "", None, counted=True)),
    ("lost before its start is a retry that spends nothing",
     facts(allocation(1, SCHEDULED, finished("Lost"), status_attempt=1, status_report=BY_A)), Retry("Lost", "", None, counted=False)),
    ("a silent reporter is replaced", facts(running(), HELD, a=Standing("a", silent=True, state="r")), Propose(Appoint(KEY, 1))),
    ("a gone object is stopped", facts(None, HELD), Propose(Stop(KEY, "d"))),
    ("and freed when its nodes vouch", facts(None, row(1, (0, 1), state="d"), a=GONE), Propose(Release(KEY, (0,)))),
    ("an attempt that the ledger does not name starts again", facts(running()), Retry("Lost", "the ledger does not name this attempt", None, counted=True)),
]  # fmt: skip


@pytest.mark.parametrize(("given", "wanted"), [pytest.param(given, wanted, id=name) for name, given, wanted in CASES])
def test_the_next_step(given: Facts, wanted: Step) -> None:
    assert next_step(given) == wanted


def test_when_the_reporter_does_not_write_the_end_comes_from_the_reports() -> None:
    ended = {name: Standing(name, state="e", detail="3" if name == "b" else "0", vouched_seconds=5.0) for name in "ab"}
    assert next_step(facts(running(), HELD, **ended)) == Rest(15.0)
    later = {name: replace(standing, vouched_seconds=20.0) for name, standing in ended.items()}
    assert next_step(facts(running(), HELD, **later)) == End("TaskFailed", "exit code 3 on b", Exit(code=3, node="b"))


def test_a_final_state_is_never_left() -> None:
    done = running(finished("Completed"), condition("Ready"), status_report=BY_A, spec={"cancel": {}})
    assert next_step(facts(done)) == Rest()
    assert done.spec.cancel == Cancel()
