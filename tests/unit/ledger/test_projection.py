"""The scheduler's patches: derived fields agree with conditions, and a second look writes nothing."""

from __future__ import annotations

from typing import Any

import msgspec

from lattice.kube.patches import merge
from lattice.ledger import projection
from lattice.ledger.steps import End, Retry, ShowEnding
from lattice.lifecycle.settle import is_final
from lattice.units import format_time
from lattice.views.allocation import Allocation, Exit
from tests.build import allocation, condition, row

NOW = 1_800_000_000.0
NAMES = {0: "nid001", 1: "nid002"}


def patched(subject: Allocation, patch: dict[str, Any]) -> Allocation:
    """The object after the merge patch."""
    body = merge(msgspec.to_builtins(subject), {"status": patch["status"]})
    return msgspec.convert(body, Allocation)


def kinds(subject: Allocation) -> dict[str, tuple[str, str]]:
    return {entry.type: (entry.status, entry.reason) for entry in subject.status.conditions}


def test_a_reason_is_written_once() -> None:
    fresh = allocation()
    patch = projection.pending(fresh, "WaitingForNodes", "needs 4", number=7, seq=3, now=NOW)
    assert patch is not None
    after = patched(fresh, patch)
    assert after.status.phase == "Pending"
    assert kinds(after) == {"Scheduled": ("False", "WaitingForNodes"), "Ready": ("False", "WaitingForNodes")}
    assert after.status.number == 7
    assert projection.pending(after, "WaitingForNodes", "needs 4", number=7, seq=4, now=NOW + 9) is None


def test_when_a_reservation_was_given_is_written_once_and_taken_away_with_the_reservation() -> None:
    def show(subject: Allocation, reserved: float | None) -> dict[str, Any] | None:
        return projection.pending(subject, "WaitingForNodes", "needs 4", number=7, seq=3, now=NOW, reserved=reserved)

    fresh = allocation()
    first = show(fresh, None)
    assert first is not None
    waiting = patched(fresh, first)
    given = show(waiting, NOW - 60)
    assert given is not None
    assert given["status"] == {"ledgerSeq": 3, "reservedAt": format_time(NOW - 60)}
    holding = patched(waiting, given)
    assert show(holding, NOW - 60) is None
    lost = show(holding, None)
    assert lost is not None
    assert lost["status"]["reservedAt"] is None
    assert projection.placed(holding, row(1, (0, 1)), NAMES, number=7, seq=3, now=NOW)["status"]["reservedAt"] is None


def test_a_placed_one_shows_its_nodes_in_rank_order_with_at_most_three_conditions() -> None:
    after = patched(allocation(), projection.placed(allocation(), row(1, (0, 1)), NAMES, number=7, seq=3, now=NOW))
    assert (after.status.nodes, after.status.head, after.status.reporter, after.status.attempt) == ("nid[001-002]", "nid001", "nid001", 1)
    assert after.status.phase == "Staging"
    assert len(after.status.conditions) <= 3


def test_why_a_placed_one_has_not_started_is_shown_until_the_next_attempt() -> None:
    placed = patched(allocation(), projection.placed(allocation(), row(1, (0, 1)), NAMES, number=7, seq=3, now=NOW))
    after = patched(placed, projection.staged(placed, "PeersUnreachable", "b cannot reach a", seq=3, now=NOW))
    ready = next(entry for entry in after.status.conditions if entry.type == "Ready")
    assert (after.status.phase, ready.reason, ready.message) == ("Staging", "PeersUnreachable", "b cannot reach a")
    again = patched(
        after, projection.retried(after, Retry("StartTimeout", "b cannot reach a", None, counted=False), number=7, seq=4, now=NOW)
    )
    assert {entry.type for entry in again.status.conditions}.isdisjoint({"Staged"})
    assert (again.status.requeues, again.status.attempts[0].reason) == (0, "StartTimeout")


def test_an_end_that_was_decided_is_final() -> None:
    running = allocation(1, condition("Scheduled"), condition("Started"), status_attempt=1, status_phase="Running")
    after = patched(running, projection.ended(running, End("NodeLost", "b was lost"), number=7, seq=9, now=NOW))
    assert after.status.phase == "Failed"
    assert is_final(after.status)


def test_what_ends_by_order_shows_why_and_when_kill_follows_until_nothing_is_left_to_kill() -> None:
    going = allocation(1, condition("Scheduled"), condition("Started"), status_attempt=1, status_phase="Running")
    patch = projection.ending(going, ShowEnding("Cancelled", "deleted", 1_800_000_000.0), seq=5, now=1_800_000_001.0)["status"]
    ready = next(entry for entry in patch["conditions"] if entry["type"] == "Ready")
    assert (patch["phase"], ready["status"], ready["reason"]) == ("Running", "False", "Ending")
    assert ready["message"] == "deleted; TERM was sent at 2027-01-15T08:00:00Z, KILL follows at 2027-01-15T08:00:30Z"
    assert patch["killTime"] == "2027-01-15T08:00:30Z"
    shown = allocation(1, condition("Started"), condition("Ending"), status_attempt=1, status_kill_time=patch["killTime"])
    done = projection.ended(shown, End("Cancelled", "deleted"), number=1, seq=6, now=1_800_000_002.0)["status"]
    assert done["killTime"] is None
    assert "Ending" not in {entry["type"] for entry in done["conditions"]}


