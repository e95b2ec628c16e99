"""Keeps the software of one attempt: a process with a mount namespace of its own, in which images are mounted, and which stays.

It is of standard library alone, and runs in a fork of the runner, in the cgroup `hold` of the attempt's scope. It answers once, with
the mount points or with why there are none, and then only waits: namespace, mounts and loop devices go with the last process that stands
in the namespace. A user's own file is opened, and a mount point is looked up, with his rights.
"""

# System calls by their names: paths are plain strings here.
# ruff: noqa: PTH102
from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import stat
import struct
from contextlib import suppress

from lattice_agent.standalone import mount_targets, namespaces, streams, task_start
from lattice_agent.standalone.mount_targets import TargetFlaw
from lattice_agent.standalone.records import Record

TYPE_CHECKING = False  # as typing's, which nothing here loads
if TYPE_CHECKING:
    from typing import Any

NAME = b"lattice-hold"
OOM_SCORE = -900
IMAGE_NOT_FOUND, IMAGE_REFUSED, MOUNT_INVALID = "ImageNotFound", "ImageRefused", "MountInvalid"
"""Reasons of END_REASONS for what would fail on every node; a failure without one is the node's."""
METADATA = "meta/env.json"
LARGEST_METADATA, LARGEST_ANSWER = 1 << 20, 2 << 20
"""Bytes of one image's description of itself, and of those of all images in the answer's JSON."""
NOT_THERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENAMETOOLONG})
"""Errors at a user's file that say that his path leads to none."""
OF_NODE = frozenset({
    errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EINTR, errno.ENOSYS, errno.ETIMEDOUT, errno.ESHUTDOWN, errno.EHOSTDOWN,
    errno.EHOSTUNREACH, errno.ENETDOWN, errno.ENETUNREACH,
})  # fmt: skip
"""Errors at a user's path that are the node's, which another node may not have; all others are the path's."""
SUPERBLOCK = struct.Struct("<4s36xQ")
"""The beginning of a squashfs image: its mark, and at 40 the bytes that it takes."""
MARK = b"hsqs"
LOOP_CTL_GET_FREE, LOOP_CONFIGURE = 0x4C82, 0x4C0A
LO_READ_ONLY, LO_AUTOCLEAR = 1, 4
LOOP_TRIES = 1000
LOOP_INFO = struct.Struct("<QQQQQIIII64s64s32sQQ")
"""struct loop_info64: of it only the flags, and the name that `losetup` shows, are set."""
LOOP_CONFIG = struct.Struct(f"<II{LOOP_INFO.size}s64x")
AT_FDCWD = -100


class HoldFailure(Exception):
    """Raised when the images cannot be mounted; `reason` empty: the node is at fault."""

    def __init__(self, sentence: str, reason: str = "") -> None:
        super().__init__(sentence)
        self.reason = reason


class Image(Record):
    """One image on its way: the descriptor of its file, its mount that stands nowhere yet, where that goes, and what its metadata says."""

    source: str
    own: bool
    file: int
    target: str = ""
    mount: int = -1
    metadata: str | None = None


def run(request: dict[str, Any], report: int) -> None:
    """Mounts the images of a request in a new mount namespace, writes one answer to `report` (a descriptor), and waits for KILL.

    The answer holds `mounts`, each with mount point and metadata; or `failure`, with a `reason` if the work is at fault: then it returns.
    """
    identity = streams.UserIdentity(request["user"], request["group"], tuple(request["groups"]))
    try:
        detach(request["procs"], report)
        images = [open_image(image, identity) for image in request["images"]]
        namespaces.separate()
        for image, asked in zip(images, request["images"], strict=True):
            mount_nowhere(image)
            if asked["inspect"]:
                image.metadata = _read_metadata(image.mount)
            image.target = asked["mount"] or _said_target(image, asked["fallback"])
        _check_answer(images)
        _mount_all(images, identity)
    except HoldFailure as failure:
        task_start.send(report, {"failure": str(failure), "reason": failure.reason})
        return
    except OSError as error:
        task_start.send(report, {"failure": f"the images cannot be mounted: {error}", "reason": ""})
        return
    task_start.send(report, {"mounts": [{"mount": image.target, "metadata": image.metadata} for image in images]})
    os.close(report)
    while True:
        signal.pause()


