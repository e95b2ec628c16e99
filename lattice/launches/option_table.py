"""The options of `srun`, and the variables that set them: which are acted on, passed over, or refused with what to do instead."""

from __future__ import annotations

from typing import Final

from lattice.scripts.options import SHORT_NAMES, Argument, Option

_ACTED_ON: Final = (
    "ntasks",
    "nodes",
    "cpus-per-task",
    "ntasks-per-node",
    "nodelist",
    "exclude",
    "relative",
    "distribution",
    "chdir",
    "job-name",
    "output",
    "error",
    "input",
    "open-mode",
    "wait",
    "time",
    "gres",
    "gpus",
    "gpus-per-node",
    "gpus-per-task",
    "gpu-bind",
    "jobid",
    "export",
    "mpi",
    "cpu-bind",
    "hint",
    "threads-per-core",
    "uenv",
    "view",
)
_SWITCHES: Final = (
    "label",
    "unbuffered",
    "overcommit",
    "quiet",
    "verbose",
    "exact",
    "overlap",
    "multi-prog",
    "external-launcher",
    "disable-status",
    "quit-on-interrupt",
    "preserve-env",
    "help",
    "usage",
    "version",
)
_OPTIONAL: Final = ("kill-on-bad-exit", "immediate", "exclusive", "propagate")
_ALIASES: Final = {"tasks-per-node": "ntasks-per-node", "cpu_bind": "cpu-bind"}

_HAS = "the allocation has it already"
_WHOLE = "all memory and disks of each node belong to the allocation"
_PLACED = "tasks are placed by --ntasks-per-node, --cpus-per-task and --cpu-bind"
_TIMES = "Lattice has times of its own for its messages"
_NOTHING = "nothing in Lattice corresponds to it"
_SOFTWARE = "a launch runs in its allocation's software"

_PASSED_OVER: Final = {
    _HAS: (
        "account",
        "partition",
        "qos",
        "reservation",
        "constraint",
        "cluster-constraint",
        "clusters",
        "begin",
        "deadline",
        "dependency",
        "licenses",
        "comment",
        "wckey",
        "time-min",
        "priority",
        "prefer",
        "mcs-label",
        "switches",
        "network",
        "bb",
        "bbf",
        "delay-boot",
        "segment",
    ),
    _WHOLE: ("mem", "mem-per-cpu", "mem-per-gpu", "mem-bind", "tmp", "mincpus"),
    _PLACED: (
        "cores-per-socket",
        "sockets-per-node",
        "extra-node-info",
        "ntasks-per-core",
        "ntasks-per-socket",
        "core-spec",
        "thread-spec",
        "cpus-per-gpu",
        "gpus-per-socket",
        "tres-bind",
    ),
    "use `lattice wait` or `lattice status --watch` for event notifications": ("mail-type", "mail-user"),
    _TIMES: ("msg-timeout", "threads", "slurmd-debug", "treewidth"),
    _NOTHING: ("acctg-freq", "cpu-freq", "gpu-freq", "gres-flags", "power", "profile", "tres-per-task", "oom-kill-step"),
    _SOFTWARE: ("container-env",),
}
_PASSED_OVER_SWITCHES: Final = {
    _HAS: (
        "hold",
        "oversubscribe",
        "share",
        "contiguous",
        "reboot",
        "spread-job",
        "use-min-nodes",
        "whole",
        "consolidate-segments",
        "stepmgr",
    ),
    _SOFTWARE: (
        "container-mount-home",
        "no-container-mount-home",
        "container-remap-root",
        "no-container-remap-root",
        "container-writable",
        "container-readonly",
        "no-container-entrypoint",
        "no-default-view",
    ),
}
_PASSED_OVER_OPTIONAL: Final = {_HAS: ("nice", "get-user-env"), _NOTHING: ("no-kill", "resv-ports", "compress")}

_TASK_SCRIPT = "scripts before and after tasks are not run: call it in the program's own script"
_CONTAINER = "a launch runs in its allocation's software: name the image where you submit, as `lattice submit --image=IMAGE`"
_REFUSED: Final = {
    "het-group": "heterogeneous jobs are not served: submit separate allocations",
    "bcast-exclude": "files are not copied to nodes: keep the program where all nodes see it",
    "signal": "signals before the end are not sent: TERM comes one grace period before KILL",
    "nodefile": "files of node names are not read: name the nodes, as --nodelist=nid[001-004]",
    "ntasks-per-gpu": "tasks are not counted by GPUs: give --ntasks and --gpus-per-task",
    "uid": "a launch runs as its allocation's user: submit as that user",
    "gid": "a launch runs with its allocation's groups: submit as that user",
    "prolog": _TASK_SCRIPT,
    "epilog": _TASK_SCRIPT,
    "task-prolog": _TASK_SCRIPT,
    "task-epilog": _TASK_SCRIPT,
    "export-file": "files of variables are not read: source it in the script, or name the variables with --export",
    "container": _CONTAINER,
    "container-id": _CONTAINER,
    "container-image": _CONTAINER,
    "container-name": _CONTAINER,
    "container-save": _CONTAINER,
    "container-workdir": "tasks begin in the caller's directory: give --chdir",
    "container-mounts": "a container shows the home, the working directory and what the site lists: leave it out",
    "environment": _CONTAINER,
}
_REFUSED_SWITCHES: Final = {
    "test-only": "a launch starts at once where its allocation has room: leave it out",
    "no-allocate": "a launch runs in its allocation: leave it out",
    "container-entrypoint": "the image's entrypoint is not run: name the command",
}
_COPY = "files are not copied to nodes: keep the program where all nodes see it, and leave it out"
_REFUSED_OPTIONAL: Final = {
    "pty": "terminals are not served by this release: run the program without one, or follow its output with `lattice logs -f`",
    "x11": "X11 is not forwarded: use `ssh -X` to a login node for windows",
    "bcast": _COPY,
    "send-libs": _COPY,
}

