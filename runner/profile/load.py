"""Turns a profile's file into a checked profile, or reports every problem with it."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from operator import is_
from pathlib import Path as FilePath
from typing import Any

from pydantic import BaseModel, ValidationError

from disttui.runner.errors import near
from disttui.runner.profile import composition
from disttui.runner.profile.fields import slug
from disttui.runner.profile.nodes import (
    MAX_DEPTH,
    MAX_SIZE,
    MappingNode,
    Node,
    ScalarNode,
    SequenceNode,
    Source,
    compose,
    read,
    walk,
)
from disttui.runner.profile.problems import (
    Path,
    ProfileErrors,
    ProfileProblem,
    SourceLocation,
    near_of_few,
    quoted,
)
from disttui.runner.profile.references import MEANT
from disttui.runner.profile.schema import VERSION, Profile
from disttui.runner.profile.sections import (
    Container,
    Data,
    Environment,
    Host,
    Job,
    Launch,
    Metrics,
    Notify,
    OnEnd,
    Parallel,
    Slurm,
    Sync,
    Watch,
    WatchEvent,
    WatchGoal,
    WatchLog,
    WatchNonFinite,
    WatchPlateau,
    WatchSlow,
    WatchSpike,
    WatchStall,
)

_SECTIONS: dict[str, type[BaseModel]] = {
    "": Profile, "hosts": Host, "job": Job, "launch": Launch, "parallel": Parallel, "metrics": Metrics,
    "on_end": OnEnd, "container": Container, "data": Data, "notify": Notify, "job.sync": Sync,
    "job.environment": Environment, "slurm": Slurm, "watch": Watch,
    "watch.nonfinite": WatchNonFinite, "watch.spike": WatchSpike, "watch.slow": WatchSlow, "watch.goal": WatchGoal,
    "watch.plateau": WatchPlateau, "watch.log": WatchLog, "watch.stall": WatchStall,
    **dict.fromkeys(("watch.disk", "watch.memory", "watch.host"), WatchEvent),
}  # fmt: skip
_SYNONYMS = {
    "nproc": "num_processes", "nproc_per_node": "num_processes", "slots": "num_processes", "ip": "address",
    "nic": "interface", "ifname": "interface", "hostname": "host", "cwd": "workdir", "cmd": "command",
    "environment": "env", "venv": "activate", "max_restarts": "restarts", "master_addr": "master",
    "master_port": "ports", "port": "ports", "version": "disttui",
}  # fmt: skip
_LISTS = {
    "hosts": "[node1, node2]", "gpus": "[0, 1]", "args": '[--steps, "300"]', "resume_args": "[--resume, auto]",
    "command": "[./train.sh, fast]", "setup": "[make]", "outputs": "[out/]",
    "mounts": "[~/data]", "options": "[--name=value]", "events": "[ended, failed]",
    "ports": "[29500, 29599]",
}  # fmt: skip
_MISSING = {
    "disttui": "expected 'disttui: 1', the version of the schema",
    "to": "expected its path on the hosts, like ~/data/tokens.bin",
    "from": "expected its source: a local path, host:/path or an address",
    "host": "expected an ssh alias, user@host:port or local",
    "hosts": "expected a list, like [node1, node2] or [local]",
    "job": "expected what to run, like {builtin: bytegpt} or {script: train.py}",
}
_EXPECTED = {
    "string": "expected text (in quotes if necessary)", "int": "expected a whole number", "float": "expected seconds",
    "bool": "expected true or false", "literal": "expected a word", "none": "expected nothing",
}  # fmt: skip


def explain(error: ValidationError, root: MappingNode) -> list[ProfileProblem]:
    """Every problem of `error`, with its place in the tree that was validated."""
    return [problem for found in error.errors(include_url=False, include_input=False) for problem in _one(found, root)]


def _one(found: Mapping[str, Any], root: MappingNode) -> list[ProfileProblem]:
    kind, path, context = found["type"], found["loc"], found.get("ctx", {})
    if kind == "conflicts":
        return [ProfileProblem.at(_locate(root, at)[0], what, expected) for what, expected, at in context["flaws"]]
    if is_key := path[-1:] == ("[key]",):
        path = path[:-1]
    place, node = _locate(root, path, key=is_key or kind == "extra_forbidden")
    name = next((str(part) for part in reversed(path) if isinstance(part, str)), "profile")
    if kind == "profile":
        label = "" if is_key else f"{quoted(name)[1:-1]}: "
        return [ProfileProblem.at(place, label + context["what"], context["expected"])]
    if kind == "missing":
        return [ProfileProblem.at(place, f"{quoted(name)} is missing", _MISSING.get(name, ""))]
    if kind == "extra_forbidden":
        return [ProfileProblem.at(place, f"unknown key {quoted(name)}", _meant(name, path))]
    return [ProfileProblem.at(place, f"{quoted(name)[1:-1]}: {_describe(node)}", _expected(kind, name))]


def _locate(root: MappingNode, path: Path, *, key: bool = False) -> tuple[SourceLocation, Node]:
    """The location and node at `path`, or its nearest ancestor; with `key`, the location of the last key."""
    place = root.place
    current: Node = root
    for part in path:
        if isinstance(current, MappingNode) and part in current.entries:
            place, current = current.entries[str(part)]
        elif isinstance(current, SequenceNode) and isinstance(part, int) and part < len(current.items):
            current = current.items[part]
            place = current.place
        else:
            return current.place, current
    return place if key else current.place, current


def _describe(node: Node) -> str:
    if isinstance(node, ScalarNode):
        return (node.text or "nothing") if node.is_null else quoted(node.text)
    return "a list" if isinstance(node, SequenceNode) else "a mapping"


def _expected(kind: str, name: str) -> str:
    if kind.startswith(("model", "dict", "mapping")):
        return "expected a host, like node1" if name == "hosts" else "expected a mapping, like {key: value}"
    if kind.startswith(("tuple", "list")):
        return f"expected a list, like {_LISTS.get(name, '[a, b]')}"
    return next((text for start, text in _EXPECTED.items() if kind.startswith(start)), "expected something else")


def _meant(name: str, path: Path) -> str:
    section = str(path[0]) if len(path) > 1 else ""
    if len(path) > 2 and f"{path[0]}.{path[1]}" in _SECTIONS:
        section = f"{path[0]}.{path[1]}"
    known = _keys_of(_SECTIONS[section])
    if (synonym := _SYNONYMS.get(name)) in known:
        return f"did you mean {synonym!r}?"
    for other, model in _SECTIONS.items():
        if name in _keys_of(model):
            return f"it belongs under '{other}'" if other else "it belongs at the top level"
    if meant := near(name, known):
        return f"did you mean {meant!r}?"
    return f"expected one of {', '.join(known)}"


def _keys_of(model: type[BaseModel]) -> list[str]:
    return [field.alias or key for key, field in model.model_fields.items()]


def load(path: FilePath | str, overrides: Sequence[str] = ()) -> Profile:
    """Read and check a file, with every `path=value` of `overrides` applied.

    Raises:
        InputError: The file cannot be read.
        ProfileErrors: The profile is not valid.
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
    """Check a profile given as text.

    Args:
        source: Its name in messages and its default name. If it is a Path, the files that the profile extends are read.
        quick: As for `compose`.
        personal: Whether the user's own settings apply; only if `source` is a Path.
        trees: Cache of files already read.
        status: Status of the file when it was read; another user's file cannot refer to this user's files.

    Raises:
        ProfileErrors: The profile is not valid.
    """
    problems: list[ProfileProblem] = []
    path, source = (source, str(source)) if isinstance(source, FilePath) else (None, source)
    root = compose(text, source, problems, quick=quick)
    if not isinstance(root, MappingNode):
        place = root.place if root else SourceLocation(source, 1, 1)
        what = "the profile is empty" if root is None else "not a mapping"
        raise ProfileErrors([*problems, ProfileProblem.at(place, what, "expected keys like 'disttui: 1', 'hosts:'")])
    sources: list[Source] = []
    shared, whole = root, root
    if path is not None:
        shared, whole = composition.composed(root, path, status, problems, sources, trees, personal=personal)
    profile = _checked(whole, source, overrides, problems, sources)
    profile._whole.append((shared, whole, source))
    return profile


