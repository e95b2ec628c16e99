"""Settings: flags over variables over the file over defaults, and a sentence for what is unknown."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lattice.daemon.settings import CommonSettings, load, render


@dataclass(frozen=True, kw_only=True)
class Settings(CommonSettings):
    """A daemon of the tests."""

    lease_seconds: float = field(default=15.0, metadata={"help": "how long a lease lasts"})
    workers: int = 4
    features: tuple[str, ...] = ()
    state_dir: Path = Path("/var/lib/x")
    dry: bool = False
    node: str | None = None


def read(*argv: str, **environ: str) -> Settings:
    return load(Settings, program="lattice-probe", argv=argv, environ=environ)


def test_defaults_are_the_dataclass_own() -> None:
    assert read() == Settings()


def test_every_kind_of_field_has_a_flag() -> None:
    given = read("--lease-seconds", "3", "--workers=2", "--features", "a, b", "--state-dir", "/s", "--dry", "--node", "n")
    assert given == Settings(lease_seconds=3.0, workers=2, features=("a", "b"), state_dir=Path("/s"), dry=True, node="n")


def test_a_flag_beats_a_variable_beats_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("workers: 1\nlease-seconds: 1\nnode: file\nfeatures: [x, y]\n")
    given = read("--config", str(file), "--workers", "3", LATTICE_PROBE_WORKERS="2", LATTICE_PROBE_LEASE_SECONDS="2")
    assert (given.workers, given.lease_seconds, given.node, given.features) == (3, 2.0, "file", ("x", "y"))


def test_the_flag_that_names_the_file_beats_the_variable(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("workers: 1\n")
    (tmp_path / "b.yaml").write_text("workers: 2\n")
    named = str(tmp_path / "b.yaml")
    assert read("--config", str(tmp_path / "a.yaml"), LATTICE_PROBE_CONFIG=named).workers == 1
    assert read(LATTICE_PROBE_CONFIG=named).workers == 2


@pytest.mark.parametrize(
    ("argv", "environ", "text", "sentence"),
    [
        (["--wokers", "3"], {}, "", "unrecognized arguments: --wokers"),
        (["--workers", "three"], {}, "", "--workers: 'three' is no int"),
        (["--log-format", "xml"], {}, "", "'xml' is none of text, json"),
        ([], {"LATTICE_PROBE_WOKERS": "3"}, "", "LATTICE_PROBE_WOKERS names no setting of lattice-probe"),
        ([], {"LATTICE_PROBE_DRY": "maybe"}, "", "variable LATTICE_PROBE_DRY: 'maybe' is no bool"),
        ([], {}, "wokers: 3", "wokers is unknown; known are"),
        ([], {}, "- a", "must be a map of settings, and is a list"),
        ([], {}, "workers: 2.5", "2.5 is no int"),
        ([], {}, "a: [", "cannot be read"),
    ],
)
def test_what_is_unknown_or_wrong_is_refused_with_a_sentence(
    argv: list[str], environ: dict[str, str], text: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if text:
        (tmp_path / "s.yaml").write_text(text)
        argv = [*argv, "--config", str(tmp_path / "s.yaml")]
    with pytest.raises(SystemExit) as ended:
        read(*argv, **environ)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_variables_that_kubernetes_makes_for_a_service_are_not_settings() -> None:
    links = {"LATTICE_PROBE_SERVICE_HOST": "10.0.0.1", "LATTICE_PROBE_PORT": "tcp://x", "LATTICE_PROBE_PORT_443_TCP_ADDR": "x"}
    assert read(**links) == Settings()


def test_printed_settings_are_a_file_that_gives_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read("--features", "a,b", "--dry", "--print-settings")
    assert ended.value.code == 0
    file = tmp_path / "settings.yaml"
    file.write_text(capsys.readouterr().out)
    assert read("--config", str(file)) == Settings(features=("a", "b"), dry=True)
    assert render(read("--config", str(file))) == file.read_text()


def test_help_names_every_flag_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read("--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    assert "how long a lease lasts [15.0]" in shown
    assert all(flag in shown for flag in ("--kubeconfig", "--metrics-address", "--log-format", "--log-level", "--config", "--state-dir"))
