"""Writes one line for each job of a replay as CSV: when it was submitted, started and ended, and where it ran."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from lattice.replay.measures import Replayed
from lattice.units import fold_nodes

COLUMNS = ("job", "tenant", "user", "vcluster", "class", "submit", "start", "end", "wait", "nodes", "groups", "how", "where")


def rows(done: Replayed) -> Iterator[str]:
    """Yields the CSV lines of a replay, a head first: jobs in order of starts, then those withdrawn, then those that never started, without
    times of their own.

    Times in seconds. `groups` counts the topology groups of the job's nodes, `where` is the set of its nodes by name.
    """
    groups = {facts.index: facts.group for facts in done.nodes}
    names = {facts.index: facts.name for facts in done.nodes}
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")

    def line(values: tuple[object, ...]) -> str:
        """Returns one line of CSV."""
        out.seek(0)
        out.truncate()
        writer.writerow(values)
        return out.getvalue()

    yield line(COLUMNS)
    for each in done.ran:
        job = each.job
        how = ("backfilled" if each.backfilled else "in order") + (", ended at walltime" if each.killed else "")
        spread = len({groups[node] for node in each.nodes})
        times = (_number(job.submit), _number(each.start), _number(each.end), _number(each.wait))
        who = (job.id, job.tenant, job.user, job.vcluster, job.preemption_class)
        yield line((*who, *times, len(each.nodes), spread, how, fold_nodes([names[node] for node in sorted(each.nodes)])))
    waiting = [(job, "withdrawn") for job in done.withdrawn] + [(job, f"never: {reason}") for job, reason, _ in done.stuck]
    for job, how in waiting:
        who = (job.id, job.tenant, job.user, job.vcluster, job.preemption_class)
        yield line((*who, _number(job.submit), "", "", "", job.nodes, "", how, ""))


def _number(value: float) -> int | float:
    """Returns whole seconds as int, others rounded to microseconds."""
    return int(value) if value == int(value) else round(value, 6)
