"""What a scraper reads of a real node's agent: every documented metric, and steps, starts, cache, pulls and ends for want of memory move
with the work.
"""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Callable, Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lattice.kube.blocking import BlockingCluster
from lattice.kube.resources import CONFIGS
from lattice_dev.instance import Instance
from tests.e2e.conftest import NODE_MEMORY
from tests.e2e.people import Person, person, reason
from tests.e2e.test_metrics import documented
from tests.e2e.waiting import Seen, until
from tests.registries import RegistryProgram, running_registry

CONTENT = "an image of 1 MiB " * (1 << 16)
IMAGE = "metrics/1:v1"
Values = dict[tuple[str, ...], float]
"""By the sample's name and the values of its labels but the node's."""
Grown = Callable[[Values], None]


@pytest.fixture(scope="module")
def node(control_plane: Instance) -> str:
    """The node whose agent is asked."""
    return control_plane.site().nodes[0]


@pytest.fixture(scope="module", autouse=True)
def registry(control_plane: Instance, admin: BlockingCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryProgram]:
    """A registry that the nodes reach, with one image."""
    folder, network = tmp_path_factory.mktemp("registry"), control_plane.site().network
    with running_registry(folder, address=network.gateway if network is not None else "127.0.0.1") as program:
        program.push_uenv(folder / "a", "deploy/daint/gh200/metrics/1", "v1", CONTENT)
        admin.patch(CONFIGS, "lattice", {"spec": {"software": {"registry": program.url, "system": "daint"}}})
        yield program
        admin.patch(CONFIGS, "lattice", {"spec": {"software": None}})


def scrape(instance: Instance, node: str) -> str:
    """The text that the agent of a node serves to the scraper's certificate."""
    site = instance.site()
    context = ssl.create_default_context(cafile=str(site.authority("agents-ca")))
    pair = site.pair("agents-ca", "metrics")
    context.load_cert_chain(pair.certificate, pair.key)
    connection = http.client.HTTPSConnection(site.address(node), site.agent_metrics_port(node), timeout=60, context=context)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.read().decode()
    finally:
        connection.close()


def values(instance: Instance, node: str) -> Values:
    """Every sample of the agent, counts and sums of histograms, but not their buckets."""
    found: Values = {}
    for family in text_string_to_metric_families(scrape(instance, node)):
        for sample in family.samples:
            assert sample.labels.get("node_id", node) == node
            if not sample.name.endswith(("_bucket", "_created")):
                found[sample.name, *(value for key, value in sorted(sample.labels.items()) if key != "node_id")] = sample.value
    return found


@pytest.fixture
def grown(control_plane: Instance, node: str) -> Grown:
    """Waits until samples have grown by so much since this fixture was made."""
    before = values(control_plane, node)

    def wait(wanted: Values) -> None:
        def grew() -> Values:
            now = values(control_plane, node)
            return {name: now.get(name, 0.0) - before.get(name, 0.0) for name in wanted}

        until(Seen(grew, lambda found: found == wanted), within=20, every=0.3, what=f"{wanted}")

    return wait


def test_every_documented_metric_of_an_agent_is_served_and_every_served_one_documented(control_plane: Instance, node: str) -> None:
    served = {line.split()[2] for line in scrape(control_plane, node).splitlines() if line.startswith("# TYPE ")}
    assert {name for name in served if not name.endswith("_created")} == documented()["agent"]


def test_a_start_is_counted_with_its_steps_and_their_undoing(me: Person, node: str, grown: Grown, control_plane: Instance) -> None:
    before, began = values(control_plane, node), time.monotonic()
    me.apply("counted", entrypoint="true", resources={"constraints": {"nodeList": node}})
    assert me.ended("counted")["phase"] == "Completed"
    steps: Values = {("lattice_agent_steps_total", "done", step): 1.0 for step in ("probe", "scope")}
    undone: Values = {("lattice_agent_steps_total", "undone", step): 1.0 for step in ("probe", "scope")}
    once = ("allocation_startup", "prologue", "first_process")
    times: Values = {("lattice_agent_prologue_step_seconds_count", "scope"): 1.0}
    times |= {(f"lattice_agent_{name}_seconds_count",): 1.0 for name in once}
    grown(steps | undone | times)
    now, passed = values(control_plane, node), time.monotonic() - began
    for name in once:
        took = now[f"lattice_agent_{name}_seconds_sum",] - before.get((f"lattice_agent_{name}_seconds_sum",), 0.0)
        assert 0 < took < passed + 1, "seconds of this start; times of the object are whole ones"


def test_a_pull_a_hit_and_an_eviction_are_counted_with_what_the_cache_holds(control_plane: Instance, node: str, grown: Grown) -> None:
    operator, size = person(control_plane, "admin", "default"), float(len(CONTENT))
    for _ in ("a pull", "a hit"):
        operator.lattice("cache", "warm", "--image", IMAGE, "--nodes", node)
    held: Values = {("lattice_agent_cache_files",): 1.0, ("lattice_agent_cache_bytes",): size}
    pulled: Values = {
        ("lattice_agent_pull_seconds_count",): 1.0, ("lattice_agent_pulled_bytes_total",): size, ("lattice_agent_cache_hits_total",): 1.0,
    }  # fmt: skip
    grown(held | pulled)
    operator.lattice("cache", "evict", "--image", IMAGE, "--nodes", node)
    grown(dict.fromkeys(held, 0.0) | pulled | {("lattice_agent_cache_evictions_total",): 1.0})


def test_a_refused_step_is_counted_as_refused(me: Person, node: str, grown: Grown) -> None:
    uenv = "/nowhere.squashfs:/user-environment"
    me.apply("missing", entrypoint="true", environment={"uenv": uenv}, resources={"constraints": {"nodeList": node}})
    assert reason(me.ended("missing")) == "ImageNotFound"
    grown({("lattice_agent_steps_total", "refused", "mounts"): 1.0, ("lattice_agent_steps_total", "done", "mounts"): 0.0})


def test_work_that_the_kernel_ends_for_want_of_memory_is_counted(me: Person, node: str, grown: Grown) -> None:
    me.apply("grows", entrypoint=f"python3 -c 'bytearray({2 * NODE_MEMORY})'", resources={"constraints": {"nodeList": node}})
    assert reason(me.ended("grows", within=60)) == "OutOfMemory"
    grown({("lattice_agent_oom_kills_total",): 1.0})
