from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from lattice_dev.build import PEERS, PROGRAMS, Programs, module_digest
from lattice_dev.components import Component, components, group_of
from lattice_dev.install import read_manifests, shipped
from lattice_dev.network import Network
from lattice_dev.site import Site, port_roles, wanted_certificates
from lattice_dev.state import Layout, Options

NETWORK = Network("abc123", "10.213.7.0/24")


def site(options: Options | None = None, network: Network | None = NETWORK) -> Site:
    options = options or Options()
    roles = port_roles(options, plain=network is None)
    return Site(Layout(Path("/x"), "default"), Programs(Path("/bin")), options, {role: 21000 + n for n, role in enumerate(roles)}, network)


def flag(component: Component, name: str) -> str:
    return next(arg.partition("=")[2] for arg in component.argv if arg.startswith(f"--{name}="))


def by_name(here: Site) -> dict[str, Component]:
    return {component.name: component for component in components(here)}


def test_every_program_is_listed_once_control_plane_first() -> None:
    listed = components(site(Options(nodes=2, hollow=5)))
    assert [c.name for c in listed] == [
        "etcd", "kube-apiserver", "kube-controller-manager", "relay", "scheduler", "operator", "webhook", "gateway",
        "agent-nid001", "agent-nid002", "hollow",
    ]  # fmt: skip
    assert [c.stage for c in listed] == sorted(c.stage for c in listed)


def test_without_leaves_out_what_is_named_and_agents_means_all_of_them() -> None:
    assert set(by_name(site(Options(without=("agents", "operator"))))) == {
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "relay",
        "scheduler",
        "webhook",
        "gateway",
    }


def test_etcd_waits_for_the_disk_unless_told_otherwise() -> None:
    assert "--unsafe-no-fsync" not in by_name(site())["etcd"].argv
    assert "--unsafe-no-fsync" in by_name(site(Options(fsync=False)))["etcd"].argv


def test_without_compaction_neither_etcd_nor_the_apiserver_compacts() -> None:
    here = by_name(site(Options(compaction=False)))
    assert not any("compaction" in arg for arg in here["etcd"].argv)
    assert flag(here["kube-apiserver"], "etcd-compaction-interval") == "0"


def test_nothing_listens_beyond_loopback_and_the_private_bridge() -> None:
    for component in components(site(Options(nodes=3, hollow=1))):
        for arg in component.argv:
            assert not arg.partition("=")[2].startswith(("0.0.0.0", "https://0.0.0.0", "[::]"))  # noqa: S104  # looked for, not bound
            assert not arg.startswith("--bind-address=") or arg == "--bind-address=127.0.0.1"


def test_a_person_with_a_certificate_of_the_cluster_cannot_reach_etcd() -> None:
    here = by_name(site())
    assert flag(here["etcd"], "trusted-ca-file") != flag(here["kube-apiserver"], "client-ca-file")


def test_only_the_administrator_has_every_right() -> None:
    assert [identity.name for _, _, identity in wanted_certificates(site()) if "system:masters" in identity.groups] == ["lattice-dev-admin"]


def test_an_agents_identity_is_its_node_for_the_apiserver_and_for_its_peers() -> None:
    found = {
        (authority, identity.name, identity.groups) for authority, file, identity in wanted_certificates(site()) if file == "agent-nid001"
    }
    assert found == {("ca", "lattice:agent:nid001", ("lattice:agents",)), ("agents-ca", "lattice:agent:nid001", ("lattice:agents",))}


def test_plain_agents_have_ports_of_their_own_on_loopback() -> None:
    here = site(Options(nodes=3), network=None)
    listens = [component.argv[component.argv.index("--listen") + 1] for component in components(here) if component.node]
    assert len(set(listens)) == 3
    assert all(address.startswith("127.0.0.1:") for address in listens)


def test_an_option_that_changes_a_program_changes_its_digest_and_no_others() -> None:
    before, after = by_name(site()), by_name(site(Options(fsync=False)))
    assert {name for name in before if before[name].digest != after[name].digest} == {"etcd"}


@given(count=st.integers(1, 240))
def test_groups_are_contiguous_and_at_most_two(count: int) -> None:
    groups = [group_of(index, count) for index in range(count)]
    assert groups == sorted(groups)
    assert set(groups) <= {"g0", "g1"}


def test_the_cache_is_named_by_the_content_of_the_module(tmp_path: Path) -> None:
    (tmp_path / "etcd").mkdir()
    (tmp_path / "go.mod").write_text("module x")
    (tmp_path / "etcd" / "main.go").write_text("package main")
    first = module_digest(tmp_path)
    (tmp_path / "README").write_text("not built")
    assert module_digest(tmp_path) == first
    (tmp_path / "etcd" / "main.go").write_text("package main\n")
    assert module_digest(tmp_path) != first


def test_a_peer_that_changes_builds_no_control_plane_anew(tmp_path: Path) -> None:
    for program in ("etcd", "kube-scheduler"):
        (tmp_path / program).mkdir()
        (tmp_path / program / "main.go").write_text("package main")
    instance, peers = module_digest(tmp_path), module_digest(tmp_path, PEERS)
    (tmp_path / "kube-scheduler" / "main.go").write_text("package main\n")
    assert module_digest(tmp_path) == instance
    assert module_digest(tmp_path, PEERS) != peers
    (tmp_path / "go.mod").write_text("module x")
    assert module_digest(tmp_path) != instance


def test_the_module_has_a_main_for_every_program() -> None:
    module = Path(shipped("crds")).parent / "dev/lattice_dev/controlplane"
    assert all((module / name / "main.go").is_file() for name in (*PROGRAMS, *PEERS))


def test_every_shipped_manifest_is_of_a_kind_that_can_be_installed_and_no_placeholder_stays() -> None:
    values = {"WEBHOOK_URL": "https://127.0.0.1:1", "CA_BUNDLE": "QQ=="}
    manifests = [*read_manifests(shipped("crds"), {}), *read_manifests(shipped("files"), values)]
    assert {manifest["kind"] for manifest in manifests} >= {"CustomResourceDefinition", "ClusterRole", "ValidatingAdmissionPolicy"}
    assert "${" not in str([m for m in manifests if m["kind"].endswith("WebhookConfiguration")])


def test_namespaces_come_before_what_lies_in_them() -> None:
    kinds = [manifest["kind"] for manifest in read_manifests(shipped("files"), {})]
    assert kinds.index("Namespace") == 0
    assert kinds.index("ClusterRole") < kinds.index("ClusterRoleBinding")
