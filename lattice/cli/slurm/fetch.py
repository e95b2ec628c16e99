"""Fetches jobs for Slurm's programs: from the gateway's memory where it answers, else from the API server, with the reader's own rights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from lattice.cli.from_memory import ask_memory
from lattice.cli.listed_rows import read_rows
from lattice.cli.selection import StatusQuery
from lattice.cli.slurm.jobs import SlurmJob, account_of, job_of
from lattice.kube.resources import ALLOCATIONS

if TYPE_CHECKING:
    from lattice.cli.console import Console

MIN_JOB_AGE: Final = 300
"""Seconds for which squeue and scontrol show a job that has ended, as Slurm's MinJobAge says."""
MOST_NUMBERED: Final = 4096
"""Numbers that lie further apart than this are not asked for as a range."""


class JobQuery(NamedTuple):
    """The jobs to fetch: those of the namespace, narrowed; what ended before `after` (seconds since the epoch) is left out."""

    mine: bool = False
    numbers: Sequence[int] = ()
    after: float | None = None


def fetch_jobs(console: Console, wanted: JobQuery) -> list[SlurmJob]:
    """Returns the jobs that have a number, in order of their submission; of `numbers` those that are there, whenever they ended."""
    least, most = (min(wanted.numbers), max(wanted.numbers)) if wanted.numbers else (0, 0)
    numbered = bool(wanted.numbers) and most - least < MOST_NUMBERED
    after = None if wanted.numbers else wanted.after
    query = {
        "namespace": console.namespace, "mine": "true" if wanted.mine else "", "after": "" if after is None else repr(after),
        "numbers": "" if not numbered else str(least) if least == most else f"{least}-{most}", "wide": "true",
    }  # fmt: skip
    answer = ask_memory(console, "/v1/status", {"version": ALLOCATIONS.plural}, query)
    found = None if answer is None else read_rows(answer)
    if found is None:
        from lattice.cli.verbs.status_objects import list_objects

        found = list_objects(console, StatusQuery(console.namespace, "", wanted.mine, frozenset(), "", after))
    numbers = frozenset(wanted.numbers)
    now = console.outside.now()
    jobs = [job_of(row, detail, now) for row, detail in zip(found.rows, found.details, strict=True) if row.number]
    return [job for job in jobs if not numbers or job.id.number in numbers]


def of_users(console: Console, jobs: Iterable[SlurmJob], users: Sequence[str]) -> list[SlurmJob]:
    """Returns the jobs of these users, named as here or on the nodes; the login name of the person himself means him, however he is known
    here.
    """
    names = {account_of(user) for user in users}
    if {console.outside.environ.get("USER", ""), console.outside.environ.get("LOGNAME", "")} & names - {""}:
        names.add(account_of(console.user))
    return [job for job in jobs if job.user in names]
