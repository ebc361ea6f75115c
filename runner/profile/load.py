"""A profile's file → a checked profile, or everything that is wrong with it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from runner.profile import composition, variables
from runner.profile.explain import explain
from runner.profile.fields import slug
from runner.profile.glance import glance
from runner.profile.nodes import MappingNode, Node, ScalarNode, SequenceNode, compose, walk
from runner.profile.override import apply
from runner.profile.problems import Path, ProfileErrors, ProfileProblem, SourceLocation, quoted
from runner.profile.schema import VERSION, Profile
from runner.profile.source import ProfileText, Source, read


def load(path: FilePath | str, overrides: Sequence[str] = ()) -> Profile:
    """Read and check a file, with every `path=value` of `overrides` put into it.

    Raises:
        InputError: The file cannot be read.
        ProfileErrors: What is in it cannot be used.
    """
    found = read(FilePath(path))
    return parse(found.text, FilePath(path), overrides, status=found.status)


def parse(
    text: str,
    source: str | FilePath,
    overrides: Sequence[str] = (),
    *,
    quick: bool = False,
    personal: bool = True,
    status: os.stat_result | None = None,
    trees: composition.Trees | None = None,
) -> Profile:
    """Check a profile given as text; `source` is its name in messages, and of a run without one.

    Args:
        source: As a path, the file that the text is of: what it extends is read, and the user's own settings count.
        quick: As of `compose`.
        personal: Whether the user's own settings count.
        trees: Files that were read before.
        status: Of the file, as `read` has it: what is another user's reaches for nothing of this user's.

    Raises:
        ProfileErrors: It cannot be used.
    """
    problems: list[ProfileProblem] = []
    path, source = (source, str(source)) if isinstance(source, FilePath) else (None, source)
    root = compose(text, source, problems, quick=quick)
    if not isinstance(root, MappingNode):
        place = root.place if root else SourceLocation(source, 1, 1)
        what = "the profile is empty" if root is None else "this is no mapping"
        raise ProfileErrors([*problems, ProfileProblem.at(place, what, "expected keys like 'disttui: 1', 'hosts:'")])
    sources: list[Source] = []
    shared, whole = root, root
    if path is not None:
        shared, whole = composition.composed(root, path, status, problems, sources, trees, personal=personal)
    profile = _checked(whole, source, overrides, problems, sources)
    profile._whole.append((shared, whole, source))
    return profile


def with_overrides(profile: Profile, overrides: Sequence[str]) -> Profile:
    """A profile's files, as they were read for it, with other overrides.

    Raises:
        ProfileErrors: It cannot be used.
    """
    return _again(profile, overrides, personal=True)


def without_personal(profile: Profile) -> Profile:
    """What a profile's files, as they were read for it, say without the user's own settings.

    Raises:
        ProfileErrors: It cannot be used.
    """
    return _again(profile, (), personal=False)


def _again(profile: Profile, overrides: Sequence[str], *, personal: bool) -> Profile:
    shared, whole, source = profile._whole[0]
    made = _checked(whole if personal else shared, source, overrides, [], profile._sources)
    made._whole.append(profile._whole[0])
    return made


def _checked(
    whole: MappingNode, source: str, overrides: Sequence[str], problems: list[ProfileProblem], sources: list[Source]
) -> Profile:
    root = variables.filled(apply(whole, overrides, problems), problems)
    if newer := _newer(root):
        raise ProfileErrors([newer])
    references = _references(root, problems)
    data = _given(root, ())
    data.setdefault("name", slug(FilePath(source).stem))
    try:
        profile = Profile.model_validate(data)
    except ValidationError as error:
        raise ProfileErrors([*problems, *explain(error, root)]) from None
    if problems:
        raise ProfileErrors(problems)
    profile._written.update(plain(root))
    profile._references.update(references)
    profile._sources.extend(sources)
    profile._tree.append(root)
    if isinstance(sizes := root.entries.get("parallel", (None, None))[1], MappingNode):
        profile._sizes.update({path[0]: scalar.place for path, scalar in walk(sizes)})
    return profile


def parse_quickly(found: ProfileText, source: FilePath, trees: composition.Trees | None = None) -> Profile:
    """`parse` for lists of many profiles; it says what a profile is, and not what its file has where.

    Args:
        trees: Files that further profiles of the list extend, too.

    Raises:
        ProfileErrors: It cannot be used.
    """
    trees = composition.Trees(quick=True) if trees is None else trees
    data = glance(found.text) if not trees.personal else None
    with suppress(ValidationError, ProfileErrors):
        if data is not None:
            return Profile.model_validate({"name": slug(source.stem), **data})
        return parse(found.text, source, quick=True, status=found.status, trees=trees)
    return parse(found.text, source, status=found.status)  # which has the words of all other commands


def _newer(root: MappingNode) -> ProfileProblem | None:
    """The one problem that matters in a profile of a newer schema, which this version does not know."""
    _, node = root.entries.get("disttui", (None, None))
    if not isinstance(node, ScalarNode) or not re.fullmatch(r"[1-9][0-9]{0,8}", node.text) or int(node.text) <= VERSION:
        return None
    what = f"written by a newer disttui: schema {node.text}, this one reads {VERSION}"
    return ProfileProblem.at(node.place, what, "upgrade disttui")


def _is_env(path: Path) -> bool:
    return path in (("env",), ("job", "env")) or (len(path) == 3 and path[0] == "hosts" and path[2] == "env")


def _references(root: MappingNode, problems: list[ProfileProblem]) -> dict[Path, SourceLocation]:
    """Where `${env:NAME}` and the like stand; anywhere but in an environment it is a problem."""
    found = {}
    for path, scalar in walk(root):
        if place := scalar.reference:
            found[path] = place
        if place and not _is_env(path[:-1]):
            kind = next(kind for kind in ("env", "file", "cmd") if f"${{{kind}:" in scalar.text)
            what = f"a ${{{kind}:…}} reference in {quoted('.'.join(map(str, path)))}"
            problems.append(ProfileProblem.at(place, what, "expected only as the value of an env variable"))
    return found


def _given(node: Node, path: Path) -> Any:
    """The tree as data, scalars as text. A key without a value counts as not given, except a variable."""
    if isinstance(node, ScalarNode):
        return None if node.is_null else node.text
    if isinstance(node, SequenceNode):
        return [_given(item, (*path, index)) for index, item in enumerate(node.items)]
    return {
        key: _given(value, (*path, key))
        for key, (_, value) in node.entries.items()
        if _is_env(path) or not isinstance(value, ScalarNode) or not value.is_null
    }


def plain(node: Node) -> Any:
    """The tree as `Profile.as_written` has it, for JSON.

    Only what reads back as the same text becomes a number, true, false or null.
    """
    if isinstance(node, SequenceNode):
        return [plain(item) for item in node.items]
    if isinstance(node, MappingNode):
        return {key: plain(value) for key, (_, value) in node.entries.items()}
    if node.is_null:
        return None
    if node.plain and node.text in ("true", "false"):
        return node.text == "true"
    if node.plain and re.fullmatch(r"-?[1-9][0-9]{0,14}|0", node.text):
        return int(node.text)
    return node.text
