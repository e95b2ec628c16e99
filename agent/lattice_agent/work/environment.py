"""Composes the environment of the work, pure: login, the site's variables, views, Secrets, the user's variables, LATTICE_* and SLURM_*."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lattice.launches.variables import fold_counts
from lattice.software.chosen_views import MountedSoftware
from lattice.units import fold_nodes
from lattice_agent.attempts import AskedTasks, NodeWork
from lattice_agent.work.mpi_launchers import tasks_of_nodes

NO_SOFTWARE = MountedSoftware()
DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
HOOK_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
BIN = "LATTICE_BIN"
"""The variable that names the directory of Lattice's own programs for work."""
_PAIRED_QUOTES = ("'", '"')


@dataclass(frozen=True)
class Account:
    """A user as the node's account database has him."""

    name: str
    uid: int
    gid: int
    groups: tuple[int, ...]
    home: str
    shell: str


def parse_environment_file(text: str) -> dict[str, str]:
    """Returns the variables of /etc/environment as pam_env reads it: `KEY=value`, quotes, comments, `export`; lines of another form are
    ignored.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        entry = line.strip().removeprefix("export ").lstrip()
        name, equals, value = entry.partition("=")
        if not equals or entry.startswith("#") or not name.isidentifier():
            continue
        value = value.strip()
        if len(value) >= 2 and value[0] == value[-1] and value[0] in _PAIRED_QUOTES:
            value = value[1:-1]
        found[name] = value
    return found


def login(account: Account, environment_file: str) -> dict[str, str]:
    """Returns the variables that a login of the user starts with, from his account and the text of /etc/environment; runs nothing."""
    return {
        "PATH": DEFAULT_PATH,
        **parse_environment_file(environment_file),
        "HOME": account.home,
        "USER": account.name,
        "LOGNAME": account.name,
        "SHELL": account.shell or "/bin/sh",
    }


def login_in_image(account: Account, variables: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that work in an image starts with: the image's own (`variables`), and over them who the user is.

    The node's /etc/environment is about its own programs and is not read; so is the account's PATH.
    """
    return {"PATH": DEFAULT_PATH, **variables, "HOME": account.home, "USER": account.name, "LOGNAME": account.name, "SHELL": "/bin/sh"}


def of_node(work: NodeWork, *, workdir: str) -> dict[str, str]:
    """Returns the LATTICE_* (and, if the site wants them, SLURM_*) variables that all tasks on this node share."""
    shared = lattice_of_node(work, workdir)
    return shared | (_slurm_of_node(work, workdir) if work.slurm_env else {})


def of_hook(work: NodeWork, when: str) -> dict[str, str]:
    """Returns the environment of a site's hook: PATH, LANG, LATTICE_* and SLURM_* variables of the work, and none that its user sets.

    `when`: prologue or epilogue.
    """
    account = work.account or work.user
    own = {"PATH": HOOK_PATH, "LANG": "C.UTF-8", "LATTICE_USER": account, "LATTICE_HOOK": when}
    slurm = _slurm_of_node(work, work.workdir) | {"SLURM_SCRIPT_CONTEXT": {"prologue": "prolog_slurmd"}.get(when, "epilog_slurmd")}
    return own | lattice_of_node(work, work.workdir) | slurm


def lattice_of_node(work: NodeWork, workdir: str) -> dict[str, str]:
    """Returns the LATTICE_* variables that all tasks on this node share; LATTICE_PROJECT only where the work has a project.

    `workdir`: their working directory.
    """
    shared = {
        "LATTICE_ALLOC_ID": work.key.uid,
        "LATTICE_JOB_ID": str(work.number),
        "LATTICE_JOB_NAME": work.job_name,
        "LATTICE_NODELIST": ",".join(work.nodes),
        "LATTICE_NNODES": str(len(work.nodes)),
        "LATTICE_NPROCS": str(work.total_tasks),
        "LATTICE_NODE_RANK": str(work.rank_of_node),
        "LATTICE_NODENAME": work.node,
        "LATTICE_LOCAL_SIZE": str(work.tasks),
        "LATTICE_HEAD_NODE": work.head,
        "LATTICE_SUBMIT_DIR": workdir,
        "LATTICE_ATTEMPT": str(work.key.attempt),
        "LATTICE_TENANT": work.tenant,
        "LATTICE_VCLUSTER": work.vcluster,
    }
    if work.project:
        shared["LATTICE_PROJECT"] = work.project
    return shared


def of_task(work: NodeWork, local_rank: int) -> dict[str, str]:
    """Returns the variables that differ between the tasks of one node; `local_rank` counts these from 0.

    SLURM_TASK_PID is the shim's, which knows it.
    """
    rank = work.first_rank + local_rank
    own = {"LATTICE_PROCID": str(rank), "LATTICE_LOCAL_RANK": str(local_rank)}
    if work.slurm_env:
        gtids = ",".join(str(work.first_rank + local) for local in range(work.tasks))
        own |= {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(local_rank), "SLURM_GTIDS": gtids}
    return own


