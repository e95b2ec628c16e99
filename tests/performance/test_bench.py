"""The benchmarks at a reduced size: that every figure is there, and that ratios stay within the recorded ranges.

Absolute times are those of a machine; a ratio to what the same machine did in the same run, or a count of writes, is
not. `ranges/quick.json` holds them; it is changed on purpose, with the reason in the commit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lattice_dev.bench.figures import Figure
from lattice_dev.bench.run import run
from lattice_dev.progress import Quiet
from tests.killed_runs import instance_name

RANGES: dict[str, dict[str, list[float]]] = json.loads((Path(__file__).parent / "ranges" / "quick.json").read_text(encoding="utf-8"))


def measured(only: str, file: Path) -> dict[str, Figure]:
    said: list[str] = []
    figures = run([only], name=instance_name("perf"), quick=True, file=file, say=said.append, progress=Quiet())
    written: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    assert [figure["name"] for figure in written["figures"]] == [figure.name for figure in figures]
    assert written["setting"]["fsync"] == "on"
    assert all(any(figure.name in line for line in said) for figure in figures)
    return {figure.name: figure for figure in figures}


@pytest.mark.parametrize("only", sorted(RANGES))
def test_every_figure_of_a_benchmark_is_there_and_within_its_recorded_range(only: str, tmp_path: Path) -> None:
    figures = measured(only, tmp_path / "figures.json")
    assert sorted(figures) == sorted(RANGES[only])
    for name, (low, high) in RANGES[only].items():
        figure = figures[name]
        seen = figure.ratio if figure.ratio is not None else figure.value
        assert low <= seen <= high, f"{name}: {seen:.3g} is outside of {low:g} to {high:g}; {figure.detail}"
