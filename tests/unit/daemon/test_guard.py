"""Work by key that fails alone: backed off by itself, longer each time; Corrupt passes through."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from lattice.daemon.clock import ManualClock
from lattice.daemon.guard import Failure, Guard
from lattice.daemon.queue import LONGEST_BACK_OFF
from lattice.errors import Corrupt


def breaks(error: Exception) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


async def test_a_key_that_fails_backs_off_longer_each_time_and_others_do_not_wait(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(0.0)
    guard = Guard(clock, "test")
    delays: list[float] = []
    for _ in range(12):
        failure = guard.attempt("a", breaks(ZeroDivisionError("no")))
        assert failure is not None
        assert guard.waits("a") == failure
        assert guard.waits("b") is None
        delays.append(failure.due - clock.monotonic())
        await clock.run_for(failure.due - clock.monotonic())
        assert guard.waits("a") is None
    assert delays == sorted(delays)
    assert delays[0] < delays[1]
    assert delays[-1] == LONGEST_BACK_OFF
    assert failure is not None
    assert failure == Failure("ZeroDivisionError", 12, failure.due)
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 12
    assert all(record.exc_info for record in caplog.records)


async def test_success_or_forgetting_begins_the_count_anew() -> None:
    guard = Guard(ManualClock(0.0), "test")
    ways: list[Callable[[], object]] = [lambda: guard.attempt("a", lambda: None), lambda: guard.drop("a")]
    for again in ways:
        guard.attempt("a", breaks(KeyError("x")))
        again()
        assert guard.waits("a") is None
        failure = guard.attempt("a", breaks(KeyError("x")))
        assert failure is not None
        assert failure.count == 1


async def test_what_is_awaited_is_guarded_alike() -> None:
    guard = Guard(ManualClock(0.0), "test")

    async def bad() -> None:
        raise KeyError("x")

    failure = await guard.attempt_async("a", bad)
    assert failure is not None
    assert failure.reason == "KeyError"


async def test_what_is_corrupt_concerns_more_than_one_key_and_is_raised() -> None:
    guard = Guard(ManualClock(0.0), "test")
    with pytest.raises(Corrupt):
        guard.attempt("a", breaks(Corrupt("torn", reason="Torn")))

    async def torn() -> None:
        raise Corrupt("torn", reason="Torn")

    with pytest.raises(Corrupt):
        await guard.attempt_async("a", torn)
