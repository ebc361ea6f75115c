"""Merges the files of a profile: those it `extends`, its inventory, and the user's own settings.

Every value keeps its source location. Later layers override earlier ones: the extended profiles in their order, the
profile itself, the user's own settings, then `--set`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from pydantic_core import PydanticCustomError

from disttui.runner.errors import InputError
from disttui.runner.paths import PathError, here, inside
from disttui.runner.profile.fields import split_host
from disttui.runner.profile.library import (
    EXAMPLES,
    INVENTORIES,
    OWN,
    SUFFIXES,
    Library,
    entry_in,
    innermost,
    libraries,
    named,
    stem_of,
)
from disttui.runner.profile.nodes import MappingNode, Node, ScalarNode, SequenceNode, Source, compose, read
from disttui.runner.profile.problems import ProfileErrors, ProfileProblem, SourceLocation, near_of_few, quoted
from disttui.runner.profile.trust import doubt
from disttui.runner.user.folders import user_folder

_DEEPEST, _MOST_FILES = 8, 64
_LISTED = 32
"""Host names listed in one message."""
_TARGETS = ("builtin", "script", "module", "command")
_NOT_INHERITED = ("name", "description")
"""Keys that describe one profile only."""
PERSONAL = "personal.yaml"
"""File with the user's own settings, beside config.yaml; never in a library."""
_PERSONAL_KEYS = ("python", "activate", "transport", "hosts")
_OF_LOGINS = ("user", "port", "transport")
"""Keys that mean nothing for this machine."""
_PERSONAL_HOST_KEYS = ("user", "port", "transport", "python", "activate", "workdir", "address", "interface")


@dataclass(frozen=True)
class _Where:
    """A profile file and the files that it may refer to."""

    path: Path
    status: os.stat_result | None
    """Status of the file when it was read; None: `doubt` calls stat()."""
    trees: Trees

    @cached_property
    def library(self) -> Library | None:
        """The library that contains the file, or None."""
        return self.trees.library_of(self.path)

    @property
    def folder(self) -> Path:
        """The folder that its relative references must stay in."""
        return self.library.folder if self.library else self.path.parent

    @cached_property
    def is_mine(self) -> bool:
        """Whether the file is the user's own and may refer to any library; files of other users must not."""
        return self.is_private and not self.doubt

    @property
    def is_private(self) -> bool:
        """Whether it is outside all shared libraries."""
        return self.library is None or self.library.name == OWN

    @cached_property
    def doubt(self) -> str:
        """Why another user may have written it; empty if it is this user's own."""
        try:
            return doubt(self.path, self.status or self.path.stat())
        except (OSError, ValueError):
            return ""  # not saved yet: the text is this user's


class _Tree(NamedTuple):
    """A parsed file and the problems of single values in it."""

    root: Node | None
    source: Source
    problems: list[ProfileProblem]


class Trees:
    """A cache of the other files that profiles are made of; each is read once.

    Args:
        quick: As for `compose`.
        also: A library that the config need not list.
    """

    def __init__(self, *, quick: bool = False, also: Library | None = None) -> None:
        self._quick, self._known, self._also = quick, dict[Path, _Tree](), also
        self._real = dict[Path, str]()

    def real(self, path: Path) -> str:
        """The path with all symbolic links resolved."""
        if path not in self._real:
            self._real[path] = os.path.realpath(here() / path)
        return self._real[path]

    @cached_property
    def libraries(self) -> list[Library]:
        """All configured libraries. Raises ProfileErrors if the config's list cannot be used."""
        listed = libraries()
        if self._also is None or self._library_in(listed, self._also.folder / "a profile"):
            return listed
        return [self._also, *listed]

    def library_of(self, path: Path) -> Library | None:
        """The innermost library that contains a file, or None."""
        return self._library_in(self.libraries, path)

    def _library_in(self, known: Sequence[Library], path: Path) -> Library | None:
        above = Path(self.real(path)).parents
        return innermost(above, [(Path(self.real(each.folder)), each) for each in known])

    @cached_property
    def personal(self) -> Path | None:
        """The file with the user's own settings, or None if it does not exist."""
        file = user_folder("config", os.environ) / PERSONAL
        return file if file.is_file() else None

    def read(self, path: Path) -> _Tree:
        """Read and parse a file. Raises ProfileErrors if that fails."""
        if path not in self._known:
            problems: list[ProfileProblem] = []
            try:
                found = read(path)
                root = compose(found.text, str(path), problems, quick=self._quick)
            except ProfileErrors:
                raise
            except InputError as error:
                raise ProfileErrors([ProfileProblem.at(SourceLocation(str(path)), error.what)]) from None
            self._known[path] = _Tree(root, found, problems)
        return self._known[path]


