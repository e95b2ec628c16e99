"""What the demo says when the API server refuses an example."""

from __future__ import annotations

from pathlib import Path

from lattice_dev.demo import failing_open


def test_the_last_request_that_passed_without_the_webhook_is_shown_as_the_api_server_logged_it(tmp_path: Path) -> None:
    log = tmp_path / "kube-apiserver.log"
    log.write_text(
        "W1122 dispatcher.go:210] Failed calling webhook, failing open fill.lattice.dev: first\n"
        "W1122 dispatcher.go:210] Failed calling webhook, failing open fill.lattice.dev: context deadline exceeded\n"
        "I1122 something else\n"
    )
    said = failing_open(log)
    assert said.endswith("failing open fill.lattice.dev: context deadline exceeded")
    assert "first" not in said


def test_nothing_is_said_where_nothing_was_logged(tmp_path: Path) -> None:
    (tmp_path / "quiet.log").write_text("I1122 started\n")
    assert failing_open(tmp_path / "quiet.log") == failing_open(tmp_path / "absent.log") == ""
