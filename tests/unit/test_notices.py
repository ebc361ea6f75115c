"""What disttui sends to the terminal about a run: nothing unless the config asks for it, and only clean text."""

from __future__ import annotations

import pytest

from disttui.runner.user.config import Settings
from disttui.runner.user.terminal import Notices

XTERM = {"TERM": "xterm-256color"}


def _told(settings: Settings, environ: dict[str, str], *words: str, run: str = "2node-7f3a") -> list[str]:
    sent: list[str] = []
    notices = Notices(sent.append, settings, environ)
    for word in words:
        notices.tell(run, word, over=word in ("finished", "failed"))
    notices.close()
    return [one for one in sent if one]


def test_nothing_is_sent_unless_the_config_wants_it() -> None:
    assert _told(Settings(), XTERM, "running", "finished") == []


def test_the_title_follows_the_run_and_is_given_back() -> None:
    seen = _told(Settings(title=True), XTERM, "joining", "running", "running", "finished")
    assert seen == [
        "\x1b[22;0t\x1b]2;2node-7f3a joining\x07", "\x1b]2;2node-7f3a running\x07", "\x1b]2;2node-7f3a finished\x07",
        "\x1b[23;0t",
    ]  # fmt: skip


def test_end_of_a_live_run_rings_and_notifies_once() -> None:
    wanted = Settings(bell=True, notify="osc9")
    assert _told(wanted, XTERM, "running", "failed", "failed") == ["\a\x1b]9;2node-7f3a failed\x07"]
    assert _told(wanted, XTERM, "finished", "finished") == []


@pytest.mark.parametrize(
    ("environ", "sequence"),
    [
        (XTERM, "\x1b]777;notify;disttui;2node-7f3a finished\x07"),
        ({**XTERM, "TMUX": "x"}, "\x1bPtmux;\x1b\x1b]777;notify;disttui;2node-7f3a finished\x07\x1b\\"),
    ],
)
def test_a_notification_reaches_the_terminal_outside_tmux(environ: dict[str, str], sequence: str) -> None:
    assert _told(Settings(notify="osc777"), environ, "running", "finished") == [sequence]


def test_terminal_without_notifications_gets_only_the_bell() -> None:
    assert _told(Settings(title=True, bell=True, notify="osc9"), {"TERM": "linux"}, "running", "failed") == ["\a"]


def test_a_name_cannot_end_the_sequence_or_begin_another() -> None:
    seen = _told(Settings(title=True, notify="osc9"), XTERM, "running", "failed", run="4;3\x07\x1b]0;own\x9ced\x1b\\")
    for sequence in seen[:-1]:
        body = sequence.removeprefix("\x1b[22;0t").removeprefix("\x1b]").removesuffix("\x07")
        assert not set(body) & {"\x1b", "\x07", "\x9c"} and body.count(";") == 1
