"""Counts the API writes of an allocation's life, from creation to end, in the API server's audit log."""

from __future__ import annotations

from collections.abc import Sequence

from lattice.errors import Rejected
from lattice.kube.resources import NODE_INDEXES
from lattice.ledger.plans import NODES_PER_PLAN
from lattice.units import fold_nodes
from lattice.views.ledger import NodeIndex
from lattice_dev.bench import work
from lattice_dev.bench.auditlog import Writes, count_writes
from lattice_dev.bench.drive import NAMESPACE, Driver
from lattice_dev.bench.figures import Aim, Figure, shown

LIFE_SECONDS = 2.0
AIM_64 = Aim(9)
NOT_OF_A_LIFE = frozenset({"tenants", "vclusters", "latticenodes", "nodeindexes", "latticeconfigs", "configmaps"})
"""Resources that are written whether an allocation lives or not."""


async def measure(driver: Driver, *, nodes: int, count: int) -> list[Figure]:
    """Submits `count` allocations of so many hollow nodes together; returns the writes that took effect, and all requests, for each one,
    and deletes them again.

    Of a plan's size it submits no more than there are whole plans, and raises Rejected where there is none.
    """
    sets = await _node_sets(driver, nodes, count)
    names = [f"writes-{nodes}-{number:03d}" for number in range(len(sets))]
    log = driver.instance.where.audit_log
    async with driver.watch(ledger=True) as seen:
        offset = log.stat().st_size
        await driver.create(
            [work.hollow(NAMESPACE, name, nodes=nodes, seconds=LIFE_SECONDS, only=only) for name, only in zip(names, sets, strict=True)]
        )

        def settled() -> bool:
            """Tells whether all allocations have ended and their nodes are free."""
            return seen.count_reached("ended", names) == len(names) and sum(len(step.released) for step in seen.steps) == len(names)

        await seen.until(settled, within=120, what=f"the ends of {len(names)} allocations of {nodes} nodes")
        await driver.clock.sleep(1.0)  # the plans follow the last release
        with log.open("rb") as file:
            file.seek(offset)
            writes = count_writes(file, leave_out=NOT_OF_A_LIFE)
        commits = [len(step.claimed) for step in seen.steps if step.claimed]
        await driver.clear(seen)
    return [_figure(nodes, len(names), commits, writes), _requests(nodes, len(names), writes)]


def _figure(nodes: int, count: int, commits: Sequence[int], writes: Writes) -> Figure:
    """Returns the figure of API writes a life."""
    shared = count / len(commits)
    refused = f"; refused {dict(writes.refused)}" if writes.refused else ""
    detail = f"{count} together, B = {shown(shared)}; Leases {writes.leases}, Events {writes.events} in all{refused}"
    aim = AIM_64 if nodes == NODES_PER_PLAN and shared >= 4 else None
    name = f"API writes of a life, {nodes} node{'s' if nodes > 1 else ''}"
    return Figure(
        name, writes.total / count, "writes", aim, detail=detail, parts={"B": shared, "Events": writes.events / count, **writes.each(count)}
    )


def _requests(nodes: int, count: int, writes: Writes) -> Figure:
    """Returns all requests that ended meanwhile, divided by the allocations: by who asked and for what, reads and heartbeats too."""
    each = {what: made / count for what, made in writes.requests.most_common()}
    name = f"API requests of a life, {nodes} node{'s' if nodes > 1 else ''}"
    return Figure(name, sum(each.values()), "requests", detail=f"{count} together; the audit log has reads too", parts=each)


async def _node_sets(driver: Driver, nodes: int, count: int) -> list[str]:
    """Returns a node set for each allocation: where the size is a plan's, the nodes of one plan each (at most `count`), else empty: any.

    Raises Rejected where no plan is whole.
    """
    if nodes != NODES_PER_PLAN:
        return [""] * count
    index = await driver.admin.get(NODE_INDEXES, "lattice", type=NodeIndex)
    plans: dict[int, list[str]] = {}
    for number, name in sorted((int(number), name) for number, name in index.spec.names.items()):
        if name.startswith("hollow-"):
            plans.setdefault(number // NODES_PER_PLAN, []).append(name)
    whole = [fold_nodes(names) for names in plans.values() if len(names) == NODES_PER_PLAN]
    if not whole:
        raise Rejected(f"no plan has {NODES_PER_PLAN} hollow nodes: the instance has too few", reason="TooFewNodes")
    return whole[:count]
