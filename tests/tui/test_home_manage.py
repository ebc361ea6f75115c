"""What the home screen does with runs and profiles beyond opening them."""

from __future__ import annotations

import errno
import fcntl
import json
from pathlib import Path
from unittest.mock import patch

import pytest

from disttui.runner.runs.notes import Notes, read_notes
from disttui.tui.app import DisttuiApp
from disttui.tui.widgets.table import Table
from tests.tui import shelf_kit as kit
from tests.tui.snap import press, screen_text, until
from tests.unit.library_kit import User, bare

_RUNS = Path("data") / "disttui" / "runs"


def _played(folder: Path, run: str, **options: object) -> Path:
    """An ended run that was played in a sandbox: it has no hosts to be asked."""
    place = kit.add_run(folder, run, {"node1": 1}, ago=900, heard=100, end="finished", **options)  # type: ignore[arg-type]
    known = json.loads((place / "run.json").read_text())
    (place / "run.json").write_text(json.dumps({**known, "sandbox": True}))
    return place


async def test_the_hosts_of_a_sandbox_are_not_listed_as_machines(tmp_path: Path) -> None:
    """No ssh reaches them, and a real host of that name has nothing to do with the run: this machine runs it."""
    place = kit.add_run(tmp_path, "mine-7f3a", {"node1": 1, "node2": 1}, ago=60)
    known = json.loads((place / "run.json").read_text())
    (place / "run.json").write_text(json.dumps({**known, "sandbox": True, "ssh_config": str(tmp_path / "played")}))
    kit.add_profile(tmp_path, "mine", "disttui: 1\nhosts: [node2]\njob: {builtin: bytegpt}\n")
    with (tmp_path / "played").open("w") as held:  # the sandbox lives
        fcntl.flock(held, fcntl.LOCK_EX)
        async with kit.home(tmp_path) as (app, _):
            assert "mine-7f3a" in screen_text(app)
            listed = [(row.name, [run.run for run in row.runs]) for row in app.inventory.hosts]
            assert listed == [("node2", []), ("local", ["mine-7f3a"])]


def _order(app: DisttuiApp) -> list[str]:
    lines = screen_text(app).splitlines()
    return [word for line in lines for word in line.split() if word.rpartition("-")[0] in ("pair", "uneven", "llama")]


async def test_runs_are_ordered_by_age_name_state_and_duration(tmp_path: Path) -> None:
    async with kit.home(tmp_path, kit.busy_machine, size=(119, 30)) as (app, pilot):
        assert _order(app)[:6] == ["pair-7f3a", "uneven-02c1", "pair-91bd", "pair-5e20", "llama-c3d4", "pair-0a11"]
        await press(pilot, "o", shows="[1] Runs · 6 · by name")
        assert _order(app)[:6] == ["llama-c3d4", "pair-7f3a", "pair-91bd", "pair-5e20", "pair-0a11", "uneven-02c1"]
        head = screen_text(app).splitlines()[2]
        await pilot.click("#runs", offset=(head.index("took"), 1))
        await until(pilot, lambda: kit.shows(app, "by duration"))
        assert _order(app)[0] == "llama-c3d4" and _order(app)[5] == "pair-0a11"


async def test_marked_runs_are_tagged_together_and_found_by_tag(tmp_path: Path) -> None:
    kit.busy_machine(tmp_path)
    runs = tmp_path / _RUNS
    async with kit.home(tmp_path) as (app, pilot):
        await press(pilot, "space", "space", shows="2 marked")
        await press(pilot, "a", shows="Tags and a note for 2 runs")
        await pilot.press(*"best", "tab", *"ask Ada", "enter")
        await until(pilot, lambda: not app.screen.is_modal and screen_text(app).count("best") == 2)
        await press(pilot, "escape", "g", "a", shows="Tags and a note for pair-7f3a")
        await press(pilot, "space", *"x" * 40, "enter", shows="is not a valid tag")
        await press(pilot, *["backspace"] * 40, *"big", "enter", shows="best big")
        await press(pilot, "a", shows="esc cancel")
        line = next(row for row in screen_text(app).splitlines() if "esc cancel" in row)
        await pilot.click(offset=(line.index("esc cancel"), screen_text(app).splitlines().index(line)))
        await until(pilot, lambda: not app.screen.is_modal)
        await press(pilot, "slash", *"big", "enter", then=lambda: app.screen.query_one("#runs", Table).count == 1)
        await press(pilot, "d", shows="ask Ada")
    assert read_notes(runs / "pair-7f3a") == Notes(("best", "big"), "ask Ada")
    assert read_notes(runs / "uneven-02c1") == Notes(("best",), "ask Ada")


