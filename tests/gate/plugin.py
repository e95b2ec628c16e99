"""Listens to a run of pytest, and writes what the gate wants to know of it: seconds of each file, failures, skips.

Loaded by `-p tests.gate.plugin`; writes into the file that LATTICE_GATE_REPORT names, at the end, and where pytest is ended before.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

REPORT = "LATTICE_GATE_REPORT"


class Listener:
    """Collects reports of tests; with pytest-xdist in the process that hands the tests out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seconds: dict[str, float] = defaultdict(float)
        self._failed: dict[str, bool] = {}
        self._skipped: dict[str, str] = {}
        self._ran = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Notes one phase of a test."""
        self._seconds[report.nodeid.partition("::")[0]] += report.duration
        self._ran += report.when == "call"
        if report.failed:
            self._failed[report.nodeid] = "real_time" in report.keywords
            print(f"\nFAILED {report.nodeid} ({report.when})\n{report.longreprtext}", flush=True)  # now, not at the end of the suite
        elif report.skipped and not hasattr(report, "wasxfail"):
            self._skipped[report.nodeid] = _reason(report.longrepr)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Notes a file that cannot be read, and one that is skipped whole."""
        if report.failed:
            self._failed[report.nodeid] = False
        elif report.skipped:
            self._skipped[report.nodeid] = _reason(report.longrepr)

    def pytest_sessionfinish(self) -> None:
        """Writes it all."""
        seconds = {name: round(spent, 2) for name, spent in sorted(self._seconds.items())}
        found = {"ran": self._ran, "seconds": seconds, "failed": self._failed, "skipped": self._skipped}
        self._path.write_text(json.dumps(found, indent=1), encoding="utf-8")


def _reason(said: Any) -> str:
    """Returns why a test was skipped."""
    text = said[2] if isinstance(said, tuple) else str(said)
    return text.removeprefix("Skipped: ")


def pytest_configure(config: pytest.Config) -> None:
    """Listens where the report is wanted, in one process alone."""
    path = os.environ.get(REPORT)
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Listener(Path(path)))
