"""The user's pager: which words open it, and that a host's escape sequences stay text in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from disttui.runner.errors import InputError
from disttui.tui.terminal import pager_command


@pytest.mark.parametrize(
    ("pager", "words"),
    [("less", ["less", "+7", "x.log"]), ("less -S", ["less", "-S", "+7", "x.log"]), ("cat -n", ["cat", "-n", "x.log"])],
)
def test_the_pager_is_opened_at_the_line(pager: str, words: list[str]) -> None:
    assert pager_command({"PAGER": pager}, Path("x.log"), 7) == words


def test_the_default_pager_is_less_without_a_fallback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("less", "more"):
        (tmp_path / name).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert pager_command({}, Path("x.log"), 1) == ["less", "+1", "x.log"]
    (tmp_path / "less").unlink()
    with pytest.raises(InputError, match="the pager less is not installed"):
        pager_command({}, Path("x.log"), 1)


def test_a_pager_that_is_not_there() -> None:
    with pytest.raises(InputError, match="the pager lessissmore is not installed"):
        pager_command({"PAGER": "lessissmore"}, Path("x.log"), 1)
