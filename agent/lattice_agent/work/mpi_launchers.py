"""Composes what an MPI's own `mpirun` finds in an allocation: its nodes, and the program that starts its daemons there; pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lattice_agent.attempts import Key, NodeWork

LAUNCHER: Final = "lattice-mpi-launcher"
"""The program that mpirun calls in place of ssh: srun's, by another name, beside it."""
HOSTS: Final = "hosts"
"""The directory of host files, beside that of the programs."""


def variables(work: NodeWork, programs: str, interface: str = "") -> dict[str, str]:
    """Returns the variables by which mpirun of MPICH and OpenMPI starts its daemons, weaker than all that anybody else sets.

    `programs`: the directory of the launcher; empty: the node serves none, and nothing is set. `interface`: the network interface over
    which the nodes of the site reach each other; empty: each MPI chooses. On one node mpirun starts what it starts by itself, but does
    not take the node for one of Slurm's.
    """
    if not programs:
        return {}
    launcher = f"{programs}/{LAUNCHER}"
    found = {
        "HYDRA_LAUNCHER": "rsh",
        "HYDRA_LAUNCHER_EXEC": launcher,
        "HYDRA_RMK": "user",
        "OMPI_MCA_plm": "^slurm",
        "OMPI_MCA_plm_rsh_agent": launcher,
        "OMPI_MCA_ras": "^slurm",
        "PRTE_MCA_plm": "^slurm",
        "PRTE_MCA_plm_ssh_agent": launcher,
        "PRTE_MCA_ras": "^slurm",
    }
    if len(work.nodes) < 2:
        return found
    hydra, openmpi = (f"{programs.rpartition('/')[0]}/{HOSTS}/{name}" for name in file_names(work.key))
    found |= {
        "HYDRA_HOST_FILE": hydra,
        "OMPI_MCA_orte_default_hostfile": openmpi,
        "PRTE_MCA_prte_default_hostfile": openmpi,
    }
    return found | (_of_interface(interface) if interface else {})


def _of_interface(interface: str) -> dict[str, str]:
    """Returns the variables that name the interface to Hydra, libfabric's providers over TCP, and OpenMPI.

    UCX is not told: UCX_NET_DEVICES would take InfiniBand's devices away, which bear other names.
    """
    names = (
        "HYDRA_IFACE", "FI_TCP_IFACE", "FI_SOCKETS_IFACE", "OMPI_MCA_oob_tcp_if_include", "OMPI_MCA_btl_tcp_if_include",
        "PRTE_MCA_prte_if_include",
    )  # fmt: skip
    return dict.fromkeys(names, interface)


def file_names(key: Key) -> tuple[str, str]:
    """Returns the names of an attempt's host files: for Hydra, and for OpenMPI."""
    return f"{key.uid}-{key.attempt}.hydra", f"{key.uid}-{key.attempt}.openmpi"


def host_files(work: NodeWork) -> Mapping[str, str]:
    """Returns the host files of work on several nodes, texts by name: its nodes in rank order, each with the tasks asked for there.

    That is one where none are asked for, as srun starts it and as Slurm tells mpirun.
    """
    counts = tasks_of_nodes(work)
    rows = list(zip(work.nodes, counts, strict=True))
    hydra, openmpi = file_names(work.key)
    return {
        hydra: "".join(f"{node}:{count}\n" for node, count in rows),
        openmpi: "".join(f"{node} slots={count}\n" for node, count in rows),
    }


def tasks_of_nodes(work: NodeWork) -> list[int]:
    """Returns the tasks of each node, dealt evenly, the first nodes one more; at least one."""
    each, more = divmod(work.total_tasks, len(work.nodes))
    return [max(1, each + (place < more)) for place in range(len(work.nodes))]
