"""Everything by mouse alone: ticks, steps, tabs, choices, dialogs, the footer's keys, the titles of panes."""

from __future__ import annotations

from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Input

from disttui.tui.app import DisttuiApp
from disttui.tui.dashboard.run_screen import RunScreen
from disttui.tui.dialogs.help import HelpScreen
from disttui.tui.dialogs.prompts import ConfirmScreen, PickScreen
from disttui.tui.log.status import LogPrompt
from disttui.tui.wizard.dialogs import SaveScreen
from disttui.tui.wizard.host_form import HostForm
from tests.tui import shelf_kit as kit
from tests.tui.snap import press, screen_text, until
from tests.tui.wizard_kit import HOSTS, record, walked, wizard


async def click(pilot: Pilot[None], text: str, within: str = "", *, times: int = 1) -> None:
    """Click on a text once it is on the screen, or on it in a widget."""
    found: list[tuple[int, int]] = []

    def there() -> bool:
        screen = pilot.app.screen
        if screen._compositor.size != pilot.app.size or (within and not screen.query(within)):
            return False  # it has not been laid out yet
        region = screen.query_one(within).region if within else screen.region
        for row, line in enumerate(screen_text(pilot.app).splitlines()):
            at = line.find(text, region.x)
            if region.y <= row < region.bottom and at >= 0:
                found.append((at, row))
        return bool(found)

    before: tuple[int, int] | None = None
    while True:  # until it stays where it is: a dialog may be laid out again
        found.clear()
        await until(pilot, there)
        if found[0] == before:
            break
        before = found[0]
        await pilot.pause(0.05)
    await pilot.click(offset=found[0], times=times)
    await pilot.pause()


@pytest.mark.parametrize("size", [(80, 24), (120, 35)], ids=["80x24", "120x35"])
async def test_the_wizard_is_walked_filled_in_and_saved_without_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    record(monkeypatch, {**HOSTS, "local": HOSTS["gpu1"]})
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    async with wizard(tmp_path, size=size) as (pilot, opened):
        app = pilot.app
        await until(pilot, lambda: "[ ]  local" in screen_text(app))
        await click(pilot, "[ ]  local")
        await until(pilot, lambda: "[x]  local" in screen_text(app))
        await click(pilot, "[x]  local", times=2)  # twice another tick, no way to the next step
        await pilot.pause()
        assert opened._at == 0 and "[x]  local" in screen_text(app)
        await click(pilot, "2 Hardware", "Rail")
        assert opened._at == 1
        await click(pilot, "enter next", "FooterBar")
        await until(pilot, lambda: opened._at == 2)
        await click(pilot, "4 Job", "Rail")
        assert opened._at == 3
        await click(pilot, "script", "#choice-kind")
        await until(pilot, lambda: "script" in opened._view.draft.data["job"])
        await click(pilot, "built-in", "#choice-kind")
        await until(pilot, lambda: "builtin" in opened._view.draft.data["job"])
        await click(pilot, "5 Check & save", "Rail")
        await until(pilot, lambda: opened._at == 4)
        if size[0] < 120:
            await click(pilot, "[3] commands", "#tabs")
            await until(pilot, lambda: "run these on each host" in screen_text(app))
            await click(pilot, "[2] profile", "#tabs")
        else:
            await click(pilot, "[2] profile")
        await until(pilot, lambda: app.focused is not None and app.focused.id == "pane-profile")
        await click(pilot, "✓ Hosts", "Rail")
        await until(pilot, lambda: opened._at == 0)
        await click(pilot, "Check & save", "Rail")
        await until(pilot, lambda: opened._at == 4)
        await click(pilot, "s save", "FooterBar")
        await until(pilot, lambda: isinstance(app.screen, SaveScreen) and app.screen.focused)
        await click(pilot, "enter save")
        path = tmp_path / "config" / "disttui" / "profiles"
        await until(pilot, lambda: list(path.glob("*.yaml")))


async def test_host_form_takes_clicks_on_its_ticks_and_keys(tmp_path: Path) -> None:
    async with walked(tmp_path, HOSTS, 3, (80, 24), names=["gpu1"]) as (pilot, opened):
        app = pilot.app
        await click(pilot, "e edit", "FooterBar") if "e edit" in screen_text(app) else await pilot.press("e")
        await until(pilot, lambda: isinstance(app.screen, HostForm))
        await pilot.pause()
        before = opened._view.draft.said(0).get("gpus")
        await click(pilot, "[x]")
        await until(pilot, lambda: opened._view.draft.said(0).get("gpus") == [1, 2, 3, 4, 5, 6, 7])
        assert before is None
        await click(pilot, "a auto")
        await until(pilot, lambda: opened._view.draft.said(0).get("gpus") is None)
        await click(pilot, "esc done")
        await until(pilot, lambda: app.screen is opened)


async def test_every_dialog_is_answered_and_closed_by_a_click(tmp_path: Path) -> None:
    async with kit.home(tmp_path, kit.busy_machine) as (app, pilot):
        await click(pilot, "x stop", "FooterBar")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen) and app.screen.ready)
        await click(pilot, "cancel n")
        await until(pilot, lambda: not isinstance(app.screen, ConfirmScreen))
        await click(pilot, "? help", "FooterBar")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        await pilot.pause()
        await click(pilot, "/ search")
        await pilot.press(*"filter")
        await click(pilot, "esc all keys")
        await click(pilot, "esc close")
        await until(pilot, lambda: not isinstance(app.screen, HelpScreen))
        app.push_screen(PickScreen("Show", [("a", "first"), ("b", "second")], "a"))
        await click(pilot, "esc cancel")
        await until(pilot, lambda: not isinstance(app.screen, PickScreen))


