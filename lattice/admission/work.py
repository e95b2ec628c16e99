"""Checks the work that an Allocation starts: entrypoint, script, variables, working directory, output files, job name."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from lattice.admission.facts import Facts
from lattice.admission.submission import Submission
from lattice.admission.verdicts import Caution, Finding, Refused

MAX_WORK_BYTES: Final = 65536
"""Most bytes of an entrypoint, and of a script."""
MAX_OUTPUT: Final = 1024
"""Most characters of an output file's name, as in the schema."""
MAX_VARIABLES: Final = 512
"""Most variables, as in the schema."""
MAX_VARIABLES_BYTES: Final = 131072
"""Most bytes in names and values of all variables together, as in `policies-limits.yaml`."""
MAX_JOB_NAME: Final = 253
"""Most characters of a tag's value."""
OUTPUT_LETTERS: Final = "jxuAaNnJts%"
"""The letters that may follow % (and a width) in an output file's name."""
SECRET_WORDS: Final = ("TOKEN", "SECRET", "PASSWORD", "CREDENTIAL", "PRIVATE_KEY")
"""Parts of a variable's name that suggest a secret."""

_PATTERN = re.compile(r"%[0-9]{0,2}(.?)", re.DOTALL)
_PIECE = r"""\\.|'[^']*'|"(?:[^"\\]|\\.)*+\""""
_WORDS = re.compile(rf"(?:[^\\'\"]++|{_PIECE})*+", re.DOTALL)
"""A line as `shlex.split` reads it, in time that grows with its length alone."""
_FIRST_WORD = re.compile(rf"[ \t\r\n]*+((?:[^\\'\" \t\r\n]|{_PIECE})++)", re.DOTALL)
_EMPTY_WORD = re.compile(r"""(?:''|"")+""")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SURROGATE = re.compile(r"[\ud800-\udfff]")


