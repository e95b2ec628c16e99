"""The chart's files, as plain YAML: complete, minimal, and the same that `lattice dev` applies."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from lattice.kube.resources import LATTICE

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "lattice"
FILES = sorted((CHART / "files").glob("*.yaml"))
PROGRAMS = ("scheduler", "operator", "webhook", "gateway")
VIRTUAL = {"logs", "cycles", "cache"}


def documents(pattern: str = "*.yaml") -> Iterator[tuple[str, dict[str, Any]]]:
    for file in FILES:
        if fnmatch(file.name, pattern):
            for document in yaml.safe_load_all(file.read_text()):
                yield file.name, document


def of_kind(kind: str) -> dict[str, dict[str, Any]]:
    return {document["metadata"]["name"]: document for _, document in documents() if document["kind"] == kind}


def test_every_file_is_in_the_chart() -> None:
    templates = "".join(path.read_text() for path in (CHART / "templates").glob("*"))
    patterns = re.findall(r'"(files/[^"]+)"', templates)
    left_out = [file.name for file in FILES if not any(fnmatch(f"files/{file.name}", pattern) for pattern in patterns)]
    assert left_out == ["namespaces.yaml"]  # helm makes the one, templates/rights.yaml the other


def test_every_document_names_what_it_is_and_belongs_to_lattice() -> None:
    for file, document in documents():
        assert document["apiVersion"], file
        assert document["metadata"].get("labels", {}).get("app.kubernetes.io/part-of") == "lattice" or "Binding" in document["kind"], (
            file,
            document["metadata"]["name"],
        )


def test_names_stand_once_by_kind_and_namespace() -> None:
    keys = [(d["kind"], d["metadata"].get("namespace"), d["metadata"]["name"]) for _, d in documents()]
    assert len(keys) == len(set(keys))


def test_no_right_is_a_wildcard() -> None:
    for kind in ("ClusterRole", "Role"):
        for name, role in of_kind(kind).items():
            for rule in role["rules"]:
                assert "*" not in (
                    *rule["verbs"],
                    *rule.get("resources", ()),
                    *rule.get("apiGroups", ()),
                    *rule.get("nonResourceURLs", ()),
                ), name


def test_rights_name_resources_that_exist() -> None:
    known = {resource.plural for resource in LATTICE}
    with_status = {resource.plural for resource in LATTICE if resource.status}
    for name, role in {**of_kind("ClusterRole"), **of_kind("Role")}.items():
        for rule in role["rules"]:
            for resource in rule["resources"] if "lattice.dev" in rule.get("apiGroups", ()) else ():
                plural, _, sub = resource.partition("/")
                assert plural in known, (name, resource)
                assert sub in ("", *VIRTUAL) or (sub == "status" and plural in with_status), (name, resource)


def test_only_scheduler_writes_the_ledger_and_its_like() -> None:
    for name, role in of_kind("ClusterRole").items():
        for rule in role["rules"]:
            writes = set(rule["verbs"]) - {"get", "list", "watch"}
            guarded = {"ledgers", "ledgers/status", "nodeindexes", "nodegroupplans"} & set(rule.get("resources", ()))
            if writes and guarded:
                assert name == "lattice-scheduler" or (name, writes) == ("lattice-system-admin", {"create", "patch"})


def test_the_webhook_may_write_nothing_so_that_a_refusal_costs_no_write_and_leaves_no_event() -> None:
    roles = {name: role for kind in ("ClusterRole", "Role") for name, role in of_kind(kind).items() if "webhook" in name}
    writes = {
        (name, resource)
        for name, role in roles.items()
        for rule in role["rules"]
        for resource in rule.get("resources", ())
        if set(rule["verbs"]) - {"get", "list", "watch"}
    }
    assert writes == {("lattice-webhook", "subjectaccessreviews")}


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_program_has_its_rights_as_user_and_as_service_account(program: str) -> None:
    for kind in ("ClusterRoleBinding", "RoleBinding"):
        for name, binding in of_kind(kind).items():
            subjects = {(subject["kind"], subject["name"]) for subject in binding["subjects"]}
            assert (("User", f"lattice:{program}") in subjects) == (("ServiceAccount", f"lattice-{program}") in subjects), name
    bound = of_kind("ClusterRoleBinding")[f"lattice-{program}"]["subjects"]
    assert {subject["name"] for subject in bound} == {f"lattice:{program}", f"lattice-{program}"}


def test_every_identity_in_a_policy_stands_as_user_and_as_service_account() -> None:
    for name, policy in of_kind("ValidatingAdmissionPolicy").items():
        text = yaml.safe_dump(policy)
        for program in PROGRAMS:
            by_user, by_account = f"'lattice:{program}'" in text.replace("''", "'"), f"lattice-system:lattice-{program}" in text
            assert by_user == by_account, (name, program)


def test_every_policy_denies_and_says_why() -> None:
    bindings = of_kind("ValidatingAdmissionPolicyBinding")
    for name, policy in of_kind("ValidatingAdmissionPolicy").items():
        parameters = policy["spec"].get("paramKind", {}).get("apiVersion", "")
        assert policy["spec"]["failurePolicy"] == "Fail", name
        every: dict[str, Any] = {}
        if parameters == "v1":  # a list that nobody finds is no empty list
            every = {"paramRef": {"name": name, "namespace": "lattice-system", "parameterNotFoundAction": "Deny"}}
        elif parameters:  # asked once for each group: for what names one alone
            every = {"paramRef": {"selector": {}, "parameterNotFoundAction": "Allow"}}
            named = {"matchExpressions": [{"key": "lattice.dev/quota", "operator": "Exists"}]}
            assert policy["spec"]["matchConstraints"]["objectSelector"] == named
        assert bindings[name]["spec"] == {"policyName": name, "validationActions": ["Deny"], **every}
        for validation in policy["spec"]["validations"]:
            assert "message" in validation or "messageExpression" in validation, name


def test_the_webhooks_are_a_friendly_early_answer() -> None:
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        for webhook in of_kind(kind)["lattice"]["webhooks"]:
            assert (webhook["failurePolicy"], webhook["sideEffects"], webhook["timeoutSeconds"]) == ("Ignore", "None", 3)
            assert webhook["clientConfig"]["url"].startswith("${WEBHOOK_URL}/")
            assert webhook["clientConfig"]["caBundle"] == "${CA_BUNDLE}"


def test_the_chart_has_the_version_of_the_project_and_its_crds() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert chart["version"] == chart["appVersion"] == project["version"]
    assert {path.name for path in (CHART / "crds").glob("*.yaml")} == {path.name for path in (ROOT / "crds").glob("*.yaml")}
