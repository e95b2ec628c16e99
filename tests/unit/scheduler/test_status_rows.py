"""Rows of `status` from the scheduler's cache: the API server's rows, once encoded a version, and none of a cache of unknown age."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.cli.render.status_table import status_table
from lattice.errors import Rejected, Retry
from lattice.scheduling.queries.row_shapes import StatusDetail, StatusRow
from lattice.scheduling.queries.status_rows import Selection, status_detail, status_row
from lattice.units import format_time
from lattice.views.allocation import Allocation, AllocationSpec, AllocationStatus, Condition, Exit, ExpectedStart, Lifecycle
from lattice.views.meta import Metadata
from lattice_controllers.scheduler import status_rows
from lattice_controllers.scheduler.status_rows import StatusCache
from tests.unit.scheduler.doubles import AllocationsHeld

NOW = 1_790_000_000.0
EVERYTHING = Selection()
TIMES = st.one_of(st.none(), st.floats(NOW - 10_000, NOW + 10_000).map(lambda at: format_time(at, micro=True)))
WORDS = st.text(st.characters(codec="utf-8"), max_size=12)
CONDITIONS = st.builds(
    Condition,
    type=st.sampled_from(["Scheduled", "Ready", "Finished", "Started"]),
    status=st.sampled_from(["True", "False"]),
    reason=st.sampled_from(["WaitingForNodes", "Held", "Ending", "Unkillable", "TaskFailed", "NeverFits"]),
    message=WORDS,
    last_transition_time=TIMES.map(lambda at: at or ""),
)
STATUSES = st.builds(
    AllocationStatus,
    number=st.one_of(st.none(), st.integers(0, 99_999)),
    phase=st.sampled_from(["", "Pending", "Staging", "Running", "Completed", "Failed", "Cancelled"]),
    conditions=st.lists(CONDITIONS, max_size=4, unique_by=lambda one: one.type).map(tuple),
    nodes=WORDS,
    node_count=st.integers(0, 9),
    submit_time=TIMES,
    start_time=TIMES,
    end_time=TIMES,
    kill_time=TIMES,
    expected_start=st.one_of(st.none(), st.builds(ExpectedStart, p50=TIMES, p90=TIMES, reason=WORDS)),
    exit=st.one_of(st.none(), st.builds(Exit, code=st.one_of(st.none(), st.integers(0, 255)))),
    attempt=st.integers(0, 3),
)
SPECS = st.builds(
    AllocationSpec,
    tenant=WORDS,
    user=st.sampled_from(["alice", "bob"]),
    vcluster=st.sampled_from(["hpc", "ai"]),
    tags=st.dictionaries(st.just("name"), WORDS),
    lifecycle=st.builds(Lifecycle, walltime=st.sampled_from([None, "30m", "2h", "72h"])),
)


def named(number: int, spec: AllocationSpec, status: AllocationStatus) -> Allocation:
    created = format_time(NOW - 7 * number)
    return Allocation(
        metadata=Metadata(name=f"job-{number}", namespace=f"ns{number % 2}", uid=str(number), creation_timestamp=created),
        spec=spec,
        status=status,
    )


@given(
    parts=st.lists(st.tuples(SPECS, STATUSES), max_size=8),
    user=st.sampled_from(["", "alice"]),
    namespace=st.sampled_from(["", "ns0"]),
    vcluster=st.sampled_from(["", "ai"]),
    states=st.frozensets(st.sampled_from(["Pending", "Running", "Failed"])),
    after=st.one_of(st.none(), st.floats(NOW - 10_000, NOW)),
    now=st.floats(NOW - 5_000, NOW + 5_000),
)
@settings(deadline=None)
def test_the_cells_of_what_is_sent_are_those_of_the_objects(
    parts: list[tuple[AllocationSpec, AllocationStatus]], user: str, namespace: str, vcluster: str, states: frozenset[str],
    after: float | None, now: float,
) -> None:  # fmt: skip
    fleet = [named(number, *part) for number, part in enumerate(parts)]
    selection = Selection(namespace=namespace, user=user, vcluster=vcluster, states=states, after=after)
    cache = StatusCache(AllocationsHeld({one.metadata.key: one for one in fleet}))
    answer = cache.answer_later(selection, wide=True)()
    sent = msgspec.json.decode(answer.rows, type=list[StatusRow]), msgspec.json.decode(answer.details, type=list[StatusDetail])
    listed = [one for one in fleet if namespace in ("", one.metadata.namespace) and selection.keeps(one)]
    made = [status_row(one) for one in listed], [status_detail(one) for one in listed]
    assert sent == made
    for wide in (True, False):
        tables = [
            status_table(rows, details if wide else [], now=now, users=True, namespaces=True, width=0, color=False)
            for rows, details in (sent, made)
        ]
        assert tables[0] == tables[1]
    assert all(one.spec.user == user for one in listed if user)


def fleet_of(count: int) -> dict[str, Allocation]:
    made = [named(number, AllocationSpec(user="alice"), AllocationStatus(number=number)) for number in range(count)]
    return {one.metadata.key: one for one in made}


def rows_of(cache: StatusCache, selection: Selection = EVERYTHING) -> bytes:
    return bytes(cache.answer_later(selection, wide=False)().rows)


@given(st.lists(st.tuples(SPECS, STATUSES), max_size=6), st.lists(st.floats(NOW - 10_000, NOW + 10_000), min_size=1, max_size=6))
@settings(deadline=None)
def test_an_answer_of_before_is_given_only_where_it_is_the_answer_of_now(
    parts: list[tuple[AllocationSpec, AllocationStatus]], times: list[float]
) -> None:
    source = AllocationsHeld({one.metadata.key: one for one in (named(number, *part) for number, part in enumerate(parts))})
    cache = StatusCache(source)
    for after in (*times, None):
        selection = Selection(after=after)
        known = cache.known_answer(selection, version="7", wide=False)
        fresh = rows_of(StatusCache(source), selection)
        assert known is None or bytes(known.rows) == fresh
        assert rows_of(cache, selection) == fresh
        again = cache.known_answer(selection, version="7", wide=False)
        assert again is not None
        assert bytes(again.rows) == fresh


def test_an_answer_of_before_is_not_given_to_who_has_seen_more() -> None:
    source = AllocationsHeld(fleet_of(2))
    cache = StatusCache(source)
    first = cache.answer_later(EVERYTHING, wide=False)()
    assert cache.known_answer(EVERYTHING, version="7", wide=False) is first
    assert cache.known_answer(EVERYTHING, version="6", wide=False) is first
    assert cache.known_answer(EVERYTHING, version="8", wide=False) is None
    assert cache.known_answer(EVERYTHING, version="7", wide=True) is None
    assert cache.known_answer(Selection(user="bob"), version="7", wide=False) is None
    source.lists += 1  # etcd was restored: versions of before say nothing
    assert cache.known_answer(EVERYTHING, version="7", wide=False) is None
    assert cache.answer_later(EVERYTHING, wide=False)().tag != first.tag


def test_numbers_select_those_that_have_them_and_one_that_is_called_so() -> None:
    named_so = msgspec.structs.replace(
        named(8, AllocationSpec(), AllocationStatus()), metadata=Metadata(name="2-3", namespace="ns0", uid="x")
    )
    source = AllocationsHeld({**fleet_of(5), named_so.metadata.key: named_so})
    found = msgspec.json.decode(rows_of(StatusCache(source), Selection(numbers=(2, 3), called="2-3")), type=list[StatusRow])
    assert [row.name for row in found] == ["job-2", "job-3", "2-3"]


async def test_nothing_is_read_of_a_cache_that_is_behind_or_whose_watch_is_lost() -> None:
    held = AllocationsHeld(fleet_of(3), version="7")
    cache = StatusCache(held)
    assert await cache.reach("7") == "7"
    with pytest.raises(Retry, match="how old"):
        await cache.reach("8")
    held.lost = True
    with pytest.raises(Retry) as lost:
        await cache.reach("")
    assert lost.value.reason == "WatchLost"


def test_a_row_is_encoded_once_a_version_and_forgotten_with_its_allocation() -> None:
    objects = fleet_of(3)
    cache = StatusCache(AllocationsHeld(objects))
    first = rows_of(cache)
    kept = dict(cache._rows)
    assert rows_of(cache) == first
    assert all(cache._rows[uid] is row for uid, row in kept.items())
    changed = named(1, AllocationSpec(user="alice"), AllocationStatus(number=1, phase="Running"))
    objects[changed.metadata.key] = changed
    assert b"Running" in rows_of(cache)
    many = fleet_of(2 * status_rows._SPARE)
    objects.update(many)
    rows_of(cache)
    assert len(cache._rows) == len(many)
    objects.clear()
    objects["ns0/job-0"] = many["ns0/job-0"]
    rows_of(cache)
    assert list(cache._rows) == ["0"]


def test_more_rows_than_one_answer_may_have_are_left_to_the_api_server() -> None:
    one = named(1, AllocationSpec(user="alice"), AllocationStatus(number=1))
    cache = StatusCache(AllocationsHeld({str(number): one for number in range(status_rows.MOST_ROWS + 1)}))
    with pytest.raises(Rejected) as refused:
        rows_of(cache)
    assert refused.value.reason == "TooManyRows"
