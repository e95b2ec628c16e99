"""What `make test` runs follows from the commit and the change; a failure of real time is repeated once, told and kept until it is mended."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.gate import changes
from tests.gate.plan import ROOT, STEPS, BadTable, check, draw, everything, read_table
from tests.gate.plugin import REPORT

TABLE = read_table()
FILES = [str(path.relative_to(ROOT)) for path in ROOT.glob("tests/**/test_*.py")]
COMMITS = [f"{number:040x}" for number in range(200)]


def test_every_e2e_and_fault_file_has_one_place() -> None:
    check(TABLE, FILES)
    assert {*everything(TABLE).e2e, *everything(TABLE).faults, STEPS} == {
        name for name in FILES if name.startswith(("tests/e2e/", "tests/faults/"))
    }


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([*FILES, "tests/e2e/test_new.py"], "tests/e2e/test_new.py stands nowhere: give it a part or a group"),
        ([name for name in FILES if not name.endswith("test_mpi.py")], "tests/e2e/test_mpi.py does not exist"),
    ],
)
def test_a_file_without_a_place_and_a_place_without_a_file_are_told(files: list[str], said: str) -> None:
    with pytest.raises(BadTable, match=re.escape(said)):
        check(TABLE, files)
    with pytest.raises(BadTable, match="stands twice"):
        check(replace(TABLE, rare=(*TABLE.rare, "tests/e2e/test_allocations.py")), FILES)


def test_a_commit_draws_the_same_again_and_others_draw_everything_but_what_is_rare() -> None:
    plans = [draw(TABLE, commit, ()) for commit in COMMITS]
    assert plans == [draw(TABLE, commit, ()) for commit in COMMITS]
    assert {name for plan in plans for name in plan.e2e} == set(everything(TABLE).e2e)
    assert {name for plan in plans for name in plan.faults} == set(everything(TABLE).faults) - set(TABLE.rare)
    assert {plan.steps for plan in plans} == {f"{share}/{TABLE.steps}" for share in range(TABLE.steps)}
    for plan in plans:
        assert set(TABLE.core) <= set(plan.e2e)
        assert plan.faults in [tuple(sorted(group)) for group in TABLE.groups]


def test_what_a_change_touches_runs_on_top_of_the_draw() -> None:
    test, code, rare = "tests/e2e/test_trace.py", "lattice/quota/tree.py", "tests/faults/test_fault_run.py"
    for commit in COMMITS[:20]:
        plan, plain = draw(TABLE, commit, (test, code, rare, "README.md")), draw(TABLE, commit, ())
        assert set(plan.e2e) == {*plain.e2e, test, "tests/e2e/test_quota_tree.py"}
        assert set(plan.faults) == {*plain.faults, rare}
        assert plan.why[rare] == f"touched by {rare}"


def commit_all(root: Path, name: str) -> str:
    (root / name).write_text(name)
    for words in (("add", "-A"), ("-c", "user.name=n", "-c", "user.email=e@x", "commit", "-q", "-m", name)):
        subprocess.run(["git", "-C", str(root), *words], check=True)
    return changes.commit(root)


def test_a_change_is_what_differs_from_the_base_files_that_git_does_not_know_included(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    base = commit_all(tmp_path, "old")
    commit_all(tmp_path, "committed")
    (tmp_path / "old").write_text("changed")
    (tmp_path / "unknown").write_text("new")
    assert changes.changed(tmp_path, base) == ["committed", "old", "unknown"]


def test_without_a_base_there_is_none(tmp_path: Path) -> None:
    assert changes.base(tmp_path) == ""
    assert changes.commit(tmp_path) == "none"


def ran(folder: Path, text: str, *words: str) -> dict[str, dict[str, object]]:
    (folder / "test_probe.py").write_text(text)
    report = folder / "report.json"
    environment = os.environ | {REPORT: str(report), "PYTHONPATH": str(ROOT)}
    asked = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "tests.gate.plugin",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
        *words,
        str(folder),
    ]
    subprocess.run(asked, capture_output=True, env=environment, cwd=folder, check=False, timeout=300)
    found: dict[str, dict[str, object]] = json.loads(report.read_text())
    return found


@pytest.mark.parametrize("words", [(), ("-n", "2")], ids=["one process", "two lanes"])
def test_failures_say_whether_they_need_real_time_and_skips_say_why(tmp_path: Path, words: tuple[str, ...]) -> None:
    text = (
        "import pytest\n@pytest.mark.real_time\ndef test_late(): assert 0\ndef test_wrong(): assert 0\ndef test_right(): pass\n"
        "@pytest.mark.skip(reason='no such tool')\ndef test_away(): pass\n"
    )
    found = ran(tmp_path, text, *words)
    assert found["failed"] == {"test_probe.py::test_late": True, "test_probe.py::test_wrong": False}
    assert found["skipped"] == {"test_probe.py::test_away": "no such tool"}
    assert list(found["seconds"]) == ["test_probe.py"]


def test_a_file_that_cannot_be_read_is_a_failure_and_never_one_of_real_time(tmp_path: Path) -> None:
    assert ran(tmp_path, "import nothing_of_that_name\n")["failed"] == {"test_probe.py": False}


def test_at_most_five_tests_need_real_time_and_no_file_is_marked() -> None:
    marked = [
        (name, line)
        for name in FILES
        if name != "tests/unit/test_gate.py"
        for line in (ROOT / name).read_text().splitlines()
        if "real_time" in line
    ]
    assert len(marked) <= 5
    assert all(line.strip() == "@pytest.mark.real_time" for _, line in marked)
