"""Enters one node and becomes its program: network namespace, own mounts and host name, then exec.

Started by path with `-I -S`, so it imports the standard library only:

    node.py --network FILE --hostname NAME --bind SOURCE TARGET … -- PROGRAM ARGUMENT…

The pid stays the same, so the program is the very process that was started.
"""

import argparse
import ctypes
import os
import socket
import sys

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWNET = 0x40000000
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    """Raises OSError where a result of libc is not 0."""
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def _mount(source: str | None, target: str, flags: int) -> None:
    """Mounts a source on a target. Raises OSError where that fails."""
    _check(_libc.mount(source.encode() if source else None, target.encode(), None, flags, None), f"mount {source} on {target}")


def enter(network: str, hostname: str, binds: list[list[str]]) -> None:
    """Moves this process into the network namespace and into mount and uts namespaces of its own, sets the host name and binds the files.

    `network`: the namespace's file; `binds`: pairs of source and target. Raises OSError where a call fails.
    """
    descriptor = os.open(network, os.O_RDONLY | os.O_CLOEXEC)
    _check(_libc.setns(descriptor, CLONE_NEWNET), f"setns {network}")
    os.close(descriptor)
    _check(_libc.unshare(CLONE_NEWNS | CLONE_NEWUTS), "unshare")
    _mount(None, "/", MS_REC | MS_PRIVATE)
    socket.sethostname(hostname)
    for source, target in binds:
        _mount(source, target, MS_BIND)


def main(argv: list[str]) -> None:
    """Reads the arguments, enters the node, and executes what follows `--` in place of this process."""
    cut = argv.index("--")
    parser = argparse.ArgumentParser(prog="node.py")
    parser.add_argument("--network", required=True)
    parser.add_argument("--hostname", required=True)
    parser.add_argument("--bind", nargs=2, action="append", default=[])
    options = parser.parse_args(argv[:cut])
    enter(options.network, options.hostname, options.bind)
    program = argv[cut + 1 :]
    os.execvp(program[0], program)  # noqa: S606  # this process becomes the program


if __name__ == "__main__":
    main(sys.argv[1:])
