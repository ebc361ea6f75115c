"""The user's config: `$XDG_CONFIG_HOME/disttui/config.yaml`.

theme: disttui-light          # auto, disttui-dark, disttui-light, or one of Textual's
animations: false             # by default: not over SSH
title: true                   # show the state of the run on screen in the terminal's title; false by default
bell: true                    # ring the bell when that run ends; false by default
notify: osc9                  # send a notification when that run ends: osc9, osc777, or none (the default)
secret_commands:              # commands that a ${cmd:…} of a profile may run; none by default
  - pass show ml/*
transport: ssh                # how to log in to hosts: builtin (the default), or the ssh program
keys:                         # binding id: keys; the help (?) shows the ids
  home.new: ctrl+n
notifications:                # defaults for the keys of `notify` in every profile
  ntfy: ${env:NTFY_TOPIC}

`libraries` is read by disttui.runner.profile.library, also for the command line.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from disttui.runner.errors import InputError
from disttui.runner.text import clean
from disttui.runner.user.folders import user_folder

NOTIFY = ("none", "osc9", "osc777")
"""Ways to request a notification: iTerm2, kitty, WezTerm and Windows Terminal support OSC 9; urxvt, foot, Ghostty and
GNOME's terminals OSC 777."""


@dataclass(frozen=True)
class Settings:
    """The settings of the config, or their defaults."""

    theme: str = "auto"
    animations: bool | None = None
    """None to animate unless the terminal is used over SSH."""
    title: bool = False
    bell: bool = False
    notify: str = "none"
    """One of `NOTIFY`."""
    secret_commands: Sequence[object] = ()
    """Commands that a `${cmd:…}` of a profile may run; see `command_words`."""
    transport: str = "builtin"
    """One of `TRANSPORTS`, for hosts whose profile sets none."""
    notifications: Mapping[str, Any] = field(default_factory=dict)
    """Defaults for `notify` of every profile, as written."""
    keys: Mapping[str, str] = field(default_factory=dict)
    """Binding id → keys, separated by commas."""


TRANSPORTS = ("builtin", "ssh")

_KINDS: Mapping[str, tuple[type, str]] = {
    "theme": (str, "a name, such as disttui-light"),
    "animations": (bool, "true or false"),
    "title": (bool, "true or false"),
    "bell": (bool, "true or false"),
    "notify": (str, f"one of {', '.join(NOTIFY)}"),
    "secret_commands": (list, "a list of command lines, such as [pass show ml/*]"),
    "transport": (str, f"one of {', '.join(TRANSPORTS)}"),
    "notifications": (dict, "a mapping like a profile's notify"),
    "keys": (dict, "a mapping of binding ids to keys"),
    "libraries": (list, "a list of libraries"),
}

_WORDS: Mapping[str, Sequence[str]] = {"notify": NOTIFY, "transport": TRANSPORTS}


def config_file(environ: Mapping[str, str]) -> Path:
    return user_folder("config", environ) / "config.yaml"


def load_settings(environ: Mapping[str, str]) -> Settings:
    """Read the config; a missing file gives the defaults.

    Raises:
        InputError: It cannot be read, is not YAML, or has an unknown key or a wrong value.
    """
    return _checked(read_config(environ)[1], config_file(environ))


def read_config(environ: Mapping[str, str]) -> tuple[str, Mapping[str, Any]]:
    """Return the config's text and parsed content; both are empty without a config.

    Raises:
        InputError: It cannot be read, or is not a YAML mapping.
    """
    path = config_file(environ)
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return "", {}
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(getattr(error, "strerror", None) or "not UTF-8 text", place=f"{path}") from None
    return text, _parsed(path, text)


def _parsed(path: Path, text: str) -> Mapping[str, Any]:
    import yaml  # slow to import, and most users have no config

    try:
        data = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else f"{path}"
        raise InputError(clean(getattr(error, "problem", None) or "not valid YAML"), place=place) from None
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise InputError("not a mapping", "Write lines such as 'theme: disttui-light'.", place=f"{path}")
    return data


def _checked(data: Mapping[str, Any], path: Path) -> Settings:
    for name, value in data.items():
        if name not in _KINDS:
            raise InputError(f"{_show(name)} is not a setting", _meant(name, list(_KINDS)), place=f"{path}")
        kind, words = _KINDS[name]
        if value is None:
            continue  # a key without a value counts as absent
        if not isinstance(value, kind) or value not in _WORDS.get(name, [value]):
            raise InputError(f"{name}: expected {words}, not {_show(value)}", place=f"{path}")
    given = {name: value for name, value in data.items() if value is not None}
    for entry in given.get("secret_commands", []):
        if command_words(entry) is None:
            raise InputError(f"secret_commands: expected a command line, not {_show(entry)}", place=f"{path}")
    for name, keys in given.get("keys", {}).items():
        if not isinstance(name, str) or not isinstance(keys, str) or not all(map(str.strip, keys.split(","))):
            raise InputError(f"keys: {_show(name)}: expected keys such as ctrl+n, not {_show(keys)}", place=f"{path}")
    return Settings(**{name: value for name, value in given.items() if name != "libraries"})


def command_words(entry: object) -> list[str] | None:
    """Return the words of an entry of `secret_commands`, a command line or a list of words; None if invalid."""
    try:
        words = shlex.split(entry) if isinstance(entry, str) else list(entry) if isinstance(entry, list) else []
    except ValueError:
        return None
    if not words or not all(isinstance(word, str) for word in words):
        return None
    # A wildcard as the program would permit any command.
    return words if words[0] and not words[0].endswith("*") else None


def _show(value: object) -> str:
    return repr(clean(str(value)))[:80]


def _meant(name: object, known: list[str]) -> str:
    near = get_close_matches(str(name), known, 1)
    return f"Did you mean {near[0]}?" if near else f"Known settings: {', '.join(known)}."
