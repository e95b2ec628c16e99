"""Hard limits of tenants, users and the sensitive pool: kept at every claim, full use of them, and no trace of what is taken back."""

from __future__ import annotations

import msgspec
import pytest
from annotated_types import MaxLen
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lattice.ledger.commit import MOST_TENANTS, Book, apply_all
from lattice.ledger.format import Row, decode_shard, encode_shard
from lattice.ledger.proposals import Accepted, Claim, Forget, Limits, Pool, Proposal, ProposalRefused, Release, SensitivePool, Stop
from lattice.ledger.verify import verify, verify_step
from lattice.models.ledger import LedgerStatus as LedgerModel
from lattice.views.ledger import LedgerStatus
from tests.build import claim, uid

NODES = 16
TENANTS, USERS = ("physics", "ml"), ("alice", "bob", "eve")
NAMES = {index: f"nid{index:03d}" for index in range(NODES)}
limit = st.none() | st.integers(0, 8)
works = st.integers(0, 9)


class Limited(RuleBasedStateMachine):
    """A book, and beside it a plain list of who holds what and the limits in force: both must agree at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.book = Book.empty("term", "commit")
        self.book.apply(Pool(NODES))
        self.limits: dict[str, Limits] = {}
        self.pool = 0
        self.rows: dict[int, Claim] = {}

    @initialize()
    def agree(self) -> None:
        for tenant in TENANTS:
            self.limit(tenant, None, None, 4, 2)

    @rule(tenant=st.sampled_from(TENANTS), nodes=limit, rows=limit, user_nodes=limit, user_rows=limit)
    def limit(self, tenant: str, nodes: int | None, rows: int | None, user_nodes: int | None, user_rows: int | None) -> None:
        self.limits[tenant] = Limits(tenant, nodes, rows, user_nodes, user_rows)
        self.book.apply(self.limits[tenant])

    @rule(size=st.integers(0, 8))
    def set_aside(self, size: int) -> None:
        self.pool = size
        self.book.apply(SensitivePool(size))

    @rule(
        number=works, tenant=st.sampled_from(TENANTS), user=st.sampled_from(USERS), count=st.integers(1, 5), sensitive=st.booleans(),
        keep=st.booleans(),
    )  # fmt: skip
    def start(self, number: int, tenant: str, user: str, count: int, *, sensitive: bool, keep: bool) -> None:
        """Exactly what fits is accepted; what is taken back is as if it had never been."""
        free = [node for node in range(NODES) if node not in self.book.holders]
        if number in self.rows or len(free) < count:
            return
        asked = Claim(uid(number), 1, 1, user, tenant, "hpc", "B", free[0], tuple(free[:count]), sensitive)
        before = self.book.render()
        verdict, undo = self.book.apply(asked)
        assert isinstance(verdict, Accepted) == self.fits(asked), verdict
        if isinstance(verdict, ProposalRefused):
            assert verdict.reason == "WaitingForQuotaHeadroom"
            assert "(current: " in verdict.message
        elif keep:
            self.rows[number] = asked
        else:
            undo()
            assert self.book.render() == before

    def fits(self, asked: Claim) -> bool:
        """By counting."""
        limits, wanted = self.limits[asked.tenant], len(asked.nodes)
        mine = [row for row in self.rows.values() if row.tenant == asked.tenant]
        own = [row for row in mine if row.user == asked.user]
        within = [
            (sum(len(row.nodes) for row in mine) + wanted, limits.max_nodes),
            (len(mine) + 1, limits.max_allocations),
            (sum(len(row.nodes) for row in own) + wanted, limits.user_max_nodes),
            (len(own) + 1, limits.user_max_allocations),
        ]
        if asked.sensitive:
            within.append((sum(len(row.nodes) for row in self.rows.values() if row.sensitive) + wanted, self.pool))
        return all(most is None or used <= most for used, most in within)

    @rule(number=works)
    def stop(self, number: int) -> None:
        """Its nodes stay taken, and count."""
        if number in self.rows:
            self.book.apply(Stop((uid(number), 1), "c"))

    @rule(number=works)
    def release(self, number: int) -> None:
        if self.rows.pop(number, None) is not None:
            assert self.book.apply(Release((uid(number), 1)))[0] == Accepted()

    @rule(number=works)
    def release_a_part(self, number: int) -> None:
        """A node of a releasing row comes free: the rest still counts."""
        row = self.rows.get(number)
        if row is not None and len(row.nodes) > 1:
            self.stop(number)
            self.book.apply(Release((uid(number), 1), row.nodes[:1]))
            self.rows[number] = msgspec.structs.replace(row, nodes=row.nodes[1:])

    @invariant()
    def agrees_with_its_text(self) -> None:
        self.book.validate()
        assert verify(self.book.render(), NAMES) == []
        for tenant in TENANTS:
            for user in USERS:
                own = [row for row in self.rows.values() if (row.tenant, row.user) == (tenant, user)]
                assert self.book.used_by(tenant, user) == (sum(len(row.nodes) for row in own), len(own))


TestLimited = Limited.TestCase
TestLimited.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def agreed(*limits: Proposal) -> Book:
    made = Book.empty("term", "commit")
    apply_all(made, [Pool(NODES), *limits])
    return made


@pytest.mark.parametrize(
    ("limits", "held", "asked", "sentence"),
    [
        pytest.param(
            Limits("physics", 200, None, 3), claim(1, (0, 1)), claim(2, (2, 3)),
            'user "alice" of tenant "physics" would exceed max_nodes quota (current: 2, requested: 2, limit: 3)', id="nodes of a user",
        ),
        pytest.param(
            Limits("physics", None, None, None, 1), claim(1, (0, 1)), claim(2, (2,)),
            'user "alice" of tenant "physics" would exceed max_running quota (current: 1, requested: 1, limit: 1)', id="work of a user",
        ),
        pytest.param(
            Limits("physics", 2, None, 1), claim(1, (0,), user="bob"), claim(2, (2, 3)),
            'tenant "physics" would exceed max_nodes quota (current: 1, requested: 2, limit: 2)', id="the tenant's limit comes first",
        ),
    ],
)  # fmt: skip
def test_the_sentence_names_who_exceeds_which_limit(limits: Limits, held: Claim, asked: Claim, sentence: str) -> None:
    made = agreed(limits)
    assert made.apply(held)[0] == Accepted()
    assert made.apply(asked)[0] == ProposalRefused("WaitingForQuotaHeadroom", sentence)


def test_another_user_of_the_tenant_has_a_limit_of_his_own() -> None:
    made = agreed(Limits("physics", None, None, 2, 1))
    assert made.apply(claim(1, (0, 1)))[0] == Accepted()
    assert made.apply(claim(2, (2, 3), user="bob"))[0] == Accepted()
    assert isinstance(made.apply(claim(3, (4,), user="bob"))[0], ProposalRefused)


def test_sensitive_work_holds_no_more_nodes_than_its_pool_has_and_other_work_any() -> None:
    made = agreed(Limits("physics", None, None), SensitivePool(2))
    secret = msgspec.structs.replace(claim(1, (0, 1)), sensitive=True)
    assert made.apply(secret)[0] == Accepted()
    more = msgspec.structs.replace(claim(2, (2,)), sensitive=True)
    sentence = "sensitive work would exceed sensitive_pool_size quota (current: 2, requested: 1, limit: 2)"
    assert made.apply(more)[0] == ProposalRefused("WaitingForQuotaHeadroom", sentence)
    assert made.apply(claim(3, (3, 4, 5)))[0] == Accepted()
    assert made.sensitive.used == 2
    made.apply(Release(secret.key))
    assert made.apply(more)[0] == Accepted()


def test_a_pool_that_shrinks_below_its_use_ends_nothing_and_takes_nothing_more() -> None:
    made = agreed(Limits("physics", None, None), SensitivePool(3))
    made.apply(msgspec.structs.replace(claim(1, (0, 1)), sensitive=True))
    assert made.apply(SensitivePool(1))[0] == Accepted()
    assert made.rows[uid(1), 1].held
    assert isinstance(made.apply(msgspec.structs.replace(claim(2, (2,)), sensitive=True))[0], ProposalRefused)


def test_the_mark_of_sensitive_work_outlives_the_text_and_any_other_trailing_column_is_ignored() -> None:
    plain = Row(uid(1), 1, 1, "alice", "physics", "hpc", "B", "h", 0, (0, 1))
    secret = msgspec.structs.replace(plain, sensitive=True)
    assert decode_shard(encode_shard([secret])) == [secret]
    assert decode_shard(encode_shard([plain]) + " later") == [plain]
    assert decode_shard(encode_shard([secret]) + " later") == [secret]


def stored(*proposals: Proposal) -> LedgerStatus:
    return agreed(*proposals).render()


LIMIT = Limits("physics", 4, 2, 3, 1)
STEPS: dict[str, tuple[list[Proposal], list[Proposal], list[str]]] = {
    "nothing above a limit": ([LIMIT], [LIMIT, claim(1, (0, 1, 2)), claim(2, (3,), user="bob")], []),
    "a limit falls below what is held": ([claim(1, (0, 1))], [claim(1, (0, 1)), Limits("physics", 0, 0, 0, 0)], []),
    "use shrinks towards the limit": ([claim(1, (0, 1)), claim(2, (2,))], [claim(1, (0, 1)), Limits("physics", 1, 0, 1, 0)], []),
    "a tenant takes more nodes": (
        [claim(1, (0, 1))], [claim(1, (0, 1)), claim(2, (2,), user="bob"), Limits("physics", 2, None)],
        ["tenant physics holds 3 nodes, the limit is 2"],
    ),
    "a tenant takes one more allocation": (
        [], [claim(1, (0, 1)), Limits("physics", None, 0)], ["tenant physics holds 1 allocations, the limit is 0"],
    ),
    "a user takes more nodes": (
        [claim(1, (0,))], [claim(1, (0,)), claim(2, (1,)), Limits("physics", None, None, 1)],
        ["user alice of tenant physics holds 2 nodes, the limit is 1"],
    ),
    "a user takes one more allocation": (
        [claim(1, (0,))], [claim(1, (0,)), claim(2, (1,)), Limits("physics", None, None, None, 1)],
        ["user alice of tenant physics holds 2 allocations, the limit is 1"],
    ),
    "another takes them": (
        [claim(1, (0, 1))], [claim(2, (0, 1), user="bob"), Limits("physics", 2, 1, 1)],
        ["user bob of tenant physics holds 2 nodes, the limit is 1"],
    ),
    "sensitive work takes more": (
        [SensitivePool(9)], [SensitivePool(9), msgspec.structs.replace(claim(1, (0, 1)), sensitive=True), SensitivePool(1)],
        ["sensitive work holds 2 nodes, the pool has 1"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", STEPS)
def test_two_versions_that_follow_each_other_tell_whether_a_limit_was_kept(case: str) -> None:
    before, after, faults = STEPS[case]
    free = Limits("physics", None, None)
    assert verify_step(stored(free, *before), stored(free, *after)) == faults


def test_the_ledger_keeps_as_many_accounts_as_its_schema_and_changes_those_that_it_has() -> None:
    fields = LedgerModel.model_fields["tenants"]
    assert [rule.max_length for rule in fields.metadata if isinstance(rule, MaxLen)] == [MOST_TENANTS]
    book = Book.empty("term", "commit")
    verdicts, _ = apply_all(book, [Limits(f"t{number}", 1, None) for number in range(MOST_TENANTS + 1)])
    assert verdicts[:-1] == [Accepted()] * MOST_TENANTS
    assert isinstance(verdicts[-1], ProposalRefused)
    assert (verdicts[-1].reason, f'tenant "t{MOST_TENANTS}" gets none' in verdicts[-1].message) == ("LedgerFull", True)
    assert book.apply(Limits("t0", 2, None))[0] == Accepted()
    book.apply(Forget("t0"))
    assert book.apply(Limits("late", 1, None))[0] == Accepted()
    book.validate()


def test_a_recovery_enters_what_runs_whatever_the_limits() -> None:
    over = stored(Limits("physics", None, None), claim(1, (0, 1)), Limits("physics", 1, None))
    before = stored(Limits("physics", 1, None))
    assert verify_step(before, over) != []
    assert verify_step(before, msgspec.structs.replace(over, recoveries=1)) == []