async def test_a_title_click_focuses_and_a_double_click_zooms(tmp_path: Path) -> None:
    async with kit.replayed(tmp_path, (120, 35)) as (app, pilot, screen):
        for title, pane in (("Log", "log"), ("Hosts", "hosts"), ("Events", "events"), ("Ranks", "ranks")):
            await click(pilot, title, f"#{pane}")
            await until(pilot, lambda pane=pane: screen.arrangement.pane == pane)  # type: ignore[misc]
            assert app.focused is not None
            assert screen.query_one(f"#{pane}") in app.focused.ancestors_with_self
        await click(pilot, "Hosts", "#hosts", times=2)
        await until(pilot, lambda: screen.has_class("-alone"))
        await click(pilot, "Hosts", "#hosts", times=2)
        await until(pilot, lambda: not screen.has_class("-alone"))


async def test_a_double_click_on_the_load_title_zooms_no_pane(tmp_path: Path) -> None:
    async with kit.replayed(tmp_path, (120, 35)) as (app, pilot, screen):
        await click(pilot, "Load over the run", times=2)
        await press(pilot, "z", then=lambda: screen.has_class("-alone"))
        await press(pilot, "z", then=lambda: not screen.has_class("-alone"))
        assert "Load over the run" in screen_text(app) and "Events" in screen_text(app)
        await click(pilot, "Load over the run", times=2)
        await press(pilot, "z", then=lambda: screen.has_class("-alone"))
        assert "Ranks" in screen_text(app), "the pane that had the keys before"


@pytest.mark.parametrize("size", [(40, 12), (80, 24)], ids=["40x12", "80x24"])
async def test_the_lines_of_the_welcome_do_what_they_say(tmp_path: Path, size: tuple[int, int]) -> None:
    async with kit.home(tmp_path, size=size) as (app, pilot):
        brief = size[0] < 80
        within = "#brief" if brief else "#welcome"
        more = [] if brief else [("replay a", "replay"), ("show the load", "top")]  # there is room for three lines
        for words, opened in (("describe your hosts", "wizard"), ("start from", "wizard"), *more):
            await click(pilot, "[3] Hosts", "#tabs" if brief else "")
            await click(pilot, words, within)
            await until(pilot, lambda: app.opened)
            assert app.opened.pop()[0] == opened
        await click(pilot, "start from", within)
        await until(pilot, lambda: app.opened)
        assert app.opened.pop()[1].name == "2node.yaml"
        if not brief:
            await click(pilot, "list all keys", within)
            await until(pilot, lambda: isinstance(app.screen, HelpScreen))


async def test_profiles_and_details_fit_together_on_12_rows(tmp_path: Path) -> None:
    async with kit.home(tmp_path, size=(40, 12)) as (app, pilot):
        await click(pilot, "2node-fsdp", "#profiles")
        await press(pilot, "d", then=lambda: app.screen.has_class("-details"))
        await pilot.pause()
        assert "› 2node-fsdp" in screen_text(app) and "file " in screen_text(app)


async def test_a_click_on_the_sign_of_the_filter_goes_to_its_words(tmp_path: Path) -> None:
    async with kit.home(tmp_path, kit.busy_machine) as (app, pilot):
        await pilot.press("slash", *"pair", "enter")
        await click(pilot, "/ filter", "FilterLine")
        await until(pilot, lambda: isinstance(app.focused, Input) and "enter apply" in screen_text(app))


@pytest.mark.parametrize("size", [(40, 12), (80, 24)], ids=["40x12", "80x24"])
async def test_the_prompt_of_the_log_takes_clicks_on_its_switches(tmp_path: Path, size: tuple[int, int]) -> None:
    app = DisttuiApp(kit.environ(tmp_path, XDG_CACHE_HOME=f"{tmp_path}/cache", TEXTUAL_ANIMATIONS="none"))
    words = ["r", "c", "n"] if size[0] < 60 else [" regex", " case", " not"]
    async with app.run_test(size=size) as pilot:
        app.router.open_replay("example")
        await until(pilot, lambda: isinstance(app.screen, RunScreen) and app.screen.log_view)
        await pilot.press("ampersand")
        prompt = app.screen.query_one(LogPrompt)
        for word, name in zip(words, ("regex", "case", "inverse"), strict=True):
            await click(pilot, f"○{word}", "#log-prompt-flags")
            await until(pilot, lambda word=word: f"●{word}" in screen_text(app))  # type: ignore[misc]
            assert getattr(prompt, name)
        await click(pilot, f"●{words[1]}", "#log-prompt-flags")
        await until(pilot, lambda: not prompt.case and prompt.regex and prompt.inverse)
        assert isinstance(app.focused, Input)


async def test_clicking_the_name_of_a_job_value_focuses_the_value(tmp_path: Path) -> None:
    async with walked(tmp_path, HOSTS, 4, (80, 24), names=["gpu1"]) as (pilot, _):
        for words, place in (("folder", "field-workdir"), ("precision", "choice-precision"), ("name", "field-name")):
            await click(pilot, words, f"#line-{place.partition('-')[2]}")
            await until(pilot, lambda place=place: pilot.app.focused and pilot.app.focused.id == place)  # type: ignore[misc]
