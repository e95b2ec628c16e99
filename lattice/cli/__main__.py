"""The program `lattice`: finds the verb, reads its flags, runs it, and turns errors into sentences and exit codes."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TextIO, cast

from lattice.cli import exits
from lattice.cli.registry import GLOBAL_WITH_VALUE, VERBS, add_global_flags, overview, split_verb, verb_module, verb_place
from lattice.errors import LatticeError

if TYPE_CHECKING:
    from lattice.cli.console import Outside


_UNWRITABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit code, also for an interruption or output that cannot be written (a reader that has gone is
    DONE).

    Without `argv` (the process's own arguments) the process ends with that code once a verb has run, and nothing is returned.
    """
    _open_closed_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        verb, rest = split_verb(arguments)
        if verb is None:
            return _without_verb(rest)
        if verb not in VERBS:
            return _another_program(verb, arguments)
        from lattice.cli.surroundings import outside

        code = run(verb, rest, outside())
        return code if argv is not None else _end(code)
    except KeyboardInterrupt:
        return exits.INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return exits.DONE
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise
        _discard_output()
        sys.stderr.write(f"Error: the output could not be written: {error.strerror}\n")
        return exits.FAILED


def _end(code: int) -> NoReturn:
    """Ends the program without taking the interpreter apart first, which takes longer than many an answer."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


def _open_closed_streams() -> None:
    """Puts /dev/null in the place of each standard stream that was closed before the start (`>&-`), where Python has None."""
    sys.stdin, sys.stdout, sys.stderr = sys.stdin or _open_null("r"), sys.stdout or _open_null("w"), sys.stderr or _open_null("w")


def _open_null(mode: str) -> TextIO:
    """Returns the null device, opened in this mode."""
    return cast("TextIO", Path(os.devnull).open(mode))


def _discard_output() -> None:
    """Redirects standard output to /dev/null, so that the interpreter does not fail at its end writing what no reader receives."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def run(verb: str, rest: list[str], outside: Outside) -> int:
    """Runs one verb with the arguments that follow it, and returns the exit code; an error of Lattice is printed as sentences to standard
    error, others are raised, and wrong flags end the process.
    """
    module, args = verb_module(verb), parse(verb, rest)
    try:
        from lattice.cli.configuration import read_configuration
        from lattice.cli.console import Console

        configuration = read_configuration(args.config, outside.environ.get("HOME", "~"))
        code = module.run(Console(args, outside, configuration))
        outside.stdout.flush()
        return code
    except LatticeError as error:
        from lattice.cli.failures import explain
        from lattice.cli.render.text import printable

        outside.stdout.flush()
        outside.stderr.write(printable("\n".join(explain(error))) + "\n")
        if args.verbose:
            outside.stderr.write(f"  Reason: {error.reason}\n")
        return exits.of_error(error)


def parse(verb: str, rest: list[str]) -> argparse.Namespace:
    """Returns the flags and arguments of a verb; `command` holds the words after `--`, None without. Exits with 2 where they are wrong."""
    module = verb_module(verb)
    before, after = _split_command(rest)
    parser = _Parser(prog=f"lattice {verb}", description=VERBS[verb].summary, formatter_class=_HelpFormatter)
    parser.words = before = getattr(module, "simplify", list)(before)
    module.arguments(parser)
    add_global_flags(parser)
    if after is not None and not getattr(module, "TAKES_COMMAND", False):
        parser.error(f"lattice {verb} takes nothing after --")
    args = parser.parse_intermixed_args(before) if module.INTERMIXED else parser.parse_args(before)
    args.verb, args.command = verb, after
    return args


def complete() -> NoReturn:
    """Runs `kubectl_complete-lattice`, which kubectl asks for completions of `kubectl lattice`."""
    from lattice.cli.surroundings import outside
    from lattice.cli.verbs.completion import candidates

    _open_closed_streams()
    for line in candidates(sys.argv[1:], outside()):
        sys.stdout.write(line + "\n")
    sys.stdout.write(":4\n")  # cobra's directive: no file completion
    sys.exit(exits.DONE)


