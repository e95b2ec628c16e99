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
from lattice.scheduling.formulation import Formulation
from lattice.scheduling.solver import Effort, upper_bound

EFFORT: Final = Effort(seconds=2.0)
CPU_SECONDS: Final = 15
"""After so much CPU time the kernel ends it, whatever the solver is at."""
NO_ANSWER: Final = 3
"""The exit code when the effort was too small."""


def main() -> int:
    """The program."""
    os.nice(19)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    question = msgspec.json.decode(sys.stdin.buffer.read(), type=Formulation)
    try:
        bound = upper_bound(question.jobs, question.buckets, EFFORT)
    except Rejected as error:
        print(error, file=sys.stderr)
        return NO_ANSWER
    print(repr(bound))
    return 0


if __name__ == "__main__":
    sys.exit(main())
