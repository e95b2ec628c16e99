"""The verbs, their modules and the global flags; loads argparse only, so that `lattice --help` is quick."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, cast

if TYPE_CHECKING:
    from lattice.cli.console import Console


class Verb(NamedTuple):
    """The module of a verb, its summary of one line, and the group under which `--help` lists it."""

    module: str
    summary: str
    group: str


VERBS: Final[dict[str, Verb]] = {
    "submit": Verb("submit", "Submit a command, a batch script or a manifest", "Work"),
    "status": Verb("status", "Show allocations: what runs, where, since when, and why the rest waits", "Work"),
    "why": Verb("why", "Say why an allocation waits, what stands before it, when it is expected to start, or how it ended", "Work"),
    "queue": Verb("queue", "Show what is pending in order, and the use of nodes to come", "Work"),
    "plan": Verb("plan", "Say what would become of work that is not submitted: where and when it would start", "Work"),
    "logs": Verb("logs", "Show what an allocation prints", "Work"),
    "diag": Verb("diag", "Print everything about an allocation or a node on one page, for a support ticket", "Work"),
    "wait": Verb("wait", "Wait until allocations have ended, and exit with their code", "Work"),
    "cancel": Verb("cancel", "Cancel allocations", "Work"),
    "hold": Verb("hold", "Keep pending allocations from starting", "Work"),
    "release": Verb("hold", "Let held allocations start", "Work"),
    "requeue": Verb("requeue", "End an attempt, and let another one follow; submit ended work again", "Work"),
    "update": Verb("update", "Change what may be changed of an allocation", "Work"),
    "dag": Verb("dag", "Submit graphs of allocations as one; show, hold, cancel and resubmit them", "Work"),
    "usage": Verb("usage", "Show hours used, by day and by whom, and how budgets stand", "Work"),
    "history": Verb("history", "Show what ran, how long, how it ended and what it was charged", "Work"),
    "nodes": Verb("nodes", "Show nodes", "Cluster"),
    "node": Verb("node", "Show what a node is doing; drain, undrain, enable, disable or forget nodes", "Cluster"),
    "reservation": Verb("reservation", "Set nodes aside in advance, for maintenance or for some people's work", "Cluster"),
    "uenv": Verb("uenv", "List the software environments of the site's registry, and show one", "Cluster"),
    "cache": Verb("cache", "Show the images that nodes keep; bring one to them, or remove it", "Cluster"),
    "replay": Verb("replay", "Replay a workload on another machine, policy or weights; capture one of this system", "Planning"),
    "quota": Verb("quota", "Show the elastic quota tree, and every gate before an allocation; divide a tree offline", "Planning"),
    "admin": Verb("admin", "Tenants, vclusters, topology, configuration, the ledger", "Cluster"),
    "compat": Verb("compat", "Link Slurm's programs into a directory, for clients that drive Slurm", "This program"),
    "version": Verb("version", "Show the versions of this program and of the cluster", "This program"),
    "completion": Verb("completion", "Print the completion script of a shell", "This program"),
}
ALIASES: Final = {"completions": "completion", "diagnostics": "diag", "reservations": "reservation", "dags": "dag"}
"""Other spellings of verbs: the book's, and plurals."""
GLOBAL_WITH_VALUE: Final = frozenset(
    {"-o", "--output", "-t", "--tenant", "--vcluster", "--config", "--kubeconfig", "--context", "-n", "--namespace"}
)
SLURM_PROGRAMS: Final = {
    "sbatch": "Submits a batch script, and prints the number of its job",
    "squeue": "Lists the jobs that wait and run",
    "scancel": "Cancels jobs",
    "sacct": "Lists jobs of today, or named ones, and how they ended",
    "scontrol": "Shows jobs, partitions, nodes and the configuration; holds, releases, requeues and changes jobs",
    "sinfo": "Lists partitions and the states of their nodes",
    "sacctmgr": "Lists accounts and users",
    "salloc": "Says what to do instead: allocations without a script are not made",
    "srun": "Starts tasks within a job; outside of one it says what to do",
}
"""The programs of Slurm that Lattice has for clients that drive Slurm, modules of `lattice.cli.slurm`, with what each does."""
_WIDTH: Final = 80
_NOTES: Final = (
    (
        "From Slurm:",
        "sbatch is submit, squeue status, scancel cancel, sinfo nodes, sacct history, scontrol hold, release, requeue and update.",
    ),
    ("Other verbs:", "the program lattice-VERB on PATH (`lattice dev` starts a local cluster)."),
    ("Global flags:", "-o table|wide|json|yaml|name, -q, -v, -t TENANT, --vcluster, --config, --no-color, --kubeconfig, --context, -n."),
    ("Exit codes:", "0 done, 1 refused or failed, 2 bad input, 3 not yet, 4 not found, 5 denied, 6 not reachable, 7 some failed;"),
    ("", "wait and submit --wait: the work's own code, 125 when it ended without one."),
)
FORMATS: Final = ("table", "wide", "json", "yaml", "name")


