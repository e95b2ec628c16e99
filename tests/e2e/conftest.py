"""One real control plane a run, a tenant with a namespace of its own a test.

`LATTICE_E2E_INSTANCE=NAME` uses an instance that is up already (`lattice dev up --name NAME --trace-starts`) and leaves it there.
"""

import contextlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lattice import errors
from lattice.kube import resources
from lattice.kube.blocking import BlockingCluster
from lattice_dev import install
from lattice_dev.instance import Instance
from lattice_dev.progress import terminal
from lattice_dev.state import Options
from lattice_dev.waiting import HostClock
from tests.e2e.people import Person, person
from tests.e2e.plane import Plane
from tests.e2e.waiting import Seen, until
from tests.e2e.work import Gate, new_gate
from tests.killed_runs import RUN, instance_name

_numbers = itertools.count(1)
NODE_MEMORY = 1 << 30
"""What the work of each node may have."""


@dataclass(frozen=True)
class Room:
    """A tenant of its own, whose namespace has its name; alice and bob are members."""

    name: str

    @property
    def namespace(self) -> str:
        """Where its allocations stand."""
        return self.name


def new_instance(purpose: str, options: Options) -> Instance:
    """An instance with a name of its own, not yet up."""
    return Instance(instance_name(purpose), options, progress=terminal(HostClock()))


@contextlib.contextmanager
def running(instance: Instance) -> Iterator[Instance]:
    """The instance, up within the block and gone after it."""
    try:
        instance.up()
        yield instance
    finally:
        instance.down()


@contextlib.contextmanager
def hollow_site(purpose: str, inventory: str, folder: Path) -> Iterator[Instance]:
    """An instance of the hollow nodes of an inventory and no real one; the inventory's file is in the folder."""
    file = folder / "inventory.yaml"
    file.write_text(inventory, encoding="utf-8")
    with running(new_instance(purpose, Options(nodes=0, inventory=str(file), fsync=False))) as instance:
        yield instance


@pytest.fixture(scope="session")
def control_plane() -> Iterator[Instance]:
    """Everything, up and ready, with four nodes; the daemons log the steps of starts."""
    if name := os.environ.get("LATTICE_E2E_INSTANCE"):
        instance = Instance(name)
        instance.wait_ready()
        yield instance
        return
    with running(new_instance("e2e", Options(nodes=4, trace_starts=True, node_memory=NODE_MEMORY))) as instance:
        yield instance


@pytest.fixture(scope="session")
def admin(control_plane: Instance) -> Iterator[BlockingCluster]:
    """The API as the administrator."""
    with contextlib.closing(control_plane.cluster()) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def plane(control_plane: Instance, admin: BlockingCluster) -> Plane:
    """The shared instance as it was when it came up."""
    return Plane(control_plane, admin)


def _shared(request: pytest.FixtureRequest) -> Plane | None:
    """The plane, where the test uses the shared instance."""
    names = set(request.fixturenames)
    if request.scope == "module":
        names = {name for item in request.session.items if item.path == request.path for name in getattr(item, "fixturenames", ())}
    if "control_plane" not in names:
        return None
    found: Plane = request.getfixturevalue("plane")
    return found


@pytest.fixture(scope="module", autouse=True)
def _configured_as_at_first(request: pytest.FixtureRequest) -> None:
    if (plane := _shared(request)) is not None:
        plane.reset()


@pytest.fixture(autouse=True)
def _whole(request: pytest.FixtureRequest, _configured_as_at_first: None) -> Iterator[None]:
    plane = _shared(request)
    with plane.kept() if plane is not None else contextlib.nullcontext():
        yield


@pytest.fixture
def gate(control_plane: Instance) -> Iterator[Gate]:
    """What work of this test waits for."""
    with new_gate(control_plane) as made:
        yield made


@pytest.fixture(scope="session")
def alice(control_plane: Instance) -> Path:
    """The kubeconfig of alice, a user of every test's tenant."""
    return control_plane.kubeconfig("alice")


