"""The examples: each of them is accepted offline by the chain that the webhook asks."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from .conftest import Bench

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


@pytest.mark.parametrize("file", sorted(path.name for path in EXAMPLES.glob("*.yaml")))
def test_an_example_is_accepted_without_a_cluster(bench: Bench, file: str) -> None:
    result = bench.run("submit", "--dry-run=client", "-f", str(EXAMPLES / file))
    assert (result.code, result.err) == (0, "")
    document = yaml.safe_load(result.out)
    assert document["metadata"]["namespace"] == "physics"
    assert document["spec"]["vcluster"] == "hpc-batch"


def test_the_batch_script_becomes_what_slurm_would_run(bench: Bench) -> None:
    result = bench.run("submit", "--dry-run=client", str(EXAMPLES / "06-batch-script.sh"))
    assert result.code == 0
    spec = yaml.safe_load(result.out)["spec"]
    assert (spec["tenant"], spec["vcluster"], spec["resources"]["nodes"]) == ("physics", "hpc-batch", 2)
    assert (spec["tasks"], spec["lifecycle"]) == ({"total": 8}, {"walltime": "5m"})
    assert spec["environment"]["output"] == {"stdout": "batch-%j.out"}


def test_there_is_an_example_of_each_end() -> None:
    assert [path.name[:2] for path in sorted(EXAMPLES.iterdir())] == ["01", "02", "03", "04", "05", "06", "07"]
