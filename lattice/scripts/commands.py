"""Finds what of Slurm a script uses: its directives, and variables that only some sites set."""

from __future__ import annotations

import re
from typing import Final

_VARIABLE = re.compile(r"\$\{?(SLURM_[A-Z0-9_]+|SLURMD_[A-Z0-9_]+)")
OURS: Final = {
    "SLURM_JOB_ID": "LATTICE_JOB_ID",
    "SLURM_JOBID": "LATTICE_JOB_ID",
    "SLURM_JOB_NAME": "LATTICE_JOB_NAME",
    "SLURM_NODELIST": "LATTICE_NODELIST",
    "SLURM_JOB_NODELIST": "LATTICE_NODELIST",
    "SLURM_NNODES": "LATTICE_NNODES",
    "SLURM_JOB_NUM_NODES": "LATTICE_NNODES",
    "SLURM_NTASKS": "LATTICE_NPROCS",
    "SLURM_NPROCS": "LATTICE_NPROCS",
    "SLURM_PROCID": "LATTICE_PROCID",
    "SLURM_LOCALID": "LATTICE_LOCAL_RANK",
    "SLURM_NODEID": "LATTICE_NODE_RANK",
    "SLURMD_NODENAME": "LATTICE_NODENAME",
    "SLURM_SUBMIT_DIR": "LATTICE_SUBMIT_DIR",
    "SLURM_JOB_PARTITION": "LATTICE_VCLUSTER",
    "SLURM_JOB_ACCOUNT": "LATTICE_TENANT",
}
"""By variable of Slurm, the one that has its value here (book, "Slurm Migration"); node lists are separated by commas."""
ALSO_SET: Final = frozenset({
    "SLURM_JOB_USER", "SLURM_JOB_UID", "SLURM_JOB_GID", "SLURM_CPUS_ON_NODE", "SLURM_RESTART_COUNT", "SLURM_TASKS_PER_NODE",
    "SLURM_JOB_CPUS_PER_NODE", "SLURM_CLUSTER_NAME", "SLURM_SUBMIT_HOST", "SLURM_GTIDS", "SLURM_TASK_PID", "SLURM_PRIO_PROCESS",
    "SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN", "SLURM_GPUS_ON_NODE", "SLURM_JOB_GPUS",
    "SLURM_CPUS_PER_TASK", "SLURM_NTASKS_PER_NODE", "SLURM_GPUS_PER_TASK", "SLURM_DISTRIBUTION",
})  # fmt: skip
"""Variables without a name of ours, set where the site sets Slurm's; of GPUs where the node has some, the last four only if their option is
given."""


def slurm_variables(text: str) -> tuple[str, ...]:
    """Returns the names of Slurm's variables that the script reads, in the order of their first use."""
    found = (name for _, line in _commands(text) for name in _VARIABLE.findall(line))
    return tuple(dict.fromkeys(found))


def has_slurm_lines(text: str) -> bool:
    """Tells whether a script has `#SBATCH` lines before its first command, and so counts as one of Slurm's."""
    for line in text.split("\n"):
        if line.startswith("#SBATCH"):
            return True
        if line.strip() and not line.lstrip().startswith("#"):
            return False
    return False


def missing_from(text: str, *, slurm_env: bool | None) -> list[str]:
    """Returns a sentence on Slurm's variables that the script reads and will not find; `slurm_env` None: the site was not asked, so that
    the sentence leaves it open.
    """
    warnings = []
    read = slurm_variables(text)
    unset = [name for name in read if not slurm_env or (name not in OURS and name not in ALSO_SET)]
    if unset and slurm_env is None:
        warnings.append(f"the script reads {', '.join(unset)}: whether this site sets Slurm's variables is not known here")
    elif unset:
        instead = ", ".join(f"{name} is {OURS[name]}" if name in OURS else f"{name} has no counterpart" for name in unset)
        why = "Lattice does not set" if slurm_env else "this site does not set (option compat.setSlurmEnv)"
        warnings.append(f"the script reads variables of Slurm's that {why}: {instead}")
    return warnings


def _commands(text: str) -> list[tuple[int, str]]:
    """Returns the lines that are no comments, with their numbers."""
    return [(number, line) for number, line in enumerate(text.split("\n"), start=1) if not line.lstrip().startswith("#")]
