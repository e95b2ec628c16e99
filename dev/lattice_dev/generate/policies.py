"""`policies-allocation-spec.yaml` of the chart: the rules of an Allocation's spec as a policy, written from the model.

The API server asks the rules of a schema at every write, also of the status, whose writes outnumber all others; a policy that
matches the object alone is asked when somebody writes the object. One list of sentences is made and joined, so that who breaks
several rules reads of all of them.
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
    """Returns the file below `folder`, with its text."""
    documents = (_policy(AllocationSpec.policies), _binding())
    text = "---\n".join(yaml.dump(document, Dumper=_Folded, sort_keys=False, width=140, allow_unicode=True) for document in documents)
    return {folder / "policies-allocation-spec.yaml": HEADER + _WHY + text}


def condition(rule: Rule) -> str:
    """Returns the rule as the policy's variables have it: `self` is the spec, `oldSelf` the spec before."""
    return re.sub(r"\bself\b", "variables.spec", re.sub(r"\boldSelf\b", "variables.former", rule.rule))


def _policy(rules: tuple[Rule, ...]) -> dict[str, Any]:
    changes, always = _sentences(rules, of_changes=True), _sentences(rules, of_changes=False)
    variables = {
        "spec": "object.spec",
        "former": "oldObject.spec",
        "broken": f"([{always}]\n+ (oldObject == null ? [] :\n[{changes}]))\n.filter(sentence, sentence != '')\n",
    }
    resources = [{"apiGroups": [GROUP], "apiVersions": ["*"], "operations": ["CREATE", "UPDATE"], "resources": ["allocations"]}]
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": _metadata(),
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": resources},
            "variables": [{"name": name, "expression": expression} for name, expression in variables.items()],
            "validations": [
                {"expression": "size(variables.broken) == 0", "reason": "Invalid", "messageExpression": "variables.broken.join('; ')"}
            ],
        },
    }


def _sentences(rules: tuple[Rule, ...], *, of_changes: bool) -> str:
    """Returns the sentence of each rule that is broken, else an empty one: of the rules that compare with what was before, or of the
    others.
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
    """YAML whose texts of several lines stand as blocks."""


_Folded.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)
)
