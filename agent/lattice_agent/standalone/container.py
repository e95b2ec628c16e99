"""Makes the container of one attempt with an OCI runtime: root file system, mounts of the node in it, `run --detach`.

It is of standard library alone, and runs in a fork of the runner, in the cgroup `hold` of the attempt's scope, with a mount namespace of
its own, which nobody needs once the container has its. What a user names is opened with his rights, and mounted by that descriptor at
the path that it really has; nothing of a user's is looked up by path as root.
"""

# System calls by their names: paths are plain strings here.
# ruff: noqa: PTH102, PTH115, PTH118, PTH119, PTH120, PTH123, PTH208, S108
from __future__ import annotations

import errno
import json
import os
import signal
import stat
from contextlib import suppress

from lattice_agent.standalone import container_tasks, device_rules, hold, mount_targets, namespaces, private_tmp, streams, task_start

TYPE_CHECKING = False  # as typing's, which nothing here loads
if TYPE_CHECKING:
    from typing import Any

IMAGE_REFUSED, START_FAILED = "ImageRefused", "StartFailed"
"""Reasons of END_REASONS for what would fail on every node; a failure without one is the node's."""
RUN_SECONDS = 50.0
"""The longest time that one call of the runtime may take."""
OWN = "/.lattice"
"""Where the container shows Lattice's own files; no image may have anything there."""
REPLACED = ("/etc/passwd", "/etc/group", "/etc/hosts", "/etc/resolv.conf")
"""Files of which a container has its own, also in place of a link of the image."""
LARGEST_TABLE = 4 << 20
"""Bytes of an image's /etc/passwd or /etc/group that are read."""
OF_USERS = ("rbind", "rw", "nosuid", "nodev")
READ_ONLY = ("bind", "ro", "nosuid", "nodev")


class ContainerFailure(Exception):
    """Raised when the container cannot be made; `reason` empty: the node is at fault."""

    def __init__(self, sentence: str, reason: str = "") -> None:
        super().__init__(sentence)
        self.reason = reason


class Making:
    """One container on its way: the request, the image's root, and what is mounted in it so far, as mounts of the runtime's config."""

    def __init__(self, request: dict[str, Any], identity: streams.UserIdentity) -> None:
        self.request, self.identity, self.root = request, identity, -1
        self.mounts: list[dict[str, Any]] = []
        self.places: dict[str, str] = {}
        """By target: the real path on the node of what is mounted there; empty: it has none."""
        self.absent: list[str] = []
        """Directories that the site lists for containers and this node lacks."""
        self.hiding: list[str] = []
        """Directories of the node behind which the image has files."""

    @property
    def bundle(self) -> str:
        """Returns the directory of the container's files."""
        return str(self.request["bundle"])


def run(request: dict[str, Any], report: int) -> None:
    """Makes and starts the container of a request; writes one answer to `report` (a descriptor).

    The answer holds `workdir`, the working directory of its tasks, `mapped`, `absent` and `hiding`; or `failure`, with a `reason` if the
    work is at fault.
    """
    making = Making(request, streams.UserIdentity(request["user"], request["group"], tuple(request["groups"])))
    try:
        hold.detach(request["procs"], report)
        answer = _make(making)
    except (ContainerFailure, hold.HoldFailure) as failure:
        answer = {"failure": str(failure), "reason": failure.reason}
    except OSError as error:
        answer = {"failure": f"the container cannot be made: {error}", "reason": ""}
    task_start.send(report, answer)


def _make(making: Making) -> dict[str, Any]:
    """Makes and starts a container: its image mounted read-only, the root above it, the mounts of the node, the
    configuration, and the runtime's `create` and `start`.

    Returns its working directory, whether the image's files are shown as the user's, and which directories of the node are absent or
    hide files of the image.
    """
    request = making.request
    image = hold.open_image({"source": request["source"], "path": request["image"], "own": False}, making.identity)
    namespaces.separate()
    for name in ("lower", "upper", "rootfs", "binds"):
        os.mkdir(f"{making.bundle}/{name}", 0o700)
    hold.mount_nowhere(image)
    mapped = bool(request["writable"]) and namespaces.show_as(image.mount, request["user"], request["group"])
    _attach(image.mount, f"{making.bundle}/lower")
    _make_root(making)
    _mount_node(making)
    workdir = _workdir(making)
    _write_config(making)
    _call_runtime(request, "run", "--detach", "--bundle", making.bundle, request["container"])
    device_rules.extend(*request["rules"])
    return {"workdir": workdir, "mapped": mapped, "absent": making.absent, "hiding": making.hiding}


