"""What an allocation asks for next: the scheduler's side of its life, as a table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from lattice.ledger.format import Row
from lattice.ledger.proposals import Appoint, Release, Renew, Stop
from lattice.ledger.starting import AttemptNodeState
from lattice.ledger.steps import (
    AddFinalizer,
    AnswerEdges,
    AwaitEdges,
    AwaitImages,
    End,
    Observe,
    Project,
    Propose,
    Queue,
    RemoveFinalizer,
    Rest,
    Retry,
    ShowEnding,
    Stage,
    Step,
    StepFacts,
    next_step,
)
from lattice.units import format_time
from lattice.views.allocation import Allocation, Attempt, Cancel, Exit, Report, SoftwareImage
from lattice.workflow.release import EdgesAwaited, EdgesJudged, EdgesUnmet, Released
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


def facts(subject: Allocation | None, *rows: Row, **standings: AttemptNodeState) -> StepFacts:
    known = {(1, index): standings.get(name, AttemptNodeState(name, state="r")) for index, name in NAMES.items()}
    return StepFacts(subject, rows, 1.8e9, known, NAMES)


def since(seconds: float, *more: Any) -> Allocation:
    """It has run for so long, its walltime being a minute."""
    return running(*more, status_start_time=format_time(1.8e9 - seconds))


def ending(subject: Allocation, one: Row) -> StepFacts:
    """Its row has been releasing for two seconds, and its nodes still run it."""
    return replace(facts(subject, one), ending_seconds=2.0)


HELD = row(1, (0, 1))
TIMED = msgspec.structs.replace(row(1, (0, 1)), walltime=60)
RELEASING = row(1, (0, 1), state="c")
LOST = row(1, (0, 1), state="l")
RECLAIMED = row(1, (0, 1), state="q")
BY_A = Report(attempt=1, by="a")
DOWN = AttemptNodeState("b", down=True, silent=True, state="r")
GONE = AttemptNodeState("a", state="g", vouched_seconds=1)


def finished(reason: str) -> Any:
    return condition("Finished", "True", reason)


CASES: list[tuple[str, StepFacts, Step]] = [
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
    ("while its nodes end it, it rests", facts(running(spec={"cancel": {}}), RELEASING), Rest(1.0)),
    ("what takes longer to end says so", ending(running(spec={"cancel": {"reason": "wrong"}}), RELEASING),
     ShowEnding("Cancelled", "cancelled: wrong", 1.8e9 - 2.0)),
    ("so does what the quota tree takes back", ending(running(), RECLAIMED),
     ShowEnding("QuotaReclaimed", "the quota tree takes back what was lent to it", 1.8e9 - 2.0)),
    ("it is said once", ending(running(condition("Ending"), spec={"cancel": {}}), RELEASING), Rest()),
    ("what has not started has nothing to show", ending(running(condition("Started", "False"), spec={"cancel": {}}), RELEASING), Rest()),
    ("what runs within its walltime is looked at when that is over", facts(since(50), TIMED), Rest(11.0)),
    ("what takes longer to end at its walltime says so", facts(since(62), TIMED),
     ShowEnding("WalltimeExceeded", "its walltime of 1m is over", 1.8e9 - 2.0)),
    ("that is said once, too", facts(since(62, condition("Ending")), TIMED), Rest()),
    ("of a node that is silent nothing is said", facts(since(62), TIMED, b=AttemptNodeState("b", silent=True, state="r")), Rest()),
    ("what has ended everywhere at its walltime is not ending", facts(since(62), TIMED, a=GONE, b=replace(GONE, name="b")), Rest(19.0)),
    ("what has ended by its reporter's word shows no ending",
     facts(running(finished("WalltimeExceeded"), condition("Ending"), condition("Stalled"), status_report=BY_A)), Observe()),
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
    ("the nodes that are left end it first", facts(running(), LOST, b=DOWN), Rest(1.0)),
    ("what the quota tree takes back rests while its nodes end it", facts(running(), RECLAIMED), Rest(1.0)),
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
    ("a silent reporter is replaced", facts(running(), HELD, a=AttemptNodeState("a", silent=True, state="r")), Propose(Appoint(KEY, 1))),
    ("a gone object is stopped", facts(None, HELD), Propose(Stop(KEY, "d"))),
    ("and freed when its nodes vouch", facts(None, row(1, (0, 1), state="d"), a=GONE), Propose(Release(KEY, (0,)))),
    ("an attempt that the ledger does not name starts again", facts(running()), Retry("Lost", "the ledger does not name this attempt", None, counted=True)),
]  # fmt: skip


@pytest.mark.parametrize(("given", "wanted"), [pytest.param(given, wanted, id=name) for name, given, wanted in CASES])
def test_the_next_step(given: StepFacts, wanted: Step) -> None:
    assert next_step(given) == wanted


def test_when_the_reporter_does_not_write_the_end_comes_from_the_reports() -> None:
    ended = {name: AttemptNodeState(name, state="e", detail="3" if name == "b" else "0", vouched_seconds=5.0) for name in "ab"}
    assert next_step(facts(running(), HELD, **ended)) == Rest(15.0)
    later = {name: replace(standing, vouched_seconds=20.0) for name, standing in ended.items()}
    assert next_step(facts(running(), HELD, **later)) == End("TaskFailed", "exit code 3 on b", Exit(code=3, node="b"))


def test_that_the_others_ended_with_zero_says_nothing_of_a_lost_node() -> None:
    ended = AttemptNodeState("a", state="e", detail="0", vouched_seconds=20.0)
    given = facts(running(spec={"lifecycle": {"requeue": {"max": 0}}}), LOST, a=ended, b=DOWN)
    step = next_step(given)
    assert isinstance(step, End)
    assert (step.reason, step.exit) == ("NodeLost", None)


def test_an_unknown_exit_is_not_hidden_by_the_code_of_one_that_was_ended_for_it() -> None:
    said = {
        "a": AttemptNodeState("a", state="e", detail="143", vouched_seconds=20.0),
        "b": AttemptNodeState("b", state="x", vouched_seconds=20.0),
    }
    step = next_step(facts(running(), HELD, **said))
    assert isinstance(step, End)
    assert (step.reason, step.exit) == ("ExitUnknown", None)


SCHEDULED_AT = "2027-01-15T07:55:00Z"
"""Five minutes before the `now` of these facts."""


def staging(*more: Any, spec: dict[str, Any] | None = None, **fields: Any) -> Allocation:
    """A placed gang that has not started."""
    return running(condition("Started", "False"), *more, spec=spec, status_scheduled_time=SCHEDULED_AT, **fields)


def prepared(name: str, seconds: float = 200.0, *away: str, age: float = 1.0) -> AttemptNodeState:
    return AttemptNodeState(name, state="p", detail="r", prepared_seconds=seconds, age=age, away=frozenset(away))


def staged(reason: str) -> Any:
    return condition("Staged", "False", reason, "b cannot reach a")


STARTED_LATE = "had not started 2m after the last node was prepared: every node is prepared; b cannot reach a"
WITHDRAWN = row(1, (0, 1), state="w")
STOPPED = AttemptNodeState("a", state="g", vouched_seconds=3, away=frozenset("b"))
TIMED_OUT = tuple(Attempt(attempt=number, reason="StartTimeout") for number in (1, 2))
STARTS: list[tuple[str, StepFacts, Step]] = [
    (
        "why it waits is shown",
        facts(staging(), HELD, a=prepared("a", 60), b=prepared("b", 60, "a")),
        Stage("PeersUnreachable", "every node is prepared; b cannot reach a"),
    ),
    (
        "what is shown is not shown again",
        facts(staging(staged("PeersUnreachable")), HELD, a=prepared("a", 60), b=AttemptNodeState("b", state="p")),
        Stage("WaitsForNodes", "1 of 2 nodes are prepared; b is not prepared"),
    ),
    (
        "what takes too long is said first",
        facts(staging(), HELD, a=prepared("a"), b=prepared("b", 200, "a")),
        Stage("StartTimeout", STARTED_LATE),
    ),
    (
        "what no node could prepare waits on",
        facts(staging(), HELD, a=AttemptNodeState("a", state="p"), b=AttemptNodeState("b", state="p")),
        Stage("WaitsForNodes", "0 of 2 nodes are prepared; a,b are not prepared"),
    ),
    (
        "a gateway that is away is named with since when",
        facts(
            staging(), HELD, a=AttemptNodeState("a", state="p", detail="g", unserved_since=1800000000.0), b=AttemptNodeState("b", state="p")
        ),
        Stage(
            "NoGateway",
            "0 of 2 nodes are prepared; a,b are not prepared; no gateway gives a the work, since 2027-01-15T08:00:00Z",
        ),
    ),
    ("then it is ended", facts(staging(staged("StartTimeout")), HELD, a=prepared("a"), b=prepared("b", 200, "a")), Propose(Stop(KEY, "w"))),
    (
        "a node that has not spoken since may have started",
        facts(staging(), HELD, a=prepared("a"), b=prepared("b", 200, "a", age=100)),
        Stage("PeersUnreachable", "every node is prepared; b cannot reach a"),
    ),
    (
        "a part that has started is ended, too",
        facts(staging(), HELD, a=AttemptNodeState("a", state="r"), b=prepared("b", 200, "a")),
        Stage(
            "PartlyStarted",
            "had not started 2m after the last node was prepared: 1 of 2 nodes are prepared; 1 have started; b cannot reach a",
        ),
    ),
    ("when all have started the reporter is waited for", facts(staging(), HELD), Rest()),
    (
        "ended before it started it waits again, and that costs nothing",
        facts(staging(staged("StartTimeout")), WITHDRAWN, a=STOPPED, b=replace(STOPPED, name="b")),
        Retry("StartTimeout", "b cannot reach a", None, False),
    ),
    (
        "so it does when its reporter could tell the end",
        facts(staging(staged("StartTimeout"), finished("Stopped"), status_report=BY_A), WITHDRAWN),
        Retry("StartTimeout", "b cannot reach a", None, False),
    ),
    (
        "the third time was the last",
        facts(staging(staged("StartTimeout"), status_attempts=TIMED_OUT), WITHDRAWN, a=STOPPED, b=replace(STOPPED, name="b")),
        End("StartTimeout", "b cannot reach a (3 attempts in a row did not start)"),
    ),
    (
        "a part of what must not run twice had started",
        facts(
            staging(staged("PartlyStarted"), spec={"lifecycle": {"requeue": {"policy": "Never"}}}),
            WITHDRAWN,
            a=STOPPED,
            b=replace(STOPPED, name="b"),
        ),
        End("StartTimeout", "b cannot reach a (requeue Never, and part of it had started)"),
    ),
    (
        "it had started since, though no status shows it",
        facts(
            staging(staged("StartTimeout")),
            WITHDRAWN,
            a=replace(STOPPED, detail="b"),
            b=replace(STOPPED, name="b", state="e", detail="7"),
        ),
        End("TaskFailed", "exit code 7 on b", Exit(code=7, node="b")),
    ),
    (
        "a part of what must not run twice had started since",
        facts(
            staging(staged("StartTimeout"), spec={"lifecycle": {"requeue": {"policy": "Never"}}}),
            WITHDRAWN,
            a=replace(STOPPED, detail="b"),
            b=replace(STOPPED, name="b"),
        ),
        End("StartTimeout", "b cannot reach a (requeue Never, and part of it had started)"),
    ),
    (
        "cancelled while it waits for its end it is cancelled",
        facts(staging(staged("StartTimeout"), spec={"cancel": {}}), WITHDRAWN, a=STOPPED, b=replace(STOPPED, name="b")),
        End("Cancelled", "cancelled"),
    ),
]
FAILED = AttemptNodeState("b", state="e", detail="7", vouched_seconds=3, away=frozenset("a"))
CUT: list[tuple[str, StepFacts, Step]] = [
    ("a failure that a cut node cannot tell ends the others", facts(running(), HELD, b=FAILED), Propose(Stop(KEY, "w"))),
    ("so does a start that failed", facts(running(), HELD, b=replace(FAILED, state="f", detail="StartFailed")), Propose(Stop(KEY, "w"))),
    ("a failure that is told is the reporter's affair", facts(running(), HELD, b=replace(FAILED, away=frozenset())), Rest()),
    ("an end without failure ends nobody else", facts(running(), HELD, b=replace(FAILED, detail="0")), Rest()),
    ("but those without a task", facts(running(), HELD, a=AttemptNodeState("a", state="r", detail="i"), b=replace(FAILED, detail="0")), Propose(Stop(KEY, "w"))),
    ("the end is that of the rank that failed", facts(running(), WITHDRAWN, a=replace(STOPPED, detail=""), b=FAILED),
     End("TaskFailed", "exit code 7 on b", Exit(code=7, node="b"))),
    ("so it is when the reporter has heard of the order alone", facts(running(finished("Stopped"), status_report=BY_A), WITHDRAWN, b=FAILED),
     End("TaskFailed", "exit code 7 on b", Exit(code=7, node="b"))),
    ("the end of the head is that of the script", facts(running(), WITHDRAWN, a=replace(STOPPED, detail=""), b=replace(FAILED, detail="0")),
     End("Completed", "every task ended with 0", Exit(code=0))),
    ("a cut reporter is not waited for", facts(running(spec={"cancel": {}}), RELEASING, a=STOPPED, b=replace(STOPPED, name="b")),
     End("Cancelled", "cancelled", exit=None)),
    ("another one is", facts(running(spec={"cancel": {}}), RELEASING, a=GONE, b=replace(GONE, name="b")), Rest(19.0)),
    ("a walltime is told by its signal and its time",
     facts(running(status_start_time=SCHEDULED_AT, spec={"lifecycle": {"walltime": "1m"}}), HELD,
           a=replace(FAILED, name="a", detail="143"), b=replace(FAILED, detail="143")),
     End("WalltimeExceeded", "its walltime of 1m was over; exit code 143 on a", Exit(code=143, signal=15, node="a"))),
    ("by the time since it was given its nodes where nobody could write when it began",
     facts(running(status_scheduled_time=SCHEDULED_AT, spec={"lifecycle": {"walltime": "1m"}}), HELD,
           a=replace(FAILED, name="a", detail="143"), b=replace(FAILED, detail="143")),
     End("WalltimeExceeded", "its walltime of 1m was over; exit code 143 on a", Exit(code=143, signal=15, node="a"))),
    ("by the node's word where its nodes were shown long after it had run",
     facts(running(status_scheduled_time="2027-01-15T08:59:59Z", spec={"lifecycle": {"walltime": "1m"}}), HELD,
           a=replace(FAILED, name="a", detail="143", at_walltime=True), b=replace(FAILED, detail="143", at_walltime=True)),
     End("WalltimeExceeded", "its walltime of 1m was over; exit code 143 on a", Exit(code=143, signal=15, node="a"))),
    ("whatever the code of work that heeds TERM",
     facts(running(spec={"lifecycle": {"walltime": "1m"}}), HELD,
           a=replace(FAILED, name="a", detail="0", at_walltime=True), b=replace(FAILED, detail="0", at_walltime=True)),
     End("WalltimeExceeded", "its walltime of 1m was over; every task ended with 0", Exit(code=0))),
    ("but not where the end is another node's",
     facts(running(spec={"lifecycle": {"walltime": "1m"}}), HELD,
           a=replace(FAILED, name="a", detail="7"), b=replace(FAILED, detail="143", at_walltime=True)),
     End("TaskFailed", "exit code 7 on a", Exit(code=7, node="a"))),
    ("and not before", facts(running(status_scheduled_time=SCHEDULED_AT, spec={"lifecycle": {"walltime": "1h"}}), HELD,
           a=replace(FAILED, name="a", detail="143"), b=replace(FAILED, detail="143")),
     End("TaskFailed", "exit code 143 on a", Exit(code=143, signal=15, node="a"))),
]  # fmt: skip


@pytest.mark.parametrize(("given", "wanted"), [pytest.param(*case[1:], id=case[0]) for case in STARTS + CUT])
def test_what_silence_between_nodes_leads_to(given: StepFacts, wanted: Step) -> None:
    assert next_step(given) == wanted


def test_a_final_state_is_never_left() -> None:
    done = running(finished("Completed"), condition("Ready"), status_report=BY_A, spec={"cancel": {}})
    assert next_step(facts(done)) == Rest()
    assert done.spec.cancel == Cancel()


PROLOGUE = "node b: the prologue hook 10-check ended with exit code 3"


def after_prologue(before: int, policy: str = "Never", **spec: Any) -> Allocation:
    """Its prologue has failed on b, after so many attempts in a row of which it did on a."""
    found = running(
        condition("Started", "False"), condition("Finished", "True", "PrologueFailed", PROLOGUE),
        status_report=Report(1, "a", "b"), spec={"lifecycle": {"requeue": {"policy": policy, "max": 0}}, **spec},
    )  # fmt: skip
    attempts = tuple(Attempt(number, reason="PrologueFailed", node="a") for number in range(1, before + 1))
    return msgspec.structs.replace(found, status=msgspec.structs.replace(found.status, attempts=attempts))


@pytest.mark.parametrize("policy", ["Never", "OnNodeFailure", "Always"])
def test_a_failed_prologue_is_tried_again_whatever_the_policy_and_names_its_node(policy: str) -> None:
    assert next_step(facts(after_prologue(2, policy))) == Retry("PrologueFailed", PROLOGUE, None, counted=False, node="b")


def test_after_so_many_failed_prologues_in_a_row_it_ends() -> None:
    assert next_step(facts(after_prologue(3))) == End("PrologueFailed", f"{PROLOGUE} (4 attempts in a row, work.prologueRetries is 3)")
    assert next_step(replace(facts(after_prologue(0)), prologue_retries=0)) == End(
        "PrologueFailed", f"{PROLOGUE} (1 attempts in a row, work.prologueRetries is 0)"
    )


def test_a_failed_prologue_of_work_that_is_not_wanted_any_more_is_not_tried_again() -> None:
    step = next_step(facts(after_prologue(0, cancel={"reason": "wrong"})))
    assert isinstance(step, End)
    assert step.reason == "Cancelled"


def test_without_a_reporter_the_nodes_reports_name_the_node_whose_prologue_failed() -> None:
    failed = AttemptNodeState("b", state="f", detail="PrologueFailed", vouched_seconds=60)
    step = next_step(
        facts(running(condition("Started", "False")), HELD, a=AttemptNodeState("a", state="e", detail="0", vouched_seconds=60), b=failed)
    )
    assert isinstance(step, Retry)
    assert (step.reason, step.node, step.counted) == ("PrologueFailed", "b", False)


ASKS = {"environment": {"uenv": "prgenv/24.11:v1"}}
IMAGE = SoftwareImage(source="prgenv/24.11:v1", digest="sha256:" + "a" * 64, layer="sha256:" + "b" * 64)
AWAITED = AwaitImages("waits until the operator has resolved prgenv/24.11:v1")


@pytest.mark.parametrize(
    ("subject", "expected"),
    [
        (allocation(1, spec=ASKS), AWAITED),
        (allocation(1, condition("SoftwareResolved", "Unknown", "RegistryAwaited", "r is away"), spec=ASKS), AwaitImages("r is away")),
        (allocation(1, condition("SoftwareResolved", "False", "ImageNotFound", "no"), spec=ASKS), End("ImageNotFound", "no")),
        (allocation(1, spec=ASKS, status_software=(IMAGE,)), Queue()),
        (allocation(1, spec={"environment": {"uenv": "./mine.squashfs:/x"}}), Queue()),
        (allocation(1, spec={"environment": {"uenv": "no label"}}), AwaitImages("waits until the operator has resolved no label")),
        (allocation(1, spec=ASKS, finalizers=[]), AddFinalizer()),
    ],
    ids=("asked for", "registry away", "refused", "pinned", "own file", "unreadable", "finalizer first"),
)
def test_work_is_no_candidate_before_its_images_are_resolved(subject: Allocation, expected: Step) -> None:
    assert next_step(StepFacts(subject, (), 1.8e9)) == expected


def test_a_later_attempt_uses_the_images_of_the_first() -> None:
    again = allocation(1, condition("Scheduled", "False"), spec=ASKS, status_software=(IMAGE,), status_attempt=2)
    assert next_step(StepFacts(again, (), 1.8e9)) == Queue()


def test_work_that_is_cancelled_while_its_images_are_awaited_is_cancelled() -> None:
    gone = allocation(1, spec={**ASKS, "cancel": {"reason": "no"}})
    assert next_step(StepFacts(gone, (), 1.8e9)) == End("Cancelled", "cancelled: no")


OPEN = EdgesJudged(verdict=EdgesAwaited("WaitingForDependency", "waits"), unwritten=True)
NEVER = EdgesJudged(verdict=EdgesUnmet("DependencyFailed", "never"))


@pytest.mark.parametrize(
    ("subject", "judged", "expected"),
    [
        (allocation(1), OPEN, AwaitEdges(OPEN, EdgesAwaited("WaitingForDependency", "waits"))),
        (allocation(1), replace(OPEN, verdict=Released()), AnswerEdges(replace(OPEN, verdict=Released()))),
        (allocation(1), replace(NEVER, unwritten=True), AnswerEdges(replace(NEVER, unwritten=True))),
        (allocation(1), NEVER, End("DependencyFailed", "never")),
        (allocation(1, spec=ASKS), EdgesJudged(verdict=Released()), AWAITED),
        (allocation(1, finalizers=[]), NEVER, AddFinalizer()),
        (allocation(1, spec={"cancel": {"reason": "no"}}), OPEN, End("Cancelled", "cancelled: no")),
    ],
    ids=("open", "answers first", "answers before the end", "never met", "images come after", "finalizer first", "cancelled"),
)
def test_work_is_no_candidate_before_its_edges_are_answered_in_its_status(subject: Allocation, judged: EdgesJudged, expected: Step) -> None:
    assert next_step(StepFacts(subject, (), 1.8e9, edges=judged)) == expected


def test_what_others_wait_for_stays_until_their_statuses_show_its_answer() -> None:
    gone = allocation(1, finished("Completed"), condition("Ready"), deletionTimestamp="2026-01-01T00:00:00Z", status_attempt=1)
    assert next_step(StepFacts(gone, (), 1.8e9, awaited=True)) == Rest(5.0)
    assert next_step(StepFacts(gone, (), 1.8e9)) == RemoveFinalizer()
