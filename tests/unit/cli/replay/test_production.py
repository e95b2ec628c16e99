"""`lattice replay` through the production cycle: engines, formats, folders, comparisons, generation, and what is refused."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Bench

from .test_counts import LOG

WEIGHTS = """hpc-batch:
  priority: 0.20
  wait_time: 0.25
  fair_share: 0.25
  topology: 0.15
  data_readiness: 0.10
  backlog: 0.05
"""
SACCT = """JobID|User|Account|Partition|Submit|Start|End|Elapsed|Timelimit|NNodes|State
1|alice|physics|normal|2026-03-01T08:00:00|2026-03-01T08:00:00|2026-03-01T09:00:00|01:00:00|02:00:00|2|COMPLETED
1.batch|alice|physics|normal|2026-03-01T08:00:00|2026-03-01T08:00:00|2026-03-01T09:00:00|01:00:00||2|COMPLETED
2|bob|climate|normal|2026-03-01T08:10:00|2026-03-01T09:00:00|2026-03-01T09:30:00|00:30:00|01:00:00|3|TIMEOUT
"""
INVENTORY = """classes:
  cpu: {cpus: 64, memory: 256Gi}
nodes:
  - {names: "n[1-4]", class: cpu, group: g0}
  - {names: "n[5-8]", class: cpu, group: g1}
