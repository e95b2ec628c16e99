"""No module imports another that imports it in turn, not even for annotations and not even inside functions."""

from __future__ import annotations

import graphlib

import grimp
import pytest

PACKAGES = ("lattice", "lattice_controllers", "lattice_webhooks", "lattice_agent", "lattice_gateway", "lattice_dev")


def circle(imports: dict[str, set[str]]) -> list[str]:
    """The modules of one circle in the order of their imports; empty where there is none."""
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    """Each module of ours with the modules of ours that it imports, under TYPE_CHECKING and inside functions too."""
    graph = grimp.build_graph(*PACKAGES, include_external_packages=False, exclude_type_checking_imports=False, cache_dir=None)
    return {module: set(graph.find_modules_directly_imported_by(module)) for module in graph.modules}


def test_no_modules_import_each_other_in_a_circle(imports: dict[str, set[str]]) -> None:
    found = circle(imports)
    assert not found, " imports ".join(reversed(found))


def test_a_circle_is_found() -> None:
    assert set(circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}})) == {"a", "b", "c"}
    assert circle({"a": {"b"}, "b": {"c"}, "c": set()}) == []
