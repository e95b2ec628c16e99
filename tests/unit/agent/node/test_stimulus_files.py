"""Where an operator gets a node's stimuli: by a signal, at a defect, by a flag; and what `lattice-agent replay` says of them."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import stat
from dataclasses import dataclass
from pathlib import Path

import pytest

from lattice.daemon.clock import ManualClock
from lattice.errors import Rejected
from lattice_agent.__main__ import AgentSettings, main
from lattice_agent.attempts import Seen
from lattice_agent.lifecycle.events import PlanRead, TermsRead, Tick
from lattice_agent.lifecycle.machine import Lifecycle
from lattice_agent.lifecycle.replay import replay as replayed
from lattice_agent.lifecycle.stimulus_log import StimulusLog
from lattice_agent.lifecycle.stimulus_text import decode
from lattice_agent.node import replay
from lattice_agent.node.stimulus_files import FollowedFile, StimulusFiles
from tests.unit.agent.rows import key, run, terms
from tests.unit.agent.site import BEAT, running

MARK = "hunter2"


@dataclass
class Kept:
    machine: Lifecycle


def kept(events: int = 5, limit: int = 100) -> Kept:
    node = Kept(Lifecycle("n1", seen=Seen(1), known=(), stimuli=StimulusLog(limit)))
    node.machine.handle(PlanRead(2, (run(),)), 1.0)
    for at in range(events - 1):
        node.machine.handle(Tick(), 2.0 + at)
    return node


def told(path: Path, *words: str) -> tuple[int, str]:
    out = io.StringIO()
    return replay.main([str(path), *words], out), out.getvalue()


async def test_a_log_is_written_whole_for_its_owner_alone_and_replays(tmp_path: Path) -> None:
    files = StimulusFiles(tmp_path / "stimuli", ManualClock())
    await files.write_log("n1", kept().machine, "Signal")
    path = tmp_path / "stimuli" / "n1"
    assert (stat.S_IMODE(path.stat().st_mode), stat.S_IMODE(path.parent.stat().st_mode)) == (0o600, 0o700)
    assert [found.name for found in path.parent.iterdir()] == ["n1"]
    code, text = told(path)
    assert code == replay.EXIT_SAME
    assert "5 events replayed: all of them lead to the same" in text
    assert 'PlanRead{"seq":2' in text
    assert 'Read{"key":["' in text


async def test_a_signal_writes_every_node_that_keeps_something_again_and_again(tmp_path: Path) -> None:
    nodes = {"n1": kept(), "n2": Kept(Lifecycle("n2", seen=Seen(1), known=()))}
    task = asyncio.ensure_future(StimulusFiles(tmp_path, ManualClock()).write_at_signals(nodes))
    await asyncio.sleep(0)
    for count in (5, 6):
        os.kill(os.getpid(), signal.SIGUSR1)
        async with asyncio.timeout(60):
            while not (tmp_path / "n1").exists():  # noqa: ASYNC110 - files tell nobody
                await asyncio.sleep(0.01)
        assert len(decode((tmp_path / "n1").read_bytes(), "n1")) == count + 2
        (tmp_path / "n1").unlink()
        nodes["n1"].machine.handle(Tick(), 50.0)
    assert not (tmp_path / "n2").exists()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_an_error_that_ends_the_process_leaves_the_log_and_goes_on(tmp_path: Path) -> None:
    files = StimulusFiles(tmp_path, ManualClock())
    with pytest.raises(RuntimeError, match="a defect"):
        async with files.at_failure({"n1": kept()}):
            raise RuntimeError("a defect")
    assert told(tmp_path / "n1")[0] == replay.EXIT_SAME
    (tmp_path / "n1").unlink()
    with pytest.raises(asyncio.CancelledError):
        async with files.at_failure({"n1": kept()}):
            raise asyncio.CancelledError
    assert not (tmp_path / "n1").exists()


async def test_a_directory_that_takes_no_file_is_told_of_and_nothing_else_happens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    await StimulusFiles(tmp_path / "file", ManualClock()).write_log("n1", kept().machine, "Signal")
    assert [record.getMessage() for record in caplog.records] == ["StimuliNotWritten"]


async def test_followed_events_are_all_in_the_file_in_order_and_replay(tmp_path: Path) -> None:
    clock, node = ManualClock(), kept(1)
    task = asyncio.ensure_future(StimulusFiles(tmp_path, clock).follow_logs({"n1": node}))
    for at in range(7):
        node.machine.handle(Tick(), 10.0 + at)
        await clock.run_for(1.0)
        async with asyncio.timeout(60):
            while not clock.sleepers:  # noqa: ASYNC110 - a thread writes meanwhile, and tells nobody
                await asyncio.sleep(0.005)
        assert f"{at + 2} events replayed" in told(tmp_path / "n1")[1]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    code, text = told(tmp_path / "n1")
    assert (code, "8 events replayed" in text) == (replay.EXIT_SAME, True)


def test_followed_files_are_rotated_bounded_and_each_replays_by_itself(tmp_path: Path) -> None:
    node, file = kept(1, limit=8), FollowedFile(tmp_path / "n1", 3000)
    header = StimulusFiles(tmp_path, ManualClock()).header("n1")
    stimuli = node.machine.stimuli
    assert stimuli is not None
    for at in range(200):
        node.machine.handle(Tick(), 10.0 + at)
        if at % 3 == 0:
            file.append(header, stimuli.segments())
            file.append(header, stimuli.segments())
    found = sorted(tmp_path.iterdir())
    assert [path.name for path in found] == ["n1", "n1.1"]
    for path in found:
        assert path.stat().st_size < 3000 + 3 * 1500
        steps = list(replayed(decode(path.read_bytes(), path.name)))
        assert all(step.same for step in steps)
        assert b"".join(step.replayed for step in steps) == path.read_bytes()


def test_events_that_went_before_they_were_written_are_a_gap(tmp_path: Path) -> None:
    node, file = kept(1, limit=4), FollowedFile(tmp_path / "n1", 1 << 20)
    header = StimulusFiles(tmp_path, ManualClock()).header("n1")
    assert node.machine.stimuli is not None
    file.append(header, node.machine.stimuli.segments())
    node.machine.handle(TermsRead(key(), terms()), 9.0)
    for at in range(20):
        node.machine.handle(Tick(), 10.0 + at)
    file.append(header, node.machine.stimuli.segments())
    code, text = told(tmp_path / "n1")
    assert code == replay.EXIT_SAME
    assert "events are missing here" in text


def test_the_file_of_a_former_process_is_kept_beside_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "n1").write_text("the former one")
    node = kept()
    assert node.machine.stimuli is not None
    FollowedFile(tmp_path / "n1", 1 << 20).append(StimulusFiles(tmp_path, ManualClock()).header("n1"), node.machine.stimuli.segments())
    assert (tmp_path / "n1.1").read_text() == "the former one"


async def test_replay_names_what_differs_and_what_is_no_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await StimulusFiles(tmp_path, ManualClock()).write_log("n1", kept().machine, "Signal")
    forged = tmp_path / "forged"
    forged.write_bytes((tmp_path / "n1").read_bytes().replace(b'["Read"', b'["Kill"'))
    code, text = told(forged)
    assert code == replay.EXIT_DIFFERENT
    assert "DIFFERS" in text
    assert "1 of its lines differ" in text
    assert told(tmp_path / "absent")[0] == replay.EXIT_REFUSED
    (tmp_path / "other").write_text("hello\n")
    assert main(["replay", str(tmp_path / "other")]) == replay.EXIT_CORRUPT
    assert "line 1 is no line of a stimulus log" in capsys.readouterr().err


async def test_replay_tells_of_one_allocation_alone_when_asked(tmp_path: Path) -> None:
    node = kept()
    node.machine.handle(PlanRead(3, (run(1), run(2))), 60.0)
    node.machine.handle(TermsRead(key(2), terms()), 61.0)
    await StimulusFiles(tmp_path, ManualClock()).write_log("n1", node.machine, "Signal")
    _, text = told(tmp_path / "n1", "--allocation", key(2).uid)
    assert text.count("PlanRead") == 1
    assert text.count("TermsRead") == 1
    assert "Tick" not in text


async def test_what_nodes_went_through_replays_and_names_no_variable_script_or_command() -> None:
    async with running("n1", "n2") as site:
        await site.submit(1, entrypoint=MARK, environment={"variables": {"TOKEN": MARK, "HOLLOW_SECONDS": "5"}}, nodes=2)
        await site.place_work(1, ["n1", "n2"])
        await site.clock.run_for(2 * BEAT)
        await site.submit(
            2, entrypoint=None, script=f"#!/bin/sh\nexport TOKEN={MARK}\n", environment={"variables": {"HOLLOW_SECONDS": MARK}}
        )
        await site.place_work(2, ["n1"])
        await site.clock.run_for(2 * BEAT)
        assert site.reason(1) == "Completed"
        assert site.reason(2) == "StartFailed"
        for node, wanted in (("n1", {"Prepared", "Started", "Exited", "Refused"}), ("n2", {"Prepared", "Started", "Exited"})):
            text = site.written_stimuli(node)
            assert MARK.encode() not in text
            assert {name for name in wanted if f'"event":"{name}"'.encode() not in text} == set()


async def test_a_machine_that_breaks_a_promise_is_told_of_once_and_its_story_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running("n1", state_dir=tmp_path) as site:
        await site.submit(1)
        await site.place_work(1, ["n1"])
        await site.clock.run_for(BEAT)
        attempt = next(iter(site.agents["n1"].machine.attempts.values()))
        attempt.starts = 2
        await site.clock.run_for(3 * BEAT)
        site.agents["n1"].post(Tick())
        site.agents["n1"].post(Tick())
        async with asyncio.timeout(60):
            while not (tmp_path / "stimuli" / "n1").exists():  # noqa: ASYNC110 - files tell nobody
                await asyncio.sleep(0.01)
        attempt.starts = 1
    told_of = [record for record in caplog.records if record.getMessage() == "StateInconsistent"]
    assert len(told_of) == 1


@pytest.mark.parametrize("wrong", [{"stimulus_events": -2}, {"stimulus_events": 0, "stimulus_log": Path("/x")}])
def test_settings_that_contradict_themselves_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(Rejected, match="--stimulus"):
        AgentSettings(certificate="-", key="-", ca="-", gateway=("g:1",), **wrong)  # type: ignore[arg-type]


def test_a_real_node_keeps_its_last_events_and_a_hollow_one_only_when_asked() -> None:
    def settings(**fields: object) -> AgentSettings:
        return AgentSettings(certificate="-", key="-", ca="-", gateway=("g:1",), **fields)  # type: ignore[arg-type]

    assert settings().events_kept == 1024
    assert settings(hollow=3).events_kept == 0
    assert settings(hollow=3, stimulus_log=Path("/x")).events_kept == 1024
    assert settings(hollow=3, stimulus_events=16).events_kept == 16
