"""Reservations at the door: in the past, overlapping, over running work, of impossible size; and who may use one."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from lattice.admission import Request, Verdict, judge
from lattice.admission.facts import Facts, Occupied
from lattice.admission.reservations import START_SECONDS
from lattice.scheduling.state.cluster_state import START_ALLOWANCE
from lattice.units import format_time, parse_time
from lattice.views import Reservation
from tests.unit.admission.builders import NOW, accepted, allocation, facts, refused, submit

NODES = frozenset(f"nid{number:03}" for number in range(1, 9))
SOON = format_time(NOW + 3600)
"""2027-01-15T09:00:00Z."""


def reservation(name: str = "maint-42", **spec: Any) -> dict[str, Any]:
    """nid001 to nid004 for two hours, in an hour; None takes a field out."""
    body = {"nodes": "nid[001-004]", "start": SOON, "duration": "2h", **spec}
    return {
        "apiVersion": "lattice.dev/v1alpha1",
        "kind": "Reservation",
        "metadata": {"name": name},
        "spec": {key: value for key, value in body.items() if value is not None},
    }


def known(*others: dict[str, Any], occupied: tuple[Occupied, ...] = (), **changes: Any) -> Facts:
    """A site of eight nodes with these reservations and this work."""
    views = {one["metadata"]["name"]: msgspec.convert(one, Reservation) for one in others}
    return facts(reservations=views, node_names=NODES, occupied=occupied, **changes)


def make(obj: dict[str, Any], site: Facts | None = None) -> Verdict:
    return judge(Request.creation(obj), site or known())


def change(old: dict[str, Any], new: dict[str, Any], site: Facts | None = None) -> Verdict:
    return judge(Request("Reservation", "UPDATE", new, old), site or known())


def test_a_reservation_of_nodes_that_exist_is_accepted_without_a_word() -> None:
    assert accepted(make(reservation())).warnings == ()


REFUSED = {
    "in the past": (reservation(start=format_time(NOW - 7200)), "ReservationInPast", "lies 2h in the past"),
    "every window over": (
        reservation(start="2020-01-01T00:00:00Z", recurrence={"everyDays": 1, "count": 3}), "ReservationInPast",
        "every window is over: the first began at 2020-01-01T00:00:00Z",
    ),
    "until before the first window": (
        reservation(recurrence={"everyDays": 1, "until": "2026-01-01T00:00:00Z"}), "RecurrenceInvalid", "is before the first window",
    ),
    "longer than the time to the next": (reservation(duration="25h", recurrence={"everyDays": 1}), "RecurrenceInvalid", "25h is longer than the 1d"),
    "too long": (reservation(duration="400d"), "DurationInvalid", "spec.duration is 400d (limits: 1m to 366d)"),
    "no time": (reservation(start="tomorrow"), "TimeInvalid", "spec.start 'tomorrow' is not a time"),
    "an unknown zone": (reservation(timeZone="Mars/Olympus"), "TimeInvalid", "'Mars/Olympus' is no time zone"),
    "a local time without a zone": (reservation(start="2027-02-01T08:00"), "TimeInvalid", "is a local time: set spec.timeZone"),
    "a bad node set": (reservation(nodes="nid[001-"), "NodeSetInvalid", "spec.nodes: 'nid[001-' is not a node set"),
    "more nodes than a ledger knows": (reservation(nodes="n[1-16385]"), "NodeSetInvalid", "more than 16384 nodes"),
    "a count above the limit": (reservation(nodes=None, nodeCount=20000), "NodesInvalid", "spec.nodeCount asks for 20000 nodes"),
    "no nodes at all": (reservation(nodes=None), "NodesInvalid", "give either spec.nodes or spec.nodeCount"),
    "both": (reservation(nodeCount=3), "NodesInvalid", "give either spec.nodes or spec.nodeCount"),
    "people for maintenance": (reservation(maintenance=True, users=["alice"]), "OptionInvalid", "nobody may use it"),
    "a wrong type": (reservation(nodeCount="three"), "Malformed", "spec.nodeCount"),
}  # fmt: skip


@pytest.mark.parametrize(("obj", "reason", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_a_reservation_that_makes_no_sense_is_refused_with_field_value_and_limit(obj: dict[str, Any], reason: str, sentence: str) -> None:
    found = refused(make(obj))
    assert found.reason == reason
    assert sentence in found.sentence


def test_a_start_of_a_moment_ago_is_now() -> None:
    accepted(make(reservation(start=format_time(NOW - 30))))


def test_a_recurrence_whose_first_window_has_passed_is_accepted_while_one_is_ahead() -> None:
    accepted(make(reservation(start="2026-01-01T02:00:00Z", recurrence={"everyDays": 1})))


def test_two_reservations_of_the_same_nodes_at_the_same_time_are_both_named() -> None:
    other = reservation("course", nodes="nid[004-006]", start=format_time(NOW + 7200), duration="1h")
    found = refused(make(reservation(), known(other)))
    assert found.reason == "ReservationOverlaps"
    assert found.sentence == (
        f'reservation "maint-42" ({SOON} to {format_time(NOW + 10800)}) and reservation "course" '
        f"({format_time(NOW + 7200)} to {format_time(NOW + 10800)}) both hold nid004"
    )


@pytest.mark.parametrize(
    "other",
    [
        reservation("after", start=format_time(NOW + 10800)),
        reservation("elsewhere", nodes="nid[005-008]"),
        reservation("over", start=format_time(NOW - 9000)),
        reservation("unreadable", start="whenever"),
        reservation("maint-42"),
    ],
    ids=lambda other: other["metadata"]["name"],
)
def test_what_does_not_meet_is_no_overlap(other: dict[str, Any]) -> None:
    accepted(make(reservation(), known(other)))


def test_recurrences_are_compared_for_a_year() -> None:
    daily = reservation("daily", start="2027-01-01T09:30:00Z", duration="1h", recurrence={"everyDays": 1})
    assert refused(make(reservation(), known(daily))).reason == "ReservationOverlaps"
    sundays = reservation("sundays", start="2027-01-17T09:00", timeZone="Europe/Zurich", recurrence={"weekdays": ["Sunday"]})
    monthly = reservation("monthly", start="2027-01-18T09:00:00Z", duration="1h", recurrence={"everyDays": 30})
    found = refused(make(monthly, known(sundays)))
    assert "2027-10-15" not in found.sentence
    assert '"sundays"' in found.sentence


def test_chosen_nodes_count_as_held() -> None:
    other = {**reservation("course", nodes=None, nodeCount=2), "status": {"nodes": "nid[001-002]"}}
    assert "both hold nid[001-002]" in refused(make(reservation(), known(other))).sentence


def test_a_longer_duration_may_not_reach_into_another_reservation() -> None:
    other = reservation("after", start=format_time(NOW + 3 * 3600))
    assert refused(change(reservation(), reservation(duration="3h"), known(other))).reason == "ReservationOverlaps"


def test_a_change_does_not_mind_the_past_nor_running_work() -> None:
    old = reservation(start=format_time(NOW - 86400))
    busy = (Occupied("physics/job", NODES, None),)
    accepted(change(old, {**old, "spec": {**old["spec"], "duration": "3d"}}, known(occupied=busy)))


def test_nodes_that_do_not_exist_yet_are_warned_of_with_their_number() -> None:
    (warning,) = accepted(make(reservation(nodes="nid[007-010]"))).warnings
    assert warning.startswith("2 of 4 nodes do not exist yet: nid[009-010]")
    (warning,) = accepted(make(reservation(nodes="x[1-3]"))).warnings
    assert "is Impossible until one does" in warning
    (warning,) = accepted(make(reservation(nodes=None, nodeCount=9))).warnings
    assert warning == "spec.nodeCount is 9 and the cluster has 8 nodes: the reservation is Impossible until more join"


def test_a_number_of_nodes_that_others_leave_too_few_for_is_warned_of() -> None:
    (warning,) = accepted(make(reservation(nodes=None, nodeCount=5), known(reservation("course")))).warnings
    assert "4 of 8 nodes are in no other reservation at that time" in warning


BUSY = (
    Occupied("physics/a", frozenset({"nid001", "nid002"}), NOW + 1800),
    Occupied("physics/b", frozenset({"nid003"}), NOW + 7200),
    Occupied("physics/c", frozenset({"nid008"}), None),
)


def test_work_that_may_run_into_the_first_window_is_counted() -> None:
    found = refused(make(reservation(), known(occupied=BUSY)))
    assert found.reason == "NodesBusy"
    assert found.sentence == (
        f"1 allocation on nid003 may run into the first window, {SOON} to {format_time(NOW + 10800)}: "
        f"the last of them ends by {format_time(NOW + 7200)}"
    )
    assert found.hint == f"begin at {format_time(NOW + 7200)} or later, or set spec.ignoreRunning: true, and they go on to their end"


def test_work_without_an_end_is_in_the_way_of_every_window() -> None:
    found = refused(make(reservation(nodes="nid[003-008]"), known(occupied=BUSY)))
    assert "2 allocations on nid[003,008]" in found.sentence
    assert "and 1 without an end" in found.sentence
    assert found.hint.startswith("set spec.ignoreRunning")


def test_running_work_may_be_ignored_or_left_time() -> None:
    accepted(make(reservation(ignoreRunning=True), known(occupied=BUSY)))
    accepted(make(reservation(start=format_time(NOW + 7200)), known(occupied=BUSY)))


def test_a_start_that_the_clocks_skip_is_accepted_and_said() -> None:
    (warning,) = accepted(make(reservation(start="2027-03-28T02:30", timeZone="Europe/Zurich"))).warnings
    assert "does not exist in Europe/Zurich" in warning


def test_tenants_and_vclusters_that_do_not_exist_yet_are_warned_of() -> None:
    warnings = accepted(make(reservation(tenants=["physics", "astro"], vclusters=["night"]))).warnings
    assert warnings == (
        "spec.tenants names tenants that do not exist yet: astro", "spec.vclusters names vclusters that do not exist yet: night",
    )  # fmt: skip


# the Allocation


def test_work_may_use_a_reservation_that_admits_it() -> None:
    site = known(reservation("course", tenants=["physics"]))
    assert accepted(submit(allocation(reservation="course"), site)).obj["spec"]["reservation"] == "course"


def test_what_may_not_use_a_reservation_is_refused() -> None:
    site = known(
        reservation("maint-42", maintenance=True), reservation("bobs", users=["bob"]), reservation("open", nodes="nid008"),
        reservation("past", start="2020-01-01T00:00:00Z"),
    )  # fmt: skip
    found = refused(submit(allocation(reservation="nothing"), site))
    assert (found.reason, found.sentence) == ("ReservationUnknown", 'reservation "nothing" not found. Open to this work: open, past')
    found = refused(submit(allocation(reservation="bobs"), site))
    assert found.reason == "ReservationNotAllowed"
    assert found.sentence == 'reservation "bobs" admits neither user "alice" nor tenant "physics" nor vcluster "hpc-batch"'
    assert "is for maintenance" in refused(submit(allocation(reservation="maint-42"), site)).sentence
    assert refused(submit(allocation(reservation="past"), site)).reason == "ReservationEnded"


@pytest.mark.parametrize(
    ("constraints", "says"),
    [
        ({"nodeList": "nid[003-006]"}, "of which nodeList leaves 2 (requested: 3)"),
        ({"excludeNodes": "nid[001-002]"}, "of which excludeNodes leaves 2 (requested: 3)"),
        ({"nodeList": "nid[001-004]", "excludeNodes": "nid[002-003]"}, "leave"),
        ({"nodeList": "nid[001-003]"}, ""),
        ({"excludeNodes": "nid004,nid009"}, ""),
    ],
)
def test_node_sets_that_leave_too_little_of_the_reservation_contradict_it(constraints: dict[str, str], says: str) -> None:
    asked = allocation(reservation="course", resources={"nodes": 3, "constraints": constraints})
    verdict = submit(asked, known(reservation("course", nodes="nid[001-004]")))
    if says:
        found = refused(verdict)
        assert found.reason in ("ConstraintsContradict", "NodeListTooSmall")
        assert says in found.sentence
    else:
        accepted(verdict)


def test_work_that_has_no_room_in_a_window_is_refused_with_the_limit() -> None:
    site = known(reservation("course"), reservation("count", nodes=None, nodeCount=2, start=format_time(NOW + 86400)))
    for name, limit in (("course", 4), ("count", 2)):
        found = refused(submit(allocation(reservation=name, resources={"nodes": 5}), site))
        assert found.reason == "ReservationTooSmall"
        assert found.sentence.endswith(f"(requested: 5, limit: {limit})")
    found = refused(submit(allocation(reservation="course", lifecycle={"walltime": "2h"}), site))
    assert found.sentence == (
        'walltime 2h does not fit a window of reservation "course", which lasts 2h, with 30s of grace and a minute for the start'
    )
    assert found.hint == "ask for at most 1h58m30s"
    accepted(submit(allocation(reservation="course", lifecycle={"walltime": "1h58m30s"}), site))
    endless = allocation(reservation="course", lifecycle={"type": "Unbounded", "walltime": None})
    endless["spec"]["lifecycle"].pop("walltime")
    assert "work without an end" in refused(submit(endless, site)).sentence


def test_the_room_for_the_start_is_what_the_cycle_counts_on() -> None:
    assert START_SECONDS == START_ALLOWANCE


def test_without_a_cluster_the_server_is_left_to_look() -> None:
    (warning,) = [text for text in accepted(submit(allocation(reservation="x"), facts())).warnings if "reservation" in text]
    assert warning == 'spec.reservation is "x": the server looks whether it exists and admits this work'


def test_the_clock_of_these_tests_is_what_it_says() -> None:
    assert parse_time(SOON) == NOW + 3600
