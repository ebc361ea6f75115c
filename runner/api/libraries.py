"""Lists, adds, syncs and checks libraries of profiles; writes each user's personal.yaml."""

from __future__ import annotations

import json
import os
import pwd
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple

from disttui.runner.api.library_edits import repository_of
from disttui.runner.errors import DisttuiError, InputError
from disttui.runner.formatting import amount
from disttui.runner.library.git import url_flaw
from disttui.runner.library.store import check, lock
from disttui.runner.library.syncing import Synced, sync
from disttui.runner.paths import expanded, here, inside, typed
from disttui.runner.profile.composition import PERSONAL, Trees
from disttui.runner.profile.leaks import refuse
from disttui.runner.profile.library import (
    EXAMPLES,
    SUFFIXES,
    Library,
    LibraryEntry,
    clones_folder,
    in_one_library,
    inventories_in,
    libraries,
    library_named,
    name_flaw,
    profiles_in,
)
from disttui.runner.profile.load import parse, parse_inventory, parse_quickly
from disttui.runner.profile.nodes import read
from disttui.runner.profile.problems import ProfileErrors
from disttui.runner.profile.save import as_data, change_config, edit, save
from disttui.runner.profile.schema import Profile
from disttui.runner.profile.sections import Host
from disttui.runner.runs.registry import known_runs
from disttui.runner.text import clean
from disttui.runner.transport.ssh_config import resolve
from disttui.runner.user.folders import user_folder


class Header(NamedTuple):
    """A profile in a list, as safe text."""

    description: str = ""
    hosts: tuple[str, ...] = ()
    processes: tuple[int | None, ...] = ()
    """Processes per host; None: the probe decides."""
    problem: str = ""
    """The first error in it, with its place."""


class _Kept(NamedTuple):
    files: list[tuple[str, int, int]]
    """Path, modification time in ns and size of every file that the header was made of."""
    header: Header
    shelf: int | None = None
    """State of all libraries, if it has a problem: another file, even a missing one, may be the cause."""


_KEPT: dict[Path, dict[str, _Kept]] = {}
"""Folder of a library → path of a profile → cached header, since the app lists all whenever a run changes."""


_LARGEST = 64 << 10
"""Largest profile in bytes whose header is read: a list must not take minutes."""


def headers(library: Library, entries: Iterable[LibraryEntry], shelf: int) -> list[tuple[LibraryEntry, Header]]:
    """Every profile of a library with its header; files that have changed since the last call are read.

    Args:
        shelf: Changes with any file of any library.
    """
    before = _KEPT.get(library.folder, {})
    after: dict[str, _Kept] = {}
    found = []
    trees = Trees(quick=True)
    for entry in entries:
        if entry.problem:
            found.append((entry, Header(problem=entry.problem)))
            continue
        kept = before.get(str(entry.path))
        fresh = kept and kept.shelf in (None, shelf)
        if not kept or not fresh or any(_stamp(path) != (mtime, size) for path, mtime, size in kept.files):
            kept = _made(entry.path, trees, shelf)
        after[str(entry.path)] = kept
        found.append((entry, kept.header))
    _KEPT[library.folder] = after
    return found


def _made(path: Path, trees: Trees, shelf: int) -> _Kept:
    own = (str(path), *_stamp(str(path)))
    if own[2] > _LARGEST:
        return _Kept([own], Header(f"larger than {_LARGEST >> 10} KiB, not read for this list"))
    try:
        found = read(path)
        profile = parse_quickly(found, path, trees)
    except InputError as error:
        return _Kept([own], Header(problem=first_problem(error)), shelf)
    files = [(str(path), found.status), *((each.path, each.status) for each in profile.read_from)]
    return _Kept([(name, status.st_mtime_ns, status.st_size) for name, status in files], header_of(profile))


def header_of(profile: Profile) -> Header:
    """The header of a profile that has been read."""
    names = tuple(clean(host.name) for host in profile.hosts)
    return Header(clean(profile.description), names, tuple(host.num_processes for host in profile.hosts))


def first_problem(error: InputError) -> str:
    """The first error in a file, with its place, as safe text."""
    found = error.problems[0] if isinstance(error, ProfileErrors) else None
    if found is None:
        return clean(error.reason)
    place = f"line {found.line}:{found.column}: " if found.line else ""
    return clean(f"{place}{found.reason}")


