"""Reservations as the cycle reads them: the nodes they hold, fixed once chosen; the older of two that overlap wins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from lattice.scheduling.cluster.node_cache import NodeCache, indices_of
from lattice.scheduling.conversion.calendar import MOST_WINDOWS, Booking, book, mask_of, node_set
from lattice.scheduling.model.hardware import Need, NodeFacts
from lattice.scheduling.model.work import Candidate
from lattice.units import format_time
from lattice.views import Reservation

NOW = 1_800_000_000.0
HOUR = 3600.0


def node_cache(count: int = 8, **changes: Any) -> NodeCache:
    """nid001 to nid008 with indices 0 to 7, in two groups, all usable."""
    made = NodeCache()
    for index in range(count):
        facts = NodeFacts(
            index, f"nid{index + 1:03}", f"g{index // 4}", 8, 1 << 30, 0, frozenset({"nvme"}), hollow=False, usable=True, state="Ready"
        )
        made.put(replace(facts, **changes.get(facts.name, {})))
    return made


def reservation(name: str, created: float = NOW - 9 * HOUR, **spec: Any) -> Reservation:
    """nid001 to nid004 for two hours, in an hour; None takes a field out."""
    body = {"nodes": "nid[001-004]", "start": format_time(NOW + HOUR), "duration": "2h", **spec}
    metadata = {"name": name, "uid": f"uid-{name}", "creationTimestamp": format_time(created)}
    return msgspec.convert({"metadata": metadata, "spec": {key: value for key, value in body.items() if value is not None}}, Reservation)


def counted(name: str, count: int, created: float = NOW - 9 * HOUR, **spec: Any) -> Reservation:
    return reservation(name, created, nodes=None, nodeCount=count, **spec)


def one(asked: Reservation, on: NodeCache | None = None, *, now: float = NOW, chosen: int = 0) -> Booking:
    return book([asked], on or node_cache(), now, {asked.metadata.uid: chosen})[asked.metadata.name]


def test_named_nodes_are_held_in_the_window_for_those_who_are_named() -> None:
    booking = one(reservation("course", users=["alice"], tenants=["physics"], ignoreRunning=True))
    (window,) = booking.windows()
    assert (booking.state, booking.reason, booking.sound, booking.changes) == ("Planned", "Planned", True, NOW + HOUR)
    assert booking.message == f"4 nodes are held from {format_time(NOW + HOUR)}"
    assert (window.name, window.start, window.end, window.nodes) == ("course", NOW + HOUR, NOW + 3 * HOUR, 0b1111)
    assert (window.users, window.tenants) == (frozenset({"alice"}), frozenset({"physics"}))
    assert (window.maintenance, window.ignore_running) == (False, True)
    bob = Candidate("chem/b", "u", "chemistry", "hpc-batch", 5, NOW, 1, 1, Need(), user="bob")
    assert not window.admits(bob)
    assert window.admits(replace(bob, user="alice"))
    assert window.admits(replace(bob, tenant="physics"))


def test_an_open_window_is_active_until_its_end_and_then_nothing_is_held() -> None:
    asked = reservation("maint", maintenance=True)
    booking = one(asked, now=NOW + 2 * HOUR)
    assert (booking.state, booking.changes, booking.nodes) == ("Active", NOW + 3 * HOUR, 0b1111)
    ended = one(asked, now=NOW + 3 * HOUR)
    assert (ended.state, ended.windows(), ended.changes, ended.sound) == ("Ended", (), None, True)


def test_at_most_sixteen_windows_of_a_recurrence_are_looked_at() -> None:
    windows = one(reservation("daily", recurrence={"everyDays": 1})).windows()
    assert len(windows) == MOST_WINDOWS == 16
    assert [window.start for window in windows] == [NOW + HOUR + day * 24 * HOUR for day in range(16)]


def test_nodes_that_do_not_exist_are_counted_and_the_others_held() -> None:
    booking = one(reservation("wide", nodes="nid[007-010]"))
    assert (booking.state, booking.reason, booking.sound, booking.nodes) == ("Planned", "NodesMissing", False, 0b11000000)
    assert booking.message == "2 of 4 nodes do not exist: nid[009-010]; the others are held"
    none = one(reservation("ghosts", nodes="x[1-9]"))
    assert (none.state, none.reason, none.windows()) == ("Impossible", "NodesMissing", ())
    assert none.message == "9 of 9 nodes do not exist: x[1-5] and 4 more"


def test_more_nodes_than_fit_is_impossible_with_the_numbers() -> None:
    booking = one(counted("big", 9))
    assert (booking.state, booking.reason, booking.message) == ("Impossible", "NodesMissing", "asks for 9 nodes; 8 exist that fit")
    assert one(counted("group", 5, groups=["g1"])).message == "asks for 5 nodes; 4 exist that fit"
    assert one(counted("gpus", 1, gpuType="GH200")).message == "asks for 1 node; 0 exist that fit"
    assert one(counted("features", 1, features=["ib"])).state == "Impossible"
    assert one(counted("hollow", 1, features=["hollow"])).state == "Impossible"


def test_nodes_that_are_free_first_are_chosen_first() -> None:
    on = node_cache(nid008={"usable": False, "state": "Down"})
    on.take([0, 1], NOW + 5 * HOUR)
    on.take([2, 3], NOW + HOUR / 2)
    on.take([4])
    assert sorted(indices_of(one(counted("four", 4), on).nodes)) == [2, 3, 5, 6]
    six = one(counted("six", 6), on)
    assert sorted(indices_of(six.nodes)) == [0, 1, 2, 3, 5, 6]
    assert six.message.endswith("; work on 2 of them may last longer, and goes on to its end")
    assert sorted(indices_of(one(counted("eight", 8), on).nodes)) == list(range(8))


def test_chosen_nodes_do_not_wander() -> None:
    first = one(counted("two", 2)).nodes
    busy = node_cache()
    busy.take(indices_of(first))
    assert one(counted("two", 2), busy, chosen=first).nodes == first
    less = node_cache()
    less.drop(0)
    assert sorted(indices_of(one(counted("two", 2), less, chosen=first).nodes)) == [1, 2]


def test_of_two_that_overlap_the_older_one_holds_the_nodes() -> None:
    older, newer = reservation("older", NOW - 9 * HOUR), reservation("newer", NOW - 8 * HOUR, nodes="nid[004-006]")
    found = book([newer, older], node_cache(), NOW, {})
    assert found["older"].state == "Planned"
    assert (found["newer"].state, found["newer"].reason, found["newer"].windows()) == ("Impossible", "Overlaps", ())
    assert 'of reservation "older", which was made earlier and holds nid004 too' in found["newer"].message
    after = book([reservation("newer", nodes="nid[004-006]")], node_cache(), NOW, {})
    assert after["newer"].state == "Planned"


def test_a_number_of_nodes_is_chosen_beside_the_older_ones() -> None:
    found = book([reservation("older"), counted("four", 4, NOW - HOUR), counted("one", 1, NOW)], node_cache(), NOW, {})
    assert sorted(indices_of(found["four"].nodes)) == [4, 5, 6, 7]
    assert (found["one"].state, found["one"].reason) == ("Impossible", "Overlaps")
    assert found["one"].message == 'asks for 1 node; 8 exist that fit, 8 of them held at that time by reservation "older", "four"'


def test_the_same_nodes_at_another_time_are_no_overlap() -> None:
    later = reservation("later", NOW, start=format_time(NOW + 3 * HOUR))
    found = book([reservation("older"), later], node_cache(), NOW, {})
    assert {name: booking.state for name, booking in found.items()} == {"older": "Planned", "later": "Planned"}


def test_times_that_make_no_sense_hold_nothing_and_say_why() -> None:
    booking = one(reservation("odd", start="whenever"))
    assert (booking.state, booking.reason, booking.windows()) == ("Impossible", "CalendarInvalid", ())
    assert "spec.start 'whenever' is not a time" in booking.message


@given(st.sets(st.integers(0, 300)))
def test_a_bit_set_has_the_indices_it_was_made_of(indices: set[int]) -> None:
    assert sorted(indices_of(mask_of(indices))) == sorted(indices)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30), st.integers(0, 6), st.integers(1, 4)), max_size=8), st.integers(0, 80))
def test_no_two_windows_ever_hold_a_node_at_the_same_time(asked: list[tuple[int, int, int, int]], later: int) -> None:
    reservations = [
        counted(
            f"r{number}", width, NOW - HOUR + number, start=format_time(NOW + begin * HOUR), duration=f"{length}h",
            **({"recurrence": {"everyDays": days}} if days * 24 >= length else {}),
        )
        for number, (begin, length, days, width) in enumerate(asked)
    ]  # fmt: skip
    windows = [window for booking in book(reservations, node_cache(), NOW + later * HOUR, {}).values() for window in booking.windows()]
    for at, window in enumerate(windows):
        for other in windows[at + 1 :]:
            together = window.start < other.end and other.start < window.end
            assert not (together and window.nodes & other.nodes), (window, other)


def test_nodes_are_shown_in_the_order_of_their_names() -> None:
    assert node_set(0b10000110, node_cache()) == "nid[002-003,008]"
