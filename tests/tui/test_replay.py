"""A run played from its mirror."""

from __future__ import annotations

import json
import random
import shutil
import threading
from pathlib import Path

import pytest
from textual.message_pump import MessagePump

from disttui.runner.errors import InputError
from disttui.runner.render.status import host_words
from disttui.runner.runs.condition import run_word
from disttui.runner.runs.state import RunState
from disttui.tui.app import DisttuiApp
from disttui.tui.log.engine import Engine
from disttui.tui.replay import player
from disttui.tui.replay.player import Tape
from disttui.tui.replay.screen import PACKED, ReplayBar, ReplayScreen, unpacked
from disttui.tui.run.feed import Snapshot
from tests.tui import shelf_kit as kit
from tests.tui.snap import press, screen_text, until
from tests.tui.synthetic_run import BEGIN, write


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked({"XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))})


def tape_of(mirror: Path) -> Tape:
    tape = Tape(mirror)
    list(tape.load())
    return tape


def test_the_example_is_small_and_holds_no_local_paths(example: Path) -> None:
    assert PACKED.stat().st_size < 1 << 20
    for path in example.rglob("*"):
        if path.is_file():
            text = path.read_text()
            here = str(Path(__file__).resolve().parents[2])
            assert not any(place in text for place in (here, str(Path.home()), "disttui-sandbox-")), path


def test_the_example_is_unpacked_once(tmp_path: Path) -> None:
    first = unpacked({"XDG_CACHE_HOME": str(tmp_path)})
    (first / "mark").touch()
    assert (unpacked({"XDG_CACHE_HOME": str(tmp_path)}) / "mark").exists()


def test_the_example_shows_a_failure_and_a_recovery(example: Path) -> None:
    tape = tape_of(example)
    end = tape.at(tape.times[-1])
    assert end.state.result is not None and end.state.result["state"] == "finished"
    assert end.state.attempt == 2
    assert end.setup.attempts == 3
    seen = [moment.text for moment in end.moments]
    killed = next(text for text in seen if text.startswith("rank 3 ended with SIGKILL"))
    assert seen.index(killed) < seen.index("attempt 2 is training") < seen.index("the run has finished")


def test_growth_records_of_the_example_end_at_whole_lines(example: Path) -> None:
    """A log is shown up to the cursor by the sizes that it had: in the example no line was half there."""
    for path in example.glob("*/attempt-*/growth.jsonl"):
        for record in map(json.loads, path.read_text().splitlines()):
            for rank, size in record["sizes"].items():
                assert (path.parent / f"rank-{rank}.log").read_bytes()[:size].endswith(b"\n"), (path, record)


def test_the_past_is_what_it_was(example: Path) -> None:
    tape = tape_of(example)
    before = next(moment.time for moment in tape.builder.snapshot.moments if moment.look == "failed")
    then = tape.at(before - 1)
    assert then.state.result is None
    assert then.state.attempt == 1
    assert not any(moment.look == "failed" for moment in then.moments)
    step = then.state.metrics["step"]
    assert isinstance(step, int) and 100 < step < 300


def test_previous_event_is_reached_while_playing(example: Path) -> None:
    """The cursor has already left an event when its key is pressed again."""
    feed = player.ReplayFeed(MessagePump(), example, playing=True)
    feed._tape = tape = tape_of(example)
    times = [moment.time for moment in tape.builder.snapshot.moments]
    at = next(at for at in range(1, len(times)) if times[at] - times[at - 1] > 2 * player.LEFT)
    feed.seek(times[at] + player.LEFT / 2)
    feed.to_moment(-1)
    assert feed._cursor == times[at - 1]


def test_a_host_reported_lost_stops_running_in_a_replay(tmp_path: Path) -> None:
    mirror = write(tmp_path / "run-1", hosts=2, per_host=1, steps=5, ended=False, names="node{}")
    assert run_word(tape_of(mirror).at(float("inf")).state) == "running"
    cause = {"node": 0, "rank": None, "kind": "host lost", "last": BEGIN + 15, "at": BEGIN + 75}
    end = {"t": BEGIN + 75, "state": "lost", "code": 1, "cause": cause, "attempt": 1, "left": []}
    (mirror / "1" / "exit.json").write_text(json.dumps(end))
    tape = tape_of(mirror)
    assert host_words(tape.at(BEGIN + 16).state) == "node0 ● running  node1 ● running"
    state = tape.at(float("inf")).state
    assert (run_word(state), host_words(state)) == ("lost", "node0 ✗ lost  node1 ✗ lost")


@pytest.mark.parametrize(("keep", "kept"), [(player.KEEP, player.KEPT), (7, 3)])
def test_any_order_of_looking_gives_the_same_states(
    example: Path, monkeypatch: pytest.MonkeyPatch, keep: int, kept: int
) -> None:
    monkeypatch.setattr(player, "KEEP", keep)
    monkeypatch.setattr(player, "KEPT", kept)

    def essence(snapshot: Snapshot) -> tuple[RunState, int]:
        return snapshot.state, len(snapshot.moments)

    tape = tape_of(example)
    chance = random.Random(3)
    times = [chance.uniform(tape.times[0], tape.times[-1]) for _ in range(12)]
    forwards = {time: essence(tape.at(time)) for time in sorted(times)}
    for time in times:
        assert essence(tape.at(time)) == forwards[time]


def test_clocks_that_differ_are_put_right(tmp_path: Path) -> None:
    mirror = write(tmp_path / "run-1", hosts=2, per_host=1, steps=5)
    ahead = 3600.0
    for name in ("events.jsonl", "telemetry.jsonl", "attempt-1/rank-1.metrics.jsonl"):
        path = mirror / "1" / name
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps({**line, "t": line["t"] + ahead}) + "\n" for line in lines))
    with (mirror / "0" / "events.jsonl").open("a") as events:
        events.write(json.dumps({"t": BEGIN + 12, "e": "clock", "node": 1, "offset": ahead}) + "\n")
    tape = tape_of(mirror)
    assert tape.times[-1] - sorted(tape.times)[5] < 60
    end = tape.at(tape.times[-1])
    assert end.began == BEGIN
    assert all(end.history.each["cpu"][1].columns(BEGIN, BEGIN + 15, 3, end.now)), "its load is drawn"


