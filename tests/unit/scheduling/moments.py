"""Moments of a scheduler for tests of its answers: work of alice, of her tenant, and of tenants whose names say FOREIGN."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.forecast.forecaster import Expected
from lattice.scheduling.model.hardware import Need
from lattice.scheduling.model.outcomes import Score, Waiting
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.windows import ReservationWindow
from lattice.scheduling.model.work import Candidate, NodeHolder
from lattice.scheduling.queries.context import QueryContext
from lattice.scheduling.queries.readers import Reader
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.views.ledger import TenantAccount
from tests.build import node, uid

NOW = 1_800_000_000.0
MARK = "FOREIGN"
ALICE = Reader("alice", frozenset({"physics"}))
OPERATOR = Reader("olga", frozenset(), everything=True)
OWNERS = (("alice", "physics"), ("bob", "physics"), (f"{MARK}-user", f"{MARK}-lab"), (f"{MARK}-two", f"{MARK}-corp"))
VCLUSTERS = ("hpc", "ml")


def pending(number: int, owner: int = 0, *, nodes: int = 1, **fields: Any) -> Candidate:
    user, tenant = OWNERS[owner]
    name = f"job-{number}" if owner < 2 else f"{MARK}-job-{number}"
    base: dict[str, Any] = {
        "vcluster": "hpc", "preemption_class": 5, "submitted": NOW - 1000 + number, "maximum": nodes, "need": Need(), "walltime": 3600.0,
        "name": name,
    }  # fmt: skip
    return Candidate(key=f"{tenant}/{name}", uid=uid(number), tenant=tenant, user=user, minimum=nodes, **{**base, **fields})


def holding(number: int, nodes: tuple[int, ...], owner: int = 0, **fields: Any) -> NodeHolder:
    user, tenant = OWNERS[owner]
    name = f"run-{number}" if owner < 2 else f"{MARK}-run-{number}"
    base: dict[str, Any] = {
        "vcluster": "hpc",
        "preemption_class": 5,
        "since": NOW - 600,
        "started": NOW - 590,
        "end": NOW + 600,
        "name": name,
    }
    return NodeHolder(uid=uid(number), key=f"{tenant}/{name}", tenant=tenant, user=user, nodes=nodes, **{**base, **fields})


def moment(
    nodes: int,
    holders: tuple[NodeHolder, ...] = (),
    queue: tuple[Candidate, ...] = (),
    *,
    said: dict[str, tuple[str, str]] | None = None,
    expected: dict[str, Expected] | None = None,
    windows: tuple[ReservationWindow, ...] = (),
    unusable: frozenset[int] = frozenset(),
    limit: int | None = None,
) -> QueryContext:
    node_cache = NodeCache()
    for index in range(nodes):
        node_cache.put(node(index, f"g{index // 4}", **({"usable": False, "state": "Draining"} if index in unusable else {})))
    accounts = {tenant: TenantAccount(max_nodes=limit) for _, tenant in OWNERS}
    state = ClusterState(node_cache, accounts, {name: Policy(name) for name in VCLUSTERS})
    for holder in holders:
        state.put_holder(holder)
    state.set_windows(windows)
    waiting = {
        one.uid: Waiting(one, *(said or {}).get(one.uid, ("WaitingForNodes", "too few are free")), score=Score(one.preemption_class / 10))
        for one in queue
    }
    candidates = {one.uid: one for one in queue}
    return QueryContext(NOW, state, candidates, waiting, state.holders, expected or {}, number=lambda found: int(found[-4:], 16))


@st.composite
def moments(draw: st.DrawFn) -> QueryContext:
    """Any small machine, partly held by anybody, with a queue of anybody's work."""
    nodes = draw(st.integers(1, 10))
    holders, free = [], list(range(nodes))
    for number in range(draw(st.integers(0, 5))):
        count = draw(st.integers(1, 3))
        taken, free = tuple(free[:count]), free[count:]
        if taken:
            end = draw(st.sampled_from([None, NOW + 60, NOW + 86400]))
            holders.append(holding(100 + number, taken, draw(st.integers(0, 3)), end=end, vcluster=draw(st.sampled_from(VCLUSTERS))))
    queue = [
        pending(
            number, draw(st.integers(0, 3)), nodes=draw(st.integers(1, 12)), held=draw(st.booleans()),
            vcluster=draw(st.sampled_from(VCLUSTERS)), walltime=draw(st.sampled_from([None, 60.0, 7200.0])),
            preemption_class=draw(st.integers(0, 10)),
        )
        for number in range(draw(st.integers(1, 8)))
    ]  # fmt: skip
    reasons = st.sampled_from(
        [("WaitingForNodes", "few"), ("Held", "held"), ("WaitingForQuotaHeadroom", "quota"), ("ReservedNodes", "kept")]
    )
    said = {one.uid: draw(reasons) for one in queue}
    expected = {one.uid: Expected(NOW + 100, NOW + 200) for one in queue if draw(st.booleans())}
    window = ReservationWindow(
        f"{MARK}-window", NOW + draw(st.integers(-100, 100)), NOW + 5000, (1 << nodes) - 1, tenants=frozenset({f"{MARK}-lab"})
    )
    windows = (window,) if draw(st.booleans()) else ()
    unusable = frozenset(draw(st.sets(st.integers(0, nodes - 1), max_size=2)))
    limit = draw(st.sampled_from([None, 2]))
    return moment(nodes, tuple(holders), tuple(queue), said=said, expected=expected, windows=windows, unusable=unusable, limit=limit)
