import threading
from pathlib import Path

import pytest

from lattice import errors
from lattice_dev import people, state
from lattice_dev.state import Layout, Options, Process, State, User


@pytest.fixture
def where(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path, "default")
    layout.directory.mkdir()
    return layout


def test_what_is_saved_is_read_again(where: Layout) -> None:
    saved = State(
        options=Options(nodes=3, without=("operator",)),
        ports={"etcd": 21000},
        processes={"etcd": Process(7, 9, "d")},
        users={"a": User(20000, "t")},
    )
    state.save(where, saved)
    assert state.load(where) == saved


def test_no_state_is_a_new_one(where: Layout) -> None:
    assert state.load(where) == State()


@pytest.mark.parametrize("text", ["{", '{"ports": 3}', '{"format": 9}'], ids=["cut off", "wrong type", "another format"])
def test_a_state_that_cannot_be_read_is_named_with_the_way_out(where: Layout, text: str) -> None:
    (where.directory / "instance.json").write_text(text)
    with pytest.raises(errors.Corrupt, match="down") as refused:
        state.load(where)
    assert refused.value.reason == "BadState"


@pytest.mark.parametrize("name", ["", "-a", "a-", "A", "a/b", "..", "a" * 32])
def test_a_name_that_could_not_be_a_directory_or_a_device_is_refused(name: str) -> None:
    with pytest.raises(errors.Rejected) as refused:
        state.layout({"LATTICE_DEV_HOME": "/tmp/x"}, name)
    assert refused.value.reason == "BadName"


def test_two_instances_never_share_a_tag(tmp_path: Path) -> None:
    tags = {Layout(tmp_path / home, name).tag for home in "ab" for name in ("x", "y")}
    assert len(tags) == 4


def test_the_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    seen: list[int] = []

    def hold(number: int) -> None:
        with state.locked(tmp_path / "instance"):
            seen.append(number)
            seen.append(number)

    threads = [threading.Thread(target=hold, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(seen[i] == seen[i + 1] for i in range(0, 12, 2))


def test_the_lock_follows_a_directory_that_was_removed_while_waiting(tmp_path: Path) -> None:
    directory = tmp_path / "instance"
    held = threading.Event()

    def next_one() -> None:
        held.wait()
        with state.locked(directory):
            (directory / "mine").touch()

    thread = threading.Thread(target=next_one)
    thread.start()
    with state.locked(directory):
        held.set()
        directory.rmdir()
    thread.join()
    assert (directory / "mine").exists()


def test_a_command_that_was_refused_leaves_no_empty_directory(tmp_path: Path) -> None:
    with pytest.raises(errors.Rejected), state.locked(tmp_path / "instance"):
        raise errors.Rejected("no")
    assert not (tmp_path / "instance").exists()


def test_a_uid_once_given_stays_and_no_two_people_share_one() -> None:
    users: dict[str, User] = {}
    for name in ("alice", "bob", "carol"):
        users[name] = people.new_user(name, "t", "user", users, plain=False)
    assert len({user.uid for user in users.values()}) == 3
    assert all(user.uid >= 20000 for user in users.values())
    assert people.new_user("bob", "other", "admin", users, plain=False) == User(users["bob"].uid, "other", "admin")


def test_instances_of_the_usual_home_are_known_in_every_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, own = tmp_path / "usual", tmp_path / "own"
    monkeypatch.setattr(state, "home_directory", lambda _: usual)
    for home, port in ((usual, 21000), (own, 21001)):
        where = state.Layout(home, "one")
        where.directory.mkdir(parents=True)
        state.save(where, State(ports={"etcd": port}))
    mine = state.Layout(own, "two")
    assert {other.ports["etcd"] for other in state.others(mine)} == {21000, 21001}
    assert {other.ports["etcd"] for other in state.others(state.Layout(usual, "one"))} == set()


def test_a_uid_of_another_instance_is_given_to_nobody() -> None:
    assert people.new_user("alice", "t", "user", {}, plain=False, free=lambda uid: uid != 20000).uid > 20000


@pytest.mark.parametrize(
    ("name", "role", "reason"), [("Alice", "user", "BadName"), ("a:b", "user", "BadName"), ("alice", "king", "BadRole")]
)
def test_a_person_that_cannot_be_is_refused(name: str, role: str, reason: str) -> None:
    with pytest.raises(errors.Rejected) as refused:
        people.new_user(name, "t", role, {}, plain=False)
    assert refused.value.reason == reason


def test_logins_are_written_into_the_same_file_so_that_nodes_see_later_people(where: Layout) -> None:
    people.write_logins(where, {"alice": User(20000, "t")}, {"nid001": "10.213.0.10"})
    before = (where.etc / "passwd").stat().st_ino
    people.write_logins(where, {"alice": User(20000, "t"), "bob": User(20001, "t")}, {"nid001": "10.213.0.10"})
    text = (where.etc / "passwd").read_text()
    assert (where.etc / "passwd").stat().st_ino == before
    assert "root:" in text
    assert f"bob:x:20001:20001:bob:{where.directory}/home/bob:/bin/bash\n" in text
    assert (where.etc / "hosts").read_text() == "127.0.0.1 localhost\n10.213.0.10 nid001\n"
    people.write_logins(where, {}, {})
    assert "alice" not in (where.etc / "passwd").read_text()


@pytest.mark.parametrize(
    ("kubeconfig", "name"),
    [
        ("/home/i/other/kubeconfigs/alice.kubeconfig", "other"),
        ("/home/i/other/alice.kubeconfig", ""),
        ("/elsewhere/other/kubeconfigs/alice.kubeconfig", ""),
        ("/home/i/a/kubeconfigs/x:/home/i/b/kubeconfigs/y", ""),
        ("", ""),
    ],
    ids=["its own", "not a kubeconfig of ours", "another home", "several", "none"],
)
def test_the_kubeconfig_says_which_instance_is_meant(kubeconfig: str, name: str) -> None:
    assert state.instance_of_kubeconfig({"LATTICE_DEV_HOME": "/home/i", "KUBECONFIG": kubeconfig}) == name
