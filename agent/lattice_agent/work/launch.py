"""Makes the fields of a shim's launch from the work of a node, pure: command, environment, files."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping

from lattice.errors import Rejected
from lattice.software.chosen_views import MountedSoftware
from lattice_agent.attempts import NodeWork
from lattice_agent.work import entry_launch, environment, mpi_launchers
from lattice_agent.work.container import SCRIPT, StartedContainer
from lattice_agent.work.environment import Account

MAX_ENTRYPOINT = 131071
"""The longest argument that the kernel takes, in characters."""
_SHOWN = 80


def refuse(work: NodeWork, why: str) -> Rejected:
    """Returns the error (StartFailed) for work that this node cannot start; `why` is a clause."""
    return Rejected(f"node {work.node} cannot start it: {why}", reason="StartFailed")


def unfit(work: NodeWork, why: str) -> Rejected:
    """Returns the error (NodeUnfit) for a node that cannot take any work now; `why` is a clause."""
    return Rejected(f"node {work.node} is not able to take it: {why}", reason="NodeUnfit")


def check(work: NodeWork) -> None:
    """Raises Rejected (StartFailed) for work that could start nowhere: script, entrypoint, variables or paths are malformed."""
    if work.script is None and work.entrypoint is None:
        raise refuse(work, "its script (spec.scriptFrom) did not come with it: the gateway is older than this agent")
    if why := _script_flaw(work.script) if work.script is not None else _entrypoint_flaw(work.entrypoint or ""):
        raise refuse(work, why)
    if any("\0" in argument for argument in work.script_arguments):
        raise refuse(work, "an argument of the script contains a NUL character")
    if why := environment.flaw(work.site_variables | work.variables):
        raise refuse(work, why)
    for what, path in (("working directory", work.workdir), ("output file", work.stdout), ("error file", work.stderr)):
        if "\0" in path:
            raise refuse(work, f"the name of the {what} contains a NUL character")
    if work.workdir and not work.workdir.startswith("/"):
        raise refuse(work, f"the working directory {work.workdir!r} is not an absolute path")


def relative_files(work: NodeWork) -> list[str]:
    """Returns the files for output that are relative to a working directory, each once; none where no task runs."""
    return [path for path in dict.fromkeys((work.stdout, work.stderr)) if path and not path.startswith("/")] if work.tasks else []


def _script_flaw(script: str) -> str:
    """Returns a clause on why a script cannot be executed: no `#!` line, NUL, CR LF or no interpreter; empty: it can."""
    first = script.split("\n", 1)[0]
    if not script.startswith("#!"):
        return f"the script has no #! line; its first line is {_shorten(first)!r}"
    if "\0" in script:
        return f"the script is no text: character {script.index(chr(0)) + 1} of it is NUL"
    if first.endswith("\r"):
        return f"the first line {_shorten(first)!r} of the script ends with CR LF; convert it, for example with dos2unix"
    if not first[2:].strip():
        return "the #! line of the script names no interpreter"
    return ""


def _entrypoint_flaw(entrypoint: str) -> str:
    """Returns a clause on why an entrypoint cannot be executed: NUL, too long, not to be split, empty; empty: it can."""
    if "\0" in entrypoint:
        return f"the entrypoint contains a NUL character at position {entrypoint.index(chr(0)) + 1}"
    if len(entrypoint) > MAX_ENTRYPOINT:
        return f"the entrypoint has {len(entrypoint)} characters, {MAX_ENTRYPOINT} are possible; use a script"
    try:
        words = shlex.split(entrypoint)
    except ValueError as error:
        return f"the entrypoint {_shorten(entrypoint)!r} cannot be split into words: {error}"
    return "" if words and words[0] else "the entrypoint is empty"


def _shorten(text: str) -> str:
    """Returns a text cut to 80 characters for a sentence."""
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def command(work: NodeWork, script_path: str, programs: str = "") -> list[str]:
    """Returns the argument list of a task: the script's path and its arguments, or the entrypoint split into words as a shell would.

    That of an entrypoint that a launch starts is the launch's client, `srun` in the directory `programs`.
    """
    if work.script is not None:
        return [script_path, *work.script_arguments]
    words = shlex.split(work.entrypoint or "")
    return entry_launch.client_command(work, programs, words) if work.is_launched else words


@dataclasses.dataclass(frozen=True)
class RunContext:
    """The result of `prepare`: the account that runs the work, the working directory, and a note on directories that could not be used."""

    account: Account
    workdir: str
    note: str = ""
    exported: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Variables that the site's hooks give the work."""
    software: MountedSoftware = environment.NO_SOFTWARE
    container: StartedContainer | None = None
    """The container in which its tasks run; None: they run on the node itself."""

    @property
    def tasks_begin_in(self) -> str:
        """Returns the directory in which tasks begin: as their container has it, else the node's."""
        return self.container.workdir if self.container is not None else self.workdir

    @property
    def image_variables(self) -> dict[str, str] | None:
        """Returns the variables of the image, and over them those of devices; None: the work runs on the node itself."""
        return dict(self.container.image.variables) | dict(self.container.variables) if self.container is not None else None


def describe(
    work: NodeWork, place: RunContext, where: Mapping[str, object], *, environment_file: str, programs: str = "", interface: str = "",
    cpus: int = 1, gpus: int = 0,
) -> dict[str, object]:  # fmt: skip
    """Returns the fields of `shim.Launch`, except for the scope's cgroup files and the values of Secrets, which the launcher adds.

    `where`: those of `place_of_work`. `programs`: the directory of `srun`, which the work finds first on its PATH; empty: there is none.
    `interface`: that of `mpi_launchers.variables`; `cpus`, `gpus`: how many work has on this node. Raises Rejected (StartFailed) for an
    entrypoint that a launch starts, on a node without `srun`.
    """
    return dict(where) | {
        "uid_text": work.key.uid,
        "attempt": work.key.attempt,
        "argv": command(work, f"{where['directory']}/script" if place.container is None else SCRIPT, programs),
        "environment": mpi_launchers.variables(work, programs, interface) | environment.with_programs(environment.compose(
            work, place.account, environment_file, workdir=place.tasks_begin_in, exported=place.exported, software=place.software,
            of_image=place.image_variables,
        ) | environment.slurm_of_host(work, place.account, cpus, gpus), programs),
        "task_environments": [environment.of_task(work, local) for local in range(work.tasks)],
        "first_rank": work.first_rank,
        "stdout": work.stdout,
        "stderr": work.stderr,
        "log_bytes": work.log_bytes,
        "remove_leftovers": work.remove_leftovers,
        "note": place.note,
    }  # fmt: skip


def place_of_work(
    work: NodeWork, place: RunContext, *, directory: str, run_directory: str, boot: str, switch_user: bool
) -> dict[str, object]:  # fmt: skip
    """Returns the fields of `task_start.WorkPlace`, where tasks and ranks run on this node, except for the scope's cgroup files.

    `switch_user`: they run as the account's user; else as the agent's own, without a private /tmp.
    """
    account = place.account
    return {
        "directory": directory,
        "run_directory": run_directory,
        "boot": boot,
        "workdir": place.workdir,
        "open_files": work.open_files,
        "max_processes": work.max_processes,
        "core_bytes": work.core_bytes,
        "private_tmp": work.private_tmp and switch_user,
        "private_tmp_keep": list(work.private_tmp_keep),
        "mounts": [image.mount for image in place.software.images],
        "container": dict(place.container.fields) if place.container is not None else {},
        "grace_seconds": work.grace_seconds,
        "user": account.uid if switch_user else None,
        "group": account.gid if switch_user else None,
        "groups": list(account.groups),
    }
