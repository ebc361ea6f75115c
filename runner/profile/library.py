"""Finds profiles by name or path in an ordered list of libraries."""

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
"""Folder of a library for lists of hosts, which are not profiles."""
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
"""Pattern of library names."""
SUFFIXES = (".yaml", ".yml")
_DEEPEST = 8
"""Levels of folders that are searched."""
_MOST = 20_000
"""Most profiles listed per library."""


class Library(NamedTuple):
    """A named folder of profiles."""

    name: str
    origin: Origin
    folder: Path
    url: str = ""
    """URL of the git repository that `folder` is a clone of; empty if it is not a clone."""
    signed: bool = False
    """Whether its profiles are used only as committed with a trusted signature."""


class LibraryEntry(NamedTuple):
    """A profile that `find` can find by name."""

    name: str
    path: Path
    origin: Origin
    library: str = ""
    """The name of its library."""
    problem: str = ""
    """Why its location rules it out, such as a link out of the library; empty if it can be used."""

    @property
    def full_name(self) -> str:
        """The name with its library, which no other library can shadow."""
        return f"{self.library}/{self.name}"


def find(name_or_path: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Return the file that a path or a profile name refers to: existing paths first, then the libraries in order.

    `team/2node` means the profile `2node` of the library `team`.

    Raises:
        InputError: There is neither; similar names are suggested.
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
    """The profile with a name, or None: `2node` in the first library that has it, `team/2node` in that library.

    Raises:
        InputError: The name of the profile could lead out of the named library.
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
    """Whether a name such as `team/2node` names one of the `known` libraries, and is searched only there."""
    first, slash, _ = name.partition("/")
    return bool(slash) and first in known


def entry_in(library: Library, name: str) -> LibraryEntry | None:
    """The profile with this name in one library, or None.

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
    """The name of a profile without `.yaml` or `.yml`."""
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)


def path_in(library: Library, name: str) -> Path:
    """The path of a file in a library. In the user's own library, links may lead anywhere.

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
    """The shortest unambiguous name of every profile in `list_profiles`."""
    known = [each.name for each in libraries(environ)]
    entries = list_profiles(environ)
    return [each.full_name if in_one_library(each.name, known) else each.name for each in entries]


def list_profiles(environ: Mapping[str, str] = os.environ) -> list[LibraryEntry]:
    """All usable profiles, sorted by name; of several with one name, the one that `find` returns."""
    found: dict[str, LibraryEntry] = {}
    for entry in every_profile(environ):
        if not entry.problem:
            found.setdefault(entry.name, entry)
    return sorted(found.values())


def every_profile(environ: Mapping[str, str] = os.environ) -> Iterator[LibraryEntry]:
    """Yield the profiles of all libraries in order; earlier ones shadow later ones of the same name."""
    for library in libraries(environ):
        yield from profiles_in(library)


def profiles_in(library: Library) -> list[LibraryEntry]:
    """The profiles of one library, sorted by name; empty if its folder is missing."""
    return _searched(library, "")


def inventories_in(library: Library) -> list[LibraryEntry]:
    """The inventories of one library, sorted by name; names begin with `inventory/`."""
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
    """All libraries in the order of the user's config; those of DISTTUI_PROFILES follow the user's own.

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
    """The library with a name. Raises InputError if it is unknown."""
    known = libraries(environ)
    for library in known:
        if library.name == name:
            return library
    names = [one.name for one in known]
    raise InputError(f"library {printable(name) or repr(name)} not found", _cure(name, names, names, "libraries"))


def library_of(path: Path, environ: Mapping[str, str] = os.environ, *, as_given: bool = False) -> Library | None:
    """The innermost library that contains a path or is it, or None.

    Args:
        as_given: Compare paths without resolving links.
    """
    place = os.path.abspath if as_given else os.path.realpath
    at = Path(place(path))
    return innermost((at, *at.parents), [(Path(place(library.folder)), library) for library in libraries(environ)])


def innermost(above: Sequence[Path], found: Sequence[tuple[Path, Library]]) -> Library | None:
    """The library in `found` whose folder comes first in `above`, a file's parent folders from the inside; or None."""
    inner = min((above.index(folder) for folder, _ in found if folder in above), default=None)
    return next((library for folder, library in found if inner is not None and folder == above[inner]), None)


def clones_folder(environ: Mapping[str, str]) -> Path:
    """The folder for clones of libraries that are git repositories."""
    return user_folder("data", environ) / "libraries"


def _given(config: Path, clones: Path) -> tuple[Library | Literal["own", "examples"], ...]:
    """The entries under `libraries` in the user's config. Raises ProfileErrors."""
    try:
        text = config.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ()  # the app shows the error when it reads its own settings
    return _parsed(text, str(config), clones) if "libraries" in text else ()


@lru_cache(maxsize=4)
def _parsed(text: str, config: str, clones: Path) -> tuple[Library | Literal["own", "examples"], ...]:
    """Parse `libraries` of a config; cached, since listing needs it many times. Raises ProfileErrors."""
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
    """Why a library cannot have this name; empty if it can."""
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
    """The kind of a path: "link" for a broken symbolic link, empty if nothing is there."""
    try:
        return "folder" if path.is_dir() else "file" if path.exists() else "link" if path.is_symlink() else ""
    except (OSError, ValueError):
        return ""


def _cure(word: str, known: list[str], listed: Sequence[str], kind: str = "profiles") -> str:
    """Suggest the nearest of the `known` names, else list up to ten of a kind."""
    suffix = next((each for each in (".py", *SUFFIXES) if word.endswith(each)), "")
    stems = {each.removesuffix(suffix): each for each in reversed(known)}  # a shared suffix is not a similarity
    if meant := stems.get(near(word.removesuffix(suffix), list(stems)) or ""):
        return f"Did you mean {printable(meant)}?"
    return f"Known {kind}: {printable(', '.join(listed[:10]))}." if listed else ""
