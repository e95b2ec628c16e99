"""Work in OCI images runs by the real runc: as its user, without rights, in its cgroups, and nothing of its container is left."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lattice.errors import Rejected
from lattice.views.allocation import SoftwareImage
from lattice_agent.attempts import ExitRecord, Key, NodeWork
from lattice_agent.host.containers import ContainerTools
from lattice_agent.host.linux import LinuxHost
from lattice_agent.host.scopes import PARTS
from lattice_agent.standalone import frames, private_tmp
from lattice_agent.state.image_cache import CacheLimits, ImageCache
from lattice_agent.state.log_store import LogReader
from tests.oci import keep_image, make_root, needs_runc, stub
from tests.system_files import below, loop_files
from tests.unit.agent.launch_listener import Listener, keepers_of, launch
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
    pytest.mark.root, needs_root(), needs_runc(), pytest.mark.skipif(not has_cgroups(), reason="needs cgroup v2"),
]  # fmt: skip
KEY = Key(UID, 1)
CONFIG = {"Env": ["PATH=/bin:/app", "FROM_IMAGE=yes", "HOME=/nowhere"], "WorkingDir": "/app"}


@pytest.fixture
async def place() -> AsyncIterator[Path]:
    with open_directory() as path:
        yield path


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    """The squashfs file of a small system."""
    with open_directory() as path:
        yield make_root(path / "root.squashfs")


@dataclass
class Node:
    """A node that has one image."""

    host: LinuxHost
    ends: Ends
    image: SoftwareImage

    async def run(self, ours: NodeWork) -> int:
        """Runs work to its end; returns the code of its first task."""
        await self.host.prepare(ours)
        await self.host.start(ours, {"SECRET": "hidden"})
        code = (await self.ends.record()).tasks[0].code
        await cleared(self.host, ours.key)
        return code

    def printed(self, key: Key = KEY, stream: str = "stdout") -> str:
        """What the work has written."""
        reader = LogReader(self.host.journal.directory(key), stream)
        text = b"".join(entry.data for entry in reader.read(1 << 30)).decode()
        reader.close()
        return text

    def shell(self, script: str = "", **changes: Any) -> NodeWork:
        """A script, or another command, in the image."""
        own: dict[str, Any] = ({"script": f"#!/bin/sh\n{script}\n"} if script else {}) | {
            "workdir": "",
            "image": self.image.source,
            "software": (self.image,),
            "private_tmp": True,
        }
        return work(**own | changes)


@asynccontextmanager
async def node(place: Path, root: Path, scratch_dir: Path | None = None, **tools: Any) -> AsyncIterator[Node]:
    cache = ImageCache(place / "cache", CacheLimits(free=0))
    cache.open()
    image = keep_image(cache, root, config=CONFIG)
    async with machine(place, cache=cache, scratch_dir=scratch_dir, tools=ContainerTools(**{"stub": stub(), **tools})) as (host, ends):
        yield Node(host, ends, image)


@pytest.mark.parametrize("ranks", [1, 5])
async def test_a_launch_runs_in_the_container_of_its_attempt_and_leaves_the_script_and_other_launches_alone(
    place: Path, root: Path, ranks: int
) -> None:
    async with node(place, root) as ours:
        host = ours.host
        await host.prepare(ours.shell("echo own > /tmp/own; sleep 300"))
        await host.start(ours.shell("echo own > /tmp/own; sleep 300"))
        text = "while ! test -s /tmp/own; do sleep 0.05; done; id -u; pwd; umask; cat /tmp/own; cat; echo $FROM_IMAGE-$R; ulimit -n; exit 3"
        asked = launch("/bin/sh", "-c", text, workdir="/app", umask=0o027, stdin="all", soft_limits={"NOFILE": 200})
        asked["ranks"] = [{"rank": rank, "environment": {"R": str(rank), "PATH": "/bin"}} for rank in range(ranks)]
        for number in (1, 2):
            await keepers_of(host).start(KEY, asked | {"number": number})
            listener = await Listener.connect(host, KEY, number)
            listener.send(frames.INPUT, frames.encode_input(0, b"given\n"))
            listener.send(frames.INPUT, frames.encode_input(6, b""))
            await asyncio.to_thread(listener.listen, until="done")
            said = b"65534\n/app\n0027\nown\ngiven\n-%d\n200\n"
            assert listener.output == {(1, rank): said % rank for rank in range(ranks)}
            assert listener.ended == dict.fromkeys(range(ranks), (3, 0))
            assert await keepers_of(host).end_launch(KEY, number) is None
        Listener.close_all()
        await host.kill(KEY)
        await ours.ends.next()
        await cleared(host, KEY)
        await host.forget(KEY)
        assert host.scopes.standing_scopes() == []


IDLE: dict[str, Any] = {"tasks": 0, "node": "n2", "nodes": ("n1", "n2"), "rank_of_node": 1}
"""Of a node on which none of the work's own tasks begins."""


