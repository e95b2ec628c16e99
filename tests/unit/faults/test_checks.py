"""The checks of the fault runs see what they are there to see: a run that can find nothing proves nothing."""

from __future__ import annotations

import dataclasses
import os
import random
import re
import subprocess
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from lattice.ledger.commit import Book, apply_all
from lattice.ledger.proposals import Limits, Pool
from lattice.models.conditions import FINISHED
from lattice.views.allocation import Allocation, AllocationStatus, Attempt, Condition, Exit
from lattice.views.ledger import LedgerStatus
from lattice.views.meta import Metadata
from tests.build import allocation, claim, uid
from tests.faults import history, kills, verdict, witness
from tests.faults.headroom import Waits
from tests.faults.history import Revision
from tests.faults.load import Wish, wishes
from tests.faults.verdict import Case

NAMES = {index: f"nid{index:03d}" for index in range(8)}
WISH = Wish("w1", nodes=1, seconds=1.0, code=3, stubborn=False, lines=0)


# -- the witnesses ------------------------------------------------------------------------------------------------


def told(*lines: str) -> list[str]:
    return witness.faults([witness.parse(line) for line in lines])


def test_one_task_after_the_other_is_no_fault() -> None:
    assert told("a 1 n1 0 start 1.0", "a 1 n1 0 exit 3 2.0", "b 1 n1 0 start 2.5", "b 1 n1 0 exit 0 3.0") == []


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (("a 1 n1 0 start 1.0", "a 1 n1 0 start 2.0"), "twice"),
        (("a 1 n1 0 start 1.0", "b 1 n1 0 overlap"), "still lived"),
        (("a 1 n1 0 exit 0 1.0",), "never `start`"),
        (("a 1 n1 0 start 1.0", "a 2 n1 0 start 1.5", "a 1 n1 0 exit 0 2.0", "a 2 n1 0 exit 0 3.0"), "at once"),
    ],
    ids=["started twice", "lock held", "exit without start", "two at once"],
)
def test_a_doubled_or_overlapping_task_is_a_fault(lines: tuple[str, ...], fault: str) -> None:
    assert any(fault in found for found in told(*lines))


def test_a_line_that_no_witness_writes_is_refused() -> None:
    with pytest.raises(ValueError, match="no witness"):
        witness.parse("a 1 n1 0 exit 3")


def test_a_task_ends_after_its_seconds_or_as_soon_as_it_is_told(tmp_path: Path) -> None:
    script, directory = witness.install(tmp_path, os.getuid())
    end = witness.told(directory, "held")
    me = {**os.environ, "LATTICE_ALLOC_ID": "a", "LATTICE_ATTEMPT": "1", "LATTICE_NODENAME": "n1", "LATTICE_PROCID": "0"}
    by_itself = witness.command(script, directory, seconds=0.0, code=3, told=end).split()
    assert subprocess.run(by_itself, env=me, check=False).returncode == 3
    by_word = witness.command(script, directory, seconds=60.0, code=4, told=end).split()
    with subprocess.Popen(by_word, env=me) as task:
        with pytest.raises(subprocess.TimeoutExpired):
            task.wait(0.5)
        end.touch()
        assert task.wait(30) == 4
    assert [one.code for one in witness.read(directory) if one.word == "exit"] == [3, 4]


# -- the ledger's history ------------------------------------------------------------------------------------------------


def versions() -> list[LedgerStatus]:
    """A ledger that takes one claim after the other."""
    book, found = Book.empty("term", "commit"), []
    apply_all(book, [Limits("physics", None, None), Pool(len(NAMES))])
    for number in range(4):
        apply_all(book, [claim(number, (number,))])
        book.head = dataclasses.replace(book.head, seq=book.head.seq + 1, commit=f"commit-{number}")
        found.append(book.render())
    return found


def seen(statuses: list[LedgerStatus]) -> list[str]:
    return history.faults([Revision(number, status) for number, status in enumerate(statuses)], NAMES)


