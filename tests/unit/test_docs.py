"""The documentation says what is there: links, named tests, manifests, tables, and no traces of who wrote it where."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from lattice.lifecycle.node import TRANSITIONS
from lattice.models.allocation import Allocation
from lattice.models.config import LatticeConfig
from lattice.models.dag import DAG
from lattice.models.elastic_quota import ElasticQuota
from lattice.models.node import LatticeNode
from lattice.models.reasons import END_REASONS
from lattice.models.reservation import Reservation
from lattice.models.shape import API_VERSION, Kind
from lattice.models.tenant import Tenant
from lattice.models.vcluster import VCluster

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
KINDS: dict[str, type[Kind]] = {
    kind.meta.kind: kind for kind in (Allocation, DAG, Tenant, VCluster, Reservation, ElasticQuota, LatticeConfig, LatticeNode)
}
LINK = re.compile(r"\]\(([^)\s]+)\)")
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")
PLACE = re.compile(r"`((?:lattice|controllers|agent|webhooks|gateway|dev|tests|crds|charts|proto|examples)/[\w./-]*(?:\.py|/))`")
NAME_IN = re.compile(r"`(\w+)` in `([\w/]+\.py)`")
BARE_TEST = re.compile(r"`(test_\w+)`")
FENCE = re.compile(r"^```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TRACES = re.compile(
    "|".join(
        (
            r"(?<![\w./}-])/(?:root|work)/(?!\.)[\w.]",  # a path of the machine that it was written on
            r"\b(?:chat" + r"gpt|open" + r"ai|anth" + r"ropic|cla" + r"ude|co" + r"pilot|gem" + r"ini)\b",
        )
    ),
    re.IGNORECASE,
)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """The anchors that a page's headings make."""
    titles = re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


def defined_in(file: Path) -> set[str]:
    return set(re.findall(r"^\s*(?:async )?def (test_\w+)", text_of(file), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = []
    for link in LINK.findall(text_of(page)):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_named_test_exists(page: Path) -> None:
    text = text_of(page)
    missing = [
        f"{file}::{name}"
        for file, name in TEST.findall(text)
        if not (ROOT / file).is_file() or (name and name not in defined_in(ROOT / file))
    ]
    everywhere = set().union(*(defined_in(file) for file in (ROOT / "tests").rglob("test_*.py")))
    missing += [name for name in BARE_TEST.findall(text) if name not in everywhere]
    assert missing == []


def test_every_row_of_what_works_names_its_test() -> None:
    section = text_of(ROOT / "README.md").partition("## What works today")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 10
    assert [row for row in rows if not any(name for _, name in TEST.findall(row))] == []


@pytest.mark.parametrize("page", [page for page in PAGES if FENCE.search(text_of(page))], ids=name_of)
def test_every_manifest_parses_and_those_of_lattice_are_valid(page: Path) -> None:
    for block in FENCE.findall(text_of(page)):
        for document in documents(block):
            if document.get("apiVersion") == API_VERSION:
                KINDS[document["kind"]].model_validate(document)


def documents(block: str) -> Iterator[dict[str, Any]]:
    found = [document for document in yaml.safe_load_all(block) if document is not None]
    assert found
    yield from found


def test_every_page_stands_in_the_index() -> None:
    index = (ROOT / "docs" / "README.md").resolve()
    linked = {(index.parent / link.partition("#")[0]).resolve() for link in LINK.findall(text_of(index))}
    decisions = ROOT / "docs" / "decisions"
    assert {name_of(page) for page in PAGES if page.is_relative_to(ROOT / "docs") and page.parent != decisions} == {
        name_of(page) for page in linked | {index} if page.parent != decisions
    }


def test_the_states_of_a_node_are_those_of_the_machine() -> None:
    page = text_of(ROOT / "docs" / "explanation" / "lifecycle.md").partition("\n## A node\n")[2]
    shown = {
        state: frozenset(after.split(", ")) for state, after in re.findall(r"^\| (\w+) \| ([A-Z]\w+(?:, \w+)*) \|$", page, re.MULTILINE)
    }
    assert shown == TRANSITIONS


def test_every_end_of_the_lifecycle_page_is_a_documented_reason() -> None:
    section = text_of(ROOT / "docs" / "explanation" / "lifecycle.md").partition("| how it ended |")[2].partition("\n\n")[0]
    words = {word for row in section.splitlines()[2:] for word in row.split("|")[2].strip().split(", ")}
    assert words <= {reason.word for reason in END_REASONS}
    assert len(words) >= 8


def test_nothing_in_the_repository_names_who_wrote_it_or_on_which_machine() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    found = []
    for name in (name for name in listed if (ROOT / name).is_file()):
        try:
            text = text_of(ROOT / name)
        except UnicodeDecodeError:
            continue  # a binary file
        found += [f"{name}: {match.group()}" for match in TRACES.finditer(text)]
    assert found == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=name_of)
def test_every_file_and_folder_that_a_page_names_is_there(page: Path) -> None:
    """The changes tell of files as they were; every other page of files as they are."""
    gone = [place for place in PLACE.findall(text_of(page)) if not (ROOT / place).exists()]
    assert not gone, f"{name_of(page)} names {', '.join(gone)}"


def test_the_glossary_names_classes_where_they_are() -> None:
    text = text_of(ROOT / "docs" / "glossary.md")
    gone = [
        f"{name} in {file}"
        for name, file in NAME_IN.findall(text)
        if not re.search(rf"^(?:class |(?:async )?def )?{name}\b", text_of(ROOT / file), re.MULTILINE)
    ]
    assert not gone, f"the glossary names {', '.join(gone)}"
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| term")]
    assert [row for row in rows if not PLACE.search(row)] == [], "each term says where it lives"


def test_the_way_of_an_allocation_opens_each_room_that_runs_it() -> None:
    text = text_of(ROOT / "docs" / "explanation" / "architecture.md")
    steps = [line for line in text.partition("## The way of one allocation")[2].partition("\n## ")[0].splitlines() if line.startswith("| ")]
    named = [place for step in steps for place in PLACE.findall(step)]
    rooms = ("lattice/cli", "webhooks/", "lattice/admission", "lattice/kube", "lattice/scheduling", "lattice/ledger", "lattice/quota",
             "controllers/lattice_controllers/scheduler", "agent/lattice_agent/node", "agent/lattice_agent/lifecycle",
             "agent/lattice_agent/standalone", "agent/lattice_agent/reporter", "controllers/lattice_controllers/operator",
             "lattice/accounting", "lattice/lifecycle", "gateway/")  # fmt: skip
    assert [room for room in rooms if not any(place.startswith(room) for place in named)] == []
