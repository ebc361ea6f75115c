"""A profile of one's own that extends one of a team library is agreed to as that is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from disttui.runner.api import library, sweeping
from disttui.runner.api.library import DistrustError, load_profile
from disttui.runner.api.questions import Doubt
from disttui.runner.api.viewer import Viewer
from disttui.runner.errors import InputError
from disttui.runner.profile.load import parse
from disttui.runner.profile.schema import Profile
from tests.files import new_file
from tests.unit.test_trust import Answers, home

__all__ = ["home"]


@pytest.mark.usefixtures("home")
def test_what_a_profile_extends_is_the_teams(tmp_path: Path) -> None:
    own = new_file(tmp_path / "mine.yaml", "disttui: 1\nextends: team/train\njob: {env: {MODE: slow}}\n")
    answers = Answers(None)
    with pytest.raises(DistrustError):
        load_profile(str(own), questions=answers)
    assert "+ job.env.MODE: slow" in answers.asked[0].changes
    load_profile(str(own), questions=Answers(True))
    load_profile(str(own), questions=Answers(None))
    base = tmp_path / "team" / "train.yaml"
    base.write_text(base.read_text().replace('["true"]', "[evil]"))
    with pytest.raises(DistrustError):
        load_profile(str(own), questions=answers)
    assert answers.asked[1].changes == ("- job.command: on local: true", "+ job.command: on local: evil")


@pytest.mark.usefixtures("home")
def test_a_base_is_judged_as_it_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = new_file(tmp_path / "base.yaml", "disttui: 1\nhosts: [local]\njob: {command: [evil]}\n", 0o666)
    own = new_file(tmp_path / "mine.yaml", "disttui: 1\nextends: base\n")

    def then_gone(text: str, path: Path, overrides: tuple[str, ...], **how: Any) -> Profile:
        found = parse(text, path, overrides, **how)
        base.unlink()
        return found

    monkeypatch.setattr(library, "parse", then_gone)
    answers = Answers(None)
    with pytest.raises(DistrustError):
        load_profile(str(own), questions=answers)
    assert "every user of this machine can write it" in str(answers.asked[0])


class Quick(Answers):
    """Somebody changes what is asked about while it is read."""

    def __init__(self, file: Path) -> None:
        super().__init__(True)
        self.file = file

    def trust_profile(self, doubt: Doubt) -> bool | None:
        """Answer."""
        self.file.write_text(self.file.read_text().replace('["true"]', "[evil]"))
        return super().trust_profile(doubt)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("extends", [False, True])
def test_all_runs_of_a_sweep_are_what_the_yes_was_for(
    extends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "team" / "train.yaml"
    if extends:
        (tmp_path / "mine.yaml").write_text("disttui: 1\nextends: team/train\n")
    commands = []

    def start(viewer: Viewer, profile: Profile, **how: object) -> None:
        commands.append(profile.job.command)
        raise InputError("enough")

    monkeypatch.setattr(sweeping, "start", start)
    viewer = Viewer(questions=Quick(base))
    with pytest.raises(InputError, match="enough"):
        sweeping.start_sweep(viewer, str(tmp_path / "mine.yaml") if extends else "team/train", ["launch.restarts=1,2"])
    assert commands == [("true",)] and "evil" in base.read_text()


@pytest.mark.usefixtures("home")
def test_consent_beside_an_override_covers_what_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tmp_path / "team" / "train.yaml"
    own = new_file(tmp_path / "mine.yaml", "disttui: 1\nextends: team/train\n")
    good = base.read_text()
    base.write_text(good.replace('["true"]', "[evil]"))

    def then_harmless(text: str, path: Path, overrides: tuple[str, ...] = (), **how: Any) -> Profile:
        found = parse(text, path, overrides, **how)
        base.write_text(good)
        return found

    monkeypatch.setattr(library, "parse", then_harmless)
    answers = Answers(None)
    with pytest.raises(DistrustError):
        load_profile(str(own), ("launch.restarts=1",), questions=answers)
    assert "+ job.command: on local: evil" in answers.asked[0].changes


@pytest.mark.root
@pytest.mark.usefixtures("home")
def test_file_of_another_user_cannot_extend_own_profiles(tmp_path: Path) -> None:
    """Own values must not go to the hosts that the other one names."""
    private = tmp_path / "disttui" / "profiles" / "private.yaml"
    private.parent.mkdir()
    private.write_text("disttui: 1\nhosts: [local]\nenv: {A: of-mine}\njob: {command: [x]}\n")
    theirs = new_file(tmp_path / "mallory" / "p.yaml", "disttui: 1\nextends: own/private\nhosts=: [evil]\n")
    assert load_profile(str(theirs)).env == {"A": "of-mine"}
    theirs.chmod(0o666)
    for _ in range(2):
        for name in ("own/private", "private"):
            theirs.write_text(f"disttui: 1\nextends: {name}\nhosts=: [evil]\n")
            hint = r"another user may have written this file \(.*\): it can only extend profiles beside it, or examples"
            with pytest.raises(InputError, match=f"profile '{name}' not found, {hint}"):
                load_profile(str(theirs), trusted=True)
        theirs.write_text("disttui: 1\nhosts: {inventory: lab}\njob: {command: [x]}\n")
        with pytest.raises(
            InputError, match=r"inventory 'lab' not found, another user may .*: it can only use inventories"
        ):
            load_profile(str(theirs), trusted=True)
        theirs.chmod(0o644)
        os.chown(theirs, 12345, 12345)
