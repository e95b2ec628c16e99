"""Parses the flags of `submit` and `plan`, and makes the Allocations of flags, a script, a command or manifests."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lattice.cli.submission import finish, gather_asked, ignored_flags, read_manifests, read_source
from lattice.errors import LatticeError, Rejected
from lattice.scripts.asked import SiteFacts, Submitter, needs
from lattice.scripts.commands import slurm_variables
from lattice.scripts.directives import DIALECTS
from lattice.scripts.options import LATTICE, SLURM, Argument
from lattice.scripts.translate import tenant_of, translate

if TYPE_CHECKING:
    from lattice.cli.console import Console

_FLAGS = {
    "name": ("NAME", "the job's name, free text"),
    "nodes": ("N|MIN-MAX", "how many nodes"),
    "walltime": ("TIME", "longest run: 30m, 24h, 7d, or Slurm's forms"),
    "constraint": ("LIST", "key=value, key>=n, features; for example gpu_type=GH200,gpu_count=4"),
    "cpus": ("N", "CPUs that each node must have"),
    "memory": ("SIZE", "memory that each node must have, for example 128Gi"),
    "scratch": ("SIZE", "scratch space of its own on each node, which TMPDIR names, for example 500Gi"),
    "gpus-per-node": ("N", "GPUs that each node must have"),
    "ntasks": ("N", "number of tasks; without --nodes the nodes follow from it"),
    "ntasks-per-node": ("N", "tasks on each node"),
    "cpus-per-task": ("N", "CPUs of each task"),
    "gpus-per-task": ("N", "GPUs of each task"),
    "distribution": ("LAYOUT", "how tasks are dealt to nodes: block, cyclic or plane=SIZE"),
    "cpu-bind": ("BINDING", "to what tasks are bound: none, cores, threads, sockets or ldoms"),
    "mpi": ("PMI", "what ranks are served: auto (the default), none, pmi1 or pmi2"),
    "tasks-on": ("WHERE", "head-node (default of scripts) or every-node (default of commands)"),
    "nodelist": ("NODES", "only these nodes, for example nid[001-064]"),
    "exclude": ("NODES", "none of these nodes"),
    "reservation": ("NAME", "run in this reservation (`lattice reservation list`)"),
    "topology": ("HINT", "any, tight or spread"),
    "preemption-class": ("0-10", "priority class"),
    "not-before": ("TIME", "not started before; also Slurm's forms, such as now+1hour"),
    "deadline": ("TIME", "cancelled when not started by then"),
    "signal": ("[B:]SIGNAL[@SECONDS]", "sent once, so long before the walltime is over (default 60): to tasks, with B: to the script"),
    "depends-on": (
        "REF:COND,…",
        "waits for other work: success, failure, any, started[+DELAY], mutex; ? for commas: the first of them",
    ),
    "on-unmet": ("cancel|hold", "what happens when --depends-on can never be met (default: cancel)"),
    "grace-period": ("TIME", "from TERM to KILL"),
    "max-requeue": ("N", "attempts after the first"),
    "project": ("PROJECT", "for accounting"),
    "quota": ("LEAF", "leaf of the quota tree, a name or a path such as physics/theory (default: where your work belongs)"),
    "tag": ("KEY=VALUE,…", "free labels"),
    "intent": ("INTENT", "train, simulate, serve, interactive or preprocess"),
    "chdir": ("DIR", "working directory (default: here)"),
    "stdout": ("FILE", "file for standard output, besides `lattice logs`"),
    "stderr": ("FILE", "file for standard error"),
    "open-mode": ("MODE", "append or truncate"),
    "export": ("NAME,NAME=VALUE", "variables for the work"),
    "variables-from": ("SECRET[:PREFIX],…", "variables from Secrets of the namespace, each key with PREFIX before it"),
    "uenv": ("IMAGE[:MOUNT],…", "software environments: labels, or squashfs files such as ./mine.squashfs"),
    "view": ("[UENV:]VIEW,…", "views of them"),
    "tools-uenv": ("IMAGE[:MOUNT],…", "software environments with tools"),
    "image": ("IMAGE", "OCI image to run in, such as registry.example/team/app:1.0"),
    "device": ("NAME,…", "devices of the node for work in an image, by their CDI names, such as vendor.example/gpu=0"),
    "user": ("USER", "submit for another user (needs the right)"),
}
_SWITCHES = {
    "hold": "keep it from starting until `lattice release`",
    "service": "runs until it is cancelled",
    "no-preempt": "never preempted",
    "no-default-view": "do not set the views that images declare",
    "writable": "the root of the image may be written; what is written goes with the work",
    "requeue": "requeue it when a node fails (the default)",
    "no-requeue": "never requeue it",
    "sensitive": "regulated data",
}
_EXAMPLES = """\
Scripts may have #LATTICE and #SBATCH lines. Strongest first: flags,
environment, #LATTICE, #SBATCH, configuration.

