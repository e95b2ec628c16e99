"""Lists from the gateway's memory: when it is asked, what must be in its answer, and who answers in its place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lattice.cli.own_writes import KEPT_SECONDS, OwnWrites
from lattice.errors import Denied, LatticeError, NotFound, Rejected, Retry, TooMany, UnknownOutcome
from lattice.kube.resources import ALLOCATIONS, CONFIG_MAPS, NODES
from lattice.scheduling.queries.answers import QUEUE_SCHEMA, Queues
from lattice.scheduling.queries.node_rows import NODES_SCHEMA, NodeRows, node_row
from lattice.scheduling.queries.row_shapes import STATUS_SCHEMA
from lattice.scheduling.queries.status_rows import Selection, StatusRows, status_detail, status_row
from lattice.views import Allocation, Node
from tests.unit.cli.conftest import COMPLETED, FAILED, NOW, RUNNING, WAITING, Bench, ago

PUBLIC = {"gateway": "https://gateway.test:8443", "ca": "PEM"}


@pytest.fixture
def gateway(bench: Bench) -> Bench:
    """A cluster that names a gateway, which answers what `rows` has put there."""
    bench.cluster.create(CONFIG_MAPS, {"metadata": {"name": "lattice-public"}, "data": PUBLIC}, "lattice-system", type=dict)
    return bench


def rows(bench: Bench, selection: Selection, *, user: str = "alice", wide: bool = False) -> bytes:
    """What the scheduler answers of the same objects."""
    held = bench.cluster.list(ALLOCATIONS, selection.namespace, type=Allocation).items
    kept = [one for one in reversed(held) if selection.keeps(one)]
    encode = msgspec.json.encode
    details = [status_detail(one) for one in kept] if wide else []
    shown = msgspec.Raw(encode([status_row(one) for one in kept])), msgspec.Raw(encode(details))
    return encode(StatusRows(schema=STATUS_SCHEMA, user=user, version="1", rows=shown[0], details=shown[1]))


def fill(bench: Bench) -> None:
    bench.allocation("run", number=12, status=RUNNING)
    bench.allocation("wait", number=13, status=WAITING)
    bench.allocation("bad", number=14, status=FAILED, tags={"name": "job"})
    bench.allocation("done", number=15, status=COMPLETED)
    bench.allocation("new")
    bench.allocation("theirs", number=16, user="bob", status=RUNNING)


def asked(bench: Bench, at: int = -1) -> dict[str, str]:
    """The parameters of a question for rows; others, such as the one for an allocation's steps, do not count."""
    questions = [path for path in bench.paths if not path.startswith("/v1/steps/")]
    return {name: value for name, (value,) in parse_qs(urlsplit(questions[at]).query).items()}


def test_the_gateway_is_asked_for_mine_and_its_rows_are_shown(gateway: Bench) -> None:
    fill(gateway)
    from_server = gateway_gone(gateway).run("status")
    gateway.gateway_fails, gateway.time = None, NOW
    gateway.records = [rows(gateway, Selection(namespace="physics", user="alice"))]
    shown = gateway.run("status")
    assert shown.out == from_server.out
    assert asked(gateway) == {"namespace": "physics", "mine": "true", "after": repr(NOW - 3600.0)}


@pytest.mark.parametrize(("text", "seconds"), [("", 4.0), ("60", 60.0)])
def test_the_gateway_may_be_silent_for_as_long_as_the_reader_says(gateway: Bench, text: str, seconds: float) -> None:
    gateway.environ["LATTICE_ANSWER_SECONDS"] = text
    gateway.run("status")
    assert gateway.silences == [seconds]


@pytest.mark.parametrize("text", ["0", "soon", "-1", "3601", "²"])
def test_a_silence_that_is_none_is_refused_with_its_limits(gateway: Bench, text: str) -> None:
    gateway.environ["LATTICE_ANSWER_SECONDS"] = text
    result = gateway.run("status")
    assert (result.code, result.err) == (2, f"Error: LATTICE_ANSWER_SECONDS is {text!r}: give whole seconds from 1 to 3600\n")


def gateway_gone(bench: Bench) -> Bench:
    bench.gateway_fails = Retry("nobody there", reason="GatewayUnreachable")
    return bench


@pytest.mark.parametrize("words", [(), ("--all",), ("-A",), ("-u", "bob"), ("--active",), ("--state=failed", "--since=1h"), ("-o", "wide")])
def test_the_same_words_show_the_same_lines_by_either_way(gateway: Bench, words: tuple[str, ...]) -> None:
    fill(gateway)
    gateway.records = [b""]
    gateway.run("status", *words)  # to learn what it asks for
    query = asked(gateway)
    selection = Selection(
        namespace=query.get("namespace", ""), user="alice" if query.get("mine") else query.get("user", ""),
        states=frozenset(filter(None, query.get("states", "").split(","))), after=float(query["after"]) if "after" in query else None,
    )  # fmt: skip
    gateway.records = [rows(gateway, selection, wide="wide" in query)]
    from_gateway = gateway.run("status", *words)
    from_server = gateway_gone(gateway).run("status", *words)
    assert from_gateway.out == from_server.out != ""
    assert from_gateway.code == from_server.code == 0


