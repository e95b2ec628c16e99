"""Composes the variables of a launch's tasks: the caller's as `--export` passes them on, then Slurm's and Lattice's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from lattice.launches.layout import LaunchLayout, NodeRanks
from lattice.launches.options import LaunchOptions
from lattice.units import fold_nodes

OURS: Final = ("SLURM_", "SLURMD_", "LATTICE_")
"""The beginnings of variables that `--export=NONE` passes on, too."""
PRESERVED: Final = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES", "SLURM_NTASKS", "SLURM_NPROCS")
"""Variables that `--preserve-env` leaves as the caller has them."""
GPU_VARIABLES: Final = {"nvidia": ("CUDA_VISIBLE_DEVICES",), "amd": ("ROCR_VISIBLE_DEVICES",), "intel": ("ZE_AFFINITY_MASK",)}
"""By vendor, the variables that say which GPUs a process may use."""
_SINGLE_USE: Final = frozenset(
    {"SLURM_CPU_BIND", "SLURM_CPU_BIND_LIST", "SLURM_CPU_BIND_TYPE", "SLURM_CPU_BIND_VERBOSE", "SLURM_STEP_GPUS", "SLURM_TASK_PID"}
)
"""Variables of another launch's task that say nothing about this one."""


@dataclass(frozen=True)
class JobFacts:
    """The facts of an allocation, and of the launch in it, that its tasks are told."""

    number: int
    step: int
    uid: str
    """The Allocation's uid."""
    name: str
    user: str
    tenant: str
    vcluster: str
    nodes: tuple[str, ...]
    """All nodes of the attempt, in rank order."""
    cpus: tuple[int, ...]
    """The CPUs that the attempt has on each of them."""
    head: str
    attempt: int = 1
    project: str = ""
    submit_dir: str = ""
    user_id: int | None = None
    group_id: int | None = None
    umask: int = 0o022
    gpus: tuple[int, ...] = ()
    """How many GPUs each of its nodes has; empty: it is not known."""
    submit_host: str = ""
    cluster: str = ""
    """The name of the cluster; empty: it is not known."""


