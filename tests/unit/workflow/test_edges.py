"""What one edge answers, as a table; and how references read."""

from __future__ import annotations

import pytest

from lattice.errors import Rejected
from lattice.views.allocation import Dependency, Edge
from lattice.workflow.edges import Predecessor, answered, predecessor_of
from lattice.workflow.references import WorkReference, parse_reference
from tests.build import allocation, condition

ENDED = 1_800_000_000.0


@pytest.mark.parametrize(
    ("asked", "answers"),
    [
        ("Success", {"": "", "Completed": "M", "Failed": "F", "Cancelled": "F"}),
        ("Failure", {"": "", "Completed": "N", "Failed": "M", "Cancelled": "F"}),
        ("Any", {"": "", "Completed": "M", "Failed": "M", "Cancelled": "M"}),
        ("Started", {"": "", "Completed": "M", "Failed": "M", "Cancelled": "M"}),
    ],
)
def test_each_end_answers_each_condition(asked: str, answers: dict[str, str]) -> None:
    edge = Edge(index=3, uid="u")
    for state, letter in answers.items():
        before = Predecessor("u", state, ended=ENDED if state else 0.0)
        assert answered(edge, Dependency(ref="1", condition=asked), before) == Edge(index=3, uid="u", answer=letter)


def test_the_first_process_of_any_attempt_meets_started() -> None:
    asked = Dependency(ref="1", condition="Started", delay="1m")
    pending = allocation(1, condition("Started"), status_start_time="2026-01-01T00:00:00Z", status_attempt=1)
    assert answered(Edge(index=0, uid="u"), asked, predecessor_of(pending)).due == "2026-01-01T00:01:00Z"


def test_an_answer_never_changes() -> None:
    edge = Edge(index=0, uid="u", answer="M")
    assert answered(edge, Dependency(ref="1"), Predecessor("u", "Failed", ended=ENDED)) is edge


def test_a_delay_that_no_clock_could_show_counts_as_a_year() -> None:
    asked = Dependency(ref="1", condition="Any", delay="99999999999999d")
    due = answered(Edge(index=0, uid="u"), asked, Predecessor("u", "Failed", ended=ENDED)).due
    assert due is not None
    assert due.startswith("2028-01-1")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("12", WorkReference(number=12)),
        ("prep", WorkReference(0, "home", "prep")),
        ("a.b-c", WorkReference(0, "home", "a.b-c")),
        ("lab/prep", WorkReference(0, "lab", "prep")),
        ("lab/12", WorkReference(0, "lab", "12")),
    ],
)
def test_references_are_numbers_or_names(text: str, found: WorkReference) -> None:
    assert parse_reference(text, "home") == found


@pytest.mark.parametrize("text", ["", "A", "a b", "a/b/c", "-x", "x-", "12_7", "0", "9" * 13, "a\n", "/x", "x/"])
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(Rejected):
        parse_reference(text, "home")
