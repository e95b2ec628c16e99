"""The columns of what waits are those of the candidates that were given last, however they came about."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.scheduling.cluster.node_cache import NEVER
from lattice.scheduling.model.hardware import Need
from lattice.scheduling.model.work import Candidate
from lattice.scheduling.state.pending_queue import PendingQueue, opens

NEEDS = (Need(), Need(gpus=4), Need(only=5), Need(without=2))

CANDIDATES = st.builds(
    lambda number, user, need, minimum, submitted, back_off: Candidate(
        key=f"t/j{number}", uid=f"u{number}", tenant="ts"[user % 2], vcluster="v", preemption_class=5, submitted=float(submitted),
        minimum=minimum, maximum=minimum, need=NEEDS[need], user=f"user{user}", walltime=60.0, back_off_until=back_off,
    ),
    st.integers(0, 9), st.integers(0, 3), st.integers(0, 3), st.integers(1, 2), st.integers(0, 3), st.sampled_from((0.0, 7.0)),
)  # fmt: skip


def rows(pending_queue: PendingQueue) -> list[tuple[object, ...]]:
    columns = zip(pending_queue.candidates, pending_queue.people, pending_queue.opens, strict=True)
    return [(candidate.uid, candidate, pending_queue.persons[person], until) for candidate, person, until in columns]


@settings(deadline=None)
@given(st.lists(st.lists(CANDIDATES, max_size=6, unique_by=lambda one: one.uid), min_size=1, max_size=5))
def test_columns_kept_from_cycle_to_cycle_are_those_made_anew(queues: list[list[Candidate]]) -> None:
    kept = PendingQueue()
    for queue in queues:
        kept.replace(queue)
        anew = PendingQueue()
        anew.replace(list(reversed(queue)))
        assert rows(kept) == rows(anew)
        assert (kept.asked, kept.lists) == (anew.asked, anew.lists)
        assert [one.uid for one in kept.candidates] == [one.uid for one in sorted(queue, key=lambda one: (one.submitted, one.key))]
        assert kept.asked == {
            need: nodes for need in NEEDS if (nodes := sum(one.minimum for one in queue if one.need == need))
        }  # fmt: skip
        numbers = dict(zip(kept.shapes, kept.candidates, strict=True))
        for number, one in zip(kept.shapes, kept.candidates, strict=True):
            assert number < len(kept.families)
            assert (one.need, one.minimum, one.walltime) == (numbers[number].need, numbers[number].minimum, numbers[number].walltime)


def test_a_candidate_that_changes_is_looked_at_again() -> None:
    one = Candidate("t/a", "a", "t", "v", 5, 0.0, 1, 1, Need())
    pending_queue = PendingQueue()
    for changed in (one, replace(one, held=True), replace(one, minimum=2, maximum=2), replace(one, reservation="r"), one):
        pending_queue.replace([changed])
        assert pending_queue.candidates == [changed]
        assert pending_queue.opens == [opens(changed)]
        assert pending_queue.asked == {changed.need: changed.minimum}


def test_who_has_a_wish_that_no_time_fulfils_is_looked_at_in_every_cycle() -> None:
    one = Candidate("t/a", "a", "t", "v", 5, 0.0, 1, 1, Need())
    assert opens(one) == 0.0
    assert opens(replace(one, not_before=5.0, back_off_until=3.0)) == 5.0
    wishes = ({"held": True}, {"blocked": ("Why", "because")}, {"reservation": "r"}, {"vcluster_open": False}, {"vcluster_known": False})
    assert all(opens(replace(one, **wish)) == NEVER for wish in wishes)


def test_what_is_long_gone_is_forgotten() -> None:
    one = Candidate("t/a", "a", "t", "v", 5, 0.0, 1, 1, Need())
    pending_queue = PendingQueue()
    pending_queue.replace([replace(one, key=f"t/{number}", uid=f"u{number}", user=f"user{number}") for number in range(12_000)])
    pending_queue.replace([one])
    pending_queue.replace([replace(one, minimum=2, maximum=2)])
    assert (len(pending_queue.persons), len(pending_queue.families)) <= (2, 2)
    assert pending_queue.persons[pending_queue.people[0]] == ("t", "")
