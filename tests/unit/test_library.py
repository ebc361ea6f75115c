"""Where a profile's name leads: paths first, then own, team and built in."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.errors import InputError
from runner.profile.library import LibraryEntry, find, list_profiles


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Empty libraries, and an empty current folder."""
    found = {name: tmp_path / name for name in ("config/disttui/profiles", "team1", "team2", "here")}
    for folder in found.values():
        folder.mkdir(parents=True)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("DISTTUI_PROFILES", f"{tmp_path}/team1::{tmp_path}/gone:{tmp_path}/team2:~nobody-here/x")
    monkeypatch.chdir(tmp_path / "here")
    return {"own": found["config/disttui/profiles"], **found}


def write(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_text("disttui: 1\n")
    return path


def test_own_wins_over_team_over_built_in(folders: dict[str, Path]) -> None:
    assert find("2node").parent.name == "profiles"
    team = write(folders["team2"], "2node.yml")
    assert find("2node") == team
    first = write(folders["team1"], "2node.yaml")
    assert find("2node") == first
    own = write(folders["own"], "2node.yaml")
    assert find("2node") == find("2node.yaml") == own
    (folders["here"] / "2node").mkdir()
    assert find("2node") == own, "a folder of that name is no profile"
    here = write(folders["here"], "2node.yaml")
    assert find("2node.yaml") == Path(here.name)
    assert find("2node") == own
    assert find(str(team)) == team


def test_the_list_has_every_name_once(folders: dict[str, Path]) -> None:
    own, team = write(folders["own"], "local.yaml"), write(folders["team1"], "ours.yaml")
    write(folders["team2"], "ours.yaml")
    write(folders["own"], "notes.txt")
    entries = {entry.name: entry for entry in list_profiles()}
    assert list(entries) == ["2node", "2node-fsdp", "2x8gpu", "local", "ours"]
    assert entries["local"] == LibraryEntry("local", own, "own")
    assert entries["ours"] == LibraryEntry("ours", team, "team")
    assert entries["2node"].origin == "built in"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("2nod", "2nod: no profile has this name and no file this path\n  → Did you mean 2node?"),
        ("mien.yaml", "mien.yaml: no profile has this name and no file this path\n  → Did you mean mine.yaml?"),
        ("zzz", "zzz: no profile has this name and no file this path\n  → There are: 2node, 2node-fsdp, 2x8gpu, local"),
        ("./mien.yaml", "./mien.yaml: there is no such file\n  → Did you mean mine.yaml?"),
        ("gone/x.yaml", "gone/x.yaml: there is no such file"),
        ("\x1b[2J\udc80", "\\x1b[2J\\udc80: no profile has this name"),
        ("a\0b", "a\\x00b: no profile has this name"),
        ("zzz/", "zzz/: there is no such file"),
        ("", "'': no profile has this name"),
        ("-", "-: a profile is not read from standard input\n  → Save it in a file."),
        ("folder.yaml", "folder.yaml: this is a folder\n  → Name a profile in it."),
        ("..", "..: this is a folder"),
    ],
)
def test_what_is_not_there(folders: dict[str, Path], name: str, message: str) -> None:
    write(folders["here"], "mine.yaml")
    (folders["here"] / "folder.yaml").mkdir()
    with pytest.raises(InputError) as caught:
        find(name)
    assert str(caught.value).startswith(message)
    assert caught.value.exit_code == 2
