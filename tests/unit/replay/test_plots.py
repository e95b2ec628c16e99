"""The pictures of a replay: what stands on them in words, and that none hides or repeats what tells tenants apart."""

from __future__ import annotations

import re

import pytest

from lattice.replay.measures import Ran, Replayed
from lattice.replay.plain import alike
from lattice.replay.plots import MOST_BARS, pictures

from .worlds import job

HOUR = 3600.0


def ran(tenant: str, start: float, nodes: tuple[int, ...], hours: float = 1.0, wait: float = 60.0) -> Ran:
    end = start + hours * HOUR
    return Ran(job(f"{tenant}-{start:g}-{nodes[0]}", start - wait, hours * HOUR, len(nodes), tenant=tenant), start, end, nodes)


def words(content: bytes) -> set[str]:
    """The texts of an SVG."""
    return set(re.findall(r"<(?:text|tspan)[^>]*>([^<]+)<", content.decode()))


def test_utilisation_is_shown_in_percent_of_the_nodes_and_what_waits_in_nodes() -> None:
    done = Replayed(alike(8), [ran("physics", 60.0, (0, 1)), ran("climate", HOUR, tuple(range(8)), wait=HOUR)])
    found = words(pictures(done, "svg")["utilisation.svg"])
    expected = {"Utilisation over time", "% of 8 nodes held", "nodes asked for", "all 8 nodes", "hours since the first submission"}
    assert expected <= found
    assert not [each for each in found if re.fullmatch(r"−\d+", each)]  # nothing below zero


def test_a_long_time_is_shown_in_days() -> None:
    done = Replayed(alike(4), [ran("physics", 60.0, (0, 1), hours=200.0)])
    found = pictures(done, "svg")
    assert all("days since the first submission" in words(found[name]) for name in ("utilisation.svg", "groups.svg"))


@pytest.mark.parametrize(("tenants", "others"), [(10, False), (11, True)])
def test_no_colour_stands_for_two_tenants_and_those_who_used_least_share_one(tenants: int, others: bool) -> None:
    done = Replayed(alike(64), [ran(f"t{at:02d}", 60.0, (at,), hours=50.0 - at) for at in range(tenants)])
    picture = pictures(done, "svg")["groups.svg"]
    named = {f"t{at:02d}" for at in range(min(tenants, 10))}
    assert {each for each in words(picture) if re.fullmatch(r"t\d\d|all other tenants", each)} == named | (
        {"all other tenants"} if others else set()
    )
    fills = set(re.findall(r"fill: (#[0-9a-f]{6})", picture.decode())) - {"#ffffff"}
    assert len(fills) == len(named) + others


def test_waits_stand_at_their_sizes_with_their_median() -> None:
    done = Replayed(alike(8), [ran("physics", 9 * HOUR, (at,), wait=at * HOUR) for at in range(8)] + [ran("physics", HOUR, (0, 1, 2, 3))])
    found = words(pictures(done, "svg")["waiting-by-size.svg"])
    assert {"Waiting by size", "nodes", "wait", "class 5", "median, by powers of 2", "1 h", "10 h", "1", "4"} <= found
    assert "8" not in found  # the axis ends where the jobs do


def test_of_very_many_jobs_the_share_of_each_group_is_shown() -> None:
    done = Replayed(alike(130), [ran("physics", 60.0 + at, (at % 130,)) for at in range(MOST_BARS + 1)])
    found = words(pictures(done, "svg")["groups.svg"])
    assert {"share of the group's nodes held", "g0", "g1", "g2"} <= found