def parse_inventory(text: str, source: FilePath) -> Profile:
    """The hosts of an inventory as a profile without a job of its own. Raises ProfileErrors."""
    problems: list[ProfileProblem] = []
    root = compose(text, str(source), problems)
    at, hosts = root.entries.get("hosts", (None, None)) if isinstance(root, MappingNode) else (None, None)
    if root is None or at is None or not isinstance(hosts, SequenceNode):
        place = root.place if root else SourceLocation(str(source), 1, 1)
        problem = ProfileProblem.at(place, "this inventory has no hosts", "expected hosts: [node1, node2]")
        raise ProfileErrors([*problems, problem])
    rest = compose("{disttui: 1, job: {command: ['true']}}", str(source), problems)
    assert isinstance(rest, MappingNode)
    whole = MappingNode(root.place, {**rest.entries, "hosts": (at, hosts)})
    return _checked(whole, str(source), (), problems, [])


def with_overrides(profile: Profile, overrides: Sequence[str], *, personal: bool = True) -> Profile:
    """Check a profile again with other overrides, without reading its files again.

    Args:
        personal: Whether the user's own settings apply.

    Raises:
        ProfileErrors: The result is not valid.
    """
    shared, whole, source = profile._whole[0]
    made = _checked(whole if personal else shared, source, overrides, [], profile._sources)
    made._whole.append(profile._whole[0])
    return made


