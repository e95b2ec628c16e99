"""Ctrl-C, and a server that goes away: the work is not lost, and the person reads how to go on."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from lattice.errors import Retry
from lattice.kube.resources import ALLOCATIONS
from tests.unit.cli.conftest import COMPLETED, NOW, RUNNING, WAITING, Bench, FakeStream


def interrupt() -> None:
    raise KeyboardInterrupt


class Breaking(FakeStream):
    """A stream that ends with an error after its records."""

    def __init__(self, records: list[bytes], error: BaseException) -> None:
        super().__init__(records)
        self.error = error

    def lines(self) -> Iterator[bytes]:
        yield from self.records
        raise self.error


def test_an_interrupted_wait_names_what_is_left_to_wait_for(bench: Bench) -> None:
    bench.allocation("a", number=1, status=COMPLETED)
    bench.allocation("b", number=2, status=RUNNING)
    bench.allocation("c", number=3, status=WAITING)
    bench.at(5, interrupt)
    result = bench.run("wait", "1", "2", "3")
    assert result.code == 130
    assert "Go on with `lattice wait 2 3`" in result.err


def test_an_interrupted_submit_wait_says_that_the_work_goes_on(bench: Bench) -> None:
    bench.at(0.1, lambda: bench.report("true-x7k2p", {"number": 7, **RUNNING}))
    bench.at(5, interrupt)
    result = bench.run("submit", "--wait", "--walltime=1h", "--", "true")
    assert (result.code, result.out) == (130, "Submitted allocation 7\n")
    assert "allocation 7 is submitted and goes on. Follow it with `lattice wait 7`" in result.err


def test_an_interrupt_before_the_number_is_there_names_the_object(bench: Bench) -> None:
    bench.at(0.1, interrupt)
    result = bench.run("submit", "--walltime=1h", "--", "true")
    assert result.code == 130
    assert "allocation true-x7k2p is submitted and goes on" in result.err
    assert len(bench.cluster.list(ALLOCATIONS, "physics", type=dict[str, object]).items) == 1


def test_an_interrupt_before_the_answer_says_that_nobody_knows_and_submits_nothing_more(bench: Bench) -> None:
    bench.cluster.before_create = interrupt
    manifest = "".join(
        f"---\napiVersion: lattice.dev/v1alpha1\nkind: Allocation\nmetadata: {{name: a{at}}}\nspec: {{entrypoint: 'true'}}\n"
        for at in (1, 2)
    )
    result = bench.run("submit", "-f", "-", stdin=manifest)
    assert result.code == 130
    assert result.err.splitlines()[-1] == "  Hint: `lattice status a1`"
    assert bench.cluster.list(ALLOCATIONS, "physics", type=dict[str, object]).items == []


def test_a_server_that_goes_away_while_submit_waits_takes_nothing_back(bench: Bench) -> None:
    fault = bench.cluster.fake.fail(Retry("away"), verb="get", times=999)
    fault.times = 0
    bench.at(0.1, lambda: bench.report("true-x7k2p", {"number": 7, **RUNNING}))
    bench.at(1, lambda: setattr(fault, "times", 999))
    result = bench.run("submit", "--wait", "--walltime=1h", "--", "true")
    assert (result.code, result.out) == (6, "Submitted allocation 7\n")
    assert result.err.count("the API server has been away for 5 s") == 1
    assert "allocation 7 is submitted and goes on" in result.err


def test_interrupted_logs_say_that_the_work_goes_on_also_while_it_waits_to_start(bench: Bench) -> None:
    bench.environ["LATTICE_GATEWAY"] = "https://g"
    bench.allocation("a", number=1, status=WAITING)
    bench.at(5, interrupt)
    waiting = bench.run("logs", "-f", "1")
    assert (waiting.code, "allocation 1 goes on. Its output: `lattice logs -f 1`" in waiting.err) == (130, True)
    bench.report("a", RUNNING)
    bench.stream = Breaking([b'{"node": "n1", "stream": "stdout", "time": 1790000000.5, "text": "one"}\n'], KeyboardInterrupt())
    reading = bench.run("logs", "-f", "1")
    assert (reading.code, reading.out) == (130, "one\n")
    assert "allocation 1 goes on" in reading.err


@pytest.mark.parametrize("error", [Retry("the stream broke off"), None], ids=["broken", "ended"])
def test_logs_that_break_off_say_where_to_go_on(bench: Bench, error: Retry | None) -> None:
    bench.environ["LATTICE_GATEWAY"] = "https://g"
    bench.allocation("a", number=1, status=RUNNING)
    records = [json.dumps({"node": "n1", "stream": "stdout", "time": NOW + 0.7, "text": "one"}).encode()]
    bench.stream = FakeStream(records) if error is None else Breaking(records, error)
    result = bench.run("logs", "-f", "1")
    assert (result.code, result.out) == (6, "one\n")
    assert "`lattice logs -f 1 --since=2026-09-21T14:13:20Z`" in result.err


def test_output_is_no_object(bench: Bench) -> None:
    bench.allocation("a", number=1, status=RUNNING)
    result = bench.run("logs", "1", "-o", "yaml")
    assert (result.code, "-o json as one object each" in result.err) == (2, True)


@pytest.mark.parametrize("verb", ["status", "queue"])
def test_a_watched_view_survives_a_server_that_is_away_and_ends_with_an_interrupt(bench: Bench, verb: str) -> None:
    bench.environ["LATTICE_GATEWAY"] = "https://g"
    bench.allocation("a", number=1, status=RUNNING)
    fault = bench.cluster.fake.fail(Retry("away", reason="NoConnection"), times=999)
    bench.gateway_fails = Retry("away", reason="GatewayUnreachable")
    bench.at(7, lambda: setattr(fault, "times", 0))
    bench.at(12, interrupt)
    result = bench.run(verb, "--watch")
    assert result.code == 0
    assert result.err.count("Error: away") >= 2
    assert ("Running" in result.out) == (verb == "status")
