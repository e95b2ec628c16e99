"""Images of software are mounted for the work alone, with its user's rights, and nothing of them is left: squashfs-mount's cases, and ours."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lattice.errors import Rejected
from lattice.views.allocation import SoftwareImage
from lattice_agent.attempts import Key, NodeWork
from lattice_agent.host import facts, processes
from lattice_agent.host.linux import LinuxHost
from lattice_agent.host.scopes import CgroupScopes
from lattice_agent.standalone import hold, namespaces
from lattice_agent.state.image_cache import CacheLimits, ImageCache, ImageRecord
from lattice_agent.state.log_store import LogReader
from tests.squashfs import described, make_image, needs_mksquashfs
from tests.unit.agent.machine import (
    STOPPED,
    UID,
    Ends,
    await_nothing,
    cleared,
    has_cgroups,
    machine,
    needs_root,
    open_directory,
    until,
    work,
)

pytestmark = [
    pytest.mark.root, needs_root(), needs_mksquashfs(), pytest.mark.skipif(not has_cgroups(), reason="needs cgroup v2"),
]  # fmt: skip
KEY = Key(UID, 1)
NOBODY = 65534


@pytest.fixture
async def place() -> AsyncIterator[Path]:
    with open_directory() as path:
        yield path


@pytest.fixture(scope="module")
def images() -> Iterator[Path]:
    """A directory with images that everybody may read: app, tool, shell."""
    with open_directory() as path:
        app = described("app", "/user-environment", {"app": {"list": {"PATH": [{"op": "prepend", "value": ["/user-environment/bin"]}]}}})
        make_image(path / "app.squashfs", {"bin/app": "#!/bin/sh\necho hello app\n", "inner/keep": ""}, app)
        tool = described(
            "tool", "/user-tools", {"tool": {"scalar": {"TOOLVAR": "SET", "TOOLCONFLICT": None, "WHO": "${@USER@}"}}}, default="tool"
        )
        make_image(path / "tool.squashfs", {"bin/tool": "#!/bin/sh\necho hello tool\n"}, tool)
        make_image(path / "plain.squashfs", {"file": "plain\n", "deep/er/keep": ""})
        yield path


@pytest.fixture
def targets(place: Path) -> Path:
    """Directories to mount at, `one` and `two`; nobody may see them."""
    for name in ("one", "two"):
        (place / name).mkdir()
    return place


def printed(host: LinuxHost, key: Key = KEY, stream: str = "stdout") -> str:
    reader = LogReader(host.journal.directory(key), stream)
    text = b"".join(entry.data for entry in reader.read(1 << 30)).decode()
    reader.close()
    return text


def is_there(path: str) -> bool:
    return Path(path).exists()


def loops(*places: Path) -> set[str]:
    """The loop devices whose file lies below one of the places."""
    found = set()
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):
            if path.read_text().startswith(tuple(map(str, places))):
                found.add(path.parent.parent.name)
    return found


def held(place: Path) -> list[str]:
    """The processes that keep mounts for the node of that name."""
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdigit() and (entry / "comm").read_text() == "lattice-hold\n" and place.name in (entry / "cgroup").read_text():
                found.append(entry.name)
    return found


@pytest.fixture(autouse=True)
def _nothing_is_left(place: Path, images: Path) -> Iterator[None]:
    yield
    assert await_nothing(lambda: [*loops(place, images), *held(place)]) == []
    seen = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if " squashfs " in line and place.name in line]
    assert seen == [], "the machine sees none of the mounts"


async def run(host: LinuxHost, ends: Ends, ours: NodeWork) -> int:
    await host.prepare(ours)
    await host.start(ours)
    code = (await ends.record()).tasks[0].code
    await cleared(host, ours.key)
    return code


def shell(script: str, **changes: Any) -> NodeWork:
    return work(**{"script": f"#!/bin/bash\n{script}\n", "workdir": "/", **changes})


@pytest.mark.pure_v2
async def test_a_node_without_tasks_holds_the_software_for_what_is_launched_there_later(place: Path, images: Path) -> None:
    ours = shell("true", uenv=f"{images}/app.squashfs", tasks=0, workdir="/nowhere", stdout="/nowhere/out", node="n1", head="n2")
    async with machine(place) as (host, _):
        await host.prepare(ours)
        assert (await host.start(ours)).pid == 0
        (pid,) = held(place)
        assert is_there(f"/proc/{pid}/root" + "/user-environment/bin/app")
        async with machine(place, swept=False) as (heir, ends):
            [known] = await heir.attempts()
            assert (known.alive, known.unclean) == (True, True)
            await heir.kill(KEY)
            assert (await ends.record()).tasks == ()
            await heir.clear(KEY)
        assert held(place) == []


# squashfs-mount's cases


@pytest.mark.pure_v2
@pytest.mark.parametrize("private_tmp", [False, True], ids=["the node's /tmp", "a /tmp of its own"])
async def test_one_image_stands_where_it_is_given_read_only_without_setuid_and_devices(
    targets: Path, images: Path, private_tmp: bool
) -> None:
    target = targets / "one"
    script = f"cat {target}/file; grep ' {target} ' /proc/self/mountinfo; touch {target}/x 2>&1; grep NoNewPrivs /proc/self/status; id -un"
    async with machine(targets) as (host, ends):
        assert await run(host, ends, shell(script, uenv=f"{images}/plain.squashfs:{target}", private_tmp=private_tmp)) == 0
        said = printed(host)
        assert "plain\n" in said
        assert "ro,nosuid,nodev" in said
        assert "squashfs" in said
        assert "Read-only file system" in said
        assert "NoNewPrivs:\t1" in said
        assert said.endswith("nobody\n")


@pytest.mark.pure_v2
async def test_several_images_stand_beside_each_other_where_they_say_and_views_change_variables(place: Path, images: Path) -> None:
    script = (
        "app; /user-tools/bin/tool; echo $UENV_MOUNT_LIST; echo $UENV_VIEW; echo $TOOLVAR $WHO ${TOOLCONFLICT-unset} $MINE $SLURM_UENV_VIEW"
    )
    asked = f"{images}/app.squashfs,{images}/tool.squashfs"
    ours = shell(script, uenv=asked, view="app,tool:tool", variables={"MINE": "1"}, site_variables={"TOOLCONFLICT": "yes"}, slurm_env=True)
    async with machine(place) as (host, ends):
        assert await run(host, ends, ours) == 0
        assert printed(host).splitlines() == [
            "hello app", "hello tool", f"{images}/app.squashfs:/user-environment,{images}/tool.squashfs:/user-tools",
            "/user-environment:app:app,/user-tools:tool:tool", "SET nobody unset 1 app,tool:tool",
        ]  # fmt: skip


async def test_the_users_own_variables_win_over_a_views_and_a_default_view_can_be_declined(place: Path, images: Path) -> None:
    async with machine(place) as (host, ends):
        ours = shell(
            "echo $TOOLVAR $UENV_VIEW", tools_uenv=f"{images}/tool.squashfs", variables={"TOOLVAR": "mine", "UENV_VIEW": "feigned"}
        )
        assert await run(host, ends, ours) == 0
        assert printed(host) == "mine /user-tools:tool:tool\n"
        second = Key(UID, 2)
        ours = shell("echo [$TOOLVAR]", tools_uenv=f"{images}/tool.squashfs", default_views=False, key=second)
        assert await run(host, ends, ours) == 0
        assert printed(host, second) == "[]\n"


async def test_images_lie_in_one_another_in_whatever_order_they_are_named(targets: Path, images: Path) -> None:
    one, plain = targets / "one", images / "plain.squashfs"
    make_image(targets / "deep.squashfs", {"er/keep": ""})
    asked = f"{plain}:{one}/deep/er,{targets}/deep.squashfs:{one}/deep,{plain}:{one}"
    async with machine(targets) as (host, ends):
        assert await run(host, ends, shell(f"cat {one}/file {one}/deep/er/file; ls {one}/deep", uenv=asked)) == 0
        assert printed(host) == "plain\nplain\ner\n"


async def test_work_without_software_has_no_namespace_of_its_own_and_no_process_that_keeps_one(place: Path) -> None:
    async with machine(place) as (host, ends):
        await host.prepare(shell("readlink /proc/self/ns/mnt; sleep 0.2; grep NoNewPrivs /proc/self/status"))
        assert isinstance(host.scopes, CgroupScopes)
        assert not is_there(host.scopes.hold_procs(KEY))
        await host.start(shell(""))
        await ends.record()
        own = os.readlink("/proc/self/ns/mnt")  # noqa: PTH115
        assert printed(host) == f"{own}\nNoNewPrivs:\t0\n"
        await cleared(host, KEY)


def kept(cache: ImageCache, digit: str, image: Path, document: dict[str, Any] | None) -> SoftwareImage:
    """An image of the registry, as its pull has left it in the cache."""
    digest = f"sha256:{digit * 64}"
    cache.squashfs_file(digest).write_bytes(image.read_bytes())
    archive = f"sha256:{'0' * 63}{digit}" if document is not None else ""
    if document is not None:
        cache.keep_metadata(digest, archive, json.dumps(document).encode())
    record = ImageRecord(layer=digest, size=image.stat().st_size, boot=facts.boot_id())
    cache.squashfs_file(digest).with_suffix(".json").write_bytes(msgspec.json.encode(record))
    mount = document["mount"] if document is not None else ""
    return SoftwareImage(source=f"image-{digit}/1:v1", digest=digest, size=record.size, layer=digest, mount=mount, metadata=archive)


async def test_images_of_the_registry_are_mounted_from_the_cache_where_what_is_attached_to_them_or_is_in_them_says(
    targets: Path, images: Path
) -> None:
    cache = ImageCache(targets / "cache", CacheLimits(free=0))
    cache.open()
    attached = described("other", str(targets / "one"), {"v": {"scalar": {"V": "attached"}}})
    first = kept(cache, "a", images / "tool.squashfs", attached)
    second = kept(cache, "b", images / "tool.squashfs", None)
    script = f"{targets}/one/bin/tool; tool=/user-tools/bin/tool; $tool; echo $V $TOOLVAR; echo $UENV_VIEW; ls {targets}/cache 2>&1"
    asked = f"{first.source},{second.source}"
    async with machine(targets, cache=cache) as (host, ends):
        assert await run(host, ends, shell(script, uenv=asked, view="image-a:v,image-b/1:tool", software=(first, second))) == 2
        said = printed(host).splitlines()
        assert said[:4] == ["hello tool", "hello tool", "attached SET", f"{targets}/one:image-a:v,/user-tools:image-b:tool"]
        assert "Permission denied" in said[4], "the cache itself is nobody's to read"


# what is refused


async def refused(host: LinuxHost, ours: NodeWork) -> tuple[str, str]:
    """Why a preparation is refused; a restarted agent says the same, and nothing is left."""
    with pytest.raises(Rejected) as error:
        await host.prepare(ours)
    (known,) = [known for known in await host.attempts() if known.key == ours.key]
    assert known.exit is not None
    assert (known.exit.reason, known.exit.failure) == (error.value.reason, error.value.message)
    assert not known.populated
    await cleared(host, ours.key)
    assert host.scopes.standing_scopes() == []
    return error.value.reason, error.value.message


@contextmanager
def busy_files(place: Path) -> Iterator[None]:
    """A socket, and a file of which this process has a write lease that it does not give up: who opens it would have to wait."""
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    fd = os.open(place / "leased", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(place / "socket"))
            (place / "socket").chmod(0o666)
            yield
    finally:
        os.close(fd)
        signal.signal(signal.SIGIO, before)


@pytest.mark.parametrize(
    ("uenv", "view", "reason", "said"),
    [
        ("{place}/none.squashfs:{one}", "", "ImageNotFound", "none.squashfs cannot be opened: No such file"),
        ("{place}/secret.squashfs:{one}", "", "ImageNotFound", "cannot be opened: Permission denied"),
        ("{place}/text:{one}", "", "ImageRefused", "is no squashfs file"),
        ("{place}/empty:{one}", "", "ImageRefused", "is no squashfs file"),
        ("{place}/truncated:{one}", "", "ImageRefused", "is cut off: it has"),
        ("{place}/corrupt:{one}", "", "ImageRefused", "cannot be mounted"),
        ("{place}/fifo:{one}", "", "ImageRefused", "is no regular file"),
        ("{place}:{one}", "", "ImageRefused", "is no regular file"),
        ("{place}/socket:{one}", "", "ImageRefused", "socket cannot be opened: No such device or address"),
        ("{place}/leased:{one}", "", "ImageRefused", "leased cannot be opened: Resource temporarily unavailable"),
        ("{place}/a\0b:{one}", "", "ImageNotFound", "cannot be opened: embedded null byte"),
        ("/dev/zero:{one}", "", "ImageRefused", "is no regular file"),
        ("/proc/self/status:{one}", "", "ImageRefused", "is no regular file"),
        ("{images}/plain.squashfs", "", "MountInvalid", "no mount point is given for"),
        ("{images}/plain.squashfs:{place}/none", "", "MountInvalid", "cannot be used: No such file"),
        ("{images}/plain.squashfs:{place}/text", "", "MountInvalid", "cannot be used: Not a directory"),
        ("{images}/plain.squashfs:{place}/link", "", "MountInvalid", "symbolic link"),
        ("{images}/plain.squashfs:{place}/link/below", "", "MountInvalid", "symbolic link"),
        ("{images}/plain.squashfs:{place}/closed/none", "", "MountInvalid", "cannot be used: Permission denied"),
        ("{images}/plain.squashfs:/etc", "", "MountInvalid", "it belongs to the system"),
        ("{images}/plain.squashfs:/tmp/.lattice-tmp-1", "", "MountInvalid", "it belongs to the node's agent"),
        ("{images}/plain.squashfs:{one}/../../etc", "", "MountInvalid", "without . and .."),
        ("{images}/plain.squashfs:{one},{images}/app.squashfs:{one}", "", "MountInvalid", "more than one image mounted at the mount point"),
        ("{place}/etc.squashfs", "", "MountInvalid", "it belongs to the system"),
        ("{place}/leads.squashfs:{one},{images}/plain.squashfs:{one}/out", "", "MountInvalid", "symbolic link"),
        ("{images}/app.squashfs", "wombat", "ViewUnknown", "the view 'wombat' does not exist; there are: app:app"),
        ("{images}/app.squashfs", "tool:app", "ViewUnknown", "the view 'tool:app' does not exist"),
        ("{place}/garbled.squashfs:{one}", "app", "ViewUnknown", "does not exist"),
        ("prgenv/24.11:v1", "", "PrologueFailed", "prgenv/24.11:v1 is not resolved to an image, or this node keeps none"),
    ],
)  # fmt: skip
async def test_what_no_node_could_mount_is_refused_with_the_reason(
    targets: Path, images: Path, uenv: str, view: str, reason: str, said: str
) -> None:
    place, one = targets, targets / "one"
    whole = (images / "plain.squashfs").read_bytes()
    (place / "secret.squashfs").write_bytes(whole)
    (place / "secret.squashfs").chmod(0o600)
    (place / "text").write_text("no image, but long enough to have a superblock " * 4)
    (place / "empty").touch()
    (place / "truncated").write_bytes(whole[:200])
    (place / "corrupt").write_bytes(whole[:8] + bytes(88) + whole[96:])
    os.mkfifo(place / "fifo", 0o644)
    (place / "link").symlink_to(place / "two")
    (place / "two/below").mkdir()
    (place / "closed").mkdir(mode=0o700)
    make_image(place / "etc.squashfs", {"passwd": "x\n"}, described("etc", "/etc"))
    make_image(place / "leads.squashfs", {"out": "-> /etc"})
    make_image(place / "garbled.squashfs", {"x": ""}, "no JSON")
    with busy_files(place):
        async with machine(place) as (host, _):
            found = await refused(host, shell("true", uenv=uenv.format(place=place, one=one, images=images), view=view))
            assert (found[0], said in found[1]) == (reason, True), found
            assert found[1].startswith("node n1: ")


async def test_a_site_may_take_no_files_of_users(targets: Path, images: Path) -> None:
    async with machine(targets) as (host, _):
        found = await refused(host, shell("true", uenv=f"{images}/plain.squashfs:{targets}/one", user_files=False))
        assert (found[0], "software.userFiles" in found[1]) == ("ImageRefused", True)


async def test_metadata_that_cannot_be_read_costs_its_views_and_is_told(targets: Path) -> None:
    make_image(targets / "garbled.squashfs", {"file": "there\n"}, "no JSON")
    async with machine(targets) as (host, ends):
        assert await run(host, ends, shell(f"cat {targets}/one/file", uenv=f"{targets}/garbled.squashfs:{targets}/one")) == 0
        assert printed(host) == "there\n"
        assert "env.json is no JSON" in printed(host, stream="stderr")


# tenants who cheat


async def test_a_note_on_metadata_that_is_no_text_costs_its_views_and_no_start(targets: Path) -> None:
    make_image(targets / "odd.squashfs", {"file": "there\n"}, json.dumps({"mount": "/x", "views": {"\ud800\x1b": 1}}))
    async with machine(targets) as (host, ends):
        assert await run(host, ends, shell(f"cat {targets}/one/file", uenv=f"{targets}/odd.squashfs:{targets}/one")) == 0
        assert printed(host) == "there\n"
        assert "views.?? is no object" in printed(host, stream="stderr")


async def test_views_that_do_not_fit_what_the_login_sets_are_an_end_that_is_kept(targets: Path) -> None:
    twice = described("twice", str(targets / "one"), {"v": {"scalar": {"A": "${@SITE@}${@SITE@}"}}})
    make_image(targets / "twice", {"file": ""}, twice)
    async with machine(targets) as (host, _):
        ours = shell("true", uenv=f"{targets}/twice", view="v", site_variables={"SITE": "x" * 100_000})
        found = await refused(host, ours)
        assert (found[0], "sets A to more characters" in found[1]) == ("ImageRefused", True)


async def test_descriptions_that_one_answer_could_not_carry_are_refused(targets: Path) -> None:
    make_image(targets / "large", {"one/keep": "", "two/keep": ""}, " " * 900_000)
    make_image(targets / "control", {"file": ""}, "\x01" * 900_000)
    make_image(targets / "binary", {"file": ""}, "\udcff" * 1000)
    large, one = targets / "large", targets / "one"
    async with machine(targets) as (host, _):
        for number, (uenv, said) in enumerate((
            (f"{large}:{one},{large}:{one}/one,{large}:{one}/two", "of the images has more than 2097152 bytes in all"),
            (f"{targets}/control:{one}", "of the images has more than 2097152 bytes in all"),
            (f"{targets}/binary:{one}", "of an image is no text in UTF-8"),
        ), start=1):  # fmt: skip
            found = await refused(host, shell("true", uenv=uenv, key=Key(UID, number)))
            assert (found[0], said in found[1]) == ("ImageRefused", True), found


def test_a_mount_point_that_is_removed_after_it_was_opened_is_the_users(targets: Path) -> None:
    target = os.open(targets / "one", os.O_PATH | os.O_DIRECTORY)
    (targets / "one").rmdir()
    image = hold.Image("a", own=True, file=-1, target=str(targets / "one"), mount=namespaces.mounted("tmpfs", "none"))
    try:
        with pytest.raises(hold.HoldFailure, match="cannot be used: it is removed") as failed:
            hold.attach(image, target)
        assert failed.value.reason == hold.MOUNT_INVALID
    finally:
        os.close(image.mount)
        os.close(target)


async def test_a_file_is_opened_as_its_user_from_the_working_directory_and_from_home(targets: Path, images: Path) -> None:
    mine = targets / "mine"
    mine.mkdir(mode=0o700)
    os.chown(mine, NOBODY, NOBODY)
    (mine / "own.squashfs").write_bytes((images / "plain.squashfs").read_bytes())
    (mine / "own.squashfs").chmod(0o400)
    os.chown(mine / "own.squashfs", NOBODY, NOBODY)
    async with machine(targets) as (host, ends):
        assert await run(host, ends, shell(f"cat {targets}/one/file", uenv=f"./own.squashfs:{targets}/one", workdir=str(mine))) == 0
        assert printed(host) == "plain\n"


async def test_a_file_that_is_swapped_after_it_was_mounted_changes_nothing(targets: Path, images: Path) -> None:
    mine = targets / "mine.squashfs"
    mine.write_bytes((images / "plain.squashfs").read_bytes())
    async with machine(targets) as (host, ends):
        ours = shell(f"cat {targets}/one/file", uenv=f"{mine}:{targets}/one")
        await host.prepare(ours)
        (targets / "other").write_bytes((images / "app.squashfs").read_bytes())
        (targets / "other").rename(mine)
        await host.start(ours)
        assert (await ends.record()).tasks[0].code == 0
        assert printed(host) == "plain\n"
        await cleared(host, KEY)


def make_bad_image(place: Path) -> None:
    """An image with a setuid copy of id(1), and the device file of zeros."""
    tree = place / "tree"
    tree.mkdir()
    (tree / "whoami").write_bytes(Path("/usr/bin/id").read_bytes())
    (tree / "whoami").chmod(0o4755)
    os.mknod(tree / "zero", 0o020666, os.makedev(1, 5))
    subprocess.run(["mksquashfs", str(tree), str(place / "bad"), "-noappend", "-no-progress", "-quiet"], check=True, capture_output=True)
    (place / "bad").chmod(0o644)


async def test_a_setuid_program_gives_no_rights_and_a_device_file_opens_nothing(targets: Path) -> None:
    make_bad_image(targets)
    script = f"{targets}/one/whoami -u; head -c1 {targets}/one/zero 2>&1"
    async with machine(targets) as (host, ends):
        await run(host, ends, shell(script, uenv=f"{targets}/bad:{targets}/one"))
        assert printed(host).splitlines()[0] == str(NOBODY)
        assert "Permission denied" in printed(host)


async def test_an_image_that_would_fill_the_agents_memory_is_refused(targets: Path) -> None:
    bomb = described("bomb", str(targets / "one"), {"v": {"scalar": {"A": "x" * 100_000, "B": "${@A@}" * 50_000}}})
    make_image(targets / "bomb", {"file": ""}, bomb)
    make_image(targets / "large", {"file": ""}, " " * (1 << 21))
    make_image(targets / "nul", {"file": ""}, described("n\0", str(targets / "one"), {"v": {}}, default="v"))
    async with machine(targets) as (host, _):
        assert (await refused(host, shell("true", uenv=f"{targets}/bomb", view="v")))[0] == "ImageRefused"
        for number, name in enumerate(("large", "nul"), start=2):
            ours = shell("true", uenv=f"{targets}/{name}", key=Key(UID, number))
            assert (await refused(host, ours))[0] == "ImageRefused"


def test_where_an_image_may_be_mounted_over_code_nothing_is_imported() -> None:
    before = list(sys.path), list(sys.meta_path)
    with namespaces.without_imports(), pytest.raises((ImportError, ImportWarning)):
        __import__("this")
    assert (sys.path, sys.meta_path) == before
    __import__("this")


# faults


def pid_of_hold(host: LinuxHost) -> int:
    return int(Path(host.scopes.hold_procs(KEY)).read_text())


@pytest.mark.parametrize("whom", ["hold", "runner", "nobody"])
@pytest.mark.parametrize("when", ["prepared", "running"])
async def test_whoever_is_killed_no_code_is_lost_and_nothing_is_left(targets: Path, images: Path, whom: str, when: str) -> None:
    text = f"cat {targets}/one/file; while ! test -e {targets}/go; do sleep 0.05; done; cat {targets}/one/file; exit 7"
    ours = shell(text, uenv=f"{images}/plain.squashfs:{targets}/one")
    async with machine(targets) as (host, ends):
        await host.prepare(ours)
        if when == "running":
            await host.start(ours)
            await until(lambda: printed(host))
        if whom != "nobody":
            pid = pid_of_hold(host) if whom == "hold" else host.runner_client.pid
            os.kill(pid, signal.SIGKILL)
            await until(lambda: processes.state(pid) in ("", "Z"))
        (targets / "go").touch()
        if (whom, when) == ("hold", "prepared"):
            with pytest.raises(Rejected) as error:
                await host.start(ours)
            assert (error.value.reason, "software" in error.value.message) == ("NodeUnfit", True)
        else:
            if when == "prepared":
                await host.start(ours)
            assert (await ends.record()).tasks[0].code == 7
            assert printed(host) == "plain\nplain\n"
        await cleared(host, KEY)
        assert host.scopes.standing_scopes() == []


@pytest.mark.parametrize("started", [False, True], ids=["prepared", "running"])
async def test_an_agent_that_follows_finds_the_process_and_ends_it(targets: Path, images: Path, started: bool) -> None:
    ours = shell(f"while ! test -e {targets}/go; do sleep 0.05; done; exit 7", uenv=f"{images}/plain.squashfs:{targets}/one")
    async with machine(targets, swept=False) as (host, _):
        await host.prepare(ours)
        if started:
            await host.start(ours)
        pid = pid_of_hold(host)
    async with machine(targets) as (host, ends):
        (known,) = await host.attempts()
        assert (known.unclean, known.alive, known.populated) == (True, started, started), "the process that keeps mounts is no work"
        assert pid_of_hold(host) == pid
        if not started:  # prepared again, it is another one
            await host.prepare(ours)
            assert pid_of_hold(host) != pid
            await host.start(ours)
        (targets / "go").touch()
        assert (await ends.record()).tasks[0].code == 7
        await cleared(host, KEY)
        assert host.scopes.standing_scopes() == []


async def test_a_shim_that_is_killed_ends_the_work_and_leaves_no_mount(targets: Path, images: Path) -> None:
    async with machine(targets) as (host, ends):
        ours = shell("sleep 300", uenv=f"{images}/plain.squashfs:{targets}/one")
        await host.prepare(ours)
        os.kill((await host.start(ours)).pid, signal.SIGKILL)
        assert (await ends.next())[1] is None
        await cleared(host, KEY)
        assert host.scopes.standing_scopes() == []


async def test_a_preparation_that_is_stopped_at_any_moment_is_undone(targets: Path, images: Path) -> None:
    async with machine(targets) as (host, ends):
        ours = shell("true", uenv=f"{images}/plain.squashfs:{targets}/one")
        for delay in (0.0, 0.005, 0.01, 0.02, 0.05):
            preparing = asyncio.get_running_loop().create_task(host.prepare(ours))
            await asyncio.sleep(delay)
            preparing.cancel()
            await asyncio.wait((preparing,))
            await cleared(host, KEY)
            assert host.scopes.standing_scopes() == []
        assert await host.terminate(KEY, STOPPED)
        assert (await ends.record()).tasks == ()


async def test_a_scope_of_which_only_that_process_is_left_is_removed(targets: Path, images: Path) -> None:
    async with machine(targets) as (host, _):
        await host.prepare(shell("true", uenv=f"{images}/plain.squashfs:{targets}/one"))
        assert not host.scopes.populated(KEY)
        await until(lambda: host.scopes.remove_scope(KEY))


@needs_root()
def test_a_process_that_ends_while_its_namespace_is_looked_for_is_said_to_be_gone(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    (tmp_path / "cgroup.procs").write_text(f"{ended.pid}\n")
    with (
        pytest.raises(ProcessLookupError, match="the process that keeps the work's software is gone"),
        namespaces.entered(str(tmp_path / "cgroup.procs")),
    ):
        pass