def _checked(
    whole: MappingNode, source: str, overrides: Sequence[str], problems: list[ProfileProblem], sources: list[Source]
) -> Profile:
    template = apply(whole, overrides, problems)
    root = filled(template, problems)
    if newer := _newer(root):
        raise ProfileErrors([newer])
    _check_references(root, problems)
    data = _given(root, ())
    data.setdefault("name", slug(FilePath(source).stem))
    try:
        profile = Profile.model_validate(data)
    except ValidationError as error:
        raise ProfileErrors([*problems, *explain(error, root)]) from None
    if problems:
        raise ProfileErrors(problems)
    profile._written.update(plain(root))
    if root.entries != template.entries:
        profile._template.update(plain(template))
    profile._sources.extend(sources)
    profile._tree.append(root)
    return profile


def parse_quickly(found: Source, source: FilePath, trees: composition.Trees | None = None) -> Profile:
    """Like `parse`, for lists of many profiles, with the faster YAML parser.

    Args:
        trees: Cache of files that several profiles of the list extend.

    Raises:
        ProfileErrors: The profile is not valid.
    """
    trees = composition.Trees(quick=True) if trees is None else trees
    with suppress(ProfileErrors):
        return parse(found.text, source, quick=True, status=found.status, trees=trees)
    return parse(found.text, source, status=found.status)  # for the same error messages as other commands


def _newer(root: MappingNode) -> ProfileProblem | None:
    """The problem of a profile with a newer schema, which hides all others; None if the schema is known."""
    _, node = root.entries.get("disttui", (None, None))
    if not isinstance(node, ScalarNode) or not re.fullmatch(r"[1-9][0-9]{0,8}", node.text) or int(node.text) <= VERSION:
        return None
    what = f"written by a newer disttui: schema {node.text}, this one reads {VERSION}"
    return ProfileProblem.at(node.place, what, "upgrade disttui")


def _is_env(path: Path) -> bool:
    return path in (("env",), ("job", "env")) or (len(path) == 3 and path[0] == "hosts" and path[2] == "env")


def _check_references(root: MappingNode, problems: list[ProfileProblem]) -> None:
    """Append a problem for every `${env:NAME}`, file or cmd reference outside `env` and `notify`."""
    for path, scalar in walk(root):
        if (place := scalar.reference) and not _is_env(path[:-1]) and path[:1] != ("notify",):
            kind = next(kind for kind in ("env", "file", "cmd") if f"${{{kind}:" in scalar.text)
            what = f"a ${{{kind}:…}} reference in {quoted('.'.join(map(str, path)))}"
            problems.append(ProfileProblem.at(place, what, "expected only as the value of an env variable"))