def exported(options: LaunchOptions, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the caller's variables that tasks are given: all, or those that `--export` names, and always SLURM_* and LATTICE_*."""
    export = options.export
    chosen = {
        name: value
        for name, value in environ.items()
        if (export.all or name in export.names or name.startswith(OURS)) and name not in _SINGLE_USE
    }
    return chosen | dict(export.values)


def of_launch(job: JobFacts, options: LaunchOptions, layout: LaunchLayout, environ: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that all tasks of a launch share; `environ` is the caller's, for `--preserve-env`."""
    number, nodes = str(job.number), [part.name for part in layout.nodes]
    counts = [len(part.ranks) for part in layout.nodes]
    folded, tasks = fold_nodes(nodes), str(layout.total)
    found = _of_job(job, number) | {
        "SLURM_STEP_ID": str(job.step),
        "SLURM_STEPID": str(job.step),
        "SLURM_STEP_NODELIST": folded,
        "SLURM_STEP_NUM_NODES": str(len(nodes)),
        "SLURM_STEP_NUM_TASKS": tasks,
        "SLURM_STEP_TASKS_PER_NODE": fold_counts(counts),
        "SLURM_TASKS_PER_NODE": fold_counts(counts),
        "SLURM_NTASKS": tasks,
        "SLURM_NPROCS": tasks,
        "SLURM_NNODES": str(len(nodes)),
        "SLURM_DISTRIBUTION": ":".join(filter(None, (options.distribution.kind, options.distribution.inner))),
        "SLURM_UMASK": f"{job.umask:04o}",
        "LATTICE_LAUNCH_ID": f"{job.number}.{job.step}",
        "LATTICE_NODELIST": ",".join(nodes),
        "LATTICE_NNODES": str(len(nodes)),
        "LATTICE_NPROCS": tasks,
    }
    if options.distribution.kind == "plane":
        found["SLURM_DIST_PLANESIZE"] = str(options.distribution.plane)
    if options.cpus_per_task is not None:
        found["SLURM_CPUS_PER_TASK"] = str(options.cpus_per_task)
    if options.preserve_env:
        found |= {name: environ[name] for name in PRESERVED if name in environ}
    return found


def of_node(job: JobFacts, options: LaunchOptions, layout: LaunchLayout, part: NodeRanks) -> dict[str, str]:
    """Returns the variables that the tasks of one node share."""
    index = next(index for index, other in enumerate(layout.nodes) if other.name == part.name)
    found = {
        "SLURM_NODEID": str(index),
        "SLURMD_NODENAME": part.name,
        "SLURM_TOPOLOGY_ADDR": part.name,
        "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
        "SLURM_GTIDS": ",".join(map(str, part.ranks)),
        "SLURM_CPUS_ON_NODE": str(job.cpus[part.index]),
        "LATTICE_NODE_RANK": str(index),
        "LATTICE_NODENAME": part.name,
        "LATTICE_LOCAL_SIZE": str(len(part.ranks)),
    }
    if job.gpus and job.gpus[part.index]:
        found["SLURM_GPUS_ON_NODE"] = str(job.gpus[part.index])
    seen = sorted({gpu for gpus in part.gpus for gpu in gpus or ()})
    if seen:
        found |= {"SLURM_STEP_GPUS": ",".join(map(str, seen)), "SLURM_GPUS_ON_NODE": str(len(seen))}
    if any(part.cpus):
        masks = ",".join(_mask(cpus) for cpus in part.cpus)
        how = "verbose" if options.cpu_bind.verbose else "quiet"
        found |= {
            "SLURM_CPU_BIND": f"{how},mask_cpu:{masks}",
            "SLURM_CPU_BIND_LIST": masks,
            "SLURM_CPU_BIND_TYPE": "mask_cpu:",
            "SLURM_CPU_BIND_VERBOSE": how,
        }
    return found


def of_rank(part: NodeRanks, local: int, gpu_vendor: str = "") -> dict[str, str]:
    """Returns the variables of one task of a node, by its number there; SLURM_TASK_PID is the keeper's, who knows it.

    Of the variables that hide GPUs, those of the vendor alone are set where it is known: AMD's runtime reads two of them in turn.
    """
    rank = part.ranks[local]
    found = {
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(local),
        "LATTICE_PROCID": str(rank),
        "LATTICE_LOCAL_RANK": str(local),
    }
    gpus = part.gpus[local] if part.gpus else None
    if gpus is not None:
        listed = ",".join(map(str, gpus))
        found |= dict.fromkeys(GPU_VARIABLES.get(gpu_vendor, tuple(name for names in GPU_VARIABLES.values() for name in names)), listed)
    return found


def _of_job(job: JobFacts, number: str) -> dict[str, str]:
    """Returns the variables of the allocation that hold in each of its launches."""
    nodes = fold_nodes(job.nodes)
    found = {
        "SLURM_JOB_ID": number,
        "SLURM_JOBID": number,
        "SLURM_JOB_NAME": job.name,
        "SLURM_JOB_USER": job.user,
        "SLURM_JOB_NODELIST": nodes,
        "SLURM_NODELIST": nodes,
        "SLURM_JOB_NUM_NODES": str(len(job.nodes)),
        "SLURM_JOB_CPUS_PER_NODE": fold_counts(job.cpus),
        "SLURM_JOB_PARTITION": job.vcluster,
        "SLURM_JOB_ACCOUNT": job.tenant,
        "SLURM_SUBMIT_DIR": job.submit_dir,
        "SLURM_RESTART_COUNT": str(job.attempt - 1),
        "SLURM_PRIO_PROCESS": "0",
        "LATTICE_ALLOC_ID": job.uid,
        "LATTICE_JOB_ID": number,
        "LATTICE_JOB_NAME": job.name,
        "LATTICE_HEAD_NODE": job.head,
        "LATTICE_SUBMIT_DIR": job.submit_dir,
        "LATTICE_ATTEMPT": str(job.attempt),
        "LATTICE_TENANT": job.tenant,
        "LATTICE_VCLUSTER": job.vcluster,
    }
    if job.project:
        found["LATTICE_PROJECT"] = job.project
    found |= {name: text for name, text in (("SLURM_CLUSTER_NAME", job.cluster), ("SLURM_SUBMIT_HOST", job.submit_host)) if text}
    for name, value in (("SLURM_JOB_UID", job.user_id), ("SLURM_JOB_GID", job.group_id)):
        if value is not None:
            found[name] = str(value)
    return found


def fold_counts(counts: Sequence[int]) -> str:
    """Returns numbers as Slurm writes those of nodes: `4(x2),3` for 4, 4, 3."""
    runs: list[list[int]] = []
    for count in counts:
        if runs and runs[-1][0] == count:
            runs[-1][1] += 1
        else:
            runs.append([count, 1])
    return ",".join(str(count) if times == 1 else f"{count}(x{times})" for count, times in runs)


def _mask(cpus: Sequence[int]) -> str:
    """Returns CPUs as a hexadecimal mask; those of no task as 0x0."""
    return hex(sum(1 << cpu for cpu in set(cpus)))