def check_work(asked: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal unless either an entrypoint or a script is given, and it can be started."""
    del facts
    entrypoint, script, elsewhere = asked.spec.entrypoint, asked.spec.script, asked.spec.script_from
    if entrypoint is not None and script is not None:
        yield Refused("WorkMissing", "spec.entrypoint and spec.script are both given", "spec", "give exactly one of them")
    if elsewhere is not None and (entrypoint is not None or script is not None):
        given = "spec.script" if script is not None else "spec.entrypoint"
        yield Refused("WorkMissing", f"spec.scriptFrom and {given} are both given", "spec", "give exactly one of them")
    if entrypoint is None and script is None and elsewhere is None:
        yield Refused("WorkMissing", "neither spec.entrypoint nor spec.script is given", "spec", "give exactly one of them")
    if entrypoint is not None:
        yield from _entrypoint(entrypoint)
    if script is not None:
        yield from _script(script)
    yield from _arguments(asked.spec.script_arguments)


def _entrypoint(text: str) -> Iterator[Finding]:
    """Yields a refusal where an entrypoint is too long (in characters), holds a NUL, does not split into words, or has an empty first word;
    the first of these ends the check.
    """
    field = "spec.entrypoint"
    if len(text) > MAX_WORK_BYTES:
        sentence = f"spec.entrypoint has {len(text)} characters (limit: {MAX_WORK_BYTES})"
        yield Refused("EntrypointInvalid", sentence, field, "put long work into a script or a file on the nodes")
        return
    if "\0" in text:
        yield Refused("EntrypointInvalid", f"spec.entrypoint has a NUL at character {text.index(chr(0)) + 1}", field, "take it out")
        return
    read = _WORDS.match(text)
    if read is None or read.end() < len(text):
        what = "no escaped character" if read is not None and text.endswith("\\") and text[read.end()] == "\\" else "no closing quotation"
        sentence = f"spec.entrypoint does not split into words: {what}"
        yield Refused("EntrypointInvalid", sentence, field, "close each quote; no shell reads the line, use `script` for shell code")
        return
    first = _FIRST_WORD.match(text)
    if first is None or _EMPTY_WORD.fullmatch(first[1]):
        yield Refused("EntrypointInvalid", "spec.entrypoint is empty", field, "name the command to run")


def _script(text: str) -> Iterator[Finding]:
    """Yields a refusal where a script is too large, is no UTF-8, holds a NUL or a CRLF, or does not begin with #! and an interpreter."""
    field = "spec.script"
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > MAX_WORK_BYTES:
        hint = "`lattice submit SCRIPT` puts scripts of up to 1 MiB into a ConfigMap that spec.scriptFrom names"
        yield Refused("ScriptInvalid", f"spec.script has {size} bytes (limit: {MAX_WORK_BYTES})", field, hint)
        return
    lone = _SURROGATE.search(text)
    if lone is not None:
        line = text.count("\n", 0, lone.start()) + 1
        yield Refused(
            "ScriptInvalid", f"spec.script is no UTF-8 in line {line}", field, "save it as UTF-8; a binary is started by an entrypoint"
        )
        return
    for mark, what, hint in (
        ("\0", "a NUL", "a binary is started by an entrypoint"),
        ("\r\n", "a Windows line end (CRLF)", "convert it, for example with dos2unix"),
    ):
        if mark in text:
            line = text.count("\n", 0, text.index(mark)) + 1
            yield Refused("ScriptInvalid", f"spec.script has {what} in line {line}", field, hint)
    first = text.split("\n", 1)[0]
    if not first.startswith("#!") or not first[2:].strip():
        sentence = f"spec.script does not begin with #! and an interpreter: its first line is {first[:60]!r}"
        yield Refused("ScriptInvalid", sentence, field, "begin it with, for example, #!/bin/bash")


def _arguments(words: tuple[str, ...]) -> Iterator[Finding]:
    """Yields a refusal where the arguments of a script are too long together, or one holds a NUL."""
    field = "spec.scriptArguments"
    size = sum(len(word.encode("utf-8", "surrogatepass")) + 1 for word in words)
    if size > MAX_WORK_BYTES:
        yield Refused("ScriptInvalid", f"{field} have {size} bytes together (limit: {MAX_WORK_BYTES})", field, "put them into a file")
    for number, word in enumerate(words, start=1):
        if "\0" in word:
            yield Refused("ScriptInvalid", f"{field}: argument {number} has a NUL", field, "take it out")


def check_variables(asked: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal unless the variables are few and small enough and each can be set; too many or too large end the check.

    Yields a caution on names that suggest a secret, and on other names that begin with `LATTICE_`, which Lattice sets itself.
    """
    del facts
    count = len(asked.spec.environment.variables)
    if count > MAX_VARIABLES:
        sentence = f"spec.environment.variables are {count} (limit: {MAX_VARIABLES})"
        yield Refused("VariableInvalid", sentence, "spec.environment.variables", "put them into a file on the nodes")
        return
    size = sum(len(name.encode()) + len(value.encode("utf-8", "surrogatepass")) for name, value in asked.spec.environment.variables.items())
    if size > MAX_VARIABLES_BYTES:
        sentence = f"spec.environment.variables have {size} bytes together (limit: {MAX_VARIABLES_BYTES})"
        yield Refused("VariableInvalid", sentence, "spec.environment.variables", "put long values into a file on the nodes")
        return
    secrets: list[str] = []
    for name, value in sorted(asked.spec.environment.variables.items()):
        field = f"spec.environment.variables[{name[:60]!r}]"
        if not _VARIABLE.fullmatch(name):
            sentence = f"{name[:60]!r} is not the name of a variable: letters, digits and '_', and no digit first"
            yield Refused("VariableInvalid", sentence, field, "choose another name")
        elif "\0" in value:
            yield Refused(
                "VariableInvalid", f"the value of variable {name} has a NUL at character {value.index(chr(0)) + 1}", field, "take it out"
            )
        elif any(word in name.upper() for word in SECRET_WORDS):
            secrets.append(name)
        elif name.startswith("LATTICE_"):
            yield Caution(f"variable {name}: names that begin with LATTICE_ are set by Lattice, which may replace the value")
    if secrets:
        shown = ", ".join(secrets[:5]) + (f" and {len(secrets) - 5} more" if len(secrets) > 5 else "")
        yield Caution(
            f"variables that look like secrets are readable by everybody in the tenant: {shown};"
            " put them into a Secret and name it in spec.environment.variablesFrom, or read them from a file of the user"
        )


def check_files(asked: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal unless the working directory, if given, is absolute, and output files' names are short enough, without control
    characters, and contain only known patterns.

    In a name with a backslash patterns are not looked at.
    """
    del facts
    environment = asked.spec.environment
    if environment.workdir and (not environment.workdir.startswith("/") or "\0" in environment.workdir):
        sentence = f"spec.environment.workdir {environment.workdir[:60]!r} is not an absolute path"
        yield Refused("WorkdirInvalid", sentence, "spec.environment.workdir", "write it from /, as the nodes see it")
    if environment.output is None:
        return
    for key, text in (("stdout", environment.output.stdout), ("stderr", environment.output.stderr)):
        field = f"spec.environment.output.{key}"
        if len(text) > MAX_OUTPUT:
            yield Refused("OutputInvalid", f"{field} has {len(text)} characters (limit: {MAX_OUTPUT})", field, "choose a shorter path")
            return
        if _CONTROL.search(text):
            yield Refused("OutputInvalid", f"{field} has a control character", field, "take it out")
        if "\\" in text:
            continue  # a backslash switches expansion off, as in Slurm
        for match in _PATTERN.finditer(text):
            if not match[1] or match[1] not in OUTPUT_LETTERS:
                sentence = f"{field}: the pattern {match[0]!r} at character {match.start() + 1} is not known"
                yield Refused("OutputInvalid", sentence, field, "known are %j %x %u %A %a %N %n, and %% for a percent sign")


def check_job_name(asked: Submission, facts: Facts) -> Iterator[Finding]:
    """Yields a refusal unless the job name, if given, has 1 to 253 characters without control characters or blanks at its ends."""
    del facts
    name = asked.spec.tags.get("name")
    if name is None:
        return
    field, shown = "spec.tags.name", repr(name[:60])
    if len(name) > MAX_JOB_NAME:
        yield Refused("JobNameInvalid", f"the job name has {len(name)} characters (limit: {MAX_JOB_NAME})", field, "choose a shorter one")
    if _CONTROL.search(name):
        yield Refused("JobNameInvalid", f"the job name {shown} has a control character", field, "use a '-' instead")
    if not name or name != name.strip():
        yield Refused("JobNameInvalid", f"the job name {shown} is empty or has blanks at its ends", field, "take them away")
