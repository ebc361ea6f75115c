"""What hosts, files and ranks say is shown, and never obeyed: looked at in the bytes that a real terminal gets."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cluster.typed import COMMAND
from tests.tui import evil_host, hostile
from tests.tui.shelf_kit import environ
from tests.tui.tmux import Tmux, tmux
from tests.unit.waiting import wait_for

pytestmark = [pytest.mark.tmux, pytest.mark.timeout(400)]
ROOT = Path(__file__).parents[2]
SIZES = pytest.mark.parametrize(
    "size", [pytest.param((80, 24), id="80x24"), pytest.param((200, 50), id="200x50", marks=pytest.mark.slow)]
)
_OURS = re.compile(
    r"\x1b\[(?:[0-9;]*[mHGKJ]|\?[0-9;]+[hlu$p]+|[<>=]?[0-9;]*u|[0-9;]*c|>?[0-9]*q)"  # what Textual's driver writes
    r"|\x1b\]22;[a-z-]*\x07|\x1bP\+q|\x1b_G|\x1b\\"
)
_HIDDEN = re.compile("[\x80-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")


@contextmanager
def _attacked(folder: Path, *command: str, size: tuple[int, int]) -> Iterator[Tmux]:
    """A terminal whose user has hostile runs and profiles; at the end, all it has got is looked at."""
    runs = folder / "data" / "disttui" / "runs"
    if not runs.exists():
        hostile.mirror(runs, "failed-0001")
        hostile.mirror(runs, "silent-0002", over=False)
        hostile.mirror(runs, f"Wid{hostile.ATTACK.replace('/', '').replace(chr(0), '')}-03")
        hostile.attack_profiles(folder / "config" / "disttui" / "profiles")
    home = environ(folder, LANG="C.UTF-8", PYTHONPATH=str(ROOT))
    with tmux(folder, command, home, size) as screen:
        yield screen
        assert hostile.TITLE not in screen.tell("#{pane_title}#{window_name}")
        screen.press("C-q")
        screen.until("exit code 0")
        # What tmux pipes comes later than what it shows.
        wait_for(lambda: b"exit code 0" in screen.written.read_bytes(), "the end of what was written")
        written = screen.written.read_bytes()
    assert b"Traceback" not in written.replace(b"Traceback\x1b", b"")
    text = written.decode("utf-8")
    assert not _HIDDEN.findall(text)
    others = [
        text[at : at + 20] for at in (one.start() for one in re.finditer("\x1b", text)) if not _OURS.match(text, at)
    ]
    assert not others, f"sequences that are not the app's: {others[:9]}"
    assert text.count("\x1b[?1049l") == 1, "left once, at the end"


def _see(screen: Tmux, *words: str) -> None:
    for word in words:
        screen.until(word, 60)


def _left(screen: Tmux, shown: str) -> None:
    """Leave what is open by Escape; a busy app would read the key after it together with it, as Alt and that key."""
    screen.until(shown)
    screen.press("Escape")
    screen.until_gone(shown)


@pytest.mark.slow
@SIZES
def test_home_and_all_that_opens_there(tmp_path: Path, size: tuple[int, int]) -> None:
    with _attacked(tmp_path, COMMAND, size=size) as screen:
        _see(screen, "failed-0001", "Whost0", "Wprofile", "aaa")
        screen.press("d")
        _see(screen, "Wby")
        screen.press("x")
        _left(screen, "Stop silent-0002")
        screen.press("Enter")
        screen.until("Whost0.*not seen")
        screen.press("q", "2", "g", "Enter")
        screen.until("e edit")
        assert "[red][@click=app.quit]x[" in screen.until("─ Wprofile"), "in the border as well"
        screen.press("Escape")
        screen.until("2. Profiles")
        screen.press("2", "g", "Down", "Enter")
        screen.until("e edit")
        _see(screen, "Wkey")
        screen.press("Escape")
        screen.until(r"\[2\] Profiles · ")
        screen.press("C-p")
        screen.until("[Ss]earch|palette|find")
        screen.type("W")
        _see(screen, "Wprofile")
        screen.press("Escape", "1", "G", "g")


@SIZES
def test_a_replay(tmp_path: Path, size: tuple[int, int]) -> None:
    with _attacked(tmp_path, COMMAND, "runs", "replay", "failed-0001", size=size) as screen:
        _see(screen, "Whost0", "Wlog")
        screen.press("End")
        _see(screen, "failed", "Wcause|Werror")
        for _ in range(7):
            screen.press("z")
            screen.press("z", "Tab")
        screen.press("Home")
        for _ in range(20):
            screen.press("e")
        screen.press("?")
        screen.until("help|keys")
        screen.press("Escape")
        screen.press("/")
        screen.type("Wlog")
        screen.press("Enter", "w", "n", "g", "x", "l", "l")
        screen.until("Wlog")


@pytest.mark.slow
@SIZES
def test_a_live_run(tmp_path: Path, size: tuple[int, int]) -> None:
    """Everything comes over links, from hosts that mean harm: the stall's story, the diagnosis, errors in toasts."""
    evil_host.live_run(tmp_path, "evil-0001")
    with _attacked(tmp_path, COMMAND, size=size) as screen:
        _see(screen, "evil-0001")
        screen.press("/")
        screen.type("evil")
        screen.press("Enter", "Enter")
        _see(screen, "Whost0", "What happened", "Wfunction|Wline|Wframe", "Wlog")
        screen.press("d")
        screen.until("y copy")
        _see(screen, "Wfunction|Wframe|Wrefused")
        _left(screen, "y copy")
        for _ in range(7):
            screen.press("z")
            screen.press("z", "Tab")
        screen.press("C-p")
        screen.type("rank")
        _left(screen, "Rank 0")
        screen.press("q")
        _see(screen, "keeps running. To return")
        screen.press("x")
        screen.answer("y", "Stop evil-0001")
        _see(screen, "Wrefused")


@SIZES
def test_top_of_a_host_that_answers(tmp_path: Path, size: tuple[int, int]) -> None:
    python = evil_host.evil_python(tmp_path, tmp_path / "nothing")
    profile = tmp_path / "evil.yaml"
    profile.write_text(f"disttui: 1\nhosts: [{{host: local, python: '{python}'}}]\njob: {{builtin: bytegpt}}\n")
    with _attacked(tmp_path, COMMAND, "top", str(profile), size=size) as screen:
        _see(screen, "Wprocess", "Wgpu")
        for key in ("Down", "Down", "Enter", "Tab", "s", "Tab", "Enter", "Escape", "?", "Escape"):
            screen.press(key)
        screen.until("Wprocess|Wgpu")


@SIZES
def test_top(tmp_path: Path, size: tuple[int, int]) -> None:
    with _attacked(tmp_path, sys.executable, "-m", "tests.tui.hostile", size=size) as screen:
        _see(screen, "Whost0", "Wlost", "Wprocess")
        for key in ("Down", "Down", "Enter", "Tab", "s", "Tab", "Enter", "Escape", "?", "Escape", "C-p", "Escape"):
            screen.press(key)
        screen.until("Whost0")
