"""Programs of `--multi-prog`, files of streams, and variables of tasks, held against what real Slurm gave."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.errors import Rejected
from lattice.launches.binding import NodeCpus
from lattice.launches.layout import LaunchLayout, lay_out
from lattice.launches.options import LaunchDefaults, LaunchOptions, parse
from lattice.launches.programs import read_programs
from lattice.launches.streams import BOTH, ERROR, INPUT, OUTPUT, FileNames, OpenedFile, TaskFiles, plan_streams
from lattice.launches.variables import JobFacts, exported, fold_counts, of_launch, of_node, of_rank

NAMES = FileNames(3, 12, "c3.sh", "root")
JOB = JobFacts(
    number=3, step=2, uid="u", name="c3.sh", user="root", tenant="phys", vcluster="p", nodes=("n0", "n1"), cpus=(4, 4), head="n0", user_id=0, group_id=0
)  # fmt: skip


def read(text: str) -> LaunchOptions:
    options = parse(["srun", *text.split(), "x"], {}, LaunchDefaults(nodes=2))
    assert isinstance(options, LaunchOptions)
    return options


# --multi-prog


def test_each_rank_has_the_program_of_its_line() -> None:
    text = "# who does what\n0 echo a %t %o\n\n1-2,5 echo 'b c' \\\n %t:%o\n3-4 ./d\n"
    assert read_programs(text, 6, "mp") == (
        ("echo", "a", "0", "0"), ("echo", "b c", "1:0"), ("echo", "b c", "2:1"), ("./d",), ("./d",), ("echo", "b c", "5:2"),
    )  # fmt: skip
    assert read_programs("* hostname\n", 2, "mp") == (("hostname",), ("hostname",))
    assert read_programs("0-99 hostname\n", 2, "mp") == (("hostname",), ("hostname",))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0 a\n2 b\n", "mp names no program for task 1 of 3: add a line"),
        ("0 a\n0-2 b\n", "mp, line 2: task 0 has a program already"),
        ("0-2\n", "mp, line 1: no program stands behind '0-2'"),
        ("x a\n", "mp, line 1: 'x' names no tasks"),
        ("2-0 a\n", "mp, line 1: the range '2-0' runs backwards"),
        ("0-2 'a\n", "mp, line 1: the quote ' is not closed"),
        ("", "mp names no program for task 0-2 of 3"),
    ],
)
def test_programs_with_gaps_or_faults_are_refused_with_the_line(text: str, says: str) -> None:
    with pytest.raises(Rejected) as refused:
        read_programs(text, 3, "mp")
    assert says in refused.value.message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "* prog %t" + "A" * 4096 + "\n",
            "line 1: the programs of all tasks are too long together, the limit is 8 MiB: give the arguments in files",
        ),
        ("0-9999," * 190_000 + "0 prog\n", "line 1: task 0 has a program already"),
    ],
)
def test_a_file_of_programs_is_not_multiplied_by_its_tasks(text: str, says: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Rejected, match=says):
            read_programs(text, 4096, "mp")
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("options", ["-o " + "A" * 4097 + "%t", "-o A%t" + "%x" * 8, "-e A" + "%x" * 8])
def test_a_file_with_a_longer_name_than_the_kernel_takes_is_refused(options: str) -> None:
    asked = read(options)
    with pytest.raises(Rejected, match=r"characters, the limit is 4096: give a shorter name"):
        plan_streams(asked, FileNames(3, 12, "j" * 1000, "root"), 4).of_task(0, "n0", 0)


@given(st.text(max_size=40), st.integers(1, 9))
def test_any_text_gives_every_rank_a_program_or_is_refused(text: str, tasks: int) -> None:
    try:
        programs = read_programs(text, tasks, "mp")
    except Rejected:
        return
    assert len(programs) == tasks
    assert all(programs)


# Streams


@pytest.mark.parametrize(
    ("options", "opened"),
    [
        ("", ()),
        ("-o rel.txt", (OpenedFile(BOTH, "rel.txt"),)),
        ("-o o -e e", (OpenedFile(OUTPUT, "o"), OpenedFile(ERROR, "e"))),
        ("-o o.%j -e o.3", (OpenedFile(BOTH, "o.3"),)),
        ("-e %x.%J.%s.%u", (OpenedFile(ERROR, "c3.sh.3.12.12.root"),)),
        ("--open-mode=append -o o", (OpenedFile(BOTH, "o", True),)),
        ("-i in.txt", (OpenedFile(INPUT, "in.txt"),)),
        ("-o o%%.%4j", (OpenedFile(BOTH, "o%.0003"),)),
        (r"-o \o.%j", (OpenedFile(BOTH, "o.%j"),)),
        ("-o f.%t", ()),
        ("-o none", ()),
        ("-o 1", ()),
        ("-o 7", (OpenedFile(BOTH, "./7"),)),
        ("-o all -e all", ()),
    ],
)
def test_srun_opens_the_files_that_all_tasks_share(options: str, opened: tuple[OpenedFile, ...]) -> None:
    assert plan_streams(read(options), NAMES, 4).opened == opened


@pytest.mark.parametrize(
    ("options", "files"),
    [
        ("", TaskFiles()),
        ("-o d/f.%J.%s.%t.%n.%N", TaskFiles(stdout="d/f.3.12.12.2.1.n1")),
        ("-o f.%3t -e g.%t", TaskFiles(stdout="f.002", stderr="g.2")),
        ("-o f.%t -e e", TaskFiles(stdout="f.2", stderr="-")),
        ("-o f.%t -e all", TaskFiles(stdout="f.2", stderr="-")),
        ("-e e.%t", TaskFiles(stderr="e.2")),
        ("-o none", TaskFiles(stdout="/dev/null")),
        ("-o 1", TaskFiles(stdout="/dev/null")),
        ("-o 2", TaskFiles()),
        ("-i in.%t", TaskFiles(stdin="in.2")),
    ],
)
def test_a_task_opens_its_own_files_on_its_node(options: str, files: TaskFiles) -> None:
    assert plan_streams(read(options), NAMES, 4).of_task(2, "n1.cluster", 1) == files


@pytest.mark.parametrize(("options", "stdin"), [("", "all"), ("-i none", "none"), ("-i 1", "1"), ("-i all", "all"), ("-i in", "all")])
def test_input_goes_to_all_tasks_to_one_or_to_none(options: str, stdin: str) -> None:
    assert plan_streams(read(options), NAMES, 4).stdin == stdin


# Variables


def test_a_task_finds_what_slurm_sets() -> None:
    options = read("-n 3")
    nodes = [NodeCpus(name, tuple((cpu,) for cpu in range(4))) for name in JOB.nodes]
    layout = lay_out(options, nodes)
    assert isinstance(layout, LaunchLayout)
    part = layout.nodes[0]
    found = of_launch(JOB, options, layout, {}) | of_node(JOB, options, layout, part) | of_rank(part, 1)
    recorded = {
        "SLURMD_NODENAME": "n0", "SLURM_CPUS_ON_NODE": "4", "SLURM_DISTRIBUTION": "block", "SLURM_GTIDS": "0,1", "SLURM_JOBID": "3",
        "SLURM_JOB_CPUS_PER_NODE": "4(x2)", "SLURM_JOB_GID": "0", "SLURM_JOB_ID": "3", "SLURM_JOB_NAME": "c3.sh", "SLURM_JOB_NODELIST": "n[0-1]",
        "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_PARTITION": "p", "SLURM_JOB_UID": "0", "SLURM_JOB_USER": "root", "SLURM_LOCALID": "1",
        "SLURM_NNODES": "2", "SLURM_NODEID": "0", "SLURM_NODELIST": "n[0-1]", "SLURM_NPROCS": "3", "SLURM_NTASKS": "3",
        "SLURM_PRIO_PROCESS": "0", "SLURM_PROCID": "1", "SLURM_STEPID": "2", "SLURM_STEP_ID": "2", "SLURM_STEP_NODELIST": "n[0-1]",
        "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "3", "SLURM_STEP_TASKS_PER_NODE": "2,1", "SLURM_TASKS_PER_NODE": "2,1",
        "SLURM_TOPOLOGY_ADDR": "n0", "SLURM_TOPOLOGY_ADDR_PATTERN": "node", "SLURM_UMASK": "0022",
    }  # fmt: skip
    assert {name: found.get(name) for name in recorded} == recorded, "as srun 22.05 set them for task 1 of `srun -n 3` on two nodes"
    ours = {
        "LATTICE_LAUNCH_ID": "3.2",
        "LATTICE_NODELIST": "n0,n1",
        "LATTICE_NPROCS": "3",
        "LATTICE_PROCID": "1",
        "LATTICE_LOCAL_RANK": "1",
        "LATTICE_LOCAL_SIZE": "2",
    }
    assert ours.items() <= found.items()
    assert found["SLURM_CPU_BIND"] == "quiet,mask_cpu:0x3,0xc"


def test_the_nodes_of_a_launch_are_its_own_and_those_of_the_job_stay() -> None:
    options = read("-N 1 -w n1 --gpus-per-task=1")
    nodes = [NodeCpus(name, ((0,), (1,)), gpus=(0, 1)) for name in JOB.nodes]
    layout = lay_out(options, nodes)
    assert isinstance(layout, LaunchLayout)
    found = of_launch(JOB, options, layout, {}) | of_node(JOB, options, layout, layout.nodes[0]) | of_rank(layout.nodes[0], 0)
    assert (found["SLURM_JOB_NODELIST"], found["SLURM_STEP_NODELIST"], found["SLURM_NODEID"]) == ("n[0-1]", "n1", "0")
    assert (found["CUDA_VISIBLE_DEVICES"], found["SLURM_STEP_GPUS"]) == ("0", "0")


def test_export_chooses_among_the_callers_variables() -> None:
    environ = {"PATH": "/bin", "A": "1", "SLURM_JOB_ID": "3", "LATTICE_JOB_ID": "3", "SLURM_CPU_BIND": "quiet,mask_cpu:0x1"}
    assert exported(read(""), environ) == {"PATH": "/bin", "A": "1", "SLURM_JOB_ID": "3", "LATTICE_JOB_ID": "3"}
    assert exported(read("--export=NONE"), environ) == {"SLURM_JOB_ID": "3", "LATTICE_JOB_ID": "3"}
    assert exported(read("--export=A,B=2"), environ) == {"A": "1", "B": "2", "SLURM_JOB_ID": "3", "LATTICE_JOB_ID": "3"}


def test_preserved_variables_stay_the_callers() -> None:
    options = read("-n 1 -E")
    layout = lay_out(options, [NodeCpus(name, ((0,),)) for name in JOB.nodes])
    assert isinstance(layout, LaunchLayout)
    assert of_launch(JOB, options, layout, {"SLURM_NTASKS": "9"})["SLURM_NTASKS"] == "9"


@pytest.mark.parametrize(("counts", "text"), [([4, 4, 3], "4(x2),3"), ([1], "1"), ([2, 1, 2], "2,1,2"), ([], "")])
def test_numbers_of_nodes_are_written_as_slurm_writes_them(counts: list[int], text: str) -> None:
    assert fold_counts(counts) == text