@pytest.mark.parametrize("lie", [99999999999.0, 1.0])
def test_a_false_host_clock_does_not_lengthen_an_ended_run(tmp_path: Path, lie: float) -> None:
    mirror = write(tmp_path / "run-1", hosts=2, per_host=1, steps=5)
    before = tape_of(mirror).times
    for name, more in (("events.jsonl", {"e": "join", "node": 1}), ("telemetry.jsonl", {"cpu": 5.0})):
        with (mirror / "1" / name).open("a") as file:
            file.write(json.dumps({"t": lie, **more}) + "\n")
    tape = tape_of(mirror)
    assert tape.times[2] >= before[2] - player._BEYOND and tape.times[-1] <= before[-1] + player._BEYOND
    end = tape.at(tape.times[-1])
    assert end.began == BEGIN
    assert all(moment.time <= tape.times[-1] for moment in end.moments)


def test_torn_and_foreign_lines_are_passed_over(tmp_path: Path) -> None:
    mirror = write(tmp_path / "run-1", hosts=1, per_host=2, steps=5)
    for path in (mirror / "0" / "events.jsonl", mirror / "0" / "attempt-1" / "rank-0.metrics.jsonl"):
        path.write_bytes(path.read_bytes() + b'{"t": 1e999, "e": "join"}\n\xff\xfe[]\n{"t": 3, "e": "rank"}\n{"t": 4')
    assert tape_of(mirror).at(float("inf")).state.result is not None


def test_malformed_records_do_not_lengthen_the_run(tmp_path: Path) -> None:
    mirror = write(tmp_path / "run-1", hosts=1, per_host=1, steps=5)
    end = tape_of(mirror).times[-1]
    with (mirror / "0" / "events.jsonl").open("a") as events:
        events.write('{"t": 99999999999, "e": "note\n{"t": 99999999999}x\n')
        events.write('{"t": 3, "e": "clock", "node": "x", "offset": 1}\n')
    assert tape_of(mirror).times[-1] == end


def test_a_small_file_may_have_several_lines(tmp_path: Path) -> None:
    mirror = write(tmp_path / "run-1", hosts=1, per_host=1, steps=5)
    for name in ("spec.json", "exit.json"):
        path = mirror / "0" / name
        path.write_text(json.dumps(json.loads(path.read_text()), indent=2))
    end = tape_of(mirror).at(float("inf"))
    assert end.state.result is not None
    assert end.setup.backend == "nccl"


def test_extreme_times_crash_nothing(tmp_path: Path) -> None:
    mirror = write(tmp_path / "run-1", hosts=1, per_host=1, steps=5)
    with (mirror / "0" / "events.jsonl").open("a") as events:
        events.write('{"t": 4, "e": "clock", "node": 0, "offset": -1.7e308}\n')
    with (mirror / "0" / "telemetry.jsonl").open("a") as telemetry:
        telemetry.write('{"t": 1.7e308, "cpu": 5.0}\n')
    tape_of(mirror)


