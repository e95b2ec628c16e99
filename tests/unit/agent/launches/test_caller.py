"""Whose process asks: by the kernel's word alone; processes of nobody, of others, and dead ones are refused."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lattice.errors import Denied
from lattice_agent.attempts import Key
from lattice_agent.host import scopes
from lattice_agent.host.controllers import remove_tree
from lattice_agent.launches import caller, socket_server
from tests.build import uid

ROOT = "/lattice.slice/n1"
KEY = Key(uid(1), 2)
OURS = f"alloc-{uid(1)}-2.scope"
MAIN, LAUNCHED = "work/main", "work/launch-3"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (f"0::{ROOT}/{OURS}/{MAIN}", KEY),
        (f"0::{ROOT}/{OURS}/{LAUNCHED}", KEY),
        (f"4:memory:/x\n0::{ROOT}/{OURS}/{MAIN}/deeper", KEY),
        (f"0::{ROOT}/{OURS}/shim", None),
        (f"0::{ROOT}/{OURS}/keep/0", None),
        (f"0::{ROOT}/{OURS}", None),
        (f"0::/lattice.slice/n2/{OURS}/{MAIN}", None),
        (f"0::{ROOT}2/{OURS}/{MAIN}", None),
        (f"0::/user.slice{ROOT}/{OURS}/{MAIN}", None),
        (f"0::{ROOT}/../n1/{OURS}/{MAIN}", None),
        (f"0::{ROOT}/below/{OURS}/{MAIN}", None),
        (f"1:name=systemd:{ROOT}/{OURS}/{MAIN}", None),
        ("0::/", None),
        ("", None),
    ],
)
def test_a_process_is_of_the_attempt_in_whose_work_the_kernel_has_it(text: str, key: Key | None) -> None:
    assert caller.find_attempt(text, ROOT) == key


CONNECT = """
import os, socket, sys, time
sys.stdin.readline()
fd = os.open(sys.argv[1], os.O_PATH)
connection = socket.socket(socket.AF_UNIX)
connection.connect(f"/proc/self/fd/{fd}/socket")
connection.set_inheritable(True)
print("connected", flush=True)
if sys.argv[2] == "leaves":
    os.fork() and os._exit(0)
time.sleep(600)
"""


@dataclass
class Place:
    """A socket of launches in a directory whose path is longer than an address may be, and a cgroup tree of its own."""

    directory: Path
    listener: socket.socket
    root: Path
    path: str
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def connect(self, cgroup: str, *, leaves: bool = False) -> tuple[socket.socket, subprocess.Popen[str]]:
        """The connection of a new process in this cgroup; `leaves`: it ends, and a child of it keeps the connection open."""
        argv = [sys.executable, "-c", CONNECT, str(self.directory), "leaves" if leaves else "stays"]
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.processes.append(process)
        if cgroup:
            (self.root / cgroup).mkdir(parents=True, exist_ok=True)
            (self.root / cgroup / "cgroup.procs").write_text(str(process.pid))
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "connected\n"
        connection, _ = self.listener.accept()
        return connection, process


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A place of one test; its processes and cgroups are gone after it."""
    found = scopes.find_mount(Path("/proc/self/mounts").read_text())
    if os.geteuid() != 0 or found is None:
        pytest.skip("cgroups need root")
    root = found[0] / f"lattice-test-{tmp_path.name}-{os.getpid()}"
    root.mkdir()
    directory = tmp_path / ("d" * 120)
    directory.mkdir()
    with socket_server.listen(directory) as listener:
        listener.settimeout(60)
        here = Place(directory, listener, root, f"/{root.relative_to(found[0])}")
        yield here
    (root / "cgroup.kill").write_text("1")
    for process in here.processes:
        process.kill()
        process.communicate()
    until = time.monotonic() + 60
    while root.exists() and time.monotonic() < until:
        remove_tree(root)
        time.sleep(0.05)


@pytest.mark.root
def test_a_process_of_the_work_is_told_with_its_attempt_and_user(place: Place) -> None:
    connection, process = place.connect(f"{OURS}/{MAIN}")
    with connection:
        found, pidfd = caller.identify(connection, place.path)
        assert (found.key, found.pid, found.uid) == (KEY, process.pid, 0)
        assert not caller.has_ended(pidfd)
        process.kill()
        process.wait()
        assert caller.has_ended(pidfd)
        os.close(pidfd)


@pytest.mark.root
@pytest.mark.parametrize("cgroup", ["", f"{OURS}/shim", f"{OURS}/keep/0", "elsewhere"])
def test_a_process_that_is_of_no_work_is_refused(place: Place, cgroup: str) -> None:
    connection, _ = place.connect(cgroup)
    with connection, pytest.raises(Denied, match="of no allocation"):
        caller.identify(connection, place.path)


@pytest.mark.root
def test_a_process_that_has_ended_is_refused_though_somebody_keeps_its_connection(place: Place) -> None:
    connection, process = place.connect(f"{OURS}/{MAIN}", leaves=True)
    process.wait()
    with connection, pytest.raises(Denied, match="has ended"):
        caller.identify(connection, place.path)