def detach(procs: str, report: int) -> None:
    """Joins the cgroup unless it was forked there, and closes everything but the answer's pipe."""
    if procs:
        fd = os.open(procs, os.O_WRONLY | os.O_CLOEXEC)
        os.write(fd, b"0")
        os.close(fd)
    os.setsid()
    task_start.prctl(task_start.PR_SET_NAME, NAME)
    task_start.score_for_oom(OOM_SCORE)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.closerange(3, report)
    os.closerange(report + 1, 1 << 20)
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    os.umask(0o022)
    os.chdir("/")


def open_image(asked: dict[str, Any], identity: streams.UserIdentity) -> Image:
    """Opens an image's file: a user's own with his rights alone, so that nothing is attached that he could not read.

    Raises HoldFailure where it cannot be opened or is no image, with a reason where the file is the user's own.
    """
    path = asked["path"]
    try:
        if asked["own"]:
            with identity.acting():
                fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        else:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        _check_file(path, fd)
    except (OSError, ValueError) as error:
        reason = _reason(error) if asked["own"] else ""
        raise HoldFailure(f"the image {path} cannot be opened: {getattr(error, 'strerror', error)}", reason) from error
    return Image(asked["source"], asked["own"], fd)


def _reason(error: OSError | ValueError) -> str:
    """Returns the reason of a failure at a user's own file; empty: the node is at fault. A ValueError is of a path that can be none."""
    if isinstance(error, ValueError) or error.errno in NOT_THERE:
        return IMAGE_NOT_FOUND
    return "" if error.errno in OF_NODE else IMAGE_REFUSED


def _check_file(path: str, fd: int) -> None:
    """Raises HoldFailure for what is no whole squashfs image, before the kernel looks at it."""
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or streams.is_of_kernel(fd):
        raise HoldFailure(f"the image {path} is no regular file", IMAGE_REFUSED)
    head = os.pread(fd, SUPERBLOCK.size, 0)
    if len(head) < SUPERBLOCK.size or not head.startswith(MARK):
        raise HoldFailure(f"the image {path} is no squashfs file: it does not begin with {MARK.decode()}", IMAGE_REFUSED)
    _, takes = SUPERBLOCK.unpack(head)
    if takes > found.st_size:
        raise HoldFailure(f"the image {path} is cut off: it has {found.st_size} of {takes} bytes", IMAGE_REFUSED)


def mount_nowhere(image: Image) -> None:
    """Attaches the image's file to a loop device that goes with its last user, mounts that without a mount point, and closes the file.

    Raises HoldFailure for a bad image, OSError where the machine is at fault.
    """
    name, loop = _attached(image)
    try:
        image.mount = namespaces.mounted("squashfs", name)
    except OSError as error:
        if error.errno in (errno.ENODEV, errno.ENOMEM) or (error.errno == errno.EIO and not image.own):
            raise
        raise HoldFailure(f"the image {image.source} cannot be mounted: {error.strerror}", IMAGE_REFUSED) from error
    finally:
        os.close(loop)
        os.close(image.file)


def _attached(image: Image) -> tuple[str, int]:
    """Returns the name of a free loop device that has the file now, and its descriptor, which must stay open until it is mounted.

    Raises HoldFailure where none was free in LOOP_TRIES tries.
    """
    info = LOOP_INFO.pack(0, 0, 0, 0, 0, 0, 0, 0, LO_READ_ONLY | LO_AUTOCLEAR, os.fsencode(image.source)[:63], b"", b"", 0, 0)
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(LOOP_TRIES):
            name = f"/dev/loop{fcntl.ioctl(control, LOOP_CTL_GET_FREE)}"
            loop = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fcntl.ioctl(loop, LOOP_CONFIGURE, LOOP_CONFIG.pack(image.file, 0, info))
            except OSError as error:
                os.close(loop)
                if error.errno != errno.EBUSY:  # somebody else was faster
                    raise
            else:
                return name, loop
    finally:
        os.close(control)
    raise HoldFailure(f"no loop device was free in {LOOP_TRIES} tries")


