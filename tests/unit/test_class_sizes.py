"""A class of the scheduler is one concept: at most 200 lines without docstrings, and at most ten fields that its methods change."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tests.unit.symbols import modules

MOST_LINES = 200
MOST_FIELDS = 10
MAKES = {"__init__", "__post_init__", "__new__"}
CHANGES = {
    "add", "append", "clear", "discard", "extend", "insert", "move_to_end", "pop", "popitem", "popleft", "remove", "setdefault", "update",
}  # fmt: skip
"""Methods of containers that change them."""


def scheduling_classes() -> Iterator[ast.ClassDef]:
    """Every class of lattice/scheduling."""
    return (owner for name, module in modules().items() if name.startswith("lattice.scheduling.") for owner in module.classes())


def field_of(target: ast.expr) -> str | None:
    """The field of `self` that an assignment to this target, or to an item of it, changes."""
    while isinstance(target, ast.Subscript | ast.Starred):
        target = target.value
    is_field = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    return target.attr if is_field and isinstance(target, ast.Attribute) else None


def targets(node: ast.AST) -> Iterator[ast.expr]:
    """Whatever a statement or a call changes."""
    match node:
        case ast.Assign(targets=several) | ast.Delete(targets=several):
            for one in several:
                yield from one.elts if isinstance(one, ast.Tuple) else [one]
        case ast.AugAssign(target=one) | ast.AnnAssign(target=one):
            yield one
        case ast.Call(func=ast.Attribute(value=one, attr=verb)) if verb in CHANGES:
            yield one
        case _:
            pass


def changed_fields(owner: ast.ClassDef) -> set[str]:
    """The fields that methods change once an instance is made."""
    methods = (each for each in owner.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name not in MAKES)
    found = (field_of(target) for method in methods for node in ast.walk(method) for target in targets(node))
    return {name for name in found if name is not None}


def lines_of(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def size(owner: ast.ClassDef) -> tuple[int, int]:
    """Lines without docstrings, which say more where they are better, and fields that change."""
    said = sum(
        lines_of(node) for node in ast.walk(owner)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    )  # fmt: skip
    return lines_of(owner) - said, len(changed_fields(owner))


def test_no_class_of_the_scheduler_is_longer_or_keeps_more_state_than_one_concept_does() -> None:
    found = {owner.name: size(owner) for owner in scheduling_classes()}
    large = {name: each for name, each in found.items() if each[0] > MOST_LINES or each[1] > MOST_FIELDS}
    assert not large, f"lines and changed fields of classes that are more than one concept: {large}"


def test_a_field_is_changed_by_assignment_by_item_and_by_a_container_s_method() -> None:
    tree = ast.parse(
        "class A:\n def __init__(self): self.made = 0\n def f(self):\n  self.a, self.b = 1, 2\n  self.c[0] += 1\n  self.d.append(1)\n"
        "  del self.e[0]\n  self.f.read(1)\n"
    )
    (owner,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    assert changed_fields(owner) == {"a", "b", "c", "d", "e"}
