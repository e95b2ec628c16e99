"""Every module of `lattice` is reached from a program: library code that no process runs is a defect."""

from __future__ import annotations

import importlib
import tomllib
from pathlib import Path

import grimp
import pytest

from lattice.cli.registry import VERBS

ROOT = Path(__file__).resolve().parents[2]
DAEMONS = ("lattice_controllers", "lattice_webhooks", "lattice_agent", "lattice_gateway", "lattice_dev")
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
STARTED_BY_NAME = (
    *(f"lattice.cli.verbs.{verb.module}" for verb in VERBS.values()),
    "lattice_dev.generate.__main__",
    "lattice_dev.generate.stubs",
)
"""Modules that the command line imports by the verb's name, and those that `make generate` runs."""
STARTED_BY_PATH = {"lattice_agent.standalone.shim", "lattice_agent.standalone.runner", "lattice_dev.node", "lattice_dev.relay"}
"""Single files that another process starts."""

FOR_TESTS_OR_PEOPLE = {
    "lattice.kube.fake": "the cluster in memory that unit tests are given",
}
"""Modules that no process runs, each with the reason; what only they import is theirs."""


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    for package in DAEMONS:
        assert importlib.util.find_spec(package) is not None, f"{package} is not there yet"
    return grimp.build_graph("lattice", *DAEMONS, include_external_packages=False, exclude_type_checking_imports=True, cache_dir=None)


def entry_points() -> set[str]:
    return {target.partition(":")[0] for target in SCRIPTS.values()} | set(STARTED_BY_NAME)


def reached(graph: grimp.ImportGraph, start: set[str] | None = None) -> set[str]:
    """Every module that some entry point imports; importing a module runs the packages above it."""
    found: set[str] = set()
    waiting = sorted((entry_points() if start is None else start) & graph.modules)
    while waiting:
        module = waiting.pop()
        if module in found:
            continue
        found.add(module)
        waiting += graph.find_modules_directly_imported_by(module)
        if "." in module:
            waiting.append(module.rpartition(".")[0])
    return found


@pytest.mark.parametrize("script", sorted(SCRIPTS))
def test_every_program_stands_where_its_name_says(script: str) -> None:
    module, _, function = SCRIPTS[script].partition(":")
    assert callable(getattr(importlib.import_module(module), function, None)), f"{script}: {SCRIPTS[script]} is not there"


def test_every_entry_point_is_in_the_graph(graph: grimp.ImportGraph) -> None:
    missing = entry_points() - graph.modules
    assert not missing, f"not there: {', '.join(sorted(missing))}"


def test_every_module_of_the_library_is_reached_from_an_entry_point(graph: grimp.ImportGraph) -> None:
    library = {module for module in graph.modules if module == "lattice" or module.startswith("lattice.")}
    unused = library - reached(graph) - reached(graph, set(FOR_TESTS_OR_PEOPLE))
    assert not unused, f"no process runs {', '.join(sorted(unused))}"


def test_no_exception_is_left_over(graph: grimp.ImportGraph) -> None:
    assert set(FOR_TESTS_OR_PEOPLE) <= graph.modules
    assert set(FOR_TESTS_OR_PEOPLE) & reached(graph) == set()


def test_every_module_of_the_daemons_is_reached_or_started_by_path(graph: grimp.ImportGraph) -> None:
    daemons = {module for module in graph.modules if module.partition(".")[0] in DAEMONS}
    unused = daemons - reached(graph) - STARTED_BY_PATH
    assert not unused, f"no process runs {', '.join(sorted(unused))}"
