"""The state of an instance between commands: where its files are, its ports, its processes, its people."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from lattice import errors
from lattice_dev.processes import ProcessId

FORMAT = 1
NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,29}[a-z0-9])?")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options that a person chose at `up`; kept, so that a later `up` without flags changes nothing."""

    nodes: int = 4
    hollow: int = 0
    inventory: str = ""
    """A file with more nodes, which only wait; once up, the instance's own copy of it. Empty: none."""
    listed: int = 0
    """How many nodes the inventory has."""
    fsync: bool = True
    compaction: bool = True
    plain: bool = False
    without: tuple[str, ...] = ()
    kubeconfig: str = ""
    trace_starts: bool = False
    """True: the daemons log each step of a start (`--trace-starts`)."""
    audit_reads: bool = False
    """Whether the audit log has every read too: for a benchmark that counts requests."""
    node_certificates: int = 30 * 86400
    """Life of a renewed node certificate, in seconds."""
    node_memory: int = 0
    """Bytes that the work of each node may have; 0: the machine's."""
    node_reserved_cpus: str = ""
    """Processors that the work of each node may not run on, such as `0`."""

    @property
    def waiting_nodes(self) -> int:
        """Returns the number of nodes that only wait: hollow ones and those of the inventory."""
        return self.hollow + self.listed


class Process(msgspec.Struct, frozen=True):
    """A component's process, and the digest of its arguments."""

    pid: int
    start: int
    digest: str

    @property
    def id(self) -> ProcessId:
        """Returns the process, by pid and start time."""
        return ProcessId(self.pid, self.start)


class User(msgspec.Struct, frozen=True):
    """A person of the instance."""

    uid: int
    tenant: str
    role: str = "user"


class State(msgspec.Struct):
    """The content of instance.json."""

    format: int = FORMAT
    options: Options = Options()
    ports: dict[str, int] = {}
    subnet: str = ""
    processes: dict[str, Process] = {}
    users: dict[str, User] = {}


@dataclass(frozen=True)
class Layout:
    """The paths of everything that belongs to one instance, a local control plane with its nodes under /var/lib/lattice-dev."""

    home: Path
    name: str

    @property
    def directory(self) -> Path:
        """Returns the instance's directory."""
        return self.home / self.name

    @property
    def tag(self) -> str:
        """Returns six hex digits that identify this instance on the machine: in the names of devices and scopes."""
        return hashlib.sha256(str(self.directory).encode()).hexdigest()[:6]

    @property
    def mark(self) -> str:
        """Returns the mark that the instance's processes carry in their environment: the instance's directory."""
        return str(self.directory)

    @property
    def pki(self) -> Path:
        """Returns the folder of certificates and keys."""
        return self.directory / "pki"

    @property
    def logs(self) -> Path:
        """Returns the folder of logs, one file a component."""
        return self.directory / "logs"

    @property
    def audit_log(self) -> Path:
        """Returns the path of the API server's audit log."""
        return self.directory / "audit.log"

    @property
    def etc(self) -> Path:
        """Returns the folder with passwd, group and hosts as the nodes see them."""
        return self.directory / "etc"

    def kubeconfig(self, user: str) -> Path:
        """Returns the path of the kubeconfig of a person or a component; whether it exists is not asked."""
        return self.directory / "kubeconfigs" / f"{user}.kubeconfig"

    def node(self, node: str) -> Path:
        """Returns the folder of one node's files on this machine."""
        return self.directory / "agents" / node

    def user_home(self, user: str) -> Path:
        """Returns the path of a person's home directory, the same on every node."""
        return self.directory / "home" / user

    def log(self, component: str) -> Path:
        """Returns the path of a component's log file."""
        return self.logs / f"{component}.log"

    def scope_root(self) -> Path | None:
        """Returns the cgroup v2 directory below which this instance's work runs, whether it is there or not, and makes nothing.

        None where this process is not root or the machine has no cgroup v2.
        """
        for mounted in ("/sys/fs/cgroup/unified", "/sys/fs/cgroup"):
            if Path(mounted, "cgroup.procs").exists() and Path(mounted, "cgroup.controllers").exists():
                usable = os.geteuid() == 0
                return Path(mounted, "workload.slice", f"lattice-dev-{self.name}-{self.tag}") if usable else None
        return None

    def scope_roots(self) -> list[Path]:
        """Returns the scope root, and its like in each other hierarchy where an agent has made one (v1 controllers too); empty: no root."""
        root = self.scope_root()
        if root is None:
            return []
        tail = Path(root.parent.name, root.name)
        return [
            root,
            *(p / tail for p in sorted(Path("/sys/fs/cgroup").iterdir()) if p.is_dir() and p / tail != root and (p / tail).is_dir()),
        ]


