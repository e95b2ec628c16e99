"""What an Allocation may depend on: each bad edge is refused with its field, and what is unknown or never ends is said."""

from __future__ import annotations

import pytest

from lattice.admission.dependencies import check_dependencies
from lattice.admission.facts import Facts, Requester
from lattice.admission.submission import Submission, read_submission
from lattice.admission.verdicts import Caution, Finding, Refused
from lattice.workflow.references import WorkReference

KNOWN = {WorkReference(number=12): "Bounded", WorkReference(0, "physics", "web"): "Unbounded", WorkReference(0, "physics", "gone"): ""}


def found(*edges: dict[str, str], known: dict[WorkReference, str] | None = KNOWN) -> list[Finding]:
    body = {"metadata": {"name": "me", "namespace": "physics"}, "spec": {"tenant": "physics", "dependsOn": list(edges)}}
    asked = read_submission(body)
    assert isinstance(asked, Submission)
    return list(check_dependencies(asked, Facts(Requester("alice"), predecessors=known)))


@pytest.mark.parametrize(
    ("edge", "field", "words"),
    [
        ({"ref": "me"}, "ref", "this work itself"),
        ({"ref": "physics/me"}, "ref", "this work itself"),
        ({"ref": "x"}, "ref", 'no work of tenant "physics" has the name "physics/x"'),
        ({"ref": "13"}, "ref", "has the number 13"),
        ({"ref": "other/web"}, "ref", 'the name "other/web"'),
        ({"ref": "12_3"}, "ref", "not served"),
        ({"ref": "Not A Name"}, "ref", "names no work"),
        ({"ref": "12", "condition": "Mutex"}, "ref", "names no mutex"),
        ({"ref": "other/web", "condition": "Mutex"}, "ref", "names no mutex"),
        ({"ref": "gpu", "condition": "Mutex", "delay": "5m"}, "delay", "a mutex has no delay"),
        ({"ref": "12", "condition": "Corresponding"}, "condition", "task groups"),
        ({"ref": "12", "condition": "Perhaps"}, "condition", "no such condition"),
        ({"ref": "12", "delay": "soon"}, "delay", "soon"),
        ({"ref": "12", "delay": "367d"}, "delay", "limit: 366d"),
    ],
)
def test_a_bad_edge_is_refused_with_its_field(edge: dict[str, str], field: str, words: str) -> None:
    (refused,) = found({"ref": "12"}, edge)
    assert isinstance(refused, Refused)
    assert refused.field == f"spec.dependsOn[1].{field}"
    assert words in refused.message
    assert refused.message.startswith(f"spec.dependsOn[1].{field}")


def test_an_edge_that_comes_twice_is_refused_with_both_places() -> None:
    (refused,) = found({"ref": "12"}, {"ref": "web", "condition": "Any"}, {"ref": "12"}, {"ref": "12"})
    assert isinstance(refused, Refused)
    assert (refused.field, "spec.dependsOn[2] says what spec.dependsOn[0] says" in refused.message) == ("spec.dependsOn[2]", True)


def test_more_edges_than_a_thousand_are_refused() -> None:
    (twice,) = found(*[{"ref": "12"}] * 1000)
    assert isinstance(twice, Refused)
    assert "limit" not in twice.message
    (refused,) = found(*[{"ref": "12"}] * 1001)
    assert isinstance(refused, Refused)
    assert "1001 entries (limit: 1000)" in refused.message


def test_success_of_a_service_is_warned_of_and_work_that_is_gone_counts() -> None:
    (caution,) = found({"ref": "web"}, {"ref": "web", "condition": "Started"}, {"ref": "gone"})
    assert isinstance(caution, Caution)


def test_without_a_server_nothing_is_unknown() -> None:
    assert found({"ref": "x"}, known=None) == []
