"""`lattice compat`: links Slurm's programs into a directory, for clients that drive Slurm; lists the links, and takes them away."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lattice.cli import exits
from lattice.cli.registry import SLURM_PROGRAMS
from lattice.errors import NotFound, Rejected

if TYPE_CHECKING:
    from lattice.cli.console import Console

INTERMIXED = False
PROGRAM = "lattice-slurm"
"""The program that is Slurm's under each of their names."""
_EXAMPLES = """\
Examples:
  lattice compat install ~/slurm-bin      then: export PATH=~/slurm-bin:$PATH
  lattice compat list ~/slurm-bin
  lattice compat uninstall ~/slurm-bin

Nothing is linked anywhere else: a site may still run Slurm itself."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the actions of `compat`."""
    parser.epilog, parser.formatter_class = _EXAMPLES, argparse.RawDescriptionHelpFormatter
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    for name, summary in (
        ("install", "link Slurm's programs into a directory, which is made where it is missing"),
        ("list", "list the programs, and where each link of a directory points"),
        ("uninstall", "take these links out of a directory, and nothing else"),
    ):
        action = actions.add_parser(name, help=summary, description=summary)
        action.add_argument("directory", metavar="DIR", nargs="?" if name == "list" else None, help="the directory of the links")


def run(console: Console) -> int:
    """Makes, lists or takes away the links, and returns DONE.

    Raises Rejected where a file of another origin has the name of a link, or the directory cannot be written.
    """
    args = console.args
    if args.action == "list":
        return _list(console, Path(args.directory).expanduser() if args.directory else None)
    folder = Path(args.directory).expanduser()
    try:
        return _install(console, folder) if args.action == "install" else _uninstall(console, folder)
    except OSError as error:
        raise Rejected(f"{folder} cannot be changed: {error.strerror}", reason="BadInput") from error


def program() -> Path:
    """Returns the path of the program that is linked; raises NotFound where this installation has it not."""
    beside = Path(sys.argv[0]).resolve().with_name(PROGRAM)
    found = beside if beside.is_file() else Path(shutil.which(PROGRAM) or "")
    if not found.is_file():
        raise NotFound(f"there is no program {PROGRAM} beside {sys.argv[0]}, nor on PATH: install lattice-hpc anew", reason="NoProgram")
    return found.absolute()


def _is_ours(link: Path) -> bool:
    """Tells whether a path is a link to Slurm's programs of some installation of Lattice."""
    return link.is_symlink() and link.readlink().name == PROGRAM


def _install(console: Console, folder: Path) -> int:
    """Makes the links, in the place of those of an earlier installation; nothing where one of the names is taken."""
    target = program()
    links = {name: folder / name for name in SLURM_PROGRAMS}
    taken = [str(link) for link in links.values() if (link.exists() or link.is_symlink()) and not _is_ours(link)]
    if taken:
        raise Rejected(f"{', '.join(taken)} exists and is none of Lattice's links: choose another directory", reason="NameTaken")
    folder.mkdir(parents=True, exist_ok=True)
    for link in links.values():
        link.unlink(missing_ok=True)
        link.symlink_to(target)
    console.say(f"Linked {', '.join(links)} in {folder}")
    if str(folder.absolute()) not in console.outside.environ.get("PATH", "").split(os.pathsep):
        console.note(f"Note: put it first on the PATH: export PATH={folder.absolute()}:$PATH")
    return exits.DONE


def _list(console: Console, folder: Path | None) -> int:
    """Prints each program with what it does, and, of a directory, where its link points."""
    width = max(map(len, SLURM_PROGRAMS))
    for name, summary in SLURM_PROGRAMS.items():
        link = folder / name if folder is not None else None
        points = "" if link is None else f"{link.readlink() if _is_ours(link) else 'not linked'}  "
        console.say(f"{name:<{width}}  {points}{summary}")
    return exits.DONE


def _uninstall(console: Console, folder: Path) -> int:
    """Takes the links away; raises NotFound where there are none."""
    found = [name for name in SLURM_PROGRAMS if _is_ours(folder / name)]
    if not found:
        raise NotFound(f"{folder} has none of Lattice's links", reason="NoLinks")
    for name in found:
        (folder / name).unlink()
    console.say(f"Took {', '.join(found)} out of {folder}")
    return exits.DONE
