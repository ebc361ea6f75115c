"""Profiles: by name or path, and whether they are trusted."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from runner.api.questions import Doubt, Questions, Unattended
from runner.errors import InputError
from runner.planning import bytegpt
from runner.profile import Profile, parse, read
from runner.profile.library import find
from runner.profile.trust import doubt
from runner.text import clean


class ReadProfile(NamedTuple):
    """A profile as its file is now."""

    path: Path
    profile: Profile
    text: str
    doubt: Doubt | None
    """Why another user may have written it; None where it is the user's own, root's or the team's."""


class DistrustError(InputError):
    """A profile is not used: another user may have written it, and the user has not agreed.

    Args:
        asked: Whether the user was asked, and refused.
    """

    def __init__(self, doubt: Doubt, cure: str, *, asked: bool) -> None:
        super().__init__(f"{doubt}: it is not used{'' if asked else ' without a yes'}", cure)
        self.doubt = doubt
        self.asked = asked


def read_profile(name: str, overrides: tuple[str, ...] = (), *, check_job: bool = True) -> ReadProfile:
    """A profile by its name or path, for viewing only.

    Args:
        overrides: `KEY=VALUE`, as of `--set`.
        check_job: Refuse arguments that the built-in job does not accept.

    Raises:
        InputError: It cannot be used.
    """
    path = find(name)
    source = read(path)
    profile = parse(source.text, str(path), overrides)
    if check_job and profile.job.builtin and (problem := bytegpt.problem(profile.job.args)):
        raise InputError(f"{clean(str(path))}: job.args: {problem}")
    why = doubt(path, source.status)
    return ReadProfile(path, profile, source.text, Doubt(profile, why, path) if why else None)


def load_profile(
    name: str, overrides: tuple[str, ...] = (), *, questions: Questions | None = None, trusted: bool = False
) -> Profile:
    """A profile by its name or path, to be run; asks the user where another user may have written it.

    Args:
        trusted: Use it without asking.

    Raises:
        DistrustError: The user has not agreed.
        InputError: It cannot be used.
    """
    found = read_profile(name, overrides)
    if found.doubt and not trusted:
        cure = f"Read it (disttui validate {clean(str(found.path))}); then copy it to a folder of yours."
        refuse_doubt(found.doubt, questions or Unattended(), cure)
    return found.profile


def refuse_doubt(doubt: Doubt, questions: Questions, cure: str) -> None:
    """Ask about a profile. Raises DistrustError unless the user agrees."""
    answer = questions.trust_profile(doubt)
    if not answer:
        raise DistrustError(doubt, cure, asked=answer is not None)


def doubt_of_run(run: str, profile: Profile) -> Doubt:
    """Why the profile of a run that was found on a host needs the user's agreement."""
    return Doubt(profile, "its profile is the word of the host that it was found on", run=run)