def _attach(mount: int, path: str) -> None:
    """Attaches a mount at a path, and closes it also where that fails."""
    target = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        namespaces.attach(mount, target)
    finally:
        os.close(target)
        os.close(mount)


def _make_root(making: Making) -> None:
    """Mounts the root: the image below, a layer in memory above it, in which mount points are made and a writable one is written."""
    bundle, writable = making.bundle, making.request["writable"]
    namespaces.mount("tmpfs", f"{bundle}/upper", namespaces.MS_NOSUID | namespaces.MS_NODEV, "mode=0700" + ("" if writable else ",size=1m"))
    for name in ("files", "work"):
        os.mkdir(f"{bundle}/upper/{name}", 0o755)
    if writable:
        os.chown(f"{bundle}/upper/files", making.request["user"], making.request["group"])
    options = f"lowerdir={bundle}/lower,upperdir={bundle}/upper/files,workdir={bundle}/upper/work"
    namespaces.mount("overlay", f"{bundle}/rootfs", namespaces.MS_NOSUID | namespaces.MS_NODEV, options)
    making.root = os.open(f"{bundle}/rootfs", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)


# what the container sees of the node


def _mount_node(making: Making) -> None:
    """Puts what the container sees of the node at places of its own in the bundle, and notes it for the runtime's config."""
    request = making.request
    if _opened(making, OWN, os.O_NOFOLLOW) is not None:
        raise ContainerFailure(f"the image cannot be used: {OWN} is the place of Lattice's own files in a container", IMAGE_REFUSED)
    for target in ("/proc", "/sys", "/dev"):
        _make_mount_point(making, target, directory=True)
    for name, text in _tables(making).items():
        path = f"{making.bundle}/{name}"
        _write(path, text)
        _place(making, os.open(path, os.O_PATH | os.O_CLOEXEC), f"/etc/{name}", "", READ_ONLY)
    if request["tmp"]:
        inside = private_tmp.make(request["tmp"])
        _place(making, os.open(inside, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC), "/tmp", "", OF_USERS)
        for path, place in private_tmp.kept_entries(making.identity, request["keep"], ()):
            _place(making, place, path, "", OF_USERS)
    for bind in request["binds"]:
        _bind(making, bind)