@pytest.mark.parametrize(
    "error",
    [
        Denied("no", reason="ListForbidden"), NotFound("no such path", reason=""), Retry("lost", reason="WatchLost"),
        Retry("standby", reason="NotLeading"), TooMany("busy", reason="TooManyQuestions", after_seconds=1.0),
        Rejected("no", reason="TooManyRows"), Retry("refused", reason="GatewayUnreachable"),
    ],
    ids=lambda error: error.reason or "older",
)  # fmt: skip
def test_where_the_gateway_gives_no_rows_the_api_server_does(gateway: Bench, error: LatticeError) -> None:
    fill(gateway)
    gateway.gateway_fails = error
    shown = gateway.run("status")
    assert (shown.code, len(shown.out.splitlines())) == (0, 6)
    assert "theirs" not in shown.out
    assert len(gateway.paths) == 1


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"<html>", msgspec.json.encode({"schema": "lattice.dev/status-rows/v2"})])
def test_an_answer_of_another_version_is_not_shown(gateway: Bench, body: bytes) -> None:
    fill(gateway)
    gateway.records = [body]
    assert len(gateway.run("status").out.splitlines()) == 6


def test_what_was_written_last_is_asked_for(gateway: Bench) -> None:
    uid = gateway.allocation("run", number=12, status=RUNNING)
    gateway.run("cancel", "--yes", "run")
    version = gateway.read("run")["metadata"]["resourceVersion"]
    gateway.records = [rows(gateway, Selection())]
    gateway.run("status")
    assert asked(gateway)["version"] == version
    gateway.time += KEPT_SECONDS
    gateway.run("status")
    assert "version" not in asked(gateway)
    assert uid


def numbered(bench: Bench, first: int, last: int, called: str) -> bytes:
    return rows(bench, Selection(namespace="physics", numbers=(first, last), called=called))


def test_numbers_are_found_by_the_gateways_rows_and_read_from_the_api_server(gateway: Bench) -> None:
    fill(gateway)
    listed = [gateway.run("status", words) for words in ("12", "12-13", "physics/14")]
    for words, first, last, before in (("12", 12, 12, listed[0]), ("12-13", 12, 13, listed[1]), ("physics/14", 14, 14, listed[2])):
        gateway.records = [numbered(gateway, first, last, words.removeprefix("physics/"))]
        lists = gateway.cluster.lists
        assert gateway.run("status", words).out == before.out != ""
        assert asked(gateway)["numbers"] == words.removeprefix("physics/")
        assert gateway.cluster.lists == lists


@pytest.mark.parametrize("words", ["12", "12-13", "15-17"])
def test_numbers_that_the_gateway_does_not_know_are_listed(gateway: Bench, words: str) -> None:
    fill(gateway)
    listed = gateway_gone(gateway).run("status", words)
    gateway.gateway_fails, gateway.time = None, NOW
    everything = rows(gateway, Selection())  # an older scheduler leaves numbers out of account
    for body in (rows(gateway, Selection(user="nobody")), numbered(gateway, 15, 15, "15"), everything, b"{}"):
        gateway.records = [body]
        assert gateway.run("status", words).out == listed.out != ""


def test_a_name_that_is_a_number_is_ambiguous_by_either_way(gateway: Bench) -> None:
    fill(gateway)
    gateway.allocation("12")
    gateway.records = [numbered(gateway, 12, 12, "12")]
    from_gateway = gateway.run("status", "12")
    assert gateway_gone(gateway).run("status", "12").err == from_gateway.err
    assert "ambiguous" in from_gateway.err


def test_after_a_write_whose_answer_was_lost_only_the_api_server_is_asked(gateway: Bench) -> None:
    def lose() -> None:
        raise UnknownOutcome("no answer", reason="ConnectionLost")

    gateway.cluster.before_create = lose
    assert gateway.run("submit", "-q", "--hold", "--", "true").code != 0
    gateway.run("status")
    assert gateway.paths == []


def test_a_write_that_was_refused_is_forgotten(gateway: Bench) -> None:
    def refuse() -> None:
        raise Rejected("no", reason="Invalid")

    gateway.cluster.before_create = refuse
    assert gateway.run("submit", "-q", "--hold", "--", "true").code != 0
    gateway.records = [rows(gateway, Selection())]
    gateway.run("status")
    assert "version" not in asked(gateway)