Examples:
  lattice submit job.sh
  lattice submit --nodes=4 --walltime=2h --name=ring -- ./ring --rounds 3
  lattice submit --wait job.sh                      exits with the work's code
  lattice submit --dry-run=client -o yaml job.sh    shows what it becomes, asks no cluster"""
_GLOBAL = frozenset({"tenant", "vcluster", "output"})
_OWN = frozenset({"wait", "parsable", "quiet", "verbose"})
"""Flags of `sbatch` that this verb, or every verb, has with a like meaning."""


def simplify(words: list[str]) -> list[str]:
    """Drops the values of `sbatch` options whose value is optional: Lattice uses none of these values."""
    optional = {f"--{name}" for name, option in SLURM.items() if option.argument is Argument.OPTIONAL}
    return [word.partition("=")[0] if word.partition("=")[0] in optional else word for word in words]


def request_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of a request, which `submit` and `plan` share."""
    parser.epilog = _EXAMPLES
    parser.add_argument("script", nargs="?", metavar="SCRIPT", help="a script with a #! line; - is standard input")
    parser.add_argument("-f", "--filename", metavar="FILE", help="a manifest (YAML or JSON, ours or the book's); - is standard input")
    for name, (metavar, text) in _FLAGS.items():
        parser.add_argument(f"--{name}", dest=f"ask:{name}", metavar=metavar, help=text)
    for name, text in _SWITCHES.items():
        parser.add_argument(f"--{name}", dest=f"ask:{name}", action="store_true", default=None, help=text)
    shown = _FLAGS.keys() | _SWITCHES.keys() | _GLOBAL | _OWN
    for name, option in {**SLURM, **LATTICE}.items():
        if name not in shown:
            action: dict[str, Any] = {} if option.argument is Argument.REQUIRED else {"action": "store_true", "default": None}
            parser.add_argument(f"--{name}", dest=f"ask:{name}", help=argparse.SUPPRESS, **action)
    parser.set_defaults(takes_slurm_options=True)


def gather_documents(console: Console) -> list[dict[str, Any]]:
    """Returns the Allocations that `submit` or `plan` was given: by flags and a command, by a batch script (else standard input, unless it
    is a terminal), or by manifests; they lack only defaults that the server fills in. Sets `args.tenant` where the work names one.

    Warns of what is ignored; raises Rejected where nothing is given, or something that cannot be translated, NotFound for an account that
    means no tenant.
    """
    args, flags = console.args, _flags(console)
    if args.filename is not None:
        return _from_manifests(console, flags)
    if args.script is None and args.command is None and _stdin_is_terminal(console):
        raise Rejected("nothing to submit: give a script, -f FILE, or -- COMMAND. Hint: lattice submit --help", reason="BadInput")
    source = read_source(args.script, args.command, console.outside.stdin)
    asked = gather_asked(flags, source, console.outside.environ, console.configuration)
    console.warn(ignored_flags(flags))
    tenant = asked["tenant"].value or "" if "tenant" in asked else ""
    if tenant and asked["tenant"].source in DIALECTS:
        args.tenant_from = asked["tenant"].place
    wanted = needs(asked, reads_slurm_variables=source.script is not None and bool(slurm_variables(source.script.text)))
    site = SiteFacts() if args.dry_run == "client" else gather_site_for(console, wanted, tenant)
    tenant = tenant_of(asked, site)
    args.tenant = args.tenant or tenant or None
    outside = console.outside
    submitter = Submitter(outside.directory, outside.environ, outside.now(), host=outside.host)
    made = translate(asked, script=source.script, command=source.command, submitter=submitter, site=site)
    console.warn(made.warnings)
    console.note(*(f"Note: {note}" for note in made.notes))
    return [finish(made.allocation, _namespace(console), args.request_id, outside.random())]


def _flags(console: Console) -> dict[str, str | bool]:
    """Returns the flags that describe work, without those that are absent."""
    flags = {key.removeprefix("ask:"): value for key, value in vars(console.args).items() if key.startswith("ask:") and value is not None}
    for name in ("tenant", "vcluster"):
        if getattr(console.args, name):
            flags[name] = getattr(console.args, name)
    return flags


def gather_site_for(console: Console, wanted: frozenset[str], tenant: str) -> SiteFacts:
    """Returns the facts of the cluster that translating the input needs (`wanted`); where none is needed it asks nothing, and vclusters and
    QOS are known as empty.
    """
    if not wanted:
        return SiteFacts(vclusters={}, qos={})
    from lattice.cli.site import gather_site

    return gather_site(console, wanted, tenant)


def _stdin_is_terminal(console: Console) -> bool:
    """Tells whether standard input is a terminal."""
    return console.outside.stdin.isatty()


def _from_manifests(console: Console, flags: dict[str, str | bool]) -> list[dict[str, Any]]:
    """Returns the Allocations of the manifests in a file, with `--hold` if given; the first tenant that one names is kept as that of the
    command line.

    Raises Rejected where flags or work of its own are given beside it that do not go with a file, and for a misspelt field.
    """
    args = console.args
    if args.script is not None or args.command is not None:
        raise Rejected("give either -f FILE or work of your own, not both", reason="BadInput")
    given = sorted(set(flags) - {"hold", "tenant"})
    if given:
        raise Rejected(f"--{given[0]} does not go with -f: write it in the manifest", reason="BadInput")
    documents = []
    for document in read_manifests(args.filename, console.outside.stdin):
        refuse_unknown(args.filename, document)
        spec = document["spec"] = dict(document.get("spec") or {})
        if "hold" in flags:
            spec["hold"] = True
        if spec.get("tenant") and not args.tenant:
            args.tenant = spec["tenant"]
        documents.append(finish(document, _namespace(console), args.request_id, console.outside.random()))
    return documents


def refuse_unknown(path: str, document: dict[str, Any]) -> None:
    """Raises Rejected for everything that the strict reading of an Allocation finds: a misspelt field, which the server would silently
    drop, a wrong value, a part that is not served.

    `path` names the source.
    """
    from lattice.admission.strict import parse_strict

    problems = parse_strict("Allocation", document)
    if problems:
        raise Rejected(f"{path}: " + "; ".join(problems), reason="BadDocument")


def _namespace(console: Console) -> str:
    """Returns the namespace of the submission; empty where a client-side dry run knows none."""
    if console.args.dry_run != "client":
        return console.namespace
    if console.args.namespace or console.tenant:
        return str(console.args.namespace or console.tenant)
    try:
        return console.cluster_config.namespace
    except LatticeError:
        return ""
