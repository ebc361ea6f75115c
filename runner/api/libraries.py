"""The libraries of profiles: what is in them, and how they change."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from runner.errors import InputError
from runner.formatting import amount
from runner.library.git import Commit, Repository, url_flaw
from runner.library.headers import Header, headers
from runner.library.keys import KeyChange, key_changes
from runner.library.store import Saved, lock, save, text_of
from runner.library.syncing import Synced, sync
from runner.paths import inside
from runner.profile import parse, read
from runner.profile.edit import as_data, edit
from runner.profile.leaks import refuse
from runner.profile.library import (
    EXAMPLES,
    SUFFIXES,
    Library,
    LibraryEntry,
    clones_folder,
    entry_in,
    find,
    libraries,
    library_named,
    library_of,
    name_flaw,
    named,
    path_in,
    profiles_in,
)
from runner.profile.render import render
from runner.profile.save import save as write
from runner.runs.registry import known_runs
from runner.text import clean
from runner.user_folders import user_folder


class LastRun(NamedTuple):
    """The newest run of a profile that is known here."""

    run: str
    state: str
    started: float


class LibraryProfile(NamedTuple):
    """A profile of a library, as a list shows it."""

    entry: LibraryEntry
    header: Header
    shadowed_by: str = ""
    """The full name of the profile that its bare name means; empty: itself."""
    last: LastRun | None = None

    @property
    def used(self) -> bool:
        """Whether its bare name means it."""
        return not self.shadowed_by and not self.entry.problem


class LibraryContent(NamedTuple):
    """A library and its profiles."""

    library: Library
    profiles: tuple[LibraryProfile, ...]
    problem: str = ""
    """Why nothing can be listed."""


def list_library(
    environ: Mapping[str, str] = os.environ, library: str | None = None, *, runs: bool = True
) -> list[LibraryContent]:
    """The profiles of all libraries in their order, or of one.

    Args:
        runs: Look up the last run of each.

    Raises:
        InputError: No library has this name, or the user's config cannot be used.
    """
    if library is not None:
        library_named(library, environ)
    last = _last_runs(environ) if runs else {}
    first: dict[str, str] = {}
    found = []
    for each in libraries(environ):
        profiles = []
        for entry, header in headers(each, profiles_in(each), environ):
            shadow = first.setdefault(entry.name, entry.full_name) if not entry.problem else ""
            shadow = "" if shadow == entry.full_name else shadow
            profiles.append(LibraryProfile(entry, header, shadow, last.get(str(entry.path))))
        if library in (None, each.name):
            found.append(LibraryContent(each, tuple(profiles), _missing(each)))
    return found


def _missing(library: Library) -> str:
    if library.folder.is_dir() or library.origin != "team":
        return ""
    cure = f": disttui library sync {library.name}" if library.url else ""
    return f"its folder is not there{cure}"


def _last_runs(environ: Mapping[str, str]) -> dict[str, LastRun]:
    """Path of a profile → its newest run."""
    found: dict[str, LastRun] = {}
    for run in known_runs(environ)[0]:
        paths = (
            {str(Path(run.source).absolute()), os.path.realpath(run.source)}
            if run.source and not run.adopted
            else set()
        )
        if paths - found.keys():
            last = LastRun(run.run, str(run.summary().get("state") or "unknown"), run.started)
            found = {**dict.fromkeys(paths, last), **found}
    return found


class LibraryEdit(NamedTuple):
    """A profile of a library as it was when an edit of it began."""

    library: Library
    name: str
    path: Path
    text: str | None
    """None: there is no profile of this name yet."""


class Compared(NamedTuple):
    """Two texts of one profile."""

    titles: tuple[str, str]
    texts: tuple[str, str]
    changes: list[KeyChange] | None
    """Key by key; None where one of the texts cannot be read."""


class Checked(NamedTuple):
    """A file of a library, and what is wrong with it."""

    path: Path
    problems: tuple[str, ...]


def add_library(name: str, where: str, environ: Mapping[str, str] = os.environ) -> Synced | None:
    """Put a library into the user's config, and clone it where it is a git repository; None: it is a folder.

    Args:
        where: The address of a git repository, or a folder.

    Raises:
        InputError: It cannot be used.
        RemoteError: The repository is not reached.
    """
    if flaw := name_flaw(name):
        raise InputError(flaw, "Give a short word, like team.")
    if any(each.name == name for each in libraries(environ)):
        raise InputError(f"there is a library {name} already", f"disttui library remove {name}")
    folder = Path(os.path.expanduser(where)).absolute()  # noqa: PTH111 - Path raises for an unknown ~user
    is_git = ":" in where if not folder.is_dir() else any((folder / each).exists() for each in ("HEAD", ".git"))
    if not is_git:
        if not folder.is_dir():
            raise InputError(f"{clean(where)}: there is no such folder, and this is no address of a git repository")
        _configure(environ, lambda before: _with(before, {"name": name, "folder": str(folder)}))
        return None
    url = str(folder) if folder.is_dir() else where
    if flaw := url_flaw(url):
        raise InputError(f"{clean(url)}: {flaw}", "Give one such as hub:profiles.git or https://hub/profiles.git.")
    done = sync(Library(name, "team", inside(clones_folder(environ), name), url), environ)
    _configure(environ, lambda before: _with(before, {"name": name, "git": url}))
    return done


def remove_library(name: str, environ: Mapping[str, str] = os.environ, *, unsent: bool = False) -> None:
    """Take a library out of the user's config, and remove its clone. A folder that is shared stays.

    Args:
        unsent: Also where something that was saved has not been sent; it is lost then.

    Raises:
        InputError: There is something unsent, or no such library in the config.
    """
    library = library_named(name, environ)
    if library.url and library.folder.is_dir() and not unsent and (left := unsent_in(library, environ)):
        cure = f"disttui library sync {name}; or add --unsent, and lose that."
        raise InputError(f"{name}: not everything was sent: {left}", cure)
    _configure(environ, lambda before: _without(before, name))
    if library.url:
        shutil.rmtree(library.folder, ignore_errors=True)


def sync_libraries(
    environ: Mapping[str, str] = os.environ, name: str | None = None
) -> Iterator[tuple[Library, Synced]]:
    """Bring all libraries that are git repositories together with their remotes, or one.

    Raises:
        RemoteError: One is not reached.
        InputError: One cannot be used.
    """
    chosen = [library_named(name, environ)] if name else [each for each in libraries(environ) if each.url]
    for library in chosen:
        done = sync(library, environ)
        headers(library, profiles_in(library), environ)  # so that the next list need not read them
        yield library, done


def read_for_edit(name: str, environ: Mapping[str, str] = os.environ) -> LibraryEdit:
    """A profile of a library as it is now, by its name; `team/new` may be one that is not there yet.

    Raises:
        InputError: No library has it, or it comes with disttui.
    """
    first, _, rest = name.partition("/")
    library = next((each for each in libraries(environ) if rest and each.name == first), None)
    entry = entry_in(library, rest) if library else named(name, environ)
    if entry is None and library is None:
        library = library_of(find(name, environ), environ)
        if library is None:
            raise InputError(f"{clean(name)}: this file is in no library", "disttui library save puts it into one.")
        relative = Path(os.path.realpath(find(name, environ))).relative_to(os.path.realpath(library.folder))
        entry = entry_in(library, str(relative))
    library = library or library_named(entry.library if entry else "", environ)
    if library.origin == "built in":
        raise InputError(
            f"{clean(name)} comes with disttui",
            f"Copy it first: disttui library save {clean(name)} own/{clean(rest or name)}",
        )
    path = entry.path if entry else path_in(library, f"{rest}.yaml")
    return LibraryEdit(library, entry.name if entry else rest, path, text_of(path) if entry else None)


def save_profile(
    reading: LibraryEdit, text: str | None, environ: Mapping[str, str] = os.environ, *, subject: str = ""
) -> Saved:
    """Save what became of a profile that was read for an edit; in a repository as a commit. None removes it.

    Raises:
        InputError: It is no good profile, holds what looks like a secret, or cannot be written.
    """
    if text is not None:
        parse(text, reading.path)
    return save(
        reading.library,
        reading.path.relative_to(reading.library.folder).as_posix(),
        text,
        reading.text,
        environ,
        subject=subject,
    )


def save_at(path: Path, text: str, before: str | None, environ: Mapping[str, str] = os.environ) -> Saved | None:
    """Save a profile at a path as `save_profile` does; None: it lies in no shared library, and is a file only.

    Args:
        before: The text that the edit began with; None: no file may be there.

    Raises:
        InputError: It holds what looks like a secret, or cannot be written.
    """
    library = library_of(path, environ)
    if library is None or library.origin != "team":
        write(text, path, replace=before is not None)
        return None
    name = Path(os.path.realpath(path)).relative_to(os.path.realpath(library.folder)).as_posix()
    return save(library, name, text, before, environ)


def copy_profile(source: str, to: str, environ: Mapping[str, str] = os.environ, *, replace: bool = False) -> Saved:
    """Save a profile, by its path or name, under a name of a library, such as `team/2node`.

    Raises:
        InputError: It is no good profile, or there is another of this name and `replace` is false.
    """
    path = find(source, environ)
    text = read(path).text
    reading = read_for_edit(to, environ)
    if reading.text is not None and not replace and reading.text != text:
        raise InputError(f"{clean(to)}: there is another profile of this name", "Add --replace, or give another name.")
    return save_profile(reading, text, environ)


def history_of(name: str, environ: Mapping[str, str] = os.environ) -> list[Commit]:
    """The commits that have changed a profile, the newest first; of a whole library where `name` is one's.

    Raises:
        InputError: Its library is no git repository.
    """
    if any(each.name == name for each in libraries(environ)):
        return _repository(library_named(name, environ), environ).history(None)
    reading = read_for_edit(name, environ)
    return _repository(reading.library, environ).history(_file(reading))


def text_at(name: str, commit: str, environ: Mapping[str, str] = os.environ) -> str:
    """The text of a profile as a commit has it.

    Raises:
        InputError: There is no such commit, or the profile is not in it.
    """
    reading = read_for_edit(name, environ)
    repository = _repository(reading.library, environ)
    known = repository.commit_of(commit) if re.fullmatch("[0-9a-f]{4,64}", commit) else None
    if known is None:
        raise InputError(
            f"{clean(commit)!r} is no commit of {reading.library.name}", f"disttui library history {clean(name)}"
        )
    blob = repository.files(known).get(_file(reading))
    content = repository.read([blob.id])[blob.id] if blob and blob.is_file else None
    if content is None:
        raise InputError(f"{clean(name)} is not in {commit}", f"disttui library history {clean(name)}")
    return content.decode("utf-8", "replace")


def restore_profile(name: str, commit: str, environ: Mapping[str, str] = os.environ) -> Saved:
    """Save a profile as a commit has it, over what it is now.

    Raises:
        InputError: There is no such commit, or the profile is not in it.
    """
    reading = read_for_edit(name, environ)
    text = text_at(name, commit, environ)
    return save(
        reading.library,
        _file(reading),
        text,
        reading.text,
        environ,
        subject=f"{clean(reading.name)}: as of {commit[:10]}",
    )


def compare(name: str, commit: str | None = None, environ: Mapping[str, str] = os.environ) -> list[Compared]:
    """A profile beside what it was in a commit; without one, beside the other versions that were kept of it.

    Raises:
        InputError: There is no such profile or commit.
    """
    reading = read_for_edit(name, environ)
    if reading.text is None:
        raise InputError(f"{clean(name)}: no such profile", "disttui library list")
    full = f"{reading.library.name}/{reading.name}"
    if commit is not None:
        others = [(f"{full} of {commit[:10]}", text_at(name, commit, environ))]
    else:
        beside = [each for each in profiles_in(reading.library) if each.name.startswith(f"{reading.name}@")]
        others = [(each.full_name, text_of(each.path) or "") for each in beside]
        if reading.library.url and (last := _repository(reading.library, environ).commit_of("HEAD")):
            repository = _repository(reading.library, environ)
            blob = repository.files(last).get(_file(reading))
            content = repository.read([blob.id])[blob.id] if blob and blob.is_file else None
            if content is not None and content.decode("utf-8", "replace") != reading.text:
                others.insert(0, (f"{full} as saved", content.decode("utf-8", "replace")))
    return [
        Compared((clean(title), clean(full)) if commit else (clean(full), clean(title)),
                 (text, reading.text) if commit else (reading.text, text),
                 key_changes(text, reading.text) if commit else key_changes(reading.text, text))
        for title, text in others
    ]  # fmt: skip


def check_folder(library: Library) -> list[Checked]:
    """Every file of a library with what is wrong with it: profiles, and values that look like secrets."""
    found = []
    for entry in profiles_in(library):
        problems: list[str] = []
        for check in (_parses, _holds_no_secret):
            try:
                check(entry)
            except InputError as error:
                problems += [line for line in str(error).splitlines() if line not in problems]
        found.append(Checked(entry.path, tuple(map(clean, problems))))
    return found


def _parses(entry: LibraryEntry) -> None:
    if entry.problem:
        raise InputError(entry.problem, place=clean(str(entry.path)))
    parse(read(entry.path).text, entry.path)


def _holds_no_secret(entry: LibraryEntry) -> None:
    if not entry.problem:
        refuse(read(entry.path).text, str(entry.path))


def check_libraries(
    names: Sequence[str] = (), environ: Mapping[str, str] = os.environ
) -> Iterator[tuple[str, list[Checked]]]:
    """Check whole libraries by their names, or folders; without any, all libraries but the examples.

    Raises:
        InputError: There is no such library and no such folder.
    """
    known = {each.name: each for each in libraries(environ)}
    for name in names or [name for name in known if name != EXAMPLES]:
        folder = Path(name)
        library = known.get(name) or Library(clean(name), "team", folder)
        if name not in known and not folder.is_dir():
            raise InputError(f"{clean(name)}: no library has this name, and there is no such folder")
        yield clean(name), check_folder(library)


def library_name_of(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """The library that a name of a profile leads to. Raises InputError."""
    return read_for_edit(name, environ).library.name


def unsent_in(library: Library, environ: Mapping[str, str]) -> str:
    """What a clone has that was not sent, in words; empty: nothing."""
    repository = _repository(library, environ)
    head, branch = repository.commit_of("HEAD"), repository.branch()
    upstream = repository.commit_of(f"refs/remotes/origin/{branch}")
    count = len(repository.own_commits(head, *([upstream] if upstream else []))) if head else 0
    edited = [path for path in repository.edited() if path.endswith(SUFFIXES)]
    words = [amount(count, "saved edit")] if count else []
    return " and ".join([*words, *([amount(len(edited), "edit") + " by hand"] if edited else [])])


def _repository(library: Library, environ: Mapping[str, str]) -> Repository:
    if not library.url:
        raise InputError(
            f"the library {library.name} is a folder: it keeps no history", "Use a git repository for one."
        )
    if not library.folder.is_dir():
        raise InputError(
            "the folder of this library is not there", f"disttui library sync {library.name}", place=library.name
        )
    return Repository(library.folder, environ)


def _file(reading: LibraryEdit) -> str:
    return reading.path.relative_to(reading.library.folder).as_posix()


def _configure(environ: Mapping[str, str], change: Callable[[list[object]], list[object]]) -> None:
    """Change the list of libraries in the user's config; its comments stay."""
    path = user_folder("config", environ) / "config.yaml"
    with lock("config", environ):
        text = text_of(path) or ""
        data = as_data(text) if text.strip() else {}
        if data is None and not re.sub(r"(?m)^\s*#.*$", "", text).strip():
            data = {}
        if data is None:
            raise InputError("this is no mapping", "Correct it first.", place=clean(str(path)))
        given = data.get("libraries") or []
        after = {**data, "libraries": change(list(given) if isinstance(given, list) else [])}
        if not data:
            new = text + "\n" * (text[-1:] not in ("", "\n")) + render(after)
        else:
            new = edit(text, after)
        write(new, path, replace=True)


def _with(before: list[object], added: dict[str, str]) -> list[object]:
    at = before.index(EXAMPLES) if EXAMPLES in before else len(before)
    return [*before[:at], added, *before[at:]]


def _without(before: list[object], name: str) -> list[object]:
    after = [each for each in before if not (isinstance(each, dict) and each.get("name") == name)]
    if after == before:
        raise InputError(
            f"the library {name} is not in the config", "DISTTUI_PROFILES names it, or it is one of disttui's own."
        )
    return after
