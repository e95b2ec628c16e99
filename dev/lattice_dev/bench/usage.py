"""Measures usage and history alone: reading records, counting and summing, and encoding the answers; process times, medians."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Final

import msgspec

from lattice.accounting.budgets import Allowance, Budgets
from lattice.accounting.charges import Charge
from lattice.accounting.records import Page, Records, rows_text
from lattice.accounting.reports import DAY, Among, Asked, Reach, charges_since, history_report, usage_report
from lattice.accounting.tally import Recount
from lattice.scheduling.priority.shares import Shares, Terms
from lattice.views.meta import Metadata
from lattice.views.usage import UsageRecord, UsageRecordSpec
from lattice_dev.bench.figures import Aim, Figure

ROWS, QUICK_ROWS = 10_000, 1000
ROWS_A_PART: Final = 340
NOW: Final = 1_795_000_000.0
DAYS: Final = 30
TIMES: Final = 5
ANSWER: Final = Aim(1000.0)
"""Longest time for the answer of ten thousand rows, in milliseconds."""

Say = Callable[[float], None]


def measure(*, quick: bool, say: Say) -> list[Figure]:
    """Returns all figures of usage and history."""
    rows = QUICK_ROWS if quick else ROWS
    texts = _texts(rows)
    gc.collect()
    reading = _timed(lambda: _read(texts))
    say(0.3)
    records = _read(texts)
    pages = list(records.pages.values())
    asked, whole = Asked("user1", "physics", names=True), frozenset({"physics"})
    budgets = {"physics": Budgets(Allowance(1e7, 1e7))}
    months = Reach(NOW - 90 * DAY, whole)
    among = Among(NOW - DAYS * DAY, NOW)
    usage = _timed(lambda: msgspec.json.encode(usage_report(charges_since(pages, [], months, NOW), asked, among.since, NOW, budgets)))
    say(0.7)
    history = _timed(lambda: _history(pages, asked, among))
    counting, longest = _recounts(records, budgets["physics"])
    size = sum(map(len, texts)) / rows
    label = f"{rows:,} attempts"
    return [
        Figure(f"usage with budgets and forecast, {label}", usage, "ms", ANSWER),
        Figure(f"history, the newest 100 of {label}", history, "ms", ANSWER),
        Figure(f"reading the records of {label}", reading, "ms", detail=f"{len(texts)} records, {size:.0f} bytes an attempt"),
        Figure(f"counting {label} anew", counting, "ms", detail=f"as a new leader does; at most {longest:.1f} ms before others run"),
    ]


def _recounts(records: Records, budgets: Budgets) -> tuple[float, float]:
    """Returns the milliseconds to count all rows for shares and budgets, the median of several, and of the longest slice."""
    longest = 0.0

    def recount() -> None:
        """Counts all records again in steps, and notes the longest step."""
        nonlocal longest
        shares = Shares()
        shares.agree({"physics": Terms(budgets=budgets)})
        counting, left = Recount(records, 0.0, partial(shares.charge, sign=1)), True
        while left:
            began = time.process_time()
            left = counting.step()
            longest = max(longest, 1000 * (time.process_time() - began))
        counting.finish()

    return _timed(recount), longest


def _history(pages: list[Page], asked: Asked, among: Among) -> bytes:
    """Returns the answer to a question on ended attempts, as JSON."""
    charges = charges_since(pages, [], Reach(among.since, frozenset({"physics"})), NOW)
    return msgspec.json.encode(history_report(charges, asked, among, NOW))


def _texts(rows: int) -> list[str]:
    """Returns the rows of so many attempts of the last thirty days, from a seed, by record."""
    roll = random.Random(1)  # noqa: S311 - a published instance, no secret
    made = []
    for number in range(rows):
        end, held, nodes = int(NOW - roll.random() * DAYS * DAY), roll.randrange(60, 6 * 3600), roll.randrange(1, 65)
        uid = f"00000000-0000-4000-8000-{number:012x}"
        who = ("physics", f"train-{number:05d}", "train", f"user{number % 50}", f"project{number % 7}", "hpc-batch")
        times, amounts = (end - held - 60, end - held, end - held, end), (nodes * held, 4 * nodes * held)
        made.append(Charge(uid, 1, 1, number, "physics", *who, nodes, 4 * nodes, *times, "Completed", "Completed", 0, *amounts, 5))
    return [rows_text(made[at : at + ROWS_A_PART]) for at in range(0, rows, ROWS_A_PART)]


def _read(texts: list[str]) -> Records:
    """Returns the index of records with these texts."""
    records = Records()
    for part, text in enumerate(texts):
        spec = UsageRecordSpec(tenant="physics", month="2026-11", part=part, rows=text)
        records.put(UsageRecord(metadata=Metadata(name=f"physics-2026-11-{part}", resource_version=str(part + 1)), spec=spec))
    return records


def _timed(work: Callable[[], object]) -> float:
    """Does the work `TIMES` times; returns the median milliseconds of process time."""
    times = []
    for _ in range(TIMES):
        began = time.process_time()
        work()
        times.append(1000 * (time.process_time() - began))
    return median(times)