def _slurm_of_node(work: NodeWork, workdir: str) -> dict[str, str]:
    """Returns the SLURM_* variables that all tasks on this node share; `workdir` is their working directory."""
    nodes, number = fold_nodes(work.nodes), str(work.number)
    asked = work.total_tasks > 1 or len(work.nodes) == 1  # else `srun` in a script would start one task on all of its nodes
    tasks = dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), str(work.total_tasks)) if asked else {}
    return (
        tasks
        | {
            "SLURM_JOB_ID": number,
            "SLURM_JOBID": number,
            "SLURM_JOB_NAME": work.job_name,
            "SLURM_JOB_USER": work.account or work.user,
            "SLURM_NODELIST": nodes,
            "SLURM_JOB_NODELIST": nodes,
            "SLURM_NNODES": str(len(work.nodes)),
            "SLURM_JOB_NUM_NODES": str(len(work.nodes)),
            "SLURM_TASKS_PER_NODE": fold_counts(tasks_of_nodes(work)),
            "SLURM_NODEID": str(work.rank_of_node),
            "SLURM_SUBMIT_DIR": workdir,
            "SLURM_JOB_PARTITION": work.vcluster,
            "SLURM_JOB_ACCOUNT": work.tenant,
            "SLURMD_NODENAME": work.node,
            "SLURM_RESTART_COUNT": str(work.key.attempt - 1),
            "SLURM_PRIO_PROCESS": "0",
            "SLURM_TOPOLOGY_ADDR": work.node,
            "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
        }
        | {name: value for name, value in _where_known(work) if value}
        | _slurm_of_asked(work.asked)
    )


def _where_known(work: NodeWork) -> tuple[tuple[str, str], ...]:
    """Returns the SLURM_* variables whose values may be empty, which are not set then."""
    return (
        ("SLURM_UENV", work.uenv), ("SLURM_UENV_VIEW", work.view), ("SLURM_CLUSTER_NAME", work.cluster_name),
        ("SLURM_SUBMIT_HOST", work.submit_host), ("SLURM_JOB_CPUS_PER_NODE", fold_counts(work.node_cpus)),
    )  # fmt: skip


def slurm_of_host(work: NodeWork, account: Account, cpus: int, gpus: int = 0) -> dict[str, str]:
    """Returns the SLURM_* variables that a job finds of its node and user: who it runs as, the processors and GPUs that it has here."""
    if not work.slurm_env:
        return {}
    found = {"SLURM_JOB_UID": str(account.uid), "SLURM_JOB_GID": str(account.gid), "SLURM_CPUS_ON_NODE": str(cpus)}
    if gpus:
        found |= {"SLURM_GPUS_ON_NODE": str(gpus), "SLURM_JOB_GPUS": ",".join(map(str, range(gpus)))}
    return found


def _slurm_of_asked(asked: AskedTasks) -> dict[str, str]:
    """Returns the SLURM_* variables that a job finds of what was asked for its tasks; none of what was not."""
    layout, size = asked.layout, ""
    if layout.startswith("plane=") and ":" not in layout:
        layout, _, size = layout.partition("=")
    found = {
        "SLURM_NTASKS_PER_NODE": asked.per_node, "SLURM_CPUS_PER_TASK": asked.cpus, "SLURM_GPUS_PER_TASK": asked.gpus,
        "SLURM_DISTRIBUTION": layout, "SLURM_DIST_PLANESIZE": size,
    }  # fmt: skip
    return {name: str(value) for name, value in found.items() if value}


def compose(
    work: NodeWork,
    account: Account,
    environment_file: str,
    *,
    workdir: str,
    exported: Mapping[str, str] | None = None,
    software: MountedSoftware = NO_SOFTWARE,
    of_image: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Returns the environment of the work, but for Secrets and for what differs from task to task; later parts win.

    These are: login (of work in an image: the variables `of_image`, see `login_in_image`) and the site's variables, both changed by views
    of the software; the user's; those `exported` by the site's hooks; those that name the software; LATTICE_* and SLURM_*.
    """
    first = login(account, environment_file) if of_image is None else login_in_image(account, of_image)
    begun = software.applied_to(first | work.site_variables)
    own = work.variables | dict(exported or {})
    return begun | own | software.variables | of_node(work, workdir=workdir)


def with_programs(variables: Mapping[str, str], programs: str) -> dict[str, str]:
    """Returns the environment with the directory of Lattice's own programs for work (`srun`) first on its PATH; empty: there is none."""
    own = {"PATH": ":".join(filter(None, (programs, variables.get("PATH", "")))), BIN: programs} if programs else {}
    return dict(variables) | own


def on_this_node(variables: Mapping[str, str], programs: str) -> dict[str, str]:
    """Returns a caller's environment for a task of its launch on this node: the node's own programs, and what stands beside them, where
    the caller's node has its own.
    """
    before = variables.get(BIN, "")
    if not before or not programs or before == programs:
        return dict(variables)
    beside, own = before.rpartition("/")[0] + "/", programs.rpartition("/")[0] + "/"
    moved = {name: own + value.removeprefix(beside) for name, value in variables.items() if value.startswith(beside)}
    path = ":".join(programs if entry == before else entry for entry in variables.get("PATH", "").split(":"))
    return dict(variables) | moved | {BIN: programs} | ({"PATH": path} if path else {})


def effective(
    private: Mapping[str, str],
    work: NodeWork,
    *,
    workdir: str,
    exported: Mapping[str, str] | None = None,
    software: MountedSoftware = NO_SOFTWARE,
) -> dict[str, str]:
    """Returns the variables of Secrets (`private`) that take effect: those whose names nothing stronger sets.

    Stronger are the work, its hooks (`exported`), the variables that name mounted software, and the LATTICE_* and SLURM_* variables that
    all tasks of this node share (`of_node`). A Secret's variable with another name that begins so is kept; those of a task (`of_task`)
    are set over it later.
    """
    stronger = work.variables.keys() | (exported or {}).keys() | of_node(work, workdir=workdir).keys() | software.variables.keys()
    return {name: value for name, value in private.items() if name not in stronger}


def flaw(variables: dict[str, str]) -> str:
    """Returns a clause on a variable that the kernel cannot take; empty: all are possible."""
    for name, value in variables.items():
        if not name or "=" in name or "\0" in name:
            return f"the variable name {name!r} is not possible"
        if "\0" in value:
            return f"the variable {name} contains a NUL character"
    return ""
