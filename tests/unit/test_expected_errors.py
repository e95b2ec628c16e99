"""An error of ours is one line in a log: its reason and its sentence say all, and a traceback is for what nobody expected."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

from lattice import errors

ROOT = Path(__file__).parents[2]
OURS = {name for name, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.LatticeError)}
SOURCES = [path for part in ("lattice", "controllers", "agent", "gateway", "webhooks") for path in sorted((ROOT / part).rglob("*.py"))]


def caught(handler: ast.ExceptHandler) -> set[str]:
    """The names of what is caught."""
    return {node.id for node in ast.walk(handler.type) if isinstance(node, ast.Name)} if handler.type else set()


def tracebacks(tree: ast.AST) -> Iterator[int]:
    """Lines at which an event is given an error of ours with its traceback, where that alone is caught."""
    for handler in ast.walk(tree):
        if isinstance(handler, ast.ExceptHandler) and (names := caught(handler)) and names <= OURS:
            for call in (node for body in handler.body for node in ast.walk(body) if isinstance(node, ast.Call)):
                given = {word.arg: word.value for word in call.keywords}
                if isinstance(call.func, ast.Name) and call.func.id == "event" and isinstance(given.get("error"), ast.Name):
                    yield call.lineno


def test_no_expected_error_is_logged_with_a_traceback() -> None:
    assert len(SOURCES) > 200
    found = {path: list(tracebacks(ast.parse(path.read_text(encoding="utf-8")))) for path in SOURCES}
    assert {str(path.relative_to(ROOT)): lines for path, lines in found.items() if lines} == {}