async def test_a_node_without_tasks_has_the_container_too_and_its_ranks_pass_descriptors_and_exit_codes(place: Path, root: Path) -> None:
    async with node(place, root) as ours:
        host, idle = ours.host, ours.shell("true", **IDLE)
        await host.prepare(idle)
        await host.start(idle)
        text = "pwd; id -u; echo $FROM_IMAGE-; exit $R"
        asked = launch("/bin/sh", "-c", text, workdir="/app")
        asked["ranks"] = [{"rank": rank, "environment": {"R": str(rank + 2), "PATH": "/bin"}} for rank in range(3)]
        await keepers_of(host).start(KEY, asked)
        listener = await Listener.connect(host, KEY)
        await asyncio.to_thread(listener.listen, until="done")
        assert listener.output == {(1, rank): b"/app\n65534\n-\n" for rank in range(3)}
        assert listener.ended == {rank: (rank + 2, 0) for rank in range(3)}
        Listener.close_all()
        await host.kill(KEY)
        assert (await ours.ends.record()).tasks == ()
        await cleared(host, KEY)


@pytest.mark.parametrize("whom", ["keeper", "runner", "container", "agent"])
async def test_kill_of_whoever_keeps_ranks_on_a_node_without_tasks_leaves_nothing(place: Path, root: Path, whom: str) -> None:
    async with node(place, root) as here:
        idle = here.shell("true", **IDLE)
        await here.host.prepare(idle)
        await here.host.start(idle)
        await keepers_of(here.host).start(KEY, launch("/bin/sleep", "300", ranks=2, workdir="/"))
        match whom:
            case "keeper":
                os.kill(keepers_of(here.host).cgroups.keeper_pid(KEY, 1), signal.SIGKILL)
            case "runner":
                os.kill(here.host.runner_client.pid, signal.SIGKILL)
            case "container":
                os.kill(process_one(here.host), signal.SIGKILL)
        if whom == "agent":
            here.host.watch.close()
            async with machine(place, swept=False) as (second, ends):
                (known,) = await second.attempts()
                assert (known.alive, known.populated) == (True, True)
                await second.kill(KEY)
                assert (await ends.record()).tasks == ()
                await second.clear(KEY)
        else:
            await here.host.kill(KEY)
            assert (await here.ends.record()).tasks == ()
            await cleared(here.host, KEY)


async def test_a_node_whose_agent_made_no_container_runs_no_rank_outside_of_one(place: Path, root: Path) -> None:
    async with node(place, root) as here:
        idle = here.shell("true", **IDLE)
        await here.host.prepare(idle)
        await here.host.start(idle)
        (here.host.journal.run_directory(KEY) / "place").unlink()
        with pytest.raises(Rejected, match="node n2 has no container of"):
            await keepers_of(here.host).start(KEY, launch("/bin/true", workdir="/"))
        await here.host.kill(KEY)
        await here.ends.record()
        await cleared(here.host, KEY)


async def test_a_directory_that_a_node_without_tasks_lacks_is_no_failure_of_its_prologue(place: Path, root: Path) -> None:
    async with node(place, root) as here:
        idle = here.shell("true", **IDLE | {"workdir": "/nowhere/at/all"})
        await here.host.prepare(idle)
        await here.host.start(idle)
        await keepers_of(here.host).start(KEY, launch("/bin/true", workdir="/nowhere/at/all"))
        listener = await Listener.connect(here.host, KEY)
        await asyncio.to_thread(listener.listen, until="done")
        assert listener.ended == {0: (127, 0)}
        assert b"/nowhere/at/all" in listener.output[2, 0]
        Listener.close_all()
        await here.host.kill(KEY)
        await here.ends.record()
        await cleared(here.host, KEY)


def process_one(host: LinuxHost) -> int:
    """The pid of process 1 of the container."""
    return int(Path(host.scopes.container_procs(KEY)).read_text())


def is_there(path: str) -> bool:
    return Path(path).exists()


