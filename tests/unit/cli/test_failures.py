"""Errors as people read them: what the server adds for programs goes, the numbers and the next step stay."""

from __future__ import annotations

import pytest

from lattice.cli.exits import USAGE, of_error
from lattice.cli.failures import explain
from lattice.errors import Denied, Rejected

UNCHECKED = (
    "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; "
    "correct the existing errors to complete validation"
)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        pytest.param(
            f'Allocation.lattice.dev "x" is invalid: [spec.tags.name: Too long: may not be more than 253 bytes, {UNCHECKED}]',
            "spec.tags.name: Too long: may not be more than 253 bytes",
            id="what-was-not-checked-is-left-out",
        ),
        pytest.param(
            'Allocation.lattice.dev "x" is invalid: spec.environment: Invalid value: spec.environment.uenv is not served yet; remove it',
            "spec.environment.uenv is not served yet; remove it",
            id="a-sentence-that-names-its-field-stands-alone",
        ),
        pytest.param(
            'Allocation.lattice.dev "x" is invalid: spec.resources.nodes: Invalid value: 0: must be at least 1',
            "spec.resources.nodes: Invalid value: 0: must be at least 1",
            id="the-value-stays",
        ),
        pytest.param(
            'admission webhook "validate.lattice.dev" denied the request: Allocation "x": spec.entrypoint is empty',
            "spec.entrypoint is empty",
            id="the-object-is-named-for-kubectl-alone",
        ),
        pytest.param(
            'Tenant.lattice.dev "Bio_1" is invalid: metadata.name: Invalid value: "Bio_1": a lowercase RFC 1123 subdomain must consist of '
            "lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', "
            "regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
            "\"Bio_1\" cannot be a name: write lowercase letters, digits, '-' or '.', with a letter or digit at both ends",
            id="a-name-that-is-none-is-told-without-the-pattern",
        ),
        pytest.param(
            'Tenant.lattice.dev "x" is invalid: spec.finishedRetention: Invalid value: "soon": '
            "spec.finishedRetention in body should match '^([0-9]+d)?$'",
            "spec.finishedRetention: Invalid value: \"soon\": spec.finishedRetention in body should match '^([0-9]+d)?$'",
            id="the-value-stays-beside-the-schemas-own-sentence",
        ),
    ],
)
def test_what_the_schema_says_is_shown_without_what_is_for_programs(said: str, shown: str) -> None:
    assert explain(Rejected(f"create allocations physics/x: {said}", reason="Invalid")) == [f"Error: {shown}"]


def test_who_is_no_member_of_a_tenant_reads_what_to_do() -> None:
    said = 'allocations.lattice.dev is forbidden: User "alice" cannot create resource "allocations" in API group "lattice.dev"'
    lines = explain(Denied(f'{said} in the namespace "nope"', reason="Forbidden"))
    assert lines[1].startswith('  Hint: There is no tenant of namespace "nope", or you are no member')


def test_a_flag_that_the_gateway_refuses_is_named_as_it_was_written_and_is_bad_input() -> None:
    refused = Rejected("the parameter days is '0': a whole number from 1 to 3650", reason="ParameterInvalid", fields=("days",))
    assert explain(refused) == ["Error: --days is '0': a whole number from 1 to 3650"]
    assert of_error(refused) == USAGE


def test_a_server_that_is_not_trusted_has_a_hint() -> None:
    assert "fetch the kubeconfig anew" in explain(Denied("its certificate is not trusted", reason="ServerNotTrusted"))[-1]


def test_a_hint_that_is_a_command_stays_as_it_is_typed() -> None:
    assert explain(Rejected("nothing to submit. Hint: lattice submit --help"))[-1] == "  Hint: lattice submit --help"
