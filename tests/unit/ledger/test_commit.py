"""The book keeps its invariants under any proposals, and a batch that is taken back leaves no trace."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.errors import Corrupt
from lattice.ledger.commit import Book, apply_all
from lattice.ledger.format import CAUSES, decode_shard, encode_shard
from lattice.ledger.proposals import (
    Accepted,
    Adopt,
    Appoint,
    Claim,
    Forget,
    Limits,
    Numbers,
    Pool,
    Proposal,
    ProposalRefused,
    Release,
    Renew,
    SensitivePool,
    Stop,
)
from lattice.ledger.verify import verify
from tests.build import claim, row, uid

NODES = 12
TENANTS = ("physics", "ml")
NAMES = {index: f"nid{index:03d}" for index in range(NODES)}


def book(max_nodes: int | None = None, max_allocations: int | None = None) -> Book:
    made = Book.empty("term", "commit")
    for tenant in TENANTS:
        made.apply(Limits(tenant, max_nodes, max_allocations))
    made.apply(Pool(NODES))
    return made


keys = st.tuples(st.integers(0, 4).map(uid), st.integers(1, 3))
node_sets = st.sets(st.integers(0, NODES - 1), min_size=1, max_size=5).map(lambda nodes: tuple(sorted(nodes)))
MUTEXES = ("AAAAAAAAAAA", "BBBBBBBBBB-", "CCCCCCCCCC_")
mutex_sets = st.sets(st.sampled_from(MUTEXES), max_size=2).map(lambda found: "+".join(sorted(found)))
proposals: st.SearchStrategy[Proposal] = st.one_of(
    st.builds(
        lambda key, nodes, tenant, user, sensitive, mutex: Claim(
            key[0], key[1], 1, user, tenant, "hpc", "B", nodes[0], nodes, sensitive, None, mutex
        ),
        keys,
        node_sets,
        st.sampled_from(TENANTS),
        st.sampled_from(("alice", "bob")),
        st.booleans(),
        mutex_sets,
    ),
    st.builds(Stop, keys, st.sampled_from(CAUSES)),
    st.builds(Release, keys, st.none() | node_sets),
    st.builds(Renew, keys, st.integers(1, 5)),
    st.builds(Appoint, keys, st.integers(0, NODES - 1)),
    st.builds(Limits, st.sampled_from(TENANTS), *(st.none() | st.integers(0, most) for most in (9, 4, 5, 2))),
    st.builds(SensitivePool, st.integers(0, 6)),
    st.builds(Forget, st.sampled_from(TENANTS)),
    st.builds(Pool, st.integers(0, NODES)),
    st.builds(Numbers, st.integers(1, 50)),
    st.builds(
        lambda key, nodes, mutex: Adopt(Claim(key[0], key[1], 1, "bob", "ml", "hpc", "U", nodes[0], nodes, False, None, mutex), "h"),
        keys,
        node_sets,
        mutex_sets,
    ),
)


def fingerprint(kept: Book) -> Any:
    return (
        kept.head,
        dict(kept.accounts),
        dict(kept.users),
        kept.sensitive,
        dict(kept.rows),
        dict(kept.holders),
        dict(kept.mutexes),
        {name: set(found) for name, found in kept.attempts.items()},
    )


@settings(max_examples=300, deadline=None)
@given(st.lists(proposals, max_size=40))
def test_any_proposals_leave_no_node_twice_and_no_limit_exceeded(asked: list[Proposal]) -> None:
    kept = book()
    used_before = dict.fromkeys(TENANTS, 0)
    for proposal in asked:
        verdict, _ = kept.apply(proposal)
        kept.validate()
        assert verify(kept.render(), NAMES) == []
        for tenant, account in kept.accounts.items():
            grew = account.used_nodes > used_before.get(tenant, 0)
            if isinstance(proposal, Claim) and grew and account.max_nodes is not None:
                assert account.used_nodes <= account.max_nodes
            used_before[tenant] = account.used_nodes
        assert isinstance(verdict, Accepted | ProposalRefused)


@settings(max_examples=300, deadline=None)
@given(st.lists(proposals, max_size=15), st.lists(proposals, min_size=1, max_size=15))
def test_a_batch_that_is_taken_back_leaves_no_trace(before: list[Proposal], batch: list[Proposal]) -> None:
    kept = book(6, 3)
    apply_all(kept, before)
    kept.changes.clear()
    as_it_was = fingerprint(kept)
    _, undo = apply_all(kept, batch)
    undo()
    assert fingerprint(kept) == as_it_was
    assert kept.changes == []
    kept.validate()


@settings(max_examples=200, deadline=None)
@given(st.lists(proposals, max_size=30))
def test_a_stored_ledger_reads_as_the_book_that_wrote_it(asked: list[Proposal]) -> None:
    kept = book()
    apply_all(kept, asked)
    assert fingerprint(Book.load(kept.render())) == fingerprint(kept)


@settings(max_examples=200, deadline=None)
@given(st.lists(proposals, max_size=20), st.data())
def test_a_proposal_that_was_accepted_changes_nothing_the_second_time(asked: list[Proposal], data: st.DataObject) -> None:
    kept = book()
    apply_all(kept, asked)
    again = data.draw(proposals)
    first, _ = kept.apply(again)
    if isinstance(first, Accepted) and not isinstance(again, Release):
        as_it_was = fingerprint(kept)
        second, _ = kept.apply(again)
        assert second == Accepted(changed=False)
        assert fingerprint(kept) == as_it_was


def test_a_node_that_is_held_is_refused_with_its_index() -> None:
    kept = book()
    kept.apply(claim(1, (0, 1)))
    verdict, _ = kept.apply(claim(2, (1, 2)))
    assert verdict == ProposalRefused("NodesTaken", "1 of 2 nodes are held already: indices 1")


def test_a_releasing_row_still_counts_against_the_quota() -> None:
    kept = book(max_nodes=2)
    kept.apply(claim(1, (0, 1)))
    kept.apply(Stop((uid(1), 1), "c"))
    verdict, _ = kept.apply(claim(2, (2,)))
    assert isinstance(verdict, ProposalRefused)
    assert verdict.message == 'tenant "physics" would exceed max_nodes quota (current: 2, requested: 1, limit: 2)'


def test_a_second_attempt_is_refused_while_the_first_is_held_and_taken_while_it_is_releasing() -> None:
    kept = book()
    kept.apply(claim(1, (0,)))
    assert isinstance(kept.apply(claim(1, (1,), attempt=2))[0], ProposalRefused)
    kept.apply(Stop((uid(1), 1), "l"))
    assert kept.apply(claim(1, (1,), attempt=2))[0] == Accepted()


def test_a_mutex_is_refused_to_a_second_row_until_the_first_has_left_and_nobody_else_is_kept() -> None:
    kept = book()
    with_mutex = {"mutex": MUTEXES[0]}
    assert kept.apply(msgspec.structs.replace(claim(1), **with_mutex))[0] == Accepted()
    second, other = msgspec.structs.replace(claim(2, (1,)), **with_mutex), msgspec.structs.replace(claim(3, (2,)), mutex=MUTEXES[1])
    again = msgspec.structs.replace(claim(1, (1,), attempt=2), **with_mutex)
    for cause in ("", "l"):
        if cause:
            kept.apply(Stop((uid(1), 1), cause))
        for refused in (second, again) if cause else (second,):
            verdict, _ = kept.apply(refused)
            assert isinstance(verdict, ProposalRefused)
            assert verdict.reason == "MutexHeld"
    assert kept.apply(other)[0] == Accepted()
    kept.apply(Release((uid(1), 1)))
    assert kept.apply(second)[0] == Accepted()
    adopted = msgspec.structs.replace(claim(4, (5,)), **with_mutex)
    assert kept.apply(Adopt(adopted, "h"))[0] == Accepted(), "what really runs is entered, without the mutex of another"
    assert kept.rows[uid(4), 1].mutex == ""
    kept.validate()
    twice = [encode_shard([msgspec.structs.replace(row(number, (number,)), **with_mutex) for number in (1, 2)]), *["2||"] * 63]
    assert any(
        "mutex AAAAAAAAAAA is held twice" in fault for fault in verify(msgspec.structs.replace(kept.render(), shards=tuple(twice)), NAMES)
    )


def test_a_held_row_is_not_freed_in_parts() -> None:
    kept = book()
    kept.apply(claim(1, (0, 1)))
    assert isinstance(kept.apply(Release((uid(1), 1), (0,)))[0], ProposalRefused)


def test_above_its_size_the_ledger_takes_no_claim_and_still_releases() -> None:
    kept = Book.empty("t", "c")
    kept.apply(Limits("physics", None, None))
    kept.apply(Pool(16384))
    number = 0
    wide = tuple(range(0, 16384, 2))
    kept.apply(claim(1, wide))
    kept.render()
    kept._texts[0] = "x" * 1_258_291
    verdict, _ = kept.apply(claim(2, (1,)))
    assert isinstance(verdict, ProposalRefused)
    assert verdict.reason == "LedgerFull"
    assert kept.apply(Release((uid(1), 1)))[0] == Accepted()
    assert number == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("3||", "format '3'", id="another format names both numbers"),
        pytest.param("1|a", "without rows", id="no rows part"),
        pytest.param("1|a|x y", "unreadable", id="short row"),
    ],
)
def test_a_shard_that_is_not_ours_is_corrupt(text: str, says: str) -> None:
    with pytest.raises(Corrupt, match=says):
        decode_shard(text)


def test_trailing_columns_of_a_row_are_ignored() -> None:
    text = encode_shard([row(1, (0, 1, 2, 7))])
    assert decode_shard(text + " gpu0-3 later") == decode_shard(text)


def test_a_row_of_one_node_takes_at_most_fifty_bytes() -> None:
    rows = [msgspec.structs.replace(row(number, (1600 + number,)), generation=2, walltime=7200) for number in range(100)]
    assert len(encode_shard(rows)) / 100 <= 50


def test_the_verifier_finds_what_the_committer_would_never_write() -> None:
    kept = book()
    kept.apply(claim(1, (0, 1)))
    kept.apply(claim(2, (2,)))
    status = kept.render()
    shards = [encode_shard([row(1, (0, 1)), row(2, (1,)), row(1, (3,), attempt=2), row(4, (11,), tenant="nobody")]), *["1||"] * 63]
    faults = verify(msgspec.structs.replace(status, shards=tuple(shards)), {**NAMES, 11: ""})
    told = "\n".join(faults)
    assert "node nid001 is held twice" in told
    assert "is held by two attempts" in told
    assert "tenant nobody holds 1 nodes and has no account" in told
    assert "index 11, which has no name" in told
    assert "usedNodes says 3, the rows say 4" in told


def test_a_ledger_keeps_the_format_that_it_was_found_in_until_every_agent_knows_the_next() -> None:
    book = Book.empty("t", "c")
    apply_all(book, [Limits("physics", None, None), Pool(4), msgspec.structs.replace(claim(1, (0, 1)), walltime=3600)])
    found = book.render()
    assert {text[0] for text in found.shards} == {"1"}
    book.write_format(2)
    assert {text[0] for text in book.render().shards} == {"2"}
    assert Book.load(book.render()).format == 2
    assert verify(book.render(), dict.fromkeys(range(4), "n")) == []
    book.validate()
    book.write_format(1)
    again = Book.load(book.render())
    assert (again.format, again.rows[uid(1), 1].walltime) == (1, 3600)
    assert book.render() == found


def test_a_changed_spec_keeps_the_admitted_walltime_unless_another_is_admitted() -> None:
    book = Book.empty("t", "c")
    apply_all(book, [Limits("physics", None, None), Pool(4), msgspec.structs.replace(claim(1, (0, 1)), walltime=3600)])
    apply_all(book, [Renew((uid(1), 1), 2)])
    assert book.rows[uid(1), 1].walltime == 3600
    apply_all(book, [Renew((uid(1), 1), 3, 7200)])
    assert (book.rows[uid(1), 1].generation, book.rows[uid(1), 1].walltime) == (3, 7200)
