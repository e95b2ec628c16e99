"""Starts the PMIx host of a launch on one node (`pmix/host.c`): a process of the work's user, in the cgroup and namespaces of the ranks.

It is of standard library alone, for the keeper, whose child the host is: it ends with its keeper, and stands in `SCOPE/work/launch-N`, not
in `keep/N`, since what it runs is the user's part of the launch.
"""

from __future__ import annotations

import _socket
import os
import signal

from lattice_agent.standalone import forks
from lattice_agent.standalone.rank_start import PATH, LaunchDescription, close_others
from lattice_agent.standalone.streams import StartFailure
from lattice_agent.standalone.task_start import (
    PR_SET_NAME,
    PR_SET_PDEATHSIG,
    WORK_OOM_SCORE,
    give_up_new_privileges,
    join_own_keyring,
    prctl,
    reset_signals,
    score_for_oom,
    write_file,
)

TYPE_CHECKING = False  # as typing's, which nothing here loads
if TYPE_CHECKING:
    from typing import NoReturn

ENVIRONMENT = {
    "PATH": PATH, "PMIX_MCA_gds": "hash", "PMIX_MCA_psec": "native", "PMIX_MCA_mca_base_param_files": "none",
    "HWLOC_COMPONENTS": "no_os,stop", "HWLOC_PLUGINS_PATH": os.devnull,
}  # fmt: skip
"""All variables of the host: data of ranks go through its socket, so that ranks in a container need none of its files, their users are
compared by their numbers, and no parameters of the user's are read. libpmix loads the node's topology, which nobody asks it for here:
without buses, caches, OpenCL and X displays, and the libraries for these, it begins in a quarter of the processor time.
"""


PLACE = "/tmp"  # noqa: S108 - the work's own where the site keeps one for each attempt
"""The directory that libpmix is told for its files; the host makes none there."""

OUTLIVED = (
    signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGTSTP,
    signal.SIGXCPU,
)  # fmt: skip
"""Signals that ask ranks to end or to save what they have (`spec.lifecycle.signal` too): all of their cgroup gets them, and the host serves
ranks until their end.
"""


def start(launch: LaunchDescription) -> tuple[int, _socket.socket]:
    """Forks the host of a launch; returns its pid, and the keeper's end of its socket, which does not block.

    Raises StartFailure where the program cannot be opened, OSError where the kernel refuses.
    """
    try:
        program = os.open(launch.pmix_host, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise StartFailure(f"the PMIx host {launch.pmix_host} cannot be opened: {error.strerror}") from error
    mine, its = _socket.socketpair()
    try:
        keeper, (*beside, procs) = os.getpid(), launch.work_procs or [""]
        pid, inside = forks.fork_into(procs)
        if pid == 0:
            _become(launch, its.fileno(), program, keeper, tuple(beside) if inside else tuple(launch.work_procs))
    except BaseException:
        mine.close()
        raise
    finally:
        its.close()
        os.close(program)
    mine.setblocking(False)
    return pid, mine


def _become(launch: LaunchDescription, sock: int, program: int, keeper: int, joins: tuple[str, ...]) -> NoReturn:
    """Turns a fresh fork into the host; where that fails it ends with 126."""
    try:
        close_others(sock, program)
        for procs in joins:
            write_file(procs, b"0")
        score_for_oom(WORK_OOM_SCORE)
        os.setsid()
        reset_signals()
        for number in OUTLIVED:
            signal.signal(number, signal.SIG_IGN)
        launch.set_limits()
        launch.identity.become()
        if launch.hold_procs:
            give_up_new_privileges()
        join_own_keyring()
        prctl(PR_SET_NAME, b"lattice-pmix")
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        os.umask(0o077)
        os.chdir("/")
        os.dup2(sock, 0)
        if os.getppid() == keeper:
            os.execve(program, ["lattice-pmix-host"], ENVIRONMENT)  # noqa: S606 - a program that the user's directories cannot replace
    finally:
        os._exit(126)
