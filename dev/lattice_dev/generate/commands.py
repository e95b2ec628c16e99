"""`docs/reference/commands.md`: every verb of `lattice` with its arguments and flags, from the parsers themselves."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Final

from lattice.cli.registry import ALIASES, VERBS, add_global_flags, verb_module

PLURAL: Final = ("*", "+")


def commands_page() -> str:
    """Returns the page: the global flags once, then the verbs in the order of `lattice --help`, each with its subcommands."""
    parts = ["# Commands of `lattice`\n\n`kubectl lattice VERB` is the same program. Exit codes: [exit-codes.md](exit-codes.md).\n"]
    parts += ["\n## Flags of every verb\n", *_flags(_global())]
    for verb, entry in VERBS.items():
        parser = argparse.ArgumentParser(prog=f"lattice {verb}", description=entry.summary)
        verb_module(verb).arguments(parser)
        spelled = [f"`lattice {alias}`" for alias, meant in ALIASES.items() if meant == verb]
        parts.append(f"\n## lattice {verb}\n\n{entry.summary}." + (f" Also {', '.join(spelled)}." if spelled else "") + "\n")
        parts += [_section(*found) for found in _parsers(parser, "")]
    return "".join(parts)


def _global() -> argparse.ArgumentParser:
    """Returns a parser of the global flags alone."""
    parser = argparse.ArgumentParser(prog="lattice", add_help=False)
    add_global_flags(parser)
    return parser


def _parsers(parser: argparse.ArgumentParser, text: str) -> Iterator[tuple[argparse.ArgumentParser, str]]:
    """Yields the parser and those of its subcommands, each with the sentence by which its parent lists it."""
    yield parser, text
    for action in parser._actions:  # argparse has no other way to ask
        if isinstance(action, argparse._SubParsersAction):
            sentences = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, below in action.choices.items():
                yield from _parsers(below, sentences.get(name, ""))


def _section(parser: argparse.ArgumentParser, text: str) -> str:
    """Returns the page's section on one parser; the title is left out for empty text."""
    title = f"\n### {parser.prog}\n\n{text[:1].upper()}{text[1:]}.\n" if text else ""
    return title + f"\n    {usage(parser)}\n" + "".join(_flags(parser))


def usage(parser: argparse.ArgumentParser) -> str:
    """Returns the usage in one line: program, required flags and arguments by name, `[flags]` for all others; else the parser's own."""
    if parser.usage:
        return parser.usage
    own = [action for action in parser._actions if not isinstance(action, argparse._HelpAction)]
    named = [f"{action.option_strings[-1]} {_value(action)}" for action in own if action.option_strings and action.required]
    flags = ["[flags]"] if any(action.option_strings and not action.required for action in own) else []
    return " ".join([parser.prog, *named, *(_argument(action) for action in own if not action.option_strings), *flags])


def _argument(action: argparse.Action) -> str:
    """Returns an argument as the usage line shows it, in brackets where it may be absent."""
    name = _value(action) + (" …" if action.nargs in PLURAL or isinstance(action, argparse._SubParsersAction) else "")
    return f"[{name}]" if action.nargs in ("*", "?") else name


def _value(action: argparse.Action) -> str:
    """Returns what stands for an argument's value: its name or its choices."""
    if isinstance(action.metavar, str):
        return action.metavar
    return "|".join(str(choice) for choice in action.choices) if action.choices else action.dest.upper()


def _flags(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yields a Markdown table of the parser's arguments and flags; nothing where there are none."""
    silent = (argparse._HelpAction, argparse._SubParsersAction)
    rows = [_row(parser, action) for action in parser._actions if not isinstance(action, silent) and action.help != argparse.SUPPRESS]
    if rows:
        yield "\n| argument or flag | what |\n|---|---|\n" + "".join(rows)


def _row(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Returns the table row of an argument."""
    value = "" if action.nargs == 0 else f" {_value(action)}"
    written = ", ".join(f"`{name}{value if at == len(action.option_strings) - 1 else ''}`" for at, name in enumerate(action.option_strings))
    text = parser._get_formatter()._expand_help(action) if action.help else "–"
    return f"| {_cell(written or f'`{_value(action)}`')} | {_cell(text)} |\n"


def _cell(text: str) -> str:
    """Returns a text as one cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")
