"""A docstring promises in one sentence: its subject acts, in the present tense and the third person; a package's charter is true.

Openings such as "What", "Whether" or "It" hide who acts and what is returned. `RIDDLES_LEFT` and `UNVERBED_LEFT` are ratchets for rooms
where old docstrings still open so: the numbers may only fall. Rooms that they do not name have none left.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.unit.symbols import Function, Module, modules

RIDDLE = re.compile(
    r"(What|Whatever|Whether|Who|Whoever|Whose|Which|Where|When|Why|How|If|It|Its|He|They|Them|This|That|These|Those|So|As|Such|There)\b"
)
VERB = re.compile(r"[A-Z][a-z]*s\b|[A-Z]{2,}s\b")
"""The third person: "Returns", "Tells", "PUTs"."""
NO_VERB = frozenset({"This", "Its", "Nodes", "Allocations", "Seconds", "Hours", "Rows", "Amounts", "Tenants", "Groups", "Windows", "Users",
                     "GPUs", "Reasons", "Classes", "Candidates", "Weights", "Parts", "Sizes"})  # fmt: skip
GENERATED_FROM = ("lattice.models.", "lattice.rpc.")
"""Docstrings that become descriptions of fields for people, or that a generator writes."""
RIDDLES_LEFT: dict[str, int] = {}
UNVERBED_LEFT = {"lattice.inventory": 1}
CHARTER = re.compile(r"`([a-z_]+)`")


def room(module: str) -> str:
    """The package that a module counts for: the program's, of the library the room, of scheduling the room in it."""
    parts = module.split(".")
    depth = 1 if parts[0] != "lattice" else 3 if parts[1:2] == ["scheduling"] else 2
    return ".".join(parts[:depth])


def docstrings(module: Module) -> Iterator[tuple[str, ast.AST, str]]:
    """The name, the node and the docstring of the module, its classes and its functions."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function):
            text = ast.get_docstring(node)
            if text:
                yield f"{module.name}.{getattr(node, 'name', '')}".rstrip("."), node, text


def documented() -> Iterator[tuple[str, str, ast.AST, str]]:
    """The room, the name, the node and the docstring of all that is documented and not generated."""
    for name, module in modules().items():
        if not name.startswith(GENERATED_FROM):
            for where, node, text in docstrings(module):
                yield room(name), where, node, text


def over(found: dict[str, list[str]], left: dict[str, int]) -> list[str]:
    """The findings of every room that has more than are left."""
    return [line for name, lines in sorted(found.items()) if len(lines) > left.get(name, 0) for line in lines]


def test_no_docstring_opens_with_a_riddle() -> None:
    found: dict[str, list[str]] = {}
    for name, where, _, text in documented():
        if RIDDLE.match(text):
            found.setdefault(name, []).append(f"{where}: {text.splitlines()[0]}")
    assert over(found, RIDDLES_LEFT) == []


def test_the_docstring_of_a_function_opens_with_a_verb_in_the_third_person() -> None:
    found: dict[str, list[str]] = {}
    for name, where, node, text in documented():
        first = text.split()[0].rstrip(",;:")
        if isinstance(node, Function) and (not VERB.match(text) or first in NO_VERB):
            found.setdefault(name, []).append(f"{where}: {text.splitlines()[0]}")
    assert over(found, UNVERBED_LEFT) == [], Counter({name: len(lines) for name, lines in found.items()})


@pytest.mark.parametrize("name", sorted(name for name, module in modules().items() if module.path.name == "__init__.py"))
def test_each_charter_names_modules_that_are_there(name: str) -> None:
    module = modules()[name]
    text = " ".join((ast.get_docstring(module.tree) or "").split())
    charter = re.split(r"(?:What does|Does) not", re.split(r"[Bb]elongs here:", text, maxsplit=1)[-1], maxsplit=1)[0]
    here = {path.stem for path in module.path.parent.iterdir()} | {
        defined.name
        for other, tree in modules().items()
        if other.startswith(name)
        for defined in tree.tree.body
        if isinstance(defined, ast.ClassDef | Function)
    }
    gone = [word for word in CHARTER.findall(charter) if word not in here]
    assert gone == [], f"the charter of {name} names {', '.join(gone)}"