def traces(place: Path) -> list[str]:
    """Everything on the machine that belongs to the node of that name: cgroups of all hierarchies, loop devices, mounts, processes."""
    roots = [top / "lattice.slice" / place.name for top in Path("/sys/fs/cgroup").iterdir()]
    found = [str(path) for root in roots for path in (root, *below(root)) if path.is_dir()]
    found += [str(file) for file, behind in loop_files() if behind.startswith(str(place))]
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                found += [line for line in (process / "mountinfo").read_text().splitlines() if f"{place}/memory" in line]
                found += [process.name] if place.name in (process / "cgroup").read_text() else []
            except OSError:
                continue
    return found + [str(path) for path in Path("/tmp").glob(f"{private_tmp.beginning(str(place / 'state/attempts'))}*")]


@pytest.fixture(autouse=True)
def _nothing_is_left(place: Path) -> Iterator[None]:
    yield
    assert await_nothing(lambda: traces(place)) == []
    assert not list((place / "memory").glob("*/container"))


@pytest.mark.pure_v2
async def test_work_runs_in_the_image_as_its_user_without_rights_and_its_exit_code_is_kept(place: Path, root: Path) -> None:
    script = (
        "cat /etc/os-release; id -un; id -u; pwd; echo $FROM_IMAGE $HOME $SECRET $LATTICE_NODENAME; grep -E 'CapEff|NoNewPrivs|Seccomp:'"
        " /proc/self/status; touch /x 2>&1; mount -t tmpfs none /app 2>&1; ls /proc | grep -c '^[0-9]'; exit 7"
    )
    async with node(place, root) as here:
        assert await here.run(here.shell(script)) == 7
        lines = here.printed().splitlines()
    assert lines[:5] == ["ID=busybox", "nobody", "65534", "/app", "yes /nonexistent hidden n1"]
    assert lines[5:8] == ["CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"]
    assert "Read-only file system" in lines[8]
    assert "denied" in lines[9] or "not permitted" in lines[9]
    assert int(lines[10]) <= 4, "it sees its own processes alone"


def readable_stub(place: Path) -> Path:
    """A copy of the stub that everybody may read."""
    made = Path(shutil.copy(stub(), place / "stub"))
    made.chmod(0o755)
    return made


async def test_where_the_stub_cannot_set_the_filter_of_system_calls_the_runtime_does(place: Path, root: Path) -> None:
    async with node(place, root, stub=readable_stub(place)) as here:
        assert await here.run(here.shell("grep Seccomp: /proc/1/status; grep Seccomp: /proc/self/status")) == 0
        assert here.printed() == 2 * "Seccomp:\t2\n"


async def test_process_one_and_every_task_have_one_filter_of_system_calls(place: Path, root: Path) -> None:
    async with node(place, root) as here:
        assert await here.run(here.shell("grep Seccomp_filters /proc/1/status; grep Seccomp_filters /proc/self/status")) == 0
        assert here.printed() == 2 * "Seccomp_filters:\t1\n"


@pytest.mark.pure_v2
async def test_every_task_stands_in_the_cgroups_of_the_work_and_process_one_in_those_of_the_container(place: Path, root: Path) -> None:
    async with node(place, root) as here:
        ours = here.shell("cat /proc/self/cgroup; echo rank $LATTICE_PROCID", tasks=3, total_tasks=3, max_processes=500)
        await here.host.prepare(ours)
        scope = f"/lattice.slice/{place.name}/alloc-{UID}-1.scope"
        await until(lambda: len(here.host.scopes.whole(KEY)) == 1)  # what made the container ends after its answer
        assert not here.host.scopes.populated(KEY), "process 1 of a container is no work"
        await here.host.start(ours)
        record = await here.ends.record()
        assert [task.code for task in record.tasks] == [0, 0, 0]
        assert {task.rank for task in record.tasks} == {0, 1, 2}
        lines = here.printed().splitlines()
        assert sum(line == f"0::{scope}/{PARTS[1]}" for line in lines) == 3, lines
        assert {f"rank {rank}" for rank in range(3)} <= set(lines)
        others = {line.partition(":")[2] for line in lines if ":" in line and not line.startswith("0:")}
        assert all(line.partition(":")[2].startswith(scope) for line in others), "in every hierarchy it stands in the attempt's"
        assert not any("pids:" in line and "container" in line for line in others), "the limit of processes holds"
        await cleared(here.host, KEY)


