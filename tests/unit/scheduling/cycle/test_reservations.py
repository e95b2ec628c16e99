"""The reservations of one cycle: what a higher class revokes stands again, unless the revocation is kept."""

from __future__ import annotations

import pytest

from lattice.scheduling.cluster.node_cache import NodeCache
from lattice.scheduling.cycle.cycle import decide
from lattice.scheduling.cycle.reservations import CycleReservations
from lattice.scheduling.model.policy import Policy
from lattice.scheduling.state.cluster_state import ClusterState
from lattice.scheduling.state.reservation_order import HIGHER_CLASS
from lattice.views.ledger import TenantAccount
from tests.build import job, node, uid

HOUR = 3600.0
LOW, HIGH = job(1, 4, preemption_class=2), job(2, 2, preemption_class=8)


def begun() -> tuple[ClusterState, CycleReservations]:
    """A cycle in which the low work holds a reservation of the last one and the high work is new."""
    node_cache = NodeCache()
    for index in range(4):
        node_cache.put(node(index))
    node_cache.take((0, 1), HOUR)
    state = ClusterState(node_cache, {"physics": TenantAccount()}, {"hpc": Policy("hpc")})
    assert len(list(decide(state, "hpc", [LOW], 0.0))) == len(state.backfill_reservations["hpc"]) == 1
    reservations = CycleReservations(state, Policy("hpc"), [LOW, HIGH], 10.0)
    assert reservations.put_holders_first([LOW, HIGH], [1, 0]) == [1, 0], "the higher class is not behind"
    return state, reservations


@pytest.mark.parametrize("keep", [False, True], ids=["given back", "kept"])
def test_what_a_higher_class_revokes_stands_again_unless_it_is_kept(keep: bool) -> None:
    state, reservations = begun()
    before = reservations.profile.reservations[uid(1)]
    with reservations.revoked_below(HIGH) as revocation:
        assert uid(1) not in reservations.profile.reservations
        if keep:
            revocation.make_final()
    assert reservations.profile.reservations.get(uid(1)) is (None if keep else before)
    state.validate()
    reservations.commit()
    assert [(move.cause, move.by) for move in state.moves["hpc"]] == [(HIGHER_CLASS, uid(2)) if keep else ("Unexplained", "")]


def test_what_fails_inside_of_a_revocation_leaves_the_reservations_as_they_were() -> None:
    state, reservations = begun()
    with pytest.raises(ZeroDivisionError), reservations.revoked_below(HIGH):
        raise ZeroDivisionError
    assert uid(1) in reservations.profile.reservations
    state.validate()


def test_each_change_of_a_reservation_begins_a_new_epoch() -> None:
    _, reservations = begun()
    epochs = [reservations.epoch]
    with reservations.revoked_below(HIGH):
        epochs.append(reservations.epoch)
    epochs.append(reservations.epoch)
    reservations.note_placed(uid(2))
    epochs.append(reservations.epoch)
    reservations.end(uid(1), "Held")
    epochs.append(reservations.epoch)
    assert epochs == sorted(set(epochs))
