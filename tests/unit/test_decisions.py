"""A decision that names a test is held by it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "decisions").glob("*.md"))
DEFINED = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^\s*(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_test_that_a_decision_names_exists(page: Path) -> None:
    named = set(re.findall(r"`(test_\w+)`", page.read_text(encoding="utf-8")))
    assert named, f"{page.name} names no test"
    missing = named - DEFINED
    assert not missing, f"{page.name} names {', '.join(sorted(missing))}"


def test_every_row_of_the_table_names_its_test() -> None:
    rows = [line for line in (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    assert all("`test_" in row for row in rows[1:])


def test_every_decision_stands_in_the_list() -> None:
    listed = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    assert all(f"({page.name})" in listed for page in PAGES if page.name != "README.md")
