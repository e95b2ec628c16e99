"""Writes that only inform: how many there are at once, and in a minute."""

from __future__ import annotations

from lattice.daemon.clock import ManualClock
from lattice.scheduling.forecast.forecaster import Expected
from lattice.views.allocation import Allocation
from lattice_controllers.scheduler.expectations import Expectations
from lattice_controllers.scheduler.write_budget import BURST, WRITES_PER_SECOND, WriteBudget
from tests.build import allocation, uid

START = 1_700_000_000.0
PENDING = 1000


class Queue:
    """A thousand pending allocations that show no expected start yet; what is told of counts as written."""

    def __init__(self) -> None:
        self.clock = ManualClock(START)
        self.objects: dict[str, Allocation] = {uid(n): allocation(n) for n in range(1, PENDING + 1)}
        self.written: list[str] = []
        self.expectations = Expectations(self.clock, self.objects, self, WriteBudget(self.clock))

    def add(self, key: str, after: float = 0.0, *, late: bool = False) -> None:
        """What is added is written at once."""
        assert (after, late) == (0.0, True)
        self.write(key)

    def write(self, told: str) -> None:
        self.written.append(told)
        self.expectations.wrote(told)

    def foresee(self) -> int:
        """Forecasts starts an hour apart; returns how many are written because of it."""
        now = self.clock.now()
        found = {uid(n): Expected(now + 3600.0 * n, now + 7200.0 * n, "") for n in range(1, PENDING + 1)}
        return self.expectations.accept_forecast(found)


def test_a_quiet_time_lets_a_burst_through_and_then_the_rate() -> None:
    clock = ManualClock(START)
    budget = WriteBudget(clock, per_second=10.0, burst=5)
    assert [budget.try_spend() for _ in range(7)] == [True] * 5 + [False] * 2
    clock.advance(0.25)
    assert [budget.try_spend() for _ in range(3)] == [True, True, False]
    clock.advance(3600)
    assert sum(budget.try_spend() for _ in range(100)) == 5


def test_a_long_queue_whose_expected_starts_all_move_is_not_written_at_once() -> None:
    queue = Queue()
    assert queue.foresee() == BURST
    seconds = 20
    for _ in range(seconds // 2):
        queue.clock.advance(2)
        queue.foresee()
    assert len(queue.written) == BURST + seconds * WRITES_PER_SECOND


def test_every_expected_start_of_a_long_queue_is_written_in_the_end_the_soonest_first() -> None:
    queue = Queue()
    queue.foresee()
    assert queue.written == [uid(n) for n in range(1, BURST + 1)]
    while len(queue.written) < PENDING:
        queue.clock.advance(2)
        queue.foresee()
    assert set(queue.written) == set(queue.objects)
