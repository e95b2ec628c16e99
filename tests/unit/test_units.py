"""lattice.units: what people write is read exactly, and what is written can be read again."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice import units
from lattice.errors import Rejected

NAMES = st.lists(
    st.one_of(
        st.builds(
            lambda prefix, number, width: f"{prefix}{str(number).zfill(width)}",
            st.sampled_from(["nid", "x1000c0s", "gpu-", "n1."]),
            st.integers(0, 1200),
            st.integers(1, 5),
        ),
        st.sampled_from(["login", "a.b", "z"]),
    ),
    max_size=60,
)


@pytest.mark.parametrize(
    ("text", "seconds"), [("45s", 45), ("30m", 1800), ("1h30m", 5400), ("72h", 259200), ("7d", 604800), ("1d1s", 86401), ("0s", 0)]
)
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    assert units.parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "30", "h", "1h 30m", "30m1h", "-1h", "1.5h", "24:00:00", "1H", "٣m"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(Rejected, match="is not a duration"):
        units.parse_duration(text)


@given(st.integers(0, 10**9))
def test_a_formatted_duration_is_read_back(seconds: int) -> None:
    assert units.parse_duration(units.format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "clock"),
    [
        ("30", "00:30:00"), ("480", "08:00:00"), ("05:00", "00:05:00"), ("1-0", "24:00:00"), ("0-00:30", "00:30:00"),
        ("2-00:00", "48:00:00"),
        ("01-00:00:00", "24:00:00"), ("80:00:00", "80:00:00"), ("4:0:0", "04:00:00"), ("1-02:03:04", "26:03:04"), ("0:90", "00:01:30"),
    ],
)  # fmt: skip
def test_slurm_times_are_read_as_slurm_reads_them(text: str, clock: str) -> None:
    seconds = units.parse_slurm_time(text)
    assert seconds is not None
    assert units.format_clock(seconds) == clock


@pytest.mark.parametrize("text", ["0", "00:00:00", "0-0", "UNLIMITED", "infinite", "-1"])
def test_zero_and_unlimited_are_no_limit(text: str) -> None:
    assert units.parse_slurm_time(text) is None


@pytest.mark.parametrize("text", ["", "-", "1-", "a", "1:2:3:4", "24h", "1-1-1", "1.5", "1:", "-5"])
def test_what_is_no_slurm_time_is_refused(text: str) -> None:
    with pytest.raises(Rejected, match="is not a time"):
        units.parse_slurm_time(text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (24, 24),
        ("24", 24),
        ("150m", Decimal("0.150")),
        ("1.5Gi", 3 * 2**29),
        ("500Gi", 500 * 2**30),
        ("2k", 2000),
        ("1000m", 1),
        ("0", 0),
        ("0.1", Decimal("0.1")),
    ],
)
def test_quantities_are_exact(text: int | str, number: int | Decimal) -> None:
    assert units.parse_quantity(text) == number
    assert type(units.parse_quantity(text)) is type(number)


@pytest.mark.parametrize("text", ["", "-1", "1.", ".5", "1gi", "1 Gi", "1e3", "Gi", -1, True])
def test_what_is_no_quantity_is_refused(text: int | str) -> None:
    with pytest.raises(Rejected, match="is not a quantity"):
        units.parse_quantity(text)


@given(st.integers(0, 2**63))
def test_formatted_bytes_are_read_back(count: int) -> None:
    assert units.quantity_bytes(units.format_bytes(count)) == count


def test_bytes_are_rounded_up_to_whole_ones() -> None:
    assert units.quantity_bytes("100m") == 1
    assert units.format_bytes(128 * 2**30) == "128Gi"


def test_a_node_set_expands_in_the_order_written() -> None:
    assert units.expand_nodes("nid[001-003,010],gpu7,x[0-1]b[1-2]") == [
        "nid001",
        "nid002",
        "nid003",
        "nid010",
        "gpu7",
        "x0b1",
        "x0b2",
        "x1b1",
        "x1b2",
    ]


def test_node_sets_are_folded_as_people_write_them() -> None:
    assert units.fold_nodes([f"nid{number:03d}" for number in range(1, 65)] + ["gpu7"]) == "nid[001-064],gpu7"
    assert units.fold_nodes(["n9", "n10", "n11"]) == "n[9-11]"
    assert units.fold_nodes(["a3", "a1", "b1"]) == "a[3,1],b1"


@given(NAMES)
def test_a_folded_node_set_expands_to_the_same_names_in_the_same_order(names: list[str]) -> None:
    assert units.expand_nodes(units.fold_nodes(names)) == names


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("nid[001-", 9),
        ("nid[3-1]", 5),
        ("a,,b", 3),
        ("a]", 2),
        ("a b", 2),
        ("n[1-1000000000]", 3),
        ("n[[1]]", 3),
        ("n[]", 3),
        ("n[01-100]x", 0),
        ("n[1-01]", 3),
        ("é", 1),
    ],
)
def test_a_bad_node_set_is_refused_with_its_position(text: str, place: int) -> None:
    if place == 0:
        assert len(units.expand_nodes(text)) == 100
        return
    with pytest.raises(Rejected, match=f"at position {place}$"):
        units.expand_nodes(text)


@given(st.text(alphabet="ab01[]-,. é", max_size=12))
def test_any_text_is_a_node_set_or_refused(text: str) -> None:
    try:
        names = units.expand_nodes(text)
    except Rejected:
        return
    assert all(names)
    assert units.expand_nodes(units.fold_nodes(names)) == names


@given(st.sets(st.integers(0, 16383), max_size=80))
def test_ranges_are_read_back(numbers: set[int]) -> None:
    assert units.parse_ranges(units.format_ranges(numbers)) == sorted(numbers)


@pytest.mark.parametrize("text", ["3-1", "a", "1,", "-1", "1-2-3", "²", "9" * 5000, f"0-{'9' * 5000}", "0-16383,1", "7," * 16_384 + "7"])
def test_bad_ranges_are_refused(text: str) -> None:
    with pytest.raises(Rejected):
        units.parse_ranges(text)


@given(st.integers(0, 4_000_000_000_000_000))
def test_times_are_read_back_to_the_microsecond(microseconds: int) -> None:
    epoch = microseconds / 1_000_000
    assert units.parse_time(units.format_time(epoch, micro=True)) == pytest.approx(epoch, abs=1e-6)


def test_times_of_kubernetes_are_read() -> None:
    assert units.parse_time("1970-01-02T00:00:00Z") == 86400
    assert units.parse_time("1970-01-01T01:00:00.250000+01:00") == 0.25
    assert units.format_time(86400.9) == "1970-01-02T00:00:00Z"


@pytest.mark.parametrize(
    ("epoch", "text"),
    [
        (units.parse_time("9999-12-31T23:59:59-23:59"), "9999-12-31T23:59:59Z"),
        (units.parse_time("0001-01-01T00:00:00+23:59"), "1970-01-01T00:00:00Z"),
        (1.8e9 + units.parse_duration("999999999d"), "9999-12-31T23:59:59Z"),
        (float("inf"), "9999-12-31T23:59:59Z"),
    ],
)
def test_times_that_people_choose_beyond_every_calendar_can_be_written(epoch: float, text: str) -> None:
    assert units.format_time(epoch) == text


@pytest.mark.parametrize("text", ["", "now", "2026-12-01T08:00:00", "2026-12-01", "2026-13-01T00:00:00Z"])
def test_a_time_without_zone_or_sense_is_refused(text: str) -> None:
    with pytest.raises(Rejected, match="is not a time"):
        units.parse_time(text)


@pytest.mark.parametrize(("value", "bounds"), [(4, (4, 4)), ("4", (4, 4)), ("32-128", (32, 128)), ("1-1", (1, 1))])
def test_node_counts_are_numbers_or_ranges(value: int | str, bounds: tuple[int, int]) -> None:
    assert units.parse_node_count(value) == bounds


@pytest.mark.parametrize("value", [0, -1, "0", "5-3", "a", "", "1-", True, 1000000])
def test_bad_node_counts_are_refused(value: int | str) -> None:
    with pytest.raises(Rejected, match="nodes"):
        units.parse_node_count(value)


@given(st.uuids())
def test_uids_are_read_back(uid: uuid.UUID) -> None:
    assert len(units.encode_uid(str(uid))) == 22
    assert units.decode_uid(units.encode_uid(str(uid))) == str(uid)


@pytest.mark.parametrize("text", ["", "abc", "é" * 22, "!" * 22])
def test_bad_uids_are_refused(text: str) -> None:
    with pytest.raises(Rejected):
        units.decode_uid(text)
    with pytest.raises(Rejected):
        units.encode_uid(text)


@pytest.mark.parametrize("address", ["10.0.0.1:50052", "nid001.example.org:50052", "[fe80::1]:50052", "unix:80", "ipv4:80"])
def test_an_address_is_dialled_as_a_host_whatever_its_name(address: str) -> None:
    assert units.dial_target(address) == f"dns:///{address}"


@pytest.mark.parametrize(
    "address", ["", "h", ":1", "dns:///h:1", "unix:/run/x", "http://h:1", "h:1/x", "h:1,g:2", "h:65536", "h:1\n", "-h:1"]
)
def test_what_is_no_host_and_port_is_not_dialled(address: str) -> None:
    with pytest.raises(Rejected, match=r"is no HOST:PORT"):
        units.dial_target(address)


def refusal_or(read: Callable[[str], int], text: str) -> int | str:
    try:
        return read(text)
    except Rejected as error:
        return error.message


@given(st.text(alphabet="n01-[],x", max_size=24))
def test_counting_a_node_set_agrees_with_expanding_it(text: str) -> None:
    assert refusal_or(units.count_nodes, text) == refusal_or(lambda text: len(units.expand_nodes(text)), text)


DIGITS = st.text(alphabet="0123456789²³٣৭①Ⅻ -+_.", max_size=24)


@given(st.one_of(DIGITS, st.integers(0, 10**20).map(str), st.text(max_size=6)), st.integers(0, 10**6), st.integers(0, 10**19))
def test_a_number_is_of_the_digits_0_to_9_alone_and_never_beyond_its_limits(text: str, least: int, most: int) -> None:
    plain = text != "" and set(text) <= set("0123456789")
    assert units.is_digits(text) == (plain and len(text) <= 18)
    found = units.whole_number(text, least, most)
    assert found == (int(text) if plain and least <= int(text) <= most and len(text) <= len(str(most)) else None)
    assert units.is_digits(text.encode()) == units.is_digits(text)


@pytest.mark.parametrize("read", [units.parse_ranges, units.expand_nodes, units.count_nodes], ids=lambda read: read.__name__)
@pytest.mark.parametrize("number", ["²", "٣", "①", "9" * 5000])
def test_what_python_alone_takes_for_a_number_is_refused_and_crashes_nothing(read: Callable[[str], object], number: str) -> None:
    for text in (f"{number}-4", f"1-{number}"):
        with pytest.raises(Rejected):
            read(text if read is units.parse_ranges else f"nid[{text}]")


def test_no_other_room_asks_python_what_a_digit_is() -> None:
    root = Path(__file__).resolve().parents[2]
    rooms = ("lattice", "controllers", "agent", "gateway", "webhooks", "dev")
    files = (
        file for room in rooms for file in (root / room).rglob("*.py") if "standalone" not in file.parts
    )  # standard library alone there
    asking = re.compile(r"\.(isdigit|isdecimal|isnumeric)\(")
    found = [str(file.relative_to(root)) for file in files if asking.search(file.read_text(encoding="utf-8"))]
    assert found == ["lattice/units.py"]