def test_a_history_without_gaps_is_sound() -> None:
    assert seen(versions()) == []


def test_a_version_that_is_missing_is_a_fault() -> None:
    one, _, three, four = versions()
    assert any("follows" in fault for fault in seen([one, three, four]))


def test_a_node_that_is_held_twice_in_one_version_only_is_a_fault() -> None:
    one, two, three, four = versions()
    doubled = [re.sub(" 1$", " 0", shard) for shard in two.shards]
    assert any("held twice" in fault for fault in seen([one, msgspec.structs.replace(two, shards=tuple(doubled)), three, four]))


def test_an_epoch_that_goes_back_or_a_term_without_its_epoch_is_a_fault() -> None:
    one, two, *rest = versions()
    assert seen([one, msgspec.structs.replace(two, epoch=0), *rest])
    assert seen([one, msgspec.structs.replace(two, term="another"), *rest])


def test_a_version_in_which_a_user_takes_more_than_his_limit_is_a_fault() -> None:
    one, two, *rest = versions()
    limited = msgspec.structs.replace(two.tenants["physics"], user_max_nodes=1)
    found = seen([one, msgspec.structs.replace(two, tenants={"physics": limited}), *rest])
    assert found == ["revision 1: user alice of tenant physics holds 2 nodes, the limit is 1"]


# -- work that fits ------------------------------------------------------------------------------------------------


def waiting(number: int, nodes: int = 1, user: str = "alice") -> Allocation:
    return allocation(number, spec={"user": user, "resources": {"nodes": nodes}})


def standing(*limits: int | None, held: int = 0) -> LedgerStatus:
    """A ledger of eight nodes with these limits, in which alice holds so many nodes by one allocation."""
    book = Book.empty("term", "commit")
    apply_all(book, [Limits("physics", *limits), Pool(len(NAMES)), *([claim(90, tuple(range(held)))] if held else [])])
    return book.render()


@pytest.mark.parametrize(
    ("status", "one", "fitting"),
    [
        pytest.param(standing(None, None), waiting(1, 8), True, id="all that there is"),
        pytest.param(standing(None, None, held=1), waiting(1, 8), False, id="no free nodes"),
        pytest.param(standing(3, None, held=2), waiting(1), True, id="the last node of the tenant"),
        pytest.param(standing(3, None, held=2), waiting(1, 2), False, id="above the tenant's nodes"),
        pytest.param(standing(None, 1, held=2), waiting(1), False, id="above the tenant's allocations"),
        pytest.param(standing(None, None, 3, held=2), waiting(1, 2), False, id="above the user's nodes"),
        pytest.param(standing(None, None, 3, held=2), waiting(1, 2, "bob"), True, id="another user"),
        pytest.param(standing(None, None, None, 1, held=2), waiting(1), False, id="above the user's allocations"),
        pytest.param(standing(None, None, held=1), waiting(90), False, id="placed already"),
    ],
)
def test_work_that_fits_and_waits_is_seen_and_other_work_is_not(status: LedgerStatus, one: Allocation, fitting: bool) -> None:
    seen_waits = Waits()
    for moment in (10.0, 11.5):
        seen_waits.look(moment, status, [one])
    assert (seen_waits.longest, seen_waits.who) == ((1.5, one.metadata.name) if fitting else (0.0, ""))


def test_the_wait_begins_anew_when_work_did_not_fit_in_between() -> None:
    seen_waits, full, free = Waits(), standing(1, None, held=1), standing(1, None)
    for moment, status in ((0.0, free), (1.0, free), (1.5, full), (2.0, free), (2.5, free)):
        seen_waits.look(moment, status, [waiting(1)])
    assert seen_waits.longest == 1.0