def home_directory(environ: Mapping[str, str]) -> Path:
    """Returns the folder of all instances: `LATTICE_DEV_HOME`, made absolute, else /var/lib/lattice-dev as root, else
    ~/.local/state/lattice-dev; makes nothing.
    """
    if given := environ.get("LATTICE_DEV_HOME"):
        return Path(given).absolute()
    return Path("/var/lib/lattice-dev") if os.geteuid() == 0 else Path.home() / ".local" / "state" / "lattice-dev"


def instance_of_kubeconfig(environ: Mapping[str, str]) -> str:
    """Returns the name of the instance whose kubeconfig `KUBECONFIG` names; empty where it names no instance's, or several files."""
    path = Path(environ.get("KUBECONFIG", "")).absolute()
    inside = path.parent.name == "kubeconfigs" and path.parent.parent.parent == home_directory(environ)
    return path.parent.parent.name if inside else ""


def instances(home: Path) -> list[str]:
    """Returns the names, sorted, of those instances of a home whose state has been written."""
    return sorted(path.parent.name for path in home.glob("*/instance.json"))


def layout(environ: Mapping[str, str], name: str) -> Layout:
    """Returns the layout of the instance called `name`; raises Rejected for a name that cannot be one."""
    if not NAME.fullmatch(name):
        raise errors.Rejected(f"{name!r} cannot name an instance: 1 to 31 of a-z, 0-9 and '-', no '-' at the ends", reason="BadName")
    return Layout(home_directory(environ), name)


def load(where: Layout) -> State:
    """Returns the state as written last; a new one where there is none.

    Raises Corrupt when the file's content is no state, or one of another format.
    """
    path = where.directory / "instance.json"
    try:
        state = msgspec.json.decode(path.read_bytes(), type=State)
    except FileNotFoundError:
        return State()
    except msgspec.DecodeError as error:
        raise errors.Corrupt(f"{path}: {error}; `lattice dev down --name {where.name}` removes the instance", reason="BadState") from error
    if state.format != FORMAT:
        raise errors.Corrupt(f"{path} has format {state.format}, this program reads {FORMAT}; take the instance down", reason="BadState")
    return state


def save(where: Layout, state: State) -> None:
    """Writes the state into instance.json in one step: a reader sees the state before or this one."""
    path = where.directory / "instance.json"
    draft = path.with_suffix(".new")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(state), indent=1))
    draft.rename(path)


def others(where: Layout) -> list[State]:
    """Returns the readable states of other instances, of this home and of the machine's usual one.

    A program of theirs may be down just now: its port looks free then, and is not.
    """
    found = []
    for path in sorted({path for home in (where.home, home_directory({})) for path in home.glob("*/instance.json")}):
        if path.parent != where.directory:
            with contextlib.suppress(OSError, msgspec.DecodeError):
                found.append(msgspec.json.decode(path.read_bytes(), type=State))
    return found


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Waits for the directory's lock and holds it against every other command during the block.

    Makes the directory where it is missing, and removes it at the end where it is empty.
    """
    while True:
        try:
            directory.mkdir(mode=0o755, parents=True, exist_ok=True)
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, FileExistsError):
            continue  # removed between two calls
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _same(descriptor, directory):
                try:
                    yield
                finally:
                    with contextlib.suppress(OSError):
                        directory.rmdir()  # succeeds only when a refused command left it empty
                return
        finally:
            os.close(descriptor)


def _same(descriptor: int, directory: Path) -> bool:
    """Tells whether a descriptor is still of this folder, which may have been removed and made anew."""
    try:
        return os.fstat(descriptor).st_ino == directory.stat().st_ino
    except FileNotFoundError:
        return False