async def test_deleting_marked_runs_says_what_goes_where_and_asks(tmp_path: Path) -> None:
    kit.busy_machine(tmp_path)
    gone = [_played(tmp_path, f"played-000{number}") for number in (1, 2)]
    left = kit.add_run(tmp_path, "played-0003", {"no-such-host.invalid": 1}, ago=800, heard=100, end="failed")
    async with kit.home(tmp_path, size=(140, 40)) as (app, pilot):
        await press(pilot, "D")
        assert not app.screen.is_modal, "the run under the cursor lives"
        table = app.screen.query_one("#runs", Table)
        for run in ("played-0001", "played-0002", "played-0003"):
            table.select(run)
            await pilot.press("space")
        await kit.asked(pilot, "D")
        text = screen_text(app)
        for words in (
            "Delete 3 runs?",
            "played-0001: here ",
            "played-0003: on no-such-host.invalid",
            "~/data/disttui/runs/",
            "checkpoints",
        ):
            assert words in text, text
        await press(pilot, "y", shows="2 runs deleted")
        await until(pilot, lambda: kit.shows(app, "played-0003 was not deleted"))
    assert [folder.exists() for folder in (*gone, left)] == [False, False, True]


async def test_clean_up_shows_what_is_old_before_it_is_deleted(tmp_path: Path) -> None:
    old, new = _played(tmp_path, "played-0001"), _played(tmp_path, "played-0002")
    for folder, end in ((old, 1_000_000.0), (new, 2e9)):
        (folder / "0" / "exit.json").write_text(json.dumps({"t": end, "state": "finished", "code": 0}))
    async with kit.home(tmp_path) as (app, pilot):
        await press(pilot, "C", shows="more than 30 days ago")
        await kit.asked(pilot, "enter")
        assert "Delete 1 run?" in screen_text(app) and "played-0001" in screen_text(app)
        await press(pilot, "y", then=lambda: not old.exists())
    assert new.exists()


async def test_errors_in_an_edited_profile_are_shown_with_their_line(tmp_path: Path) -> None:
    kit.busy_machine(tmp_path)
    path = tmp_path / "config" / "disttui" / "profiles" / "pair.yaml"
    opened: list[Path] = []

    def editor(app: DisttuiApp, environ: object, file: Path) -> None:
        opened.append(file)
        file.write_text("disttui: 1\nhosts: [ada]\nnum_procesess: 2\njob: {builtin: bytegpt}\n")

    async with kit.home(tmp_path, app=DisttuiApp(kit.environ(tmp_path))) as (app, pilot):
        await press(pilot, "2", "j")
        footer = screen_text(app).splitlines()[-1]
        with patch("disttui.tui.home.manage.open_editor", editor):
            await pilot.click("FooterBar", offset=(footer.index("e edit"), 0))
            await until(pilot, lambda: kit.shows(app, "✗ unknown key 'num_procesess'"))
        assert "   3  num_procesess: 2" in screen_text(app)
    assert opened == [path]


@pytest.mark.git
async def test_sync_key_updates_team_libraries_and_reports_results(tmp_path: Path) -> None:
    alice = User("alice", tmp_path, bare(tmp_path / "hub.git"))
    alice.sync()
    alice.save("two", "disttui: 1\ndescription: of alice\nhosts: [ada]\njob: {builtin: bytegpt}\n")
    alice.sync()
    home = tmp_path / "bob"
    (home / "config" / "disttui").mkdir(parents=True)
    config = home / "config" / "disttui" / "config.yaml"
    config.write_text(f"libraries: [{{name: team, git: '{tmp_path / 'hub.git'}'}}]\n")
    async with kit.home(home, size=(160, 40)) as (app, pilot):
        await until(pilot, lambda: kit.shows(app, "library team: its folder is missing"))
        await press(pilot, "2", then=lambda: "S sync" in screen_text(app).splitlines()[-1])
        await press(pilot, "S", shows=("team: cloned", "of alice"))
        assert [row.library for row in app.inventory.profiles if row.name == "two"] == ["team"]
        (tmp_path / "hub.git").rename(tmp_path / "gone.git")
        await press(pilot, "S", shows="cannot sync team")
        full = OSError(errno.ENOSPC, "No space left on device")
        with patch("disttui.runner.api.libraries.sync_libraries", side_effect=full):
            await press(pilot, "S", shows="No space left on device")
        await press(pilot, "1", then=lambda: "S sync" not in screen_text(app).splitlines()[-1])


async def test_keys_that_would_do_nothing_are_not_in_the_footer(tmp_path: Path) -> None:
    async with kit.home(tmp_path, kit.busy_machine, size=(160, 40)) as (app, pilot):

        def footer() -> str:
            return screen_text(app).splitlines()[-1]

        assert "D delete" not in footer() and "space mark" in footer(), "the run under the cursor lives"
        await press(pilot, "G", then=lambda: "D delete" in footer())
        await press(pilot, "3", then=lambda: "space mark" not in footer() and "D delete" not in footer())
