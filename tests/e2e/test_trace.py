"""The first jobs of a real log through the whole system, real multi-node allocations beside them; everything ends, in order."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lattice_dev.progress import Quiet
from lattice_dev.trace.run import Wanted, read, run
from tests.killed_runs import instance_name

ROOT = Path(__file__).resolve().parents[2]
LOG = "KTH-SP2.swf.gz"
JOBS, COMPRESSION, BESIDE = 60, 50_000.0, 6
"""A short piece: `lattice-dev trace FILE --jobs 200` runs the whole of it."""


@pytest.fixture(scope="module")
def log() -> Path:
    """The log: in the folder that LATTICE_DATA names, else in `shared/data` beside the clone."""
    folder = Path(os.environ.get("LATTICE_DATA") or ROOT.parent / "shared" / "data")
    file = folder / LOG
    assert file.is_file(), f"{file} is not there: name the folder of {LOG} with LATTICE_DATA"
    return file


def test_the_first_jobs_of_the_log_are_those_of_the_filter(log: Path) -> None:
    jobs = read(Wanted(log, 200, 100, 1.0, 0))
    assert [(job.id, job.submit, job.run, job.nodes, job.requested) for job in jobs[:2]] == [
        (1, 0, 97225, 56, 210000),
        (2, 327952, 9382, 80, 14400),
    ]
    assert len(jobs) == 200
    assert all(job.run <= job.requested and 0 < job.nodes <= 100 for job in jobs)


def test_every_job_of_a_log_ends_once_and_no_earlier_one_that_fitted_is_passed_over(log: Path) -> None:
    said: list[str] = []
    right = run(
        Wanted(log, JOBS, 100, COMPRESSION, BESIDE), name=instance_name("trace"), say=said.append, progress=Quiet()
    )  # fmt: skip
    assert right, "\n".join(said)
    assert said[-1] == "every one ended, none twice, nobody passed over"
    assert sum(1 for line in said if line.startswith(("kth-", "real-"))) == JOBS + BESIDE
