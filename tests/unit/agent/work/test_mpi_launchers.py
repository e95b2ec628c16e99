"""What an MPI's own mpirun finds in an allocation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from lattice_agent.host.host_files import HostFiles
from lattice_agent.work import mpi_launchers
from lattice_agent.work.mpi_launchers import host_files, variables
from tests.unit.agent.rows import work

FOUR = replace(work(), nodes=("n0", "n1", "n2", "n3"), node="n0", total_tasks=1)


def test_work_of_several_nodes_has_launcher_and_host_files() -> None:
    found = variables(FOUR, "/state/launch/bin")
    assert (
        found["HYDRA_LAUNCHER_EXEC"]
        == found["OMPI_MCA_plm_rsh_agent"]
        == found["PRTE_MCA_plm_ssh_agent"]
        == "/state/launch/bin/lattice-mpi-launcher"
    )
    hydra, openmpi = (f"/state/launch/hosts/{name}" for name in mpi_launchers.file_names(FOUR.key))
    assert found["HYDRA_HOST_FILE"] == hydra
    assert found["OMPI_MCA_orte_default_hostfile"] == found["PRTE_MCA_prte_default_hostfile"] == openmpi
    assert not [name for name in found if "IFACE" in name or "if_include" in name]


def test_work_of_one_node_has_no_host_file_and_a_node_without_launches_sets_nothing() -> None:
    one = variables(replace(FOUR, nodes=("n0",)), "/state/launch/bin", "hsn0")
    assert one["HYDRA_RMK"] == "user"
    assert not [name for name in one if "HOST" in name.upper() or one[name] == "hsn0"]
    assert variables(FOUR, "") == {}


def test_the_fabric_s_interface_is_named_to_all() -> None:
    found = variables(FOUR, "/state/launch/bin", "hsn0")
    assert {name for name, value in found.items() if value == "hsn0"} == {
        "HYDRA_IFACE", "FI_TCP_IFACE", "FI_SOCKETS_IFACE", "OMPI_MCA_oob_tcp_if_include", "OMPI_MCA_btl_tcp_if_include",
        "PRTE_MCA_prte_if_include",
    }  # fmt: skip


def test_host_files_name_each_node_with_its_tasks() -> None:
    hydra, openmpi = host_files(replace(FOUR, total_tasks=10)).values()
    assert hydra == "n0:3\nn1:3\nn2:2\nn3:2\n"
    assert openmpi == "n0 slots=3\nn1 slots=3\nn2 slots=2\nn3 slots=2\n"
    assert next(iter(host_files(FOUR).values())) == "n0:1\nn1:1\nn2:1\nn3:1\n", "none are asked for: one each, as srun starts them"


def test_host_files_are_read_by_all_changed_by_none_and_removed(tmp_path: Path) -> None:
    kept = HostFiles(str(tmp_path / "launch/bin"))
    kept.write_hosts(FOUR)
    kept.write_hosts(FOUR)
    directory = tmp_path / "launch/hosts"
    assert sorted(path.name for path in directory.iterdir()) == sorted(mpi_launchers.file_names(FOUR.key))
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o644}
    assert directory.stat().st_mode & 0o777 == 0o711, "nobody lists the attempts of others"
    kept.remove_hosts(FOUR.key)
    kept.remove_hosts(FOUR.key)
    assert list(directory.iterdir()) == []
    HostFiles("").write_hosts(FOUR)
    HostFiles(str(tmp_path / "other/bin")).write_hosts(replace(FOUR, nodes=("n0",)))
    assert not (tmp_path / "other").exists()