class VerbModule(Protocol):
    """The interface of a verb's module."""

    INTERMIXED: bool
    """True where flags may stand between the verb's arguments, which is not possible with subcommands."""

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds the verb's own flags."""
        ...

    def run(self, console: Console) -> int:
        """Runs the verb and returns the exit code."""
        ...


def verb_module(verb: str) -> VerbModule:
    """Returns the loaded module of a verb, which must be one of `VERBS`."""
    return cast("VerbModule", import_module(f"lattice.cli.verbs.{VERBS[verb].module}"))


def split_verb(arguments: list[str]) -> tuple[str | None, list[str]]:
    """Returns the verb (aliases resolved; None: there is none) and all other arguments; global flags may stand before the verb."""
    at = verb_place(arguments)
    if at is None:
        return None, arguments
    verb = ALIASES.get(arguments[at], arguments[at])
    return verb, arguments[:at] + arguments[at + 1 :]


def verb_place(arguments: list[str]) -> int | None:
    """Returns the place of the verb among the arguments: the first that neither begins with a dash nor is the value of a global flag.

    None: there is none, or `--` comes before it.
    """
    at = 0
    while at < len(arguments) and arguments[at].startswith("-") and arguments[at] != "--":
        at += 2 if arguments[at] in GLOBAL_WITH_VALUE else 1
    return at if at < len(arguments) and arguments[at] != "--" else None


def add_global_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags that every verb takes, at the verb and at each of its subcommands."""
    _add_flags(parser, default=None)
    for below in _subparsers(parser):
        _add_flags(below, default=argparse.SUPPRESS)  # what stands before a subcommand is kept


def _subparsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """Yields the parsers of all actions below a parser, at any depth."""
    for action in parser._actions:  # argparse has no other way to ask
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                yield below
                yield from _subparsers(below)


def _add_flags(parser: argparse.ArgumentParser, default: str | None) -> None:
    """Adds the global flags to a parser, with this default (None: absent), so that they may stand before and after the verb."""
    flags = parser.add_argument_group("global flags")

    def add(*names: str, metavar: str, text: str) -> None:
        """Adds one flag that takes a value."""
        flags.add_argument(*names, metavar=metavar, help=text, default=default)

    def switch(*names: str, text: str) -> None:
        """Adds one flag that takes no value."""
        flags.add_argument(*names, action="store_true", help=text, default=False if default is None else default)

    formats = (*FORMATS, *(parser.get_default("more_formats") or ()))
    choices = ", ".join(formats)
    if parser.get_default("output_may_be_a_path"):
        flags.add_argument("-o", "--output", metavar="FORMAT|PATH", help=f"{choices}; or the file or folder to write", default=default)
    else:
        flags.add_argument(
            "-o", "--output", choices=formats, metavar="FORMAT", help=f"{choices} (files of the work: --stdout)", default=default
        )
    switch("-q", "--quiet", text="no notes")
    switch("-v", "--verbose", text="more about errors")
    add("-t", "--tenant", metavar="TENANT", text="the tenant, and so its namespace")
    add("--vcluster", metavar="VCLUSTER", text="the vcluster")
    add("--config", metavar="FILE", text="default: ~/.config/lattice/config.yaml")
    switch("--no-color", text="no colours")
    add("--kubeconfig", metavar="FILE", text="default: KUBECONFIG, or ~/.kube/config")
    add("--context", metavar="NAME", text="a context of the kubeconfig")
    add("-n", "--namespace", metavar="NAMESPACE", text="default: the tenant's, or the kubeconfig's")


def overview() -> str:
    """Returns the text of `lattice --help`, in lines of at most 80 characters."""
    lines = ["Usage: lattice VERB [arguments] [flags]", "", "Lattice schedules work on bare-metal nodes through the Kubernetes API.", ""]
    for group in dict.fromkeys(verb.group for verb in VERBS.values()):
        lines.append(f"{group}:")
        for name, verb in VERBS.items():
            if verb.group == group:
                lines += _wrapped(f"  {name:<12}", verb.summary)
        lines.append("")
    for head, text in _NOTES:
        lines += _wrapped(f"{head:<14}", text)
    return "\n".join([*lines, "", "`lattice VERB --help` explains a verb."]) + "\n"


def _wrapped(head: str, text: str) -> list[str]:
    """Returns the text in lines: the first behind `head`, the others indented below it."""
    lines = [head]
    for word in text.split():
        if len(lines[-1]) + len(word) >= _WIDTH:
            lines.append(" " * len(head))
        lines[-1] += word if lines[-1].endswith(" ") else f" {word}"
    return lines
