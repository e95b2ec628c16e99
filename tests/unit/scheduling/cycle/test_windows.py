"""Reservation windows in a cycle: who may use their nodes, and how long others may run before them."""

from __future__ import annotations

from lattice.scheduling.model.windows import ReservationWindow
from lattice.scheduling.state.cluster_state import mask_of
from tests.build import job, node, uid
from tests.unit.scheduling.cycle.scenes import HOUR, decided, placed, scene_of, waiting


def test_a_job_that_crosses_a_maintenance_is_told_how_long_it_may_be_and_a_job_so_long_starts() -> None:
    state = scene_of([node(index) for index in range(4)])
    state.set_windows([ReservationWindow("maint-42", 6 * HOUR, 10 * HOUR, mask_of(range(4)), maintenance=True)])
    told = waiting(decided(state, job(1, 2, 24.0))[uid(1)])
    assert (told.reason, told.message) == (
        "ReservedNodes", "walltime 1d crosses maintenance maint-42 at 1970-01-01T06:00:00Z; a walltime of at most 6h starts now",
    )  # fmt: skip
    assert told.latest == 10 * HOUR
    assert placed(decided(state, job(2, 2, 6.0))[uid(2)]) == (0, 1)


def test_nodes_outside_a_window_are_used_and_unbounded_work_keeps_away_from_it() -> None:
    state = scene_of([node(index) for index in range(4)])
    state.set_windows([ReservationWindow("later", 6 * HOUR, 10 * HOUR, mask_of((0, 1)), maintenance=True)])
    found = decided(state, job(1, 2, None), job(2, 2, 1.0), job(3, 1, None))
    assert placed(found[uid(1)]) == (2, 3)
    assert placed(found[uid(2)]) == (0, 1)


def test_a_reservation_is_used_by_whom_it_admits_and_who_names_it_within_its_time() -> None:
    window = ReservationWindow("course", 2 * HOUR, 5 * HOUR, mask_of((0, 1)), users=frozenset({"alice"}))
    state = scene_of([node(index) for index in range(4)])
    state.set_windows([window])
    early = waiting(decided(state, job(1, 2, reservation="course"), now=HOUR)[uid(1)])
    assert (early.reason, early.message, early.wake) == ("ReservedNodes", 'reservation "course" begins 1970-01-01T02:00:00Z', 2 * HOUR)
    found = decided(
        state, job(1, 2, reservation="course", user="bob"), job(2, 1, 9.0, reservation="course"), job(3, 1, reservation="gone"),
        job(4, 1, 3.0, reservation="course"), job(5, 2, 3.0), now=2 * HOUR,
    )  # fmt: skip
    assert 'does not admit user "bob"' in waiting(found[uid(1)]).message
    assert "goes beyond the end" in waiting(found[uid(2)]).message
    assert 'reservation "gone" holds no nodes' in waiting(found[uid(3)]).message
    assert placed(found[uid(4)]) == (0,)
    assert placed(found[uid(5)]) == (2, 3)
