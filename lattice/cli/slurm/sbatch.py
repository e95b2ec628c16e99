"""`sbatch`: submits a batch script as an Allocation, and prints the number of its job."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lattice.cli import exits
from lattice.cli.creation import create
from lattice.cli.files import read_file
from lattice.cli.follow import until_final
from lattice.cli.long_scripts import split_script
from lattice.cli.request import gather_site_for
from lattice.cli.slurm import exported, sayings
from lattice.cli.slurm.options import COMMON, COMMON_SHORT, Grammar, Parsed
from lattice.cli.submission import Source, finish, gather_asked
from lattice.cli.verbs.submit import await_number
from lattice.errors import LatticeError, NotFound, Rejected
from lattice.kube.resources import ALLOCATIONS
from lattice.scripts.asked import Given, Submitter, merge, needs
from lattice.scripts.directives import MAX_SCRIPT_BYTES, decode_script, read_script
from lattice.scripts.options import SHORT_NAMES, SLURM, Argument
from lattice.scripts.translate import Translation, tenant_of, translate

if TYPE_CHECKING:
    from lattice.cli.console import Console
    from lattice.views import Allocation

_OWN: Final = {"wrap": Argument.REQUIRED, "parsable": Argument.NONE, "wait": Argument.NONE, "test-only": Argument.NONE}
GRAMMAR: Final = Grammar(
    "sbatch", COMMON | {name: option.argument for name, option in SLURM.items()} | _OWN, COMMON_SHORT | SHORT_NAMES, stops_at_word=True
)
WRONG_USAGE = 255
NUMBER_SECONDS: Final = 60.0
"""How long the number of a job is waited for."""
FAILED_BEFORE: Final = "Batch job submission failed: "
_VARIABLES: Final = {
    f"SBATCH_{name.upper().replace('-', '_')}": name
    for name in (
        "account", "acctg-freq", "batch", "clusters", "constraint", "container", "core-spec", "cpus-per-gpu", "delay-boot", "dependency",
        "distribution", "error", "exclusive", "export", "get-user-env", "gpu-bind", "gpu-freq", "gpus", "gpus-per-node", "gpus-per-task",
        "gres", "gres-flags", "hint", "input", "job-name", "mem-bind", "mem-per-cpu", "mem-per-gpu", "network", "no-kill", "no-requeue",
        "open-mode", "output", "overcommit", "partition", "power", "profile", "qos", "requeue", "reservation", "signal", "spread-job",
        "thread-spec", "threads-per-core", "use-min-nodes", "wait-all-nodes", "wckey",
    )
} | {
    "SBATCH_ARRAY_INX": "array", "SBATCH_CPU_FREQ_REQ": "cpu-freq", "SBATCH_MEM_PER_NODE": "mem", "SBATCH_REQ_SWITCH": "switches",
    "SBATCH_TIMELIMIT": "time",
}  # fmt: skip
"""The variables that give options of `sbatch`."""
_NO_SCRIPT: Final = (
    "This does not look like a batch script.  The first\nline must start with #! followed by the path to an interpreter.\n"
    "For instance: #!/bin/sh"
)
_NUMBERED: Final = re.compile(r"%[jAJ]")
_WRAPPED: Final = "#!/bin/sh\n# This script was created by sbatch --wrap.\n\n{}\n"


def run(console: Console, given: Parsed) -> int:
    """Submits the script, prints its number, with `--wait` waits for its end, and returns the exit code; nothing is submitted where an
    option or the script does not read, or the cluster refuses it.
    """
    outside = console.outside
    try:
        source = _source(console, given)
        document = _document(console, given, source)
        if given.has("test-only"):
            tried, _ = split_script(document)
            console.cluster.create(ALLOCATIONS, tried, document["metadata"]["namespace"], type=dict[str, Any], dry_run=True)
            sayings.say(
                outside, "sbatch", f"Job would be accepted; `lattice plan {given.words[0] if given.words else ''}` says when it starts"
            )
            return exits.DONE
        made = _submit(console, document)
    except _Plain as plain:
        sayings.error(outside, "sbatch", plain.message)
        return exits.FAILED
    except LatticeError as error:
        sayings.complain(outside, "sbatch", error, FAILED_BEFORE)
        return exits.FAILED
    if made.status.number is None:
        return _withdraw(console, made)
    if not given.has("quiet") or given.has("parsable"):
        console.say(str(made.status.number) if given.has("parsable") else f"Submitted batch job {made.status.number}")
    outside.stdout.flush()
    if not given.has("wait") and "SBATCH_WAIT" not in outside.environ:
        return exits.DONE
    ended = until_final(console, made, notes_changes=False)
    return exits.of_work(ended) if ended is not None else exits.FAILED


def _submit(console: Console, document: dict[str, Any]) -> Allocation:
    """Creates the Allocation, and returns it with its number, or without one where none came in time.

    Where the number names a folder of its output files, as submitit has it, it is held until that folder is there: clients make it once
    they know the number, which is later than work may start here.
    """
    spec = document["spec"]
    named = [path.parent for path in _outputs(spec) if _NUMBERED.search(str(path.parent))]
    if not named or spec.get("hold"):
        return await_number(console, create(console, document), NUMBER_SECONDS)
    made = await_number(console, create(console, {**document, "spec": {**spec, "hold": True}}), NUMBER_SECONDS)
    if made.status.number is None:
        return made
    for folder in named:
        with suppress(OSError):  # the job says what is wrong with its files
            Path(_NUMBERED.sub(str(made.status.number), str(folder))).mkdir(parents=True, exist_ok=True)
    return console.cluster.patch(ALLOCATIONS, made.metadata.name, {"spec": {"hold": False}}, made.metadata.namespace, type=type(made))


def _outputs(spec: Mapping[str, Any]) -> list[Path]:
    """Returns the output files that a spec names, from its working directory."""
    environment = spec.get("environment") or {}
    output = environment.get("output") or {}
    return [Path(environment.get("workdir", "")) / output[stream] for stream in ("stdout", "stderr") if output.get(stream)]


class _Plain(Rejected):
    """An error that sbatch says before it asks anybody: without the words that a submission failed."""


def _source(console: Console, given: Parsed) -> Source:
    """Returns the script: of `--wrap`, of the file that is named, else of standard input; it counts as one of Slurm's.

    Raises an error of sbatch for arguments beside `--wrap`, a file that cannot be read, and text without a #! line.
    """
    wrapped = given.last("wrap")
    if wrapped is not None:
        if given.words:
            raise _Plain("Script arguments not permitted with --wrap option")
        text, name = _WRAPPED.format(wrapped), "wrap"
    elif given.words and given.words[0] not in ("-", "/dev/stdin"):
        path = given.words[0]
        try:
            data = read_file(str(Path(console.outside.directory) / path), MAX_SCRIPT_BYTES * 16)
        except (NotFound, Rejected) as error:
            raise _Plain(f"Unable to open file {path}") from error
        text, name = _text(data, path), Path(path).name
    else:
        text, name = _text(console.outside.stdin.read(MAX_SCRIPT_BYTES * 16), "standard input"), "sbatch"
    return Source(dataclasses.replace(read_script(text, as_sbatch=True), is_slurm=True), None, name)


def _text(data: bytes, name: str) -> str:
    """Returns the text of a script; raises, in Slurm's words, for one without a #! line, else what `decode_script` raises."""
    if data and b"\0" not in data and not data.startswith(b"#!"):
        raise _Plain(_NO_SCRIPT)
    return decode_script(data, name)


