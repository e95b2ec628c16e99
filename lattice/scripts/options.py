"""The options of `#SBATCH` and `#LATTICE` lines: names, abbreviations, arguments, and what becomes of each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final


class Argument(Enum):
    """The need of an option for an argument: none, required or optional."""

    NONE = "none"
    REQUIRED = "required"
    OPTIONAL = "optional"


@dataclass(frozen=True)
class Option:
    """One option: its name, its slot, and why it is ignored or refused (empty: it is neither). Options of one slot override each other.

    `moot`: it asks for what is so anyway, and is passed over in silence.
    """

    name: str
    slot: str = ""
    argument: Argument = Argument.REQUIRED
    ignored: str = ""
    refused: str = ""
    moot: bool = False


_FULL_NODES = "Lattice uses full-node scheduling"
_INSIDE = f"{_FULL_NODES}, placement inside a node is the launcher's"
_MEMORY = f"{_FULL_NODES}, memory is not constrainable"
_MAIL = "use `lattice wait` or `lattice status --watch` for event notifications"
_NOTHING = "nothing in Lattice corresponds to it"

_ACTED_ON: Final = {
    "job-name": "name",
    "nodes": "nodes",
    "ntasks": "ntasks",
    "ntasks-per-node": "ntasks-per-node",
    "tasks-per-node": "ntasks-per-node",
    "time": "walltime",
    "partition": "vcluster",
    "account": "tenant",
    "chdir": "workdir",
    "workdir": "workdir",
    "output": "stdout",
    "error": "stderr",
    "open-mode": "open-mode",
    "export": "export",
    "constraint": "constraint",
    "gres": "gpus",
    "gpus": "gpus",
    "gpus-per-node": "gpus",
    "gpus-per-task": "gpus-per-task",
    "qos": "class",
    "nodelist": "nodelist",
    "exclude": "exclude",
    "begin": "not-before",
    "deadline": "end-by",
    "signal": "signal",
    "reservation": "reservation",
    "uenv": "uenv",
    "view": "view",
    "container-image": "image",
    "cpus-per-task": "cpus-per-task",
    "dependency": "depends-on",
    "kill-on-invalid-dep": "on-unmet",
    "distribution": "distribution",
    "cpu-bind": "cpu-bind",
    "cpu_bind": "cpu-bind",
    "mpi": "mpi",
}
_SWITCHES: Final = {
    "hold": "hold",
    "requeue": "requeue",
    "no-requeue": "requeue",
    "no-default-view": "no-default-view",
    "container-writable": "writable",
}

_IGNORED: Final = {
    _MEMORY: ("mem", "mem-per-cpu", "mem-per-gpu"),
    _INSIDE: (
        "hint",
        "mem-bind",
        "threads-per-core",
        "ntasks-per-core",
        "ntasks-per-socket",
        "ntasks-per-gpu",
        "cores-per-socket",
        "sockets-per-node",
        "extra-node-info",
        "core-spec",
        "thread-spec",
        "cpu-freq",
        "cpus-per-gpu",
        "gpu-bind",
        "gpu-freq",
        "gpus-per-socket",
        "mincpus",
        "tmp",
    ),
    _MAIL: ("mail-type", "mail-user"),
    "Lattice packs into the fewest groups anyway": ("switches",),
    "this is one cluster": ("clusters", "cluster-constraint"),
    "standard input is empty": ("input",),
    "name the nodes with --nodelist": ("nodefile",),
    "images come from the site's registry, or are files": ("repo",),
    "give one walltime": ("time-min",),
    "your variables are stronger than the image's anyway; --export passes them": ("container-env",),
    _NOTHING: (
        "comment",
        "wckey",
        "acctg-freq",
        "bb",
        "bbf",
        "container",
        "delay-boot",
        "gid",
        "uid",
        "gres-flags",
        "network",
        "power",
        "prefer",
        "priority",
        "profile",
        "export-file",
        "batch",
        "container-id",
        "extra",
        "mcs-label",
        "oom-kill-step",
        "segment",
        "wait-all-nodes",
        "tres-per-task",
        "tres-bind",
        "tres-per-job",
    ),
}
_IGNORED_SWITCHES: Final = {
    "use `lattice submit --wait`": ("wait",),
    "work in an image runs as its user": ("container-remap-root",),
    "the home is always in the container": ("no-container-mount-home",),
    _NOTHING: (
        "contiguous",
        "overcommit",
        "oversubscribe",
        "share",
        "quiet",
        "verbose",
        "parsable",
        "test-only",
        "ignore-pbs",
        "spread-job",
        "use-min-nodes",
        "reboot",
        "consolidate-segments",
        "stepmgr",
    ),
}
_IGNORED_OPTIONAL: Final = ("nice", "get-user-env", "propagate", "no-kill", "immediate", "resv-ports", "x11")

_MOOT_SWITCHES: Final = ("container-mount-home", "no-container-entrypoint", "no-container-remap-root", "container-readonly")

_REFUSED: Final = {
    "array": "job arrays are not served by this release; submit the tasks one by one",
    "licenses": "licenses are not counted by Lattice; use --constraint for features of nodes",
    "environment": "environment files of a container engine are not read; name the image with --container-image",
    "container-mounts": "a container shows the home, the working directory and what the site lists; remove the option",
    "container-workdir": "the working directory is that of --chdir: the node's, or the image's where the node has none; use that",
    "container-save": "what is written to the root of a container goes with the work, and is not saved; remove the option",
    "container-name": "containers are not kept by name; name the image with --container-image",
}
_REFUSED_SWITCHES: Final = {"container-entrypoint": "the image's entrypoint is not run; name the command in the script"}
HETJOB: Final = ("hetjob", "packjob")
"""Bare words that separate the components of a heterogeneous job."""
HETJOB_REFUSED: Final = "heterogeneous jobs are not served; submit separate allocations"

SHORT_NAMES: Final = {
    "A": "account",
    "a": "array",
    "B": "extra-node-info",
    "b": "begin",
    "C": "constraint",
    "c": "cpus-per-task",
    "D": "chdir",
    "d": "dependency",
    "e": "error",
    "F": "nodefile",
    "G": "gpus",
    "H": "hold",
    "i": "input",
    "I": "immediate",
    "J": "job-name",
    "k": "no-kill",
    "L": "licenses",
    "M": "clusters",
    "m": "distribution",
    "N": "nodes",
    "n": "ntasks",
    "O": "overcommit",
    "o": "output",
    "p": "partition",
    "Q": "quiet",
    "q": "qos",
    "S": "core-spec",
    "s": "oversubscribe",
    "t": "time",
    "v": "verbose",
    "W": "wait",
    "w": "nodelist",
    "x": "exclude",
}
"""Slurm's options by the letters that sbatch has for them; srun has all but that of arrays, and letters of its own."""

