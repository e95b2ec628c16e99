"""Events about allocations: few, each once, and none for what a list shows."""

from __future__ import annotations

from typing import Any

import pytest

from lattice.lifecycle.occurrences import Occurrence, occurrence
from lattice.views.allocation import Allocation, Attempt, Exit
from tests.build import allocation, condition


def one(*conditions: Any, **fields: Any) -> Allocation:
    return allocation(1, *conditions, **fields)


SCHEDULED, STARTED = condition("Scheduled", message="2 nodes: n[1-2]"), condition("Started")
FAILED = (condition("Finished", "True", "TaskFailed", message="rank 0 ended with 3"), condition("Stalled"))
FITS_NOT = condition("Scheduled", "False", "NeverFits", message="no node has 2 GPUs")
REQUEUED = {"status_attempt": 2, "status_attempts": (Attempt(attempt=1, nodes="n1", reason="NodeLost"),)}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        pytest.param(one(), one(SCHEDULED), Occurrence("Scheduled", "2 nodes: n[1-2]", "Place"), id="placed"),
        pytest.param(one(SCHEDULED), one(SCHEDULED, STARTED), None, id="a start is in the status"),
        pytest.param(
            one(SCHEDULED, STARTED), one(SCHEDULED, STARTED, condition("Finished", "True", "Succeeded"), condition("Ready"), status_phase="Completed"), None,
            id="success is in the status",
        ),
        pytest.param(
            one(SCHEDULED, STARTED), one(SCHEDULED, STARTED, condition("Ending", "True", "WalltimeExceeded", message="TERM was sent")),
            Occurrence("Ending", "TERM was sent", "End"), id="ending",
        ),
        pytest.param(
            one(SCHEDULED, STARTED), one(SCHEDULED, STARTED, *FAILED, status_phase="Failed", status_exit=Exit(code=3)),
            Occurrence("TaskFailed", "rank 0 ended with 3 (exit 3)", "Finish", warning=True), id="failed",
        ),
        pytest.param(
            one(SCHEDULED, status_attempt=1), one(**REQUEUED),
            Occurrence("Requeued", "attempt 1 ended with NodeLost on n1: attempt 2 follows", "Requeue", warning=True), id="requeued",
        ),
        pytest.param(one(), one(FITS_NOT), Occurrence("NeverFits", "no node has 2 GPUs", "Refuse", warning=True), id="never fits"),
        pytest.param(one(FITS_NOT), one(FITS_NOT), None, id="said before"),
        pytest.param(one(), one(condition("Scheduled", "False", "WaitingForNodes")), None, id="waiting is no event"),
        pytest.param(None, one(SCHEDULED, STARTED), None, id="what a list shows is no news"),
        pytest.param(one(SCHEDULED, STARTED), one(SCHEDULED, STARTED), None, id="nothing changed"),
    ],
)  # fmt: skip
def test_what_deserves_an_event(old: Allocation | None, new: Allocation, told: Occurrence | None) -> None:
    assert occurrence(old, new) == told