def _document(console: Console, given: Parsed, source: Source) -> dict[str, Any]:
    """Returns the Allocation to create; warns of what is not acted on. Raises Rejected for an option that cannot be expressed."""
    outside = console.outside
    asked = dict(gather_asked({}, source, outside.environ, console.configuration))
    asked = merge([*asked.items(), *_of_variables(console), *_of_options(console, given)])
    export = asked.pop("export", None)
    named, passes_all = exported.split_export(export)
    if export is not None and named:
        asked["export"] = dataclasses.replace(export, value=named)
    wanted = needs(asked, reads_slurm_variables=False)
    tenant = asked["tenant"].value or "" if "tenant" in asked else ""
    site = dataclasses.replace(gather_site_for(console, wanted, tenant), slurm_env=True, slurm_env_of_scripts=False)
    console.args.tenant = console.args.tenant or tenant_of(asked, site) or None
    submitter = Submitter(outside.directory, outside.environ, outside.now(), host=outside.host)
    made = translate(asked, script=source.script, command=None, submitter=submitter, site=site)
    sayings.warn(outside, "sbatch", made.warnings)
    _complete(console, made, given.words[1:], passes_all=passes_all)
    return finish(made.allocation, console.namespace, "", outside.random())


def _complete(console: Console, made: Translation, arguments: tuple[str, ...], *, passes_all: bool) -> None:
    """Puts into an Allocation what sbatch gives a job and `lattice submit` does not: the script's arguments, Slurm's variables, and the
    submitter's own, of which some are dropped with a warning.
    """
    spec = made.allocation["spec"]
    environment = spec.setdefault("environment", {})
    environment["slurmVariables"] = True
    if arguments:
        spec["scriptArguments"] = list(arguments)
    if passes_all:
        passed = exported.passed_on(console.outside.environ, environment.get("variables", {}))
        sayings.warn(console.outside, "sbatch", passed.warnings)
        environment["variables"] = passed.variables


