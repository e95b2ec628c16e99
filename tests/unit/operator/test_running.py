"""The last word of nodes that run an attempt is of the time at which they said it, whenever it is read."""

from __future__ import annotations

import pytest

from lattice.daemon.clock import ManualClock
from lattice.ledger.reports import NodeReport, ReportRow
from lattice.units import format_time
from lattice_controllers.operator.running import Running


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def report(state: str = "r") -> NodeReport:
    """A heartbeat that names one attempt."""
    return NodeReport(1, 1, "boot", "inst", (ReportRow("u", 1, state),))


def test_a_heartbeat_that_is_read_late_proves_no_later_work(clock: ManualClock) -> None:
    running, said = Running(clock), clock.now() - 30.0
    running.hear(report(), format_time(said, micro=True))
    assert running.last("u", 1) == pytest.approx(said, abs=1e-3)


def test_an_older_word_that_is_read_after_a_newer_one_changes_nothing(clock: ManualClock) -> None:
    running, said = Running(clock), clock.now() - 5.0
    for at in (said, said - 60.0):
        running.hear(report(), format_time(at, micro=True))
    assert running.last("u", 1) == pytest.approx(said, abs=1e-3)


@pytest.mark.parametrize("renewed", [None, "", "soon", "2026-12-01T08:00:00", "9999-01-01T00:00:00Z"])
def test_a_time_to_come_or_none_is_now(clock: ManualClock, renewed: str | None) -> None:
    running = Running(clock)
    running.hear(report("t"), renewed)
    assert running.last("u", 1) == clock.now()


def test_what_does_not_run_is_not_noted(clock: ManualClock) -> None:
    running = Running(clock)
    running.hear(report("g"), None)
    assert running.last("u", 1) == 0.0
