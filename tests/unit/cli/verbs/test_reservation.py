"""`lattice reservation`: what is given becomes a spec, what is listed fits, what is wrong names its flag."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lattice.errors import Denied
from lattice.kube.resources import RESERVATIONS
from tests.unit.cli.conftest import Bench

READY = {"type": "Ready", "status": "True", "observedGeneration": 1, "lastTransitionTime": "2026-09-21T14:00:00Z"}


def created(bench: Bench, *flags: str) -> dict[str, Any]:
    done = bench.run("reservation", "create", "maint-42", *flags)
    assert done.code == 0, done.err
    assert done.out == "Created reservation maint-42\n"
    spec: dict[str, Any] = bench.cluster.get(RESERVATIONS, "maint-42", type=dict[str, Any])["spec"]
    return spec


def standing(bench: Bench, name: str, status: dict[str, Any], **spec: Any) -> None:
    base = {"nodes": "nid[001-004]", "start": "2026-12-01T08:00:00Z", "duration": "4h"}
    given = {key: value for key, value in {**base, **spec}.items() if value is not None}
    bench.cluster.create(RESERVATIONS, {"metadata": {"name": name}, "spec": given}, type=dict[str, Any])
    bench.cluster.patch(RESERVATIONS, name, {"status": status}, subresource="status", type=dict[str, Any])


ONCE = ("--nodes=nid[001-004]", "--start=2026-12-01T08:00:00Z", "--duration=4h")
CREATED = {
    "maintenance": (
        (*ONCE, "--maintenance", "--ignore-running"),
        {"nodes": "nid[001-004]", "start": "2026-12-01T08:00:00Z", "duration": "4h", "maintenance": True, "ignoreRunning": True},
    ),
    "a number of nodes for a course": (
        ("--node-count=4", "--group=g0", "--group=g1", "--feature=nvme", "--gpu-type=GH200", "--start=2026-12-01T08:00",
         "--time-zone=Europe/Zurich", "--duration=90", "--users=alice,bob", "--tenants=physics", "--vclusters=hpc-batch"),
        {"nodeCount": 4, "features": ["nvme"], "groups": ["g0", "g1"], "gpuType": "GH200", "start": "2026-12-01T08:00",
         "timeZone": "Europe/Zurich", "duration": "1h30m", "users": ["alice", "bob"], "tenants": ["physics"], "vclusters": ["hpc-batch"]},
    ),
    "now": (("--nodes=n1", "--start=now", "--duration=1h"), {"nodes": "n1", "start": "2026-09-21T14:13:20Z", "duration": "1h"}),
    "in two hours": (("--nodes=n1", "--start=+2h", "--end=+3h30m"), {"nodes": "n1", "start": "2026-09-21T16:13:20Z", "duration": "1h30m"}),
    "an end across the end of summer time": (
        ("--nodes=n1", "--start=2026-10-25T01:00", "--end=2026-10-25T04:00", "--time-zone=Europe/Zurich"),
        {"nodes": "n1", "start": "2026-10-25T01:00", "timeZone": "Europe/Zurich", "duration": "4h"},
    ),
    "daily": ((*ONCE, "--recurrence=daily", "--count=5"), {"recurrence": {"everyDays": 1, "count": 5}}),
    "weekly": ((*ONCE, "--recurrence=weekly"), {"recurrence": {"everyDays": 7}}),
    "every third day": ((*ONCE, "--recurrence=3d"), {"recurrence": {"everyDays": 3}}),
    "weekdays": (
        (*ONCE, "--recurrence=weekly:mon,friday", "--until=2027-01-01T00:00:00Z"),
        {"recurrence": {"weekdays": ["Monday", "Friday"], "until": "2027-01-01T00:00:00Z"}},
    ),
}  # fmt: skip


@pytest.mark.parametrize(("flags", "spec"), CREATED.values(), ids=CREATED.keys())
def test_what_is_given_becomes_the_spec(bench: Bench, flags: tuple[str, ...], spec: dict[str, Any]) -> None:
    made = created(bench, *flags)
    assert {key: made.get(key) for key in spec} == spec
    assert "recurrence" in spec or made == spec


REFUSED = {
    "no nodes": (("--start=now", "--duration=1h"), "give either --nodes NODES or --node-count N"),
    "both kinds of nodes": (("--nodes=n1", "--node-count=2", "--start=now", "--duration=1h"), "give either --nodes NODES or --node-count N"),
    "a group beside nodes": (("--nodes=n1", "--group=g0", "--start=now", "--duration=1h"), "--group chooses nodes for --node-count"),
    "a bad node set": (("--nodes=n[1-", "--start=now", "--duration=1h"), "is not a node set"),
    "no number": (("--node-count=many", "--start=now", "--duration=1h"), "--node-count=many: not a number from 1 on"),
    "zero nodes": (("--node-count=0", "--start=now", "--duration=1h"), "--node-count=0: not a number from 1 on"),
    "no length": (("--nodes=n1", "--start=now"), "give either --duration TIME or --end TIME"),
    "an end before the start": (("--nodes=n1", "--start=+2h", "--end=+1h"), "--end 2026-09-21T15:13:20Z is not after --start"),
    "an odd length": (("--nodes=n1", "--start=now", "--duration=long"), "--duration=long: 'long' is not a duration"),
    "no end": (("--nodes=n1", "--start=now", "--duration=infinite"), "a reservation has an end"),
    "too short": (("--nodes=n1", "--start=now", "--duration=5s"), "--duration is 5s (limits: 1m to 366d)"),
    "a local time without a zone": (("--nodes=n1", "--start=2026-12-01T08:00", "--duration=1h"), "--start '2026-12-01T08:00' is a local time: set --time-zone"),
    "an unknown zone": (("--nodes=n1", "--start=now", "--duration=1h", "--time-zone=Mars"), "--time-zone 'Mars' is no time zone"),
    "whose work instead of who may use it": ((*ONCE, "--tenant=bio"), "write --tenants=bio"),
    "an odd start": (("--nodes=n1", "--start=soon", "--duration=1h"), "--start 'soon' is not a time"),
    "an odd delay": (("--nodes=n1", "--start=+x", "--duration=1h"), "--start=+x: 'x' is not a duration"),
    "an odd rule": ((*ONCE, "--recurrence=monthly"), "--recurrence=monthly: write daily, weekly, 3d, or weekly:mon,fri"),
    "an odd weekday": ((*ONCE, "--recurrence=weekly:mon,foo"), "write daily, weekly, 3d, or weekly:mon,fri"),
    "an end of no rule": ((*ONCE, "--count=3"), "--count ends a --recurrence, and there is none"),
    "two ends of a rule": ((*ONCE, "--recurrence=daily", "--count=3", "--until=2027-01-01T00:00:00Z"), "give --until or --count, not both"),
    "longer than its rule": (
        ("--nodes=n1", "--start=now", "--duration=25h", "--recurrence=daily"), "--duration 25h is longer than the 1d from one window",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("flags", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_wrong_is_said_before_a_server_is_asked(bench: Bench, flags: tuple[str, ...], sentence: str) -> None:
    done = bench.run("reservation", "create", "maint-42", *flags)
    assert done.code == 2
    assert sentence in done.err
    assert bench.cluster.list(RESERVATIONS, type=dict[str, Any]).items == []


def test_a_dry_run_keeps_nothing(bench: Bench) -> None:
    done = bench.run("reservation", "create", "x", *ONCE, "--dry-run")
    assert (done.code, done.out) == (0, "Would create reservation x\n")
    assert bench.cluster.list(RESERVATIONS, type=dict[str, Any]).items == []


def two(bench: Bench) -> None:
    status = {"state": "Planned", "nodes": "nid[001-004]", "nodeCount": 4, "windowStart": "2026-12-01T08:00:00Z",
              "windowEnd": "2026-12-01T12:00:00Z"}  # fmt: skip
    message = "4 nodes are held from 2026-12-01T08:00:00Z"
    standing(bench, "maint-42", {**status, "conditions": [{**READY, "reason": "Planned", "message": message}]}, maintenance=True)
    lacking = {**READY, "status": "False", "reason": "NodesMissing", "message": "asks for 9 nodes; 4 exist that fit"}
    standing(
        bench, "course", {"state": "Impossible", "conditions": [lacking], "windowStart": None}, nodes=None, nodeCount=9,
        users=["alice", "bob"], recurrence={"weekdays": ["Monday"], "count": 3},
    )  # fmt: skip


def test_the_table_fits_a_terminal(bench: Bench) -> None:
    two(bench)
    bench.columns = 80
    lines = bench.run("reservations", "list").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[1].split()[:3] == ["maint-42", "Planned", "2026-12-01T08:00Z"]
    bench.columns = 0
    assert bench.run("reservation", "list").out.splitlines() == [
        "RESERVATION  STATE       START              END                NODES  FOR              REPEATS       REASON",
        "maint-42     Planned     2026-12-01T08:00Z  2026-12-01T12:00Z      4  maintenance      —             —",
        "course       Impossible  —                  —                      9  users alice,bob  Mon, 3 times  NodesMissing",
    ]


def test_the_list_is_narrowed_by_state(bench: Bench) -> None:
    two(bench)
    assert "maint-42" not in bench.run("reservation", "list", "--state=impossible").out
    assert [
        item["metadata"]["name"] for item in json.loads(bench.run("reservation", "list", "--state=planned", "-o", "json").out)["items"]
    ] == ["maint-42"]
    assert bench.run("reservation", "list", "--state=lost").code == 2
    assert bench.run("reservation", "list", "-o", "name").out.splitlines()[0].startswith("reservation.lattice.dev/")


def test_an_ordinary_user_sees_the_reservations_that_concern_them(bench: Bench) -> None:
    two(bench)
    bench.cluster.rules = [
        {"resources": ["tenants"], "resourceNames": ["physics"]}, {"resources": ["reservations"], "resourceNames": ["maint-42", "gone"]}
    ]  # fmt: skip
    for output in ("table", "name"):
        bench.cluster.fake.fail(Denied("reservations.lattice.dev is forbidden"), verb="list")
        shown = bench.run("reservation", "list", "-o", output)
        assert shown.code == 0
        assert "maint-42" in shown.out
        assert "course" not in shown.out


def test_show_has_the_reason_and_the_next_windows(bench: Bench) -> None:
    two(bench)
    shown = bench.run("reservation", "show", "course").out
    assert "NodesMissing: asks for 9 nodes; 4 exist that fit" in shown
    assert "2026-12-07T08:00:00Z to 2026-12-07T12:00:00Z" in shown
    assert "9 nodes" in shown
    assert bench.run("reservation", "show", "nothing").code == 4


def test_delete_says_what_is_gone_and_what_was_not_there(bench: Bench) -> None:
    two(bench)
    done = bench.run("reservation", "delete", "course", "nothing")
    assert (done.code, done.out) == (7, "Deleted reservation course\n")
    assert 'no reservation "nothing"' in done.err
    assert [item["metadata"]["name"] for item in bench.cluster.list(RESERVATIONS, type=dict[str, Any]).items] == ["maint-42"]


def test_submit_names_a_reservation(bench: Bench) -> None:
    done = bench.run("submit", "--reservation=course", "--walltime=1h", "--dry-run=client", "-o", "json", "--", "true")
    assert done.code == 0, done.err
    assert json.loads(done.out)["spec"]["reservation"] == "course"