def test_who_seems_to_wait_long_is_asked_and_what_the_onlooker_has_not_seen_yet_is_no_wait() -> None:
    seen_waits, status = Waits(), standing(None, None)
    for moment in (0.0, 0.4, 1.5):
        seen_waits.look(moment, status, [waiting(1)], lambda _one: False)
    assert seen_waits.longest == 0.4
    for moment in (2.0, 2.4, 3.5):
        seen_waits.look(moment, status, [waiting(1)], lambda _one: True)
    assert seen_waits.longest == 1.5


# -- the ends ------------------------------------------------------------------------------------------------


def ended(reason: str, code: int | None, *, attempts: tuple[Attempt, ...] = ()) -> Allocation:
    finished = Condition(type=FINISHED, status="True", reason=reason)
    phase = {"Completed": "Completed", "Cancelled": "Cancelled"}.get(reason, "Failed")
    settled = Condition(type="Ready" if phase == "Completed" else "Stalled", status="True", reason=reason)
    status = AllocationStatus(
        phase=phase, conditions=(finished, settled), attempt=1 + len(attempts), attempts=attempts,
        exit=Exit(code=code, node="n1") if code is not None else None,
    )  # fmt: skip
    return Allocation(metadata=Metadata(name="w1", namespace="faults", uid=uid(1)), status=status)


def case(allocation: Allocation | None, **changes: object) -> Case:
    return dataclasses.replace(Case(WISH, allocation, False, {(uid(1), 1, "n1", 0): 3}, frozenset()), **changes)  # type: ignore[arg-type]


def test_the_end_that_was_wished_is_right() -> None:
    assert verdict.faults(case(ended("TaskFailed", 3))) == []


def test_another_end_is_a_fault() -> None:
    assert verdict.faults(case(None))
    assert verdict.faults(case(ended("TaskFailed", 7)))
    assert verdict.faults(case(ended("Completed", 0)))
    assert verdict.faults(case(ended("ExitUnknown", None)))
    assert verdict.faults(case(ended("Cancelled", None)))


def test_an_exit_may_be_unknown_only_where_the_shim_was_killed() -> None:
    assert verdict.faults(case(ended("ExitUnknown", None), shims=frozenset({(uid(1), 1)}))) == []
    assert verdict.faults(case(ended("ExitUnknown", None), shims=frozenset({(uid(2), 1)})))


def test_where_the_shim_stood_still_past_the_grace_period_an_exit_may_be_unknown() -> None:
    stood = frozenset({(uid(1), 1)})
    assert verdict.faults(case(ended("ExitUnknown", None), paused=stood))
    assert verdict.faults(case(ended("ExitUnknown", None), paused=stood, cancelled=True)) == []


def test_an_exit_that_a_task_told_and_no_attempt_shows_is_lost() -> None:
    again = ended("TaskFailed", 3, attempts=(Attempt(attempt=1, reason="NodeLost"),))
    assert any("no exit" in fault for fault in verdict.faults(case(again)))


def test_a_record_that_a_node_lost_is_a_fault(tmp_path: Path) -> None:
    assert verdict.lost_records({(uid(1), 1, "n1", 0): 3}, [], {"n1": tmp_path})
    assert verdict.lost_records({(uid(1), 1, "n1", 0): 3}, [(uid(1), 1)], {"n1": tmp_path}) == []


# -- the seed ------------------------------------------------------------------------------------------------


def test_a_seed_gives_the_same_kills_and_the_same_work_again() -> None:
    assert kills.deck(random.Random(5), 50) == kills.deck(random.Random(5), 50)
    first, second = wishes(random.Random(5), 4.0), wishes(random.Random(5), 4.0)
    assert [first() for _ in range(50)] == [second() for _ in range(50)]


def test_every_kind_of_fault_is_drawn_as_often_as_any_other() -> None:
    counted = Counter((plan.target, plan.how) for plan in kills.deck(random.Random(1), 300))
    assert set(counted) == set(kills.KINDS)
    assert min(counted.values()) >= 10
    assert max(counted.values()) - min(counted.values()) <= 1
