from pathlib import Path

import pytest
from cryptography import x509
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lattice_dev.pki import DAY, LEAF_DAYS, Authority, Identity

NOW = 1_800_000_000.0
SERVER = Identity("kube-apiserver", addresses=("127.0.0.1",), hosts=("localhost",), server=True)


def read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_a_certificate_carries_its_name_its_groups_and_its_addresses(tmp_path: Path) -> None:
    pair, new = Authority(tmp_path, "ca", NOW).issue(
        "agent", Identity("lattice:agent:n1", ("lattice:agents",), ("10.0.0.1",), ("n1",), server=True)
    )
    certificate = read(pair.certificate)
    assert new
    assert {a.value for a in certificate.subject} == {"lattice:agent:n1", "lattice:agents"}
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["n1"]
    assert [str(a) for a in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.1"]


def test_keys_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ca", NOW)
    pair, _ = authority.issue("x", SERVER)
    assert pair.key.stat().st_mode & 0o777 == 0o600
    assert authority.pair.key.stat().st_mode & 0o777 == 0o600


@given(days=st.floats(0, 3 * LEAF_DAYS))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_after_any_up_a_certificate_has_a_third_of_its_life_left(tmp_path_factory: pytest.TempPathFactory, days: float) -> None:
    directory = tmp_path_factory.mktemp("pki")
    Authority(directory, "ca", NOW).issue("x", SERVER)
    later = NOW + days * DAY
    pair, new = Authority(directory, "ca", later).issue("x", SERVER)
    assert read(pair.certificate).not_valid_after_utc.timestamp() - later >= LEAF_DAYS / 3 * DAY - 600
    assert new == (days * DAY > (LEAF_DAYS * DAY + 300) * 2 / 3 - 300)


@pytest.mark.parametrize(
    "other",
    [
        Identity("other", addresses=("127.0.0.1",), hosts=("localhost",), server=True),
        Identity("kube-apiserver", addresses=("10.213.0.1", "127.0.0.1"), hosts=("localhost",)),
    ],
    ids=["another name", "another address"],
)
def test_a_certificate_that_says_something_else_is_issued_again(tmp_path: Path, other: Identity) -> None:
    Authority(tmp_path, "ca", NOW).issue("x", SERVER)
    assert Authority(tmp_path, "ca", NOW).issue("x", other)[1]


def test_a_certificate_of_an_authority_that_was_renewed_is_issued_again(tmp_path: Path) -> None:
    pair, _ = Authority(tmp_path, "ca", NOW).issue("x", SERVER)
    later = NOW + 2600 * DAY
    authority = Authority(tmp_path, "ca", later)
    assert authority.renewed
    assert authority.issue("x", SERVER)[1]
    read(pair.certificate).verify_directly_issued_by(read(authority.pair.certificate))


def test_a_key_without_its_certificate_is_no_pair(tmp_path: Path) -> None:
    pair, _ = Authority(tmp_path, "ca", NOW).issue("x", SERVER)
    other, _ = Authority(tmp_path, "ca", NOW).issue("y", SERVER)
    pair.key.write_bytes(other.key.read_bytes())
    assert Authority(tmp_path, "ca", NOW).issue("x", SERVER)[1]


def test_asking_twice_issues_once(tmp_path: Path) -> None:
    pair, _ = Authority(tmp_path, "ca", NOW).issue("x", SERVER)
    before = pair.certificate.read_bytes()
    assert not Authority(tmp_path, "ca", NOW).issue("x", SERVER)[1]
    assert pair.certificate.read_bytes() == before
