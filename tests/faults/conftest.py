"""One instance for the scenarios of nodes, schedulers and plans, one whose etcd is restored; the fault run has its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.scene import QUICK_HEARTBEATS, RESTORED_HEARTBEATS, Scene
from tests.faults.site import Site, site


@pytest.fixture(scope="session")
def shared() -> Iterator[Site]:
    """Six nodes that are judged within seconds."""
    with site("scenes", nodes=6, nodes_config=QUICK_HEARTBEATS) as made:
        yield made


@pytest.fixture(scope="session")
def restored() -> Iterator[Site]:
    """Six nodes of an instance whose etcd goes back in time: each scenario leaves it sound."""
    with site("restored", nodes=6, nodes_config=RESTORED_HEARTBEATS) as made:
        yield made


@pytest.fixture
def scene(shared: Site) -> Iterator[Scene]:
    """The instance for one test, whole before it and whole after it: nothing is left, the ledger's history is sound."""
    made = Scene(shared)
    made.whole()
    yield made
    made.whole()
    assert shared.settle(60) == []
    assert shared.ledger_faults() == []
    assert shared.witness_faults() == []
