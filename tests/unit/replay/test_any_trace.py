"""Whatever stands in a trace: it is read, or refused with the place; nothing else ever comes of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lattice.errors import Rejected
from lattice.replay import events, sacct, swf
from lattice.replay.events import lines_of
from lattice.replay.workload import Machine, select

NASTY = st.one_of(
    st.sampled_from([
        "", " ", "-1", "-2", "0", "1e3", "1K", "²", "٣", "1_000", "+5", "nan", "inf", "-0", "9" * 30, "0x10", "None", "Unknown", "UNLIMITED",
        "1-02:03:04", "99-99:99:99", "2026-03-29T02:30:00", "9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+14:00", "1K2", "gres/gpu=²",
        "=", "gres/gpu:a:b=1.5K", "[", "1_[2", "1+2.x", "CANCELLED by", "\x00", "\N{SNOWMAN}", "10:61", "::", "1.2.3",
    ]),
    st.text(max_size=12),
    st.integers(-(10**20), 10**20).map(str),
)  # fmt: skip
ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(), NASTY),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NASTY, inner, max_size=3)),
    max_leaves=4,
)


def refusal(read: Callable[[], object]) -> Rejected | None:
    """Why it is refused; None where it is read."""
    try:
        read()
    except Rejected as error:
        return error
    return None


def read_or_refused_with_its_place(read: Callable[[], object]) -> None:
    """A refusal says a line, or what the whole trace lacks."""
    error = refusal(read)
    if error is not None:
        assert error.reason == "BadTrace"
        assert re.search(r"\bline \d+\b|no job to replay|the trace is empty", error.message), error.message


def changed(good: Sequence[str], at: int, value: str) -> list[str]:
    return [value if place == at % len(good) else word for place, word in enumerate(good)]


SWF = ["1", "0", "5", "100", "4", "-1", "-1", "4", "200", "-1", "1", "3", "2", "-1", "1", "-1", "-1", "-1"]
SACCT = {
    "JobID": "123", "Account": "climate", "Submit": "2026-03-01T08:00:00", "Start": "2026-03-01T08:10:00", "End": "2026-03-01T09:10:00",
    "Elapsed": "01:00:00", "ElapsedRaw": "3600", "Timelimit": "1-02:00:00", "TimelimitRaw": "1560", "NNodes": "2", "State": "COMPLETED",
    "AllocTRES": "cpu=8,gres/gpu:a100=8", "ReqGRES": "gpu:2",
}  # fmt: skip
SUBMIT: dict[str, object] = {
    "ts": "2026-03-01T00:00:01Z",
    "type": "submit",
    "alloc_id": "a",
    "alloc": {"nodes": 4, "walltime": "2h", "memory": "4Gi"},
}
COMPLETE: dict[str, object] = {"ts": "2026-03-01T01:00:01Z", "type": "complete", "alloc_id": "a", "duration": "1h"}
ASKED = ["nodes", "walltime", "memory", "node_list", "features", "priority", "grace_period", "topology", "gpus", "id", "other"]


@settings(max_examples=120)
@given(at=st.integers(0, 17), value=NASTY, more=st.binary(max_size=30))
@example(at=17, value="1 2 3", more=b"\xff\xfe")
def test_a_plain_log_is_read_or_refused(at: int, value: str, more: bytes) -> None:
    lines = [" ".join(SWF).encode(), b"2 " + " ".join(changed(SWF, at, value)[1:]).encode(), more]
    read_or_refused_with_its_place(lambda: select(swf.parse(lines), Machine(8)))
    read_or_refused_with_its_place(lambda: select(swf.parse(lines[:2]), Machine(3, 2), run_stands_in=True))


@settings(max_examples=200)
@given(at=st.integers(0, 12), value=NASTY, other=st.integers(0, 12), also=st.sampled_from(["", "Unknown", "2"]))
def test_what_sacct_printed_is_read_or_refused(at: int, value: str, other: int, also: str) -> None:
    row = changed(changed(list(SACCT.values()), other, also), at, value)
    lines = ["|".join(SACCT).encode(), "|".join(row).encode("utf-8", "surrogatepass")]
    read_or_refused_with_its_place(lambda: sacct.read(lines, sacct.Translation(ZoneInfo("America/Santiago"))))


@settings(max_examples=200)
@given(where=st.sampled_from(["submit", "complete", "alloc"]), key=st.sampled_from([*SUBMIT, *COMPLETE, *ASKED]), value=ANYTHING)
def test_json_lines_are_read_or_refused_and_what_is_read_is_written_as_the_same(where: str, key: str, value: object) -> None:
    submit, complete = dict(SUBMIT), dict(COMPLETE)
    if where == "alloc":
        submit["alloc"] = {"nodes": 4, "walltime": "2h", key: value}
    else:
        (submit if where == "submit" else complete)[key] = value
    lines = [json.dumps(each).encode() for each in (submit, complete)]
    read_or_refused_with_its_place(lambda: round_trip(lines))


def round_trip(lines: Iterable[bytes]) -> None:
    log = events.read(lines)
    again = events.read(line.encode() for line in lines_of(log))
    assert [(job.id, job.nodes, job.walltime, job.need) for job in again.jobs] == [
        (job.id, job.nodes, job.walltime, job.need) for job in log.jobs
    ]


@pytest.mark.parametrize("text", [b"{\n", b'{ "jobs": [\n'], ids=["a brace", "a list"])
def test_a_document_of_several_lines_is_refused_with_what_to_do(text: bytes) -> None:
    with pytest.raises(Rejected, match=r"line 1 is no JSON object: .*one object a line"):
        events.read([text, b"}\n"])
