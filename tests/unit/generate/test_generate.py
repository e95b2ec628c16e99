"""What is generated and committed is what the sources say."""

from __future__ import annotations

import shutil
from pathlib import Path

from lattice_dev.generate.__main__ import drifted, generated, write

ROOT = Path(__file__).resolve().parents[3]


def test_the_committed_files_are_what_would_be_generated() -> None:
    assert [str(path.relative_to(ROOT)) for path in drifted(ROOT)] == [], "run `make generate` and commit the result"


def test_a_changed_a_missing_and_a_stray_file_are_drift_and_writing_mends_them(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    write(tmp_path)
    assert drifted(tmp_path) == []
    changed, missing, stray = (tmp_path / "crds" / name for name in ("tenants.yaml", "ledgers.yaml", "widgets.yaml"))
    changed.write_text("different\n", encoding="utf-8")
    missing.unlink()
    stray.write_text("left over\n", encoding="utf-8")
    assert drifted(tmp_path) == sorted((changed, missing, stray))
    write(tmp_path)
    assert drifted(tmp_path) == []
    assert not stray.exists()


def test_generating_twice_gives_the_same_text() -> None:
    assert generated(ROOT) == generated(ROOT)
