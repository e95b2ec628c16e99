"""The programs of Slurm: one program under several names, which finds by its own name which of them it is."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, Protocol, cast

from lattice.cli.registry import SLURM_PROGRAMS
from lattice.errors import LatticeError

if TYPE_CHECKING:
    from lattice.cli.console import Console, Outside
    from lattice.cli.slurm.options import Grammar, Parsed

DONE, FAILED, INTERRUPTED = 0, 1, 130


class ProgramModule(Protocol):
    """The interface of a program's module."""

    GRAMMAR: Grammar
    WRONG_USAGE: int
    """The exit code for options that do not read."""

    def run(self, console: Console, given: Parsed) -> int:
        """Runs the program and returns its exit code."""
        ...


def main() -> NoReturn:
    """Runs the program of Slurm whose name this process was started by, or that its first argument names, and ends with its exit code."""
    from lattice.cli.surroundings import outside

    name, words = Path(sys.argv[0]).name, sys.argv[1:]
    if name not in SLURM_PROGRAMS and words:
        name, words = words[0], words[1:]
    if name not in SLURM_PROGRAMS:
        sys.stderr.write(f"Error: {name!r} is no program of Slurm that Lattice has. Known: {', '.join(SLURM_PROGRAMS)}\n")
        sys.exit(2)
    try:
        code = run(name, words, outside())
        sys.stdout.flush()
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        code = DONE
    os._exit(code & 0xFF)


def run(name: str, words: Sequence[str], outside: Outside) -> int:
    """Runs one program and returns its exit code; errors are printed as Slurm prints its own, and usage for `--help`."""
    from lattice.cli.slurm import sayings
    from lattice.cli.slurm.options import VERSION, parse

    if name == "srun":
        from lattice.cli.slurm.srun import run_srun

        return run_srun(outside, words)
    module = cast("ProgramModule", import_module(f"lattice.cli.slurm.{name}"))
    try:
        given = parse(module.GRAMMAR, words)
    except LatticeError as error:
        sayings.plain(outside, error.message)
        return module.WRONG_USAGE
    if given.has("version"):
        sayings.answer(outside, VERSION)
        return DONE
    if given.has("help", "usage"):
        sayings.answer(outside, _help(name, module.GRAMMAR))
        return DONE
    for option, _ in given.options:
        if option in module.GRAMMAR.unserved:
            sayings.error(outside, name, f"--{option} is not served by this release: {module.GRAMMAR.unserved[option]}")
            return module.WRONG_USAGE
    try:
        return module.run(_console(outside, quiet=given.has("quiet")), given)
    except LatticeError as error:
        sayings.complain(outside, name, error)
        return FAILED


def _console(outside: Outside, *, quiet: bool) -> Console:
    """Returns a run of the command line without flags of its own: cluster and tenant come from environment and configuration."""
    from lattice.cli.configuration import read_configuration
    from lattice.cli.console import Console

    args = argparse.Namespace(
        output="wide", config=None, kubeconfig=None, context=None, namespace=None, tenant=None, vcluster=None, quiet=quiet, verbose=False,
        no_color=True, request_id="", user=None, project="",
    )  # fmt: skip
    return Console(args, outside, read_configuration(None, outside.environ.get("HOME", "~")))


def _help(name: str, grammar: Grammar) -> str:
    """Returns the options that a program takes, and where they are explained."""
    letters = {long: letter for letter, long in grammar.short.items()}
    served = sorted(grammar.long.keys() - grammar.unserved.keys())
    known = [f"-{letters[option]}, --{option}" if option in letters else f"--{option}" for option in served]
    return f"Usage: {name} [OPTIONS...]\n  {SLURM_PROGRAMS[name]}\n\nOptions that are taken:\n  " + "\n  ".join(known)


if __name__ == "__main__":
    main()
