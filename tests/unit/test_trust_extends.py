"""A profile of one's own that extends one of a team library is agreed to as that is."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.api import library
from runner.api.library import DistrustError, load_profile
from runner.profile import Profile, parse
from tests.unit.test_trust import Answers, home

__all__ = ["home"]


@pytest.mark.usefixtures("home")
def test_what_a_profile_extends_is_the_teams(tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text("disttui: 1\nextends: team/train\njob: {env: {MODE: slow}}\n")
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
    base = tmp_path / "base.yaml"
    base.write_text("disttui: 1\nhosts: [local]\njob: {command: [evil]}\n")
    base.chmod(0o666)
    own = tmp_path / "mine.yaml"
    own.write_text("disttui: 1\nextends: base\n")

    def then_gone(*given: object) -> Profile:
        found = parse(*given)  # type: ignore[arg-type]
        base.unlink()
        return found

    monkeypatch.setattr(library, "parse", then_gone)
    answers = Answers(None)
    with pytest.raises(DistrustError):
        load_profile(str(own), questions=answers)
    assert "everybody on this machine can write it" in str(answers.asked[0])
