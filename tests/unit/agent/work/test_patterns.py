"""Names of output files are expanded as Slurm does."""

from __future__ import annotations

import pytest

from lattice_agent.work.patterns import PatternValues, expand, is_per_node

NAMES = PatternValues(number=4711, job_name="my/run 1", user="alice", node="nid001.site", rank_of_node=3)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("slurm-%j.out", "slurm-4711.out"),
        ("%A_%a.log", "4711_4294967294.log"),
        ("%x.%u", "my_run 1.alice"),
        ("%N-%n", "nid001-3"),
        ("%8j", "00004711"),
        ("%99j", "0000004711"),
        ("100%%", "100%"),
        ("%%j", "%j"),
        ("%q%", "%q%"),
        ("a\\%j", "a%j"),
        ("", ""),
    ],
)
def test_a_pattern_means_the_file_that_slurm_would_write(pattern: str, expected: str) -> None:
    assert expand(pattern, NAMES) == expected


@pytest.mark.parametrize(("pattern", "expected"), [("%N.out", True), ("%2n.out", True), ("%j.out", False), ("%%N", False), ("\\%N", False)])
def test_a_file_is_one_for_each_node_only_when_its_name_says_so(pattern: str, expected: bool) -> None:
    assert is_per_node(pattern) is expected
