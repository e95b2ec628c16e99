"""One word means one thing: a class name stands in few modules, and a method name that many classes have is one of a protocol.

Both tests are ratchets: the code held more double meanings than one release could rename. The recorded numbers are what is left of
them, and may only fall: whoever renames the last double of a word writes the smaller number.
"""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.unit.symbols import modules

MOST_MODULES = 2
MOST_CLASSES = 5
CLASSES_LEFT = 29
METHODS_LEFT = 12

OF_EVERY_PROGRAM = {"Settings", "Outside"}
"""What `build` of a program's `__main__` takes: the same in every one."""
PROTOCOLS = {
    "close": "what holds a file, a process or a connection gives it up (contextlib.closing)",
    "create": "the verbs of an API server (lattice.kube.cluster.Cluster)",
    "document": "the part of a report that `-o json` prints",
    "get": "the verbs of an API server (lattice.kube.cluster.Cluster), and mappings",
    "kill": "the agent's machine (lattice_agent.host.interface.Host) and its scopes",
    "now": "a clock (lattice.kube.clock.Clock)",
    "on_allocation": "a handler of the informer of allocations",
    "reconcile": "one key's level, read and made true",
    "run": "a task that lives as long as its process or term",
    "start": "the agent's machine (lattice_agent.host.interface.Host), and programs that others start",
    "terminate": "the agent's machine (lattice_agent.host.interface.Host) and its scopes",
    "validate": "state that events change, made again from scratch and compared",
    "watch": "the verbs of an API server (lattice.kube.cluster.Cluster)",
}
"""Method names that many classes have because they keep one promise, and where it is written."""


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


def crowded_methods() -> dict[str, list[str]]:
    """The classes of every public method name that more than five have, protocols left out."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name, module in modules().items():
        for owner in module.tree.body:
            if isinstance(owner, ast.ClassDef):
                for each in owner.body:
                    if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and not each.name.startswith("_"):
                        found[each.name].append(f"{name}.{owner.name}")
    return {name: sorted(set(owners)) for name, owners in found.items() if len(set(owners)) > MOST_CLASSES and name not in PROTOCOLS}


def listed(found: dict[str, list[str]]) -> str:
    return "\n".join(f"{name}: {', '.join(places)}" for name, places in sorted(found.items(), key=lambda item: -len(item[1])))


def test_no_more_class_names_stand_in_three_unrelated_modules_than_are_left() -> None:
    found = ambiguous_classes()
    assert len(found) <= CLASSES_LEFT, f"{len(found)} class names have more than two meanings:\n{listed(found)}"


def test_no_more_method_names_stand_in_six_classes_than_are_left_beside_the_protocols() -> None:
    found = crowded_methods()
    assert len(found) <= METHODS_LEFT, (
        f"{len(found)} method names are those of more than five classes, and of no protocol:\n{listed(found)}"
    )