SHORT: Final[dict[str, str]] = {
    **{letter: name for letter, name in SHORT_NAMES.items() if name != "array"},
    "E": "preserve-env",
    "h": "help",
    "K": "kill-on-bad-exit",
    "l": "label",
    "r": "relative",
    "T": "threads",
    "u": "unbuffered",
    "V": "version",
    "X": "disable-status",
    "Z": "no-allocate",
}
"""The long name of each one-letter option."""

VARIABLES: Final = (
    ("SLURM_NPROCS", "ntasks"),
    ("SLURM_NTASKS", "ntasks"),
    ("SLURM_JOB_NUM_NODES", "nodes"),
    ("SLURM_NNODES", "nodes"),
    ("SLURM_CPUS_PER_TASK", "cpus-per-task"),
    ("SRUN_CPUS_PER_TASK", "cpus-per-task"),
    ("SLURM_NTASKS_PER_NODE", "ntasks-per-node"),
    ("SLURM_DISTRIBUTION", "distribution"),
    ("SLURM_REMOTE_CWD", "chdir"),
    ("SLURM_WORKING_DIR", "chdir"),
    ("SLURM_STDOUTMODE", "output"),
    ("SRUN_OUTPUT", "output"),
    ("SLURM_STDERRMODE", "error"),
    ("SRUN_ERROR", "error"),
    ("SLURM_STDINMODE", "input"),
    ("SRUN_INPUT", "input"),
    ("SLURM_OPEN_MODE", "open-mode"),
    ("SLURM_WAIT", "wait"),
    ("SLURM_TIMELIMIT", "time"),
    ("SLURM_STEP_GRES", "gres"),
    ("SLURM_GPUS", "gpus"),
    ("SLURM_GPUS_PER_NODE", "gpus-per-node"),
    ("SLURM_GPUS_PER_TASK", "gpus-per-task"),
    ("SLURM_GPU_BIND", "gpu-bind"),
    ("SLURM_EXPORT_ENV", "export"),
    ("SRUN_EXPORT_ENV", "export"),
    ("SLURM_MPI_TYPE", "mpi"),
    ("SLURM_CPU_BIND", "cpu-bind"),
    ("SLURM_HINT", "hint"),
    ("SLURM_THREADS_PER_CORE", "threads-per-core"),
    ("SLURM_LABELIO", "label"),
    ("SLURM_UNBUFFEREDIO", "unbuffered"),
    ("SLURM_OVERCOMMIT", "overcommit"),
    ("SLURM_EXACT", "exact"),
    ("SLURM_EXCLUSIVE", "exclusive"),
    ("SLURM_OVERLAP", "overlap"),
    ("SLURM_DISABLE_STATUS", "disable-status"),
    ("SLURM_KILL_BAD_EXIT", "kill-on-bad-exit"),
    ("SLURM_IMMEDIATE", "immediate"),
    ("SLURM_PROPAGATE", "propagate"),
    ("SLURM_DEBUG", "verbose"),
    ("SRUN_DEBUG", "verbose"),
)
"""srun's input variables with the options that they set, weaker ones first; an empty value sets nothing."""
REFUSED_VARIABLES: Final = ("SLURM_BCAST", "SLURM_TASK_PROLOG", "SLURM_TASK_EPILOG", "SRUN_CONTAINER")
"""Variables that would change what is run, and are not served."""


def _table() -> dict[str, Option]:
    """Returns the options of srun by long name; options of one slot override each other."""
    table = {name: Option(name, name) for name in _ACTED_ON}
    table |= {name: Option(name, name, Argument.NONE) for name in _SWITCHES}
    table |= {name: Option(name, name, Argument.OPTIONAL) for name in _OPTIONAL}
    table |= {alias: Option(alias, name) for alias, name in _ALIASES.items()}
    for why, names in _PASSED_OVER.items():
        table |= {name: Option(name, ignored=why) for name in names}
    for why, names in _PASSED_OVER_SWITCHES.items():
        table |= {name: Option(name, argument=Argument.NONE, ignored=why) for name in names}
    for why, names in _PASSED_OVER_OPTIONAL.items():
        table |= {name: Option(name, argument=Argument.OPTIONAL, ignored=why) for name in names}
    table |= {name: Option(name, refused=why) for name, why in _REFUSED.items()}
    table |= {name: Option(name, argument=Argument.NONE, refused=why) for name, why in _REFUSED_SWITCHES.items()}
    return table | {name: Option(name, argument=Argument.OPTIONAL, refused=why) for name, why in _REFUSED_OPTIONAL.items()}


SRUN: Final = _table()
"""Every option of `srun` that Lattice knows, by its long name."""