class _Assembler:
    def __init__(self, problems: list[ProfileProblem], sources: list[Source], trees: Trees) -> None:
        self._problems, self._sources, self._trees = problems, sources, trees
        self._left = _MOST_FILES
        """Remaining lookups. Names without a file count as well, since each costs a search of all libraries."""

    def whole(self, root: MappingNode, where: _Where, above: tuple[str, ...]) -> MappingNode:
        """Merge a file's tree over those of all files that it extends; `above` are the files that led to it."""
        above = (*above, self._trees.real(where.path))
        own = {key: entry for key, entry in root.entries.items() if key != "extends"}
        if "hosts" in own:
            at, node = own["hosts"]
            own["hosts"] = (at, self._hosts(node, where))
        found = MappingNode(root.place)
        for name in self._names(root):
            path = self._resolve(name, where, "")
            if path is None:
                continue
            if self._trees.real(path) in above:
                chain = " → ".join(Path(each).name for each in (*above, str(path)))
                self._problem(name.place, f"{quoted(name.text)} extends itself: {chain}", "remove one of them")
            elif len(above) > _DEEPEST:
                self._problem(name.place, f"more than {_DEEPEST} profiles extend one another", "use fewer levels")
            elif (there := self.tree(path)) is not None:
                base = self.whole(there, _Where(path, self._sources[-1].status, self._trees), above)
                entries = {key: entry for key, entry in base.entries.items() if key not in _NOT_INHERITED}
                found = self.over(found, MappingNode(base.place, entries), ())
        return replace(self.over(found, MappingNode(root.place, own), ()), place=root.place)

    def over(self, base: MappingNode, top: MappingNode, path: tuple[str, ...]) -> MappingNode:
        """Merge `top` over `base`: mappings by key, hosts by name. Lists are replaced, or extended by `key+`."""
        entries = dict(base.entries)
        if path == ("job",) and any(target in top.entries for target in _TARGETS):
            entries = {key: entry for key, entry in entries.items() if key not in _TARGETS}
        for key, (at, new) in top.entries.items():
            name = key[:-1] if key[-1:] in ("+", "=") and isinstance(new, SequenceNode) else key
            before = entries[name][1] if name in entries else None
            if name != key and name in top.entries:
                self._problem(at, f"{quoted(name)} and {quoted(key)} in one profile", "expected one of them")
            if isinstance(new, ScalarNode) and new.is_null and before is not None:
                del entries[name]
            else:
                entries[name] = (at, self._value(before, new, (*path, key)))
        return MappingNode(top.place, entries)

    def _value(self, before: Node | None, new: Node, path: tuple[str, ...]) -> Node:
        if isinstance(before, SequenceNode) and isinstance(new, SequenceNode):
            if path[-1].endswith("+"):
                return SequenceNode(new.place, (*before.items, *new.items))
            return self._by_name(before, new) if path == ("hosts",) else new
        if isinstance(before, MappingNode) and isinstance(new, MappingNode):
            return self.over(before, new, path)
        return new

    def _by_name(self, base: SequenceNode, top: SequenceNode) -> SequenceNode:
        """Merge hosts over those of the same name, then append the others."""
        items = list(base.items)
        named: dict[str, list[int]] = {}
        logins: dict[tuple[str | None, ...], list[int]] = {}
        for at, item in enumerate(base.items):
            if name := _host_name(item):
                named.setdefault(name, []).append(at)
                logins.setdefault((name, *_login(item)), []).append(at)
        for item in top.items:
            name, login = _host_name(item), _login(item)
            same = named.get(name, [])
            if any(login) and _written(item) != name:
                same = logins.get((name, *login), [])  # another login in a word means another host
            elif len(same) > 1:
                same = logins.get((name, *login)) or same
            if len(same) > 1:
                what = f"{len(same)} hosts are named {quoted(name)}"
                self._problem(item.place, what, "name each in its file")
            elif not same:
                items.append(item)
            else:
                at = same[0]
                named[name].remove(at)
                logins.get((name, *_login(base.items[at])), []).remove(at)
                if isinstance(item, MappingNode):
                    items[at] = self.over(_as_mapping(items[at]), _as_mapping(item), ("hosts", name))
        return SequenceNode(top.place, tuple(items))

    def _hosts(self, node: Node, where: _Where) -> Node:
        """Replace `{inventory: lab, only: [node1]}` with its hosts; return any other node unchanged."""
        if not isinstance(node, MappingNode) or "inventory" not in node.entries:
            return node
        for key, (at, _) in node.entries.items():
            if key not in ("inventory", "only"):
                self._problem(at, f"unknown key {quoted(key)}", "expected inventory, only")
        _, name = node.entries["inventory"]
        if not isinstance(name, ScalarNode):
            self._problem(name.place, "inventory is not a name", "expected one, like lab")
            return SequenceNode(node.place, ())
        path = self._resolve(name, where, f"{INVENTORIES}/")
        found = self.tree(path) if path else None
        _, hosts = found.entries.get("hosts", (None, None)) if found else (None, None)
        if not isinstance(hosts, SequenceNode):
            if found:
                self._problem(found.place, "this inventory has no hosts", "expected hosts: [node1, node2]")
            return SequenceNode(node.place, ())
        return self._only(hosts, node.entries["only"][1]) if "only" in node.entries else hosts

    def _only(self, hosts: SequenceNode, only: Node) -> SequenceNode:
        known, written = dict[str, list[Node]](), dict[str, list[Node]]()
        for host in hosts.items:
            known.setdefault(_host_name(host), []).append(host)
            written.setdefault(_written(host), []).append(host)
        known |= written
        if not isinstance(only, SequenceNode) or not all(isinstance(item, ScalarNode) for item in only.items):
            self._problem(only.place, "only is not a list of names", "expected one, like [node1, node2]")
            return hosts
        chosen, names = [], [name for name in known if name]
        listed = ", ".join(names[:_LISTED]) + ", …" * (len(names) > _LISTED)
        for item in only.items:
            assert isinstance(item, ScalarNode)
            if len(known.get(item.text, ())) > 1:
                what = f"the inventory has {len(known[item.text])} hosts {quoted(item.text)}"
                self._problem(item.place, what, "name each of them in its file")
            elif item.text in known:
                chosen += known[item.text]
            else:
                meant = near_of_few(item.text, names, self._problems)
                cure = f"did you mean {meant!r}?" if meant else f"expected one of {listed}"
                self._problem(item.place, f"the inventory has no host {quoted(item.text)}", cure)
        return SequenceNode(only.place, tuple(chosen))

    def _names(self, root: MappingNode) -> list[ScalarNode]:
        at, node = root.entries.get("extends", (None, None))
        items = node.items if isinstance(node, SequenceNode) else (node,) if node else ()
        if at and not all(isinstance(item, ScalarNode) and item.text for item in items):
            self._problem(at, "extends is not a name", "expected one or a list, like [base, team/gpus]")
        return [item for item in items if isinstance(item, ScalarNode) and item.text]

    def _resolve(self, name: ScalarNode, where: _Where, folder: str) -> Path | None:
        """Find the file of a name: beside the referring file, in its library, then in others; None if not found.

        Raises ProfileErrors if the profile refers to too many files.
        """
        self._left -= 1
        if self._left < 0:
            raise ProfileErrors(
                [ProfileProblem.at(name.place, f"the profile names more than {_MOST_FILES} other files")]
            )
        stem = stem_of(name.text.removeprefix("./"))
        try:
            inside(where.folder, stem)  # no name may lead out of the folder, wherever it is searched
            found = self._beside(stem, where, folder) or self._elsewhere(stem, where, folder)
        except PathError as error:
            expected = "expected the name of a profile, or its path inside the library"
            self._problem(name.place, error.what.rpartition(": ")[2], expected)
            return None
        if found is None:
            kind = "inventory" if folder else "profile"
            self._problem(name.place, f"{kind} {quoted(name.text)} not found", self._hint(where, folder))
        return found

    def _beside(self, stem: str, where: _Where, folder: str) -> Path | None:
        real = where.path.parent if where.library is None else Path(os.path.realpath(where.path.parent))
        root = where.folder if where.library is None else Path(os.path.realpath(where.folder))
        starts = dict.fromkeys((root,) if folder or root not in real.parents else (real, root))
        for start in starts:
            for suffix in SUFFIXES:
                path = inside(start, f"{folder}{stem}{suffix}")
                inside(root, path.relative_to(root).as_posix())
                if path.is_file():
                    return path
        return None

    def _elsewhere(self, stem: str, where: _Where, folder: str) -> Path | None:
        first, _, rest = stem.partition("/")
        known = [
            each for each in self._trees.libraries if where.is_mine or each == where.library or each.name == EXAMPLES
        ]
        for library in known:
            if folder:
                wanted = rest if rest and library.name == first else stem
                for suffix in SUFFIXES:
                    path = inside(library.folder, f"{folder}{wanted}{suffix}")
                    if path.is_file():
                        return path
            elif rest and library.name == first and (entry := entry_in(library, rest)):
                return entry.path
        if folder:
            return None
        if where.is_mine:
            entry = named(stem)
            return entry.path if entry else None
        return next((entry.path for library in known if (entry := entry_in(library, stem))), None)

    def _hint(self, where: _Where, folder: str) -> str:
        if where.is_private and where.doubt:
            beside = f"use inventories of {INVENTORIES}/ beside it" if folder else "extend profiles beside it"
            return f"another user may have written this file ({where.doubt}): it can only {beside}, or examples"
        if folder:
            return f"expected a file of this name in {INVENTORIES}/"
        if where.is_mine:
            return "expected a name, or a path inside the library"
        return "a shared profile can only extend profiles of its library, or examples"

    def tree(self, path: Path) -> MappingNode | None:
        """Return another file's tree and record it as a source; None if not a mapping. Raises ProfileErrors."""
        found = self._trees.read(path)
        self._sources.append(found.source)
        self._problems += found.problems
        if isinstance(found.root, MappingNode):
            return found.root
        if found.root is not None:
            self._problem(found.root.place, "not a mapping", "expected keys like 'hosts:'")
        return None

    def _problem(self, place: SourceLocation, what: str, expected: str) -> None:
        self._problems.append(ProfileProblem.at(place, what, expected))