def test_times_invented_by_a_script_do_not_lengthen_a_run(tmp_path: Path) -> None:
    mirror = write(tmp_path / "run-1", hosts=1, per_host=1, steps=5)
    before = tape_of(mirror)
    with (mirror / "0" / "attempt-1" / "rank-0.metrics.jsonl").open("a") as metrics:
        metrics.writelines(f'{{"t": {t}, "step": 6, "loss": 0.25}}\n' for t in ("1e11", "-7", "NaN", "99999999999"))
    tape = tape_of(mirror)
    assert (tape.times[-1], tape.times[1]) == (before.times[-1], before.times[1])
    end = tape.at(tape.times[-1])
    assert end.state.metrics["step"] == 6 and end.began == before.at(0.0).began
    track = end.history.each["loss"][0]
    assert track.latest <= tape.times[-1] and track.at(tape.times[-1]) == 0.25


def test_a_time_is_found_wherever_it_stands_in_a_record(tmp_path: Path) -> None:
    mirror = write(tmp_path / "run-1", hosts=1, per_host=1, steps=5)
    with (mirror / "0" / "attempt-1" / "rank-0.metrics.jsonl").open("a") as metrics:
        metrics.write(json.dumps({"step": 6, "loss": 1.5, "t": BEGIN + 15.5}) + "\n")
    tape = tape_of(mirror)
    assert tape.at(BEGIN + 15.4).state.metrics["step"] == 5
    assert tape.at(BEGIN + 15.6).state.metrics["step"] == 6


@pytest.mark.parametrize("broken", ["no spec", "no records", "not json", "wrong hosts"])
def test_a_folder_that_is_not_a_mirror_is_one_clear_error(tmp_path: Path, broken: str) -> None:
    mirror = write(tmp_path / "run-1", hosts=1, per_host=1, steps=2)
    if broken == "no spec":
        shutil.rmtree(mirror / "0")
        (mirror / "run.json").unlink()
    elif broken == "no records":
        shutil.rmtree(mirror / "0")
    else:
        (mirror / "run.json").write_text("{" if broken == "not json" else '{"run": "r", "hosts": [{"nproc": "x"}]}')
        (mirror / "0" / "spec.json").write_text("[1]")
    with pytest.raises(InputError) as raised:
        tape_of(mirror)
    assert str(mirror) in raised.value.what
    assert raised.value.cure


async def test_from_home_the_example_plays_from_its_beginning(tmp_path: Path) -> None:
    app = DisttuiApp(kit.environ(tmp_path, XDG_CACHE_HOME=f"{tmp_path}/cache", TEXTUAL_ANIMATIONS="none"))
    async with app.run_test(size=(120, 35)) as pilot:
        await kit.at_home(pilot)
        await press(pilot, "e", then=lambda: isinstance(app.screen, ReplayScreen) and app.screen.snapshot)
        assert isinstance(app.screen, ReplayScreen) and app.screen.snapshot is not None
        playback = app.screen.snapshot.playback
        assert playback is not None and playback.playing
        assert app.screen.snapshot.now < playback.end - 30
        bar = "".join(piece.text for strip in app.screen.query_one(ReplayBar).draw(120, 1) for piece in strip)
        assert "✗" in bar, "also where it has not played yet"


async def test_replay_of_a_run_without_output_says_so(tmp_path: Path) -> None:
    place = kit.add_run(tmp_path, "pair-7f3a", {"ada": 1}, ago=100, heard=90, end="finished", step=7)
    (place / "0/.mirror.json").write_text(json.dumps({path.name: [0, 0] for path in (place / "0").glob("*.json*")}))
    app = DisttuiApp(kit.environ(tmp_path, TEXTUAL_ANIMATIONS="none"))
    async with app.run_test(size=(120, 35)) as pilot:
        await kit.at_home(pilot)
        app.router.open_replay("pair-7f3a")
        await until(pilot, lambda: isinstance(app.screen, ReplayScreen) and app.screen.snapshot)
        await press(pilot, "end", shows="The ranks printed nothing.")


async def test_a_log_read_after_a_seek_is_shown_at_the_cursor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, run = threading.Event(), Engine.run

    def run_later(engine: Engine) -> None:
        assert read.wait(60)
        run(engine)

    monkeypatch.setattr(Engine, "run", run_later)
    app = DisttuiApp(kit.environ(tmp_path, XDG_CACHE_HOME=f"{tmp_path}/cache", TEXTUAL_ANIMATIONS="none"))
    async with app.run_test(size=(120, 35)) as pilot:
        await kit.at_home(pilot)
        app.router.open_replay("example")
        await until(pilot, lambda: isinstance(app.screen, ReplayScreen) and app.screen.snapshot)
        await press(pilot, "end", "less_than_sign")
        read.set()
        await until(pilot, lambda: "● REPLAY" in screen_text(app))
