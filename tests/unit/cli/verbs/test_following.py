"""What `wait`, `logs` and `history` follow, how they end, and what they say is missing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lattice.errors import Retry
from lattice.kube.resources import CONFIG_MAPS
from tests.unit.cli.conftest import COMPLETED, FAILED, NOW, RUNNING, WAITING, Bench, ago, said


def test_wait_exits_with_the_works_own_code(bench: Bench) -> None:
    bench.allocation("a", number=1, status=FAILED)
    bench.allocation("b", number=2, status=COMPLETED)
    bench.allocation("c", number=3, status={"phase": "Cancelled"})
    bench.allocation("d", number=4, status=RUNNING)
    assert bench.run("wait", "1").code == 3
    assert bench.run("wait", "2").code == 0
    assert bench.run("wait", "3").code == 125
    assert bench.run("wait", "1", "2").code == 7
    assert bench.run("wait", "4", "--timeout=10s").code == 3
    assert bench.run("wait", "4", "--for=started").code == 0


def test_waiting_survives_an_api_server_that_is_away_for_a_while(bench: Bench) -> None:
    bench.allocation("a", number=1, status=RUNNING)
    fault = bench.cluster.fake.fail(Retry("away"), verb="get", times=40)
    fault.times = 0
    bench.at(1, lambda: setattr(fault, "times", 40))
    bench.at(60, lambda: bench.report("a", COMPLETED))
    assert bench.run("wait", "a").code == 0


def test_logs_prefix_nodes_join_lines_and_say_what_is_missing(bench: Bench) -> None:
    bench.cluster.create(
        CONFIG_MAPS, {"metadata": {"name": "lattice-public"}, "data": {"gateway": "https://g"}}, "lattice-system", type=dict[str, Any]
    )
    bench.allocation("a", number=1, status={**RUNNING, "nodes": "n[1-2]", "nodeCount": 2})
    records: list[dict[str, Any]] = [
        {"node": "n1", "stream": "stdout", "time": NOW, "text": "hel", "partial": True},
        {"node": "n2", "stream": "stdout", "time": NOW, "text": "world"},
        {"node": "n1", "stream": "stdout", "time": NOW, "text": "lo"},
        {"node": "n1", "stream": "stdout", "time": NOW, "text": "last", "partial": True},
        {"node": "n2", "dropped": 100},
        {"node": "n2", "gone": True},
        {"end": True},
    ]
    bench.records = [json.dumps(record).encode() + b"\n" for record in records]
    result = bench.run("logs", "-f", "1", "--tail=5", "--stderr", "--since=10m")
    assert result.code == 0
    assert result.out == "n2: world\nn1: hello\nn1: last\n"
    assert "node n2: 100 bytes were dropped" in result.err
    assert "node n2 is gone" in result.err
    assert bench.questions == ["/v1/namespaces/physics/allocations/a/logs?follow=true&stream=stderr&tail=5&since=2026-09-21T14%3A03%3A20Z"]


def test_output_of_earlier_attempts_is_named_and_read(bench: Bench) -> None:
    bench.cluster.create(
        CONFIG_MAPS, {"metadata": {"name": "lattice-public"}, "data": {"gateway": "https://g"}}, "lattice-system", type=dict[str, Any]
    )
    first = {"attempt": 1, "nodes": "nid001", "startTime": ago(300), "endTime": ago(200), "reason": "NodeLost"}
    bench.allocation("a", number=1, status={**WAITING, "attempt": 2, "attempts": [first]})
    waits = bench.run("logs", "1")
    assert (waits.code, "earlier output: `lattice logs 1 --attempt 1`" in waits.err) == (3, True)
    bench.records = [b'{"node":"nid001","stream":"stdout","text":"before"}']
    assert bench.run("logs", "1", "--attempt=1").out == "before\n"
    assert "attempt=1" in bench.paths[-1]
    missing = bench.run("logs", "1", "--attempt=3")
    assert (missing.code, "attempts that ran: 1" in missing.err) == (4, True)


def test_history_asks_for_what_is_named_of_the_last_year(bench: Bench) -> None:
    bench.cluster.create(
        CONFIG_MAPS, {"metadata": {"name": "lattice-public"}, "data": {"gateway": "https://g"}}, "lattice-system", type=dict[str, Any]
    )
    bench.run("history", "12,15-17", "train", "--name=other")
    assert "number=12%2C15-17&name=train%2Cother" in bench.paths[-1]
    assert "since=365d" in bench.paths[-1]


def test_logs_of_what_has_not_started_say_so(bench: Bench) -> None:
    bench.allocation("a", number=1, status=WAITING)
    result = bench.run("logs", "1")
    assert result.code == 3
    assert "has not started: Pending (WaitingForNodes)" in result.err


@pytest.mark.parametrize("words", [("logs", "1"), ("logs", "-f", "1")])
def test_logs_of_what_ended_before_it_started_name_the_reason_and_wait_for_nothing(bench: Bench, words: tuple[str, ...]) -> None:
    over = said("Finished", "True", "ImageNotFound", "the registry has no image team/none:1", before=200)
    bench.allocation("a", number=1, status={"phase": "Failed", "conditions": [over]})
    result = bench.run(*words)
    assert result.code == 1
    assert "ended before it started: Failed (ImageNotFound)" in result.err
    assert ("lattice why 1" in result.err, "-f waits" in result.err) == (True, False)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1.evil.example", "http://localhost@evil.example", "http://localhost.evil.example:8443", "http://[::1]@evil.example",
        "http://127.0.0.1:80@evil.example/", "http://127.0.0.1\\@evil.example", "http://local\thost", "http://[::1", "http://localhost:x",
        "https://alice:pw@gateway.example", "https://", "http://", "ftp://localhost", "//localhost",
    ],
)  # fmt: skip
def test_a_token_goes_to_no_gateway_that_is_neither_https_nor_this_machine(bench: Bench, url: str) -> None:
    bench.environ["LATTICE_GATEWAY"] = url
    bench.allocation("a", number=1, status=RUNNING)
    result = bench.run("logs", "-f", "1")
    assert (result.code, bench.questions) == (2, [])
    assert "is no https:// address" in result.err


@pytest.mark.parametrize("url", ["http://127.0.0.1:8443", "http://localhost", "http://[::1]:8443/", "https://gateway.example/lattice"])
def test_a_gateway_of_https_or_on_this_machine_is_asked(bench: Bench, url: str) -> None:
    bench.environ["LATTICE_GATEWAY"] = url
    bench.allocation("a", number=1, status=RUNNING)
    bench.run("logs", "-f", "1")
    assert bench.questions == ["/v1/namespaces/physics/allocations/a/logs?follow=true"]


def test_lines_are_counted_by_the_digits_0_to_9_alone(bench: Bench) -> None:
    bench.allocation("a", number=1, status=RUNNING)
    result = bench.run("logs", "1", "--tail=²")
    assert (result.code, result.err) == (2, "Error: --tail=²: not a number of lines\n")


def test_a_stream_that_ends_before_the_work_is_no_success(bench: Bench) -> None:
    bench.environ["LATTICE_GATEWAY"] = "https://g"
    bench.allocation("a", number=1, status=RUNNING)
    assert bench.run("logs", "-f", "1").code == 6
