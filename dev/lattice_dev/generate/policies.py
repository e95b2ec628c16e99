"""Generates `policies-allocation-spec.yaml` of the chart: the rules of an Allocation's spec as an admission policy.

The API server evaluates the rules of a schema at every write, even of the status, whose writes outnumber all others; a policy that matches
only the main resource is evaluated when somebody writes that. Its sentences are joined, so that a person who breaks several rules reads all
of them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import yaml

from lattice.models.allocation import AllocationSpec
from lattice.models.shape import GROUP, Rule
from lattice_dev.generate.crds import HEADER

NAME: Final = "lattice-allocation-spec"
_WHY: Final = """\
# What holds of every Allocation's spec, whoever writes it, with the webhook down too. These rules stand in no schema: a schema's
# rules are asked at each write of the status as well.
"""


def files(folder: Path) -> dict[Path, str]:
    """Returns the text of the policy's file by its path below `folder`; writes nothing."""
    documents = (_policy(AllocationSpec.policies), _binding())
    text = "---\n".join(yaml.dump(document, Dumper=_Folded, sort_keys=False, width=140, allow_unicode=True) for document in documents)
    return {folder / "policies-allocation-spec.yaml": HEADER + _WHY + text}


def condition(rule: Rule, *, spec: str = "variables.spec") -> str:
    """Returns a rule's CEL with `spec` for `self`, and the policy's variable `variables.former` for `oldSelf`, the spec before."""
    return re.sub(r"\bself\b", spec, re.sub(r"\boldSelf\b", "variables.former", rule.rule))


def _policy(rules: tuple[Rule, ...]) -> dict[str, Any]:
    changes, always = _sentences(rules, of_changes=True), _sentences(rules, of_changes=False)
    variables = {
        "spec": "object.spec",
        "former": "oldObject.spec",
        "broken": f"([{always}]\n+ (oldObject == null ? [] :\n[{changes}]))\n.filter(sentence, sentence != '')\n",
    }
    kept = " && ".join(f"({condition(rule, spec='object.spec')})" for rule in rules if not _is_of_change(rule))
    resources = [{"apiGroups": [GROUP], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": ["allocations"]}]
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": _metadata(),
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": resources},
            "matchConditions": [{"name": "not-usual", "expression": f"oldObject != null || !({kept})"}],
            "variables": [{"name": name, "expression": expression} for name, expression in variables.items()],
            "validations": [
                {"expression": "size(variables.broken) == 0", "reason": "Invalid", "messageExpression": "variables.broken.join('; ')"}
            ],
        },
    }


def _sentences(rules: tuple[Rule, ...], *, of_changes: bool) -> str:
    """Returns a CEL list with the sentence of each broken rule and '' for each kept one.

    `of_changes` chooses the rules that compare with the spec before; False: the others.
    """
    found = (rule for rule in rules if _is_of_change(rule) == of_changes)
    return ",\n".join(f"({condition(rule)}) ? '' : '{rule.message}'" for rule in found)


def _is_of_change(rule: Rule) -> bool:
    return re.search(r"\b(oldSelf|oldObject\.)", rule.rule) is not None


def _binding() -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": _metadata(),
        "spec": {"policyName": NAME, "validationActions": ["Deny"]},
    }


def _metadata() -> dict[str, Any]:
    return {"name": NAME, "labels": {"app.kubernetes.io/part-of": "lattice"}}


class _Folded(yaml.SafeDumper):
    """A YAML dumper that writes texts of several lines as blocks."""


_Folded.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)
)
