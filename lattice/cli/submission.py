"""Makes Allocations from the input of `submit` (flags, a command, a script, manifests), and names each."""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from lattice.cli.files import read_bounded, read_file
from lattice.errors import Rejected
from lattice.scripts.asked import Given, merge
from lattice.scripts.book import from_book, is_book
from lattice.scripts.directives import MAX_SCRIPT_BYTES, Script, decode_script, read_script
from lattice.scripts.options import LATTICE, SLURM, Option

if TYPE_CHECKING:
    from lattice.cli.configuration import Configuration

REQUEST_ID = "lattice.dev/request-id"
REQUEST_HASH = "lattice.dev/request-hash"
"""Annotations that make repeating a submission safe: an existing object counts as success only with our hash."""
_LONGEST_NAME = 64
"""Most characters of a job's name that is made from the command."""
_LONGEST_MANIFEST = 8 * 1024 * 1024
_OF_SBATCH = (("uenv", "SBATCH_UENV"), ("view", "SBATCH_UENV_VIEW"))
"""Variables of the uenv plugin for Slurm that name what `sbatch` is not given by option."""


@dataclass(frozen=True)
class Source:
    """The work to submit: a script or a command, and the job name that follows from it."""

    script: Script | None
    command: str | None
    name: str


def read_source(path: str | None, command: list[str] | None, stdin: BinaryIO) -> Source:
    """Returns the work: the words after `--` (`command`), else the script at `path` (`-` or None: standard input).

    Raises Rejected for both or an empty command, and for a script that cannot be read, is too large or has a wrong line.
    """
    if command is not None:
        if path is not None:
            raise Rejected(f"give either a script ({path}) or a command after --, not both", reason="BadInput")
        if not command or not command[0]:
            raise Rejected("there is no command after --", reason="BadInput")
        return Source(None, shlex.join(command), command[0].rsplit("/", 1)[-1][:_LONGEST_NAME])
    if path is None or path == "-":
        return Source(read_script(decode_script(stdin.read(MAX_SCRIPT_BYTES * 16), "standard input")), None, "stdin")
    return Source(read_script(decode_script(read_file(path, MAX_SCRIPT_BYTES * 16), path)), None, Path(path).name)


def gather_asked(
    flags: Mapping[str, str | bool], source: Source, environ: Mapping[str, str], configuration: Configuration
) -> dict[str, Given]:
    """Returns each option that was given, by slot, from its strongest source: flags, environment, script, configuration; the job's name is
    always there. Ignored flags are left out.

    Raises Rejected for a flag that is not served.
    """
    given: list[tuple[str, Given]] = [("name", Given("name", source.name, "configuration", "the name of what is submitted"))]
    for option, value in (
        ("tenant", configuration.default_tenant),
        ("vcluster", configuration.default_vcluster),
        ("uenv", configuration.default_uenv),
    ):
        if value:
            given.append((option, Given(option, value, "configuration", f"configuration: default_{option}")))
    for option in ("tenant", "vcluster"):
        variable = f"LATTICE_{option.upper()}"
        if environ.get(variable):
            given.append((option, Given(option, environ[variable], "environment", f"{variable}={environ[variable]}")))
    for option, variable in _OF_SBATCH:
        if environ.get(variable):
            given.append((option, Given(option, environ[variable], "environment", f"{variable}={environ[variable]}")))
    given += source.script.given if source.script is not None else ()
    for option, flag in flags.items():
        known = _option(option)
        place = f"--{option}" if flag is True else f"--{option}={flag}"
        if known.refused:
            raise Rejected(f"{place}: {known.refused}", reason="NotServed", fields=(option,))
        if not (known.ignored or known.moot):
            given.append((known.slot, Given(option, None if flag is True else str(flag), "command line", place)))
    return merge(given)


def ignored_flags(flags: Mapping[str, str | bool]) -> list[str]:
    """Returns a sentence for each flag of `sbatch` that is accepted and has no effect."""
    known = {option: (_option(option), flag) for option, flag in flags.items()}
    return [
        f"--{option}{'' if flag is True else f'={flag}'} ignored ({one.ignored})" for option, (one, flag) in known.items() if one.ignored
    ]


def _option(name: str) -> Option:
    """Returns our option of that name, else sbatch's."""
    return LATTICE.get(name) or SLURM[name]


def read_manifests(path: str, stdin: BinaryIO) -> list[dict[str, Any]]:
    """Returns the Allocations of a YAML or JSON file (`-`: standard input), ours or the book's.

    Raises Rejected for other kinds, a file without any, and one of more than 8 MiB.
    """
    import yaml

    data = read_bounded(stdin, _LONGEST_MANIFEST, "standard input") if path == "-" else read_file(path, _LONGEST_MANIFEST)
    try:
        documents = [document for document in yaml.safe_load_all(data.decode()) if document is not None]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Rejected(f"{path} is no YAML: {' '.join(str(error).split())}", reason="BadDocument") from error
    found: list[dict[str, Any]] = []
    for document in documents:
        if not isinstance(document, dict):
            raise Rejected(f"{path} holds {document!r}, not an Allocation", reason="BadDocument")
        listed = document.get("items") if str(document.get("kind", "")).endswith("List") else None
        found += [_allocation(path, one) for one in (listed if isinstance(listed, list) else [document])]
    if not found:
        raise Rejected(f"{'standard input' if path == '-' else path} holds no Allocation", reason="BadDocument")
    return found


def _allocation(path: str, document: Any) -> dict[str, Any]:
    """Returns the Allocation of a manifest; one in the book's form is translated. Raises Rejected for anything else."""
    if not isinstance(document, dict):
        raise Rejected(f"{path} holds {document!r}, not an Allocation", reason="BadDocument")
    if is_book(document):
        return from_book(document)
    if document.get("kind") != "Allocation":
        raise Rejected(
            f"{path} holds a {document.get('kind')}: submit takes Allocations, `kubectl apply` takes everything", reason="BadDocument"
        )
    return document


def finish(document: dict[str, Any], namespace: str, request_id: str, random: str) -> dict[str, Any]:
    """Returns the object to send: with namespace, a name of its own, and the hash by which a repetition knows it. An empty namespace is
    left out.

    A manifest that has a name or `generateName` keeps it, and gets no hash.
    """
    metadata = dict(document.get("metadata") or {})
    metadata.setdefault("namespace", namespace)
    if not metadata.get("name") and not metadata.get("generateName"):
        spec: Mapping[str, Any] = document.get("spec") or {}
        metadata["name"] = name_of(str((spec.get("tags") or {}).get("name") or "work"), request_id, random)
        annotations = {**(metadata.get("annotations") or {}), REQUEST_HASH: spec_hash(spec)}
        metadata["annotations"] = {**annotations, REQUEST_ID: request_id} if request_id else annotations
    return {**document, "metadata": {key: value for key, value in metadata.items() if value}}


def name_of(job: str, request_id: str, random: str) -> str:
    """Returns an object's name from the job's name and random letters; with a request id it follows from that id alone."""
    if request_id:
        return f"{slug(request_id)[:40]}-{hashlib.sha256(request_id.encode()).hexdigest()[:8]}"
    return f"{slug(job)[:50]}-{random}"


def slug(text: str) -> str:
    """Returns the text as part of an object's name: lower case, digits and dashes; `work` where nothing is left."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "work"


def spec_hash(spec: Mapping[str, Any]) -> str:
    """Returns a hash of a spec (16 hexadecimal digits), the same for equal ones whatever the order of their keys."""
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
