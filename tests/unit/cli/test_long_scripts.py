"""Scripts longer than an Allocation holds: a ConfigMap of their own, made once, that goes with the work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from lattice.errors import Denied, UnknownOutcome
from lattice.kube.resources import ALLOCATIONS, CONFIG_MAPS
from lattice.scripts.digests import script_digest
from tests.unit.cli.conftest import COMPLETED, Bench

SCRIPT = "#!/bin/bash\n#SBATCH -t 10\n" + "# ä\n" * 20_000


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "job.sh").write_text(SCRIPT)
    return str(tmp_path / "job.sh")


def only(bench: Bench, resource: Any = ALLOCATIONS) -> dict[str, Any]:
    """The one object of a kind in the tenant's namespace."""
    (found,) = bench.cluster.list(resource, "physics", type=dict[str, Any]).items
    return dict(found)


def number_soon(bench: Bench) -> None:
    bench.at(0.5, lambda: bench.report(only(bench)["metadata"]["name"], {"number": 12}))


def test_a_long_script_stands_in_a_config_map_that_goes_with_its_work(bench: Bench, path: str) -> None:
    number_soon(bench)
    done = bench.run("submit", "--parsable", path)
    assert (done.code, done.out) == (0, "12\n"), done.err
    made, script = only(bench), only(bench, CONFIG_MAPS)
    name = made["metadata"]["name"]
    assert made["spec"]["scriptFrom"] == {"configMap": f"{name}.script", "digest": script_digest(SCRIPT)}
    assert made["spec"]["environment"]["slurmVariables"] is True
    assert not {"script", "hold"} & made["spec"].keys()
    assert "lattice.dev/awaits-script" not in made["metadata"]["annotations"]
    assert (script["metadata"]["name"], script["immutable"], script["data"]) == (f"{name}.script", True, {"script": SCRIPT})
    (owner,) = script["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"]) == ("Allocation", made["metadata"]["uid"])


def test_sbatch_does_the_same(bench: Bench, path: str) -> None:
    number_soon(bench)
    assert bench.slurm("sbatch", path).out == "Submitted batch job 12\n"
    assert only(bench)["spec"]["scriptFrom"]["digest"] == script_digest(SCRIPT)
    assert only(bench, CONFIG_MAPS)["data"]["script"] == SCRIPT


def test_who_may_not_make_the_config_map_has_submitted_nothing(bench: Bench, path: str) -> None:
    bench.cluster.fake.fail(Denied("configmaps is forbidden", reason="Forbidden"), resource=CONFIG_MAPS)
    done = bench.run("submit", path)
    assert done.code != 0
    assert "configmaps is forbidden" in done.err
    assert bench.cluster.list(ALLOCATIONS, "physics", type=dict[str, Any]).items == []


def test_a_lost_answer_makes_no_second_config_map(bench: Bench, path: str) -> None:
    number_soon(bench)
    bench.cluster.fake.fail(UnknownOutcome("gone"), resource=CONFIG_MAPS, verb="create", after=True)
    assert bench.run("submit", path).code == 0
    assert only(bench, CONFIG_MAPS)["data"]["script"] == SCRIPT


def test_work_that_is_to_be_held_stays_held(bench: Bench, path: str) -> None:
    number_soon(bench)
    bench.run("submit", "--hold", path)
    assert only(bench)["spec"]["hold"] is True


def test_a_dry_run_shows_both_objects(bench: Bench, path: str) -> None:
    done = bench.run("submit", "--dry-run=client", "-o", "yaml", path)
    script, made = yaml.safe_load_all(done.out)
    assert (script["kind"], script["data"]["script"]) == ("ConfigMap", SCRIPT)
    assert made["spec"]["scriptFrom"]["configMap"] == script["metadata"]["name"]


def test_a_script_above_a_mebibyte_is_refused_with_both_numbers(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("#!/bin/sh\n" + "#" * (1 << 20))
    for done in (bench.run("submit", str(tmp_path / "job.sh")), bench.slurm("sbatch", str(tmp_path / "job.sh"))):
        assert done.code != 0
        assert "has 1048586 bytes, the limit is 1048576" in done.err


def test_ended_work_is_submitted_again_with_a_config_map_of_its_own(bench: Bench, path: str) -> None:
    number_soon(bench)
    bench.run("submit", path)
    first = only(bench)["metadata"]["name"]
    bench.report(first, COMPLETED)
    bench.random = "other"
    done = bench.run("requeue", first)
    assert done.code == 0, done.err
    scripts = bench.cluster.list(CONFIG_MAPS, "physics", type=dict[str, Any]).items
    assert len({one["metadata"]["ownerReferences"][0]["uid"] for one in scripts}) == 2
    assert {one["data"]["script"] for one in scripts} == {SCRIPT}