def composed(
    root: MappingNode,
    path: Path,
    status: os.stat_result | None,
    problems: list[ProfileProblem],
    sources: list[Source],
    trees: Trees | None = None,
    *,
    personal: bool,
) -> tuple[MappingNode, MappingNode]:
    """Return a file's tree merged with all that it extends, and the same with the user's own settings on top.

    Args:
        status: Status of the file when it was read; None: its current one.
        problems: Problems of single values are appended to it.
        sources: The other files of the profile are appended to it.
        trees: Cache of files already read.
        personal: Whether to apply the user's own settings.

    Raises:
        ProfileErrors: One of the files cannot be read.
    """
    trees = Trees() if trees is None else trees
    assembler = _Assembler(problems, sources, trees)
    found = assembler.whole(root, _Where(path, status, trees), ())
    if personal and trees.personal and (own := assembler.tree(trees.personal)):
        return found, _with_personal(assembler, found, own, problems)
    return found, found


def _with_personal(
    assembler: _Assembler, root: MappingNode, own: MappingNode, problems: list[ProfileProblem]
) -> MappingNode:
    """Merge the user's own settings over a profile: those under `hosts` by host name, and `*` for every host."""
    _check_keys(own, _PERSONAL_KEYS, problems)
    common = {key: entry for key, entry in own.entries.items() if key in ("python", "activate", "transport")}
    wanted = own.entries["hosts"][1] if "hosts" in own.entries else MappingNode(own.place)
    if not isinstance(wanted, MappingNode) or not all(
        isinstance(node, MappingNode) for _, node in wanted.entries.values()
    ):
        problems.append(ProfileProblem.at(wanted.place, "hosts is not a mapping", "expected {node1: {user: alice}}"))
        return root
    for _, node in wanted.entries.values():
        assert isinstance(node, MappingNode)
        _check_keys(node, _PERSONAL_HOST_KEYS, problems)
    found = assembler.over(root, MappingNode(own.place, common), ())
    place, hosts = found.entries.get("hosts", (None, None))
    if place and isinstance(hosts, SequenceNode):
        changed = [_changed(item, wanted, assembler) for item in hosts.items]
        found = replace(found, entries={**found.entries, "hosts": (place, replace(hosts, items=tuple(changed)))})
    return replace(found, place=root.place)


