"""Nothing that a field holds is obeyed by a terminal, whichever verb shows it and in whichever format."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import lattice.cli
from lattice.cli.render.text import Column, Painted, fields, printable, table
from lattice.cli.render.yaml_text import dump
from lattice.kube.resources import CONFIG_MAPS, NODES, RESERVATIONS, TENANTS, VCLUSTERS

from .conftest import COMPLETED, FAILED, RUNNING, WAITING, Bench, said

OWN = "\x1b[31m\x1b[32m\x1b[33m\x1b[35m\x1b[36m\x1b[0m"
EVIL = "x\x1b]0;OWNED\x07\x9b2J\u202etxt\r\x7f"
NEVER = frozenset("\x1b\x07\x08\r\x7f\x9b\x85\u202e\u2066\u2028")

texts = st.text(st.characters(codec=None) | st.sampled_from(sorted(NEVER)), max_size=40)


@given(texts)
def test_what_is_printable_stays_and_the_rest_is_escaped_for_good(text: str) -> None:
    shown = printable(text)
    assert not NEVER & set(shown)
    assert printable(shown) == shown
    assert all(char in "\n\t" or ord(char) > 31 for char in shown)
    if not any(ord(char) < 32 or 127 <= ord(char) < 160 or ord(char) > 0x60B for char in text):
        assert shown == text


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=4), st.booleans(), st.sampled_from([0, 20, 80]))
def test_no_cell_of_a_table_reaches_beyond_its_line(rows: list[tuple[str, str]], color: bool, width: int) -> None:
    lines = table((Column("NAME", shrink_to=4), Column("STATE")), rows, width=width, color=color)
    assert len(lines) == len(rows) + 1
    assert not NEVER & set("".join(lines).replace("\x1b[", "") if color else "".join(lines))
    assert "\n" not in "".join(lines)
    assert not NEVER & set("".join(fields(rows)))
    assert all(isinstance(line, Painted) == color for line in lines[1:])


@given(st.dictionaries(texts, texts | st.lists(texts, max_size=2), max_size=4))
def test_documents_keep_their_values_and_hold_nothing_that_a_terminal_obeys(value: dict[str, Any]) -> None:
    whole = json.loads(json.dumps(value).encode().decode("utf-8", "replace"))
    shown = printable(json.dumps(whole, ensure_ascii=False))
    assert not NEVER & set(shown)
    assert json.loads(shown) == whole
    if not any(0xD800 <= ord(char) < 0xE000 for char in repr(whole) + json.dumps(whole, ensure_ascii=False)):
        text = dump([whole])
        assert not NEVER & set(text)
        assert yaml.safe_load(text) == whole


def test_only_the_console_writes_to_the_streams() -> None:
    writers = {
        (path.name, function.name)
        for path in Path(lattice.cli.__file__).parent.rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute)
        and node.attr in ("write", "writelines")
        and isinstance(node.value, ast.Attribute)
        and node.value.attr in ("stdout", "stderr")
    }
    own_words = {("completion.py", "run"), ("watch.py", "clear")}
    outside_the_console = {
        ("__main__.py", "main"),
        ("__main__.py", "run"),
        ("__main__.py", "_without_verb"),
        ("__main__.py", "_another_program"),
    }
    traces = {("suite.py", "_generate"), ("capture.py", "run")}
    slurm = {("__main__.py", "main"), ("sayings.py", "_write"), ("sayings.py", "answer"), ("sayings.py", "ask")}
    console = {("console.py", "raw"), ("console.py", "complain"), ("console.py", "confirm")}
    assert writers - own_words - outside_the_console - traces - slurm - console - {("__main__.py", "complete")} == set()


def populate(bench: Bench) -> None:
    """Objects whose every free text is evil, as if no schema had refused it."""
    states: dict[str, dict[str, Any]] = {"runs": RUNNING, "waits": WAITING, "failed": FAILED, "done": COMPLETED}
    for number, (name, status) in enumerate(states.items(), 1):
        condition = said("Finished" if name in ("failed", "done") else "Scheduled", "False", EVIL, EVIL)
        evil = {**status, "nodes": EVIL, "head": EVIL, "conditions": [condition]}
        bench.allocation(
            name, number=number, user="alice", status=evil, project=EVIL, tags={"name": EVIL}, reservation=EVIL, quota=EVIL,
            cancel={"reason": EVIL}, environment={"workdir": EVIL, "output": {"stdout": EVIL}, "variables": {"A": EVIL}},
            entrypoint=EVIL, vcluster=EVIL,
        )  # fmt: skip
    status = {"state": "Ready", "kernel": EVIL, "address": EVIL, "agentVersion": EVIL, "fingerprint": EVIL, "bootId": EVIL,
              "capabilities": {"gpus": 1, "gpuType": EVIL, "features": [EVIL]}, "conditions": [said("Ready", "False", EVIL, EVIL)],
              "components": {EVIL: EVIL}}  # fmt: skip
    spec = {"group": EVIL, "switch": EVIL, "features": [EVIL], "drain": {"reason": EVIL, "by": EVIL}}
    bench.cluster.create(NODES, {"metadata": {"name": "nid001"}, "spec": spec, "status": status})
    bench.cluster.create(
        TENANTS, {"metadata": {"name": "physics"}, "spec": {"access": {"users": [EVIL], "admins": [EVIL]}, "defaultVCluster": EVIL}}
    )
    bench.cluster.create(
        VCLUSTERS, {"metadata": {"name": "hpc-batch"}, "spec": {"nodes": {"selector": {"group": [EVIL]}}, "tenants": [EVIL]}}
    )
    reserved = {"nodes": "nid001", "start": "2026-10-01T00:00:00Z", "duration": "1h", "users": [EVIL], "tenants": [EVIL], "reason": EVIL}
    bench.cluster.create(RESERVATIONS, {"metadata": {"name": "r1"}, "spec": reserved, "status": {"state": EVIL, "nodes": EVIL}})


VERBS = (
    ("status",), ("status", "--all"), ("status", "1"), ("status", "2"), ("status", "3"), ("status", "4"), ("nodes",), ("nodes", "nid001"),
    ("why", "1"), ("reservation", "list"), ("reservation", "show", "r1"), ("admin", "tenant", "list"), ("admin", "tenant", "show", "physics"),
    ("admin", "vcluster", "list"), ("admin", "vcluster", "show", "hpc-batch"), ("wait", "4"), ("cancel", EVIL), ("logs", "2"), ("status", EVIL),
)  # fmt: skip


@pytest.mark.parametrize("columns", [0, 100])
@pytest.mark.parametrize("output", ["table", "wide", "json", "yaml"])
def test_no_verb_hands_an_escape_of_a_field_to_the_terminal(bench: Bench, output: str, columns: int) -> None:
    populate(bench)
    bench.columns = columns
    shown = 0
    for verb in VERBS:
        result = bench.run(*verb, "-o", output)
        text = result.out + result.err
        for own in OWN.replace("\x1b", " \x1b").split():
            text = text.replace(own, "") if output in ("table", "wide") and columns else text
        assert not NEVER & set(text), (verb, text)
        shown += "OWNED" in text
    assert shown >= 8, "the verbs show what was made evil"


def test_what_the_work_printed_is_handed_on_byte_for_byte(bench: Bench) -> None:
    bench.allocation("runs", number=1, status=RUNNING)
    bench.records = [json.dumps({"node": "nid001", "stream": "stdout", "text": "\x1b[1mbold"}).encode(), b'{"end": true}']
    bench.cluster.create(
        CONFIG_MAPS,
        {"metadata": {"name": "lattice-public"}, "data": {"gateway": "https://127.0.0.1:8443", "ca": ""}}, "lattice-system",
    )  # fmt: skip
    assert "\x1b[1mbold\n" in bench.run("logs", "1").out
