"""OCI images that no node runs, and signatures that the work or its tenant requires: through the operator and the nodes of a control plane."""

from __future__ import annotations

import os
import shutil
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import CONFIGS
from lattice_dev.instance import Instance
from tests.containers import files, image, layer, member, push
from tests.e2e.conftest import Room
from tests.e2e.people import Person, person, reason
from tests.oci import BUSYBOX, needs_runc
from tests.registries import running_registry
from tests.signatures import attach, sign, signed_image
from tests.squashfs import needs_mksquashfs

pytestmark = [
    needs_runc(), needs_mksquashfs(), pytest.mark.skipif(os.geteuid() != 0, reason="containers need root"),
    pytest.mark.skipif(shutil.which("docker-registry") is None, reason="docker-registry is not installed"),
]  # fmt: skip
SIGNED = {"signature": True}


@dataclass(frozen=True)
class Site:
    """The registry's options, so that a test may add to them."""

    admin: BlockingCluster
    software: dict[str, Any]

    def configure(self, **more: Any) -> None:
        """Sets the options of software, with these beside the registry's."""
        self.admin.patch(CONFIGS, "lattice", {"spec": {"software": self.software | more}})


@pytest.fixture(scope="module")
def site(control_plane: Instance, admin: BlockingCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Images that are signed and not, in a registry that the site lists; a signature of cosign's that is of another image."""
    network, key = control_plane.site().network, generate_private_key(SECP256R1())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
    busybox = member("bin/busybox", Path(BUSYBOX).read_bytes(), mode=0o755)
    links = [member(f"bin/{name}", kind=tarfile.SYMTYPE, target="busybox") for name in ("sh", "echo")]
    system = image(layer(busybox, *links), env=("PATH=/bin",))
    with running_registry(tmp_path_factory.mktemp("trust"), address=network.gateway if network is not None else "127.0.0.1") as program:
        sign(program.host, "team/signed", push(program.host, "team/signed", "1", system), key)
        stranger = push(program.host, "team/stranger", "1", system)
        sign(program.host, "team/stranger", stranger, generate_private_key(SECP256R1()))
        push(program.host, "team/bare", "1", image(files({"bin/app": "x"})))
        attach(program.host, "team/forged", "simple", push(program.host, "team/forged", "1", signed_image("another")))
        push(program.host, "team/escape", "1", image(layer(member("../../etc/cron.d/x", "x"))))
        push(program.host, "team/device", "1", image(layer(member("disk", kind=tarfile.BLKTYPE))))
        push(program.host, "team/zeros", "1", image(layer(member("zeros", bytes(8 << 20)))))
        registries = [{"name": "images.example", "url": f"http://{program.host}"}]
        made = Site(admin, {"registries": registries, "trustedKeys": [{"name": "site", "key": public}], "largestImage": "6Mi"})
        made.configure()
        yield made
        admin.patch(CONFIGS, "lattice", {"spec": {"software": None}})


@pytest.fixture(scope="module")
def me(control_plane: Instance, shared_tenant: Room) -> Person:
    """alice, in a tenant of this file."""
    return person(control_plane, "alice", shared_tenant.namespace)


def finished(status: dict[str, Any]) -> str:
    message: str = next(entry["message"] for entry in status["conditions"] if entry["type"] == "Finished")
    return message


def test_a_signed_image_runs_where_a_signature_is_required(site: Site, me: Person) -> None:
    me.apply("signed", nodes=2, entrypoint="echo trusted", environment={"image": "team/signed:1", "require": SIGNED})
    status = me.ended("signed", within=60)
    assert status["phase"] == "Completed", status
    assert me.lattice("logs", "signed").stdout.count("trusted") == 2


@pytest.mark.parametrize(
    ("name", "environment", "expected", "said"),
    [
        ("unsigned", {"image": "team/bare:1", "require": SIGNED}, "ImageRefused", "is not signed"),
        ("stranger", {"image": "team/stranger:1", "require": SIGNED}, "ImageRefused", "signed by none of this site's keys (site)"),
        ("forged", {"image": "team/forged:1", "require": SIGNED}, "ImageRefused", "signed by none of this site's keys (site)"),
        ("unlisted", {"image": "169.254.169.254/latest:1"}, "ImageRefused", "not one of this site's"),
        ("missing", {"image": "team/none:1"}, "ImageNotFound", "has no image team/none"),
        ("escape", {"image": "team/escape:1"}, "ImageRefused", "leads out of the image"),
        ("device", {"image": "team/device:1"}, "ImageRefused", "is a device node"),
        ("zeros", {"image": "team/zeros:1"}, "ImageRefused", "software.largestImage"),
    ],
)
def test_an_image_that_nobody_may_run_ends_its_work_with_the_sentence(
    site: Site, me: Person, name: str, environment: dict[str, Any], expected: str, said: str
) -> None:
    me.apply(name, entrypoint="true", environment=environment, lifecycle={"requeue": {"policy": "Always"}})
    status = me.ended(name, within=60)
    assert (status["phase"], reason(status), said in finished(status)) == ("Failed", expected, True), finished(status)


def test_a_tenant_whose_work_must_be_signed_cannot_choose_otherwise(site: Site, me: Person, shared_tenant: Room) -> None:
    site.configure(requireSignature={"tenants": ["*"]})
    try:
        me.apply("ruled", entrypoint="true", environment={"image": "team/bare:1", "require": {"signature": False}})
        me.apply("own", entrypoint="true", environment={"uenv": "/tmp/mine.squashfs:/user-environment"})
        for name, said in (("ruled", "is not signed"), ("own", "a file of the user's own")):
            status = me.ended(name, within=60)
            assert (status["phase"], reason(status), said in finished(status)) == ("Failed", "ImageRefused", True), finished(status)
    finally:
        site.configure(requireSignature=None)
