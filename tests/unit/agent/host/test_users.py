"""Accounts of the node: only the very name that the cluster knows is one."""

from __future__ import annotations

import pwd

import pytest

from lattice.errors import Rejected
from lattice_agent.host import users


@pytest.mark.parametrize("asked", ["Alice", "alice@corp.example"])
def test_a_name_that_the_directory_reads_as_another_is_nobodys_account(asked: str) -> None:
    found = pwd.struct_passwd(("alice", "x", 20000, 20000, "", "/home/alice", "/bin/sh"))
    with pytest.raises(Rejected, match="compared letter by letter") as refused:
        users.account(asked, min_uid=1000, node="n1", find=lambda _name: found)  # by a directory that knows no capitals and adds its domain
    assert refused.value.reason == "UserUnknown"