def test_what_ended_by_its_reporters_word_while_it_was_ending_shows_no_time_of_kill() -> None:
    ended = allocation(
        1, condition("Ending"), condition("Finished", "True", "WalltimeExceeded"), condition("Stalled"), status_attempt=1,
        status_kill_time="2027-01-15T08:00:30Z",
    )  # fmt: skip
    after = patched(ended, projection.observed(ended, seq=9))
    assert (set(kinds(after)), after.status.kill_time) == ({"Finished", "Stalled"}, None)
    again = projection.observed(after, seq=9)["status"]
    assert again.keys() == {"observedGeneration", "ledgerSeq"}


def test_a_cancelled_one_keeps_the_exit_that_its_reporter_wrote() -> None:
    running = allocation(1, condition("Finished", "True", "Stopped"), status_attempt=1, status_exit=Exit(code=143, signal=15))
    after = patched(running, projection.ended(running, End("Cancelled", "cancelled", exit=Exit(code=0)), number=7, seq=9, now=NOW))
    assert after.status.phase == "Cancelled"
    assert after.status.exit == Exit(code=143, signal=15)
    assert is_final(after.status)


def test_the_next_attempt_keeps_the_submission_time_and_the_history() -> None:
    running = allocation(
        1, condition("Scheduled"), condition("Started"), condition("Finished", "True", "NodeLost"),
        status_attempt=1, status_phase="Running", status_submit_time="2026-01-01T00:00:00Z", status_start_time="2026-01-01T00:00:09Z",
        status_nodes="nid001", status_number=7,
    )  # fmt: skip
    after = patched(running, projection.retried(running, Retry("NodeLost", "b was lost", None, counted=True), number=7, seq=9, now=NOW))
    assert (after.status.attempt, after.status.requeues, after.status.phase) == (2, 1, "Pending")
    assert after.status.submit_time == "2026-01-01T00:00:00Z"
    assert [(entry.attempt, entry.reason, entry.nodes) for entry in after.status.attempts] == [(1, "NodeLost", "nid001")]
    assert set(kinds(after)) == {"Scheduled", "Ready"}
    assert after.status.start_time is None


SCORE = {"total": "0.731", "terms": {"f1": "0.500", "f9": "1.000"}}


def test_what_the_quota_tree_took_back_waits_with_that_reason_and_spends_no_requeue() -> None:
    running = allocation(1, condition("Scheduled"), condition("Started"), status_attempt=1, status_requeues=1, status_nodes="nid001")
    retry = Retry("QuotaReclaimed", "the quota tree took back what was lent to it", None, counted=False)
    after = patched(running, projection.retried(running, retry, number=7, seq=9, now=NOW))
    assert kinds(after)["Scheduled"] == ("False", "QuotaReclaimed")
    assert (after.status.phase, after.status.attempt, after.status.requeues) == ("Pending", 2, 1)
    assert after.status.attempts[-1].reason == "QuotaReclaimed"
    assert after.status.submit_time == running.status.submit_time


def test_the_score_is_written_with_the_reason_and_never_alone() -> None:
    fresh = allocation()
    patch = projection.pending(fresh, "WaitingForNodes", "needs 4", number=7, seq=3, now=NOW, score=SCORE)
    assert patch is not None
    after = patched(fresh, patch)
    assert after.status.score is not None
    assert (after.status.score.total, after.status.score.terms["f1"]) == ("0.731", "0.500")
    higher = {**SCORE, "total": "0.900"}
    assert projection.pending(after, "WaitingForNodes", "needs 4", number=7, seq=4, now=NOW + 9, score=higher) is None


def test_a_placed_one_shows_the_score_that_it_was_placed_with() -> None:
    after = patched(allocation(), projection.placed(allocation(), row(1, (0,)), NAMES, number=7, seq=3, now=NOW, score=SCORE))
    assert after.status.score is not None
    assert (after.status.score.total, after.status.score.terms) == ("0.731", {})
    waited = patched(
        allocation(), projection.pending(allocation(), "WaitingForNodes", "needs 4", number=7, seq=3, now=NOW, score=SCORE) or {}
    )
    later = patched(waited, projection.placed(waited, row(1, (0,)), NAMES, number=7, seq=4, now=NOW))
    assert later.status.score is not None
    assert (later.status.score.total, later.status.score.terms) == ("0.731", {})
    without = projection.placed(allocation(), row(1, (0,)), NAMES, number=7, seq=3, now=NOW)
    assert "score" not in without["status"]
