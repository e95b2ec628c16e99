"""Composes the launch of an entrypoint that has a number of tasks: the command of its client, the shim's only task on the head; pure.

The client is `srun` itself, as a script would call it: the exit code of the launch is that of the shim's task, and whatever is killed
meanwhile costs time only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lattice.errors import Rejected
from lattice_agent.attempts import NodeWork

CLIENT: Final = "srun"
"""The program that asks for launches, in the directory of programs for work."""


def client_command(work: NodeWork, programs: str, words: Sequence[str]) -> list[str]:
    """Returns the command of the client that starts `words` as a launch: the wishes of `spec.tasks` are arguments, stronger than variables.

    Tasks for which CPUs or binding are not asked may be more than cores, and run unbound then. Raises Rejected (StartFailed) where the
    node has no such client (`programs` empty).
    """
    if not programs:
        why = "it starts no launches (the agent needs cgroups, and so root), and spec.tasks.total asks for one"
        raise Rejected(f"node {work.node} cannot start it: {why}", reason="StartFailed")
    asked = work.asked
    given = {
        "ntasks": work.total_tasks, "ntasks-per-node": asked.per_node, "cpus-per-task": asked.cpus, "gpus-per-task": asked.gpus,
        "distribution": asked.layout, "cpu-bind": asked.bind, "mpi": asked.mpi,
    }  # fmt: skip
    options = [f"--{name}={value}" for name, value in given.items() if value]
    shares = asked.cpus is None and asked.bind in ("", "none")
    return [f"{programs}/{CLIENT}", *options, *(["--overcommit"] if shares else []), "--", *words]
