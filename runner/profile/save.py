"""Writing profiles: a new one as a person would, an old one with its comments, order and quotes left alone."""

from __future__ import annotations

import difflib
import io
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from runner import private
from runner.errors import InputError
from runner.profile.load import plain
from runner.profile.nodes import compose
from runner.profile.problems import ProfileErrors, printable

_ORDER = (
    "disttui", "name", "description", "hosts", "num_processes", "python", "activate", "env", "job", "launch",
    "parallel", "precision", "metrics", "on_end",
)  # fmt: skip
_FLOW_WIDTH = 88
_PLAIN = re.compile(r"[A-Za-z_/~.+-][\w/~.+=@%^-]*(?: [\w/~.+=@%^-]+)*")
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n", "~", "-", "."}


def render(data: Mapping[str, Any]) -> str:
    """A new file for the profile `data`: keys in the usual order, short lists on one line, quotes where they matter."""
    order = {key: at for at, key in enumerate(_ORDER)}
    tree = CommentedMap()
    for key in sorted(data, key=lambda key: order.get(key, len(order))):
        tree[key] = _tree(data[key], block=key in ("hosts", "job"))
    return _dump(tree, offset=2)


def edit(old: str, data: Mapping[str, Any]) -> str:
    """`old` changed so that it says `data`; lines that say the same stay as they are, to the byte.

    Where the old text's own shape is in the way (aliases), the file is written anew.
    """
    before = _read(old)
    if before is None:
        return render(data)
    if before == data:
        return old
    offset = 0 if re.search(r"^(\s*)[\w\"']+:[^\n]*\n(?:\s*#[^\n]*\n)*\1- ", old, re.MULTILINE) else 2
    try:
        yaml = _yaml(offset)
        tree = yaml.load(old)
        same = _dump(tree, offset)
        _change(tree, before, data)
        changed = _dump(tree, offset)
    except (YAMLError, AttributeError, KeyError, TypeError, IndexError):
        return render(data)
    for text in (_merge(old, same, changed), changed):
        if _read(text) == data:
            return text
    return render(data)


def diff(old: str, new: str, name: str = "profile") -> list[str]:
    """The lines of a unified diff, without line ends; empty where nothing differs."""
    lines = old.splitlines(), new.splitlines()
    return list(difflib.unified_diff(*lines, f"{name} (saved)", f"{name} (new)", lineterm=""))


def save(text: str, path: Path, *, replace: bool) -> None:
    """Write a profile at once or not at all.

    Args:
        replace: Whether a file that is there may be replaced.

    Raises:
        InputError: It cannot be written, or there is one already.
    """
    name = printable(str(path))
    if path.suffix not in (".yaml", ".yml"):
        raise InputError("a profile's file ends in .yaml", f"Write {printable(path.name)}.yaml.", place=name)
    # A link stays a link: what it leads to is replaced.
    target = Path(os.path.realpath(path))
    part = ""
    try:
        if target.exists() and not replace:
            raise InputError("there is a file already", "Give another name, or replace it.", place=name)
        mode = target.stat().st_mode & 0o777 if target.exists() else 0o664 & ~_umask()
        private.make_folder(target.parent, 0o775)
        descriptor, part = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(part).chmod(mode)
        Path(part).replace(target)
    except (OSError, ValueError) as error:
        with suppress(OSError):
            if part:
                Path(part).unlink()
        no_folder = isinstance(error, FileExistsError | NotADirectoryError)
        why = "a part of this path is no folder" if no_folder else getattr(error, "strerror", None) or str(error)
        raise InputError(why, "Choose another folder, or make this one writable.", place=name) from None


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _read(text: str) -> dict[str, Any] | None:
    """The data of a file as `Profile.as_written` has it, None where it cannot be read."""
    try:
        root = compose(text, "profile", [])
    except ProfileErrors:
        return None
    data = plain(root) if root is not None else None
    return data if isinstance(data, dict) else None


def _yaml(offset: int) -> YAML:
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=2 + offset, offset=offset)
    return yaml


