"""The program that the scheduler asks for an upper bound: one question on stdin, one number on stdout, then it ends.

A process of its own, at the lowest priority and with a limit of CPU time, so that neither the solver nor the memory it
takes can hold the scheduler up.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import Final

import msgspec

from lattice.errors import Rejected
from lattice.scheduling.optimum.formulation import Formulation
from lattice.scheduling.optimum.solver import Bucket, Effort, Job, upper_bound

EFFORT: Final = Effort(seconds=2.0)
CPU_SECONDS: Final = 15
"""The kernel ends the process after this much CPU time."""
NO_ANSWER: Final = 3
"""The exit code when the solver found no bound within its effort."""


class Question(msgspec.Struct, array_like=True):
    """A formulation as JSON on stdin: the distinct sets of eligible buckets once, jobs as (value, nodes, number of the set, alike)."""

    sets: list[list[int]]
    jobs: list[tuple[float, int, int, bool]]
    buckets: list[tuple[str, str, int]]


def packed(asked: Formulation) -> bytes:
    """Returns a formulation as the bytes that this program reads on stdin."""
    sets: dict[frozenset[int], int] = {}
    jobs = [(job.value, job.nodes, sets.setdefault(job.eligible, len(sets)), job.alike) for job in asked.jobs]
    buckets = [(bucket.fingerprint, bucket.group, bucket.free) for bucket in asked.buckets]
    return msgspec.json.encode(Question([sorted(each) for each in sets], jobs, buckets))


def unpacked(data: bytes) -> Formulation:
    """Returns the formulation of which `packed` made these bytes."""
    question = msgspec.json.decode(data, type=Question)
    sets = [frozenset(each) for each in question.sets]
    jobs = tuple(Job(value, nodes, sets[number], alike=alike) for value, nodes, number, alike in question.jobs)
    return Formulation(jobs, tuple(Bucket(*each) for each in question.buckets))


def main() -> int:
    """Reads a question from stdin and prints its upper bound; returns the exit code: 0, or 3, with a sentence on stderr, where the effort
    was too small.

    Lowers the priority of the whole process and limits its CPU time to 15 s.
    """
    os.nice(19)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    question = unpacked(sys.stdin.buffer.read())
    try:
        bound = upper_bound(question.jobs, question.buckets, EFFORT)
    except Rejected as error:
        print(error, file=sys.stderr)
        return NO_ANSWER
    print(repr(bound))
    return 0


if __name__ == "__main__":
    sys.exit(main())