"""


@pytest.fixture
def site(bench: Bench, tmp_path: Path) -> Path:
    """A folder with a generated trace, an inventory and weights."""
    (tmp_path / "alps.yaml").write_text(INVENTORY)
    (tmp_path / "now.yaml").write_text(WEIGHTS.replace("0.25\n  fair", "0.35\n  fair"))
    (tmp_path / "fairer.yaml").write_text(WEIGHTS.replace("fair_share: 0.25", "fair_share: 0.90"))
    (tmp_path / "log.swf").write_text(LOG)
    (tmp_path / "slurm.txt").write_text(SACCT)
    assert bench.run("replay", "generate", "burst", "--nodes=32", "--hours=2", "-o", str(tmp_path / "b.jsonl")).code == 0
    return tmp_path


def test_a_generated_trace_is_the_same_in_a_file_and_on_standard_output(bench: Bench, site: Path) -> None:
    shown = bench.run("replay", "generate", "burst", "--nodes=32", "--hours=2")
    assert shown.out == (site / "b.jsonl").read_text()
    assert shown.err.startswith("Generated ")


def test_json_lines_bring_their_own_machine_and_packed_ones_are_the_same(bench: Bench, site: Path) -> None:
    plain = bench.run("replay", str(site / "b.jsonl"), "-o", "json")
    (site / "b.jsonl.gz").write_bytes(gzip.compress((site / "b.jsonl").read_bytes()))
    packed = bench.run("replay", str(site / "b.jsonl.gz"), "-o", "json")
    assert plain.code == 0
    assert plain.out == packed.out
    found = json.loads(plain.out)
    assert (found["kind"], found["format"], found["name"]) == ("ReplayReport", 1, "default")
    assert found["preemptions"] == {"total": 0, "executed": False}


def test_a_plain_log_with_a_depth_is_replayed_by_the_production_cycle(bench: Bench, site: Path) -> None:
    result = bench.run("replay", str(site / "log.swf"), "--nodes=10", "--depth=1", "-o", "json")
    found = json.loads(result.out)
    assert found["jobs"]["replayed"] == 3
    assert found["backfill"]["jobs"] == 1
    assert found["makespanSeconds"] == 20


def test_what_sacct_prints_is_replayed_on_an_inventory(bench: Bench, site: Path) -> None:
    result = bench.run("replay", str(site / "slurm.txt"), "--nodes", str(site / "alps.yaml"), "-o", "json")
    assert result.code == 0
    found = json.loads(result.out)
    assert found["jobs"]["replayed"] == 2
    assert set(found["tenants"]) == {"physics", "climate"}


def test_a_folder_gets_report_table_and_pictures_and_every_run_the_same_bytes(bench: Bench, site: Path) -> None:
    for name in ("one", "two"):
        result = bench.run("replay", str(site / "b.jsonl"), "--weights", str(site / "now.yaml"), "-o", str(site / name), "--plots=svg")
        assert result.code == 0
    names = ["groups.svg", "jobs.csv", "report.json", "summary.txt", "utilisation.svg", "waiting-by-size.svg"]
    assert sorted(path.name for path in (site / "one").iterdir()) == names
    for name in names:
        assert (site / "one" / name).read_bytes() == (site / "two" / name).read_bytes(), name


def test_png_pictures_are_pictures(bench: Bench, site: Path) -> None:
    assert bench.run("replay", str(site / "b.jsonl"), "-o", str(site / "out"), "--plots=png").code == 0
    assert (site / "out" / "groups.png").read_bytes().startswith(b"\x89PNG")


def test_two_profiles_are_compared_and_each_has_its_folder(bench: Bench, site: Path) -> None:
    files = ["--weights", str(site / "now.yaml"), "--weights", str(site / "fairer.yaml")]
    result = bench.run("replay", str(site / "b.jsonl"), *files, "-o", str(site / "out"), "--plots=none")
    assert result.code == 0
    assert "=== RM-Replay Results: now ===" in result.out
    assert "=== RM-Replay Results: fairer ===" in result.out
    assert "(now: " in result.out
    assert sorted(path.name for path in (site / "out").iterdir()) == ["fairer", "now"]
    assert 'the weights of "hpc-batch" sum to 1.65 and are normalised' in result.err


def test_a_report_of_another_run_is_a_baseline(bench: Bench, site: Path) -> None:
    bench.run("replay", str(site / "b.jsonl"), "--weights", str(site / "now.yaml"), "-o", str(site / "now"), "--plots=none")
    result = bench.run("replay", str(site / "b.jsonl"), "--weights", str(site / "fairer.yaml"), "--baseline", str(site / "now"))
    assert result.code == 0
    assert "(now: " in result.out


def test_the_books_spellings_are_understood(bench: Bench, site: Path) -> None:
    flags = [f"--trace={site}/slurm.txt", f"--nodes={site}/alps.yaml", f"--output={site}/results/", "--plots=none"]
    assert bench.run("replay", *flags).code == 0
    assert (site / "results" / "report.json").is_file()


def test_a_target_wait_is_judged(bench: Bench, site: Path) -> None:
    result = bench.run("replay", str(site / "slurm.txt"), "--nodes=3", "--target-wait=10m", "-o", "json")
    assert json.loads(result.out)["slo"] == {"targetWaitSeconds": 600.0, "met": 0.5}


def test_a_trace_that_is_not_whole_is_said_to_be(bench: Bench, site: Path) -> None:
    text = (site / "b.jsonl").read_text().replace('"format":1}', '"format":1,"missing":"what ended before Monday is gone"}', 1)
    (site / "b.jsonl").write_text(text)
    assert "Warning: the trace is not whole: what ended before Monday is gone" in bench.run("replay", str(site / "b.jsonl")).err


def test_jobs_that_never_start_are_a_warning_and_an_exit_code_of_its_own(bench: Bench, site: Path) -> None:
    (site / "alps.yaml").write_text(INVENTORY.replace("group: g1}", "group: g1, vcluster: other}").replace("n[1-4]", "n[1-2]"))
    result = bench.run("replay", str(site / "slurm.txt"), "--nodes", str(site / "alps.yaml"))
    assert result.code == 7
    assert "Warning: default: 1 jobs never started; the first is 2 of line 4: NeverFits" in result.err


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (
            ["{}/b.jsonl", "--policy=easy"],
            "--policy is of the counts-only engine, a trace in JSON lines of the production engine: choose one",
        ),
        (
            ["{}/log.swf", "--nodes=10", "--depth=3", "--estimates=exact"],
            "--estimates is of the counts-only engine, --depth of the production",
        ),
        (["{}/log.swf", "--nodes=10", "--engine=production", "--policy=easy"], "--policy is of the counts-only engine: leave it out"),
        (
            ["{}/log.swf", "--nodes=10", "--engine=counts", "--weights={}/now.yaml"],
            "--engine=counts is of the counts-only engine, --weights",
        ),
        (["{}/log.swf", "--nodes=200000", "--engine=production"], "the production engine places on at most 100000 nodes"),
        (["{}/slurm.txt"], "--nodes is missing: a number, or an inventory; the trace says nothing of its machine"),
        (["{}/slurm.txt", "--nodes={}/none.yaml"], "there is no file"),
        (["{}/slurm.txt", "--nodes={}/now.yaml"], "now.yaml, line 2: hpc-batch: it is not known; known are classes, nodes"),
        (["{}/slurm.txt", "--nodes=8", "--time-zone=Mars/Olympus"], "--time-zone=Mars/Olympus is no time zone such as Europe/Zurich"),
        (["{}/slurm.txt", "--nodes=8", "--class-of=urgent"], "--class-of=urgent: write QOS=CLASS"),
        (["{}/slurm.txt", "--nodes=8", "--class-of=urgent=11"], "--class-of=urgent=11: write QOS=CLASS"),
        (["{}/slurm.txt", "--nodes=8", "--class-of=urgent=00011"], "--class-of=urgent=00011: write QOS=CLASS"),
        (["{}/slurm.txt", "--nodes=8", "--depth=0000009999"], "'0000009999' is no whole number from 0 to 1000"),
        (["{}/slurm.txt", "--nodes=8", "--target-wait=soon"], "'soon' is not a duration"),
        (["{}/slurm.txt", "--nodes=8", "--depth=-1"], "'-1' is no whole number from 0 to 1000"),
        (["{}/slurm.txt", "--nodes=8", "--weights={}/now.yaml", "--weights={}/now.yaml"], "a profile 'now' is given already"),
        (["{}/slurm.txt", "--nodes=8", "--weights={}/alps.yaml"], "alps.yaml, line 2: classes.cpu: it is not known; weights are priority"),
        (["{}/slurm.txt", "--nodes=8", "-o", "{}/slurm.txt"], "is the trace: name a folder for report.json"),
        (["{}/slurm.txt", "--nodes=8", "-o", "{}/now.yaml"], "is a file: name a folder for report.json"),
        (["{}/slurm.txt", "--nodes=8", "--baseline={}/now.yaml"], "now.yaml is no JSON"),
        (["{}/slurm.txt", "{}/log.swf", "--nodes=8"], "name one trace"),
        ([], "name a trace, or an action: capture, cycles, generate, suite"),
        (["generate"], "generate takes one kind of trace (steady-state: "),
        (["generate", "calm"], "no trace 'calm' can be generated; kinds: steady-state, burst"),
        (["generate", "burst", "--nodes=33"], "a generated trace needs a multiple of 16 from 32 on"),
        (["suite", "calm"], "no trace 'calm'; suite takes names of traces"),
        (["capture", "now"], "capture takes no argument"),
    ],
    ids=lambda value: " ".join(value).replace("{}/", "") if isinstance(value, list) else "",
)
def test_what_cannot_be_meant_is_refused_and_nothing_is_printed(
    bench: Bench, site: Path, flags: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = bench.run("replay", *(flag.replace("{}", str(site)) for flag in flags))
    assert (result.code, result.out) == (2, "")
    assert sentence in result.err + capsys.readouterr().err


@pytest.mark.parametrize(
    ("cut", "sentence"),
    [(b"", "line 3: NNodes"), (None, "is truncated: its gzip data end in the middle")],
    ids=["a bad column", "a truncated gzip"],
)
def test_a_bad_trace_leaves_no_folder(bench: Bench, site: Path, cut: bytes | None, sentence: str) -> None:
    bad = SACCT.replace("01:00:00|3|TIMEOUT", "01:00:00|three|TIMEOUT").replace("1.batch", "9.batch")
    content = bad.encode() if cut is not None else gzip.compress(SACCT.encode())[:-20]
    (site / "bad").write_bytes(content)
    result = bench.run("replay", str(site / "bad"), "--nodes=8", "-o", str(site / "out"))
    assert (result.code, result.out, (site / "out").exists()) == (2, "", False)
    assert sentence.replace("line 3", "line 4") in result.err


def test_the_suite_prints_a_verdict_for_each_trace(bench: Bench) -> None:
    result = bench.run("replay", "suite", "empty-to-full", "preemption-heavy", "--nodes=32", "--hours=8")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0].split() == ["TRACE", "JOBS", "JOBS/S", "ASKED", "FOUND", "VERDICT"]
    assert any(line.endswith("not judged") for line in lines)
    assert sum(line.endswith("holds") for line in lines) == 3
