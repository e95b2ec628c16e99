"""Rows of usage records: what is written is read again, what they hold is known, what is broken is said."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lattice.accounting.charges import STATES, Charge, charges_of
from lattice.accounting.records import Records, decode_row, encode_row, month_of, read_rows, record_name, rows_text
from lattice.accounting.settlement import Append, Open, Write, next_write, unsettled
from lattice.errors import Corrupt
from lattice.views.meta import Metadata
from lattice.views.usage import UsageRecord, UsageRecordSpec
from tests.build import uid
from tests.unit.accounting.lives import Life, live

START = 1_793_000_000
WORDS = ("", "-", "--", "plain", "two words", "a\nline", "%2D", "ünï ☃", "tab\there", "a|b,c;d")


def charge_of(roll: Random) -> Charge:
    def number() -> int:
        return roll.choice((0, 1, 10, roll.getrandbits(53)))

    words = [roll.choice(WORDS) for _ in range(7)]
    return Charge(
        uid(roll.randrange(10**6)), roll.randrange(111), roll.randrange(111), number(), "physics", words[0], words[1], words[2], words[3],
        words[4], words[5], number(), number(), number(), number(), number(), number(), roll.choice(STATES), words[6],
        roll.choice((None, 0, 255)), number(), number(), roll.randrange(11), *roll.choice(((0, 0, 0), (number(), number(), 1))),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(200))
def test_a_row_is_read_as_it_was_written_whatever_names_hold(seed: int) -> None:
    charge = charge_of(Random(seed))
    row = encode_row(charge)
    assert row.isascii()
    assert row.count("\n") == 1
    assert decode_row(row[:-1], "physics") == charge
    full = row[:-1] if charge.oom_kills else f"{row[:-1]} 0 0 0"
    assert decode_row(f"{full} a later column", "physics") == charge


@pytest.mark.parametrize("text", ["2\n", "", "1", "one\n"])
def test_rows_of_another_format_are_refused_with_both_numbers(text: str) -> None:
    with pytest.raises(Corrupt, match="this program reads 1"):
        list(read_rows(text, "physics"))


@pytest.mark.parametrize("row", ["", "AAAAAAAAAAAAAAAAAAAAAA 1", "x " * 22])
def test_a_broken_row_is_said_with_its_text(row: str) -> None:
    with pytest.raises(Corrupt):
        list(read_rows(f"1\n{row}\n", "physics"))


class Server:
    """Records by name, with compare-and-swap: what etcd does for the operator."""

    def __init__(self) -> None:
        self.objects: dict[str, UsageRecord] = {}
        self.version = 0

    def carry_out(self, write: Write) -> bool:
        """Whether the write stood."""
        match write:
            case Append(page, text, sealed):
                standing = self.objects[page.name]
                if standing.metadata.resource_version != page.version:
                    return False
                assert text.startswith(standing.spec.rows)
                assert not standing.spec.sealed
                self._put(page.name, UsageRecordSpec(tenant=page.tenant, month=page.month, part=page.part, sealed=sealed, rows=text))
            case Open(name, tenant, month, part, text):
                if name in self.objects:
                    return False
                assert name == record_name(tenant, month, part)
                self._put(name, UsageRecordSpec(tenant=tenant, month=month, part=part, rows=text))
        return True

    def _put(self, name: str, spec: UsageRecordSpec) -> None:
        self.version += 1
        self.objects[name] = UsageRecord(metadata=Metadata(name=name, resource_version=str(self.version)), spec=spec)


def read(server: Server, records: Records) -> Records:
    for record in server.objects.values():
        records.put(record)
    return records


def settle(server: Server, records: Records, lives: list[Life], tenant: str, *, largest: int, most: int = 10**6) -> None:
    """What a writer does until it is done, refused, or killed after `most` writes."""
    for _ in range(most):
        open_ones = [charge for life in lives if life.tenant == tenant for charge in unsettled(life.view, records)]
        write = next_write(records, tenant, open_ones, largest)
        if write is None or not server.carry_out(write):
            return
        read(server, records)


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.integers(400, 4000))
def test_writers_with_old_readings_killed_at_any_point_write_each_attempt_once(seed: int, largest: int) -> None:
    """Several leaders who believe that they lead, each with a reading of its own age; every attempt stands there once, none is missing."""
    roll, server = Random(seed), Server()
    lives = [live(number, roll, START + roll.randint(-40, 40) * 86400) for number in range(1, 16)]
    writers = [Records() for _ in range(3)]
    for _ in range(12):
        records = roll.choice(writers)
        if roll.random() < 0.6:
            read(server, records)
        if roll.random() < 0.1:
            writers[writers.index(records)] = records = Records()  # killed: the next one reads from the start, or has read nothing yet
        some = roll.sample(lives, roll.randint(1, len(lives)))
        settle(server, records, some, roll.choice(("physics", "ml-team")), largest=largest, most=roll.randint(1, 4))
    last = read(server, Records())
    for tenant in ("physics", "ml-team"):
        settle(server, last, lives, tenant, largest=largest)
    whole = read(server, Records())
    whole.validate()
    rows = list(whole.all_rows())
    assert sum(row.node_seconds for row in rows) == sum(life.node_seconds for life in lives)
    assert sum(row.gpu_seconds for row in rows) == sum(life.gpu_seconds for life in lives)
    assert not any(unsettled(life.view, whole) for life in lives)
    assert all(page.month == month_of(row.ended) for page in whole.pages.values() for row in read_rows(page.text, page.tenant))
    assert all(len(page.text) <= largest or page.text.count("\n") == 2 for page in whole.pages.values())


def test_attempts_that_fell_out_before_they_were_settled_are_one_row_with_their_sum() -> None:
    roll = Random(7)
    life, server, records = Life(1, "physics", "alice", "", roll), Server(), Records()
    for number in range(25):
        life.attempt(START + 100 * number, START + 100 * number + 60, again=True)
        if number == 2:
            settle(server, records, [life], "physics", largest=65536)
    settle(server, records, [life], "physics", largest=65536)
    rows = list(records.all_rows())
    assert [(row.first, row.attempt) for row in rows][:4] == [(1, 1), (2, 2), (3, 3), (4, 15)]
    assert len(life.view.status.attempts) == 10
    assert sum(row.node_seconds for row in rows) == life.node_seconds
    assert sum(row.gpu_seconds for row in rows) == life.gpu_seconds
    records.validate()


def test_a_restored_server_with_older_records_is_noticed_and_what_it_lost_is_open_again() -> None:
    roll = Random(3)
    lives, server, records = [live(number, roll, START) for number in range(1, 9)], Server(), Records()
    settle(server, records, lives[:4], "physics", largest=65536)
    older = dict(server.objects)
    settle(server, records, lives, "physics", largest=65536)
    again = {
        name: UsageRecord(metadata=Metadata(name=name, resource_version=str(10**6)), spec=record.spec) for name, record in older.items()
    }
    for record in again.values():
        records.put(record)
    for name in set(server.objects) - set(older):
        records.drop(name)
    assert records.restarts
    records.validate()
    server.objects, server.version = again, 10**6
    settle(server, records, lives, "physics", largest=65536)
    open_ones = [charge for life in lives if life.tenant == "physics" for charge in unsettled(life.view, records)]
    assert not open_ones
    total = sum(row.node_seconds for row in records.all_rows())
    assert total == sum(life.node_seconds for life in lives if life.tenant == "physics")


def test_an_attempt_that_stands_twice_is_found() -> None:
    charge = charges_of(live(1, Random(1), START).view)[-1]
    records = Records()
    spec = UsageRecordSpec(tenant=charge.tenant, month="2026-10", rows=rows_text([charge, charge]))
    records.put(UsageRecord(metadata=Metadata(name="x", resource_version="1"), spec=spec))
    with pytest.raises(Corrupt, match="twice"):
        records.validate()
