"""The gate draws the same examples of each property whatever else changes; the search draws others, five times as many."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROBE = """
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from constants_of_a_module import RARE

drawn = {"own": [], "default": [], "steps": []}

@settings(max_examples=400)
@given(st.integers())
def test_own(number):
    drawn["own"].append(number)

@given(st.integers())
def test_default(number):
    drawn["default"].append(number)

class Machine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        drawn["steps"].append(0)

    @rule(number=st.integers())
    def step(self, number):
        pass

Machine.TestCase.settings = settings(max_examples=20, stateful_step_count=2)
TestMachine = Machine.TestCase

def test_shows():
    print("DRAWN", len(drawn["own"]), len(drawn["default"]), len(drawn["steps"]), hash(tuple(drawn["own"])), RARE in drawn["own"])
"""


def drawn(folder: Path, profile: str, constant: int) -> list[str]:
    """How many examples an own number, the default and a state machine gave, what those of the first were, and whether the constant was one."""
    (folder / "constants_of_a_module.py").write_text(f"RARE = {constant}\n")
    (folder / "test_probe.py").write_text(PROBE)
    (folder / "conftest.py").write_text("from tests.conftest import *\n")
    environment = os.environ | {"LATTICE_PROPERTIES": profile, "PYTHONPATH": f"{ROOT}:{folder}", "PYTHONDONTWRITEBYTECODE": "1"}
    asked = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    done = subprocess.run(asked, capture_output=True, text=True, env=environment, cwd=folder, check=False, timeout=300)
    found = [line.partition("DRAWN ")[2].split() for line in done.stdout.splitlines() if "DRAWN " in line]
    assert done.returncode == 0, done.stdout + done.stderr
    return found[0]


def test_the_gate_draws_the_same_examples_whatever_constant_of_a_module_changes(tmp_path: Path) -> None:
    first, second = (drawn(tmp_path, "gate", constant) for constant in (424_243, 31_337_000_019))
    assert first == second
    assert first[-1] == "False"


@pytest.mark.parametrize("constant", [424_243])
def test_the_search_draws_five_times_as_many_and_constants_of_our_modules_too(tmp_path: Path, constant: int) -> None:
    calm, wild = drawn(tmp_path, "gate", constant), drawn(tmp_path, "search", constant)
    few, many = ([int(count) for count in one[:3]] for one in (calm, wild))
    assert all(4 * less <= more <= 6 * less for less, more in zip(few, many, strict=True)), (few, many)
    assert wild[-1] == "True"
