"""Whose word about an attempt counts in a recovery: one stolen key neither ends work of other nodes, nor gives it to anybody."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lattice.ledger.history import HistoryRow
from lattice.ledger.membership import Evidence, sift
from tests.build import uid

NODES = ("a", "b", "c", "d", "e")
LIAR = "z"
PATH = "physics/job-1"


def row(state: str, nodes: tuple[str, ...], *, code: int | None = None, **fields: Any) -> HistoryRow:
    given_fields: dict[str, Any] = {"namespace": "physics", "name": "job-1", "prepared": 10.0, "start": 20.0}
    return HistoryRow(uid(1), 1, state, nodes=nodes, code=code, end=30.0 if code is not None else 0.0, **given_fields | fields)


def sifted(members: Mapping[str, HistoryRow], **evidence: Any) -> tuple[Any, dict[str, str]]:
    told, foreign = sift(uid(1), 1, members, Evidence(path=PATH, **evidence))
    return told, {one.node: one.why for one in foreign}


lies = st.builds(
    row,
    st.sampled_from("pretufxlg"),
    st.sets(st.sampled_from(NODES)).map(lambda nodes: (*sorted(nodes), LIAR)),
    code=st.sampled_from([None, 0, 9]),
    start=st.sampled_from([0.0, 1.0]),
)


@given(st.integers(2, 5), st.data())
def test_of_what_honest_nodes_say_all_counts_whoever_is_away_or_cannot_read_his_journal(size: int, data: st.DataObject) -> None:
    nodes = NODES[:size]
    answered = data.draw(st.lists(st.sampled_from(nodes), min_size=1, unique=True))
    unreadable = data.draw(st.sampled_from([(), *((node,) for node in answered[1:])]))
    members = {node: row("e", () if node in unreadable else nodes, code=0) for node in answered}
    told, foreign = sifted(members, nodes=data.draw(st.sampled_from([frozenset(), frozenset(nodes)])), remembering=set(answered))
    assert (foreign, dict(told.members), told.nodes, told.contested) == ({}, members, nodes, False)


@given(st.integers(1, 5), lies, st.booleans())
def test_a_node_that_the_restored_state_does_not_name_has_no_word(size: int, lie: HistoryRow, told_by_others: bool) -> None:
    nodes = NODES[:size]
    honest = {node: row("r", nodes) for node in nodes} if told_by_others else {}
    told, foreign = sifted({**honest, LIAR: lie}, nodes=frozenset(nodes), remembering={*NODES, LIAR})
    assert set(foreign) == {LIAR}
    assert told is None if not told_by_others else (told.members, told.nodes) == (honest, nodes)


@given(st.integers(2, 5), st.sampled_from([("r", None), ("e", 7)]), lies)
def test_two_honest_nodes_outweigh_one_that_lies(size: int, state: tuple[str, int | None], lie: HistoryRow) -> None:
    nodes = NODES[:size]
    honest = {node: row(state[0], nodes, code=state[1]) for node in nodes}
    told, foreign = sifted({**honest, LIAR: lie}, remembering={*NODES, LIAR})
    assert (set(foreign), told.members, told.nodes, told.contested) == ({LIAR}, honest, nodes, False)


@given(lies)
def test_of_work_of_one_node_that_has_ended_nobody_knows_the_end_once_another_claims_it(lie: HistoryRow) -> None:
    told, _ = sifted({"a": row("e", ("a",), code=7), LIAR: lie}, remembering={*NODES, LIAR})
    if "a" in lie.nodes or (lie.start and lie.nodes != (LIAR,)):
        assert (set(told.members), told.nodes) == ({"a"}, ("a",)), "whom it names does not bear it out"
    elif lie.state in "prtu":
        assert (set(told.members), told.alive) == ({LIAR}, {LIAR}), "it is not placed again while a node may run it"
    else:
        reason, _, exit_ = told.outcome(())
        assert (told.contested, reason, exit_) == (True, "ExitUnknown", None)


def test_what_runs_is_believed_rather_than_what_has_ended() -> None:
    told, foreign = sifted({"a": row("r", ("a",)), LIAR: row("e", (LIAR,), code=0)})
    assert (told.nodes, told.alive, set(foreign)) == (("a",), {"a"}, {LIAR})
    assert "it ran on a" in foreign[LIAR]


def test_a_row_that_contradicts_itself_or_its_allocation_counts_nowhere() -> None:
    told, foreign = sifted({"b": row("e", ("a",), code=0), LIAR: row("e", (LIAR,), code=0, name="job-2")})
    assert told is None
    assert foreign == {"b": "by its own word it ran on a", LIAR: "it calls it physics/job-2, and it is physics/job-1"}


def test_who_claims_to_have_started_with_a_node_that_never_heard_of_it_is_not_borne_out() -> None:
    rows = {"a": row("e", ("a",), code=7), "b": row("e", ("b", "c"), code=0)}
    told, foreign = sifted(rows, remembering={"a", "b", "c"})
    assert (told.nodes, set(foreign)) == (("a",), {"b"})
    told, _ = sifted(rows, remembering={"a", "b"})
    assert told.contested, "c may have forgotten it"


def test_a_member_gives_the_attempt_no_node_that_the_others_do_not_name() -> None:
    told, foreign = sifted({"a": row("r", ("a", "b")), "b": row("r", ("a", "b", "c", "d"))}, nodes=frozenset(("a", "b")))
    assert (told.nodes, set(told.members), foreign) == (("a", "b"), {"a", "b"}, {})
