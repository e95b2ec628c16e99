"""Calls of `lattice-mpi-launcher` as Hydra, OpenMPI and people make them."""

from __future__ import annotations

import pytest

from lattice.errors import Rejected
from lattice.launches.option_values import CpuBind
from lattice.launches.options import LaunchDefaults, LaunchOptions
from lattice.launches.remote_shell import parse

NODES = ("n0", "n1", "n2", "n3.site.example")
ALICE = {"USER": "alice", "LOGNAME": "alice", "SHELL": "/bin/bash"}


def read(*words: str, environ: dict[str, str] = ALICE) -> LaunchOptions:
    options = parse(["/state/launch/bin/lattice-mpi-launcher", *words], environ, NODES, LaunchDefaults(nodes=4))
    assert isinstance(options, LaunchOptions)
    return options


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (("n1", '"hydra_pmi_proxy"', "--control-port", "10.0.0.1:99", "--proxy-id", "1"), '"hydra_pmi_proxy" --control-port 10.0.0.1:99 --proxy-id 1'),
        (("-x", "n1", '"/opt/hydra_pmi_proxy"', "--rmk", "user"), '"/opt/hydra_pmi_proxy" --rmk user'),
        (("n1", " ", "  PATH=/opt/bin:$PATH ; export PATH ;   orted", "-mca", "ess", '"env"'), '    PATH=/opt/bin:$PATH ; export PATH ;   orted -mca ess "env"'),
        (("-o", "BatchMode=yes", "-p22", "alice@n1", "-qT", "a  'b c'", "-n"), "a  'b c' -n"),
        (("-l", "alice", "--", "n1", "--", "-x"), "-x"),
    ],
)  # fmt: skip
def test_the_command_is_given_to_a_shell_of_the_named_node_as_ssh_gives_it(words: tuple[str, ...], command: str) -> None:
    found = read(*words)
    assert found.command == ("/bin/bash", "-c", command)
    assert found.nodelist == ("n1",)


def test_it_is_one_task_that_counts_no_cpus_and_has_no_pmi() -> None:
    found = read("n1", "'/opt/orted'", "-mca")
    assert (found.tasks, found.nodes, found.overlap, found.overcommit, found.mpi) == (1, (1, 1), True, True, "none")
    assert (found.cpu_bind, found.external_launcher, found.quiet, found.name) == (CpuBind("none"), True, 1, "orted")


def test_a_node_is_found_with_and_without_its_domain() -> None:
    assert read("n3", "true").nodelist == ("n3.site.example",)
    assert read("n2.site.example", "true").nodelist == ("n2",)


def test_standard_input_is_left_alone_with_n() -> None:
    assert read("-n", "n1", "cat").input == read("n1", "-n", "cat").input == "none"
    assert not read("n1", "cat").input


@pytest.mark.parametrize(
    ("shell", "used"), [("/bin/tcsh", "/bin/tcsh"), ("/usr/sbin/nologin", "/bin/sh"), ("bash", "/bin/sh"), ("", "/bin/sh")]
)
def test_the_users_shell_reads_it_where_mpirun_writes_for_that_one(shell: str, used: str) -> None:
    assert read("n1", "true", environ={"SHELL": shell}).command[0] == used


def test_srun_s_own_options_are_read_as_srun_reads_them() -> None:
    found = read("--nodelist", "n0,n1", "-N", "2", "-n", "2", "--input", "none", "hydra_pmi_proxy", "--proxy-id", "-1")
    assert (found.nodelist, found.tasks, found.command) == (("n0", "n1"), 2, ("hydra_pmi_proxy", "--proxy-id", "-1"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no host is named"),
        (("n1",), "no command is named for n1"),
        (("n9", "true"), "host 'n9' is no node of this allocation, which has n0, n1, n2, n3.site.example"),
        (("root@n1", "true"), "-l root: tasks run as the allocation's user"),
        (("-lroot", "n1", "true"), "-l root: tasks run as"),
        (("-f", "n1", "true"), "-f: no option"),
        (("n1", "-l"), "-l: it needs a value"),
    ],
)
def test_what_is_not_served_is_refused_with_a_sentence(words: tuple[str, ...], said: str) -> None:
    with pytest.raises(Rejected, match=said):
        read(*words)
