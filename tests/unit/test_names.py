"""One word means one thing: a class name stands in at most two unrelated modules, a method name of six classes is one of a protocol."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.unit.symbols import modules

MOST_MODULES = 2
MOST_CLASSES = 5

OF_EVERY_PROGRAM = {"Settings", "Outside"}
"""What `build` of a program's `__main__` takes: the same in every one."""
PROTOCOLS = {
    "close": "what holds a file, a process or a connection gives it up (contextlib.closing)",
    "document": "the part of a report that `-o json` prints",
    "get": "the verbs of an API server (lattice.kube.cluster.Cluster), and mappings",
    "on_allocation": "a handler of the informer of allocations",
    "reconcile": "one key's level, read and made true",
    "run": "a task that lives as long as its process or term",
    "start": "the agent's machine (lattice_agent.host.interface.Host), and programs that others start",
    "validate": "state that events change, made again from scratch and compared",
}
"""Method names that many classes have because they keep one promise that no class of the code declares; those that one declares are found."""


def room(module: str) -> str:
    """The module, except that a kind's model and its view are one."""
    return "kinds" if module.startswith(("lattice.models.", "lattice.views.")) else module


def ambiguous_classes() -> dict[str, list[str]]:
    """The modules of every class name that stands in more than two unrelated ones; a leading underscore is no other name."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for name, module in modules().items():
        for statement in module.tree.body:
            if isinstance(statement, ast.ClassDef):
                found[statement.name.lstrip("_")].add(room(name))
    return {name: sorted(rooms) for name, rooms in found.items() if len(rooms) > MOST_MODULES and name not in OF_EVERY_PROGRAM}


def methods() -> dict[str, tuple[ast.ClassDef, set[str]]]:
    """The public methods and properties of every class."""
    return {
        f"{name}.{owner.name}": (
            owner,
            {
                each.name
                for each in owner.body
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and not each.name.startswith("_")
            },
        )
        for name, module in modules().items()
        for owner in module.tree.body
        if isinstance(owner, ast.ClassDef)
    }


def crowded_methods() -> dict[str, list[str]]:
    """The classes of every public method name that more than five have.

    Classes that keep one declared Protocol of two methods or more count as one. A Protocol of one method says nothing about who means
    the same by that name: it is not counted, and its classes are.
    """
    every = methods()
    declared = {name: has for name, (owner, has) in every.items() if any(ast.unparse(base) == "Protocol" for base in owner.bases)}
    wide = {name: promised for name, promised in declared.items() if len(promised) > 1}
    found: defaultdict[str, set[str]] = defaultdict(set)
    for owner, (_, has) in every.items():
        for method in has if owner not in declared or owner in wide else ():
            found[method].add(next((name for name, promised in wide.items() if method in promised and promised <= has), owner))
    return {name: sorted(owners) for name, owners in found.items() if len(owners) > MOST_CLASSES and name not in PROTOCOLS}


def listed(found: dict[str, list[str]]) -> str:
    return "\n".join(f"{name}: {', '.join(places)}" for name, places in sorted(found.items(), key=lambda item: -len(item[1])))


def test_no_class_name_stands_in_three_unrelated_modules() -> None:
    found = ambiguous_classes()
    assert not found, f"{len(found)} class names have more than two meanings:\n{listed(found)}"


def test_no_method_name_stands_in_six_classes_unless_it_is_of_a_protocol() -> None:
    found = crowded_methods()
    assert not found, f"{len(found)} method names are those of more than five classes, and of no protocol:\n{listed(found)}"
