"""What each node is to start, as a request asks for it."""

from __future__ import annotations

from typing import Any

import pytest

from lattice.errors import Rejected
from lattice.launches.binding import NodeCpus
from lattice.launches.layout import LaunchLayout, lay_out
from lattice.views.cluster import MpiOptions
from lattice_agent.launches import description
from lattice_agent.launches.client_side import ClientProcess
from lattice_agent.launches.description import LaunchPlan
from lattice_agent.standalone.frames import LaunchRequest
from tests.operations import operations
from tests.unit.agent.launches.test_head import work


def started(*words: str, pmix: bool = False, **fields: Any) -> list[Any]:
    """What the node of a launch is to start."""
    nodes, here = [NodeCpus("n1", ((0,), (1,)), pmix=pmix)], work()
    plan = description.plan_of(here, LaunchRequest(bytes(16), (b"srun", *map(str.encode, words)), **fields))
    assert isinstance(plan, LaunchPlan)
    layout = lay_out(plan.options, nodes)
    assert isinstance(layout, LaunchLayout)
    record = description.record_of(plan, layout, 1, "00", ClientProcess("n1", 1, 1), 0.0)
    streams = description.plan_streams(here, plan, layout, 1)
    return description.starts_of(here, plan, layout, record, streams, nodes)


def test_soft_limits_that_no_kernel_takes_are_none() -> None:
    limits = (b"NOFILE=18446744073709551615", b"CORE=-7", b"DATA=99999999999999999999", b"AS=9223372036854775807", b"STACK=x")
    (start,) = started("prog", limits=limits)
    assert start["soft_limits"] == {"NOFILE": -1, "CORE": -1, "DATA": -1, "AS": (1 << 63) - 1}


def test_many_tasks_are_described_in_time_by_their_number() -> None:
    (start,) = started("-O", "-n4096", "prog")
    assert [(rank["rank"], rank["environment"]["SLURM_LOCALID"]) for rank in start["ranks"]] == [(rank, str(rank)) for rank in range(4096)]
    few, many = operations(lambda: started("-O", "-n256", "prog")), operations(lambda: started("-O", "-n1024", "prog"))
    assert many < 6 * few, "each task was sought among all: sixteen times as much"


def test_the_site_says_how_mpi_is_served_where_the_launch_does_not() -> None:
    def served(*words: str, **site: str) -> bool:
        plan = description.plan_of(work(), LaunchRequest(bytes(16), (b"srun", *map(str.encode, words), b"x")), MpiOptions(**site))
        assert isinstance(plan, LaunchPlan)
        return plan.options.mpi != "none"

    assert served()
    assert not served(default="None")
    assert served("--mpi=pmi2", default="None")
    assert not served("--mpi=none", default="Pmi2")


@pytest.mark.parametrize(
    ("words", "here", "served"),
    [
        (("-n2",), True, (True, True)),
        (("-n2",), False, (False, True)),
        (("-n1",), True, (False, True)),
        (("-n2", "--mpi=pmi2"), True, (False, True)),
        (("-n1", "--mpi=pmix"), True, (True, False)),
        (("-n2", "--mpi=pmix_v4"), True, (True, False)),
        (("-n2", "--external-launcher"), True, (False, False)),
        (("-n2", "--mpi=none"), True, (False, False)),
    ],
)
def test_pmix_is_served_beside_pmi_to_several_tasks_where_the_node_has_it(
    words: tuple[str, ...], here: bool, served: tuple[bool, bool]
) -> None:
    (start,) = started("-O", *words, "prog", pmix=here)
    pmi = start["pmi"]
    assert (bool(pmi.get("pmix")), bool(pmi) and pmi.get("pmi", True)) == served


def test_pmix_that_a_node_has_not_is_refused_with_the_way_to_it() -> None:
    with pytest.raises(Rejected, match=r"^--mpi=pmix: node n1 of this allocation has no PMIx.*--constraint=pmix") as refused:
        started("-n2", "--mpi=pmix", "prog")
    assert refused.value.reason == "NoPmix"