async def test_home_and_working_directory_are_the_nodes_and_system_directories_the_images(place: Path, root: Path) -> None:
    project = place / "project"
    project.mkdir()
    os.chown(project, 65534, 65534)
    script = "pwd; echo made > made; cat /etc/os-release; tail -n 1 /etc/passwd; cat $0 | head -n 1; echo $LATTICE_SUBMIT_DIR"
    async with node(place, root) as here:
        assert await here.run(here.shell(script.replace("tail -n 1", "grep nobody"), workdir=str(project))) == 0
        lines = here.printed().splitlines()
        assert lines == [str(project), "ID=busybox", "nobody:x:65534:65534::/nonexistent:/usr/sbin/nologin", "#!/bin/sh", str(project)]
        assert (project / "made").read_text() == "made\n"
        second = Key(UID, 2)
        assert await here.run(here.shell("pwd; cat os-release", workdir="/etc", key=second)) == 0
        assert here.printed(second) == "/etc\nID=busybox\n"
        third = Key(UID, 3)
        assert await here.run(here.shell("pwd", workdir="/app", key=third)) == 0, "a directory that the image has and the node lacks"
        assert here.printed(third) == "/app\n"


async def test_a_writable_root_belongs_to_the_user_and_goes_with_the_work(place: Path, root: Path) -> None:
    async with node(place, root) as here:
        script = "touch /app/new /new && rm /etc/os-release && ls / | grep new && stat -c %u /app"
        assert await here.run(here.shell(script, writable=True)) == 0, here.printed(stream="stderr")
        assert here.printed() == "new\n65534\n"
        second = Key(UID, 2)
        assert await here.run(here.shell("cat /etc/os-release; ls /app", key=second)) == 0
        assert here.printed(second) == "ID=busybox\n"


@pytest.mark.parametrize(
    ("entrypoint", "code", "said"),
    [
        ("absent --flag", 127, "lattice: 'absent' cannot be executed in the image: No such file or directory; it is not in PATH=/bin:/app"),
        ("/bin/absent", 127, "lattice: /bin/absent cannot be executed in the image: No such file or directory"),
        ("/etc/os-release", 126, "lattice: /etc/os-release cannot be executed in the image: Permission denied"),
        ("/app/lost", 127, "lattice: /app/lost cannot be executed in the image: its interpreter /bin/python9 is not there"),
        ("sh -c 'kill -9 $$'", 137, ""),
        ("sh -c 'exit 3'", 3, ""),
    ],
)
async def test_what_the_image_lacks_ends_with_127_and_a_sentence(place: Path, entrypoint: str, code: int, said: str) -> None:
    def add(tree: Path) -> None:
        (tree / "app/lost").write_text("#!/bin/python9\n")
        (tree / "app/lost").chmod(0o755)

    async with node(place, make_root(place / "root", add)) as here:
        assert await here.run(here.shell(entrypoint=entrypoint, workdir="/")) == code
        assert here.printed(stream="stderr").strip() == said


async def test_a_working_directory_that_neither_node_nor_image_has_is_refused(place: Path, root: Path) -> None:
    async with node(place, root) as here:
        ours = here.shell("true", workdir="/nowhere")
        with pytest.raises(Rejected, match="'/nowhere' is neither on the node, where work may have it, nor in the image") as refused:
            await here.host.prepare(ours)
        assert refused.value.reason == "StartFailed"
        await cleared(here.host, KEY)


LINKS: dict[str, str] = {"proc": "/etc", "tmp": "/../../../../etc", "etc/passwd": "/../../shadow", "etc/hosts": "../../../../tmp/escaped"}


@pytest.mark.parametrize("name", LINKS)
async def test_an_image_with_links_at_mount_points_never_leads_out_of_itself(place: Path, name: str) -> None:
    def change(tree: Path) -> None:
        there = tree / name
        if there.is_dir():
            there.rmdir()
        there.unlink(missing_ok=True)
        there.symlink_to(LINKS[name])

    before = {path: path.lstat().st_mtime_ns for path in (Path("/etc"), Path("/proc"), Path("/tmp/escaped")) if path.exists()}
    async with node(place, make_root(place / "root", change)) as here:
        reason = ""
        try:
            await here.run(here.shell("true"))
        except Rejected as refused:
            reason = refused.reason
            await cleared(here.host, KEY)
    assert reason in ("", "ImageRefused")
    assert before == {path: path.lstat().st_mtime_ns for path in before}
    assert not is_there("/tmp/escaped")


