"""What `lattice why` and `lattice status` say of the work that an allocation waits for."""

from __future__ import annotations

from lattice.cli.render.allocations import MOST_EDGES_SHOWN, edge_lines
from lattice.views.allocation import Edge
from tests.build import allocation


def test_open_edges_come_first_with_the_state_of_their_work() -> None:
    edges = [
        {"ref": "a", "condition": "Success"},
        {"ref": "12", "condition": "Started", "delay": "5m"},
        {"ref": "b", "condition": "Failure"},
    ]
    one = allocation(
        1,
        spec={"dependsOn": edges},
        status_edges=(Edge(index=0, uid="u", answer="M", due="2026-01-01T00:05:00Z"), Edge(index=2, answer="N")),
    )
    assert edge_lines(one, {1: "12 db is Pending"}) == [
        "Started of 12: open + 5m, 12 db is Pending",
        "Success of a: met, its delay until 2026-01-01T00:05:00Z",
        "Failure of b: never met, as nothing failed",
    ]


def test_of_many_edges_the_first_are_shown() -> None:
    one = allocation(1, spec={"dependsOn": [{"ref": f"w{place}", "condition": "Any"} for place in range(1000)]})
    lines = edge_lines(one)
    assert (len(lines), lines[-1]) == (MOST_EDGES_SHOWN + 1, "and 980 more")
    assert edge_lines(allocation(1)) == []
