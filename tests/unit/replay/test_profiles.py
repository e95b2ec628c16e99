"""Weight profiles: the book's file, what is normalised and said, what is refused with line and field."""

from __future__ import annotations

from dataclasses import astuple

import pytest

from lattice.errors import Rejected
from lattice.replay.profiles import base_policy, read_profile, read_settings, settings_of, with_settings
from lattice.scheduling.model.policy import PROFILES, Borrowing, Limits, Policy

BOOK = """# profiles/baseline.yaml (current production weights)
hpc-batch:
  priority: 0.20
  wait_time: 0.25
  fair_share: 0.25
  topology: 0.15
  data_readiness: 0.10
  backlog: 0.05
  energy: 0.00
  checkpoint: 0.00
  conformance: 0.10
"""


def test_the_books_file_is_read_and_that_it_sums_to_more_than_one_is_said() -> None:
    profile = read_profile(BOOK, "baseline.yaml")
    weights = profile.policy("hpc-batch", base_policy("hpc-batch")).weights
    assert sum(astuple(weights)) == pytest.approx(1)
    assert weights.priority == pytest.approx(0.2 / 1.1)
    assert profile.notes == ('baseline.yaml: the weights of "hpc-batch" sum to 1.1 and are normalised',)


def test_policy_depth_borrowing_and_limits_may_stand_beside_the_weights() -> None:
    text = (
        "a:\n  profile: MlTraining\n  policy: bin-pack\n  depth: 3\n  lend: true\n  max_borrowed_duration: 2h\n  max_running_per_user: 4\n"
    )
    policy = read_profile(text, "x").policy("a", base_policy("a"))
    assert policy.weights == PROFILES["MlTraining"]
    assert (policy.kind, policy.depth, policy.borrowing.lend, policy.borrowing.max_duration) == ("BinPack", 3, True, 7200.0)
    assert policy.limits.max_running_per_user == 4


def test_a_vcluster_that_a_profile_does_not_name_stays_as_it_is() -> None:
    assert read_profile(BOOK, "x").policy("service", base_policy("service")) == base_policy("service")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a:\n  priority: 1\n  prio: 1\n", "w.yaml, line 3: a.prio: it is not known; weights are priority, wait_time"),
        ("a:\n  priority: -0.1\n", "w.yaml, line 2: a.priority: -0.1 is negative; a weight is 0 or more"),
        ("a:\n  priority: high\n", "w.yaml, line 2: a.priority: 'high' is no number"),
        ("a:\n  priority: .nan\n", "w.yaml, line 2: a.priority: nan is no number"),
        ("a:\n  priority: true\n", "w.yaml, line 2: a.priority: True is no number"),
        ("a:\n  priority: 0\n  energy: 0\n", "w.yaml, line 1: a: every weight is 0: nothing would order its queue"),
        ("a:\n  priority: 1\n  priority: 2\n", "w.yaml, line 3: a.priority: it is given twice"),
        ("a: {priority: 1}\na: {priority: 1}\n", "w.yaml, line 2: a: the vcluster stands there twice"),
        ("a: 3\n", "w.yaml, line 1: a: a vcluster is a map of weights"),
        ("a: {policy: Lottery}\n", "w.yaml, line 1: a.policy: 'Lottery' is none of Backfill, BinPack"),
        ("a: {depth: -1}\n", "w.yaml, line 1: a.depth: -1 is no whole number from 0 to 1000"),
        ("[1]", "w.yaml is no file of weights"),
        ("", "w.yaml is no file of weights"),
        ("a: [", "w.yaml is no YAML"),
    ],
    ids=lambda value: value.replace("\n", " ")[:40],
)
def test_what_is_wrong_in_a_file_is_refused_with_line_and_field(text: str, sentence: str) -> None:
    with pytest.raises(Rejected) as refused:
        read_profile(text, "w.yaml")
    assert sentence in refused.value.message
    assert refused.value.reason == "BadWeights"


def test_a_policy_written_as_settings_is_the_same_policy_again() -> None:
    policy = Policy(
        "v", "BinPack", PROFILES["Service"], depth=4, borrowing=Borrowing(True, True, 9, 3, 60.0, 5.0), limits=Limits(max_nodes=7)
    )
    assert with_settings(Policy("v"), read_settings("v", settings_of(policy))) == policy
