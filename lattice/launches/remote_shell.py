"""Reads a call of `lattice-mpi-launcher`, which `mpirun` makes as it would call ssh or rsh: a command for the shell of one node."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final

from lattice.errors import Rejected
from lattice.launches import options
from lattice.launches.option_values import CpuBind
from lattice.launches.options import MOST_NAME, LaunchDefaults, LaunchOptions, PrintedText

_SWITCHES: Final = frozenset("1246AaCGgKkMnqsTtvXxYy")
"""Options of ssh and rsh that change nothing here, and `-n`."""
_WITH_VALUE: Final = frozenset("BbcDEeFIiJLlmOoPpQRSWw")
"""Their options with a value, of which `-l` alone is looked at."""
_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "ksh", "ksh93", "mksh", "zsh", "csh", "tcsh"})
"""The shells that a command may be written for: OpenMPI asks which one the user has."""
_SHOWN: Final = 8


def parse(argv: Sequence[str], environ: Mapping[str, str], nodes: Sequence[str], defaults: LaunchDefaults) -> LaunchOptions | PrintedText:
    """Returns the launch of one task that a call `[OPTIONS] HOST COMMAND…` of ssh's form asks for, `nodes` being the allocation's.

    A call with srun's long options is read as srun reads it: Hydra puts the launcher in srun's place where the user asks for `slurm`.
    Raises Rejected for a host that is none of `nodes`, another user, an unknown option, and where no command is named.
    """
    if len(argv) > 1 and argv[1].startswith("--") and argv[1] != "--":
        return options.parse(argv, environ, defaults)
    rest = deque(argv[1:])
    user, quiet_input = _skip_options(rest)
    if not rest:
        raise Rejected("no host is named: lattice-mpi-launcher is called by mpirun, as HOST COMMAND", reason="BadOption")
    login, at, host = rest.popleft().rpartition("@")
    later, also_quiet = _skip_options(rest)
    _check_user(later or user or (login if at else ""), environ)
    if not rest:
        raise Rejected(f"no command is named for {host}: sessions are not served by it", reason="BadOption")
    node, command = _find_node(host, nodes), " ".join(rest)
    name = command.split(maxsplit=1)[0].strip("\"'").rpartition("/")[2] if command.strip() else ""
    return LaunchOptions(
        command=(_shell(environ), "-c", command), tasks=1, nodes=(1, 1), tasks_asked=True, nodes_asked=True, nodelist=(node,),
        job_name=name[:MOST_NAME], input="none" if quiet_input or also_quiet else "", overcommit=True, overlap=True, quiet=1,
        external_launcher=True, quit_on_interrupt=True, mpi="none", cpu_bind=CpuBind("none"),
    )  # fmt: skip


def _skip_options(rest: deque[str]) -> tuple[str, bool]:
    """Takes ssh's options from the front; returns the user that they name (empty: none), and whether there is no input (`-n`).

    Raises Rejected for an unknown one, and for one whose value is missing.
    """
    user, quiet_input = "", False
    while rest and rest[0].startswith("-") and len(rest[0]) > 1:
        word = rest.popleft()
        if word == "--":
            break
        for place, letter in enumerate(word[1:], 2):
            if letter in _WITH_VALUE:
                value = word[place:] or (rest.popleft() if rest else "")
                if not value:
                    raise Rejected(f"-{letter}: it needs a value", reason="BadOption", fields=(letter,))
                user = value if letter == "l" else user
                break
            if letter not in _SWITCHES:
                raise Rejected(f"-{letter}: no option of ssh's that a launcher of mpirun has: leave it out", reason="UnknownOption")
            quiet_input = quiet_input or letter == "n"
    return user, quiet_input


def _check_user(user: str, environ: Mapping[str, str]) -> None:
    """Raises Rejected for a user who is not the caller; an empty one is."""
    if user and user not in (environ.get("USER"), environ.get("LOGNAME")):
        raise Rejected(f"-l {user}: tasks run as the allocation's user: leave it out", reason="NotServed", fields=("l",))


def _find_node(host: str, nodes: Sequence[str]) -> str:
    """Returns the node of the allocation that a host name means, with or without its domain; raises Rejected where there is none."""
    if host in nodes:
        return host
    short = [node for node in nodes if node.partition(".")[0] == host.partition(".")[0]]
    if len(short) == 1:
        return short[0]
    has = ", ".join(nodes[:_SHOWN]) + (", …" if len(nodes) > _SHOWN else "")
    raise Rejected(
        f"host {host!r} is no node of this allocation, which has {has}: leave hosts out, or name some of these", reason="BadHost"
    )


def _shell(environ: Mapping[str, str]) -> str:
    """Returns the shell that is given the command: the user's own where it is one that mpirun writes for, else /bin/sh."""
    own = environ.get("SHELL", "")
    return own if own.startswith("/") and own.rpartition("/")[2] in _SHELLS else "/bin/sh"