def rm_replay() -> int:
    """Runs `rm-replay`: `lattice replay` under the name that the book gives it."""
    return main(["replay", *sys.argv[1:]])


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Is as wide as the terminal; argparse makes one for each flag and would load shutil to ask for that."""

    def __init__(self, prog: str, indent_increment: int = 2, max_help_position: int = 24, width: int | None = None) -> None:
        super().__init__(prog, indent_increment, max_help_position, width or _terminal_columns() - 2)


def _terminal_columns() -> int:
    """Returns COLUMNS, else the width of the terminal, else 80."""
    from lattice.cli.surroundings import asked_columns

    try:
        return asked_columns() or os.get_terminal_size(sys.stdout.fileno()).columns or 80
    except (AttributeError, OSError, ValueError):
        return 80


class _Parser(argparse.ArgumentParser):
    """Gives argparse the exit code and the error shape of `lattice`, and refuses abbreviated flags, since they would break later."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})
        self.words: list[str] = []

    def error(self, message: str) -> NoReturn:
        """Ends the program with the exit code of wrong usage, after a line on the error and a hint on what was perhaps meant."""
        from lattice.cli.hints import meant_by_action, meant_by_flag, meant_by_option

        meant = meant_by_option(message) if self.get_default("takes_slurm_options") else ""
        parser = self._find_parser()
        flags = [flag for action in parser._actions if action.help != argparse.SUPPRESS for flag in action.option_strings]
        meant = meant or meant_by_flag(parser.prog, message, flags) or meant_by_action(parser.prog, message)
        self.exit(exits.USAGE, f"Error: {message}\n  Hint: {meant or parser.prog + ' --help'}\n")

    def _find_parser(self) -> argparse.ArgumentParser:
        """Returns the parser of the action that the words name, since argparse reports an unknown flag at the outermost one."""
        parser: argparse.ArgumentParser = self
        for word in self.words:
            actions = next((one for one in parser._actions if isinstance(one, argparse._SubParsersAction)), None)
            parser = actions.choices.get(word, parser) if actions is not None else parser
        return parser


def _split_command(rest: list[str]) -> tuple[list[str], list[str] | None]:
    """Returns the arguments before `--`, and the command after it; None: there is no `--`."""
    if "--" not in rest:
        return rest, None
    at = rest.index("--")
    return rest[:at], rest[at + 1 :]


def _without_verb(rest: list[str]) -> int:
    """Prints the version or an overview, and returns the exit code: of wrong usage where neither was asked for."""
    if "--version" in rest:
        from lattice.cli.surroundings import outside

        return run("version", ["--client"], outside())
    asked = "--help" in rest or "-h" in rest
    stream = sys.stdout if asked else sys.stderr
    stream.write(overview())
    stream.flush()
    return exits.DONE if asked else exits.USAGE


def _another_program(verb: str, arguments: list[str]) -> int:
    """Replaces this process by `lattice-VERB` from PATH; where there is none, prints an error with a suggestion and returns its code.

    `arguments`: the whole command line, in which the verb must stand; the program gets what follows it.
    """
    import difflib
    import shutil

    program = shutil.which(f"lattice-{verb}") if verb.replace("-", "").isalnum() else None
    if program is not None:
        os.execv(program, [program, *arguments[(verb_place(arguments) or 0) + 1 :]])  # noqa: S606 - git's way, on purpose
    from lattice.cli.hints import meant_by

    sentence, instead = meant_by(verb)
    if sentence:
        sys.stderr.write(f"Error: {sentence}\n  Hint: {instead[:1].upper()}{instead[1:]}\n")
        return exits.USAGE
    near = difflib.get_close_matches(verb, VERBS, n=1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    dev = " (pip install 'lattice-hpc[dev]')" if verb == "dev" else ""
    sys.stderr.write(
        f"Error: {verb!r} is no verb of lattice, and no program lattice-{verb} is on PATH{dev}{meant}\n  Hint: lattice --help\n"
    )
    return exits.USAGE


__all__ = ["GLOBAL_WITH_VALUE", "complete", "main", "parse", "rm_replay", "run"]

if __name__ == "__main__":
    sys.exit(main())
