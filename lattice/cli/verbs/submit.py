"""`lattice submit`: a command, a script or a manifest becomes an Allocation."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lattice.cli import exits
from lattice.cli.follow import changes, until_final
from lattice.cli.leadership import leadership
from lattice.cli.render.allocations import blocker, end_lines, label, phase_of
from lattice.cli.submission import REQUEST_HASH, finish, gather_asked, ignored_flags, read_manifests, read_source
from lattice.errors import AlreadyExists, Denied, LatticeError, NotFound, Rejected, UnknownOutcome
from lattice.kube.resources import ALLOCATIONS
from lattice.models.conditions import COMPLETED, PENDING
from lattice.models.reasons import never_starts
from lattice.scripts.asked import Site, Submitter, needs
from lattice.scripts.commands import slurm_variables
from lattice.scripts.directives import DIALECTS
from lattice.scripts.options import LATTICE, SLURM, Argument
from lattice.scripts.translate import tenant_of, translate
from lattice.views import Allocation

if TYPE_CHECKING:
    from lattice.cli.console import Console

INTERMIXED = True
TAKES_COMMAND = True
"""What stands after `--`."""
NUMBER_SECONDS = 2.0
"""How long `submit` waits for the scheduler to give the number."""
_REPEATS = 3
_PLAN_SECONDS = 5.0
"""How long a dry run waits for the scheduler's word."""
_FLAGS = {
    "name": ("NAME", "the job's name, free text"),
    "nodes": ("N|MIN-MAX", "how many nodes"),
    "walltime": ("TIME", "longest run: 30m, 24h, 7d, or Slurm's forms"),
    "constraint": ("LIST", "key=value, key>=n, features; for example gpu_type=GH200,gpu_count=4"),
    "cpus": ("N", "CPUs that each node must have"),
    "memory": ("SIZE", "memory that each node must have, for example 128Gi"),
    "gpus-per-node": ("N", "GPUs that each node must have"),
    "ntasks": ("N", "number of tasks; without --nodes the nodes follow from it"),
    "ntasks-per-node": ("N", "tasks on each node"),
    "tasks-on": ("WHERE", "head-node (default of scripts) or every-node (default of commands)"),
    "nodelist": ("NODES", "only these nodes, for example nid[001-064]"),
    "exclude": ("NODES", "none of these nodes"),
    "reservation": ("NAME", "run in this reservation (`lattice reservation list`)"),
    "topology": ("HINT", "any, tight or spread"),
    "preemption-class": ("0-10", "priority class"),
    "not-before": ("TIME", "not started before; also Slurm's forms, such as now+1hour"),
    "deadline": ("TIME", "cancelled when not started by then"),
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
    "uenv": ("NAME", "software environment"),
    "view": ("NAME", "view of the uenv"),
    "image": ("IMAGE", "OCI image"),
    "user": ("USER", "submit for another user (needs the right)"),
}
_SWITCHES = {
    "hold": "keep it from starting until `lattice release`",
    "service": "runs until it is cancelled",
    "no-preempt": "never preempted",
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
"""Flags of `sbatch` that mean the like here, and are flags of this verb, or of every verb."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of `submit`; options of Slurm's spelling are taken too, and not listed."""
    parser.usage = "lattice submit [flags] SCRIPT | -f FILE | -- COMMAND [ARGUMENT …]"
    request_arguments(parser)
    parser.add_argument("--request-id", default="", metavar="ID", help="makes repeating it safe: the same id never submits twice")
    parser.add_argument("--dry-run", choices=("client", "server"), help="show what would be applied; client needs no cluster")
    parser.add_argument("--wait", action="store_true", help="wait for its end, show each change of state, and exit with its code")
    parser.add_argument("--watch", action="store_true", help="like --wait, also with -q")
    parser.add_argument("--parsable", action="store_true", help="print only the number")


def simplify(words: list[str]) -> list[str]:
    """Options of `sbatch` whose argument may be left out, without it: none of these arguments counts here."""
    optional = {f"--{name}" for name, option in SLURM.items() if option.argument is Argument.OPTIONAL}
    return [word.partition("=")[0] if word.partition("=")[0] in optional else word for word in words]


def request_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags that say what is asked for; `plan` takes them too."""
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


def run(console: Console) -> int:
    """Submit, and wait where that is asked."""
    try:
        return _run(console)
    except (Denied, NotFound):
        _say_whose_tenant(console)
        raise


def _say_whose_tenant(console: Console) -> None:
    """A script written for another site names an account that is no tenant here: say which line it is."""
    place = getattr(console.args, "tenant_from", "")
    if place:
        console.note(f"Note: the tenant comes from {place}; -t TENANT is stronger")


def _run(console: Console) -> int:
    documents = gather_documents(console)
    if console.args.dry_run:
        return _dry_run(console, documents)
    if len(documents) > 1 and console.args.request_id:
        raise Rejected("--request-id is for one submission, and the file holds several", reason="BadInput")
    codes: list[int] = []
    for document in documents:
        try:
            codes.append(_submit(console, document))
        except LatticeError:
            if len(documents) > 1:
                console.complain(f'In {console.args.filename}: Allocation "{document["metadata"].get("name", "")}"')
            raise
        if codes[-1] == exits.INTERRUPTED:
            return exits.INTERRUPTED
    return exits.of_several(codes)


def _flags(console: Console) -> dict[str, str | bool]:
    flags = {key.removeprefix("ask:"): value for key, value in vars(console.args).items() if key.startswith("ask:") and value is not None}
    for name in ("tenant", "vcluster"):
        if getattr(console.args, name):
            flags[name] = getattr(console.args, name)
    return flags


def gather_documents(console: Console) -> list[dict[str, Any]]:
    """The Allocations, complete but for defaults that the server fills in."""
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
    site = Site() if args.dry_run == "client" else gather_site_for(console, wanted, tenant)
    tenant = tenant_of(asked, site)
    args.tenant = args.tenant or tenant or None
    outside = console.outside
    submitter = Submitter(outside.directory, outside.environ, outside.now())
    made = translate(asked, script=source.script, command=source.command, submitter=submitter, site=site)
    console.warn(made.warnings)
    console.note(*(f"Note: {note}" for note in made.notes))
    return [finish(made.allocation, _namespace(console), args.request_id, outside.random())]


def gather_site_for(console: Console, wanted: frozenset[str], tenant: str) -> Site:
    """The facts of the cluster, asked only where something depends on them."""
    if not wanted:
        return Site(vclusters={}, qos={})
    from lattice.cli.site import gather_site

    return gather_site(console, wanted, tenant)


def _stdin_is_terminal(console: Console) -> bool:
    return console.outside.stdin.isatty()


def _from_manifests(console: Console, flags: dict[str, str | bool]) -> list[dict[str, Any]]:
    args = console.args
    if args.script is not None or args.command is not None:
        raise Rejected("give either -f FILE or work of your own, not both", reason="BadInput")
    given = sorted(set(flags) - {"hold", "tenant"})
    if given:
        raise Rejected(f"--{given[0]} does not go with -f: write it in the manifest", reason="BadInput")
    documents = []
    for document in read_manifests(args.filename, console.outside.stdin):
        _refuse_unknown(args.filename, document)
        spec = document["spec"] = dict(document.get("spec") or {})
        if "hold" in flags:
            spec["hold"] = True
        if spec.get("tenant") and not args.tenant:
            args.tenant = spec["tenant"]
        documents.append(finish(document, _namespace(console), args.request_id, console.outside.random()))
    return documents


def _refuse_unknown(path: str, document: dict[str, Any]) -> None:
    """Strict where the server is lenient: a misspelt field is refused, not pruned."""
    from lattice.admission.strict import parse_strict

    problems = parse_strict("Allocation", document)
    if problems:
        raise Rejected(f"{path}: " + "; ".join(problems), reason="BadDocument")


def _namespace(console: Console) -> str:
    """Where it is submitted; a dry run without a cluster needs none."""
    if console.args.dry_run != "client":
        return console.namespace
    if console.args.namespace or console.tenant:
        return str(console.args.namespace or console.tenant)
    try:
        return console.cluster_config.namespace
    except LatticeError:
        return ""


# Dry runs


def _dry_run(console: Console, documents: list[dict[str, Any]]) -> int:
    if console.args.dry_run == "server":
        shown = []
        for document in documents:
            namespace = document["metadata"]["namespace"]
            made = console.cluster.create(ALLOCATIONS, document, namespace, type=dict[str, Any], dry_run=True)
            made["metadata"].pop("managedFields", None)
            shown.append(made)
        _warn_as_planned(console, shown)
    else:
        for document in documents:
            _judge_offline(console, document)
        shown = documents
    if console.format in ("table", "wide"):
        console.args.output = "yaml"
    if len(shown) > 1 and console.format == "yaml":
        from lattice.cli.render.yaml_text import dump

        console.raw(dump(shown))
    else:
        console.objects("Allocation", shown, one=True)
    return exits.DONE


def _warn_as_planned(console: Console, made: list[dict[str, Any]]) -> None:
    """Warn of what could never start, as `lattice plan` has it; nothing where nobody answers."""
    from lattice.cli.gateway import ask_plan
    from lattice.scheduling.answers import NEVER

    try:
        planned = ask_plan(console, made, seconds=_PLAN_SECONDS).allocations
    except LatticeError:
        return  # a dry run needs neither gateway nor scheduler
    for one in planned:
        if one.verdict == NEVER:
            console.warn([f"{one.allocation.name} can never start as things are: {one.reason}: {one.message}"])


def _judge_offline(console: Console, document: dict[str, Any]) -> None:
    """Ask the chain that the webhook asks, with what is known without a cluster."""
    from lattice.admission import Accepted, Facts, Refused, Request, Requester, admit

    _refuse_unknown("the allocation", document)
    user = console.outside.environ.get("USER") or console.outside.environ.get("LOGNAME") or "you"
    match admit(Request.creation(document), Facts(requester=Requester(user), now=console.outside.now())):
        case Refused() as refused:
            raise Rejected(refused.message, reason=refused.reason, fields=(refused.field,) if refused.field else ())
        case Accepted(warnings=warnings):
            console.warn(warnings)


# Submitting


def _submit(console: Console, document: dict[str, Any]) -> int:
    name = str(document["metadata"].get("name", ""))
    try:
        made = create(console, document)
    except KeyboardInterrupt:
        console.complain("Interrupted before the answer came: it may or may not have been submitted", f"  Hint: `lattice status {name}`")
        return exits.INTERRUPTED
    try:
        made = _numbered(console, made)
        return _report(console, made)
    except KeyboardInterrupt:
        console.note(_goes_on(made))
        return exits.INTERRUPTED
    except LatticeError:
        console.note(_goes_on(made))
        raise


def _goes_on(made: Allocation) -> str:
    return f"Detached: allocation {label(made)} is submitted and goes on. Follow it with `lattice wait {label(made)}`"


def _report(console: Console, made: Allocation) -> int:
    """Say its number, and wait where that is asked."""
    if console.is_document:
        raw = console.cluster.get(ALLOCATIONS, made.metadata.name, made.metadata.namespace, type=dict[str, Any])
        console.objects("Allocation", [raw], one=True)
    elif made.status.number is None:
        _say_without_number(console, made)
    else:
        console.say(str(made.status.number) if console.args.parsable else f"Submitted allocation {made.status.number}")
    console.outside.stdout.flush()
    _warn_of_never(console, made)
    return _wait(console, made) if console.args.wait or console.args.watch else exits.DONE


def _warn_of_never(console: Console, made: Allocation) -> None:
    """What the scheduler said with the number, where no waiting cures it."""
    why = blocker(made)
    if phase_of(made) == PENDING and why is not None and never_starts(why.reason, why.message):
        console.warn([f"it can never start as things are: {why.reason}: {why.message}"])


def create(console: Console, document: dict[str, Any]) -> Allocation:
    """Create it exactly once: an unknown outcome is looked up, and what stands there is ours only if its hash says so."""
    metadata, lost = document["metadata"], ""
    for _ in range(_REPEATS):
        try:
            return console.cluster.create(ALLOCATIONS, document, metadata["namespace"], type=Allocation)
        except UnknownOutcome as error:
            if not metadata.get("name"):
                raise
            lost = error.message
            console.note("Note: the answer was lost; looking whether it was accepted")
            try:
                return _ours(console, metadata)
            except NotFound:
                continue  # it was not: the same name again is safe
        except AlreadyExists:
            return _ours(console, metadata)
    raise UnknownOutcome(f"no answer to {_REPEATS} tries to create {metadata['namespace']}/{metadata['name']}: {lost}")


def _ours(console: Console, metadata: dict[str, Any]) -> Allocation:
    there = console.cluster.get(ALLOCATIONS, metadata["name"], metadata["namespace"], type=Allocation)
    wanted = (metadata.get("annotations") or {}).get(REQUEST_HASH)
    if wanted and there.metadata.annotations.get(REQUEST_HASH) == wanted:
        return there
    request = console.args.request_id
    why = f"request id {request!r} was used for something else" if request else "an allocation of that name exists"
    raise AlreadyExists(f"{why}: {metadata['namespace']}/{metadata['name']} is not what is submitted now", reason="NameTaken")


def _numbered(console: Console, made: Allocation) -> Allocation:
    if made.status.number is not None:
        return made
    for now in changes(console, made, deadline=console.outside.now() + NUMBER_SECONDS):
        made = now
        if made.status.number is not None:
            break
    return made


def _say_without_number(console: Console, made: Allocation) -> None:
    console.say(made.metadata.name if console.args.parsable else f"Submitted allocation {made.metadata.name}")
    why = leadership(console).sentence or "the scheduler has not answered yet"
    console.note(f"Note: it has no number after {NUMBER_SECONDS:.0f} s: {why}")


def _wait(console: Console, made: Allocation) -> int:
    """Show each change of state, which `-q` silences without `--watch`, and why it ended where it has not completed."""
    tells = console.args.watch or not console.args.quiet
    ended = until_final(console, made, tell=tells)
    if ended is None:
        return exits.NOT_YET
    lines = end_lines(ended)
    console.complain(*(lines[1:] if tells else lines if ended.status.phase != COMPLETED else ()))
    return exits.of_work(ended)
