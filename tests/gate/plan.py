"""Draws what `make test` runs from the commit and from what was changed: pure, so that a second run of one commit draws the same."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
SUITES = FOLDER / "suites.toml"
ROOT = FOLDER.parents[1]
STEPS = "tests/faults/test_steps.py"


class BadTable(Exception):
    """The table of suites does not fit the tests that there are."""


@dataclass(frozen=True)
class Table:
    """The content of suites.toml; files are paths from the root."""

    budgets: Mapping[str, int]
    """Seconds by suite, on a quiet machine."""
    core: tuple[str, ...]
    """e2e files that run each time."""
    parts: tuple[tuple[str, ...], ...]
    """The other e2e files, in parts of equal seconds, of which a commit draws one."""
    groups: tuple[tuple[str, ...], ...]
    """Files of faults in groups of equal seconds, of which a commit draws one."""
    rare: tuple[str, ...]
    """Files that only `make test-all` runs."""
    steps: int
    """Into how many shares the faults at steps are cut, of which a commit draws one."""
    touched: Mapping[str, tuple[str, ...]]
    """By beginning of a path, the files that run where something there was changed."""
    skips: Mapping[str, str]
    """Tests that may be skipped, by the beginning of their name, and why."""


@dataclass(frozen=True)
class Plan:
    """What runs."""

    e2e: tuple[str, ...]
    faults: tuple[str, ...]
    steps: str
    """The share of the faults at steps as `K/N`: every Nth, from the Kth on."""
    why: Mapping[str, str] = field(default_factory=dict)
    """By file, why it runs: `core`, `drawn`, or the path that was changed."""


def read_table(path: Path = SUITES) -> Table:
    """Returns the table of suites."""
    found: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
    return Table(
        budgets=found["budgets"],
        core=_below("tests/e2e", found["e2e"]["core"]),
        parts=tuple(_below("tests/e2e", part) for part in found["e2e"]["parts"]),
        groups=tuple(_below("tests/faults", group) for group in found["faults"]["groups"]),
        rare=(*_below("tests/faults", found["faults"]["rare"]),),
        steps=found["faults"]["steps"],
        touched={prefix: tuple(f"tests/{name}.py" for name in names) for prefix, names in found["touched"].items()},
        skips=found["skips"],
    )


def _below(folder: str, names: Iterable[str]) -> tuple[str, ...]:
    return tuple(f"{folder}/test_{name}.py" for name in names)


def check(table: Table, files: Collection[str]) -> None:
    """Raises BadTable unless each e2e and fault file stands in the table once, and each file that it names exists."""
    placed = [*table.core, *(name for part in table.parts for name in part), *(name for group in table.groups for name in group)]
    placed += [*table.rare, STEPS]
    twice = sorted({name for name in placed if placed.count(name) > 1})
    lost = sorted(name for name in files if name.startswith(("tests/e2e/", "tests/faults/")) and name not in placed)
    named = {*placed, *(name for names in table.touched.values() for name in names)}
    gone = sorted(named - set(files))
    if faults := [
        *(f"{name} stands twice" for name in twice),
        *(f"{name} stands nowhere: give it a part or a group" for name in lost),
        *(f"{name} does not exist" for name in gone),
    ]:
        raise BadTable(f"{SUITES.relative_to(ROOT)}: {'; '.join(faults)}")


def draw(table: Table, commit: str, changed: Collection[str]) -> Plan:
    """Returns what runs: the core, what the commit draws, and what the changed paths touch, on top of the draw."""
    part, group = (_number(commit, what) % count for what, count in (("e2e", len(table.parts)), ("faults", len(table.groups))))
    why = dict.fromkeys(table.core, "core")
    why |= dict.fromkeys((*table.parts[part], *table.groups[group]), "drawn")
    for name, path in sorted(touched(table, changed).items()):
        why.setdefault(name, f"touched by {path}")
    known = {*table.rare, *(name for each in table.groups for name in each)}
    e2e = tuple(sorted(name for name in why if name.startswith("tests/e2e/")))
    faults = tuple(sorted(name for name in why if name in known))
    return Plan(e2e, faults, f"{_number(commit, 'steps') % table.steps}/{table.steps}", why)


def everything(table: Table) -> Plan:
    """Returns what `make test-all` runs: all."""
    e2e = sorted((*table.core, *(name for part in table.parts for name in part)))
    faults = sorted((*table.rare, *(name for group in table.groups for name in group)))
    return Plan(tuple(e2e), tuple(faults), "0/1", {})


def touched(table: Table, changed: Collection[str]) -> dict[str, str]:
    """Returns the files that changed paths touch, each with the first of these paths: themselves where they are tests, else by the table."""
    found: dict[str, str] = {}
    tests = {*table.core, *table.rare, *(name for each in (*table.parts, *table.groups) for name in each)}
    for path in sorted(changed):
        if path in tests:
            found.setdefault(path, path)
        for prefix, names in table.touched.items():
            if path.startswith(prefix):
                for name in names:
                    found.setdefault(name, path)
    return found


def _number(commit: str, what: str) -> int:
    return int(hashlib.sha256(f"{what}:{commit}".encode()).hexdigest()[:12], 16)