def _check_keys(node: MappingNode, known: Sequence[str], problems: list[ProfileProblem]) -> None:
    for key, (at, _) in node.entries.items():
        if key not in known:
            problems.append(ProfileProblem.at(at, f"unknown key {quoted(key)}", f"expected one of {', '.join(known)}"))


def _changed(host: Node, wanted: MappingNode, assembler: _Assembler) -> Node:
    if isinstance(host, SequenceNode):
        return host
    _, word = _as_mapping(host).entries.get("host", (None, None))
    local = isinstance(word, ScalarNode) and word.text == "local"
    for key in dict.fromkeys(("*", _host_name(host), _written(host))):
        change = wanted.entries[key][1] if key in wanted.entries else None
        if isinstance(change, MappingNode):
            own = {name: one for name, one in change.entries.items() if not (local and name in _OF_LOGINS)}
            host = assembler.over(_as_mapping(host), replace(change, entries=own), ("hosts", key))
    return host


def _host_name(node: Node) -> str:
    """The name of a host, or else its address."""
    return "" if isinstance(node, SequenceNode) else _written(_as_mapping(node))


def _written(node: Node) -> str:
    """The name of a host, or else its address with its login, as written."""
    if isinstance(node, ScalarNode):
        return node.text
    if isinstance(node, MappingNode):
        for key in ("name", "host"):
            value = node.entries[key][1] if key in node.entries else None
            if isinstance(value, ScalarNode) and value.text:
                return value.text
    return ""


def _login(node: Node) -> tuple[str | None, ...]:
    """User and port of a host, which distinguish hosts of the same name."""
    entries = {} if isinstance(node, SequenceNode) else _as_mapping(node).entries
    given = (entries[key][1] if key in entries else None for key in ("user", "port"))
    return tuple(value.text if isinstance(value, ScalarNode) else None for value in given)


def _as_mapping(node: Node) -> MappingNode:
    """Return a host as a mapping; user and port of a word get keys of their own, unless they are given twice."""
    found = node if isinstance(node, MappingNode) else MappingNode(node.place, {"host": (node.place, node)})
    at, word = found.entries.get("host", (found.place, None))
    if isinstance(word, ScalarNode):
        with suppress(PydanticCustomError):
            user, host, port = split_host(word.text)
            given = {"user": user, "port": None if port is None else str(port)}
            new = {key: text for key, text in given.items() if text is not None}
            if new and not new.keys() & found.entries.keys():
                parts = {
                    key: (at, ScalarNode(word.place, text, plain=key == "port"))
                    for key, text in {"host": host, **new}.items()
                }
                return replace(found, entries={**found.entries, **parts})
    return found
