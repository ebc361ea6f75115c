"""Reads profiles by name or path, and asks whether to trust them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from disttui.runner.api.questions import Doubt, Questions, Unattended
from disttui.runner.errors import InputError
from disttui.runner.formatting import when
from disttui.runner.hosts.discovery import spread, typed_hosts, words_of
from disttui.runner.library.git import Repository, Signature, is_ours_alone
from disttui.runner.paths import to_send
from disttui.runner.planning import bytegpt
from disttui.runner.profile import consent
from disttui.runner.profile.effects import bounded, difference
from disttui.runner.profile.fields import slug
from disttui.runner.profile.library import Library, find
from disttui.runner.profile.load import parse, with_overrides
from disttui.runner.profile.nodes import read
from disttui.runner.profile.problems import ProfileErrors, printable
from disttui.runner.profile.schema import Profile
from disttui.runner.profile.trust import doubt
from disttui.runner.text import clean, quote


class ReadProfile(NamedTuple):
    """A profile as read from its file."""

    path: Path
    profile: Profile
    text: str
    doubt: Doubt | None
    """Why the user must agree to it: another user may have written it, or it comes from a team library and is not what
    this user has agreed to. None: no question."""
    as_shared: Profile
    """The profile without the user's overrides."""

    def agree(self, environ: Mapping[str, str] = os.environ) -> None:
        """Store the user's consent to a profile of a team library, until it changes."""
        if _shared_files(self.path, self.as_shared, environ):
            consent.agree(self.path, self.as_shared, environ)


class DistrustError(InputError):
    """A profile is not used: another user may have written it, and the user has not agreed.

    Args:
        asked: Whether the user was asked, and refused.
    """

    code = "trust"

    def __init__(self, doubt: Doubt, cure: str, *, asked: bool) -> None:
        super().__init__(f"{doubt}; not used{'' if asked else ' until you confirm'}", cure)
        self.doubt = doubt
        self.asked = asked


def read_profile(
    name: str,
    overrides: tuple[str, ...] = (),
    *,
    check_job: bool = True,
    environ: Mapping[str, str] = os.environ,
) -> ReadProfile:
    """A profile by name or path, for viewing only.

    Args:
        overrides: `KEY=VALUE`, as of `--set`.
        check_job: Refuse arguments that the built-in job does not accept.
        environ: Names the user's folders.

    Raises:
        InputError: It cannot be used.
    """
    path = find(name, environ)
    if path.suffix == ".py":
        cure = f"Run it with disttui run {quote(printable(str(path)))} --hosts HOST,…"
        raise InputError("a Python script, not a profile", cure, place=printable(str(path)))
    source = read(path)
    profile = parse(source.text, path, overrides, status=source.status)
    if check_job:
        _check_job(profile, path)
    shared = _as_shared(profile) if overrides else profile
    files = [(Path(each.path), each.status) for each in profile.read_from]
    why = next(filter(None, (doubt(*each) for each in ((path, source.status), *files))), "")
    found = _of_library(path, source.text, shared or profile, environ)
    if why:
        found = replace(found, why=f"{why}; {found.why}") if found else Doubt(profile, why, path)
    return ReadProfile(path, profile, source.text, found, shared or profile)


def named_hosts(text: str) -> list[str]:
    """The hosts of a text such as `box1,alice@box2` or `node[1-4]`. Raises InputError."""
    found = typed_hosts(text)
    if found.problems:
        raise InputError(f"--hosts: {found.problems[0].removeprefix(f'{found.source}: ')}")
    if not found.candidates:
        raise InputError("--hosts: no host given", "Give names as for ssh, such as box1,alice@box2, or local.")
    hosts = [one.host for one in found.candidates]
    named = [name for word in words_of(text) for name in spread(word)]
    if again := next((host for host in hosts if named.count(host) > 1), None):
        cure = "Name each host once: --set num_processes=2 gives each two processes."
        raise InputError(f"--hosts: {clean(again)} is named twice", cure)
    return hosts


def script_job(script: Path, args: Sequence[str] = ()) -> dict[str, object]:
    """The section `job` of a profile for a local script, which each run sends to every host."""
    sent, name = to_send(script)
    job: dict[str, object] = {"script": name, "sync": str(sent)}
    return {**job, "args": list(args)} if args else job


def script_profile(
    script: Path, hosts: Sequence[str], args: Sequence[str] = (), overrides: tuple[str, ...] = ()
) -> Profile:
    """A profile for a local script, which each run sends with its folder.

    Args:
        hosts: As a profile names them.
        args: Arguments of the script.
        overrides: `KEY=VALUE`, as of `--set`.

    Raises:
        ProfileErrors: A host or an override cannot be used.
    """
    written = {"disttui": 1, "name": slug(script.stem), "hosts": list(hosts), "job": script_job(script, args)}
    return parse(json.dumps(written), script, overrides)


def _check_job(profile: Profile, path: Path) -> None:
    if profile.job.builtin and (problem := bytegpt.problem(profile.job.args)):
        raise InputError(f"{clean(str(path))}: job.args: {problem}")


def _as_shared(profile: Profile) -> Profile | None:
    try:
        return with_overrides(profile, ())
    except ProfileErrors:
        return None  # it needs an override


