"""Every module, class, function and method is reached from a program: code that no process runs is a defect.

Modules are followed by their imports, symbols by their names (`symbols.unused`). Vulture, which was tried, knows names alone: a dead
function that shares its name with a field of another module stays hidden, and it needs a list of exceptions just as this does.
"""

from __future__ import annotations

import ast
import importlib
import re
import tomllib
from pathlib import Path

import grimp
import pytest

from lattice.cli.registry import SLURM_PROGRAMS, VERBS
from tests.unit import symbols

ROOT = Path(__file__).resolve().parents[2]
DAEMONS = ("lattice_controllers", "lattice_webhooks", "lattice_agent", "lattice_gateway", "lattice_dev")
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
STARTED_BY_NAME = (
    *(f"lattice.cli.verbs.{verb.module}" for verb in VERBS.values()),
    *(f"lattice.cli.slurm.{program}" for program in SLURM_PROGRAMS),
    "lattice_dev.generate.__main__",
    "lattice_dev.generate.stubs",
)
"""Modules that the command line imports by the name of a verb or of a program of Slurm, and those that `make generate` runs."""
STARTED_BY_PATH = {
    "lattice_agent.puller", "lattice_agent.certificate_program", "lattice_agent.standalone.shim", "lattice_agent.standalone.runner",
    "lattice_dev.node", "lattice_dev.relay",
}  # fmt: skip
"""Files and modules that another process starts."""

FOR_TESTS_OR_PEOPLE = {
    "lattice.kube.fake": "the cluster in memory that unit tests are given",
}
"""Modules that no process runs, each with the reason; what only they import is theirs."""
SYMBOLS_FOR_TESTS = {
    "lattice.daemon.clock.ManualClock": "the clock of every unit test",
    "lattice.kube.informer.Informer.relist": "the contract suite holds a list that begins after it was asked for",
    "lattice.ledger.verify.verify_step": "the verifier of two successive ledgers, a parser of its own, for fault runs",
    "lattice_agent.standalone.frames.encode_launch": "the client's side of the frames, which srun.c has, too",
    "lattice_agent.standalone.frames.decode_accepted": "likewise",
    "lattice_agent.standalone.frames.decode_open": "likewise",
    "lattice_agent.standalone.frames.decode_refused": "likewise",
    "lattice_dev.instance.Instance": "the local control plane: end-to-end and fault tests cut, kill and power off what it started",
    "lattice_dev.ports.claimed": "ports of servers that contract tests start",
}
"""Functions and classes that only tests use, by decision; a name stands for its methods too. `validate`, which some classes have for
tests alone, needs no entry: the audit calls it by that name."""
CONSTANTS_FOR_TESTS = {
    "lattice.admission.reasons.REFUSAL_WORDS": "the closed list of refusals: tests hold what is said against it",
    "lattice.models.conditions.WRITTEN_BY_SCHEDULER": "with the two other lists: each condition has one writer",
    "lattice.models.reasons.END_WORDS": "the closed list of ends",
    "lattice.models.reasons.PENDING_WORDS": "the closed list of reasons to wait",
    "lattice.quota.gathering.REASONS": "the closed list of faults of declared trees, with the documented sentences",
    "lattice.quota.rules.REASONS": "the closed list of faults of a tree, with the documented sentences",
}
"""Variables of modules that only tests read, by decision."""
READ_BY_VERB = {"INTERMIXED", "GRAMMAR", "WRONG_USAGE"}
"""What the command line reads of the module of a verb, or of a program of Slurm, where it is there."""
CALLED_BY_LIBRARIES = {"analyze_scalar": "PyYAML", "ignore_aliases": "PyYAML", "model_schema": "pydantic", "readinto": "io"}
"""Methods that override those of a library, which calls them."""
CALLED_BY_VERB = {"arguments", "run"}
"""What the command line calls of a verb's module."""


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
    unused = daemons - reached(graph) - reached(graph, STARTED_BY_PATH)
    assert not unused, f"no process runs {', '.join(sorted(unused))}"


def by_decision(symbol: str) -> bool:
    """Whether a symbol that no program names stands in one of the lists."""
    module, _, name = symbol.rpartition(".")
    return (
        name in CALLED_BY_LIBRARIES
        or (module in STARTED_BY_NAME and name in CALLED_BY_VERB)
        or any(symbol == each or symbol.startswith(f"{each}.") for each in (*SYMBOLS_FOR_TESTS, *FOR_TESTS_OR_PEOPLE))
    )


def test_every_function_class_and_method_is_named_by_a_program() -> None:
    dead = [symbol for symbol in symbols.unused() if not by_decision(symbol)]
    assert not dead, f"only tests name {', '.join(dead)}, or nobody: delete it, or say in SYMBOLS_FOR_TESTS why it stays"


def test_no_symbol_is_excepted_that_a_program_names() -> None:
    unused = set(symbols.unused())
    left_over = [each for each in SYMBOLS_FOR_TESTS if not any(symbol == each or symbol.startswith(f"{each}.") for symbol in unused)]
    assert not left_over, f"take {', '.join(left_over)} out of SYMBOLS_FOR_TESTS"
    assert {symbol.rpartition(".")[2] for symbol in unused} >= CALLED_BY_LIBRARIES.keys()


def test_every_variable_of_a_module_is_read_by_a_program() -> None:
    unread = [each for each in symbols.unused_constants() if each.rpartition(".")[2] not in READ_BY_VERB]
    assert sorted(unread) == sorted(CONSTANTS_FOR_TESTS), "delete what only tests read, or say in CONSTANTS_FOR_TESTS why it stays"


CHARTERS = sorted(name for name, module in symbols.modules().items() if module.path.name == "__init__.py")
NAMED = re.compile(r"`([a-z_]+(?:\.[a-z_]+)*)`")


def stands(word: str, package: str) -> bool:
    """Whether a word of a package's charter is a module of it, beside it or anywhere, a function or variable in it, or a verb."""
    every = symbols.modules()
    parts = package.split(".")
    above = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    if word in every or word in VERBS or any(f"{each}.{word}" in every for each in above):
        return True
    return any(
        isinstance(statement, ast.FunctionDef) and statement.name == word
        for name, module in every.items()
        if name.startswith(f"{package}.")
        for statement in module.tree.body
    )


@pytest.mark.parametrize("package", CHARTERS)
def test_a_charter_names_what_is_there(package: str) -> None:
    charter = ast.get_docstring(symbols.modules()[package].tree) or ""
    assert charter, f"{package} does not say what belongs in it"
    gone = [word for word in NAMED.findall(charter) if not stands(word, package)]
    assert not gone, f"the charter of {package} names {', '.join(gone)}: no such module, function or verb"
