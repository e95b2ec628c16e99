"""The reference pages name everything that the sources hold."""

from __future__ import annotations

from typing import Any

import pytest

from lattice.admission.reasons import REFUSALS
from lattice.cli import exits
from lattice.cli.registry import VERBS
from lattice.models.reasons import ADMINISTRATION_REASONS, END_REASONS, NODE_REASONS, PENDING_REASONS
from lattice_dev.generate.commands import commands_page
from lattice_dev.generate.crds import openapi
from lattice_dev.generate.metrics import metrics_page, registries
from lattice_dev.generate.references import PAGES, exits_page, kind_page, reasons_page


def field_names(node: dict[str, Any]) -> set[str]:
    found = set(node.get("properties", {}))
    below = [*node.get("properties", {}).values(), *(node[key] for key in ("items", "additionalProperties") if key in node)]
    return found.union(*(field_names(child) for child in below))


@pytest.mark.parametrize(("name", "kind"), PAGES, ids=[name for name, _ in PAGES])
def test_every_field_stands_on_the_page_of_its_kind(name: str, kind: Any) -> None:
    page = kind_page(kind)
    wanted = field_names(openapi(kind)) - {"apiVersion", "kind", "metadata", "spec", "status"}
    assert {field for field in wanted if f"| `{field}` |" not in page} == set()


def test_a_part_that_is_not_served_says_why() -> None:
    page = kind_page(dict(PAGES)["allocation"])
    assert "| `output` | string (≤ 1024) | – | Where its results go. **Not served yet**: data is not staged by this release. |" in page


def test_types_limits_and_defaults_are_shown() -> None:
    page = kind_page(dict(PAGES)["allocation"])
    assert "| `preemptionClass` | integer 0…10 | `5` |" in page
    assert '| `nodes` | number, or range `"32-128"` | `1` |' in page
    assert "| `tags` | map (≤ 32) to string (≤ 253) |" in page
    assert "| `walltime` | duration |" in page


def test_every_reason_stands_on_the_page() -> None:
    page = reasons_page()
    assert all(
        f"| `{reason.word}` |" in page for reason in (*PENDING_REASONS, *END_REASONS, *NODE_REASONS, *ADMINISTRATION_REASONS, *REFUSALS)
    )


def test_every_exit_code_of_the_command_line_is_documented() -> None:
    page = exits_page()
    codes = {value for name, value in vars(exits).items() if name.isupper() and isinstance(value, int) and not isinstance(value, bool)}
    assert codes
    assert all(f"| {code} |" in page for code in codes)


def test_every_verb_and_its_flags_stand_on_the_page_of_the_command_line() -> None:
    page = commands_page()
    assert all(f"\n## lattice {verb}\n" in page for verb in VERBS)
    assert "    lattice node drain --reason TEXT [NODES …] [flags]\n" in page
    assert "| `-f`, `--filename FILE` | a manifest" in page
    assert "### lattice admin ledger recover" in page
    assert "SUPPRESS" not in page


def test_every_metric_of_every_program_stands_on_the_page() -> None:
    page = metrics_page()
    names = {metric.name for registry in registries().values() for metric in registry.collect()}
    assert len(names) > 20
    assert {name for name in names if f"| `{name}" not in page} == set()
    assert "| `lattice_ledger_commits_total` | counter | `result` |" in page
