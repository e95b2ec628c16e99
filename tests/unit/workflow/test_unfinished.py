"""What of a DAG is submitted again: all that did not complete, with the edges that are still open."""

from __future__ import annotations

from typing import Any

import pytest

from lattice.views.dag import MemberState
from lattice.workflow.unfinished import unfinished


def member(name: str, *edges: tuple[str, str], **more: Any) -> dict[str, Any]:
    waits = [{"ref": ref, "condition": condition} for ref, condition in edges]
    return {"name": name, "spec": {"entrypoint": "true"}, **({"dependsOn": waits} if waits else {}), **more}


def again(members: list[dict[str, Any]], **phases: str) -> dict[str, list[tuple[str, str]]]:
    states = {name: MemberState(name=name, phase=phase) for name, phase in phases.items()}
    found = unfinished(members, states)
    return {one["name"]: [(edge["ref"], edge["condition"]) for edge in one.get("dependsOn", ())] for one in found}


PIPELINE = [
    member("prep"),
    member("train", ("prep", "Success")),
    member("eval", ("train", "Success")),
    member("notify", ("train", "Failure")),
]


def test_what_failed_and_what_waited_for_it_runs_again_and_what_completed_does_not() -> None:
    made = again(PIPELINE, prep="Completed", train="Failed", eval="Cancelled", notify="Completed")
    assert made == {"train": [], "eval": [("train", "Success")]}


def test_a_handler_that_did_not_complete_runs_again_with_what_it_handles() -> None:
    made = again(PIPELINE, prep="Completed", train="Failed", eval="Cancelled", notify="Failed")
    assert made == {"train": [], "eval": [("train", "Success")], "notify": [("train", "Failure")]}


def test_what_waits_for_a_failure_of_what_completed_is_left_out_with_all_behind_it() -> None:
    members = [*PIPELINE, member("after", ("notify", "Success")), member("clean", ("notify", "Any"))]
    made = again(
        members, prep="Completed", train="Completed", eval="Failed", notify="Cancelled", after="Cancelled", clean="Failed"
    )  # fmt: skip
    assert made == {"eval": [], "clean": []}


@pytest.mark.parametrize(
    ("edges", "left"),
    [
        ([("done", "Success"), ("bad", "Success")], []),
        ([("done", "Failure"), ("bad", "Success")], [("bad", "Success")]),
        ([("done", "Failure")], None),
    ],
)
def test_with_any_the_first_answer_that_is_known_releases(edges: list[tuple[str, str]], left: list[tuple[str, str]] | None) -> None:
    members = [member("done"), member("bad"), member("last", *edges, dependsOnMode="Any")]
    made = again(members, done="Completed", bad="Failed", last="Cancelled")
    assert made.get("last") == left


def test_nothing_is_left_of_what_completed() -> None:
    assert again(PIPELINE, prep="Completed", train="Completed", eval="Completed", notify="Cancelled") == {}
