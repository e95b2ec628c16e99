"""Generated traces: the same everywhere, different by seed, of the load that they promise."""

from __future__ import annotations

import hashlib

import pytest

from lattice.errors import Rejected
from lattice.replay.events import lines_of
from lattice.replay.synthetic import KINDS, Dice, generate


def digest(kind: str, seed: int) -> str:
    return hashlib.sha256("\n".join(lines_of(generate(kind, seed, nodes=64, hours=12))).encode()).hexdigest()


def test_the_dice_are_splitmix64() -> None:
    dice = Dice(1234567)
    assert [dice.bits() for _ in range(3)] == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_gives_the_same_bytes_and_another_seed_others(kind: str) -> None:
    assert digest(kind, 1) == digest(kind, 1)
    assert digest(kind, 1) != digest(kind, 2)


@pytest.mark.parametrize("kind", KINDS)
def test_no_job_is_larger_than_the_machine_or_asks_for_less_time_than_it_runs(kind: str) -> None:
    log = generate(kind, 3, nodes=64, hours=12)
    assert all(1 <= job.nodes <= 64 and 0 < job.run <= (job.walltime or 0) for job in log.jobs)
    assert [job.submit for job in log.jobs] == sorted(job.submit for job in log.jobs)


def test_steady_state_is_about_a_full_load() -> None:
    log = generate("steady-state", 5, nodes=128, hours=48)
    assert 1.0 < sum(job.nodes * job.run for job in log.jobs) / (128 * 48 * 3600) < 1.2


@pytest.mark.parametrize(
    ("kind", "nodes", "hours", "sentence"),
    [
        ("steady", 64, 12, "no trace 'steady' can be generated; kinds: steady-state, burst"),
        ("burst", 40, 12, "a multiple of 16 from 32 on"),
        ("burst", 64, 0.1, "is not between 1 and"),
    ],
)
def test_what_cannot_be_generated_is_refused(kind: str, nodes: int, hours: float, sentence: str) -> None:
    with pytest.raises(Rejected, match=sentence):
        generate(kind, 1, nodes=nodes, hours=hours)
