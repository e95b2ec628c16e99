"""Reads `#SBATCH` and `#LATTICE` lines as Slurm's own parser does (`SchedMD/slurm src/sbatch/opt.c`)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from lattice.errors import Rejected
from lattice.scripts.asked import Given
from lattice.scripts.options import HETJOB, HETJOB_REFUSED, LATTICE, SLURM, SLURM_SHORT, Argument, Option, find

MAX_SCRIPT_BYTES: Final = 1 << 20
"""Most bytes of a script: as many as a ConfigMap holds."""
MAX_INLINE_BYTES: Final = 65536
"""Most bytes of a script that stands in `spec.script`; longer ones stand in a ConfigMap."""
_CUT_IMAGE: Final = re.compile(r"image[=\s]\s*([^\s\\\"'#]+)#")
"""The registry of an image behind which an open `#` ends the line."""
DIALECTS = ("SBATCH", "LATTICE")
"""The words that directives begin with, which also name the source of their options."""


@dataclass(frozen=True)
class Script:
    """A script that was read: its text, the options of its lines by slot, and warnings about options that are ignored."""

    text: str
    given: tuple[tuple[str, Given], ...]
    warnings: tuple[str, ...]
    is_slurm: bool
    """True where it has `#SBATCH` lines, and so gets Slurm's defaults."""


def decode_script(data: bytes, name: str) -> str:
    """Returns the text of a script file, unchanged; raises Rejected, with the place, for a script that no node could run: empty, binary,
    above 1 MiB, no UTF-8, DOS line ends, a byte order mark, no `#!`.
    """
    if not data.strip():
        raise Rejected(f"{name} is empty: a script starts with a line such as #!/bin/bash", reason="BadScript")
    if b"\0" in data:
        raise Rejected(
            f"{name} is a binary file (a NUL at byte {data.index(0) + 1}): submit a program with `lattice submit -- PROGRAM`",
            reason="BadScript",
        )
    if len(data) > MAX_SCRIPT_BYTES:
        raise Rejected(
            f"{name} has {len(data)} bytes, the limit is {MAX_SCRIPT_BYTES}: keep the program in another file and start it from here",
            reason="ScriptTooLarge",
        )
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Rejected(
            f"{name} is not UTF-8 (line {line}, byte {error.start + 1}): convert it, for example with iconv", reason="BadScript"
        ) from error
    if "\r\n" in text:
        line = text.count("\n", 0, text.index("\r\n")) + 1
        raise Rejected(f"{name} has DOS line ends (line {line}): convert it, for example with dos2unix", reason="BadScript")
    if text.startswith("\ufeff"):
        raise Rejected(f"{name} starts with a byte order mark: save it as UTF-8 without one", reason="BadScript")
    if not text.startswith("#!"):
        raise Rejected(f"{name} does not start with #!: its first line must name what runs it, for example #!/bin/bash", reason="BadScript")
    return text


def read_script(text: str, *, as_sbatch: bool = False) -> Script:
    """Returns the script with the options of its `#SBATCH` and `#LATTICE` lines, read up to the first command; of one slot all are kept, in
    order.

    Unknown and ignored options of Slurm are warnings; raises Rejected, with the line, for a line that does not parse, an unknown option of
    ours, and an option that is refused. `as_sbatch`: unknown options of Slurm are refused, too.
    """
    given: list[tuple[str, Given]] = []
    warnings: list[str] = []
    dialects: set[str] = set()
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.startswith("#"):
            if line.strip() and not line.lstrip().startswith("#"):
                break  # a comment that is indented is no command, and no directive either
            continue
        for dialect in DIALECTS:
            if line.startswith("#" + dialect):
                dialects.add(dialect)
                _read_line(dialect, number, line, given, warnings, as_sbatch)
    return Script(text, tuple(given), tuple(warnings), "SBATCH" in dialects)


def split_line(rest: str, place: str) -> list[str]:
    """Returns the words of a directive: quotes group, a backslash takes the next character as it is (also in quotes), an open `#` ends the
    line, also within a word.

    Raises Rejected, naming `place`, for a quote that is not closed.
    """
    words: list[str] = []
    word: list[str] | None = None
    quote = ""
    escaped = False
    for character in rest:
        if escaped:
            word = word or []
            word.append(character)
            escaped = False
        elif character == "\\":
            escaped = True
        elif quote:
            if character == quote:
                quote = ""
            else:
                word = word or []
                word.append(character)
        elif character in "\"'":
            quote, word = character, word or []
        elif character == "#":
            break
        elif character.isspace():
            if word is not None:
                words.append("".join(word))
            word = None
        else:
            word = word or []
            word.append(character)
    if quote:
        raise Rejected(f"{place}: the quote {quote} is not closed", reason="BadDirective")
    if word is not None:
        words.append("".join(word))
    return words