def _stamp(path: str) -> tuple[int, int]:
    try:
        status = os.stat(path)  # noqa: PTH116 - called for thousands of files; a Path takes twice as long
    except (OSError, ValueError):
        return (0, 0)
    return status.st_mtime_ns, status.st_size


class LastRun(NamedTuple):
    """The newest known run of a profile."""

    run: str
    state: str
    started: float


class LibraryProfile(NamedTuple):
    """A profile of a library, as a list shows it."""

    entry: LibraryEntry
    header: Header
    name: str
    """The shortest name that selects it."""
    full_name: str
    """Name with its library, and with its suffix if another file of the library has the same name."""
    shadowed_by: str = ""
    """Full name of another profile that its bare name selects; empty: none."""
    last: LastRun | None = None


class LibraryContent(NamedTuple):
    """A library and its profiles."""

    library: Library
    profiles: tuple[LibraryProfile, ...]
    inventories: tuple[LibraryProfile, ...] = ()
    problem: str = ""
    """Why it cannot be listed."""


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
    first: dict[str, LibraryEntry] = {}
    found = []
    listed = [(each, profiles_in(each)) for each in libraries(environ)]
    for entry in chain(*(entries for _, entries in listed)):
        if not entry.problem:
            first.setdefault(entry.full_name, entry)  # takes precedence over `team/x.yaml` in the user's own library
    names, shelf = (
        [each.name for each, _ in listed],
        hash(
            tuple((str(entry.path), *_stamp(str(entry.path))) for entry in chain(*(entries for _, entries in listed)))
        ),
    )
    for each, entries in listed:
        profiles = []
        wanted = library in (None, each.name)
        read = headers(each, entries, shelf) if wanted else [(entry, Header()) for entry in entries]
        for entry, header in read:
            same = first.get(entry.full_name, entry)  # another file if there are both a.yaml and a.yml
            full = entry.full_name if same.path == entry.path else entry.full_name + entry.path.suffix
            elsewhere = in_one_library(entry.name, names)
            if not (elsewhere or entry.problem):
                first.setdefault(entry.name, entry)
            means = first.get(entry.name, entry) if not entry.problem else entry
            shadow = means.full_name if means.path != entry.path else ""
            name = full if shadow or elsewhere else entry.name
            profiles.append(LibraryProfile(entry, header, name, full, shadow, last.get(str(entry.path))))
        if wanted:
            inventories = [_inventory(entry) for entry in inventories_in(each)]
            found.append(LibraryContent(each, tuple(profiles), tuple(inventories), _missing(each)))
    return found


def _inventory(entry: LibraryEntry) -> LibraryProfile:
    header = Header(problem=entry.problem)
    try:
        header = header if entry.problem else header_of(parse_inventory(read(entry.path).text, entry.path))
    except InputError as error:
        header = Header(problem=first_problem(error))
    return LibraryProfile(entry, header, entry.full_name, entry.full_name)


def _missing(library: Library) -> str:
    if os.path.isdir(library.folder) or library.origin != "team":  # noqa: PTH112 - never raises
        return ""
    cure = f": disttui library sync {library.name}" if library.url else ""
    return f"its folder is missing{cure}"


def _last_runs(environ: Mapping[str, str]) -> dict[str, LastRun]:
    """Path of a profile → its newest known run."""
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


class Checked(NamedTuple):
    """A file of a library and its problems."""

    path: Path
    problems: tuple[str, ...]


def add_library(name: str, where: str, environ: Mapping[str, str] = os.environ) -> Synced | None:
    """Add a library to the user's config, and clone a git repository; None: it is a folder.

    Args:
        where: The address of a git repository, or a folder.

    Raises:
        InputError: It cannot be used.
        RemoteError: The repository is not reached.
    """
    if flaw := name_flaw(name):
        raise InputError(flaw, "Give a short word, like team.")
    if any(each.name == name for each in libraries(environ)):
        raise InputError(f"the library {name} already exists", f"disttui library remove {name}")
    if not where:
        raise InputError("not a folder and not the address of a git repository", "Give a folder or an address.")
    folder = here() / expanded(where)
    is_git = ":" in where if not _is_folder(folder) else any((folder / each).exists() for each in ("HEAD", ".git"))
    if not is_git:
        if not _is_folder(folder):
            raise InputError(f"{clean(where)}: not a folder and not the address of a git repository")
        _configure(environ, lambda before: _with(before, {"name": name, "folder": str(folder)}))
        return None
    url = str(folder) if _is_folder(folder) else where
    if flaw := url_flaw(url):
        raise InputError(f"{clean(url)}: {flaw}", "Give one such as hub:profiles.git or https://hub/profiles.git.")
    done = sync(Library(name, "team", inside(clones_folder(environ), name), url), environ)
    _configure(environ, lambda before: _with(before, {"name": name, "git": url}))
    return done


