"""Finds the work that a new Allocation depends on: objects first, and the tenant's usage records for what is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from lattice.accounting.charges import Charge
from lattice.accounting.records import Wanted
from lattice.admission import Request
from lattice.admission.dependencies import MOST_EDGES
from lattice.admission.submission import read_submission
from lattice.admission.verdicts import Refused
from lattice.errors import NotFound, Rejected
from lattice.kube.cluster import Cluster
from lattice.kube.resources import ALLOCATIONS, USAGE_RECORDS
from lattice.views import Metadata, View
from lattice.views.allocation import Lifecycle
from lattice.views.usage import UsageRecord
from lattice.workflow.mutexes import MUTEX
from lattice.workflow.references import WorkReference, parse_reference

MOST_ASKED: Final = 16
"""So many references are asked for one by one; for more, the allocations of the tenant are listed."""
AT_ONCE: Final = 2
"""For so many submissions work is looked for at a time: a tenant's allocations, and all of its usage records, may be read for each."""
LOOK_SECONDS: Final = 1.5
"""Time for that, with the wait for others. The answer has 2.5 s, an early one a second, after which the search is begun again."""


class _Knowledge(View, frozen=True):
    """The parts of an Allocation's spec that are read of a predecessor."""

    tenant: str = ""
    lifecycle: Lifecycle = Lifecycle()


class _Numbered(View, frozen=True):
    """The number of a predecessor."""

    number: int | None = None


class _Predecessor(View, frozen=True):
    """An Allocation, as far as it is read here."""

    metadata: Metadata
    spec: _Knowledge = _Knowledge()
    status: _Numbered = _Numbered()


class PredecessorSearch:
    """Looks for predecessors within bounds of time and load: what is not found in time is left to the scheduler, which binds edges."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def predecessors_of(self, request: Request, home: str | None) -> dict[WorkReference, str] | None:
        """Returns what `find_predecessors` does; None where that takes too long, or the request is of another tenant than its namespace
        (`home`), which is refused anyway.
        """
        spec = request.obj.get("spec")
        spec = spec if isinstance(spec, dict) else {}
        if not spec.get("dependsOn"):
            return {}
        if spec.get("tenant") != home:
            return None
        try:
            async with asyncio.timeout(LOOK_SECONDS), self._turn:
                return await find_predecessors(self._cluster, request)
        except TimeoutError:
            return None


async def find_predecessors(cluster: Cluster, request: Request) -> dict[WorkReference, str]:
    """Returns the work of the tenant that a new Allocation depends on, as far as it is known, by reference: its type, Bounded or Unbounded,
    or empty for what is gone.

    Errors of the API server are raised. References that do not read are left out: the check refuses them.
    """
    asked = read_submission(request.obj)
    if isinstance(asked, Refused) or not asked.spec.depends_on or len(asked.spec.depends_on) > MOST_EDGES:
        return {}
    namespace, tenant = asked.namespace or request.namespace, asked.spec.tenant
    wanted: set[WorkReference] = set()
    for edge in (edge for edge in asked.spec.depends_on if edge.condition != MUTEX):
        with suppress(Rejected):
            wanted.add(parse_reference(edge.ref, namespace))
    found: dict[WorkReference, str] = {}
    for work in await _existing(cluster, tenant, wanted):
        named = WorkReference(0, work.metadata.namespace, work.metadata.name)
        for reference in (named, WorkReference(number=work.status.number or 0)):
            if work.spec.tenant == tenant and reference in wanted:
                found[reference] = work.spec.lifecycle.type
    return found | await _recorded(cluster, tenant, wanted - found.keys())


async def _existing(cluster: Cluster, tenant: str, wanted: set[WorkReference]) -> list[_Predecessor]:
    """Returns allocations that exist, all that are wanted among them; listed from the server, not from a cache."""
    if len(wanted) > MOST_ASKED:
        return list((await cluster.list(ALLOCATIONS, type=_Predecessor, fields=f"spec.tenant={tenant}")).items)
    found: list[_Predecessor] = []
    for reference in wanted:
        if reference.number:
            fields = f"spec.tenant={tenant},status.number={reference.number}"
            found += (await cluster.list(ALLOCATIONS, type=_Predecessor, fields=fields)).items
            continue
        with suppress(NotFound):
            found.append(await cluster.get(ALLOCATIONS, reference.name, reference.namespace, type=_Predecessor))
    return found


async def _recorded(cluster: Cluster, tenant: str, wanted: Iterable[WorkReference]) -> dict[WorkReference, str]:
    """Returns those of the references whose work is gone and stands in the tenant's usage records."""
    wanted = set(wanted)
    if not wanted:
        return {}
    numbers = frozenset(one.number for one in wanted if one.number)
    names = frozenset((one.namespace, one.name) for one in wanted if not one.number)
    found: dict[WorkReference, str] = {}
    looked_for = Wanted(numbers=numbers, names=names)
    for record in (await cluster.list(USAGE_RECORDS, type=UsageRecord, fields=f"spec.tenant={tenant}")).items:
        for charge in await asyncio.to_thread(_found, looked_for, record.spec.rows, tenant):
            for reference in (WorkReference(number=charge.number), WorkReference(0, charge.namespace, charge.name)):
                if reference in wanted:
                    found[reference] = ""
    return found


def _found(wanted: Wanted, rows: str, tenant: str) -> list[Charge]:
    """Returns the charges that are wanted among a record's rows; takes a second for a million."""
    return list(wanted.found(rows, tenant))