def _of_variables(console: Console) -> list[tuple[str, Given]]:
    """Returns the options that variables such as SBATCH_PARTITION give; warns and raises as `_of_options`."""
    environ = console.outside.environ
    found = []
    for variable, name in _VARIABLES.items():
        if variable in environ:
            value = None if SLURM[name].argument is Argument.NONE else environ[variable]
            found += _taken(console, Given(name, value, "environment", f"{variable}={environ[variable]}"))
    return found


def _of_options(console: Console, given: Parsed) -> list[tuple[str, Given]]:
    """Returns the options of the command line that are acted on; warns of others. Raises Rejected for one that is not served."""
    found = []
    for name, value in given.options:
        if name in SLURM and name not in _OWN and name not in COMMON:
            found += _taken(console, Given(name, value, "command line", f"--{name}" if value is None else f"--{name}={value}"))
    return found


def _taken(console: Console, given: Given) -> list[tuple[str, Given]]:
    """Returns an option with its slot where it is acted on; else nothing, and warns where it asks for what is not so.

    Raises Rejected for one that is not served.
    """
    option = SLURM[given.option]
    if option.refused:
        raise Rejected(f"{given.place}: {option.refused}", reason="NotServed", fields=(given.option,))
    if option.ignored:
        sayings.warn(console.outside, "sbatch", [f"{given.place} ignored ({option.ignored})"])
    return [] if option.ignored or option.moot else [(option.slot, given)]


def _withdraw(console: Console, made: Allocation) -> int:
    """Cancels an allocation that was given no number, since nobody could ask for it as a job, says so, and returns FAILED."""
    name = f"{made.metadata.namespace}/{made.metadata.name}"
    wish = {"spec": {"cancel": {"reason": "sbatch: it was given no number in time"}}}
    try:
        console.cluster.patch(ALLOCATIONS, made.metadata.name, wish, made.metadata.namespace, type=dict[str, Any])
        what = "it is cancelled"
    except LatticeError as error:
        what = f"cancel it with `lattice cancel {name}` ({error.message})"
    sentence = f"{FAILED_BEFORE}no scheduler gave {name} a number within {NUMBER_SECONDS:g} s: {what}"
    sayings.error(console.outside, "sbatch", sentence)
    return exits.FAILED