def _read_line(
    dialect: str, number: int, line: str, given: list[tuple[str, Given]], warnings: list[str], as_sbatch: bool
) -> None:  # fmt: skip
    """Reads the options of one directive line into `given`, and adds a warning for each word that is ignored.

    Raises Rejected for options that are not served and, in Lattice's own lines, for words that are no option.
    """
    place = f"line {number}: {line.strip()}"
    words = split_line(line[len(dialect) + 1 :], place)
    while words:
        word = words.pop(0)
        if dialect == "SBATCH" and word in HETJOB:
            raise Rejected(f"{place}: {HETJOB_REFUSED}", reason="NotServed")
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            option = find(SLURM if dialect == "SBATCH" else LATTICE, name)
            text = value if equals else None
            _take(dialect, place, name, option, text, words, given, warnings, as_sbatch=as_sbatch)
        elif word.startswith("-") and len(word) > 1 and dialect == "SBATCH":
            _take_short(place, word, words, given, warnings, as_sbatch)
        elif dialect == "LATTICE":
            raise Rejected(f"{place}: {word!r} is not an option of the form --name=value", reason="BadDirective")
        else:
            warnings.append(f"#SBATCH {word} ignored (line {number}: it is not an option)")


def _take_short(
    place: str, word: str, words: list[str], given: list[tuple[str, Given]], warnings: list[str], as_sbatch: bool
) -> None:  # fmt: skip
    """Reads one `-x` word: an option with its argument attached (`-N2`, `-N=2`) or next in `words`, or several switches in one word; an
    unknown letter is a warning and ends the word.
    """
    rest = word[1:]
    while rest:
        letter, rest = rest[0], rest[1:]
        option = SLURM_SHORT.get(letter)
        if option is None or option.argument is Argument.NONE:
            _take("SBATCH", place, letter, option, None, words, given, warnings, dashes="-", as_sbatch=as_sbatch)
            if option is None:
                return
            continue
        value = rest.removeprefix("=") if rest else None
        _take("SBATCH", place, option.name, option, value, words, given, warnings, as_sbatch=as_sbatch)
        return


def _take(
    dialect: str,
    place: str,
    name: str,
    option: Option | None,
    value: str | None,
    words: list[str],
    given: list[tuple[str, Given]],
    warnings: list[str],
    *,
    dashes: str = "--",
    as_sbatch: bool = False,
) -> None:
    """Adds one option to `given`, or a warning where it is ignored; takes its value out of `words` where it has none yet and needs one.

    Raises Rejected where it is refused, unknown in Lattice's own lines, or has a value too many or too few.
    """
    if option is None:
        if dialect == "LATTICE":
            raise Rejected(f"{place}: --{name} is not an option of Lattice; `lattice submit --help` lists them", reason="UnknownOption")
        if as_sbatch:
            raise Rejected(f"{place}: unrecognized option '{dashes}{name}'", reason="UnknownOption", fields=(name,))
        if value is None and words and not words[0].startswith("-"):
            value = words.pop(0)
        warnings.append(f"#SBATCH {dashes}{name}{_equals(value)} ignored (not known to Lattice)")
        return
    if option.argument is Argument.REQUIRED and value is None:
        if not words:
            raise Rejected(f"{place}: --{option.name} needs a value", reason="BadDirective")
        value = words.pop(0)
    if option.argument is Argument.NONE and value is not None:
        raise Rejected(f"{place}: --{option.name} takes no value", reason="BadDirective")
    if option.refused:
        raise Rejected(f"{place}: {option.refused}", reason="NotServed", fields=(option.name,))
    if option.ignored:
        warnings.append(f"#{dialect} --{option.name}{_equals(value)} ignored ({option.ignored})")
        return
    if option.slot == "image" and (cut := _CUT_IMAGE.search(place)):
        raise Rejected(rf"{place}: # ends the line; write {cut[1]}\#… or {cut[1]}/…", reason="BadDirective", fields=(option.name,))
    if option.moot:
        return
    given.append((option.slot, Given(option.name, value, dialect, place)))


def _equals(value: str | None) -> str:
    """Returns a value with `=` before it; empty for None."""
    return "" if value is None else f"={value}"
