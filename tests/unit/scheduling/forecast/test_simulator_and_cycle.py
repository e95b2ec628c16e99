"""The simulator is the cycle in small: what it starts at once is what a cycle places, for the same queue, limits, windows and holders.

The made clusters leave out what the simulator simplifies on purpose: ends lie within `NEAR` seconds, where a cycle rounds to whole
seconds, one blocked candidate holds a reservation (EASY), needs overlap wholly or not at all, and nobody names a window that is to
come: in a cycle such a candidate may hold the one reservation.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.scheduling.cluster.releases import EPOCH, NEAR
from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.forecast.forecaster import Forecaster, simulator_inputs
from lattice.scheduling.forecast.simulator import BackfillSimulator
from lattice.scheduling.model.hardware import Need
from lattice.scheduling.model.outcomes import Placed
from lattice.scheduling.model.policy import BACKFILL, INTERACTIVE_FIFO, Limits, Policy
from lattice.scheduling.model.windows import ReservationWindow
from lattice.scheduling.model.work import Candidate, NodeHolder
from lattice.scheduling.state.cluster_state import ClusterState, mask_of
from lattice.views.ledger import TenantAccount
from tests.build import job, node

NOW = 100 * EPOCH
USERS = ("alice", "bob")
seconds = st.integers(1, int(NEAR) // 2).map(float)
limit = st.none() | st.integers(1, 6)


@st.composite
def scenes(draw: st.DrawFn) -> tuple[ClusterState, dict[str, list[Candidate]]]:
    """Up to eight nodes of two kinds, some held; limits; sometimes a window; one or two queues."""
    kinds = [draw(st.sampled_from("ab")) for _ in range(draw(st.integers(2, 8)))]
    made = ClusterState(
        accounts={"physics": TenantAccount(draw(limit), 0, draw(limit), 0, draw(limit), draw(limit))}, start_allowance=0.0,
        policies={name: draw(policies(name)) for name in ("hpc", "other")[: draw(st.integers(1, 2))]},
    )  # fmt: skip
    for index, kind in enumerate(kinds):
        made.node_cache.put(node(index, features=frozenset({kind})))
    open_windows = [""]
    if draw(st.booleans()):
        start = NOW + draw(st.just(-5.0) | seconds)
        open_windows += ["m"] if start < NOW else []
        closed = mask_of(index for index, kind in enumerate(kinds) if kind == "a")
        made.set_windows([ReservationWindow("m", start, max(start, NOW) + draw(seconds), closed)])
    for index in range(len(kinds)):
        if draw(st.booleans()):
            left = draw(seconds)
            made.put_holder(
                NodeHolder(
                    uid=f"r{index}", key=f"physics/r{index}", tenant="physics", user=draw(st.sampled_from(USERS)), vcluster="hpc",
                    preemption_class=5, nodes=(index,), since=NOW - 10, started=NOW - 10, end=NOW + left, walltime=left + 10,
                )
            )  # fmt: skip
    numbers = iter(range(100))
    queues = {name: [draw(candidates(next(numbers), name, open_windows)) for _ in range(draw(st.integers(0, 6)))] for name in made.policies}
    return made, queues


@st.composite
def policies(draw: st.DrawFn, name: str) -> Policy:
    """First fit, EASY backfill, or first come, with limits of the vcluster."""
    limits = Limits(max_nodes=draw(limit), max_running_per_user=draw(limit))
    return Policy(name, draw(st.sampled_from([BACKFILL, INTERACTIVE_FIFO])), depth=draw(st.integers(0, 1)), limits=limits)


@st.composite
def candidates(draw: st.DrawFn, number: int, vcluster: str, open_windows: list[str]) -> Candidate:
    """Pending work of either user on nodes of one kind, sometimes in a window."""
    return job(
        number, draw(st.integers(1, 4)), reservation=draw(st.sampled_from(["", *open_windows])), walltime=draw(seconds), vcluster=vcluster, user=draw(st.sampled_from(USERS)),
        need=Need(features=frozenset({draw(st.sampled_from("ab"))})), not_before=NOW + draw(seconds) if draw(st.integers(0, 5)) == 0 else 0.0,
    )  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(scenes())
def test_what_the_simulator_starts_at_once_is_what_a_cycle_places(scene: tuple[ClusterState, dict[str, list[Candidate]]]) -> None:
    made, queues = scene
    forecaster = Forecaster()
    median, _late, uids, _silent = simulator_inputs(forecaster.take_snapshot(made, queues, NOW), forecaster.run_times)
    starts = BackfillSimulator(median).run()
    simulated = {uid for queue, found in zip(uids, starts, strict=True) for uid, at in zip(queue, found, strict=True) if at == 0.0}
    placed = {
        outcome.candidate.uid for name, queue in queues.items() for outcome in decide(made, name, queue, NOW) if isinstance(outcome, Placed)
    }
    made.validate()
    assert simulated == placed
