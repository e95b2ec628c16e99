"""`lattice quota solve`: offline, one answer for programs, one for people, and exit code 2 for every bad tree."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from tests.unit.cli.conftest import Bench

KOORDINATOR = "koordinator-root-quota"


def tree(**fields: Any) -> str:
    quotas = [
        {"name": "dept", "isParent": True, "min": {"nodes": 4}, "max": {"nodes": 10}},
        {"name": "a", "parent": "dept", "min": {"nodes": 2}, "max": {"nodes": 10}, "request": {"nodes": 9}, "used": {"nodes": 8}},
        {"name": "b", "parent": "dept", "min": {"nodes": 2}, "max": {"nodes": 10}, "request": {"nodes": 9}},
    ]
    return json.dumps({"total": {"nodes": 12}, "options": {}, "quotas": quotas} | fields)


def test_solve_answers_programs_with_runtime_and_effective_min(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "tree.json"
    file.write_text(tree(), encoding="utf-8")
    result = bench.run("quota", "solve", "-f", str(file), "-o", "json")
    assert (result.code, result.err) == (0, "")
    assert json.loads(result.out) == {
        KOORDINATOR: {"runtime": {"nodes": 12}, "effectiveMin": {"nodes": 12}},
        "dept": {"runtime": {"nodes": 10}, "effectiveMin": {"nodes": 4}},
        "a": {"runtime": {"nodes": 5}, "effectiveMin": {"nodes": 2}},
        "b": {"runtime": {"nodes": 5}, "effectiveMin": {"nodes": 2}},
    }
    assert yaml.safe_load(bench.run("quota", "solve", "-f", str(file), "-o", "yaml").out) == json.loads(result.out)


def test_solve_reads_standard_input_and_draws_bars(bench: Bench) -> None:
    result = bench.run("quota", "solve", "-f", "-", stdin=tree())
    assert result.code == 0
    assert result.out.splitlines() == [
        "QUOTA    RESOURCE                            USED  RUNTIME  MIN  MAX  REQUEST",
        "(total)  nodes     ████████████████▒▒▒▒▒▒▒▒     8       12    —    —       10",
        "  dept   nodes     █████████|█████████▒▒▒▒▒     8       10    4   10       18",
        "    a    nodes     ████|███████!!!!!!!·····     8        5    2   10        9",
        "    b    nodes     ▒▒▒▒|▒▒▒▒▒▒▒············     0        5    2   10        9",
    ]
    assert "█ used" in result.err
    assert bench.run("quota", "solve", "-q", "-f", "-", stdin=tree()).err == ""


def test_wide_adds_effective_min_weight_and_lending(bench: Bench) -> None:
    head = bench.run("quota", "solve", "-f", "-", "-o", "wide", stdin=tree()).out.splitlines()[0]
    assert head.split()[-4:] == ["EFFECTIVE", "MIN", "WEIGHT", "LENDS"]


def test_units_of_people_stand_in_the_table(bench: Bench) -> None:
    quota = {"name": "a", "min": {}, "max": {"cpu": 1500, "memory": 2 << 30}, "request": {"cpu": 1000, "memory": 1 << 30}}
    out = bench.run("quota", "solve", "-f", "-", stdin=tree(total={"cpu": 64_000, "memory": 8 << 30}, quotas=[quota])).out
    assert [line.split()[-2:] for line in out.splitlines()[-2:]] == [["1.5", "1"], ["2Gi", "1Gi"]]


def test_a_bad_tree_is_bad_input_and_prints_no_answer(bench: Bench) -> None:
    broken = tree(quotas=[{"name": "a", "min": {"nodes": 9}, "max": {"nodes": 5}}])
    result = bench.run("quota", "solve", "-f", "-", "-o", "json", stdin=broken)
    assert (result.code, result.out) == (2, "")
    assert result.err == 'Error: quota "a": min.nodes is 9, above max.nodes, which is 5: lower min or raise max\n'
    assert bench.run("quota", "solve", "-v", "-f", "-", stdin=broken).err.endswith("\n  Reason: MinAboveMax\n")
    assert bench.run("quota", "solve", "-f", "-", stdin="no json").code == 2
    assert bench.run("quota", "solve", "-f", "/nowhere/tree.json").code == 2
    assert bench.run("quota", "solve").code == 2
    assert bench.run("quota", "solve", "-f", "/").err == "Error: / is a directory: name a file in it\n"


def test_a_state_of_koordinators_is_divided_with_a_warning(bench: Bench) -> None:
    quota = {"name": "a", "parent": KOORDINATOR, "min": {"nodes": 9}, "max": {"nodes": 5}, "request": {"nodes": 7}}
    result = bench.run("quota", "solve", "-f", "-", "-o", "json", stdin=tree(quotas=[quota]))
    assert (result.code, json.loads(result.out)["a"]["runtime"]) == (0, {"nodes": 5})
    assert result.err == 'Warning: quota "a": min.nodes is 9, above max.nodes, which is 5: lower min or raise max [MinAboveMax]\n'
    assert bench.run("quota", "solve", "--rules", "refuse", "-f", "-", stdin=tree(quotas=[quota])).code == 2


def test_rules_may_be_warned_of_on_request(bench: Bench) -> None:
    quota = {"name": "a", "min": {"nodes": 9}, "max": {"nodes": 5}, "request": {"nodes": 7}}
    result = bench.run("quota", "solve", "--rules", "warn", "-f", "-", "-o", "name", stdin=tree(quotas=[quota]))
    assert (result.code, result.out) == (0, "a\n")
