"""Which exit code and which sentence an error gets, whatever the verb."""

from __future__ import annotations

from pathlib import Path

import pytest

from lattice.errors import Denied, Rejected, Retry
from tests.unit.cli.conftest import RUNNING, Bench


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (("submit", "/"), "is a directory"),
        (("submit", "/no/such/file"), "there is no file"),
        (("submit", "--task-group=0-9", "--", "true"), "task groups are not served"),
        (("submit", "--walltime=0", "--", "true"), "a walltime of 0"),
        (("submit", "--nodes=0", "--", "true"), "is not a number of nodes"),
        (("submit", "--"), "there is no command"),
        (("submit", "-f", "x", "--nodes=2"), "does not go with -f"),
        (("status", "--state=sleeping"), "no such state"),
        (("status", "--since=soon"), "--since=soon: say how long ago, such as 24h or 7d, or a time"),
        (("logs", "1", "--since=soon"), "--since=soon: say how long ago"),
        (("cancel",), "nothing to cancel"),
        (("update", "x"), "nothing to update"),
        (("node", "drain", "--reason=x"), "name nodes, or a group"),
    ],
)
def test_bad_input_is_2_with_a_sentence(bench: Bench, argv: tuple[str, ...], sentence: str) -> None:
    result = bench.run(*argv)
    assert (result.code, result.out) == (2, "")
    assert sentence in result.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Denied("get x: forbidden"), 5),
        (Retry("no connection", reason="NoConnection"), 6),
        (Rejected("bad", reason="Invalid"), 1),
    ],
)
def test_errors_of_the_server_have_their_exit_codes(bench: Bench, error: Exception, code: int) -> None:
    bench.cluster.fake.fail(error, times=9)  # type: ignore[arg-type]
    result = bench.run("why", "a")
    assert result.code == code
    assert result.err.startswith("Error: ")


def test_the_configuration_gives_defaults_and_refuses_what_it_does_not_know(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("output_format: name\n")
    bench.allocation("a", number=1, status=RUNNING)
    assert bench.run("--config", str(file), "status").out == "allocation.lattice.dev/a\n"
    file.write_text("colour: true\n")
    result = bench.run("status", "--config", str(file))
    assert result.code == 2
    assert "'colour' is no option" in result.err


def test_a_timeout_that_is_none_names_its_flag(bench: Bench) -> None:
    bench.allocation("train", number=7)
    result = bench.run("wait", "7", "--timeout=2")
    assert (result.code, result.err.splitlines()[0].startswith("Error: --timeout=2: '2' is not a duration")) == (2, True), result.err