def _bind(making: Making, bind: dict[str, Any]) -> None:
    """Puts one directory or file of the node into the container: a user's own, opened with his rights, never over what is the image's."""
    try:
        if bind["own"]:
            with making.identity.acting():
                place = os.open(bind["path"], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        else:
            place = os.open(bind["path"], os.O_PATH | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        if bind["optional"]:
            making.absent += [bind["path"]] if bind["listed"] else []
            return
        raise ContainerFailure(f"{bind['path']} of the node cannot be shown in the container: {error}") from error
    real = os.readlink(f"/proc/self/fd/{place}")
    target = bind["target"] or real
    if (bind["own"] and not _may_cover(target)) or _is_shown(making, target, real):
        os.close(place)
        return
    if (bind["own"] or bind["listed"]) and _has_files(making, target):
        making.hiding.append(target)
    _place(making, place, _real(making, target) if bind["links"] else target, real, bind["options"])


def _has_files(making: Making, path: str) -> bool:
    """Tells whether the image itself has a directory there that is not empty, reached without symbolic links."""
    lower = os.open(f"{making.bundle}/lower", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        way = namespaces.RESOLVE_BENEATH | namespaces.RESOLVE_NO_SYMLINKS
        place = namespaces.open_at(lower, path.lstrip("/") or ".", os.O_RDONLY | os.O_DIRECTORY, way)
        try:
            return bool(os.listdir(place))
        finally:
            os.close(place)
    except OSError:
        return False
    finally:
        os.close(lower)


def _may_cover(target: str) -> bool:
    """Tells whether a user's directory may be mounted there: not over the image's system."""
    try:
        return mount_targets.read_target(target) == target
    except mount_targets.TargetFlaw:
        return False


def _is_shown(making: Making, target: str, real: str) -> bool:
    """Tells whether a place is mounted already, or seen where it is through a directory that stands at its own path."""
    if target in making.places:
        return True
    return target == real and any(above == there and mount_targets.is_within(target, above) for above, there in making.places.items())


def _place(making: Making, place: int, target: str, real: str, options: tuple[str, ...] | list[str]) -> None:
    """Attaches a copy of the mount that an open descriptor shows in the bundle, and notes it; closes the descriptor."""
    directory = stat.S_ISDIR(os.fstat(place).st_mode)
    _make_mount_point(making, target, directory=directory)
    own = f"{making.bundle}/binds/{len(making.mounts)}"
    if directory:
        os.mkdir(own, 0o700)
    else:
        os.close(os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        _attach(namespaces.cloned(place), own)
    finally:
        os.close(place)
    making.mounts.append({"destination": target, "type": "bind", "source": own, "options": list(options)})
    making.places[target] = real


def _make_mount_point(making: Making, target: str, *, directory: bool) -> None:
    """Makes a mount point in the container's root where there is none; on the way to it there is no symbolic link then.

    A link of the image is refused there, since where it leads is the image's choice, and may be what is mounted before; in place of a
    link at one of `REPLACED` a file is made. Raises ContainerFailure, also where the image has something else there.
    """
    try:
        place = _opened(making, target)
        if place is None:
            place = _made(making, target, directory=directory)
    except OSError as error:
        said = "is reached by a symbolic link in it" if error.errno == errno.ELOOP else (error.strerror or str(error))
        raise ContainerFailure(f"the image cannot be used: {target}: {said}", IMAGE_REFUSED) from error
    try:
        if stat.S_ISDIR(os.fstat(place).st_mode) != directory:
            wanted = "a directory" if directory else "a file"
            raise ContainerFailure(f"the image cannot be used: {target} is not {wanted} in it", IMAGE_REFUSED)
    finally:
        os.close(place)


def _real(making: Making, path: str) -> str:
    """Returns where a path leads in the image by its links, of which none leads out of it; a missing part is as it is written."""
    try:
        place = namespaces.open_at(making.root, path.lstrip("/") or ".", os.O_PATH, namespaces.RESOLVE_IN_ROOT)
    except FileNotFoundError:
        return os.path.join(_real(making, os.path.dirname(path)), os.path.basename(path))
    except OSError as error:
        raise ContainerFailure(f"the image cannot be used: {path}: {error.strerror}", IMAGE_REFUSED) from error
    try:
        return os.readlink(f"/proc/self/fd/{place}").removeprefix(f"{making.bundle}/rootfs") or "/"
    finally:
        os.close(place)


def _opened(making: Making, path: str, flags: int = 0) -> int | None:
    """Opens a path of the container's root without following links; returns None where it is missing. Raises OSError, ELOOP for a link.

    With `flags` O_NOFOLLOW a link at the path itself is opened.
    """
    way = namespaces.RESOLVE_BENEATH | namespaces.RESOLVE_NO_SYMLINKS
    try:
        return namespaces.open_at(making.root, path.lstrip("/") or ".", os.O_PATH | flags, way)
    except OSError as error:
        if error.errno == errno.ELOOP and path in REPLACED and _remove_link(making, path):
            return None
        if error.errno == errno.ENOENT:
            return None
        raise


def _remove_link(making: Making, path: str) -> bool:
    """Removes a symbolic link of the image from the container's root; returns False where the link is a directory on the way."""
    parent = _opened(making, os.path.dirname(path))
    if parent is None:
        return False
    try:
        name = os.path.basename(path)
        if not stat.S_ISLNK(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            return False
        os.unlink(name, dir_fd=parent)
        return True
    finally:
        os.close(parent)


def _made(making: Making, target: str, *, directory: bool) -> int:
    """Makes a missing directory or empty file of root's in the container's root, with all directories above it; returns it opened."""
    parent, name = os.path.dirname(target), os.path.basename(target)
    above = _opened(making, parent)
    if above is None:
        above = _made(making, parent, directory=True)
    try:
        if directory:
            os.mkdir(name, 0o755, dir_fd=above)
        else:
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644, dir_fd=above))
        return os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    finally:
        os.close(above)


def _tables(making: Making) -> dict[str, str]:
    """Returns /etc/passwd and /etc/group of the container: the image's, and after them the user and his groups in place of namesakes."""
    made: dict[str, str] = {}
    for name, added in making.request["tables"].items():
        own = {tuple(line.split(":")[at] for at in (0, 2)) for line in added}
        names, numbers = {name for name, _ in own}, {number for _, number in own}
        kept = [
            line for line in _read(making, f"/etc/{name}").splitlines()
            if len(parts := line.split(":")) > 2 and parts[0] not in names and parts[2] not in numbers
        ]  # fmt: skip
        made[name] = "".join(f"{line}\n" for line in (*kept, *added))
    return made


def _read(making: Making, path: str) -> str:
    """Returns the text of a file of the image; empty where it is absent, or no plain file of a moderate size."""
    with suppress(OSError):
        place = namespaces.open_at(making.root, path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY, namespaces.RESOLVE_IN_ROOT)
        with os.fdopen(place, "rb") as file:
            if stat.S_ISREG(os.fstat(place).st_mode):
                return file.read(LARGEST_TABLE).decode(errors="replace")
    return ""


def _write(path: str, text: str) -> None:
    """Writes a new file, which must not exist."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        file.write(text)


def _workdir(making: Making) -> str:
    """Returns the working directory of the tasks: the one that is asked for, of the node or the image, else the image's, else home.

    Raises ContainerFailure where the one that is asked for is in neither.
    """
    asked, home = making.request["workdir"], making.request["home"]
    if not asked:
        own = making.request["image_workdir"]
        return own if own and _is_directory(making, own) else home if home in making.places else "/"
    if making.request["workdir_of_node"]:
        with suppress(OSError), making.identity.acting():
            place = os.open(asked, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            real = os.readlink(f"/proc/self/fd/{place}")
            os.close(place)
            if _is_shown(making, real, real):
                return real
    if _is_directory(making, asked):
        return str(asked)
    said = f"the working directory {asked!r} is neither on the node, where work may have it, nor in the image"
    said = f"{said}; a directory of the system is the image's: name one that it has with --chdir"
    raise ContainerFailure(said, START_FAILED)


def _is_directory(making: Making, path: str) -> bool:
    """Tells whether a path is a directory in the container, or will be one."""
    if path in making.places or path in ("/", "/dev/shm", "/proc", "/sys", "/dev"):
        return True
    try:
        os.close(namespaces.open_at(making.root, path, os.O_PATH | os.O_DIRECTORY, namespaces.RESOLVE_IN_ROOT))
    except (OSError, ValueError):
        return False
    return True


# the runtime


def _write_config(making: Making) -> None:
    """Writes the bundle's config.json: the one of the request, with the mounts that were made, outer ones first, Lattice's own last."""
    config = making.request["config"]
    below = sorted([*making.request["file_systems"], *making.mounts], key=_rank)
    config["mounts"] = [*config["mounts"], *below]
    config["root"]["path"] = f"{making.bundle}/rootfs"
    with open(f"{making.bundle}/config.json", "w", encoding="utf-8") as file:
        json.dump(config, file)


def _rank(mount: dict[str, Any]) -> tuple[bool, int]:
    """Returns what mounts are sorted by: how deep they lie, and Lattice's own behind all others, so that nothing covers them."""
    target = str(mount["destination"]).rstrip("/")
    return mount_targets.is_within(target, OWN), target.count("/")


def _call_runtime(request: dict[str, Any], *words: str) -> None:
    """Calls the OCI runtime with its state in the bundle, with this process's descriptors, of which the first three are /dev/null.

    Raises ContainerFailure with what it says.
    """
    log = f"{request['bundle']}/{words[0]}.log"
    argv = [request["runtime"], "--root", request["state"], "--log", log, "--log-format", "json", *words]
    program = f"{os.path.basename(argv[0])} {words[0]}"
    pid = os.posix_spawn(argv[0], argv, {"PATH": container_tasks.PATH}, setsigdef=(signal.SIGPIPE, signal.SIGXFSZ))
    code = container_tasks.await_end(pid, RUN_SECONDS)
    if code is None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise ContainerFailure(f"{program} has not ended after {RUN_SECONDS:g} s")
    if code:
        raise ContainerFailure(f"{program} has ended with {code}: {container_tasks.last_message(log)}")