_LATTICE: Final = {
    "name": "name",
    "job-name": "name",
    "nodes": "nodes",
    "ntasks": "ntasks",
    "ntasks-per-node": "ntasks-per-node",
    "cpus-per-task": "cpus-per-task",
    "gpus-per-task": "gpus-per-task",
    "distribution": "distribution",
    "cpu-bind": "cpu-bind",
    "mpi": "mpi",
    "cpus": "cpus",
    "memory": "memory",
    "scratch": "scratch",
    "gpus": "gpus",
    "gpus-per-node": "gpus",
    "walltime": "walltime",
    "time": "walltime",
    "vcluster": "vcluster",
    "partition": "vcluster",
    "tenant": "tenant",
    "account": "tenant",
    "project": "project",
    "quota": "quota",
    "user": "user",
    "tag": "tag",
    "uenv": "uenv",
    "view": "view",
    "tools-uenv": "tools-uenv",
    "image": "image",
    "device": "device",
    "constraint": "constraint",
    "nodelist": "nodelist",
    "exclude": "exclude",
    "reservation": "reservation",
    "topology": "topology",
    "preemption-class": "class",
    "qos": "class",
    "max-requeue": "max-requeue",
    "begin": "not-before",
    "not-before": "not-before",
    "deadline": "deadline",
    "signal": "signal",
    "output": "stdout",
    "stdout": "stdout",
    "error": "stderr",
    "stderr": "stderr",
    "open-mode": "open-mode",
    "chdir": "workdir",
    "workdir": "workdir",
    "export": "export",
    "variables-from": "variables-from",
    "grace-period": "grace-period",
    "intent": "intent",
    "tasks-on": "tasks-on",
    "depends-on": "depends-on",
    "dependency": "depends-on",
    "on-unmet": "on-unmet",
}
_LATTICE_SWITCHES: Final = {
    "hold": "hold",
    "requeue": "requeue",
    "no-requeue": "requeue",
    "no-preempt": "no-preempt",
    "no-default-view": "no-default-view",
    "writable": "writable",
    "service": "service",
    "sensitive": "sensitive",
}
_LATTICE_REFUSED: Final = {
    "task-group": "task groups are not served by this release; submit the tasks one by one",
    "array": _REFUSED["array"],
    "data-mount": "data is not staged by this release; remove the option",
    "expose": "network domains are not served by this release; remove the option",
    "checkpoint": "checkpoints are not taken by this release; remove the option",
    "reactive": "Reactive allocations are not scaled by this release; use --service or a walltime",
}