def _given(node: Node, path: Path) -> Any:
    """The tree as data, scalars as text. Keys without a value are omitted, except environment variables."""
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
    """The tree as data for JSON, as in `Profile.as_written`.

    Scalars become numbers, true, false or null only if these read back as the same text.
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


_OPTION = re.compile(r"--|-[A-Za-z]")
"""Beginning of an option; does not match negative numbers."""


def apply(root: MappingNode, overrides: Sequence[str], problems: list[ProfileProblem]) -> MappingNode:
    """Return `root` with every `path=value` set; list items go by index, missing mappings are created.

    Raises:
        ProfileErrors: One of the overrides cannot be read or does not fit the tree.
    """
    failed: list[ProfileProblem] = []
    node: Node = root
    for override in overrides:
        path, equals, text = override.partition("=")
        place = SourceLocation(f"--set {path.strip()}=…" if equals else f"--set {override}")
        try:
            keys = _keys(path, equals, place)
            value = compose(text, place.source, problems, in_file=False)
            if keys[:2] == ["job", "args"] and keys[2:] and keys[2][0].isalpha():
                value = value or ScalarNode(place, text.strip())
                node = _put(node, keys[:2], _with_option(node, keys, value, place), place)
            else:
                node = _put(node, keys, value or ScalarNode(place, "", plain=True), place)
        except ProfileErrors as error:
            failed.extend(error.problems)
    if failed:
        raise ProfileErrors([*problems, *failed])
    assert isinstance(node, MappingNode)
    return node


def _keys(path: str, equals: str, place: SourceLocation) -> list[str]:
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise _error(place, "expected KEY=VALUE", "like job.args=[--steps, 10] or hosts.0.port=22")
    if len(keys) > MAX_DEPTH:
        raise _error(place, f"nested deeper than {MAX_DEPTH} levels")
    return keys


def _put(node: Node, keys: list[str], value: Node, place: SourceLocation) -> Node:
    if not keys:
        return value
    key, *rest = keys
    if isinstance(node, SequenceNode):
        if not (key.isascii() and key.isdigit() and len(key) < 6 and int(key) < len(node.items)):
            last = len(node.items) - 1
            raise _error(
                place, f"{quoted(key)} is not an index", f"expected 0 to {last}" if last >= 0 else "the list is empty"
            )
        index = int(key)
        item = node.items[index]
        if rest and isinstance(item, ScalarNode) and not item.is_null:
            # A host written as a single word becomes a mapping.
            item = MappingNode(item.place, {"host": (item.place, item)})
        changed = _put(item, rest, value, place)
        return SequenceNode(node.place, (*node.items[:index], changed, *node.items[index + 1 :]))
    if isinstance(node, ScalarNode):
        if not node.is_null:
            raise _error(place, f"{quoted(key)} cannot be set inside the single value {quoted(node.text)}")
        node = MappingNode(place)
    at, old = node.entries.get(key, (place, ScalarNode(place, "", plain=True)))
    if rest and key in ("sync", "environment") and isinstance(old, ScalarNode) and not old.is_null:
        # A folder or file written as a single word becomes a mapping, as does a host.
        old = MappingNode(old.place, {"from": (old.place, old)})
    return MappingNode(node.place, {**node.entries, key: (at, _put(old, rest, value, place))})


def _with_option(root: Node, keys: list[str], value: Node, place: SourceLocation) -> SequenceNode:
    """The job's arguments with the value of an option replaced, or with the option appended. Raises ProfileErrors."""
    if not isinstance(value, ScalarNode):
        raise _error(place, "not a single value", "expected text, in quotes if it looks like a list or a mapping")
    node, option = root, f"--{'.'.join(keys[2:])}"
    for key in keys[:2]:
        node = (
            node.entries[key][1] if isinstance(node, MappingNode) and key in node.entries else SequenceNode(place, ())
        )
    if isinstance(node, ScalarNode) and not node.is_null:
        raise _error(place, f"{quoted(option)} cannot be set inside the single value {quoted(node.text)}")
    items = list(node.items) if isinstance(node, SequenceNode) else []
    words = [item.text if isinstance(item, ScalarNode) else "" for item in items]
    # If an option is given twice, the last one counts.
    at = next((at for at in reversed(range(len(words))) if words[at].partition("=")[0] == option), None)
    if at is None:
        items += [ScalarNode(place, option), replace(value, plain=False)]
    elif "=" in words[at]:
        items[at] = replace(value, text=f"{option}={value.text}", plain=False)
    else:
        has_value = at + 1 < len(words) and not _OPTION.match(words[at + 1])
        items[at + 1 : at + 1 + has_value] = [replace(value, plain=False)]
    return SequenceNode(place, tuple(items))


def _error(place: SourceLocation, what: str, expected: str = "") -> ProfileErrors:
    return ProfileErrors([ProfileProblem.at(place, what, expected)])


_VARIABLE = re.compile(r"\$\{var:([A-Za-z_][A-Za-z0-9_]*)(=[^{}]*)?\}")
_OPENED = re.compile(r"\$\{var:[A-Za-z_]")
"""Beginning of an intended variable; does not match a shell's own `${var:-x}` and `${var:0:3}`."""


