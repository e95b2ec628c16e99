"""Reads the options of a program as getopt_long does: long and short, abbreviated, glued, in any place; pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from lattice.errors import Rejected
from lattice.scripts.options import Argument

VERSION: Final = "slurm-wlm 22.05.8"
"""What `--version` prints: clients read the release of Slurm whose output these programs have."""
WRONG_USAGE: Final = "WrongUsage"
"""The reason of options that do not read: printed as getopt does, without the program's `error:`."""
COMMON: Final = {"help": Argument.NONE, "usage": Argument.NONE, "version": Argument.NONE, "verbose": Argument.NONE, "quiet": Argument.NONE}
COMMON_SHORT: Final = {"V": "version", "v": "verbose"}


class Grammar(NamedTuple):
    """The options of a program: the need of each for an argument, and the letters that stand for some."""

    program: str
    long: Mapping[str, Argument]
    short: Mapping[str, str]
    stops_at_word: bool = False
    """True where options end at the first word that is none: what follows belongs to a script."""
    unserved: Mapping[str, str] = {}
    """Options that would choose or print something else, and that are refused rather than passed over: what to do instead, by name."""


class Parsed(NamedTuple):
    """The options of a command line in order, as long names with their values (None: no value), and the other words."""

    options: tuple[tuple[str, str | None], ...]
    words: tuple[str, ...]

    def last(self, name: str) -> str | None:
        """Returns the value that was given last for an option, an empty text where it takes none; None where it was not given."""
        found = [value or "" for option, value in self.options if option == name]
        return found[-1] if found else None

    def all(self, name: str) -> list[str]:
        """Returns the values of an option that may be given several times, lists with commas taken apart, without empty parts."""
        return [part.strip() for option, value in self.options if option == name for part in (value or "").split(",") if part.strip()]

    def has(self, *names: str) -> bool:
        """Tells whether one of these options was given."""
        return any(option in names for option, _ in self.options)


def grammar(
    program: str, switches: str = "", values: str = "", optional: str = "", short: str = "", unserved: Mapping[str, str] | None = None
) -> Grammar:
    """Returns a grammar from names separated by blanks; `short` has `letter=name` pairs, and the options that are not served are among
    the others.
    """
    long = dict(COMMON)
    for names, need in ((switches, Argument.NONE), (values, Argument.REQUIRED), (optional, Argument.OPTIONAL)):
        long |= dict.fromkeys(names.split(), need)
    letters = COMMON_SHORT | dict(pair.split("=") for pair in short.split())
    return Grammar(program, long, letters, unserved=unserved or {})


def parse(table: Grammar, words: Sequence[str]) -> Parsed:
    """Returns the options and the other words of a command line.

    Raises Rejected (WrongUsage), in the words of getopt, for an unknown or ambiguous option, and for a value too many or too few.
    """
    found: list[tuple[str, str | None]] = []
    others: list[str] = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return Parsed(tuple(found), (*others, *rest))
        if word.startswith("--"):
            found.append(_long(table, word, rest))
        elif word.startswith("-") and len(word) > 1:
            found += _short(table, word, rest)
        elif table.stops_at_word:
            return Parsed(tuple(found), (word, *rest))
        else:
            others.append(word)
    return Parsed(tuple(found), tuple(others))


def _long(table: Grammar, word: str, rest: list[str]) -> tuple[str, str | None]:
    """Returns the option of `--name[=value]`, whose value may be the next word, which is taken then."""
    name, equals, value = word[2:].partition("=")
    known = [name] if name in table.long else [one for one in table.long if one.startswith(name)]
    if not known:
        raise _wrong(table, f"unrecognized option '--{name}'")
    if len(known) > 1:
        raise _wrong(table, f"option '--{name}' is ambiguous; possibilities: {' '.join(repr('--' + one) for one in known)}")
    need = table.long[known[0]]
    if need is Argument.NONE and equals:
        raise _wrong(table, f"option '--{known[0]}' doesn't allow an argument")
    if need is Argument.REQUIRED and not equals:
        if not rest:
            raise _wrong(table, f"option '--{known[0]}' requires an argument")
        return known[0], rest.pop(0)
    return known[0], value if equals else None


def _short(table: Grammar, word: str, rest: list[str]) -> list[tuple[str, str | None]]:
    """Returns the options of a word such as `-hX` or `-ovalue`; the value of its last one may be the next word, which is taken then."""
    found: list[tuple[str, str | None]] = []
    letters = word[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        name = table.short.get(letter)
        if name is None:
            raise _wrong(table, f"invalid option -- '{letter}'")
        need = table.long[name]
        if need is Argument.NONE:
            found.append((name, None))
            continue
        if need is Argument.REQUIRED and not letters:
            if not rest:
                raise _wrong(table, f"option requires an argument -- '{letter}'")
            letters = rest.pop(0)
        found.append((name, letters or None))
        break
    return found


def _wrong(table: Grammar, sentence: str) -> Rejected:
    """Returns the error of wrong usage, with the hint that Slurm's programs give behind it."""
    return Rejected(f'{table.program}: {sentence}\nTry "{table.program} --help" for more information', reason=WRONG_USAGE)
