"""srun's arguments and variables as its users write them, and what is refused."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice.errors import Rejected
from lattice.launches.option_table import SHORT, SRUN, VARIABLES
from lattice.launches.option_values import CpuBind, Distribution, Export, GpuBind
from lattice.launches.options import LaunchDefaults, LaunchOptions, PrintedText, parse
from tests.operations import growth


def read(*words: str, environ: dict[str, str] | None = None, defaults: LaunchDefaults | None = None) -> LaunchOptions:
    options = parse(["srun", *words], environ or {}, defaults or LaunchDefaults())
    assert isinstance(options, LaunchOptions)
    return options


@pytest.mark.parametrize("words", [("-n4",), ("-n", "4"), ("--ntasks=4",), ("--ntasks", "4"), ("-ln4",), ("-ln", "4")])
def test_every_form_of_an_option_is_read_as_getopt_reads_it(words: tuple[str, ...]) -> None:
    options = read(*words, "./a.out", "-n", "7")
    assert options.tasks == 4
    assert options.command == ("./a.out", "-n", "7"), "the program's own options are the program's"


def test_two_dashes_end_the_options() -> None:
    assert read("-n2", "--", "-program", "--label").command == ("-program", "--label")


@pytest.mark.parametrize(
    ("words", "field", "value"),
    [
        (("-N2-4",), "nodes", (2, 4)),
        (("-N3",), "nodes", (3, 3)),
        (("-c8",), "cpus_per_task", 8),
        (("-w", "n[1-2],n1"), "nodelist", ("n1", "n2")),
        (("-x", "n7"), "exclude", ("n7",)),
        (("-r2",), "relative", 2),
        (("-m", "cyclic:block"), "distribution", Distribution("cyclic")),
        (("-m", "block:cyclic:fcyclic"), "distribution", Distribution("block", 0, False, "cyclic")),
        (("-mplane=2:fcyclic",), "distribution", Distribution("plane", 2, False, "fcyclic")),
        (("--threads-per-core=2",), "threads_per_core", 2),
        (("--hint=compute_bound",), "threads_per_core", 1),
        (("--hint=multithread",), "threads_per_core", 0),
        (("--cpu-bind=rank_ldom",), "cpu_bind", CpuBind("rank_ldom")),
        (("--cpu-bind=verbose",), "cpu_bind", CpuBind("", (), True)),
        (("-mplane=4",), "distribution", Distribution("plane", 4)),
        (("-m", "*:cyclic,Pack"), "distribution", Distribution("block", 0, True, "cyclic")),
        (("-D", "/data"), "chdir", "/data"),
        (("-o", "out.%t"), "output", "out.%t"),
        (("-K",), "kill_on_bad_exit", True),
        (("-K0",), "kill_on_bad_exit", False),
        (("--kill-on-bad-exit=1",), "kill_on_bad_exit", True),
        (("-W", "0"), "wait_seconds", None),
        (("-W30",), "wait_seconds", 30.0),
        (("-t", "5"), "time_seconds", 300.0),
        (("-I",), "immediate", 1.0),
        (("--immediate=20",), "immediate", 20.0),
        (("--exclusive",), "exact", True),
        (("--exclusive=user",), "exact", False),
        (("--overlap",), "overlap", True),
        (("-vvv",), "verbose", 3),
        (("-Q",), "quiet", 1),
        (("--gres=gpu:a100:2",), "gpus_per_node", 2),
        (("--gres=craynetwork:1",), "gpus_per_node", None),
        (("-G", "gh200:8"), "gpus", 8),
        (("--gpus-per-task=1",), "gpus_per_task", 1),
        (("--gpu-bind=single:2",), "gpu_bind", GpuBind("single", (2,))),
        (("--gpu-bind=verbose,map_gpu:0,1*2",), "gpu_bind", GpuBind("map_gpu", (0, 1, 1))),
        (("--cpu-bind=v,cores",), "cpu_bind", CpuBind("cores", (), True)),
        (("--cpu-bind=mask_cpu:0x3,c",), "cpu_bind", CpuBind("mask_cpu", (3, 12))),
        (("--hint=nomultithread",), "threads_per_core", 1),
        (("--export=ALL,A='x,y',B",), "export", Export(True, ("B",), (("A", "x,y"),))),
        (("--export=NONE",), "export", Export(False)),
        (("--propagate=STACK,CORE",), "propagate", frozenset({"STACK", "CORE"})),
        (("--open-mode=a",), "open_append", True),
        (("--tasks-per-node=3",), "tasks_per_node", 3),
    ],
)
def test_an_option_that_is_acted_on_is_read(words: tuple[str, ...], field: str, value: object) -> None:
    assert getattr(read(*words, "x"), field) == value


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--pty", "bash"), "--pty: terminals are not served"),
        (("--x11", "xterm"), "--x11: X11 is not forwarded"),
        (("--het-group=0", "x"), "--het-group=0: heterogeneous jobs"),
        (("--bcast=/tmp/a", "x"), "--bcast=/tmp/a: files are not copied"),
        (("--uenv=other", "x"), "has 'prgenv'): leave it out, or submit with --uenv=other"),
        (("--task-prolog=/x", "x"), "--task-prolog=/x: scripts before"),
        (("-n0", "x"), "--ntasks=0: '0' is no number"),
        (("-n=3", "x"), "'=3' is no number"),
        (("-N", "4-2", "x"), "'4-2' is no number of nodes"),
        (("-m", "foo", "x"), "'foo' is no layout"),
        (("-m", "arbitrary", "x"), "arbitrary is not served"),
        (("--cpu-bind=foo", "x"), "'foo' is no binding"),
        (("--cpu-bind=map_cpu", "x"), "map_cpu and mask_cpu are followed by a list"),
        (("--mpi=foo", "x"), "is not known: use auto"),
        (("--foo", "x"), "unrecognized option '--foo'"),
        (("-Y", "x"), "invalid option -- 'Y'"),
        (("--label=3", "x"), "it takes no value"),
        (("-n",), "it needs a value"),
        (("-n2",), "no program is named"),
        (("--exact", "--overlap", "x"), "contradict each other"),
        (("-w", "./file", "x"), "is a file"),
        (("--export=1A", "x"), "not the name of a variable"),
    ],
)
def test_what_is_refused_says_option_and_next_step(words: tuple[str, ...], says: str) -> None:
    with pytest.raises(Rejected, match=r"^[^\n]*$") as refused:
        parse(["srun", *words], {}, LaunchDefaults(uenv="prgenv"))
    assert says in refused.value.message


MANY = 65_536 + 1


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        pytest.param(lambda times: ("-v",) * (75_000 * times), "more than 4096 options, which is the limit", id="many words"),
        pytest.param(lambda times: ("-" + "v" * (250_000 * times),), "more than 4096 options, which is the limit", id="many letters"),
        pytest.param(lambda times: ("-J", "x" * (2000 * times)), "it has 8000 characters, the limit is 1024", id="a long name"),
        pytest.param(
            lambda times: ("--cpu-bind=map_cpu:" + "0*4096," * (25 * times),),
            "the list has more than 65536 numbers, which is the limit",
            id="many CPUs",
        ),
        pytest.param(
            lambda times: ("--gpu-bind=map_gpu:" + "0," * (MANY * times),),
            "the list has more than 65536 numbers, which is the limit",
            id="many GPUs",
        ),
        pytest.param(
            lambda times: ("--export=" + "x" * (250_000 * times) + ",=",), "'' is not the name of a variable", id="a long variable"
        ),
    ],
)
def test_a_launch_of_many_or_long_options_is_refused_at_once_and_in_few_words(asked: Callable[[int], tuple[str, ...]], says: str) -> None:
    def refusal(times: int) -> str:
        with pytest.raises(Rejected) as refused:
            read(*asked(times), "prog")
        return refused.value.message

    assert says in refusal(4)
    assert len(refusal(4)) < 1100
    assert growth(lambda: refusal(1), lambda: refusal(4)) < 10, "its length was read again for each of its parts: sixteen times as long"


def test_options_without_a_meaning_here_are_named_in_notes() -> None:
    options = read("--mem=4G", "-p", "debug", "--cpu-freq=high", "x")
    assert [note.partition(" ")[0] for note in options.notes] == ["--mem=4G", "--partition=debug", "--cpu-freq=high"]


def test_the_software_of_the_allocation_may_be_named_again() -> None:
    defaults = LaunchDefaults(uenv="prgenv/24.7", view="default")
    assert read("--uenv=prgenv/24.7", "--view=default", "x", defaults=defaults).command == ("x",)


def test_arguments_override_variables_and_these_the_allocation() -> None:
    defaults = LaunchDefaults(nodes=4, tasks=2, cpus_per_task=1)
    assert read("x", defaults=defaults).tasks == 2
    environ = {"SLURM_NTASKS": "8", "SLURM_NNODES": "3", "SLURM_CPU_BIND": "none", "SLURM_LABELIO": "1", "SLURM_OVERLAP": "0"}
    inherited = read("x", environ=environ, defaults=defaults)
    assert (inherited.tasks, inherited.nodes, inherited.tasks_asked, inherited.label, inherited.overlap) == (8, (3, 3), False, True, False)
    own = read("-n", "5", "--overlap", "x", environ=environ | {"SLURM_EXACT": "1"}, defaults=defaults)
    assert (own.tasks, own.tasks_asked, own.overlap, own.exact) == (5, True, True, False)


def test_a_launch_within_one_of_planes_reads_the_variables_that_it_was_given() -> None:
    assert read("x", environ={"SLURM_DISTRIBUTION": "plane", "SLURM_DIST_PLANESIZE": "3"}).distribution == Distribution("plane", 3)
    assert read("x", environ={"SLURM_DISTRIBUTION": "cyclic:fcyclic"}).distribution == Distribution("cyclic", 0, False, "fcyclic")
    with pytest.raises(Rejected, match=r"^SLURM_DISTRIBUTION=plane=: "):
        read("x", environ={"SLURM_DISTRIBUTION": "plane"})


def test_a_variable_that_does_not_read_is_refused_by_its_name() -> None:
    with pytest.raises(Rejected, match=r"^SLURM_NTASKS=many: "):
        read("x", environ={"SLURM_NTASKS": "many"})


@pytest.mark.parametrize("option", ["--help", "-h", "--usage", "--version", "-V", "--mpi=list"])
def test_texts_about_itself_need_no_program(option: str) -> None:
    answer = parse(["srun", option], {})
    assert isinstance(answer, PrintedText)
    assert answer.text.endswith("\n")


def test_every_letter_and_every_variable_sets_an_option_that_is_there() -> None:
    assert set(SHORT.values()) <= set(SRUN)
    assert {name for _, name in VARIABLES} <= set(SRUN)


@given(
    st.lists(st.text(st.characters(codec="ascii"), max_size=12), max_size=6),
    st.dictionaries(st.sampled_from([n for n, _ in VARIABLES]), st.text(max_size=8)),
)
def test_any_arguments_and_variables_are_read_or_refused(words: list[str], environ: dict[str, str]) -> None:
    with contextlib.suppress(Rejected):
        parse(["srun", *words, "x"], environ)


def test_the_wishes_of_an_allocation_are_weaker_than_variables_and_these_than_arguments() -> None:
    wishes = LaunchDefaults(tasks=8, tasks_per_node=4, cpus_per_task=2, gpus_per_task=1, distribution="plane=2:cyclic", cpu_bind="cores")

    def read(*words: str, **environ: str) -> LaunchOptions:
        found = parse(["srun", *words, "app"], environ, wishes)
        assert isinstance(found, LaunchOptions)
        return found

    bare = read()
    assert (bare.tasks, bare.tasks_per_node, bare.cpus_per_task, bare.gpus_per_task) == (8, 4, 2, 1)
    assert (bare.distribution, bare.cpu_bind.kind) == (Distribution("plane", 2, inner="cyclic"), "cores")
    assert read(SLURM_DISTRIBUTION="cyclic", SLURM_CPU_BIND="none").distribution.kind == "cyclic"
    assert read("-m", "block", "-c", "1", SLURM_DISTRIBUTION="cyclic").distribution.kind == "block"
    assert read("-c", "1", SLURM_CPUS_PER_TASK="3").cpus_per_task == 1
