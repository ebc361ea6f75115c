"""`secret_commands` of the user's config: the only commands that a `${cmd:…}` of a profile may name."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Mapping, Sequence

import yaml

from runner.profile.problems import printable
from runner.user.config import command_words, config_file

_LARGEST = 1024 * 1024


def refusal(words: Sequence[str], environ: Mapping[str, str]) -> str:
    """Why the config does not allow a command, with the cure; empty where it does.

    It allows the same words, where a word that ends in `*` stands for what begins so.
    """
    path = config_file(environ)
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(_LARGEST)
    except (OSError, ValueError):
        status, data = None, b""
    shown = printable(str(path))
    if status and status.st_uid not in (0, os.geteuid()):
        return f"cannot be allowed: secret_commands count only in a file of your own, and {shown} is another user's"
    if status and status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"cannot be allowed: others can write {shown}, so its secret_commands do not count: chmod 600 it"
    if any(_fits(words, pattern) for pattern in _patterns(data)):
        return ""
    words_to_add = printable(shlex.join(words))
    return f"is not among your secret_commands; if you trust it, allow it in {shown}: secret_commands: [{words_to_add}]"


def _fits(words: Sequence[str], known: Sequence[str]) -> bool:
    return len(words) == len(known) and all(map(_word_fits, words, known))


def _word_fits(word: str, known: str) -> bool:
    if not known.endswith("*"):
        return word == known
    return word.startswith(known[:-1]) and ".." not in word.split("/")


def _patterns(text: bytes) -> list[list[str]]:
    """The entries of a config; none where it is no good YAML."""
    try:
        data = yaml.safe_load(text)
    except (ValueError, RecursionError, yaml.YAMLError):
        return []
    entries = data.get("secret_commands") if isinstance(data, dict) else None
    found = [command_words(entry) for entry in entries] if isinstance(entries, list) else []
    return [words for words in found if words]