def filled(root: MappingNode, problems: list[ProfileProblem]) -> MappingNode:
    """Return the tree with every variable replaced by its value, and without `var`.

    Raises:
        ProfileErrors: The values make the profile too large.
    """
    place, given = root.entries.get("var", (None, None))
    if place is not None and not isinstance(given, MappingNode):
        problems.append(
            ProfileProblem.at(place, "var is not a mapping", "expected names and values, like {steps: 1000}")
        )
    values = _values(given, problems) if isinstance(given, MappingNode) else {}
    filler = _Filler(values, problems)
    entries = {key: (at, filler.fill(node)) for key, (at, node) in root.entries.items() if key != "var"}
    if isinstance(given, MappingNode):
        used = sorted(filler.used)
        for name, (at, _) in given.entries.items():
            if name in values and name not in filler.used:
                meant = near_of_few(name, used, problems)
                cure = f"did you mean {meant!r}?" if meant else f"expected ${{var:{name}}} in a value"
                problems.append(ProfileProblem.at(at, f"nothing uses the variable {quoted(name)}", cure))
    return MappingNode(root.place, entries)


def _values(given: MappingNode, problems: list[ProfileProblem]) -> dict[str, ScalarNode | SequenceNode]:
    found: dict[str, ScalarNode | SequenceNode] = {}
    for name, (at, node) in given.entries.items():
        parts = node.items if isinstance(node, SequenceNode) else (node,)
        if isinstance(node, MappingNode) or not all(isinstance(part, ScalarNode) for part in parts):
            what = f"the variable {quoted(name)} is neither a single value nor a list of them"
            problems.append(ProfileProblem.at(at, what, "expected text, or [several, texts]"))
        elif any(isinstance(part, ScalarNode) and _OPENED.search(part.text) for part in parts):
            problems.append(
                ProfileProblem.at(node.place, "a variable inside the value of another", "write the value itself")
            )
        else:
            found[name] = node
    return found


class _Filler:
    def __init__(self, values: Mapping[str, ScalarNode | SequenceNode], problems: list[ProfileProblem]) -> None:
        self.used: set[str] = set()
        self._values, self._problems = values, problems
        self._room = MAX_SIZE

    def fill(self, node: Node) -> Node:
        """Return a node with its variables replaced; the same object if it has none."""
        if isinstance(node, SequenceNode):
            several = [self._list(item) for item in node.items]
            filled = [more.items if more else (self.fill(one),) for one, more in zip(node.items, several, strict=True)]
            items = tuple(chain.from_iterable(filled))
            return (
                node
                if len(items) == len(node.items) and all(map(is_, items, node.items))
                else replace(node, items=items)
            )
        if isinstance(node, MappingNode):
            entries = {key: (at, self.fill(value)) for key, (at, value) in node.entries.items()}
            same = all(entries[key][1] is value for key, (_, value) in node.entries.items())
            return node if same else replace(node, entries=entries)
        return self._list(node) or (self._scalar(node) if "${var:" in node.text else node)

    def _list(self, node: Node) -> SequenceNode | None:
        """The value of a node that is just one variable with a list as its value; None for any other node."""
        alone = _VARIABLE.fullmatch(node.text) if isinstance(node, ScalarNode) and "${var:" in node.text else None
        value = self._values.get(alone[1]) if alone else None
        if alone is None or not isinstance(value, SequenceNode):
            return None
        self.used.add(alone[1])
        self._take(sum(len(item.text) + 1 for item in value.items if isinstance(item, ScalarNode)), node)
        return value

    def _take(self, size: int, node: Node) -> None:
        self._room -= size
        if self._room < 0:
            raise ProfileErrors([ProfileProblem.at(node.place, "with its variables the profile is larger than 1 MiB")])

    def _scalar(self, node: ScalarNode) -> ScalarNode:
        text = _VARIABLE.sub(lambda match: self._value(match, node), node.text)
        self._take(len(text), node)
        if _OPENED.search(_VARIABLE.sub("", node.text)):
            what = "not a variable"
            self._problems.append(ProfileProblem.at(node.place, what, "expected ${var:NAME} or ${var:NAME=DEFAULT}"))
        # A reference in a variable's value counts as if it were written here.
        reference = node.reference or (node.place if MEANT.search(text) else None)
        return replace(node, text=text, reference=reference)

    def _value(self, match: re.Match[str], node: ScalarNode) -> str:
        name, default = match.groups()
        self.used.add(name)
        value = self._values.get(name)
        if isinstance(value, ScalarNode):
            return value.text
        if value is not None:
            what = f"the variable {quoted(name)} is a list, but is used inside a text"
            self._problems.append(ProfileProblem.at(node.place, what, "expected it as a whole item of a list"))
            return ""
        if default is None:
            what = f"the variable {quoted(name)} has no value"
            self._problems.append(
                ProfileProblem.at(node.place, what, f"expected --set var.{name}=…, or a default: ${{var:{name}=…}}")
            )
            return ""
        return str(default[1:])