def _slurm() -> dict[str, Option]:
    """Returns the options of #SBATCH lines by name."""
    table = {name: Option(name, slot) for name, slot in _ACTED_ON.items()}
    table |= {name: Option(name, slot, Argument.NONE) for name, slot in _SWITCHES.items()}
    table["exclusive"] = Option("exclusive", "exclusive", Argument.OPTIONAL)
    for why, names in _IGNORED.items():
        table |= {name: Option(name, ignored=why) for name in names}
    for why, names in _IGNORED_SWITCHES.items():
        table |= {name: Option(name, argument=Argument.NONE, ignored=why) for name in names}
    table |= {name: Option(name, argument=Argument.OPTIONAL, ignored=_NOTHING) for name in _IGNORED_OPTIONAL}
    table |= {name: Option(name, argument=Argument.NONE, moot=True) for name in _MOOT_SWITCHES}
    table |= {name: Option(name, argument=Argument.NONE, refused=why) for name, why in _REFUSED_SWITCHES.items()}
    return table | {name: Option(name, refused=why) for name, why in _REFUSED.items()}


def _lattice() -> dict[str, Option]:
    """Returns the options of #LATTICE lines by name."""
    table = {name: Option(name, slot) for name, slot in _LATTICE.items()}
    table |= {name: Option(name, slot, Argument.NONE) for name, slot in _LATTICE_SWITCHES.items()}
    return table | {name: Option(name, refused=why) for name, why in _LATTICE_REFUSED.items()}


SLURM: Final = _slurm()
"""Every option of `sbatch` that Lattice knows, by its long name."""
SLURM_SHORT: Final = {letter: SLURM[name] for letter, name in SHORT_NAMES.items()}
"""The one-letter options of `sbatch`."""
LATTICE: Final = _lattice()
"""Every option of `#LATTICE` lines and of `lattice submit`, by its long name."""
INSIDE: Final = _INSIDE
"""The reason for ignoring an option that shapes the inside of a node."""
WITHOUT_NUMBER: Final = "it is about tasks that a launch starts: give their number, --ntasks"
"""The reason for ignoring what shapes the tasks of a command whose number is not asked for."""


def find(table: dict[str, Option], name: str) -> Option | None:
    """Returns the option of this long name, or the only one that begins with it (two letters at least), as getopt does; None where there is
    none, or several begin so.
    """
    if name in table:
        return table[name]
    longer = [option for known, option in table.items() if known.startswith(name)] if len(name) > 1 else []
    return longer[0] if len(longer) == 1 else None
