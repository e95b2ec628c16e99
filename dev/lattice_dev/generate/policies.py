"""Generates `policies-allocation-spec.yaml` of the chart: the rules of an Allocation's spec as an admission policy.

The API server evaluates the rules of a schema at every write, even of the status, whose writes outnumber all others; a policy that matches
only the main resource is evaluated when somebody writes that. Its sentences are joined, so that a person who breaks several rules reads all
of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml

from lattice.models.allocation import Allocation, AllocationSpec
from lattice.models.shape import GROUP, Rule
from lattice_dev.generate.crds import HEADER, RULES, Schema, with_every_rule

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


def rules_of_parts() -> tuple[tuple[str, Rule], ...]:
    """Returns the rules that the fields of an Allocation's spec have of their own, as rules of the spec, each with its field's name."""
    spec = with_every_rule(Allocation)["properties"]["spec"]
    return tuple((name, rule) for name, child in spec["properties"].items() for rule in _rules_below(child, (name,)))


def _rules_below(node: Schema, path: tuple[str, ...]) -> Iterator[Rule]:
    """Yields the rules of a node of the schema at a path of the spec, and of the properties below, each kept where the path is absent;
    raises TypeError for a rule of the entries of a list or map.
    """
    own = ".".join(("self", *path))
    absent = [f"!has({'.'.join(('self', *path[:depth]))})" for depth in range(1, len(path) + 1)]
    for entry in node.get(RULES, ()):
        holds = re.sub(r"\bself\b", own, entry["rule"])
        yield Rule(" || ".join(absent if holds == "false" else (*absent, f"({holds})")), entry["message"])
    for name, child in node.get("properties", {}).items():
        yield from _rules_below(child, (*path, name))
    for inner in ("items", "additionalProperties"):
        if isinstance(node.get(inner), dict) and any(_rules_below(node[inner], path)):
            raise TypeError(f"spec.{'.'.join(path)}: the rules of its entries are asked by no policy")


def _policy(rules: tuple[Rule, ...]) -> dict[str, Any]:
    """Returns the admission policy of these rules; those of changes hold only where there is an old object."""
    parts = rules_of_parts()
    always, changes = [rule for rule in rules if not _is_of_change(rule)], [rule for rule in rules if _is_of_change(rule)]
    kept = " && ".join(f"({condition(rule, spec='object.spec')})" for rule in (*always, *(rule for _, rule in parts)))
    every = ",\n".join((*map(_sentence, always), *(_sentence(rule, unchanged=name) for name, rule in parts)))
    of_changes = ",\n".join(map(_sentence, changes))
    variables = {
        "spec": "object.spec",
        "former": "oldObject.spec",
        "broken": f"([{every}]\n+ (oldObject == null ? [] :\n[{of_changes}]))\n.filter(sentence, sentence != '')\n",
    }
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


def _sentence(rule: Rule, *, unchanged: str = "") -> str:
    """Returns the CEL that gives a rule's sentence where it is broken, and '' where it is kept, or where the field `unchanged` (empty:
    none) is as before.
    """
    kept = f"({condition(rule)})"
    if unchanged:
        kept += f" || (oldObject != null && variables.spec.?{unchanged} == variables.former.?{unchanged})"
    return f"{kept} ? '' : '{rule.message}'"


def _is_of_change(rule: Rule) -> bool:
    """Tells whether a rule compares with what was before."""
    return re.search(r"\b(oldSelf|oldObject\.)", rule.rule) is not None


def _binding() -> dict[str, Any]:
    """Returns the object that puts the policy in force."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": _metadata(),
        "spec": {"policyName": NAME, "validationActions": ["Deny"]},
    }


def _metadata() -> dict[str, Any]:
    """Returns the metadata of policy and binding."""
    return {"name": NAME, "labels": {"app.kubernetes.io/part-of": "lattice"}}


class _Folded(yaml.SafeDumper):
    """A YAML dumper that writes texts of several lines as blocks."""


_Folded.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)
)
