"""The Allocations that hollow nodes of a process share: one is read again once it is known to be outdated."""

from __future__ import annotations

import msgspec

from lattice.ledger.plans import RUN, PlanRow
from lattice.views.work import Work
from lattice_agent.cluster.work_source import FetchedWork, WorkCache
from tests.build import uid

ROW = PlanRow(RUN, "", uid(1), 1, 1, 7, "n1", "n1:50052", "physics", "job", "n1", ("n1",))


class Reading:
    """A gateway that reads a newer version each time."""

    def __init__(self) -> None:
        self.version = 6

    async def find_work(self, node: str, row: PlanRow, *, stale: str = "", variables: bool = False) -> FetchedWork:
        """The next version."""
        del node, stale, variables
        self.version += 1
        metadata = {"name": row.name, "namespace": row.namespace, "uid": row.uid, "resourceVersion": str(self.version), "generation": 1}
        return FetchedWork(msgspec.convert({"metadata": metadata, "spec": {}, "status": {}}, Work), {})


async def test_a_version_older_than_one_that_is_outdated_is_not_given_again() -> None:
    works = WorkCache(Reading())
    assert [(await works.find_work("n1", ROW)).version for _ in range(2)] == [7, 7]
    assert (await works.find_work("n1", ROW, stale="9")).version == 8
    assert (await works.find_work("n2", ROW, stale="7")).version == 8
    assert (await works.find_work("n2", ROW, stale="8")).version == 9
