"""The state of the cluster has one owner: nobody but its own methods assigns its fields."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.state.cluster_state import ClusterState

ROOT = Path(__file__).parents[2]
OWNED = (ClusterState, NodeCache)
RECEIVERS = frozenset({"state", "cluster_state", "node_cache"})
"""What variables and attributes that hold one of them are called, with or without an underscore before."""


def fields(owner: type) -> frozenset[str]:
    """Every field of a class: declared in its body, or assigned by one of its methods."""
    (tree,) = ast.parse(inspect.getsource(owner)).body
    assert isinstance(tree, ast.ClassDef)
    declared = {one.target.id for one in tree.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}
    assigned = {one.attr for one in ast.walk(tree) if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store)}
    return frozenset(declared | assigned)


def stored(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Every attribute that is assigned or deleted, or whose items are."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
            target: ast.expr = node
            while isinstance(target, ast.Subscript):
                target = target.value
            if isinstance(target, ast.Attribute):
                yield target


def receiver(target: ast.Attribute) -> str:
    """What the object is called whose attribute this is."""
    held = target.value
    return (held.attr if isinstance(held, ast.Attribute) else held.id if isinstance(held, ast.Name) else "").lstrip("_")


def assignments(source: str, owned: frozenset[str]) -> list[str]:
    """The assignments of owned fields from outside, as they are written."""
    found = (one for one in stored(ast.parse(source)) if one.attr in owned and receiver(one) in RECEIVERS)
    return [f"line {one.lineno}: {ast.unparse(one)}" for one in found]


@pytest.mark.parametrize("folder", ["lattice", "controllers"])
def test_no_field_of_the_clusters_state_is_assigned_from_outside(folder: str) -> None:
    owned = frozenset[str]().union(*(fields(owner) for owner in OWNED))
    found = {str(path): assignments(path.read_text(), owned) for path in (ROOT / folder).rglob("*.py")}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        pytest.param("self.state.waiting = found", 1, id="a field"),
        pytest.param("state.backfill_reservations[name] = {}", 1, id="an item of a field"),
        pytest.param("self._state.windows += (one,)", 1, id="added to a field"),
        pytest.param("del node_cache.taken[3]", 1, id="deleted from a field"),
        pytest.param("self.waiting = self.state.waiting", 0, id="read"),
    ],
)
def test_an_assignment_from_outside_is_seen(source: str, count: int) -> None:
    owned = fields(ClusterState) | fields(NodeCache)
    assert len(assignments(source, owned)) == count