def remove_library(name: str, environ: Mapping[str, str] = os.environ, *, unsent: bool = False) -> None:
    """Remove a library from the user's config, and its clone. A shared folder stays.

    Args:
        unsent: Also where something that was saved has not been sent; it is lost then.

    Raises:
        InputError: There is something unsent, or no such library in the config.
    """
    library = library_named(name, environ)
    with lock(name, environ):
        if library.url and library.folder.is_dir() and not unsent and (left := unsent_in(library, environ)):
            cure = f"disttui library sync {name}; or add --unsent to discard them."
            raise InputError(f"{name} has unsent changes: {left}", cure)
        _configure(environ, lambda before: _without(before, name))
        if library.url:
            shutil.rmtree(library.folder, ignore_errors=True)


def sync_libraries(
    environ: Mapping[str, str] = os.environ, name: str | None = None
) -> Iterator[tuple[Library, Synced]]:
    """Synchronize all git libraries, or one, with their remotes.

    Raises:
        DisttuiError: Once the others are done: one is not reached, or cannot be used.
    """
    chosen = [library_named(name, environ)] if name else [each for each in libraries(environ) if each.url]
    errors: list[DisttuiError] = []
    for library in chosen:
        try:
            done = sync(library, environ)
        except DisttuiError as error:
            errors.append(error)
        else:
            yield library, done
    if errors:
        from disttui.runner.hosts.survey import HostsError

        raise errors[0] if len(errors) == 1 else HostsError(errors)


def check_folder(library: Library) -> list[Checked]:
    """Every profile and inventory with its problems, including values that look like secrets."""
    found = []
    for entry in (*profiles_in(library), *inventories_in(library)):
        problems: list[str] = []
        for one in (_parses, _holds_no_secret):
            try:
                one(library, entry)
            except InputError as error:
                problems += [line for line in str(error).splitlines() if line not in problems]
        found.append(Checked(entry.path, tuple(map(clean, problems))))
    return found


def _parses(library: Library, entry: LibraryEntry) -> None:
    if entry.problem:
        raise InputError(entry.problem, place=clean(str(entry.path)))
    trees = Trees(also=library)
    check(library.folder, entry.path.relative_to(library.folder).as_posix(), read(entry.path).text, trees=trees)


def _holds_no_secret(library: Library, entry: LibraryEntry) -> None:
    if not entry.problem:
        refuse(read(entry.path).text, str(entry.path))


def check_libraries(
    names: Sequence[str] = (), environ: Mapping[str, str] = os.environ
) -> Iterator[tuple[str, list[Checked]]]:
    """Check whole libraries by name, or folders; without any, all libraries but the examples.

    Raises:
        InputError: There is no such library and no such folder.
    """
    known = {each.name: each for each in libraries(environ)}
    for name in names or [name for name in known if name != EXAMPLES]:
        folder = Path(name)
        library = known.get(name) or Library(clean(name), "team", folder)
        if name not in known and not _is_folder(folder):
            raise InputError(f"{clean(name)}: neither a library nor a folder")
        yield clean(name), check_folder(library)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # too long for a path
        return False


def unsent_in(library: Library, environ: Mapping[str, str]) -> str:
    """The unsent changes of a clone, as text; empty: none."""
    repository = repository_of(library, environ)
    head, branch = repository.commit_of("HEAD"), repository.branch()
    upstream = repository.commit_of(f"refs/remotes/origin/{branch}")
    count = len(repository.own_commits(head, *([upstream] if upstream else []))) if head else 0
    edited = [path for path in repository.edited() if path.endswith(SUFFIXES)]
    words = [amount(count, "saved edit")] if count else []
    return " and ".join([*words, *([amount(len(edited), "manual edit")] if edited else [])])


