"""Where profiles live: an ordered list of libraries, and the names that lead to their files."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from disttui.runner.errors import InputError, near
from disttui.runner.paths import PathError, expanded, inside
from disttui.runner.profile.fields import slug
from disttui.runner.profile.nodes import MappingNode, Node, ScalarNode, SequenceNode, compose
from disttui.runner.profile.problems import ProfileErrors, ProfileProblem, printable, quoted
from disttui.runner.user.folders import user_folder

Origin = Literal["own", "team", "built in"]
OWN = "own"
EXAMPLES = "examples"
INVENTORIES = "inventory"
"""The folder of a library with files of hosts, which are not profiles."""
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
"""Of a library."""
SUFFIXES = (".yaml", ".yml")
_DEEPEST = 8
"""Folders in folders that are searched."""
_MOST = 20_000
"""Profiles of one library that are listed."""


class Library(NamedTuple):
    """A folder of profiles with a name."""

    name: str
    origin: Origin
    folder: Path
    url: str = ""
    """Of the git repository that `folder` is a clone of; empty: it is a folder only."""
    signed: bool = False
    """Whether a profile of it is used only as a signed commit has it."""


class LibraryEntry(NamedTuple):
    """A profile that `find` knows by name."""

    name: str
    path: Path
    origin: Origin
    library: str = ""
    """The name of its library."""
    problem: str = ""
    """Why it cannot be used, from its place alone."""

    @property
    def full_name(self) -> str:
        """The name that means this file, whatever other libraries contain."""
        return f"{self.library}/{self.name}"


def find(name_or_path: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the file of a path, or of a profile's name: an existing path first, then the libraries in their order.

    `team/2node` is the profile of this name in the library `team`.

    Raises:
        InputError: Neither is there; names that are near are suggested.
    """
    path = Path(name_or_path)
    there = _what_is(path)
    if there == "file":
        return path
    if found := named(name_or_path, environ):
        return found.path
    shown = printable(name_or_path) or "''"
    if name_or_path == "-":
        raise InputError("profiles are not read from standard input", "Save it in a file.")
    if there == "folder" and name_or_path:
        raise InputError(f"{shown} is a folder", "Name a profile in it.")
    if there == "link":
        raise InputError(f"{shown}: broken link to {printable(str(path.readlink()))}")
    first, _, rest = name_or_path.partition("/")
    library = next((each for each in libraries(environ) if rest and each.name == first), None)
    if library and library.url and not library.folder.is_dir():
        raise InputError(f"{shown}: the library {first} is not on this machine", f"disttui library sync {first}")
    if library and library.folder.is_dir():
        names = [entry.full_name for entry in (*profiles_in(library), *inventories_in(library))]
        raise InputError(f"{shown}: the library {first} does not have this profile", _cure(name_or_path, names, names))
    suffixes = (".py",) if path.suffix == ".py" else SUFFIXES
    if path.name != name_or_path:
        beside = [str(path.parent / each.name) for each in _files(path.parent, suffixes)]
        raise InputError(f"{shown}: file not found", _cure(name_or_path, beside, ()))
    known = list_names(environ)
    here = [each.name for each in _files(Path(), suffixes)]
    if path.suffix == ".py":
        raise InputError(f"{shown}: file not found", _cure(path.name, here, ()))
    raise InputError(f"profile '{printable(name_or_path)}' not found", _cure(path.name, [*known, *here], known))


def named(word: str, environ: Mapping[str, str] = os.environ) -> LibraryEntry | None:
    """The profile that a name means: `2node` in the first library that has it, `team/2node` in that one.

    Raises:
        InputError: The library is named, and the name of the profile could lead out of it.
    """
    known = libraries(environ)
    first, _, rest = word.partition("/")
    for library in known:
        if rest and library.name == first:
            return entry_in(library, rest)
    for library in known:
        try:
            if found := entry_in(library, word):
                return found
        except PathError:
            continue
    return None


def in_one_library(name: str, known: Collection[str]) -> bool:
    """Whether a name is looked for in one of the libraries of these names alone, as `team/2node` is."""
    first, slash, _ = name.partition("/")
    return bool(slash) and first in known


def entry_in(library: Library, name: str) -> LibraryEntry | None:
    """The profile of this name in one library; None if there is no such profile.

    Raises:
        PathError: The name could lead out of the library, or its file is a link that does.
    """
    stem = stem_of(name)
    for each in dict.fromkeys((name, *(stem + suffix for suffix in SUFFIXES))):
        if each.endswith(SUFFIXES):
            path = path_in(library, each)
            if _what_is(path) == "file":
                return LibraryEntry(stem, path, library.origin, library.name)
    return None


def stem_of(name: str) -> str:
    """The name of a profile without its file's suffix."""
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)


