"""A profile as text, and writing it onto the disk atomically."""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from disttui.runner import private
from disttui.runner.errors import InputError
from disttui.runner.profile.leaks import refuse
from disttui.runner.profile.problems import printable

ORDER = (
    "disttui", "name", "description", "transport", "hosts", "num_processes", "python", "activate", "env", "job",
    "data", "container", "launch", "parallel", "precision", "metrics", "on_end", "watch", "notify",
)  # fmt: skip
"""The profile's keys as people write them."""
TALL = ("hosts", "job")
"""Keys whose value has a line for each of its items, however short it is."""
_FLOW_WIDTH = 88
_PLAIN = re.compile(r"[A-Za-z_/~.+-][\w/~.+=@%^-]*(?: [\w/~.+=@%^-]+)*")
_WORDS = {"true", "false", "yes", "no", "on", "off", "null", "y", "n", "~", "-", "."}
_ENDLESS = 1 << 30
_PATIENCE = 60.0
"""Seconds for which another process may hold a lock."""


def render(data: Mapping[str, Any]) -> str:
    """A new file for the profile `data`, with its keys in the usual order."""
    order = {key: at for at, key in enumerate(ORDER)}
    return "".join(entry(key, data[key]) for key in sorted(data, key=lambda key: order.get(key, len(order)))) or "{}\n"


def entry(key: str, value: Any) -> str:
    """The lines of one key of a mapping, without indentation."""
    return _written(yaml.MappingNode(_tag("map"), [(_node(key), _node(value, tall=key in TALL))], flow_style=False))


def item(value: Any) -> str:
    """The lines of one item of a list, without indentation."""
    return _written(yaml.SequenceNode(_tag("seq"), [_node(value)], flow_style=False), indent=False)


def inline(value: Any) -> str:
    """A value on one line, also for inside brackets."""
    return _written(yaml.SequenceNode(_tag("seq"), [_node(value, flow=True)], flow_style=True))[1:-2]


def is_short(key: str | None, value: Any) -> bool:
    """Whether a value stands on one line; `key` is None for an item of a list."""
    return not isinstance(value, Mapping | list | tuple) or (key not in TALL and len(str(value)) <= _FLOW_WIDTH)


class _Dumper(yaml.SafeDumper):
    """Writes `  - ` below a key, where PyYAML would put the dash under the key itself."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)


def _written(node: yaml.Node, *, indent: bool = True) -> str:
    dumper = _Dumper if indent else yaml.SafeDumper
    return str(yaml.serialize(node, Dumper=dumper, allow_unicode=True, width=_ENDLESS))


def _node(value: Any, *, tall: bool = False, flow: bool = False) -> yaml.Node:
    """A value as PyYAML writes it: on one line where it is short, with `flow` in any case and with `tall` in none."""
    one_line = flow or (not tall and len(str(value)) <= _FLOW_WIDTH)
    if isinstance(value, Mapping):
        pairs = [(_node(key), _node(inner, flow=one_line)) for key, inner in value.items()]
        return yaml.MappingNode(_tag("map"), pairs, flow_style=one_line)
    if isinstance(value, list | tuple):
        return yaml.SequenceNode(_tag("seq"), [_node(each, flow=one_line) for each in value], flow_style=one_line)
    if value is None:
        return yaml.ScalarNode(_tag("null"), "null")
    if isinstance(value, bool):
        return yaml.ScalarNode(_tag("bool"), str(value).lower())
    if isinstance(value, int):
        return yaml.ScalarNode(_tag("int"), str(value))
    text = str(value)
    quoted = not _PLAIN.fullmatch(text) or text.lower() in _WORDS
    return yaml.ScalarNode(_tag("str"), text, style='"' if quoted else None)


def _tag(kind: str) -> str:
    return f"tag:yaml.org,2002:{kind}"


def save(text: str, path: Path, *, replace: bool, mode: int = 0o664) -> None:
    """Write a profile of the user's own at once or not at all; a link stays a link, what it leads to is replaced.

    Args:
        replace: Whether a file that is there may be replaced; it keeps its mode.
        mode: Of a new file, less what the umask takes away.

    Raises:
        InputError: It cannot be written, there is one already, or a value in it looks like a secret.
    """
    name = printable(str(path))
    refuse(text, str(path))
    if path.suffix not in (".yaml", ".yml"):
        raise InputError("a profile's file ends in .yaml", f"Write {printable(path.name)}.yaml.", place=name)
    with writing(path):
        if path.exists() and not replace:
            raise InputError("there is a file already", "Give another name, or replace it.", place=name)
        write(path, text, mode)


def write(path: Path, text: str, mode: int = 0o664) -> None:
    """Write a file, in place of whatever has its name there but a folder. Raises OSError."""
    target = Path(os.path.realpath(path))
    private.make_folder(target.parent, 0o775)
    mode &= ~_umask()
    with suppress(FileNotFoundError):
        status = target.lstat()
        mode = status.st_mode & 0o777 if stat.S_ISREG(status.st_mode) else mode
    part = target.with_name(f".{target.name[:100]}.{secrets.token_hex(8)}")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), mode)
        part.replace(target)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of writing a file into InputError."""
    try:
        yield
    except InputError:
        raise
    except (OSError, ValueError) as error:
        no_folder = isinstance(error, FileExistsError | NotADirectoryError)
        why = "a part of this path is not a folder" if no_folder else getattr(error, "strerror", None) or str(error)
        cure = "Choose another folder, or make this one writable."
        raise InputError(why, cure, place=printable(str(path))) from None


@contextmanager
def locked(file: Path, busy: str, place: str = "") -> Iterator[None]:
    """Lock a file, which is made, against other processes; where its file system has no locks, continue without.

    Args:
        busy: What is wrong where another process has held it for a minute.
        place: Where that is; empty: its folder.

    Raises:
        InputError: It is held, or cannot be made.
    """
    folder = printable(str(file.parent))
    try:
        private.make_folder(file.parent)
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InputError(f"cannot be written: {error.strerror}", place=folder) from None
    with os.fdopen(descriptor):
        wait_for_lock(descriptor, busy, place or folder)
        yield


def wait_for_lock(descriptor: int, busy: str, place: str) -> None:
    """Lock an open file or folder, as `locked`. Raises InputError."""
    with suppress(OSError):
        if not private.lock(descriptor, _PATIENCE):
            raise InputError(busy, "Try again.", place=place)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