def _configure(environ: Mapping[str, str], change: Callable[[list[object]], list[object]]) -> None:
    """Replace the list of libraries in the user's config with the result of `change`; comments are kept."""

    def changed(data: Mapping[str, object]) -> dict[str, object]:
        given = data.get("libraries")
        return {"libraries": change(list(given) if isinstance(given, list) else [])}

    change_config(environ, changed)


def _with(before: list[object], added: dict[str, str]) -> list[object]:
    at = before.index(EXAMPLES) if EXAMPLES in before else len(before)
    return [*before[:at], added, *before[at:]]


def _without(before: list[object], name: str) -> list[object]:
    after = [each for each in before if not (isinstance(each, dict) and each.get("name") == name)]
    if after == before:
        raise InputError(f"the library {name} is not in the config", "It is in DISTTUI_PROFILES, or built in.")
    return after


class Undecided(NamedTuple):
    """Hosts with open decisions."""

    login: tuple[str, ...]
    """ssh would use the login of this machine."""
    python: tuple[str, ...]
    """The first Python with torch would be used."""
    key: tuple[str, ...]
    """Hosts without a key file or agent, according to ssh's configuration."""
    me: str
    """The login of this machine."""


def left_to_you(library: str, environ: Mapping[str, str] = os.environ) -> Undecided:
    """Decisions that the profiles of a library leave open. Raises InputError for an unknown library."""
    hosts: dict[str, Host] = {}
    for entry in profiles_in(library_named(library, environ)):
        with suppress(InputError):  # `library validate` lists errors
            for host in parse(read(entry.path).text, entry.path).hosts:
                if host.name not in hosts or host.user:
                    hosts[host.name] = host
    login, key = [], []
    me = pwd.getpwuid(os.getuid()).pw_name
    for host in (host for host in hosts.values() if host.host != "local"):
        with suppress(DisttuiError):
            target = resolve(host.endpoint, environ.get("DISTTUI_SSH_CONFIG"))
            if not host.user and target.user == me:
                login.append(host.name)
            if not target.identity_agent and not any(map(os.path.exists, target.identity_files)):
                key.append(host.host)
    python = [host.name for host in hosts.values() if not host.python and not host.activate]
    return Undecided(tuple(login), tuple(python), tuple(dict.fromkeys(key)), me)


def personal_file(environ: Mapping[str, str] = os.environ) -> Path:
    """The file with the user's own settings, which override every profile."""
    return inside(user_folder("config", environ), PERSONAL)


def keep_personal(hosts: Sequence[str], user: str, python: str, environ: Mapping[str, str] = os.environ) -> None:
    """Write a login name for some hosts, and a Python for all, into personal.yaml; empty: unchanged.

    Raises:
        InputError: One of them cannot be used, or the file cannot be read or written.
    """
    given = {key: value for key, value in (("user", user), ("python", python)) if value}
    job = {"disttui": 1, "hosts": [{"host": "x", **given}], "job": {"command": ["true"]}}
    parse(json.dumps(job), "your answer")
    path = personal_file(environ)
    before = read(path).text if path.exists() else ""
    data = as_data(before) if before.strip() else {}
    known = (data or {}).get("hosts", {})
    if data is None or not isinstance(known, dict):
        raise InputError("this file cannot be edited automatically", f"Add {given} to it.", place=str(path))
    if user:
        named = {name: {**(known.get(name) or {}), "user": user} for name in hosts}
        data = {**data, "hosts": {**known, **named}}
    if python:
        data = {**data, "python": python}
    save(edit(before, data), path, replace=True, mode=0o600)


def keep_key(hosts: Sequence[str], key: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Name a key file for some hosts in the ssh configuration; returns its path. Raises InputError."""
    file = typed(key).absolute()
    if '"' in key or not key.isprintable() or not file.is_file():
        raise InputError(f"{key!r}: key file not found", "Give the path of a private key.")
    if unfit := next((host for host in hosts if set(host) & set("*?!")), None):
        raise InputError(f"{unfit!r} would be a pattern in the ssh configuration", "Name its key there yourself.")
    path = Path(environ.get("DISTTUI_SSH_CONFIG") or Path.home() / ".ssh/config")
    try:
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with path.open("a", encoding="utf-8") as config:
            config.write(f'\nHost {" ".join(hosts)}\n    IdentityFile "{file}"\n')
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", place=str(path)) from None
    return path
