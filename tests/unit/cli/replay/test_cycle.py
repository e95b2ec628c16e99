"""`lattice replay --cycle`: a recorded cycle decided again; what differs is named; a log that is not whole never looks whole."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from lattice.cli import exits
from lattice.errors import Denied
from lattice.scheduling.model.outcomes import Outcome, Score, Waiting
from lattice.scheduling.queries.answers import CYCLES_SCHEMA, CycleLog, Cycles, Stretch
from lattice.scheduling.recording.codec import CycleEncoder
from lattice.scheduling.recording.cycle_log import CHANGES, OPENING, WHOLE, frame
from lattice.scheduling.recording.record import reproduce, take_snapshot
from tests.unit.cli.conftest import Bench
from tests.unit.scheduling.moments import NOW, holding, moment, pending

Change = Callable[[list[Outcome]], Sequence[Outcome]]


def same(outcomes: list[Outcome]) -> Sequence[Outcome]:
    return outcomes


def log_of(changed: Change = same, *, cycles: int = 2, program: str = "0.1.0") -> bytes:
    """A log of cycles in which one starts and one waits; what is recorded of the last one is `changed`."""
    state = moment(4, (holding(9, (0,)),)).state
    queue = (pending(1, nodes=2), pending(2, 2, nodes=4))
    chronicler = CycleEncoder(program)
    data = OPENING
    for cycle in range(1, cycles + 1):
        seen = take_snapshot(state, "hpc", queue, NOW + cycle, cycle)
        outcomes = reproduce(seen)
        told = changed(outcomes) if cycle == cycles else outcomes
        whole = cycle == 1
        data += frame(WHOLE if whole else CHANGES, cycle, seen.now, chronicler.payload(seen, told, whole=whole))
    return data


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "cycles.log"


def test_a_cycle_is_shown_and_decided_again_without_a_cluster(bench: Bench, log: Path) -> None:
    log.write_bytes(log_of())
    result = bench.run("replay", "--cycle", "last", "--log", str(log))
    assert (result.code, result.err) == (exits.DONE, "")
    assert "hpc (Backfill): 1 placed, 1 waiting" in result.out
    assert "nid[001-002]" in result.out
    assert "WaitingForNodes  FOREIGN-lab/FOREIGN-job-2  needs 4 nodes" in result.out
    assert result.out.endswith("Reproduced byte for byte: 2 outcomes.\n")
    assert bench.paths == []


def test_the_running_scheduler_is_asked_where_no_log_is_named(bench: Bench) -> None:
    bench.environ["LATTICE_GATEWAY"] = "https://gateway"
    bench.records = [msgspec.json.encode(CycleLog(cycle=2, log=log_of()))]
    document = json.loads(bench.run("replay", "--cycle=last", "-o", "json").out)
    assert bench.paths == ["/v1/cycles/last"]
    assert (document["schema"], document["cycle"], document["reproduced"]) == ("lattice.dev/cycle/v1", 2, True)
    assert [one["outcome"] for one in document["vclusters"][0]["decided"]] == ["placed", "waiting"]
    bench.gateway_fails = Denied("you may not", reason="CyclesForbidden")
    assert bench.run("replay", "--cycle=7").code == exits.DENIED


@pytest.mark.parametrize(
    ("changed", "field", "recorded", "now"),
    [
        (lambda both: [replace(both[0], nodes=(2, 3)), both[1]], "nodes", "(2, 3)", "(1, 2)"),
        (lambda both: [both[0], replace(both[1], message="because")], "message", "because", "needs 4 nodes"),
        (lambda both: [both[0], replace(both[1], latest=NOW)], "latest", repr(NOW), "1800003712.0"),
        (lambda both: [replace(both[0], score=Score(0.5000000000000001)), both[1]], "score.total", "0.5000000000000001", "0.5"),
        (lambda both: [both[1], both[0]], "order", "2", "1"),
        (lambda both: [Waiting(both[0].candidate, "Held", "held", score=both[0].score), both[1]], "outcome", "waiting", "placed"),
    ],
    ids=["nodes", "message", "latest", "score", "order", "outcome"],
)
def test_what_is_decided_otherwise_now_is_named_by_allocation_and_field(
    bench: Bench, log: Path, changed: Change, field: str, recorded: str, now: str
) -> None:
    log.write_bytes(log_of(changed))
    result = bench.run("replay", "--cycle", "2", "--log", str(log), "-o", "json")
    assert result.code == exits.FAILED
    document = json.loads(result.out)
    assert not document["reproduced"]
    found = {one["field"]: one for one in document["vclusters"][0]["differences"]}
    assert found[field]["recorded"] == recorded
    assert found[field]["now"].startswith(now)
    text = bench.run("replay", "--cycle", "2", "--log", str(log))
    assert text.code == exits.FAILED
    assert "Not reproduced: " in text.out
    assert found[field]["allocation"] in text.out


def test_a_record_of_another_version_says_so_where_it_differs(bench: Bench, log: Path) -> None:
    log.write_bytes(log_of(lambda both: both[::-1], program="9.9.9"))
    said = bench.run("replay", "--cycle", "2", "--log", str(log)).out
    assert "recorded by lattice 9.9.9, and this is" in said
    log.write_bytes(log_of(program="9.9.9"))
    assert "another version" not in bench.run("replay", "--cycle", "2", "--log", str(log)).out


def test_a_log_of_older_rules_says_so_in_one_line_and_is_no_defect(bench: Bench) -> None:
    old = str(Path(__file__).parents[2] / "formats" / "cycle-log-1-rules-1")
    result = bench.run("replay", "--cycle", "3", "--log", old)
    assert result.code == exits.DONE
    assert "Not compared: recorded by an older rule (rules 1, and these are 4)" in result.out.splitlines()[-1]
    assert "FIELD" not in result.out
    document = json.loads(bench.run("replay", "--cycle", "3", "--log", old, "-o", "json").out)
    assert (document["rules"], document["rulesNow"], document["reproduced"]) == (1, 4, False)
    assert document["vclusters"][0]["differences"]
    same = bench.run("replay", "--cycle", "1", "--log", old)
    assert same.out.splitlines()[-1].startswith("Reproduced byte for byte")


def test_a_torn_log_gives_the_cycles_that_are_whole_and_says_what_is_left_out(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "cycles-000000000001.log"
    data = log_of(cycles=3)
    file.write_bytes(data[:-7])
    assert "Cycle 2 at" in bench.run("replay", "--cycle", "last", "--log", str(tmp_path)).out
    missing = bench.run("replay", "--cycle", "3", "--log", str(tmp_path))
    assert missing.code == exits.NOT_FOUND
    assert "cycle 3 is not in this log: it holds 1 to 2; its last" in missing.err
    assert missing.out == ""
    listed = bench.run("replay", "cycles", "--log", str(tmp_path)).out
    assert "bytes of an unfinished cycle at its end are left out" in listed


def test_a_damaged_log_or_another_format_is_refused_whole(bench: Bench, log: Path) -> None:
    data = bytearray(log_of(cycles=3))
    data[60] ^= 255
    log.write_bytes(data)
    damaged = bench.run("replay", "--cycle", "3", "--log", str(log))
    assert (damaged.code, damaged.out) == (exits.FAILED, "")
    assert "does not match its checksum" in damaged.err
    log.write_bytes(log_of().replace(b"1 lattice", b"7 lattice"))
    other = bench.run("replay", "--cycle", "1", "--log", str(log))
    assert (other.code, other.out) == (exits.FAILED, "")
    assert "the cycle log has format 7, and this program reads format 1" in other.err


def test_a_cycle_older_than_what_is_kept_names_the_oldest(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "cycles-000000000040.log").write_bytes(log_of())
    result = bench.run("replay", "--cycle", "7", "--log", str(tmp_path))
    assert result.code == exits.NOT_FOUND
    assert "cycle 7 is not kept any more: the oldest that is kept is 40" in result.err


def test_what_is_recorded_is_listed_with_its_gaps(bench: Bench) -> None:
    bench.environ["LATTICE_GATEWAY"] = "https://gateway"
    at = {"began": "2026-11-21T12:00:00Z", "ended": "2026-11-21T12:01:00Z", "bytes": 4096}
    stretches = [Stretch(file="a", first=1, last=60, **at), Stretch(file="b", first=61, last=90, **at), Stretch(file="b", first=95, last=99, **at)]  # type: ignore[arg-type]  # fmt: skip
    bench.records = [msgspec.json.encode(Cycles(schema=CYCLES_SCHEMA, stretches=stretches))]
    lines = bench.run("replay", "cycles").out.splitlines()
    assert bench.paths == ["/v1/cycles"]
    assert lines[0].split() == ["FIRST", "LAST", "FROM", "TO", "SIZE", "FILE"]
    assert lines[-1] == "Missing: 91 to 94"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--cycle", "0"], "'0' names no cycle: a whole number from 1 on, or last"),
        (["--cycle", "1", "trace.swf"], "lattice replay --cycle N [--log PATH]"),
        (["--log", "x"], "lattice replay --cycle N [--log PATH]"),
        (["--cycle", "1", "--log", "/nowhere/at/all"], "there is no such file or folder"),
        (["--cycle", "1", "-o", "name"], "have no names to print"),
    ],
)
def test_what_makes_no_sense_together_is_refused(bench: Bench, words: list[str], sentence: str) -> None:
    result = bench.run("replay", *words)
    assert result.code == exits.USAGE
    assert sentence in result.err


def test_only_the_vcluster_that_is_asked_for_is_shown(bench: Bench, log: Path) -> None:
    log.write_bytes(log_of())
    assert bench.run("replay", "--cycle", "1", "--log", str(log), "--vcluster", "hpc").code == exits.DONE
    other = bench.run("replay", "--cycle", "1", "--log", str(log), "--vcluster", "ml")
    assert other.code == exits.NOT_FOUND
    assert 'nothing waited in vCluster "ml" in this cycle; it decided on hpc' in other.err