def _dump(tree: Any, offset: int) -> str:
    out = io.StringIO()
    _yaml(offset).dump(tree, out)
    return out.getvalue()


def _tree(value: Any, *, block: bool = False) -> Any:
    """Data as nodes that are written as a person would."""
    if isinstance(value, Mapping):
        table = CommentedMap({key: _tree(inner) for key, inner in value.items()})
        if not block and _short(value):
            table.fa.set_flow_style()
        return table
    if isinstance(value, list | tuple):
        items = CommentedSeq([_tree(inner) for inner in value])
        if not block and _short(value):
            items.fa.set_flow_style()
        return items
    if isinstance(value, str) and (not _PLAIN.fullmatch(value) or value.lower() in _WORDS):
        return DoubleQuotedScalarString(value)
    return value


def _short(value: Any) -> bool:
    return len(str(value)) <= _FLOW_WIDTH


def _change(node: Any, before: Any, after: Any) -> None:
    """Put `after` into the tree, touching only what differs from `before`."""
    if isinstance(after, Mapping):
        for key in [key for key in before if key not in after]:
            del node[key]
        for key, value in after.items():
            if key not in before:
                _insert(node, key, _tree(value, block=key in ("hosts", "job")))
            elif value != before[key]:
                _replace(node, key, before[key], value)
        return
    for at, value in enumerate(after[: len(before)]):
        if value != before[at]:
            _replace(node, at, before[at], value)
    for value in after[len(before) :]:
        node.append(_tree(value))
    del node[len(after) :]


def _replace(node: Any, key: Any, before: Any, after: Any) -> None:
    if before and isinstance(before, Mapping) and isinstance(after, Mapping):
        _change(node[key], before, after)
    elif before and isinstance(before, list) and isinstance(after, list | tuple):
        _change(node[key], _without_gone(node[key], before, after), after)
    else:
        node[key] = _tree(after, block=key in ("hosts", "job"))


def _without_gone(items: Any, before: Sequence[Any], after: Sequence[Any]) -> list[Any]:
    """Take out the items that are gone, so that those which stay keep their lines; returns what is left."""
    left = list(before)
    for at in reversed(range(len(left))):
        if len(left) > len(after) and left[at] not in after:
            del items[at]
            del left[at]
    return left


def _insert(node: Any, key: str, value: Any) -> None:
    """Put a new key where the usual order has it."""
    known = list(node)
    if key in _ORDER:
        later = [at for at, other in enumerate(known) if other in _ORDER and _ORDER.index(other) > _ORDER.index(key)]
        if later:
            node.insert(later[0], key, value)
            return
    node[key] = value


def _merge(old: str, same: str, changed: str) -> str:
    """Bring what differs between two dumps into the text as it was written, whose layout the dumps may not have."""
    lines, dumped, wanted = (text.splitlines(keepends=True) for text in (old, same, changed))
    # Lines of the dump → where they stand in the old text; None: the dump has laid them out differently.
    place: list[int | None] = [None] * (len(dumped) + 1)
    place[len(dumped)] = len(lines)
    for block in difflib.SequenceMatcher(None, lines, dumped, autojunk=False).get_matching_blocks():
        for step in range(block.size):
            place[block.b + step] = block.a + step
    result: list[str] = []
    at = 0
    moves = difflib.SequenceMatcher(None, dumped, wanted, autojunk=False).get_opcodes()
    for tag, first, last, new_first, new_last in moves:
        if tag == "equal":
            continue
        start, end = place[first], place[last]
        if start is None or end is None or start < at:
            return changed
        kept, new = lines[at:start], wanted[new_first:new_last]
        # Empty lines belong to what follows them: what is new goes before, what is old takes none away.
        after = _blanks(kept) if start == end else []
        rest = _blanks(lines[start:end]) if not _blanks(new) else []
        result += [*kept[: len(kept) - len(after)], *new, *after, *rest]
        at = end
    return "".join([*result, *lines[at:]])


def _blanks(lines: Sequence[str]) -> list[str]:
    """The empty lines at the end."""
    return list(takewhile(lambda line: not line.strip(), reversed(lines)))
