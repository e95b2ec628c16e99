"""Of each user, tenant and vcluster the oldest may start, as many as may wait."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lattice.scheduling.state.backlog import Backlog, Place, Scope, scopes_of, sentence

LIMITS = {Scope(tenant="physics", user="alice"): 2, Scope(tenant="physics"): 3, Scope("hpc"): 4}
ENTRY = st.tuples(
    st.integers(0, 12), st.sampled_from(["alice", "bob"]), st.sampled_from(["physics", "chem"]), st.sampled_from(["hpc", "ml"])
)


def created(number: int) -> str:
    return f"2027-01-15T08:00:{number // 2:02d}Z"


@given(st.lists(st.tuples(st.booleans(), ENTRY), max_size=40))
def test_exactly_the_oldest_of_every_scope_may_start_and_every_change_of_that_is_told(
    events: list[tuple[bool, tuple[int, str, str, str]]],
) -> None:
    backlog, waiting = Backlog(LIMITS.get), dict[str, tuple[str, tuple[Scope, ...]]]()

    def beyond() -> set[str]:
        return {uid for uid in waiting if backlog.beyond(uid) is not None}

    for comes, (number, user, tenant, vcluster) in events:
        uid, before = f"u{number}", beyond()
        if comes:
            told = backlog.enter(Place(created(number), uid, uid), scopes_of(tenant, user, vcluster))
            waiting.setdefault(uid, (created(number), scopes_of(tenant, user, vcluster)))
        else:
            told = backlog.leave(uid)
            waiting.pop(uid, None)
        backlog.validate()
        expected = set[str]()
        for scope, limit in LIMITS.items():
            there = sorted((when, one) for one, (when, scopes) in waiting.items() if scope in scopes)
            expected |= {one for _, one in there[limit:]}
        assert beyond() == expected
        assert (before ^ beyond()) - {uid} <= set(told)


def test_a_sentence_names_who_which_limit_and_what_happens_next() -> None:
    mine, whole = scopes_of("physics", "alice", "hpc")[0], Scope("hpc")
    assert sentence(mine, 3) == (
        'waiting for quota headroom: user "alice" of tenant "physics" has more allocations waiting than quota.perUser.maxPending allows '
        "(limit: 3): only the 3 that were submitted first may start, and this one once it is among them"
    )
    assert 'all its work has more allocations waiting than limits.maxPending of vCluster "hpc" allows (limit: 1): only the one' in sentence(
        whole, 1
    )
    assert sentence(mine, 0).endswith("it is paused: nothing that waits starts until the limit is raised")
    assert 'tenant "physics" has more allocations waiting than limits.maxPendingPerTenant of vCluster "hpc"' in sentence(
        Scope("hpc", "physics"), 9
    )