@pytest.fixture(scope="session")
def bob(control_plane: Instance) -> Path:
    """The kubeconfig of bob, another user of every test's tenant."""
    return control_plane.kubeconfig("bob")


def new_room(admin: BlockingCluster) -> Room:
    """A tenant that nobody else uses, with its members' rights in force; it stays."""
    made = Room(f"t{RUN}-{next(_numbers)}")
    for user in ("alice", "bob"):
        install.grant(admin, made.name, user, admin=False)
    until(Seen(lambda: admin.get(resources.TENANTS, made.name), _is_ready), within=20, what=f"tenant {made.name}")
    until(lambda: all(may_submit(admin, user, made.namespace) for user in ("alice", "bob")), within=20, what=f"rights in {made.name}")
    return made


@contextlib.contextmanager
def room(admin: BlockingCluster) -> Iterator[Room]:
    """A tenant that nobody else uses; its work is cancelled and deleted at the end."""
    made = new_room(admin)
    yield made
    clear(admin, made.namespace)
    with contextlib.suppress(errors.Denied):  # its use is mirrored every few seconds: until then it counts as in use, and stays
        admin.delete(resources.TENANTS, made.name)


@pytest.fixture
def tenant(admin: BlockingCluster) -> Iterator[Room]:
    """A tenant of this test alone."""
    with room(admin) as made:
        yield made


@pytest.fixture(scope="module")
def shared_tenant(admin: BlockingCluster) -> Iterator[Room]:
    """A tenant of the tests of one file, for those that leave nothing behind."""
    with room(admin) as made:
        yield made


@pytest.fixture(scope="module")
def lab(admin: BlockingCluster) -> Iterator[Room]:
    """The tenant of the tests of one file, whose work stays from one to the next."""
    with room(admin) as made:
        yield made


@pytest.fixture
def me(control_plane: Instance, tenant: Room) -> Person:
    """alice, in a tenant of this test."""
    return person(control_plane, "alice", tenant.namespace)


@pytest.fixture(scope="module")
def sam(control_plane: Instance) -> Person:
    """A system admin."""
    control_plane.add_user("sam", "operations", "system-admin")
    return person(control_plane, "sam", "operations")


@pytest.fixture(scope="module")
def boss(control_plane: Instance) -> Person:
    """The administrator of the cluster."""
    return person(control_plane, "admin", "default")


@pytest.fixture(scope="module")
def quick_retries(admin: BlockingCluster) -> Iterator[None]:
    """A retry follows its attempt after a second."""
    admin.patch(resources.CONFIGS, "lattice", {"spec": {"scheduling": {"retryBackOff": "1s"}}})
    yield
    admin.patch(resources.CONFIGS, "lattice", {"spec": {"scheduling": {"retryBackOff": None}}})


def clear(root: BlockingCluster, namespace: str) -> None:
    """Deletes the work there, and waits until nothing is left of it, nor of its nodes."""
    for item in root.list(resources.ALLOCATIONS, namespace).items:
        with contextlib.suppress(errors.NotFound):
            root.delete(resources.ALLOCATIONS, item["metadata"]["name"], namespace)
    until(lambda: not root.list(resources.ALLOCATIONS, namespace).items, within=30, what=f"the end of the work of {namespace}")


def may_submit(admin: BlockingCluster, user: str, namespace: str) -> bool:
    """Whether the API server has read the bindings that the operator made."""
    asked = {"verb": "create", "group": "lattice.dev", "resource": "allocations", "namespace": namespace}
    review = {"spec": {"user": user, "resourceAttributes": asked}}
    return bool(admin.create(resources.SUBJECT_ACCESS_REVIEWS, review)["status"]["allowed"])


def _is_ready(item: dict[str, object]) -> bool:
    status = item.get("status")
    conditions = status.get("conditions", []) if isinstance(status, dict) else []
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
