"""Two checkouts replay a log by turns, and differ in nothing but speed."""

from __future__ import annotations

from pathlib import Path

import pytest

import lattice
from lattice.errors import Corrupt, Rejected
from lattice_dev.bench import player
from lattice_dev.bench.turns import Turn, figure, interleave, replayer

HERE = Path(lattice.__file__).resolve().parents[1]


def test_a_checkout_beside_itself_gives_the_same_starts_in_turns_to_the_end() -> None:
    with replayer(HERE, player.MADE, 60) as ours, replayer(HERE, player.MADE, 60) as theirs:
        turns = interleave(ours, theirs, lambda _share: None)
    assert ours.jobs == 60
    assert len(turns) == 1, "60 submissions are one turn"
    assert all(turn.ours > 0 and turn.theirs > 0 for turn in turns)


def test_replays_that_start_other_work_are_told_apart() -> None:
    with (
        replayer(HERE, player.MADE, 60) as ours,
        replayer(HERE, player.MADE, 50) as theirs,
        pytest.raises(Corrupt, match="starts differ"),
    ):
        interleave(ours, theirs, lambda _share: None)


def test_a_folder_without_lattice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match="no checkout"), replayer(tmp_path, "burst", 1):
        pass


def test_the_figure_is_held_against_the_baseline_of_the_same_turns() -> None:
    found = figure("burst", 100, [Turn(1.0, 2.0), Turn(1.0, 1.0)])
    assert (found.value, found.ratio, found.met) == (50.0, 1.5, True)
    assert found.parts == {"least by turn": 1.0, "median": 1.5, "most": 2.0}
