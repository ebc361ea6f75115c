"""Nothing that a rank prints, or a host calls itself, steers the terminal or the app."""

from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest
from textual.app import App, ComposeResult

from disttui.tui.log import LogSources, LogView, Pattern
from tests.files import new_folder
from tests.tui.snap import screen_text, until

HOSTILE = [
    b"\x1b]0;owned\x07title",
    b"\x1b]52;c;b3duZWQ=\x07clipboard",
    b"\x1b]52;c;unterminated",
    b"\x1b[2J\x1b[H\x1b[?1049lscreen",
    b"\x9b2Jc1 raw \x9d0;x\x9c",
    b"\xc2\x9b2J\xc2\x9d52;c;x\xc2\x9c c1 utf8",
    b"\x1bP+q544e\x1b\\dcs \x1b_apc\x1b\\ \x1b^pm\x1b\\",
    "bidi \u202eevil\u202c \u2066x\u2069 \u200bzero \ufeff".encode(),
    b"[red]markup[/] [@click=app.quit]link[/] [/] [$error]x",
    b"\x1b[31mfine colour\x1b[0m \x1b[8mhidden?\x1b[28m \x1b[5mblink",
    b"\x08\x08\x08back \x7f \x00nul \x0e\x0f shift",
    b"overwritten by this\rcarriage \xff\xfe bad utf8 \xed\xa0\x80",
    b"\x1b[99999999999999999999m\x1b[;;;;;;;;m\x1b[38;2;m many",
    b"\t\x1b[1mtab\tand\ttab",
]
SECRETS = ("owned", "unterminated")


class HostileApp(App[None]):
    """A log view over hosts with hostile names."""

    def __init__(self, mirror: Path) -> None:
        super().__init__()
        self.copied: list[str] = []
        self.view = LogView(LogSources(mirror, ["\x1b[2Jnode\u202e1", "[bold]node2[/]"]))

    def compose(self) -> ComposeResult:
        """Nothing else."""
        yield self.view

    def on_log_view_yanked(self, event: LogView.Yanked) -> None:
        """Keep what was copied."""
        self.copied.append(event.text)


def steers(text: str) -> list[str]:
    """The characters that a terminal would obey."""
    return [character for character in text if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")]


@pytest.mark.parametrize("size", [(100, 40), (40, 12), (12, 3)])
async def test_hostile_bytes_never_reach_a_strip(tmp_path: Path, size: tuple[int, int]) -> None:
    for rank in (0, 1):
        folder = new_folder(tmp_path / str(rank) / "attempt-1")
        (folder / f"rank-{rank}.log").write_bytes(b"\n".join(HOSTILE) + b"\n\x1b]52;c;tail")
    (tmp_path / "0" / "attempt-1" / "growth.jsonl").write_bytes(
        b'\xff\n{"t": "x"}\n[]\n{"t": 1, "sizes": {"a": 1}}\n{}\n'
    )
    app = HostileApp(tmp_path)
    async with app.run_test(size=size) as pilot:
        app.view.lines.focus()
        await until(pilot, lambda: app.view.lines.lines.count == 2 * len(HOSTILE))
        for keys in ((), ("w",), ("g",), ("x",), ("w",), ("l", "l"), ("e",), ("v", "G", "k", "v", "g", "y", "Y")):
            await pilot.press(*keys)
            await pilot.pause(0.1)
            for strip in app.screen._compositor.render_strips(app.size):
                assert not steers(strip.text)
                assert all(segment.control is None for segment in strip)
            assert not any(secret in screen_text(app) for secret in SECRETS)
        app.view.find(Pattern("\x1b[31m[red]"))
        app.view.filter(Pattern("[red]\u202e", inverse=True))
        await pilot.pause(0.2)
        assert not steers(screen_text(app).replace("\n", ""))
        await until(pilot, lambda: len(app.copied) == 2)
        assert not any(steers(line.replace("\t", "")) for text in app.copied for line in text.split("\n"))


async def test_a_find_sees_what_the_eye_sees(tmp_path: Path) -> None:
    folder = new_folder(tmp_path / "0" / "attempt-1")
    (folder / "rank-0.log").write_bytes(b"\x1b[31mErr\x1b[0mor: x\nhidden text\rshown\nna\xc3\xafve\n" + b"plain\n" * 9)
    app = HostileApp(tmp_path)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, lambda: app.view.lines.lines.count == 12)
        for text, hits in (("error: x", 1), ("hidden", 0), ("shown", 1), ("NAÏVE", 1), ("pl", 9), ("31m", 0)):
            app.view.find(Pattern(text))
            await until(
                pilot,
                lambda: app.view.lines.progress.work is app.view.reading.work and app.view.lines.progress.searched,
            )
            assert app.view.lines.progress.hits == hits, text
