"""What a trace reads of the cycle that is blamed: a promise binds everybody, and nothing else excuses that a job was passed over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lattice.cycle_files import CycleWriter
from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.model.hardware import Need
from lattice.scheduling.model.outcomes import Outcome, Placed, Waiting
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.model.work import Candidate, NodeHolder
from lattice.scheduling.recording.codec import CycleEncoder
from lattice.scheduling.recording.cycle_log import WHOLE, frame
from lattice.scheduling.recording.record import take_snapshot
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.views.ledger import TenantAccount
from lattice_dev.trace.order import PassedOver
from lattice_dev.trace.recorded import RecordedCycles
from tests.build import job, node

NOW = 1_000_000.0
HOLLOW = Need(features=frozenset({"hollow"}), hollow=True)


def record(folder: Path, walltime: float, *, doctored: bool = False) -> RecordedCycles:
    """Records a cycle with `wide`, which was promised all ten nodes in 195 s, `early` of three nodes, and `short`; `doctored`: `early` waits
    whatever was decided.
    """
    state = ClusterState(accounts={"physics": TenantAccount()}, policies={"hpc": Policy("hpc")}, start_allowance=0.0)
    for index in range(10):
        state.node_cache.put(node(index, hollow=True, features=frozenset({"hollow"})))
    state.put_holder(
        NodeHolder(
            uid="r0", key="physics/r0", tenant="physics", user="alice", vcluster="hpc", preemption_class=5, nodes=tuple(range(6)),
            since=NOW - 5, started=NOW - 5, end=NOW + 195, walltime=200.0,
        )
    )  # fmt: skip
    wide = replace(job(1, 10), key="physics/wide", need=HOLLOW, walltime=50.0, submitted=NOW - 2)
    list(decide(state, "hpc", [wide], NOW))
    early = replace(job(2, 3), key="physics/early", need=HOLLOW, walltime=walltime, submitted=NOW - 3)
    short = replace(job(3, 1), key="physics/short", need=HOLLOW, walltime=10.0, submitted=NOW - 1)
    queue: list[Candidate] = [wide, early, short]
    moment = take_snapshot(state, "hpc", queue, NOW + 1, 7)
    outcomes: list[Outcome] = list(decide(state, "hpc", queue, NOW + 1))
    if doctored:
        outcomes = [Waiting(early, "WaitingForNodes", "none") if one.candidate is early else one for one in outcomes]
    assert any(isinstance(one, Placed) and one.candidate is short for one in outcomes), outcomes
    payload = CycleEncoder("test").payload(moment, outcomes, whole=True)
    writer = CycleWriter(folder)
    writer.write(frame(WHOLE, 7, NOW + 1, payload), 7, NOW + 1, new=True, most=1_000_000)
    writer.close()
    return RecordedCycles(folder)


BLAMED = PassedOver("early", "short", 5, 3, 4)


def test_a_job_that_would_hold_what_another_was_promised_is_bound_by_the_promise(tmp_path: Path) -> None:
    recorded = record(tmp_path, 300.0)
    assert recorded.bound(BLAMED)
    said = list(recorded.evidence(BLAMED))
    assert said[0] == f"  cycle 7 at {NOW + 1:.3f} read 10 nodes, 4 of them held by nobody"
    assert any(line.startswith("  wide was promised") for line in said)
    assert any("early waits, BehindHigherPriority" in line for line in said)


def test_a_job_that_fitted_and_was_left_waiting_is_excused_by_nothing(tmp_path: Path) -> None:
    assert not record(tmp_path, 100.0, doctored=True).bound(BLAMED)


def test_what_was_not_recorded_excuses_nobody_and_says_so(tmp_path: Path) -> None:
    recorded = RecordedCycles(tmp_path / "none")
    assert not recorded.bound(BLAMED)
    assert list(recorded.evidence(BLAMED)) == ["  no recorded cycle placed short"]
    assert not record(tmp_path, 300.0).bound(PassedOver("unheard", "short", 5, 3, 4))
