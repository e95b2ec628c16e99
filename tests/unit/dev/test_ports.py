import contextlib
import os
import socket
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lattice import errors
from lattice_dev import ports
from lattice_dev.ports import Moved

ROLES = st.lists(st.sampled_from([f"role-{n}" for n in range(8)]), unique=True, min_size=1)
PORTS = st.integers(ports.FIRST, ports.FIRST + 40)


@given(roles=ROLES, kept=st.dictionaries(st.sampled_from([f"role-{n}" for n in range(8)]), PORTS), taken=st.sets(PORTS, max_size=20))
def test_no_port_is_given_twice_and_none_that_is_taken(roles: list[str], kept: dict[str, int], taken: set[int]) -> None:
    kept = dict(zip(kept, dict.fromkeys(kept.values()), strict=False))
    assigned, _ = ports.assign(roles, kept, ours=(), avoid=(), free=lambda port: port not in taken)
    assert set(assigned) == set(roles)
    assert len(set(assigned.values())) == len(roles)
    assert not set(assigned.values()) & taken


@given(roles=ROLES)
def test_assigning_again_changes_nothing(roles: list[str]) -> None:
    first, _ = ports.assign(roles, {}, ours=(), avoid=(), free=lambda _: True)
    again, moved = ports.assign(roles, first, ours=(), avoid=(), free=lambda _: True)
    assert (again, moved) == (first, [])


def test_a_port_that_a_stranger_took_is_left_to_it_and_said() -> None:
    assigned, moved = ports.assign(["etcd"], {"etcd": 21000}, ours=(), avoid=(), free=lambda port: port != 21000)
    assert moved == [Moved("etcd", 21000, 21001)]
    assert assigned == {"etcd": 21001}


def test_a_port_that_our_own_process_listens_on_stays() -> None:
    assigned, moved = ports.assign(["etcd"], {"etcd": 21000}, ours={"etcd"}, avoid=(), free=lambda _: False)
    assert (assigned, moved) == ({"etcd": 21000}, [])


def test_another_instances_ports_are_not_given_even_while_it_is_down() -> None:
    assigned, _ = ports.assign(["etcd"], {}, ours=(), avoid={21000, 21001}, free=lambda _: True)
    assert assigned == {"etcd": 21002}


def test_without_a_free_port_the_answer_is_a_refusal_with_the_range() -> None:
    with pytest.raises(errors.Rejected, match="21000 and 29999") as refused:
        ports.assign(["etcd"], {}, ours=(), avoid=(), free=lambda _: False)
    assert refused.value.reason == "NoPort"


def test_a_listening_port_is_not_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not ports.is_free(port)
    assert ports.is_free(port)


def test_what_one_has_chosen_nobody_else_chooses_before_it_is_given_up_whatever_his_home() -> None:
    roles = ["etcd", "gateway", "webhook"]
    with contextlib.closing(ports.Claims()) as mine, contextlib.closing(ports.Claims()) as theirs:
        ours, _ = ports.assign(roles, {}, ours=(), avoid=(), free=mine.claim_port)
        others, _ = ports.assign(roles, {}, ours=(), avoid=(), free=theirs.claim_port)
        assert not set(ours.values()) & set(others.values())
        assert not theirs.claim_port(ours["etcd"])


def test_what_is_claimed_is_free_again_once_it_is_given_up() -> None:
    what = f"test/{os.getpid()}"
    with contextlib.closing(ports.Claims()) as mine, contextlib.closing(ports.Claims()) as theirs:
        assert mine.claim(what)
        assert not theirs.claim(what)
        mine.close()
        assert theirs.claim(what)


def test_the_claim_of_a_process_that_was_killed_is_gone_with_it() -> None:
    what = f"test/killed-{os.getpid()}"
    code = f"from lattice_dev import ports; claims = ports.Claims(); print(claims.claim({what!r}), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        with contextlib.closing(ports.Claims()) as claims:
            assert other.stdout.readline() == "True\n"
            assert not claims.claim(what)
            other.kill()
            other.wait()
            assert claims.claim(what)


def test_programs_of_tests_side_by_side_get_ports_of_their_own_that_no_instance_chooses() -> None:
    with ports.claimed(3) as one, ports.claimed(3) as other:
        assert len({*one, *other}) == 6
        assert all(not ports.FIRST <= port <= ports.LAST for port in (*one, *other))
