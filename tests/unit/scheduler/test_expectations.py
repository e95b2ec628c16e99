"""Expected starts on their way to the objects: how often they cost a write of their own."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import pytest

from lattice.daemon.clock import ManualClock
from lattice.ledger import projection
from lattice.lifecycle.conditions import condition
from lattice.scheduling.forecast.forecaster import Expected
from lattice.units import format_time
from lattice.views.allocation import Allocation, ExpectedStart
from lattice_controllers.scheduler.expectations import AGAIN_SECONDS, Expectations
from lattice_controllers.scheduler.write_budget import WriteBudget
from tests.build import allocation, row, uid

START = 1_700_000_000.0


class Shown:
    """One pending allocation; what is told of is written at once, and counted."""

    def __init__(self) -> None:
        self.clock = ManualClock(START)
        self.objects: dict[str, Allocation] = {uid(1): allocation(1, status_number=1, status_observed_generation=1)}
        self.writes = 0
        self.expectations = Expectations(self.clock, self.objects, self, WriteBudget(self.clock))

    def add(self, key: str, after: float = 0.0, *, late: bool = False) -> None:
        """What is added is written at once."""
        assert (after, late) == (0.0, True)
        self.write(key)

    def write(self, told: str) -> None:
        expected, alone = self.expectations.status_patch(told), self.expectations.due(told)
        stamp = {"number": 1, "seq": 1, "now": self.clock.now()}
        patch = projection.pending(self.objects[told], "WaitingForNodes", "few", expected=expected, alone=alone, **stamp)  # type: ignore[arg-type]
        if patch is None:
            return
        self.writes += 1
        given = {name: value for name, value in patch["status"].items() if name != "expectedStart"}
        status = msgspec.convert({**msgspec.to_builtins(self.objects[told].status), **given}, type(self.objects[told].status))
        if expected is not None:
            status = msgspec.structs.replace(
                status, expected_start=msgspec.convert({k: v for k, v in expected.items() if v}, ExpectedStart)
            )
        self.objects[told] = msgspec.structs.replace(self.objects[told], status=status)
        self.expectations.wrote(told)

    def foresee(self, p50: float | None, p90: float | None = None, reason: str = "") -> Mapping[str, Expected]:
        """Seconds from now."""
        now = self.clock.now()
        found = {uid(1): Expected(now + p50 if p50 is not None else None, now + p90 if p90 is not None else None, reason)}
        self.expectations.accept_forecast(found)
        return found

    @property
    def shown(self) -> ExpectedStart | None:
        return self.objects[uid(1)].status.expected_start


@pytest.fixture
def shown() -> Shown:
    made = Shown()
    made.write(uid(1))
    assert made.writes == 1
    return made


def test_the_first_forecast_is_written_at_once_although_the_reason_was_written_before(shown: Shown) -> None:
    shown.foresee(600, 1200)
    assert shown.writes == 2
    assert shown.shown == ExpectedStart(p50=format_time(START + 600), p90=format_time(START + 1200))


def test_a_forecast_that_hardly_moves_costs_no_write(shown: Shown) -> None:
    shown.foresee(6000, 12000)
    for _ in range(100):
        shown.clock.advance(2)
        shown.foresee(6000 + 300, 12000 + 600)
    assert shown.writes == 2


def test_a_forecast_that_jumps_every_time_costs_one_write_in_thirty_seconds(shown: Shown) -> None:
    seconds = 600
    for step in range(seconds // 2):
        shown.clock.advance(2)
        shown.foresee(10_000 * (1 + step % 2), 50_000)
    assert seconds / AGAIN_SECONDS - 2 <= shown.writes - 2 <= seconds / AGAIN_SECONDS


def test_a_start_that_is_no_longer_foreseen_is_replaced_by_the_reason(shown: Shown) -> None:
    shown.foresee(600, 1200)
    shown.clock.advance(AGAIN_SECONDS)
    shown.foresee(None, None, "UnboundedWork")
    assert shown.shown == ExpectedStart(reason="UnboundedWork")
    shown.foresee(None, None, "UnboundedWork")
    assert shown.writes == 3


def test_a_write_for_another_reason_carries_the_forecast_along(shown: Shown) -> None:
    shown.foresee(600, 1200)
    shown.clock.advance(5)
    shown.expectations.found = {uid(1): Expected(START + 9000, START + 9900)}
    patch = projection.pending(
        shown.objects[uid(1)], "NodesUnavailable", "none", number=1, seq=2, now=START, expected=shown.expectations.status_patch(uid(1))
    )
    assert patch is not None
    assert patch["status"]["expectedStart"]["p50"] == format_time(START + 9000)


def test_what_is_placed_expects_nothing_any_more(shown: Shown) -> None:
    shown.foresee(600, 1200)
    patch = projection.placed(shown.objects[uid(1)], row(1), {0: "nid000"}, number=1, seq=2, now=START)
    assert patch["status"]["expectedStart"] is None
    assert condition(shown.objects[uid(1)].status.conditions, "Scheduled") is not None


def test_what_is_not_pending_any_more_is_forgotten(shown: Shown) -> None:
    shown.foresee(600, 1200)
    shown.expectations.accept_forecast({})
    assert shown.expectations.status_patch(uid(1)) is None
    assert not shown.expectations.due(uid(1))
