"""Steps of a start on the log: one line each while they are asked for, nothing while they are not."""

import io
import json
from collections.abc import Iterator

import pytest

from lattice.daemon import logs, starts
from lattice.daemon.clock import ManualClock
from lattice.daemon.settings import StartSettings, load
from lattice_dev.bench.starts import StepLine, read_steps


class Broken(ManualClock):
    """A clock that nobody may ask."""

    def monotonic(self) -> float:
        raise AssertionError("an untraced step asks for the time")

    def now(self) -> float:
        raise AssertionError("an untraced step asks for the time")


@pytest.fixture(autouse=True)
def untraced() -> Iterator[None]:
    yield
    starts.trace(on=False)


def printed(log_format: str = "text", level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    logs.setup(log_format, level, stream=stream)
    return stream


def test_an_untraced_step_writes_nothing_and_reads_no_clock() -> None:
    stream = printed(level="debug")
    starts.reached(Broken(), "cycle", "u-1", node="n1")
    assert stream.getvalue() == ""
    assert not starts.traced()


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_traced_step_is_one_line_that_the_bench_reads_back(log_format: str) -> None:
    stream, clock = printed(log_format, "error"), ManualClock(1000.0)
    clock.advance(2.5)
    starts.trace(on=True)
    starts.reached(clock, "informer", "u-1", key="physics/a")
    starts.reached(clock, "fork", "u-1", node="n1", at=2.25)
    lines = stream.getvalue().splitlines()
    assert list(read_steps(lines)) == [
        StepLine("u-1", "informer", 1002.5, 1000.0, key="physics/a"),
        StepLine("u-1", "fork", 1002.25, 1000.0, node="n1"),
    ]
    if log_format == "json":
        assert json.loads(lines[0])["event"] == starts.LINE


def test_the_setting_is_off_unless_it_is_given() -> None:
    assert not load(StartSettings, program="lattice-x", argv=[], environ={}).trace_starts
    assert load(StartSettings, program="lattice-x", argv=["--trace-starts"], environ={}).trace_starts
