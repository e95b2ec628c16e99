"""Runs the gate: `python -m tests.gate [test|all|noise|list]`, and `python -m tests.gate flaky-mended TEST`.

Each suite is one call of pytest in two lanes, so that the servers of one end before the next. A suite that fails does not keep the next ones
from running, but linters and unit tests do: whoever fails there wants to know now.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests import killed_runs
from tests.gate import changes, flaky
from tests.gate.noise import noise
from tests.gate.plan import ROOT, STEPS, Plan, Table, check, draw, everything, read_table
from tests.gate.plugin import REPORT

LANES = os.environ.get("LANES", "2")
MOST_REPEATED = 5
"""More failures than these are no accident of time."""
STATIC = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("mypy",),
    ("lint-imports",),
    ("python", "-m", "lattice_dev.generate", "--check"),
)


@dataclass
class Suite:
    """A suite that has run, or runs."""

    name: str
    began: float
    process: subprocess.Popen[bytes]
    output: Path | None = None
    report: Path | None = None
    seconds: float = 0.0
    code: int = 0


@dataclass
class Gate:
    """One run: what it runs, and how it went."""

    table: Table
    plan: Plan
    all: bool = False
    before: tuple[str, ...] = ()
    """Words before the command of each suite of tests."""
    suites: list[Suite] = field(default_factory=list)
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="lattice-gate-")))

    # running

    def program(self, *words: str) -> list[str]:
        """Returns a command of this environment's programs."""
        return [str(Path(sys.executable).with_name(words[0])), *words[1:]]

    def pytest(
        self, name: str, *words: str, lanes: str = LANES, quiet: bool = False, environment: Mapping[str, str] | None = None
    ) -> Suite:
        """Starts pytest on files; `quiet` keeps its output until it has failed."""
        report = self.folder / f"{name}.json"
        flags = (
            f"-p tests.gate.plugin -n {lanes} --maxfail {50 if self.all else 5} --durations 10 {os.environ.get('PYTEST_FLAGS', '')}".split()
        )
        flags += ["-W", "error"] if self.all else []
        own = {**(environment or {}), REPORT: str(report)}
        return self.start(name, [*self.before, sys.executable, "-m", "pytest", *words, *flags], quiet=quiet, report=report, environment=own)

    def start(
        self,
        name: str,
        words: Sequence[str],
        *,
        quiet: bool = False,
        report: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Suite:
        """Starts a suite."""
        output = self.folder / f"{name}.log" if quiet else None
        print(f"\n== {name}: {' '.join(words)}", flush=True)
        with (output or Path("/dev/null")).open("ab") as file:
            process = subprocess.Popen(
                words,
                cwd=ROOT,
                env={**os.environ, **(environment or {})},
                stdout=file if quiet else None,
                stderr=file if quiet else None,
                start_new_session=True,
            )
        made = Suite(name, time.monotonic(), process, output, report)
        self.suites.append(made)
        return made

    def end(self) -> None:
        """Ends what still runs: each suite has a process group of its own."""
        for suite in self.suites:
            if suite.process.poll() is None:
                with suppress(ProcessLookupError):
                    os.killpg(suite.process.pid, signal.SIGTERM)
                suite.process.wait()

    def await_all(self, *suites: Suite) -> bool:
        """Waits for suites; tells whether all of them passed, after a second look at tests of real time."""
        with ThreadPoolExecutor(len(suites)) as waiting:
            list(waiting.map(_await_end, suites))
        for suite in suites:
            if suite.code and suite.report is not None and self._repeated(suite):
                suite.code = 0
            if suite.code and suite.output is not None:
                print(f"\n== {suite.name} failed; its last lines (all: {suite.output})", flush=True)
                sys.stdout.write("".join(suite.output.read_text(errors="replace").splitlines(keepends=True)[-200:]))
            if suite.report is not None:
                suite.code = suite.code or self._unlisted_skips(suite.report)
        return all(suite.code == 0 for suite in suites)

    def _repeated(self, suite: Suite) -> bool:
        """Repeats the failed tests alone where each of them needs real time, once; tells whether all passed."""
        failed = _read(suite.report).get("failed", {})
        if suite.process.returncode != 1 or not 0 < len(failed) <= MOST_REPEATED or not all(failed.values()):
            return False
        again = subprocess.run([sys.executable, "-m", "pytest", "-n", "0", *failed], cwd=ROOT, check=False)
        for name in failed if again.returncode == 0 else ():
            print(f"FLAKED {name}", flush=True)
            flaky.note(changes.commit(ROOT), name)
        return again.returncode == 0

    def _unlisted_skips(self, report: Path) -> int:
        """Tells of skipped tests that no list names; they are a failure where CI judges."""
        skipped = {name: why for name, why in _read(report).get("skipped", {}).items() if not name.startswith(tuple(self.table.skips))}
        for name, why in sorted(skipped.items()):
            print(f"SKIPPED {name}: {why}", flush=True)
        return 1 if skipped and os.environ.get("CI") else 0

    # suites

    def run_checks(self) -> bool:
        """Linters and unit tests, and beside them the build of the programs where they are not cached."""
        build = self.start("build", ["nice", "-n", "19", *self.program("lattice-dev", "build", "--helm")], quiet=True)
        static = "\n".join(" ".join(self.program(*words)) + " || code=1" for words in STATIC)
        if self.all:
            static += "\n" + " ".join(self.program("pyright", "--pythonpath", sys.executable)) + " || code=1"
        checks = self.start("static", ["bash", "-c", f"code=0\n{static}\nexit $code"], quiet=True)
        unit = self.pytest("unit", "tests/unit", "--dist", "loadfile")
        return self.await_all(checks, unit, build)

    def run_scenes(self) -> bool:
        """Contract tests, then e2e tests; each process has planes of its own, and takes whole files."""
        words = ("--dist", "loadfile", "--no-loadscope-reorder")
        contract = self.await_all(self.pytest("contract", "tests/contract", *words))
        return self.await_all(self.pytest("e2e", *self.plan.e2e, *words)) and contract

    def run_faults(self, seed: int) -> bool:
        """Faults at steps in one lane, the drawn group in another: most of its time it waits. More than a group goes in all lanes."""
        environment = {"LATTICE_FAULTS_SEED": str(seed), "LATTICE_FAULTS_KILLS": "22", "LATTICE_FAULTS_SHARE": self.plan.steps}
        steps = self.pytest("steps", STEPS, lanes=LANES if self.all else "1", quiet=True, environment=environment)
        if self.all:
            self.await_all(steps)
        lanes = LANES if len(self.plan.faults) > max(map(len, self.table.groups)) else "0"
        faults = self.pytest("faults", *self.plan.faults, "--dist", "loadfile", lanes=lanes, environment=environment)
        return self.await_all(steps, faults)

    # telling

    def tell_plan(self) -> None:
        """Prints what runs, and why."""
        for name in (*self.plan.e2e, *self.plan.faults):
            print(f"  {name}  ({self.plan.why.get(name, 'all')})")
        print(f"  {STEPS}  (share {self.plan.steps})", flush=True)

    def tell_seconds(self) -> None:
        """Prints the seconds of each suite beside its budget."""
        print(f"\n{'suite':<10} {'seconds':>8} {'budget':>7}")
        for suite in self.suites:
            budget = self.table.budgets.get(suite.name)
            over = "" if self.all or budget is None or suite.seconds <= 1.1 * budget else "  over: take as much out elsewhere"
            print(
                f"{suite.name:<10} {suite.seconds:8.0f} {'' if budget is None or self.all else budget:>7}{'  FAILED' if suite.code else ''}{over}"
            )
        kept = flaky.cache() / "gate-seconds.json"
        found = {name: spent for suite in self.suites if suite.report for name, spent in _read(suite.report).get("seconds", {}).items()}
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(_read(kept) | found, indent=1), encoding="utf-8")