def _of_library(path: Path, text: str, profile: Profile, environ: Mapping[str, str]) -> Doubt | None:
    """What the user must confirm about a team library's profile; None if unchanged. Raises InputError if unsigned."""
    files = _shared_files(path, profile, environ)
    if not files:
        return None
    texts = {path: text} | {Path(each.path): each.text for each in profile.read_from}
    signatures = [_signature(library, file, texts[file], environ) for file, library in files]
    for (file, library), one in zip(files, signatures, strict=True):
        if library.signed and not (one and one.is_good):
            raise _unsigned(library, file, one)
    if consent.is_agreed(path, profile, environ):
        return None
    before = consent.last_agreed(path, environ)
    libraries = dict.fromkeys(f"the library {library.name} ({library.url or library.folder})" for _, library in files)
    named = " and ".join(libraries)
    why = (
        f"it is from {named}, and changed since you confirmed it ({when(before.when)})"
        if before
        else f"it is new to you, from {named}"
    )
    for (file, _), one in zip(files, signatures, strict=True):
        if one:
            whose = "its last commit" if file == path else f"the last commit of {file.name}"
            why += f"; {whose}, {one.commit[:10]} of {one.author}, is {one}"
    changes = difference(before.profile if before else None, profile)
    return Doubt(profile, why, path, changes=tuple(bounded(changes)))


def _shared_files(path: Path, profile: Profile, environ: Mapping[str, str]) -> list[tuple[Path, Library]]:
    """The files of a profile that are in team libraries, each with its library."""
    files = (path, *(Path(each.path) for each in profile.read_from))
    found = [(file, consent.source_of(file, environ)) for file in files]
    return [(file, library) for file, library in found if library]


def check_shared(path: Path, key: str, environ: Mapping[str, str]) -> None:
    """Check a local path that a profile sends: what of a team library may be sent without asking.

    Args:
        key: The profile's key that names it.

    Raises:
        InputError: It leads out of its library, or is unsigned although the library demands it.
    """
    library = consent.source_of(path, environ)
    if library is None:
        return
    real = path.resolve()
    if not real.is_relative_to(library.folder.resolve()):
        cure = f"If you want to send what it leads to: --set {key}={quote(str(real))}"
        raise InputError(f"a link leads out of the library {library.name}", cure, place=printable(str(path)))
    if library.signed:
        found = _signature(library, path, None, environ)
        if not (found and found.is_good):
            raise _unsigned(library, path, found)


def _signature(library: Library, path: Path, text: str | None, environ: Mapping[str, str]) -> Signature | None:
    """Signature of the newest commit of a file; None if unknown, or if `text` differs from that version.

    Without `text`, of a file or folder as it is.
    """
    if not _has_history(library):
        return None
    inner = os.path.relpath(os.path.realpath(path), os.path.realpath(library.folder))
    return Repository(library.folder, environ).signature(inner, text if text is None else text.encode())


def _has_history(library: Library) -> bool:
    """Whether git may be run in a library: in disttui's clones, and in folders that only this user can write."""
    return (library.folder / ".git").exists() if library.url else is_ours_alone(library.folder)


def _unsigned(library: Library, path: Path, signature: Signature | None) -> InputError:
    cure = f"Have its commit signed (git commit -S), or remove `signed` of {library.name} from your config."
    what = f"the library {library.name} accepts only signed commits"
    if not _has_history(library):
        cure = f"Add it by git: {{name: {library.name}, git: ADDRESS, signed: true}}."
        return InputError(f"{what}, but is not a clone that only you can write", cure, place=clean(str(path)))
    if signature is None:
        return InputError(f"{what}, but no commit has this content", cure, place=clean(str(path)))
    last = f"but the last commit here, {signature.commit[:10]} of {signature.author}, is {signature}"
    return InputError(f"{what}, {last}", cure, place=clean(str(path)))


def load_profile(
    name: str, overrides: tuple[str, ...] = (), *, questions: Questions | None = None, trusted: bool = False
) -> Profile:
    """A profile by name or path, to be run. Asks the user if another user may have written it.

    Args:
        trusted: Use it without asking.

    Raises:
        DistrustError: The user has not agreed.
        InputError: It cannot be used.
    """
    found = read_profile(name, overrides)
    if found.doubt and not trusted:
        then = "confirm at a terminal" if found.doubt.changes else "copy it to a folder of your own"
        cure = f"Read it (disttui profile validate {clean(str(found.path))}), then {then}."
        refuse_doubt(found.doubt, questions or Unattended(), cure)
    if found.doubt:
        found.agree()
    return found.profile


def load_again(profile: Profile, path: Path, overrides: tuple[str, ...]) -> Profile:
    """A profile of `load_profile` with other overrides; its files may have changed since the consent.

    Raises:
        InputError: It cannot be used.
    """
    found = with_overrides(profile, overrides)
    _check_job(found, path)
    return found


def refuse_doubt(doubt: Doubt, questions: Questions, cure: str) -> None:
    """Ask about a profile. Raises DistrustError unless the user agrees."""
    answer = questions.trust_profile(doubt)
    if not answer:
        raise DistrustError(doubt, cure, asked=answer is not None)
