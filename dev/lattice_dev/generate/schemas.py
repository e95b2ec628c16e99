"""Generates `docs/reference/schemas/*.json`: the JSON Schemas of the answers of `why`, `plan`, `queue` and `quota` with `-o json`."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from lattice.accounting import answers as accounting_answers
from lattice.launches import answers as launch_answers
from lattice.scheduling.queries import answers, quota_answers

ANSWERS: Final = answers.ANSWERS | quota_answers.QUOTA_ANSWERS | accounting_answers.ACCOUNTING_ANSWERS | launch_answers.STEP_ANSWERS
"""Every answer's type by its schema name."""
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"


def files(folder: Path) -> dict[Path, str]:
    """Returns the text of every schema by its path below `folder`; writes nothing."""
    return {folder / f"{_name(schema)}.json": json.dumps(document(schema), indent=2) + "\n" for schema in ANSWERS}


def document(schema: str) -> dict[str, Any]:
    """Returns the JSON Schema of one answer; `schema` is the value of the answer's field `schema`, such as `lattice.dev/why/v1`."""
    made = msgspec.json.schema(ANSWERS[schema])
    described = dict(_descriptions())
    for part, definition in made["$defs"].items():
        for field, node in definition.get("properties", {}).items():
            sentence = described.get((part, field))
            if sentence:
                node["description"] = sentence
    return {"$schema": DIALECT, "$id": f"https://{schema}", "title": schema, **made}


def _name(schema: str) -> str:
    """Returns a schema's name as a file name without suffix: `why-v1` for `lattice.dev/why/v1`."""
    return schema.partition("/")[2].replace("/", "-")


def _descriptions() -> Iterator[tuple[tuple[str, str], str]]:
    """Yields ((type, field in camelCase), docstring) for each field of the answers that has one."""
    modules = (answers, quota_answers, accounting_answers, launch_answers)
    for statement in (each for module in modules for each in ast.parse(inspect.getsource(module)).body):
        if not isinstance(statement, ast.ClassDef):
            continue
        for field, text in zip(statement.body, statement.body[1:], strict=False):
            if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name) or not isinstance(text, ast.Expr):
                continue
            if isinstance(text.value, ast.Constant) and isinstance(text.value.value, str):
                first, *rest = field.target.id.split("_")
                yield (statement.name, first + "".join(word.capitalize() for word in rest)), inspect.cleandoc(text.value.value)