def _read_metadata(mount: int) -> str | None:
    """Returns the text of the metadata in the image; None: it has none. No link of the image's leads out of it.

    Raises HoldFailure where it cannot be read or is larger than 1 MiB.
    """
    resolve = namespaces.RESOLVE_BENEATH | namespaces.RESOLVE_NO_SYMLINKS | namespaces.RESOLVE_NO_MAGICLINKS
    try:
        fd = namespaces.open_at(mount, METADATA, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY, resolve)
    except OSError:
        return None
    with os.fdopen(fd, "rb") as file:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        try:
            content = file.read(LARGEST_METADATA + 1)
        except OSError as error:
            raise HoldFailure(f"{METADATA} of an image cannot be read: {error.strerror}", IMAGE_REFUSED) from error
    if len(content) > LARGEST_METADATA:
        raise HoldFailure(f"{METADATA} of an image has more than {LARGEST_METADATA} bytes", IMAGE_REFUSED)
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise HoldFailure(f"{METADATA} of an image is no text in UTF-8: {error.reason} at byte {error.start}", IMAGE_REFUSED) from error


def _check_answer(images: list[Image]) -> None:
    """Raises HoldFailure where the images say more of themselves than one answer may carry."""
    if sum(len(json.dumps(image.metadata)) for image in images) > LARGEST_ANSWER:
        raise HoldFailure(f"{METADATA} of the images has more than {LARGEST_ANSWER} bytes in all, as JSON", IMAGE_REFUSED)


def _said_target(image: Image, fallback: str) -> str:
    """Returns the mount point that the image's metadata names, else `fallback`; raises HoldFailure where both are missing."""
    said: Any = None
    with suppress(ValueError, RecursionError):
        said = json.loads(image.metadata or "null")
    mount = said.get("mount") if isinstance(said, dict) else None
    mount = mount or fallback
    if not isinstance(mount, str) or not mount:
        why = "its metadata names none" if image.metadata is not None else "it has no metadata"
        raise HoldFailure(f"no mount point is given for {image.source}, and {why}: write {image.source}:/PATH", MOUNT_INVALID)
    return mount


def _mount_all(images: list[Image], identity: streams.UserIdentity) -> None:
    """Moves every mount to its mount point, outer mount points before those that lie in them, and forbids imports from then on.

    Raises HoldFailure for a mount point that cannot be used.
    """
    try:
        for image in images:
            image.target = mount_targets.read_target(image.target)
        order = mount_targets.in_order([image.target for image in images])
    except TargetFlaw as flaw:
        raise HoldFailure(str(flaw), MOUNT_INVALID) from flaw
    namespaces.forbid_imports()
    for place in order:
        image = images[place]
        if image.target in mount_targets.MADE:
            with suppress(FileExistsError):
                os.mkdir(image.target, 0o755)
        target = _open_target(image.target, identity)
        attach(image, target)
        os.close(target)
        os.close(image.mount)


def _open_target(target: str, identity: streams.UserIdentity) -> int:
    """Opens a mount point with the user's rights and returns its descriptor; raises HoldFailure where it is none for him, or a link."""
    resolve = namespaces.RESOLVE_NO_SYMLINKS | namespaces.RESOLVE_NO_MAGICLINKS
    try:
        with identity.acting():
            return namespaces.open_at(AT_FDCWD, target, os.O_PATH | os.O_DIRECTORY, resolve)
    except OSError as error:
        if error.errno in OF_NODE:
            raise
        why = "it is, or is reached by, a symbolic link: name the directory itself" if error.errno == errno.ELOOP else error.strerror
        raise HoldFailure(f"the mount point {target} cannot be used: {why}", MOUNT_INVALID) from error


def attach(image: Image, target: int) -> None:
    """Moves a mount to its opened mount point. Raises HoldFailure where somebody has removed that since."""
    try:
        namespaces.attach(image.mount, target)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESTALE):
            raise
        raise HoldFailure(f"the mount point {image.target} cannot be used: it is removed", MOUNT_INVALID) from error
