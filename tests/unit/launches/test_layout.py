"""Ranks to nodes as real Slurm deals them, CPUs and GPUs to ranks as decided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.errors import Rejected
from lattice.launches.binding import NodeCpus
from lattice.launches.layout import MOST_ON_NODE, CpusInUse, LaunchLayout, NodeRanks, lay_out
from lattice.launches.option_values import Distribution
from lattice.launches.options import LaunchDefaults, LaunchOptions, parse
from lattice.launches.placement import deal
from lattice.launches.verbose import bound_cpus, tell_unbound
from tests.operations import operations


def nodes(count: int = 4, cores: int = 4, threads: int = 1, gpus: int = 0) -> list[NodeCpus]:
    shape = tuple(tuple(core + thread * cores for thread in range(threads)) for core in range(cores))
    half = cores // 2
    domains = tuple(tuple(cpu for core in part for cpu in core) for part in (shape[:half], shape[half:]))
    return [
        NodeCpus(f"n{index}", shape, domains, tuple(range(gpus)), tuple(gpu * 2 // gpus for gpu in range(gpus))) for index in range(count)
    ]


def read(text: str, *, allocated: int = 4) -> LaunchOptions:
    options = parse(["srun", *text.split(), "x"], {}, LaunchDefaults(nodes=allocated))
    assert isinstance(options, LaunchOptions)
    return options


def laid(text: str, of: list[NodeCpus] | None = None, **busy: frozenset[int]) -> LaunchLayout:
    layout = lay_out(read(text, allocated=len(of or nodes())), of or nodes(), busy=busy)
    assert isinstance(layout, LaunchLayout), layout
    return layout


def ranks(layout: LaunchLayout) -> dict[str, list[int]]:
    return {part.name: list(part.ranks) for part in layout.nodes}


SLURM = [
    ("", {"n0": [0], "n1": [1], "n2": [2], "n3": [3]}),
    ("-n 2", {"n0": [0], "n1": [1]}),
    ("-N 2", {"n0": [0], "n1": [1]}),
    ("-N 2 -n 4", {"n0": [0, 1], "n1": [2, 3]}),
    ("-N 3 -n 2", {"n0": [0], "n1": [1]}),
    ("-n 10", {"n0": [0, 1, 2], "n1": [3, 4, 5], "n2": [6, 7], "n3": [8, 9]}),
    ("-n 10 -N 3", {"n0": [0, 1, 2, 3], "n1": [4, 5, 6], "n2": [7, 8, 9]}),
    ("-n 11 -N 3 -m block:cyclic", {"n0": [0, 1, 2, 3], "n1": [4, 5, 6, 7], "n2": [8, 9, 10]}),
    ("-n 10 -N 3 -m cyclic", {"n0": [0, 3, 6, 9], "n1": [1, 4, 7], "n2": [2, 5, 8]}),
    ("-n 10 -N 3 -m plane=2", {"n0": [0, 1, 6, 7], "n1": [2, 3, 8, 9], "n2": [4, 5]}),
    ("-n 10 -N 3 --ntasks-per-node=3", {"n0": [0, 1, 2, 3], "n1": [4, 5, 6], "n2": [7, 8, 9]}),
    ("-n 6 --ntasks-per-node=3", {"n0": [0, 1], "n1": [2, 3], "n2": [4], "n3": [5]}),
    ("-N 2 --ntasks-per-node=3", {"n0": [0, 1, 2], "n1": [3, 4, 5]}),
    ("--ntasks-per-node=2", {"n0": [0, 1], "n1": [2, 3], "n2": [4, 5], "n3": [6, 7]}),
    ("-w n2", {"n0": [0], "n1": [1], "n2": [2], "n3": [3]}),
    ("-w n2 -n 1", {"n2": [0]}),
    ("-w n3,n1 -N 2", {"n1": [0], "n3": [1]}),
    ("-w n3 -n 8", {"n0": [0, 1], "n1": [2, 3], "n2": [4, 5], "n3": [6, 7]}),
    ("-x n0 -N 2", {"n1": [0], "n2": [1]}),
    ("-r 1 -N 2", {"n1": [0], "n2": [1]}),
    ("-N 1-3", {"n0": [0], "n1": [1], "n2": [2]}),
    ("-c 2 -n 3", {"n0": [0], "n1": [1], "n2": [2]}),
    ("-O -n 18 -N 3", {"n0": [0, 1, 2, 3, 4, 5], "n1": [6, 7, 8, 9, 10, 11], "n2": [12, 13, 14, 15, 16, 17]}),
]
"""What srun of Slurm 22.05 does in an allocation of four nodes with four CPUs each (select/cons_tres, CR_Core), recorded."""


@pytest.mark.parametrize(("options", "expected"), SLURM)
def test_ranks_stand_where_slurm_puts_them(options: str, expected: dict[str, list[int]]) -> None:
    assert ranks(laid(options)) == expected


def test_nodes_that_are_left_out_leave_the_others() -> None:
    assert ranks(laid("-x n0")) == {"n1": [0], "n2": [1], "n3": [2]}, "real srun asks for four nodes, and gets an error"
    assert ranks(laid("-r 2")) == {"n2": [0], "n3": [1]}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("-n 17", "17 tasks of 1 CPU do not fit on 4 nodes: n0 has 4 CPUs, 5 tasks would run there"),
        ("-n 1 -c 8", "1 tasks of 8 CPUs do not fit on 1 node"),
        ("-N 5", "--nodes=5: the allocation has 4 nodes"),
        ("-w n9", "--nodelist=n9: the allocation has no such node; it has n0, n1, n2, n3"),
        ("-w n1,n2 -N 1", "names 2 nodes, and the launch has 1"),
        ("-w n1 -x n1", "--exclude=n1: --nodelist names it, too"),
        ("-x n[0-3]", "no node of the allocation is left"),
        ("-r 4", "--relative=4: the allocation has 4 nodes"),
        ("-n 2000000 -O", "a launch has 1000000 tasks at most"),
        ("--gpus-per-task=1", "1 GPUs on n0 are asked for, and the allocation has 0 there"),
        ("--cpu-bind=map_cpu:7", "--cpu-bind=map_cpu: 7 names no CPU that the allocation has on n0"),
        ("--cpu-bind=map_cpu:0x" + "f" * 4090, "--cpu-bind=map_cpu: 0x" + "f" * 62 + "… names no CPU that the allocation has on n0"),
        ("--cpu-bind=mask_cpu:1" + "0" * 4090, "--cpu-bind=mask_cpu: 0x1" + "0" * 61 + "… names no CPU that the allocation has on n0"),
        ("--gpu-bind=map_gpu:0x" + "f" * 4090, "--gpu-bind=map_gpu: task 0 of n0 is to see GPU 0x" + "f" * 62 + "… of the launch's 0"),
        ("--gpu-bind=per_task:16777216", "--gpu-bind=per_task: task 0 of n0 is to see GPU 0 of the launch's 0"),
    ],
)
def test_what_never_fits_is_refused_with_the_numbers(options: str, says: str) -> None:
    with pytest.raises(Rejected) as refused:
        lay_out(read(options), nodes())
    assert says in refused.value.message


def part(text: str, **shape: int) -> NodeRanks:
    return laid(text, nodes(1, **shape)).nodes[0]


@pytest.mark.parametrize(
    ("options", "cpus"),
    [
        ("-n 1", ((0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15),)),
        ("-n 2", ((0, 8, 1, 9, 2, 10, 3, 11), (4, 12, 5, 13, 6, 14, 7, 15))),
        ("-n 2 --exact", ((0, 8), (1, 9))),
        ("-n 2 -c 3", ((0, 8, 1, 9), (2, 10, 3, 11))),
        ("-n 2 -c 2 --hint=nomultithread", ((0, 1), (2, 3))),
        ("-n 2 --cpu-bind=threads", ((0,), (1,))),
        ("-n 2 -c 1 --cpu-bind=none", ((), ())),
        ("-n 2 --cpu-bind=sockets", ((0, 8, 1, 9, 2, 10, 3, 11), (0, 8, 1, 9, 2, 10, 3, 11))),
        ("-n 3 --cpu-bind=map_cpu:1,15", ((1,), (15,), (1,))),
        ("-n 2 --cpu-bind=mask_cpu:0x101,0x202", ((0, 8), (1, 9))),
        ("-n 2 --cpu-bind=map_ldom:1,0", ((4, 12, 5, 13, 6, 14, 7, 15), (0, 8, 1, 9, 2, 10, 3, 11))),
        ("-n 9 -O", ((),) * 9),
    ],
)
def test_cpus_are_given_by_whole_cores_in_their_order(options: str, cpus: tuple[tuple[int, ...], ...]) -> None:
    assert part(options, cores=8, threads=2).cpus == cpus


SOCKETS = NodeCpus(
    "n0",
    ((0, 8), (1, 9), (2, 10), (3, 11), (4, 12), (5, 13), (6, 14), (7, 15)),
    ((0, 8, 1, 9), (2, 10, 3, 11), (4, 12, 5, 13), (6, 14, 7, 15)),
    (1, 0, 3, 2),
    (0, 1, 2, 3),
    ((0, 8, 1, 9, 2, 10, 3, 11), (4, 12, 5, 13, 6, 14, 7, 15)),
)
"""Two sockets of two NUMA domains each, of two cores with two threads; a GPU in each domain."""


@pytest.mark.parametrize(
    ("options", "cpus"),
    [
        ("-n 2 -c 4 -m block:block", ((0, 8, 1, 9), (2, 10, 3, 11))),
        ("-n 3 -c 2 -m block:cyclic", ((0, 8), (4, 12), (1, 9))),
        ("-n 2 -c 4 -m block:cyclic", ((0, 8, 1, 9), (4, 12, 5, 13))),
        ("-n 2 -c 4 -m *:fcyclic", ((0, 8, 4, 12), (1, 9, 5, 13))),
        ("-n 1 -c 10 -m block:cyclic", ((0, 8, 1, 9, 2, 10, 3, 11, 4, 12),)),
        ("-n 3 -c 1 --hint=nomultithread -m block:cyclic", ((0,), (4,), (1,))),
        ("-n 2 -c 2 --threads-per-core=1", ((0, 1), (2, 3))),
        ("-n 2 -c 2 --threads-per-core=2", ((0, 8), (1, 9))),
        ("-n 1 --cpu-bind=sockets", (SOCKETS.sockets[0],)),
        ("-n 1 --cpu-bind=ldoms", (SOCKETS.domains[0],)),
        ("-n 2 --cpu-bind=sockets -m block:cyclic", SOCKETS.sockets),
        ("-n 2 --cpu-bind=ldoms --hint=nomultithread", ((0, 1), (0, 1))),
        ("-n 5 --cpu-bind=rank_ldom", (*SOCKETS.domains, SOCKETS.domains[0])),
        ("-n 2 --cpu-bind=rank", ((0, 8), (1, 9))),
        ("-n 2 --cpu-bind=mask_ldom:0x3,0x8", (SOCKETS.sockets[0], SOCKETS.domains[3])),
    ],
)
def test_tasks_are_bound_by_sockets_and_numa_domains(options: str, cpus: tuple[tuple[int, ...], ...]) -> None:
    assert laid(options, [SOCKETS]).nodes[0].cpus == cpus


@pytest.mark.parametrize("order", ["", ":cyclic", ":fcyclic"])
def test_a_launch_holds_the_cores_that_its_tasks_are_given_in_any_order(order: str) -> None:
    held = frozenset((0, 8, 4, 12))
    part = laid(f"-n 3 -c 2 -m block{order}", [SOCKETS], n0=held).nodes[0]
    assert part.held == frozenset(cpu for cpus in part.cpus for cpu in cpus)
    assert not part.held & held


def test_cores_of_no_socket_are_given_last() -> None:
    odd = NodeCpus("n0", ((0,), (1,), (2,)), ((2,),))
    assert laid("-n 3 -c 1 -m block:cyclic", [odd]).nodes[0].cpus == ((2,), (0,), (1,))


def test_a_node_has_only_so_many_tasks_of_one_launch() -> None:
    assert len(laid(f"-O -n {MOST_ON_NODE} -N 1").nodes[0].ranks) == MOST_ON_NODE
    for text in (f"-O -n {MOST_ON_NODE + 1} -N 1", f"-O -n {MOST_ON_NODE + 1} -N 4 -m plane={MOST_ON_NODE + 1}", "-O -n 1000000"):
        with pytest.raises(Rejected, match=r"would run on one node, the limit is 4096: ask for fewer, or for more nodes$"):
            laid(text)


def test_a_mask_of_many_bits_is_read_for_many_tasks_at_once() -> None:
    def tasks(digits: int) -> LaunchLayout:
        return laid(f"-O -n 4096 -N 1 --cpu-bind=mask_cpu:0x{'f' * digits}")

    assert tasks(4090).nodes[0].cpus == ((0, 1, 2, 3),) * 4096
    assert operations(lambda: tasks(4090)) < 2 * operations(lambda: tasks(1)), "its bits were read once a task"


def test_a_launch_counts_its_tasks_times_their_cpus_and_the_next_waits() -> None:
    one = nodes(1)
    held = laid("-n 3 --exact", one).nodes[0].held
    assert held == {0, 1, 2}
    waits = lay_out(read("-n 2", allocated=1), one, busy={"n0": held})
    assert waits == CpusInUse("it waits for 2 cores on n0: other launches use 3 of its 4 CPUs (--overlap shares them)")
    assert laid("-n 1 --exact", one, n0=held).nodes[0].cpus == ((3,),)
    assert laid("-n 2 --overlap", one, n0=held).nodes[0].held == frozenset()


def test_one_task_goes_to_the_first_node_with_a_free_core() -> None:
    full = frozenset(range(4))
    assert ranks(laid("-n 1 -N 1 --exact", n0=full, n1=full)) == {"n2": [0]}


@pytest.mark.parametrize(
    ("options", "gpus"),
    [
        ("-n 2", (None, None)),
        ("-n 2 --gpus-per-task=2", ((0, 1), (2, 3))),
        ("-n 2 --gres=gpu:1", ((0,), (0,))),
        ("-n 3 --gpu-bind=single:1", ((0,), (1,), (2,))),
        ("-n 2 --gpu-bind=closest", ((0, 1), (2, 3))),
        ("-n 2 --gpus-per-node=4 --gpu-bind=map_gpu:3,1", ((3,), (1,))),
        ("-n 2 --gpu-bind=mask_gpu:0x3,0xc", ((0, 1), (2, 3))),
        ("-n 2 --gpu-bind=none", (None, None)),
        ("-n 2 --gpu-bind=per_task:2", ((0, 1), (2, 3))),
        ("-n 2 --gpus=3", ((0, 1, 2), (0, 1, 2))),
        ("--gpus=4 --gpus-per-task=2", ((0, 1), (2, 3))),
    ],
)
def test_tasks_see_all_gpus_unless_they_ask_for_their_own(options: str, gpus: tuple[tuple[int, ...] | None, ...]) -> None:
    assert part(options, gpus=4).gpus == gpus


def test_gpus_of_a_launch_are_dealt_to_its_nodes_and_none_too_many() -> None:
    layout = laid("-N 3 --gpus=4", nodes(3, gpus=4))
    assert [part.gpus for part in layout.nodes] == [((0, 1),), ((0,),), ((0,),)]
    assert [part.gpus for part in laid("-N 2 --gpus=1", nodes(2, gpus=4)).nodes] == [((0,),), ((),)]
    assert ranks(laid("--gpus=6 --gpus-per-task=2", nodes(1, gpus=8))) == {"n0": [0, 1, 2]}


def test_gpus_are_given_in_numa_order_as_cores_are() -> None:
    assert laid("-n 4 --gpus-per-task=1 -c 4", [SOCKETS]).nodes[0].gpus == ((1,), (0,), (3,), (2,))
    assert laid("-n 2 -c 8 --gpu-bind=closest", [SOCKETS]).nodes[0].gpus == ((1, 0), (3, 2))


def test_launches_beside_each_other_have_gpus_of_their_own() -> None:
    one = nodes(1, gpus=2)
    first = laid("-n 1 --exact --gpus-per-task=1", one).nodes[0]
    options = read("-n 1 --exact --gpus-per-task=1", allocated=1)
    second = lay_out(options, one, busy={"n0": first.held}, busy_gpus={"n0": first.held_gpus})
    assert isinstance(second, LaunchLayout)
    assert (first.gpus, second.nodes[0].gpus) == (((0,),), ((1,),))
    assert isinstance(lay_out(options, one, busy_gpus={"n0": frozenset({0, 1})}), CpusInUse)


distributions = st.builds(Distribution, st.sampled_from(["block", "cyclic"]), st.just(0), st.booleans()) | st.builds(
    Distribution, st.just("plane"), st.integers(1, 9)
)


@given(st.integers(1, 300), st.lists(st.integers(0, 40), min_size=1, max_size=12), distributions)
def test_every_rank_is_dealt_exactly_once(tasks: int, capacities: list[int], distribution: Distribution) -> None:
    dealt = deal(tasks, capacities, distribution)
    assert len(dealt) == len(capacities)
    assert sorted(rank for of_node in dealt for rank in of_node) == list(range(tasks))
    assert all(list(of_node) == sorted(of_node) for of_node in dealt)
    if distribution.kind != "plane" and tasks <= sum(capacities):
        assert all(len(of_node) <= room for of_node, room in zip(dealt, capacities, strict=True))


@given(
    st.lists(st.integers(1, 8), min_size=1, max_size=5), st.integers(1, 2), st.integers(1, 20), st.sampled_from(["", "-c2", "--exact", "--cpu-bind=cores", "-c2 -m block:cyclic", "--exact -m *:fcyclic"]),
    st.data(),
)  # fmt: skip
def test_own_cores_are_disjoint_and_never_those_in_use(sizes: list[int], threads: int, tasks: int, own: str, data: st.DataObject) -> None:
    there = [
        NodeCpus(f"n{index}", tuple(tuple(core * threads + thread for thread in range(threads)) for core in range(size)))
        for index, size in enumerate(sizes)
    ]
    busy = {node.name: frozenset(cpu for core in data.draw(st.sets(st.sampled_from(node.cores))) for cpu in core) for node in there}
    try:
        layout = lay_out(read(f"-n{tasks} {own}", allocated=len(there)), there, busy=busy)
    except Rejected:
        return
    if isinstance(layout, CpusInUse):
        assert any(busy.values())
        return
    assert sorted(rank for node in layout.nodes for rank in node.ranks) == list(range(tasks))
    for node in layout.nodes:
        assert not node.held & busy[node.name]
        used = [cpu for cpus in node.cpus for cpu in cpus]
        assert len(used) == len(set(used))
        if own:
            assert set(used) <= node.held


def test_of_tasks_above_the_cores_it_is_said_where_they_share_them() -> None:
    few, many = nodes(1, 1), nodes(1, 4)
    assert tell_unbound(laid("-n 4 -O", few), few) == "4 tasks share the 1 core of n0: they are not bound"
    assert tell_unbound(laid("-n 4 -O", many), many) == ""


def test_a_binding_is_said_for_each_task_as_slurm_says_it() -> None:
    there = [SOCKETS]

    def said(words: str) -> list[str]:
        options = read(words, allocated=1)
        return list(bound_cpus(options.cpu_bind.kind, laid(words, there), there))

    assert said("-n 2 --cpu-bind=verbose,cores") == [
        "cpu-bind_cores=MASK - n0, task  0  0: mask 0x101 set", "cpu-bind_cores=MASK - n0, task  1  1: mask 0x202 set",
    ]  # fmt: skip
    assert said("-n 1 --cpu-bind=v,map_cpu:3") == ["cpu-bind=MAP  - n0, task  0  0: mask 0x8 set"]
    assert said("-n 1 --cpu-bind=v,none") == ["cpu-bind=NONE - n0, task  0  0: mask 0xffff"]


def test_no_node_is_dealt_more_tasks_than_the_launch_allows_on_one() -> None:
    small, large = nodes(1, cores=2)[0], NodeCpus("n1", tuple((cpu,) for cpu in range(8)))
    assert ranks(laid("-O -n 8 --ntasks-per-node=4", [small, large])) == {"n0": [0, 1, 2, 3], "n1": [4, 5, 6, 7]}
    with pytest.raises(Rejected, match="n0 has 2 CPUs"):
        laid("-n 8 --ntasks-per-node=4", [small, large])