def _await_end(suite: Suite) -> None:
    """Waits until a suite ends; notes how, and after how many seconds."""
    suite.code = suite.process.wait()
    suite.seconds = time.monotonic() - suite.began


def _read(path: Path | None) -> dict[str, dict[str, object]]:
    """Returns what a report holds; nothing where there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path is not None and path.exists() else {}


def _planned(table: Table, *, all_of_it: bool) -> Plan:
    """Returns what runs, and prints what it was drawn from."""
    files = [str(path.relative_to(ROOT)) for path in ROOT.glob("tests/**/test_*.py")]
    check(table, files)
    if all_of_it:
        return everything(table)
    commit, base = changes.commit(ROOT), changes.base(ROOT)
    changed = changes.changed(ROOT, base) if base else []
    print(
        f"drawn from commit {commit[:12]}; "
        + (f"{len(changed)} paths changed since {base[:12]}" if base else "no base to compare with: the draw alone")
    )
    return draw(table, commit, changed)


def main() -> int:
    """Runs what was asked for; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.gate", description=__doc__)
    parser.add_argument("what", choices=("test", "all", "noise", "list", "flaky-mended"), nargs="?", default="test")
    parser.add_argument("test", nargs="?")
    asked = parser.parse_args()
    if asked.what == "flaky-mended":
        return flaky.mended(asked.test or "")
    table = read_table()
    gate = Gate(table, _planned(table, all_of_it=asked.what == "all"), all=asked.what == "all")
    gate.tell_plan()
    if asked.what == "list":
        return 0
    if gate.all:
        os.environ |= {"LATTICE_PROPERTIES": "search"}
    for gone in killed_runs.sweep():
        print(f"swept what a killed run has left: {gone}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        return _run_beside_noise(gate) if asked.what == "noise" else _run(gate)
    finally:
        gate.end()


def _run_beside_noise(gate: Gate) -> int:
    """Runs unit, contract and core e2e tests beside busy processes and stalls; returns the exit code."""
    seed = random.SystemRandom().randrange(1 << 31)
    print(f"seed of stalls: {seed}", flush=True)
    gate.plan = Plan(gate.table.core, (), "0/1")
    with noise(seed) as before:
        gate.before = tuple(before)
        unit = gate.await_all(gate.pytest("unit", "tests/unit", "--dist", "loadfile"))
        passed = gate.run_scenes() and unit
    gate.tell_seconds()
    return 0 if passed else 1


def _run(gate: Gate) -> int:
    """Runs the suites one after the other; returns the exit code."""
    seed = random.SystemRandom().randrange(1, 1 << 31) if gate.all else 1
    print(f"seed of faults: {seed}", flush=True)
    passed = gate.run_checks()
    if passed:
        passed = gate.run_scenes()
        passed = gate.run_faults(seed) and passed
        if gate.all:
            passed = gate.await_all(gate.pytest("guests", "tests/guest", lanes="0")) and passed
    gate.tell_seconds()
    if passed:
        shutil.rmtree(gate.folder)
    if gate.all and (standing := flaky.standing()):
        print("tests that flaked, and whose cause was not found (make flaky-mended TEST=… once it is):\n" + "\n".join(standing))
        passed = False
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
