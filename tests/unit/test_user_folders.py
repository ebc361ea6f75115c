"""Where the user's own files live, on Linux and on macOS."""

from __future__ import annotations

from pathlib import Path

import pytest
from platformdirs.macos import MacOS
from platformdirs.unix import Unix

from disttui.runner.user.folders import Kind, user_folder

LINUX: dict[Kind, str] = {
    "config": ".config/disttui",
    "data": ".local/share/disttui",
    "state": ".local/state/disttui",
    "cache": ".cache/disttui",
}
MAC: dict[Kind, str] = {
    "config": "Library/Application Support/disttui",
    "data": "Library/Application Support/disttui",
    "state": "Library/Application Support/disttui",
    "cache": "Library/Caches/disttui",
}


@pytest.mark.parametrize(("system", "places"), [(Unix, LINUX), (MacOS, MAC)], ids=["linux", "macos"])
@pytest.mark.parametrize("kind", LINUX)
def test_files_live_where_the_system_keeps_them(
    system: type[Unix] | type[MacOS],
    places: dict[Kind, str],
    kind: Kind,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = f"XDG_{kind.upper()}_HOME"
    monkeypatch.setattr("disttui.runner.user.folders.PlatformDirs", system)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(name, raising=False)
    default = tmp_path / places[kind]
    assert user_folder(kind, {}) == user_folder(kind, {name: ""}) == user_folder(kind, {name: "relative"}) == default
    assert user_folder(kind, {name: "/elsewhere"}) == Path("/elsewhere/disttui")
    assert not any(tmp_path.iterdir())