@pytest.mark.parametrize("name", [".lattice", "home", "tmp"])
async def test_an_image_that_leads_mount_points_into_the_users_directories_is_refused(place: Path, name: str) -> None:
    def change(tree: Path) -> None:
        there = tree / name
        if there.is_dir():
            there.rmdir()
        there.symlink_to("/var")

    async with node(place, make_root(place / "root", change)) as here:
        with pytest.raises(Rejected, match=f"/{re.escape(name)}") as refused:
            await here.host.prepare(here.shell("true", container_mounts=("/home",)))
        assert refused.value.reason == "ImageRefused"
        await cleared(here.host, KEY)


async def test_process_one_of_a_container_is_its_users(place: Path, root: Path) -> None:
    async with node(place, root) as here:
        await here.run(here.shell("grep -E '^(Uid|Cap...|NoNewPrivs):' /proc/1/status"))
        lines = dict(line.split(":", 1) for line in here.printed().splitlines())
    assert set(lines["Uid"].split()) != {"0"}
    assert {lines[name].strip() for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert lines["NoNewPrivs"].strip() == "1"


@pytest.mark.parametrize("on_disk", [False, True], ids=["memory", "disk"])
async def test_scratch_space_stands_at_its_path_and_goes_with_the_work(place: Path, root: Path, on_disk: bool) -> None:
    space = place / "scratch" if on_disk else None
    if space is not None:
        space.mkdir()
    async with node(place, root, scratch_dir=space) as here:
        script = 'cd $TMPDIR && echo x > x && stat -c %U:%a . && grep -c " $TMPDIR " /proc/self/mountinfo'
        assert await here.run(here.shell(script, scratch_bytes=1 << 20)) == 0, here.printed(stream="stderr")
        assert here.printed() == "nobody:700\n1\n"


async def test_the_last_task_takes_along_what_it_left_behind(place: Path, root: Path) -> None:
    async with node(place, root) as here:
        ours = here.shell("setsid sh -c 'sleep 300 & sleep 300' > /dev/null 2>&1 & sleep 0.1; exit 4")
        assert await here.run(ours) == 4


async def test_term_and_kill_reach_the_tasks_and_their_codes_are_kept(place: Path, root: Path) -> None:
    async with node(place, root) as here:
        ours = here.shell("trap 'exit 9' TERM; echo ready; while true; do sleep 0.05; done")
        await here.host.prepare(ours)
        await here.host.start(ours)
        await until(lambda: "ready" in here.printed())
        assert await here.host.terminate(KEY, STOPPED)
        assert (await here.ends.record()).tasks[0].code == 9
        await cleared(here.host, KEY)


def limit_memory(file: str) -> None:
    """Sets a small limit, since a node keeps a tenth of its memory at most."""
    Path(file).write_text(str(64 << 20))


@pytest.mark.pure_v2
async def test_work_beyond_its_memory_is_killed_and_the_kill_is_counted(place: Path, root: Path) -> None:
    async with node(place, root) as here:
        memory = here.host.facts().memory_bytes - (64 << 20)
        ours = here.shell("dd if=/dev/zero of=/dev/null bs=300M count=1", reserved_memory=memory)
        await here.host.prepare(ours)
        limit_memory(here.host.scopes.entrances(KEY).meters["limit"])
        await here.host.start(ours)
        record = await here.ends.record()
        assert (record.tasks[0].code != 0, record.use.oom_kills > 0) == (True, True), (record, here.printed(stream="stderr"))
        await cleared(here.host, KEY)


@pytest.mark.parametrize("whom", ["shim", "runner", "container", "agent"])
async def test_kill_of_whoever_keeps_it_leaves_nothing_and_loses_no_more_than_it_must(place: Path, root: Path, whom: str) -> None:
    async with node(place, root) as here:
        held = "sleep 300" if whom in ("shim", "container") else f"while ! test -e {place}/go; do sleep 0.05; done"
        ours = here.shell(f"echo ready; {held}; exit 6", container_mounts=(str(place),))
        await here.host.prepare(ours)
        running = await here.host.start(ours)
        await until(lambda: "ready" in here.printed())
        match whom:
            case "shim":
                os.kill(running.pid, signal.SIGKILL)
            case "runner":
                os.kill(here.host.runner_client.pid, signal.SIGKILL)
            case "container":
                for pid in set(here.host.scopes.whole(KEY)) - set(here.host.scopes.work(KEY)) - {running.pid}:
                    os.kill(pid, signal.SIGKILL)
            case "agent":
                await here.host.runner_client.request({"op": "none"})
                here.host.watch.close()
        record: ExitRecord | None
        if whom == "agent":
            async with machine(place, swept=False) as (second, ends):
                found = await second.attempts()
                assert [known.alive for known in found] == [True]
                (place / "go").touch()
                record = await ends.record()
                await second.clear(KEY)
        else:
            if whom == "runner":
                (place / "go").touch()
            _, record = await here.ends.next()
            await cleared(here.host, KEY)
        codes = {"shim": None, "runner": 6, "container": 137, "agent": 6}
        assert (record.tasks[0].code if record is not None else None) == codes[whom]


async def test_devices_of_cdi_bring_device_files_mounts_and_variables_and_unknown_ones_are_refused(place: Path, root: Path) -> None:
    specifications = place / "cdi"
    specifications.mkdir()
    (place / "library").write_text("of the node\n")
    document = {
        "cdiVersion": "0.6.0", "kind": "vendor.example/thing",
        "containerEdits": {"env": ["THINGS=all"], "mounts": [{"hostPath": str(place / "library"), "containerPath": "/opt/thing/library"}]},
        "devices": [{"name": "null0", "containerEdits": {"deviceNodes": [{"path": "/dev/thing0", "hostPath": "/dev/null"}]}}],
    }  # fmt: skip
    (specifications / "thing.json").write_text(json.dumps(document))
    (specifications / "broken.json").write_text("{")
    async with node(place, root, cdi=(place / "none", specifications)) as here:
        script = "echo x > /dev/thing0 && stat -c %t:%T /dev/thing0; cat /opt/thing/library; echo $THINGS"
        assert await here.run(here.shell(script, devices=("vendor.example/thing=null0",))) == 0, here.printed(stream="stderr")
        assert here.printed() == "1:3\nof the node\nall\n"
        with pytest.raises(
            Rejected, match=r"'vendor.example/thing=one' is unknown; its CDI specifications name vendor.example/thing=null0"
        ):
            await here.host.prepare(here.shell("true", devices=("vendor.example/thing=one",), key=Key(UID, 2)))
        await cleared(here.host, Key(UID, 2))


@pytest.mark.pure_v2
async def test_tasks_open_the_devices_that_the_rules_of_their_container_allow_and_no_others(place: Path, root: Path) -> None:
    specifications, control = place / "cdi", place / "control"
    specifications.mkdir()
    os.mknod(control, 0o666 | stat.S_IFCHR, os.makedev(10, 237))  # of loop devices: whoever has its file may open it
    control.chmod(0o666)
    shown = {"mounts": [{"hostPath": str(control), "containerPath": "/opt/control", "options": ["rbind", "rw"]}]}
    allowed = shown | {"deviceNodes": [{"path": "/dev/control", "hostPath": str(control), "permissions": "rw"}]}
    devices = [{"name": name, "containerEdits": edits} for name, edits in (("shown", shown), ("allowed", allowed))]
    (specifications / "loop.json").write_text(json.dumps({"cdiVersion": "0.6.0", "kind": "a/loop", "devices": devices}))
    async with node(place, root, cdi=(specifications,)) as here:
        script = "cat < /dev/null && : < /opt/control"
        assert await here.run(here.shell(script, devices=("a/loop=shown",))) != 0
        assert "Operation not permitted" in here.printed(stream="stderr")
        second = Key(UID, 2)
        assert await here.run(here.shell(": < /dev/control && : < /opt/control", devices=("a/loop=allowed",), key=second)) == 0, (
            here.printed(second, "stderr")
        )


@pytest.mark.pure_v2
async def test_crun_runs_work_where_cgroups_are_v2_alone_and_is_refused_elsewhere(place: Path, root: Path) -> None:
    async with node(place, root, runtime="crun") as here:
        if here.host.scopes.kind == "hybrid":
            assert "crun makes no containers on hybrid cgroups" in here.host.containers.flaw()
        else:
            assert await here.run(here.shell("cat /etc/os-release; id -u; grep CapEff /proc/self/status; exit 7")) == 7
            assert here.printed() == "ID=busybox\n65534\nCapEff:\t0000000000000000\n"


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        ({"runtime": "wombat"}, "the OCI runtime wombat is not installed"),
        ({"stub": Path("/nowhere/stub")}, "/nowhere/stub is not there"),
        ({"seccomp": Path("/nowhere/seccomp.json")}, "the seccomp profile /nowhere/seccomp.json is not there"),
    ],
)
async def test_a_node_that_lacks_a_part_says_which_and_runs_no_images(place: Path, root: Path, tools: dict[str, Any], said: str) -> None:
    async with machine(place, tools=ContainerTools(**{"stub": stub(), **tools})) as (host, _):
        assert said in host.containers.flaw()