def path_in(library: Library, name: str) -> Path:
    """The path of a file of a library. In the user's own one, links may lead anywhere.

    Raises:
        PathError: The name could lead out of the library, or its file is a link that does.
    """
    parts = name.split("/")
    if any(part.startswith((".", "-")) for part in parts):
        raise PathError(
            f"{quoted(name)[1:-1]}: not the name of a profile in a library", "Name it as `library list` does."
        )
    if library.origin == OWN and all(part and "\0" not in part for part in parts):
        return library.folder.joinpath(*parts)
    return inside(library.folder, name)


def list_names(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The shortest name of every profile that `list_profiles` gives."""
    known = [each.name for each in libraries(environ)]
    entries = list_profiles(environ)
    return [each.full_name if in_one_library(each.name, known) else each.name for each in entries]


def list_profiles(environ: Mapping[str, str] = os.environ) -> list[LibraryEntry]:
    """Every profile that can be named, by name; where two have one name, the one that `find` takes."""
    found: dict[str, LibraryEntry] = {}
    for entry in every_profile(environ):
        if not entry.problem:
            found.setdefault(entry.name, entry)
    return sorted(found.values())


def every_profile(environ: Mapping[str, str] = os.environ) -> Iterator[LibraryEntry]:
    """The profiles of all libraries in their order; an earlier one shadows a later one of the same name."""
    for library in libraries(environ):
        yield from profiles_in(library)


def profiles_in(library: Library) -> list[LibraryEntry]:
    """The profiles of one library, by name; none where its folder is not there."""
    return _searched(library, "")


def inventories_in(library: Library) -> list[LibraryEntry]:
    """The inventories of one library; their names begin with `inventory/`."""
    return _searched(library, f"{INVENTORIES}/")


def _searched(library: Library, start: str) -> list[LibraryEntry]:
    found: list[LibraryEntry] = []
    real = os.path.realpath(library.folder).rstrip("/") + "/"

    def search(folder: Path, before: str, depth: int) -> None:
        try:
            with os.scandir(folder) as entries:
                for each in entries:
                    if each.name.startswith((".", "-")) or len(found) >= _MOST:
                        continue
                    if each.name.endswith(SUFFIXES):
                        stem = before + each.name.rpartition(".")[0]
                        out = (
                            library.origin != OWN
                            and each.is_symlink()
                            and not os.path.realpath(each.path).startswith(real)
                        )
                        problem = "this link leads outside of the library" if out else ""
                        found.append(LibraryEntry(stem, folder / each.name, library.origin, library.name, problem))
                    elif (
                        depth < _DEEPEST and (before or each.name != INVENTORIES) and each.is_dir(follow_symlinks=False)
                    ):
                        search(folder / each.name, f"{before}{each.name}/", depth + 1)
        except (OSError, ValueError):
            return

    search(library.folder / start, start, 1)
    return sorted(found)


def libraries(environ: Mapping[str, str] = os.environ) -> list[Library]:
    """All libraries in the order of the user's config: without one the user's own, the team's, the examples.

    Raises:
        ProfileErrors: The config's list of libraries cannot be used.
    """
    config = user_folder("config", environ)
    own = Library(OWN, "own", config / "profiles")
    package = Path(__file__).parents[2]
    shipped = package / "_profiles"
    shipped = shipped if shipped.is_dir() else package.parent / "profiles"
    fixed = {OWN: own, EXAMPLES: Library(EXAMPLES, "built in", shipped)}
    given = _given(config / "config.yaml", clones_folder(environ))
    listed = [fixed.pop(each) if isinstance(each, str) else each for each in given]
    listed = [*([fixed[OWN]] if OWN in fixed else []), *listed]
    at = listed.index(own) + 1
    known = {library.name for library in listed} | {EXAMPLES}
    for folder in filter(None, environ.get("DISTTUI_PROFILES", "").split(":")):
        path = expanded(folder)
        name = base = slug(path.name)
        number = 1
        while name in known:
            number += 1
            name = f"{base}-{number}"
        known.add(name)
        listed.insert(at, Library(name, "team", path))
        at += 1
    return [*listed, *([fixed[EXAMPLES]] if EXAMPLES in fixed else [])]


def library_named(name: str, environ: Mapping[str, str] = os.environ) -> Library:
    """A library by its name. Raises InputError."""
    known = libraries(environ)
    for library in known:
        if library.name == name:
            return library
    names = [one.name for one in known]
    raise InputError(f"library {printable(name) or repr(name)} not found", _cure(name, names, names))


def library_of(path: Path, environ: Mapping[str, str] = os.environ, *, as_given: bool = False) -> Library | None:
    """The library that a file lies in, of two in one another the inner one; None where it lies in none.

    Args:
        as_given: By its path alone, wherever links lead.
    """
    place = os.path.abspath if as_given else os.path.realpath
    return innermost(
        Path(place(path)).parents, [(Path(place(library.folder)), library) for library in libraries(environ)]
    )


def innermost(above: Sequence[Path], found: Sequence[tuple[Path, Library]]) -> Library | None:
    """Of libraries with their folders the one in the nearest of the folders above a file."""
    inner = min((above.index(folder) for folder, _ in found if folder in above), default=None)
    return next((library for folder, library in found if inner is not None and folder == above[inner]), None)


def clones_folder(environ: Mapping[str, str]) -> Path:
    """The folder with the clones of all libraries that are git repositories."""
    return user_folder("data", environ) / "libraries"


def _given(config: Path, clones: Path) -> tuple[Library | Literal["own", "examples"], ...]:
    """`libraries` of the user's config."""
    try:
        text = config.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ()  # the app shows the error when it reads its own settings
    return _parsed(text, str(config), clones) if "libraries" in text else ()


@lru_cache(maxsize=4)
def _parsed(text: str, config: str, clones: Path) -> tuple[Library | Literal["own", "examples"], ...]:
    """The libraries of a config; a list asks for them many times. Raises ProfileErrors."""
    problems: list[ProfileProblem] = []
    root = compose(text, config, problems)
    place, node = root.entries.get("libraries", (None, None)) if isinstance(root, MappingNode) else (None, None)
    if place is None or node is None or (isinstance(node, ScalarNode) and node.is_null):
        return ()
    found: list[Library | Literal["own", "examples"]] = []
    names: set[str] = set()
    if not isinstance(node, SequenceNode):
        raise ProfileErrors([ProfileProblem.at(place, "libraries is not a list", "expected lines like '- own'")])
    for item in node.items:
        one = _one(item, clones, problems)
        name = one if isinstance(one, str) else one.name if one else ""
        if name in names:
            problems.append(ProfileProblem.at(item.place, f"the library {name} is listed twice", "remove one of them"))
        elif one is not None:
            names.add(name)
            found.append(one)
    if problems:
        raise ProfileErrors(problems)
    return tuple(found)


def _one(node: Node, clones: Path, problems: list[ProfileProblem]) -> Library | Literal["own", "examples"] | None:
    expected = "expected own, examples, {name: team, git: URL} or {name: team, folder: PATH}, and signed: true or false"
    if isinstance(node, ScalarNode) and node.text in (OWN, EXAMPLES):
        return "own" if node.text == OWN else "examples"
    given = {}
    if isinstance(node, MappingNode):
        given = {key: value.text for key, (_, value) in node.entries.items() if isinstance(value, ScalarNode)}
    signed = given.pop("signed", "false")
    kinds = (["folder", "name"], ["git", "name"])
    if not isinstance(node, MappingNode) or sorted(given) not in kinds or signed not in ("true", "false"):
        problems.append(ProfileProblem.at(node.place, "not a library", expected))
        return None
    name = given["name"]
    if flaw := name_flaw(name):
        problems.append(ProfileProblem.at(node.entries["name"][0], flaw, "expected a short word, like team"))
        return None
    if "git" in given:
        return Library(name, "team", inside(clones, name), given["git"], signed == "true")
    folder = expanded(given["folder"])
    if not folder.is_absolute():
        problems.append(
            ProfileProblem.at(node.entries["folder"][0], "not an absolute path", "expected /PATH or ~/PATH")
        )
        return None
    return Library(name, "team", folder, signed=signed == "true")


def name_flaw(name: str) -> str:
    """Why a library cannot have this name; empty where it can."""
    if name in (OWN, EXAMPLES):
        return f"{name} is a built-in library"
    return "" if NAME.fullmatch(name) else f"{quoted(name)} is not a valid library name"


def _files(folder: Path, suffixes: Sequence[str]) -> list[Path]:
    try:
        files = (each for each in folder.iterdir() if each.suffix in suffixes)
        return sorted(each for each in files if not each.name.startswith("."))
    except (OSError, ValueError):
        return []


def _what_is(path: Path) -> Literal["file", "folder", "link", ""]:
    """What a path leads to; "link": a symbolic link that leads nowhere."""
    try:
        return "folder" if path.is_dir() else "file" if path.exists() else "link" if path.is_symlink() else ""
    except (OSError, ValueError):
        return ""


def _cure(word: str, known: list[str], profiles: Sequence[str]) -> str:
    """The nearest of the `known` names, else all `profiles`: a YAML file of a folder may be anything."""
    suffix = next((each for each in (".py", *SUFFIXES) if word.endswith(each)), "")
    stems = {each.removesuffix(suffix): each for each in reversed(known)}  # a shared ending does not make them alike
    if meant := stems.get(near(word.removesuffix(suffix), list(stems)) or ""):
        return f"Did you mean {printable(meant)}?"
    return f"Known profiles: {printable(', '.join(profiles[:10]))}." if profiles else ""