def test_documents_come_from_the_api_server_and_so_does_what_no_home_remembers(gateway: Bench) -> None:
    fill(gateway)
    for words in (("-o", "json"), ("-o", "name"), ("-o", "yaml")):
        gateway.run("status", *words)
    gateway.environ["HOME"] = "/nowhere"
    assert gateway.run("status").code == 0
    assert gateway.paths == []


def test_a_gateway_that_keeps_people_waiting_is_left_alone_for_a_while(gateway: Bench) -> None:
    fill(gateway)
    moments = iter([0.0, 0.0, 0.0, 1.2])
    gateway_gone(gateway)
    gateway.tick = lambda: next(moments, 1.2)
    assert gateway.run("status").code == 0
    asked_once = len(gateway.paths)
    assert asked_once <= 1
    gateway.tick = lambda: 2.0
    gateway.run("status")
    assert len(gateway.paths) == asked_once
    gateway.tick = lambda: 40.0
    gateway.run("status")
    assert len(gateway.paths) == asked_once + 1


def test_nodes_are_shown_by_either_way_alike(gateway: Bench) -> None:
    for name, index in (("n2", 1), ("n1", 0)):
        gateway.cluster.create(NODES, {"metadata": {"name": name}, "spec": {"group": "g0"}}, type=dict)
        gateway.cluster.patch(
            NODES, name, {"status": {"index": index, "state": "Ready", "since": ago(90), "capabilities": {"cpus": 8, "memory": "8Gi"}}},
            subresource="status", type=dict,
        )  # fmt: skip
    held = [node_row(node) for node in gateway.cluster.list(NODES, type=Node).items]
    gateway.records = [msgspec.json.encode(NodeRows(schema=NODES_SCHEMA, version="1", homes={}, rows=held))]
    for words in ((), ("-o", "wide"), ("--state=ready",), ("n[1-2]",)):
        gateway.gateway_fails = None
        before = len(gateway.paths)
        shown = gateway.run("nodes", *words)
        assert len(gateway.paths) == before + 1
        assert shown == gateway_gone(gateway).run("nodes", *words)
        assert shown.out.splitlines()[1].startswith("n1 ")


@given(versions=st.lists(st.integers(1, 10_000), min_size=1, max_size=20))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=30)
def test_the_newest_write_is_kept_in_whatever_order_they_end(tmp_path_factory: pytest.TempPathFactory, versions: list[int]) -> None:
    folder = tmp_path_factory.mktemp("writes")
    for version in versions:
        with OwnWrites(folder, lambda: NOW).noting("allocations") as noted:
            noted.append(str(version))
    assert OwnWrites(folder, lambda: NOW).newest("allocations") == str(max(versions))
    assert len(list(folder.iterdir())) == 1
    assert OwnWrites(folder, lambda: NOW).newest("latticenodes") == ""


def test_a_folder_that_cannot_be_made_means_the_api_server_and_fails_no_write(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    writes = OwnWrites(file / "writes", lambda: NOW)
    with writes.noting("allocations") as noted:
        noted.append("7")
    assert writes.newest("allocations") is None


def test_a_process_that_was_killed_while_it_wrote_leaves_its_mark(tmp_path: Path) -> None:
    writes, raised = OwnWrites(tmp_path, lambda: NOW), False
    try:
        with writes.noting("allocations"):
            raise KeyboardInterrupt
    except KeyboardInterrupt:
        raised = True
    assert raised
    assert writes.newest("allocations") is None
    later: Callable[[], float] = lambda: NOW + KEPT_SECONDS  # noqa: E731
    assert OwnWrites(tmp_path, later).newest("allocations") == ""


def test_the_queue_is_no_older_than_the_last_write_of_who_asks_or_says_that_it_may_be(gateway: Bench) -> None:
    empty = msgspec.json.encode(Queues(schema=QUEUE_SCHEMA, at=ago(0), vclusters=[]))
    gateway.records = [empty]
    gateway.allocation("wait", number=13, status=WAITING)
    assert gateway.run("queue").code == 0
    assert "version" not in asked(gateway)
    assert gateway.run("hold", "wait").code == 0
    written = gateway.cluster.get(ALLOCATIONS, "wait", "physics", type=Allocation).metadata.resource_version
    result = gateway.run("queue")
    assert (result.code, asked(gateway)["version"], "just written" in result.err) == (0, written, False)
    gateway.gateway_fails = Retry("the cache is behind", reason="CacheBehind")

    result = gateway.run("queue")
    assert (result.code, "this may not show what you have just written: the cache is behind" in result.err) == (6, True)
    assert "version" not in asked(gateway)
